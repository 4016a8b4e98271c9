package launch

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"muster/internal/errhint"
)

// makeJobDir makes the job's directory, for its user alone. Where a job with the same run id has it already, ours gets
// this process's id behind the name: two jobs never share a directory.
func makeJobDir(dir string) (string, error) {
	parent := filepath.Dir(dir)
	if err := os.MkdirAll(parent, 0o700); err != nil {
		return "", fmt.Errorf("cannot make the directory of run directories: %w", err)
	}
	// The parent may lie in a directory that everybody writes to: what somebody else put there is not ours to use.
	info, err := os.Lstat(parent)
	if err != nil {
		return "", fmt.Errorf("cannot use the directory of run directories: %w", err)
	}
	if st, ok := info.Sys().(*syscall.Stat_t); !ok || !info.IsDir() || int(st.Uid) != os.Geteuid() {
		return "", errhint.With(fmt.Errorf("cannot use %s for run directories: it is not a directory of user %d", parent, os.Geteuid()),
			"remove it, or set XDG_RUNTIME_DIR to a directory of yours")
	}
	err = os.Mkdir(dir, 0o700)
	if errors.Is(err, fs.ErrExist) {
		dir += "." + strconv.Itoa(os.Getpid())
		err = os.Mkdir(dir, 0o700)
	}
	if errors.Is(err, fs.ErrNotExist) { // the last job of another muster has just taken the parent away
		return makeJobDir(dir)
	}
	if err != nil {
		return "", fmt.Errorf("cannot make the run directory: %w", err)
	}
	return dir, nil
}

// removeJobDir removes the job's directory, and its parent when no other job has one there.
func removeJobDir(dir string) error {
	err := os.RemoveAll(dir)
	_ = os.Remove(filepath.Dir(dir)) // fails while there are others
	return err
}
