//go:build !linux

package accel

import (
	"fmt"
	"io/fs"
	"runtime"
)

// Access always fails: accelerators are looked for on Linux only.
func (d dirRoot) Access(name string) error {
	return &fs.PathError{Op: "access", Path: name, Err: fs.ErrNotExist}
}

// Readable always fails, as Access does.
func (d dirRoot) Readable(name string) error { return d.Access(name) }

// Affinity always fails: there is no portable way to ask.
func (d dirRoot) Affinity() ([]int, error) {
	return nil, fmt.Errorf("cannot read the CPU affinity on %s", runtime.GOOS)
}
