package gather

import "testing"

// TestAwaited reads what wait4 waits for as the kernel shows the register, whose upper half a libc leaves zero or fills
// with the sign.
func TestAwaited(t *testing.T) {
	for argument, want := range map[string]string{
		"0x4d2":              "process 1234",
		"0xffffffff":         "any child",
		"0xffffffffffffffff": "any child",
		"0x0":                "any child",
		"0xfffffb2e":         "a process of group 1234",
		"0x":                 "",
	} {
		if got := awaited(argument); got != want {
			t.Errorf("%s: %q, want %q", argument, got, want)
		}
	}
}
