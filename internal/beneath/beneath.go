// Package beneath reaches files in a directory to which others may write, too: nothing that is reached lies outside of
// it, and no symbolic link below it is followed, not even one that stays inside.
package beneath

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrKind says that something has the name of a file or directory and is none: a symbolic link, a FIFO, a device.
var ErrKind = errors.New("it is of another kind")

// Tree is a directory. Names of its methods are clean and relative, such as "500/rank_0.pt". Not safe for concurrent
// use.
type Tree struct {
	root *os.Root
	at   string // the name of sub
	sub  *os.Root
}

// Open opens a directory. Links on the way to it are followed: who named it chose them.
func Open(dir string) (*Tree, error) {
	info, err := os.Stat(dir)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() { // opening a FIFO would block
		return nil, &fs.PathError{Op: "open", Path: dir, Err: unix.ENOTDIR}
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	return &Tree{root: root}, nil
}

// Close lets go of the directory.
func (t *Tree) Close() error { return errors.Join(t.leave(), t.root.Close()) }

// leave closes the directory that was looked at last.
func (t *Tree) leave() (err error) {
	if t.sub != nil {
		err = t.sub.Close()
	}
	t.sub, t.at = nil, ""
	return err
}

// Dir opens a directory of the tree. What it returns is the tree's, and open until the next call.
func (t *Tree) Dir(name string) (*os.Root, error) {
	if name == "." {
		return t.root, nil
	}
	if !filepath.IsLocal(name) || filepath.Clean(name) != name {
		return nil, &fs.PathError{Op: "open", Path: name, Err: errors.New("it leads out of its directory")}
	}
	if name == t.at {
		return t.sub, nil
	}
	if err := t.leave(); err != nil {
		return nil, err
	}
	at := t.root
	for part := range strings.SplitSeq(name, "/") {
		next, err := step(at, part)
		if at != t.root {
			err = errors.Join(err, at.Close())
		}
		if err != nil {
			if next != nil {
				_ = next.Close()
			}
			return nil, err
		}
		at = next
	}
	t.sub, t.at = at, name
	return at, nil
}

// step opens a directory right in another one, unless it is reached by a link.
func step(at *os.Root, name string) (*os.Root, error) {
	info, err := at.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("%s/%s: %w (%s), no directory", at.Name(), name, ErrKind, kind(info.Mode()))
	}
	next, err := at.OpenRoot(name)
	if err != nil {
		return nil, err
	}
	now, err := next.Stat(".")
	if err == nil && !os.SameFile(info, now) { // it was replaced by a link meanwhile
		err = fmt.Errorf("%s/%s: %w: it was replaced while it was opened", at.Name(), name, ErrKind)
	}
	if err != nil {
		return nil, errors.Join(err, next.Close())
	}
	return next, nil
}

// kind names what a file is.
func kind(mode fs.FileMode) string {
	switch {
	case mode&fs.ModeSymlink != 0:
		return "a symbolic link"
	case mode.IsDir():
		return "a directory"
	case mode&fs.ModeNamedPipe != 0:
		return "a FIFO"
	case mode&fs.ModeSocket != 0:
		return "a socket"
	case mode&fs.ModeDevice != 0:
		return "a device"
	}
	return "a file"
}

// Parent opens the directory that a name lies in, as Dir does, and returns the name there.
func (t *Tree) Parent(name string) (*os.Root, string, error) {
	if name == "." || !filepath.IsLocal(name) || filepath.Clean(name) != name {
		return nil, "", &fs.PathError{Op: "open", Path: name, Err: errors.New("it is no name of something in its directory")}
	}
	dir, err := t.Dir(filepath.Dir(name))
	return dir, filepath.Base(name), err
}

// Lstat describes what has a name.
func (t *Tree) Lstat(name string) (fs.FileInfo, error) {
	dir, last, err := t.Parent(name)
	if err != nil {
		return nil, err
	}
	return dir.Lstat(last)
}

