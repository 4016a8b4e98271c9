package rundir

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"muster/internal/durable"
	"muster/internal/errhint"
)

// Dir is the directory of a job's sockets and state. It is locked while the job's agent lives: that is how another
// agent knows what nobody will come back for. The zero value is no directory.
type Dir struct {
	Path string
	lock *os.File // nil where the file system has no locks: there nothing counts as left behind
}

// staleAfter is how old a directory without a lock must be to count as left behind: a new one is locked a moment after
// it was made.
const staleAfter = time.Minute

// Make makes the job's directory, for its user alone, and removes those that killed agents left beside it and in the other
// safe places: jobs with another environment may have lain there. Where a job with the same run id has it already, ours
// gets another name: two jobs never share a directory. Errors carry status 2: nothing was started.
func Make(path string, log zerolog.Logger, safe ...string) (d Dir, err error) {
	defer func() {
		if err != nil {
			err = errhint.Code(errhint.With(err, "set XDG_RUNTIME_DIR or TMPDIR to a directory that you can write to"), errhint.Usage)
		}
	}()
	parent := filepath.Dir(path)
	if err := makeParent(parent); err != nil {
		return d, err
	}
	removeStale(parent)
	for _, other := range safe {
		if other != parent {
			removeStale(other)
		}
	}
	for d.Path = path; ; d.Path = path + "." + strings.ToLower(rand.Text()[:added]) {
		err := os.Mkdir(d.Path, 0o700)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if errors.Is(err, fs.ErrNotExist) { // the last job of another muster has just taken the parent away
			err = makeParent(parent)
			if err == nil {
				continue
			}
		}
		if err != nil {
			return Dir{}, fmt.Errorf("cannot make the run directory: %w", err)
		}
		d.lock = lockDir(d.Path)
		if _, err := durable.Ours(d.Path); err != nil {
			log.Warn().Err(err).Str("path", d.Path).Str("hint", "set XDG_RUNTIME_DIR or TMPDIR to a directory to which only you can write").
				Msg("other users of this machine could replace the run directory, from which workers take code")
		}
		return d, nil
	}
}

// added is how many letters the name of a run directory has behind that of the job and a dot, where another muster has that
// one.
const added = 8

// makeParent makes the directory of this user's run directories. It may lie where everybody can write: what somebody
// else put there is not ours to use.
func makeParent(parent string) error {
	if err := os.Mkdir(parent, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("cannot make the directory of run directories: %w", err)
	}
	info, err := os.Lstat(parent)
	if err != nil {
		return fmt.Errorf("cannot use the directory of run directories: %w", err)
	}
	if !info.IsDir() || !durable.OwnedByUs(info) {
		return fmt.Errorf("cannot use %s for run directories: it is not a directory of user %d", parent, os.Geteuid())
	}
	if info.Mode().Perm()&0o022 != 0 {
		if err := os.Chmod(parent, info.Mode().Perm()&^0o022); err != nil {
			return fmt.Errorf("others may write to the directory of run directories: %w", err)
		}
	}
	return nil
}

// lockDir locks a directory for as long as the returned file is open; nil where somebody else has locked it.
func lockDir(path string) *os.File {
	f, err := durable.OpenOwn(path)
	if err != nil {
		return nil
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		return nil
	}
	return f
}

// removeStale removes the run directories of agents that were killed before they had a guardian, or together with it.
func removeStale(parent string) {
	root, err := os.OpenRoot(parent)
	if err != nil {
		return
	}
	defer func() { _ = root.Close() }()
	entries, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || !info.IsDir() || !strings.HasPrefix(e.Name(), prefix) || time.Since(info.ModTime()) < staleAfter {
			continue
		}
		path := filepath.Join(parent, e.Name())
		if lock := lockDir(path); lock != nil {
			_ = root.RemoveAll(e.Name()) // what cannot be removed now stays for the next time
			_ = lock.Close()
		}
	}
}

// Remove removes the directory, and its parent when no other job has one there.
func (d Dir) Remove() error {
	if d.Path == "" {
		return nil
	}
	err := os.RemoveAll(d.Path)
	if d.lock != nil {
		_ = d.lock.Close()
	}
	_ = os.Remove(filepath.Dir(d.Path)) // fails while there are others
	return err
}
