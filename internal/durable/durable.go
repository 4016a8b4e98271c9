// Package durable replaces files so that neither a reader nor a crash meets half of one, and nobody else chooses what
// is replaced.
package durable

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// Replace writes data to path so that a reader sees the old text or the new, never a part, and a crash loses no more
// than the last change: a new file beside it, made durable, takes its name. A file that is there keeps its mode and
// group, unless mode is for its owner alone; mode, less the umask, is that of a new one. Links on the way are followed
// as Target says. What is there and is no regular file is an error.
func Replace(path string, data []byte, mode fs.FileMode) error {
	path, err := Target(path)
	if err != nil {
		return err
	}
	dir, err := openDir(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(ReplaceIn(dir, filepath.Base(path), data, mode), dir.Close())
}

// ReplaceIn is Replace for a name in a directory. A link that has the name is replaced, and not followed.
func ReplaceIn(dir *os.Root, name string, data []byte, mode fs.FileMode) error {
	if err := put(dir, name, data, mode, (*os.File).Sync); err != nil {
		return err
	}
	return SyncIn(dir)
}

// SwapIn is ReplaceIn for what nobody wants after a crash of the machine, which may lose all of it: no disk is waited for.
func SwapIn(dir *os.Root, name string, data []byte, mode fs.FileMode) error {
	return put(dir, name, data, mode, func(*os.File) error { return nil })
}

// put gives a new file the name; finish is called before, with what was written.
func put(dir *os.Root, name string, data []byte, mode fs.FileMode, finish func(*os.File) error) (err error) {
	old, err := dir.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		old = nil
	case err != nil:
		return err
	case old.Mode()&fs.ModeSymlink != 0:
		old = nil
	case !old.Mode().IsRegular():
		return fmt.Errorf("%s is no regular file", filepath.Join(dir.Name(), name))
	}
	created := mode
	if old != nil {
		created = 0o600 // until it has the old one's group
	}
	temp := "." + name + "." + rand.Text()[:8]
	f, err := dir.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, created)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = dir.Remove(temp)
		}
	}()
	if old != nil {
		err = like(f, old, mode)
	}
	if err == nil {
		_, err = f.Write(data)
	}
	if err == nil {
		err = finish(f)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return dir.Rename(temp, name)
}

// SyncIn makes the names in a directory durable.
func SyncIn(dir *os.Root) error {
	d, err := dir.Open(".")
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// like gives a new file the mode and the group of the one that it replaces. A file of somebody else's says only who may
// not use ours: whoever put it there must not choose who may.
func like(f *os.File, old fs.FileInfo, mode fs.FileMode) error {
	perm := old.Mode().Perm()
	if mode&0o077 == 0 { // it is for nobody else, whatever the one before was
		perm &= mode
	}
	st, ok := old.Sys().(*syscall.Stat_t)
	if !ok || int(st.Uid) != os.Geteuid() {
		return f.Chmod(perm & mode)
	}
	info, err := f.Stat()
	if err != nil {
		return err
	}
	now, ok := info.Sys().(*syscall.Stat_t)
	if ok && now.Gid != st.Gid && f.Chown(-1, int(st.Gid)) != nil {
		perm &^= 0o070 // what the old group could do another one cannot
	}
	return f.Chmod(perm)
}

// linksMax is how many links may follow each other, as in Linux.
const linksMax = 40

// Create opens a file for writing, with further flags such as os.O_APPEND; it is made if missing. Links on the way are
// followed as Target says. What is there and is no regular file is an error.
func Create(path string, flags int, mode fs.FileMode) (*os.File, error) {
	path, err := Target(path)
	if err != nil {
		return nil, err
	}
	f, err := openFile(path, os.O_WRONLY|os.O_CREATE|syscall.O_NONBLOCK|flags, mode)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is no regular file", path)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Target returns where path leads to, as an absolute path without links, and refuses links of other users. The last link
// on the way has to be ours or root's; so has any other one, or its directory's owner made it. path need not be there,
// and its directory has to.
func Target(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	rest, at := strings.Split(strings.TrimPrefix(path, "/"), "/"), "/"
	for links := 0; len(rest) > 0; {
		part := rest[0]
		rest = rest[1:]
		switch part {
		case "", ".":
			continue
		case "..":
			at = filepath.Dir(at)
			continue
		}
		next := filepath.Join(at, part)
		info, err := os.Lstat(next)
		if errors.Is(err, fs.ErrNotExist) && len(rest) == 0 {
			if first, err := os.Lstat(path); err == nil && first.Mode()&fs.ModeSymlink != 0 { // nobody can tell whether that was meant
				return "", fmt.Errorf("%s is a symbolic link to nothing", path)
			}
			return next, nil
		}
		if err != nil {
			return "", err
		}
		if info.Mode()&fs.ModeSymlink == 0 {
			at = next
			continue
		}
		if links++; links > linksMax {
			return "", &fs.PathError{Op: "open", Path: path, Err: syscall.ELOOP}
		}
		if err := trusted(at, next, info, len(rest) == 0); err != nil {
			return "", err
		}
		to, err := os.Readlink(next)
		if err != nil {
			return "", err
		}
		if filepath.IsAbs(to) {
			at = "/"
		}
		rest = append(strings.Split(to, "/"), rest...)
	}
	return at, nil
}

// trusted returns an error for a link that somebody has put there who could not change what it leads to.
func trusted(dir, path string, link fs.FileInfo, last bool) error {
	st, ok := link.Sys().(*syscall.Stat_t)
	if ok && (int(st.Uid) == os.Geteuid() || st.Uid == 0) {
		return nil
	}
	owner := -1
	if ok {
		owner = int(st.Uid)
	}
	if info, err := os.Stat(dir); ok && !last && err == nil && info.Mode().Perm()&0o022 == 0 {
		if of, ok := info.Sys().(*syscall.Stat_t); ok && of.Uid == st.Uid {
			return nil
		}
	}
	return fmt.Errorf("%s is a symbolic link of user %d, which is not followed", path, owner)
}
