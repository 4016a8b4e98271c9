package accel_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"muster/internal/accel"
)

func TestParseList(t *testing.T) {
	for _, c := range []struct {
		text string
		want []int
		back string
		err  string
	}{
		{text: ""},
		{text: "\n"},
		{text: "0\n", want: []int{0}, back: "0"},
		{text: "0-3,8,10-11", want: []int{0, 1, 2, 3, 8, 10, 11}, back: "0-3,8,10-11"},
		{text: " 5 , 1-2 ,,", want: []int{1, 2, 5}, back: "1-2,5"},
		{text: "1-3,2,3-4", want: []int{1, 2, 3, 4}, back: "1-4"},
		{text: "7-7", want: []int{7}, back: "7"},
		{text: "8191", want: []int{8191}, back: "8191"},
		{text: "8192", err: `"8192" is above the limit of 8191`},
		{text: "0-4294967295", err: "above the limit"},
		{text: "0-99999999999999999999", err: "neither a number nor a range"},
		{text: "3-1", err: `"3-1" is neither a number nor a range of numbers`},
		{text: "-1", err: "neither"},
		{text: "1-2-3", err: "neither"},
		{text: "0x1", err: "neither"},
		{text: "+1", err: "neither"},
		{text: strings.Repeat("0-8191,", 1000), err: "repeated"},
	} {
		got, err := accel.ParseList(c.text)
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%.20q: error %v, want %q", c.text, err, c.err)
			}
			continue
		}
		if d := cmp.Diff(c.want, got, cmpopts.EquateEmpty()); d != "" || err != nil {
			t.Errorf("%q: %v (-want +got)\n%s", c.text, err, d)
		}
		if back := accel.FormatList(got); back != c.back {
			t.Errorf("%v is written %q, want %q", got, back, c.back)
		}
	}
}

func FuzzParseList(f *testing.F) {
	for _, s := range []string{"", "0", "0-3,8,10-11", "3-1", "0-8191,0-8191", "1,,2", "\x00", "-", "1-", "٣"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		list, err := accel.ParseList(text)
		if err != nil {
			return
		}
		for i, n := range list {
			if n < 0 || n > 8191 || i > 0 && list[i-1] >= n {
				t.Fatalf("%q: %v", text, list)
			}
		}
		again, err := accel.ParseList(accel.FormatList(list))
		if err != nil || !slices.Equal(list, again) {
			t.Errorf("%v, written %q, is read as %v, %v", list, accel.FormatList(list), again, err)
		}
	})
}
