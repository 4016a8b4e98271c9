package accel_test

import (
	"errors"
	"io/fs"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"

	"go.uber.org/goleak"

	"muster/internal/accel"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// tree is a Root in memory: names to contents, where "-> target" is a link. Files below dev are accessible unless their
// content says "denied", "odd", or "readable" for no more than that.
type tree map[string]string

func (t tree) root() memRoot {
	m := memRoot{MapFS: fstest.MapFS{}}
	for name, text := range t {
		f := &fstest.MapFile{Data: []byte(text), Mode: 0o444}
		if target, ok := strings.CutPrefix(text, "-> "); ok {
			f = &fstest.MapFile{Data: []byte(target), Mode: fs.ModeSymlink | 0o777}
		}
		m.MapFS[name] = f
	}
	return m
}

// with returns t with the files of others over it; "" takes a file away.
func (t tree) with(others ...tree) tree {
	all := tree{}
	for _, o := range append([]tree{t}, others...) {
		for name, text := range o {
			all[name] = text
			if text == "" {
				delete(all, name)
			}
		}
	}
	return all
}

type memRoot struct {
	fstest.MapFS
	cpus int
}

func (r memRoot) Access(name string) error {
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

func (r memRoot) Readable(name string) error {
	if f, err := fs.ReadFile(r.MapFS, name); err == nil && string(f) == "readable" {
		return nil
	}
	return r.Access(name)
}

func (r memRoot) Affinity() ([]int, error) {
	if r.cpus == 0 {
		return nil, errors.New("no affinity here")
	}
	return make([]int, r.cpus), nil
}

func env(pairs ...string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		for _, p := range pairs {
			if v, ok := strings.CutPrefix(p, name+"="); ok {
				return v, true
			}
		}
		return "", false
	}
}

var _ accel.Root = memRoot{}
