package durable

import (
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// OwnedByUs reports whether a file belongs to the user that this process runs as.
func OwnedByUs(info fs.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(st.Uid) == os.Geteuid()
}

// OpenOwn opens a directory that only this user can write to. Nothing else is waited for or followed: no link, no FIFO.
func OpenOwn(path string) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	d := os.NewFile(uintptr(fd), path)
	info, err := d.Stat()
	if err == nil && (!OwnedByUs(info) || info.Mode().Perm()&0o022 != 0) {
		err = fmt.Errorf("it is not a directory of user %d that nobody else can write to", os.Geteuid())
	}
	if err != nil {
		_ = d.Close()
		return nil, err
	}
	return d, nil
}
