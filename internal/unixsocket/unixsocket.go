// Package unixsocket listens on Unix sockets that one user alone may reach.
package unixsocket

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
)

// Listen makes a socket for this user alone. A path that is longer than an address may be is reached through its directory. The
// listener does not remove the socket: its directory is to be removed with all in it.
func Listen(path string) (*net.UnixListener, error) {
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: Through(dir, filepath.Base(path)), Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false) // the name that it has in the address will be another's
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// Through is the address of a socket in an open directory.
func Through(dir *os.File, name string) string {
	return "/proc/self/fd/" + strconv.Itoa(int(dir.Fd())) + "/" + name
}
