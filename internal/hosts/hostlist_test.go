package hosts_test

import (
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"muster/internal/hosts"
)

// The lists that were shown to scontrol of Slurm 22.05, and suffixes, which it refuses.
func TestExpand(t *testing.T) {
	for list, want := range map[string]string{
		"n[008-011]":        "n008 n009 n010 n011",
		"n[008-011,13]":     "n008 n009 n010 n011 n13",
		"a[9-11]":           "a9 a10 a11",
		"a[09-11]":          "a09 a10 a11",
		"r[1-2]n[1-3]":      "r1n1 r1n2 r1n3 r2n1 r2n2 r2n3",
		"x[1,3-4]y[01-02]":  "x1y01 x1y02 x3y01 x3y02 x4y01 x4y02",
		"n[1-3],n[7]":       "n1 n2 n3 n7",
		"[1-2]":             "1 2",
		"b,a,b":             "b a b",
		"n[1,1]":            "n1 n1",
		"login":             "login",
		"n[1-2]-ib0.x":      "n1-ib0.x n2-ib0.x",
		"a[99-101]":         "a99 a100 a101",
		"n[0-0]":            "n0",
		"n[1-2],gpu-3,c[5]": "n1 n2 gpu-3 c5",
	} {
		got, err := hosts.Expand(list)
		if err != nil || strings.Join(got, " ") != want {
			t.Errorf("%s: %q, %v; want %q", list, got, err, want)
		}
	}
	for list, want := range map[string]string{
		"":                                   "no name",
		"a,,b":                               "no name",
		"a,":                                 "no name",
		"n[1-2":                              "not closed",
		"n[1-[2]]":                           "bracket at letter 5",
		"n1]":                                "bracket at letter 3",
		"n[]":                                `"" is neither`,
		"n[1-]":                              `"1-" is neither`,
		"n[a-b]":                             `"a-b" is neither`,
		"n[0-10:5]":                          `"0-10:5" is neither`,
		"n[3-1]":                             "ends before it begins",
		"n[1-2] m":                           `" m" is no name`,
		"a b":                                "no name of a host",
		"a\x1b[2J":                           "not closed",
		"a:b":                                "no name of a host",
		"n[1-999999999]":                     "more than 65536 hosts",
		"n[0-65536]":                         "more than 65536 hosts",
		"n[0-299]m[0-299]":                   "more than 65536 hosts",
		"n[0-65535],m":                       "more than 65536 hosts",
		"n[" + strings.Repeat("9", 19) + "]": "neither a number",
		"n[0-999999999999999999,0-999999999999999999]": "more than 65536 hosts",
		strings.Repeat("[0-65535]", 8):                 "more than 65536 hosts",
		strings.Repeat("a", 256):                       "more than 255 letters",
		strings.Repeat("[000000000000000001]", 15):     "more than 255 letters",
		strings.Repeat("a,", 64<<10) + "a":             "131073 bytes exceeds",
	} {
		got, err := hosts.Expand(list)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40s: %d hosts, %v; want %q", list, len(got), err, want)
		}
	}
	if got, err := hosts.Expand("n[0-65535]"); err != nil || len(got) != hosts.MaxHosts || got[65535] != "n65535" {
		t.Errorf("the longest list: %d hosts, %v", len(got), err)
	}
}

// A list that asks for too much takes no memory for it.
func TestExpandTakesLittle(t *testing.T) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 20 {
		for _, list := range []string{"[1-999999999]", "[0-65535]x[0-65535]", "[0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9]"} {
			if got, err := hosts.Expand(list); err == nil {
				t.Fatalf("%s: %d hosts", list, len(got))
			}
		}
		if got, err := hosts.ExpandCounts("1(x999999999)"); err == nil {
			t.Fatalf("%d counts", len(got))
		}
	}
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; took > 1<<20 {
		t.Errorf("refusing took %d bytes", took)
	}
}

func TestExpandCounts(t *testing.T) {
	for list, want := range map[string][]int{"4(x2),3": {4, 4, 3}, "8": {8}, "1,2": {1, 2}, "2(x0),1": {1}} {
		got, err := hosts.ExpandCounts(list)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%s: %v, (-want +got):\n%s", list, err, diff)
		}
	}
	for _, list := range []string{
		"", "4(x", "4(x2)3", "a", "-1", "4,,3", "4(x70000)", "40000(x40000),1(x40000)",
		strings.Repeat("1,", 70<<10),
	} {
		if got, err := hosts.ExpandCounts(list); err == nil {
			t.Errorf("%.40s: %d counts", list, len(got))
		}
	}
}

// Lists made of random names, brackets and ranges mean what their making says.
func TestExpandProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var list, want []string
		for range rapid.IntRange(1, 4).Draw(t, "items") {
			var text strings.Builder
			names := []string{""}
			for range rapid.IntRange(1, 3).Draw(t, "parts") {
				literal := rapid.StringMatching(`[a-z.-]{1,3}`).Draw(t, "literal")
				text.WriteString(literal)
				var ends []string
				var ranges []string
				for range rapid.IntRange(0, 2).Draw(t, "ranges") {
					first := rapid.IntRange(0, 120).Draw(t, "first")
					last := first + rapid.IntRange(0, 4).Draw(t, "more")
					width := rapid.IntRange(1, 4).Draw(t, "width")
					low := fmt.Sprintf("%0*d", width, first)
					if item := fmt.Sprintf("%s-%d", low, last); last > first || rapid.Bool().Draw(t, "as a range") {
						ranges = append(ranges, item)
					} else {
						ranges = append(ranges, low)
					}
					for n := first; n <= last; n++ {
						ends = append(ends, fmt.Sprintf("%0*d", len(low), n))
					}
				}
				if ends == nil {
					ends = []string{""}
				} else {
					fmt.Fprintf(&text, "[%s]", strings.Join(ranges, ","))
				}
				var longer []string
				for _, name := range names {
					for _, end := range ends {
						longer = append(longer, name+literal+end)
					}
				}
				names = longer
			}
			list, want = append(list, text.String()), append(want, names...)
		}
		got, err := hosts.Expand(strings.Join(list, ","))
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Fatalf("%s: %v (-want +got):\n%s", list, err, diff)
		}
	})
}

// FuzzExpand: any text is refused or gives names that are fit to be shown and stand for themselves.
func FuzzExpand(f *testing.F) {
	for _, seed := range []string{"n[008-011,13]", "r[1-2]n[1-3]", "a[9-11]-x,b", "4(x2),3", "[1-999999999]", "n[1-]", "[[", "][", ","} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, list string) {
		if counts, err := hosts.ExpandCounts(list); err == nil && len(counts) > hosts.MaxHosts {
			t.Errorf("%d counts", len(counts))
		}
		names, err := hosts.Expand(list)
		if err != nil {
			return
		}
		if len(names) > hosts.MaxHosts {
			t.Fatalf("%d hosts", len(names))
		}
		for _, h := range names[:min(len(names), 100)] {
			if len(h) > 255 ||
				strings.ContainsFunc(h, func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune("[],:", r) }) {
				t.Fatalf("%q is no name of a host", h)
			}
		}
		again, err := hosts.Expand(strings.Join(names, ","))
		if len(strings.Join(names, ",")) < math.MaxUint16 && (err != nil || !slices.Equal(again, names)) {
			t.Errorf("%q: %v", names, err)
		}
	})
}
