// Package tokenfile reads and writes the file of a job's token, and refuses one that somebody else could have written.
package tokenfile

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"al.essio.dev/pkg/shellescape"
	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"muster/internal/durable"
	"muster/internal/errhint"
)

const (
	minSize = 16       // bytes of the shortest token
	maxSize = 64 << 10 // of the longest
	newSize = 32       // of those that we make, before they are written as text
)

// New returns a token of random bytes, as one line of text.
func New() string {
	random := make([]byte, newSize)
	_, _ = rand.Read(random) // it never fails
	return hex.EncodeToString(random) + "\n"
}

// Write makes a file that only we may read.
func Write(path, text string) (err error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return errhint.With(errhint.Usagef("cannot write the token to %s: it exists", path),
			"who has the old token would lose the job: name another file, or remove that one")
	}
	if err != nil {
		return errhint.Usagef("cannot write the token: %w", err)
	}
	_, err = io.WriteString(f, text)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return errhint.Usagef("cannot write the token to %s: %w", path, errors.Join(err, os.Remove(path)))
	}
	return nil
}

// Read reads a job's token. A file that others could have written is refused: they would know the token. So is one
// that another user's link leads to, which may be a file of ours that he can read. Where others can read the token a
// warning says so, except in mounted secrets, which lie in memory or are read-only, and are given to the container
// alone, whatever their mode says.
func Read(file string, log zerolog.Logger) ([]byte, error) {
	f, err := open(file)
	if err != nil {
		return nil, errhint.Code(fmt.Errorf("cannot read the job's token: %w", err), errhint.Usage)
	}
	defer func() { _ = f.Close() }()
	if err := check(f, file, log); err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(f, maxSize+1))
	if err != nil {
		return nil, errhint.Code(fmt.Errorf("cannot read the job's token: %w", err), errhint.Usage)
	}
	token := bytes.TrimSpace(text)
	switch {
	case len(text) > maxSize:
		return nil, errhint.Usagef("cannot use the token in %s: it has more than %d bytes", file, maxSize)
	case len(token) < minSize:
		return nil,
			errhint.With(errhint.Usagef("cannot use the token in %s: it has %d bytes, at least %d are wanted", file, len(token), minSize),
				"make one with: muster token FILE")
	}
	return token, nil
}

// open opens a token's file, and of links on the way follows only those that nobody else chose. A named pipe is
// waited for when it is known to be ours.
func open(file string) (*os.File, error) {
	path := file
	if !isDescriptor(file) {
		var err error
		if path, err = durable.Target(file); err != nil {
			return nil, err
		}
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // a pipe without a writer does not keep us
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if ours := checkOwner(info, file) == nil; ours && info.Mode()&fs.ModeNamedPipe != 0 {
		if err := awaitWriter(f); err != nil {
			return nil, errors.Join(err, f.Close())
		}
	}
	return f, nil
}

// awaitWriter waits until somebody has written to a named pipe that was opened without a writer. To open it a second
// time would lose what a writer sent to the first: our opening is what lets it write.
func awaitWriter(f *os.File) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = conn.Control(func(fd uintptr) {
		for {
			if _, failed = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1); !errors.Is(failed, unix.EINTR) {
				return
			}
		}
	})
	return errors.Join(err, failed)
}

// isDescriptor reports whether a path is that of an open file of this process, as of a shell's <(command): whoever
// started us has opened it.
func isDescriptor(path string) bool {
	path = filepath.Clean(path)
	for _, dir := range []string{"/dev/fd/", "/proc/self/fd/", fmt.Sprintf("/proc/%d/fd/", os.Getpid())} {
		if number, ok := strings.CutPrefix(path, dir); ok && number != "" && strings.Trim(number, "0123456789") == "" {
			return true
		}
	}
	return path == "/dev/stdin"
}

// check returns an error where others could have written what an open file says.
func check(f *os.File, path string, log zerolog.Logger) error {
	info, err := f.Stat()
	if err != nil {
		return errhint.Code(fmt.Errorf("cannot read the job's token: %w", err), errhint.Usage)
	}
	if !info.Mode().IsRegular() && info.Mode()&fs.ModeNamedPipe == 0 {
		return errhint.Usagef("cannot use the token in %s: it is no file", path)
	}
	if err := checkOwner(info, path); err != nil {
		return err
	}
	if mode := info.Mode().Perm(); mode&0o044 != 0 && !mounted(f) {
		log.Warn().Str("file", path).Str("mode", fmt.Sprintf("%04o", mode)).
			Msg("others on this machine may read the job's token; chmod 600 keeps it from them")
	}
	return nil
}

// checkOwner returns an error for a file or pipe that belongs to somebody else, or that others may write to.
func checkOwner(info fs.FileInfo, path string) error {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil
	}
	mode := info.Mode().Perm()
	switch {
	case int(stat.Uid) != os.Geteuid() && stat.Uid != 0 && stat.Uid != rootOwner():
		return errhint.With(errhint.Usagef("cannot use the token in %s: it belongs to another user (uid %d)", path, stat.Uid),
			"it must be yours or root's: who can write it knows the token")
	case mode&0o022 != 0:
		return errhint.With(errhint.Usagef("cannot use the token in %s: others may write to it (mode %04o)", path, mode),
			"chmod 600 "+shellescape.Quote(path))
	}
	return nil
}

// rootOwner is who owns the root directory: where users are mapped, as in some containers, root is not 0.
func rootOwner() uint32 {
	var stat unix.Stat_t
	if unix.Stat("/", &stat) != nil {
		return 0
	}
	return stat.Uid
}