// Regular describes a regular file. For anything else that has its name it returns an error that is ErrKind.
func (t *Tree) Regular(name string) (fs.FileInfo, error) {
	info, err := t.Lstat(name)
	if err == nil && !info.Mode().IsRegular() {
		err = notRegular(filepath.Join(t.root.Name(), name), info)
	}
	return info, err
}

func notRegular(path string, info fs.FileInfo) error {
	return fmt.Errorf("%s: %w (%s), no regular file", path, ErrKind, kind(info.Mode()))
}

// OpenFile opens a regular file for reading.
func (t *Tree) OpenFile(name string) (*os.File, fs.FileInfo, error) {
	if _, err := t.Regular(name); err != nil { // a device is not even opened
		return nil, nil, err
	}
	dir, last, err := t.Parent(name)
	if err != nil {
		return nil, nil, err
	}
	f, err := dir.OpenFile(last, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = notRegular(f.Name(), info)
	}
	// Root.OpenFile follows a link that has come meanwhile: it may be one of the tree, but not what was looked at.
	if now, gone := dir.Lstat(last); err == nil && gone == nil && !os.SameFile(info, now) && now.Mode()&fs.ModeSymlink != 0 {
		err = notRegular(f.Name(), now)
	}
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	return f, info, nil
}

// Read reads a regular file of at most limit bytes. A larger one is an error.
func (t *Tree) Read(name string, limit int64) ([]byte, error) {
	f, info, err := t.OpenFile(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	if info.Size() > limit {
		return nil, fmt.Errorf("%s has %d bytes, and %d are the limit", f.Name(), info.Size(), limit)
	}
	text, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(text)) > limit {
		err = fmt.Errorf("%s has more than %d bytes", f.Name(), limit)
	}
	return text, err
}

// Names are the names in a directory of the tree, sorted.
func (t *Tree) Names(name string) ([]fs.DirEntry, error) {
	dir, err := t.Dir(name)
	if err != nil {
		return nil, err
	}
	f, err := dir.Open(".")
	if err != nil {
		return nil, err
	}
	entries, err := f.ReadDir(-1)
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return entries, errors.Join(err, f.Close())
}

// MkdirAll makes a directory, and those that it lies in, where they are missing.
func (t *Tree) MkdirAll(name string, mode fs.FileMode) error {
	if name == "." {
		return nil
	}
	dir, last, err := t.Parent(name)
	if errors.Is(err, fs.ErrNotExist) {
		if err = t.MkdirAll(filepath.Dir(name), mode); err == nil {
			dir, last, err = t.Parent(name)
		}
	}
	if err != nil {
		return err
	}
	if err := dir.Mkdir(last, mode); !errors.Is(err, fs.ErrExist) {
		return err
	}
	_, err = t.Dir(name) // what is there may be something else
	return err
}

// Rename gives what has a name another one. flags are those of renameat2, such as RENAME_EXCHANGE.
func (t *Tree) Rename(from, to string, flags uint) error {
	a, first, err := t.parentFile(from)
	if err != nil {
		return err
	}
	defer func() { _ = a.Close() }()
	b, second, err := t.parentFile(to)
	if err != nil {
		return err
	}
	defer func() { _ = b.Close() }()
	if flags == 0 {
		err = unix.Renameat(int(a.Fd()), first, int(b.Fd()), second)
	} else {
		err = unix.Renameat2(int(a.Fd()), first, int(b.Fd()), second, flags)
	}
	if err != nil {
		return &os.LinkError{Op: "rename", Old: filepath.Join(t.root.Name(), from), New: filepath.Join(t.root.Name(), to), Err: err}
	}
	return nil
}

// parentFile is Parent as a file of its own.
func (t *Tree) parentFile(name string) (*os.File, string, error) {
	dir, last, err := t.Parent(name)
	if err != nil {
		return nil, "", err
	}
	f, err := dir.Open(".")
	return f, last, err
}
