package job_test

import (
	"strings"
	"testing"

	"muster/launch/job"
)

func TestExitCodes(t *testing.T) {
	for _, c := range []struct {
		text    string
		in, out []int
	}{
		{"", nil, []int{0, 1, 255}},
		{"  ", nil, []int{0, 1}},
		{"130,137,138,143", []int{130, 137, 138, 143}, []int{0, 1, 129, 131, 139, 144}}, // T9k's ExitCode policy
		{"1-100", []int{1, 50, 100}, []int{0, 101}},
		{"129,101", []int{129, 101}, []int{102, 128}},
		{">=128", []int{128, 137, 255}, []int{0, 127}},
		{"kubeflow", []int{128, 137, 255}, []int{0, 127}},
		{" 1 , 3 - 5 , >= 250 ", []int{1, 3, 4, 5, 250, 255}, []int{0, 2, 6, 249}},
		{"0-255", []int{0, 255}, []int{256, -1}},
		{"7-7", []int{7}, []int{6, 8}},
	} {
		set, err := job.ParseExitCodes(c.text)
		if err != nil {
			t.Errorf("%q: %v", c.text, err)
			continue
		}
		for _, code := range c.in {
			if !set.Has(code) {
				t.Errorf("%q lacks %d", c.text, code)
			}
		}
		for _, code := range c.out {
			if set.Has(code) {
				t.Errorf("%q has %d", c.text, code)
			}
		}
	}
}

func TestExitCodesRefused(t *testing.T) {
	for _, text := range []string{
		"256", "-1", "+1", "1,", ",", "a", "1-", "-", "5-3", ">=", ">=256", ">128", "<5", ">=1-5", "1-2-3", "1;2", "0x10",
		"kubeflow-", "1.5",
	} {
		if set, err := job.ParseExitCodes(text); err == nil {
			t.Errorf("%q was read as %v", text, set)
		} else if !strings.Contains(err.Error(), "exit code") {
			t.Errorf("%q: the error does not say what is wanted: %v", text, err)
		}
	}
}

// FuzzParseExitCodes checks that whatever is read is written and read again as the same set.
func FuzzParseExitCodes(f *testing.F) {
	for _, seed := range []string{"", "1", "1-100", ">=128", "kubeflow", " 1 , 2-3 ", "1,,2", "255-255", "-"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		set, err := job.ParseExitCodes(text)
		if err != nil {
			return
		}
		again, err := job.ParseExitCodes(set.String())
		if err != nil {
			t.Fatalf("%q was written as %q, which cannot be read: %v", text, set, err)
		}
		for code := -1; code <= 256; code++ {
			if set.Has(code) != again.Has(code) {
				t.Fatalf("%q and %q differ in %d", text, set, code)
			}
			if set.Has(code) && (code < 0 || code > 255) {
				t.Fatalf("%q has %d", text, code)
			}
		}
	})
}
