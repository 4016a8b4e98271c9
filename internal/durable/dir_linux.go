package durable

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// reach opens a directory, for what is in it alone, by an absolute path without links, as Target returns it. Whoever
// puts a link there meanwhile, where he can, leads nowhere. Directories on the way need not be readable.
func reach(path string) (fd int, err error) {
	const flags = unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err = unix.Open("/", flags, 0)
	for part := range strings.SplitSeq(strings.Trim(path, "/"), "/") {
		if part == "" || err != nil {
			break
		}
		at := fd
		fd, err = unix.Openat(at, part, flags, 0)
		_ = unix.Close(at)
	}
	if err != nil {
		return -1, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return fd, nil
}

// openDir opens a directory as reach does, to work in.
func openDir(path string) (*os.Root, error) {
	fd, err := reach(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(fd) }()
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, err
	}
	var want, got unix.Stat_t
	dir, err := root.Open(".")
	if err == nil {
		if err = unix.Fstat(int(dir.Fd()), &got); err == nil {
			err = unix.Fstat(fd, &want)
		}
		_ = dir.Close()
	}
	if err == nil && (got.Dev != want.Dev || got.Ino != want.Ino) {
		err = &fs.PathError{Op: "open", Path: path, Err: unix.ELOOP} // it was replaced meanwhile
	}
	if err != nil {
		_ = root.Close()
		return nil, err
	}
	return root, nil
}

// openFile opens a file in a directory that is reached so.
func openFile(path string, flags int, mode fs.FileMode) (*os.File, error) {
	dir, err := reach(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(dir) }()
	for {
		fd, err := unix.Openat(dir, filepath.Base(path), flags|unix.O_CLOEXEC|unix.O_NOFOLLOW, uint32(mode.Perm()))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, &fs.PathError{Op: "open", Path: path, Err: err}
		}
		return os.NewFile(uintptr(fd), path), nil
	}
}
