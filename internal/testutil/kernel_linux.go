package testutil

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"
)

// KernelIs reports whether this machine's Linux has a version, or a later one.
func KernelIs(t *testing.T, major, minor int) bool {
	t.Helper()
	var name unix.Utsname
	var gotMajor, gotMinor int
	err := unix.Uname(&name)
	if err == nil {
		_, err = fmt.Sscanf(unix.ByteSliceToString(name.Release[:]), "%d.%d", &gotMajor, &gotMinor)
	}
	if err != nil {
		t.Fatal(err)
	}
	return gotMajor > major || gotMajor == major && gotMinor >= minor
}
