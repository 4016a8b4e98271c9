package checkpointd

import (
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"muster/internal/durable"
)

// disk is all that a commit does to a file system; another kind of storage implements it. Every call that makes something
// visible is durable when it returns, or SyncDir makes it so.
type disk interface {
	MkdirAll(path string) error
	// Create makes a new file to write to; what is there already is an error.
	Create(path string) (*os.File, error)
	// Sync makes what was written to a file durable.
	Sync(f *os.File) error
	// Rename replaces a file, or gives a directory a name that nothing has. Exchange swaps two names.
	Rename(from, to string) error
	Exchange(a, b string) error
	// Replace puts data into a file as a whole.
	Replace(path string, data []byte) error
	SyncDir(path string) error
	RemoveAll(path string) error
}

// posix is the file system.
type posix struct{}

func (posix) MkdirAll(path string) error             { return os.MkdirAll(path, 0o777) }
func (posix) Sync(f *os.File) error                  { return f.Sync() }
func (posix) Rename(from, to string) error           { return os.Rename(from, to) }
func (posix) RemoveAll(path string) error            { return os.RemoveAll(path) }
func (posix) Replace(path string, data []byte) error { return durable.Replace(path, data, 0o666) }

func (posix) Create(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o666)
}

func (posix) Exchange(a, b string) error {
	return unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
}

func (posix) SyncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// dirLock keeps a second job out of a directory.
type dirLock struct{ file *os.File }

// errLocked says that another job saves into a directory.
var errLocked = errors.New("another job saves its checkpoints there")

// lockCheckpoints locks a directory of checkpoints until the lock is closed. Where the file system has no locks nobody is
// kept out.
func lockCheckpoints(dir string) (*dirLock, error) {
	f, err := os.OpenFile(filepath.Join(dir, ownDir, "lock"), os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
		return nil, errors.Join(errLocked, f.Close())
	}
	return &dirLock{f}, nil
}

func (l *dirLock) close() {
	if l != nil {
		_ = l.file.Close()
	}
}
