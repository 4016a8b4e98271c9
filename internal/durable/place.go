package durable

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"muster/internal/errhint"
)

// Ours returns a directory without links, and an error where somebody else than this user and root could put something
// in the place of what we make there: every directory from / down has to belong to one of them, or to the owner of /,
// and nobody else may write to it, save where the sticky bit keeps them from what is not theirs. What was found so
// cannot be changed by others any more.
func Ours(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err == nil {
		dir, err = filepath.EvalSymlinks(dir)
	}
	if err != nil {
		return "", err
	}
	root, err := os.Lstat("/")
	if err != nil {
		return "", err
	}
	rootOwner := root.Sys().(*syscall.Stat_t).Uid //nolint:forcetypeassert // so it is on every Unix
	for at := dir; ; at = filepath.Dir(at) {
		info, err := os.Lstat(at)
		if err != nil {
			return "", err
		}
		st := info.Sys().(*syscall.Stat_t) //nolint:forcetypeassert // as above
		switch {
		case !info.IsDir():
			return "", &os.PathError{Op: "open", Path: at, Err: syscall.ENOTDIR}
		case int(st.Uid) != os.Geteuid() && st.Uid != 0 && st.Uid != rootOwner:
			return "", fmt.Errorf("%s belongs to user %d", at, st.Uid)
		case info.Mode().Perm()&0o022 != 0 && info.Mode()&os.ModeSticky == 0:
			return "", fmt.Errorf("others may write to %s, and it has no sticky bit", at)
		}
		if at == "/" {
			return dir, nil
		}
	}
}

// SystemTemp is where temporary files go that no directory was chosen for.
const SystemTemp = "/tmp"

// systemTemporaries are the directories for temporary files that every system has, with colons between them. It is a variable
// for the linker alone: the muster that tests drive has none of them (test/drive), since what lies there is of other jobs.
var systemTemporaries = SystemTemp + ":/var/tmp:/dev/shm"

// Temporaries are the directories for temporary files in the order in which they are to be tried: the one that was
// chosen, by TMPDIR for example, and those that every system has.
func Temporaries(chosen string) []string {
	return append([]string{chosen}, filepath.SplitList(systemTemporaries)...)
}

// Writable returns an error where this user can make no files in a directory.
func Writable(dir string) error {
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return &os.PathError{Op: "open", Path: dir, Err: syscall.ENOTDIR}
	}
	if err := unix.Access(dir, unix.W_OK|unix.X_OK); err != nil {
		return &os.PathError{Op: "write to", Path: dir, Err: err}
	}
	return nil
}

// MkdirTemp makes a directory for this user alone in the chosen one, or in another of Temporaries where others could
// put something in its place. Where all are so it is in the chosen one; where that cannot be written to it is in none,
// with status 2.
func MkdirTemp(chosen, pattern string) (string, error) {
	if err := Writable(chosen); err != nil {
		err = fmt.Errorf("cannot use the directory of temporary files (TMPDIR): %w", err)
		return "", errhint.Code(errhint.With(err, "set TMPDIR to a directory that you can write to"), errhint.Usage)
	}
	for _, dir := range Temporaries(chosen) {
		if dir, err := Ours(dir); err == nil {
			if made, err := os.MkdirTemp(dir, pattern); err == nil {
				return made, nil
			}
		}
	}
	return os.MkdirTemp(chosen, pattern)
}
