package checkpointd

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"muster/internal/beneath"
	"muster/internal/durable"
)

// spot is where something lies: a directory that a user named, and a clean name in it. Whatever others put there, what
// is done to a spot is done in its directory, and through no symbolic link.
type spot struct{ dir, name string }

func (p spot) path() string { return filepath.Join(p.dir, p.name) }

// own is the spot of a name in ownDir.
func own(dir, name string) spot { return spot{dir, filepath.Join(ownDir, name)} }

// disk is all that a commit does to a file system; another kind of storage implements it. Every call that makes
// something visible is durable when it returns, or SyncDir makes it so.
type disk interface {
	MkdirAll(at spot) error
	// Create makes a new file to write to; what is there already is an error.
	Create(at spot) (*os.File, error)
	// Sync makes what was written to a file durable.
	Sync(f *os.File) error
	// Rename replaces a file, or gives a directory a name that nothing has. Exchange swaps two names. Both lie in one
	// directory.
	Rename(from, to spot) error
	Exchange(a, b spot) error
	// Replace puts data into a file as a whole.
	Replace(at spot, data []byte) error
	SyncDir(at spot) error
	// Remove removes a file or an empty directory, RemoveAll what has a name that muster made. What is not there is no
	// error.
	Remove(at spot) error
	RemoveAll(at spot) error
}

// posix is the file system.
type posix struct{}

// in calls do with the directory of a spot.
func in(at spot, do func(t *beneath.Tree) error) error {
	t, err := beneath.Open(at.dir)
	if err != nil {
		return err
	}
	return errors.Join(do(t), t.Close())
}

// inParent calls do with the directory that a spot's name is in, and the rest of the name.
func inParent(at spot, do func(dir *os.Root, name string) error) error {
	return in(at, func(t *beneath.Tree) error {
		dir, name, err := t.Parent(at.name)
		if err != nil {
			return err
		}
		return do(dir, name)
	})
}

func (posix) MkdirAll(at spot) error {
	if err := os.MkdirAll(at.dir, 0o777); err != nil {
		return err
	}
	return in(at, func(t *beneath.Tree) error { return t.MkdirAll(at.name, 0o777) })
}

func (posix) Sync(f *os.File) error { return f.Sync() }

func (posix) Create(at spot) (f *os.File, err error) {
	err = inParent(at, func(dir *os.Root, name string) (err error) {
		f, err = dir.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o666)
		return err
	})
	return f, err
}

func (posix) Rename(from, to spot) error { return rename(from, to, 0) }
func (posix) Exchange(a, b spot) error   { return rename(a, b, unix.RENAME_EXCHANGE) }

func rename(from, to spot, flags uint) error {
	return in(from, func(t *beneath.Tree) error { return t.Rename(from.name, to.name, flags) })
}

func (posix) Replace(at spot, data []byte) error {
	return inParent(at, func(dir *os.Root, name string) error { return durable.ReplaceIn(dir, name, data, 0o666) })
}

func (posix) SyncDir(at spot) error {
	return in(at, func(t *beneath.Tree) error {
		dir, err := t.Dir(at.name)
		if err != nil {
			return err
		}
		return durable.SyncIn(dir)
	})
}

func (posix) Remove(at spot) error {
	return unlessGone(inParent(at, (*os.Root).Remove))
}

func (posix) RemoveAll(at spot) error {
	return unlessGone(inParent(at, (*os.Root).RemoveAll))
}

func unlessGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
