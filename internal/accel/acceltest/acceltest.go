// Package acceltest has the files of machines with accelerators, for tests: of detection, and of what stands in for it.
package acceltest

import (
	"errors"
	"io/fs"
	"strings"
	"syscall"
	"testing/fstest"

	"muster/internal/accel"
)

var _ accel.Root = Root{}

// Tree is a file system: names to contents, where "-> target" is a link. Files below dev are accessible unless their
// content says "denied", "odd", or "readable" for no more than that.
type Tree map[string]string

// Root returns t as a root in memory, of which CPUs is 0.
func (t Tree) Root() Root {
	m := Root{MapFS: fstest.MapFS{}}
	for name, text := range t {
		f := &fstest.MapFile{Data: []byte(text), Mode: 0o444}
		if target, ok := strings.CutPrefix(text, "-> "); ok {
			f = &fstest.MapFile{Data: []byte(target), Mode: fs.ModeSymlink | 0o777}
		}
		m.MapFS[name] = f
	}
	return m
}

// With returns t with the files of others over it; "" takes a file away.
func (t Tree) With(others ...Tree) Tree {
	all := Tree{}
	for _, o := range append([]Tree{t}, others...) {
		for name, text := range o {
			all[name] = text
			if text == "" {
				delete(all, name)
			}
		}
	}
	return all
}

// Root is an accel.Root in memory.
type Root struct {
	fstest.MapFS
	CPUs int // how many this process may use; 0: nobody can tell
}

// Access goes by the content of the file name, as Tree says.
func (r Root) Access(name string) error {
	f, err := fs.ReadFile(r.MapFS, name)
	if err != nil {
		return err
	}
	switch string(f) {
	case "denied", "readable":
		return &fs.PathError{Op: "access", Path: name, Err: fs.ErrPermission}
	case "odd":
		return &fs.PathError{Op: "access", Path: name, Err: syscall.EIO}
	}
	return nil
}

// Readable goes by the content of the file name, as Tree says.
func (r Root) Readable(name string) error {
	if f, err := fs.ReadFile(r.MapFS, name); err == nil && string(f) == "readable" {
		return nil
	}
	return r.Access(name)
}

// Affinity returns as many CPUs as there are to be, all with the number 0.
func (r Root) Affinity() ([]int, error) {
	if r.CPUs == 0 {
		return nil, errors.New("no affinity here")
	}
	return make([]int, r.CPUs), nil
}

// Env looks variables up among pairs such as "NAME=value".
func Env(pairs ...string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		for _, p := range pairs {
			if v, ok := strings.CutPrefix(p, name+"="); ok {
				return v, true
			}
		}
		return "", false
	}
}
