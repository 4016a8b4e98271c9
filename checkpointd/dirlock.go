package checkpointd

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"al.essio.dev/pkg/shellescape"
	"golang.org/x/sys/unix"

	"muster/internal/beneath"
	"muster/internal/errhint"
)

// dirLock keeps a second job out of a directory.
type dirLock struct{ file *os.File }

// errLocked says that another job saves into a directory.
var errLocked = errors.New("another job saves its checkpoints there")

const lockName = "lock"

// lockCheckpoints locks a directory of checkpoints until the lock is closed. Where the file system has no locks nobody
// is kept out. The lock is a file that only those can open who may write to it: whoever may only read must not keep
// jobs out.
func lockCheckpoints(dir string) (*dirLock, error) {
	t, err := beneath.Open(dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = t.Close() }()
	if err := ownDirOf(t, dir); err != nil {
		return nil, err
	}
	at, err := t.Dir(ownDir)
	if err != nil {
		return nil, err
	}
	for range 100 { // each time another job has replaced the file meanwhile
		f, err := openLock(at)
		if err != nil {
			return nil, err
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
			holders := holdersOf(f)
			if err := f.Close(); err != nil {
				return nil, err
			}
			if len(holders) == 0 || slices.ContainsFunc(holders, func(h holder) bool { return h.mayWrite }) {
				return nil, lockedBy(filepath.Join(dir, ownDir, lockName), holders)
			}
			if f, err = newLock(at); err != nil { // it was readable once, in an earlier version
				return nil, err
			}
		}
		mine, err := f.Stat()
		if err == nil {
			var now fs.FileInfo
			if now, err = at.Lstat(lockName); err == nil && os.SameFile(mine, now) {
				return &dirLock{f}, nil
			}
		}
		if err := errors.Join(err, f.Close()); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	return nil, fmt.Errorf("cannot lock %s: it is replaced all the time", filepath.Join(dir, ownDir, lockName))
}

func (l *dirLock) close() {
	if l != nil {
		_ = l.file.Close()
	}
}

// lockedBy is errLocked with those who hold the lock, as far as this machine knows them.
func lockedBy(path string, holders []holder) error {
	if len(holders) == 0 {
		return errLocked
	}
	return fmt.Errorf("%w (process %d of user %d holds %s)", errLocked, holders[0].pid, holders[0].uid, path)
}

// ownDirOf makes sure that ownDir is a directory that nobody has put there to lead elsewhere, or to write to what the
// directory of checkpoints itself is closed for. A directory that is shared on purpose has one that is shared, too.
func ownDirOf(t *beneath.Tree, dir string) error {
	path := filepath.Join(dir, ownDir)
	at, err := t.Dir(ownDir)
	if err != nil {
		return err
	}
	whole, err := at.Stat(".")
	if err != nil {
		return err
	}
	root, err := t.Dir(".")
	if err != nil {
		return err
	}
	around, err := root.Stat(".")
	if err != nil {
		return err
	}
	of, ok := whole.Sys().(*syscall.Stat_t)
	outer, known := around.Sys().(*syscall.Stat_t)
	if !ok || !known {
		return nil
	}
	more := whole.Mode().Perm() &^ around.Mode().Perm() & 0o022
	shared := around.Mode().Perm()&0o022 != 0
	if ours := int(of.Uid) == os.Geteuid(); ours && more != 0 {
		return root.Chmod(ownDir, whole.Mode().Perm()&^more)
	} else if ours || shared {
		return nil
	}
	if of.Uid != outer.Uid && of.Uid != 0 {
		return errhint.With(fmt.Errorf("%s is of user %d, and %s of user %d", path, of.Uid, dir, outer.Uid),
			"look who has put it there, and move it away")
	}
	if more != 0 {
		return errhint.With(fmt.Errorf("others may write to %s", path), "chmod go-w "+shellescape.Quote(path))
	}
	return nil
}

// openLock opens the file of the lock. It is closed for those who may only read it.
func openLock(at *os.Root) (*os.File, error) {
	info, err := at.Lstat(lockName)
	if err == nil && !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no regular file", filepath.Join(at.Name(), lockName))
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	f, err := at.OpenFile(lockName, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o666)
	if err != nil {
		return nil, err
	}
	if info, err = f.Stat(); err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is no regular file", f.Name())
	}
	if err == nil {
		err = closeForReaders(f, info)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// closeForReaders takes the right to read from those who have no right to write. A file that has another name, too, may
// be one that lies elsewhere.
func closeForReaders(f *os.File, info fs.FileInfo) error {
	perm := info.Mode().Perm()
	closed := perm &^ ((^perm & 0o022) << 1)
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || int(st.Uid) != os.Geteuid() || st.Nlink > 1 || closed == perm {
		return nil
	}
	return f.Chmod(closed)
}

// newLock puts another file in the place of the lock's, which is locked before anybody can see it.
func newLock(at *os.Root) (*os.File, error) {
	temp := "." + lockName + "." + rand.Text()[:8]
	f, err := at.OpenFile(temp, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil {
		err = closeForReaders(f, info)
	}
	if err == nil {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	if err == nil {
		err = at.Rename(temp, lockName)
	}
	if err != nil {
		return nil, errors.Join(err, at.Remove(temp), f.Close())
	}
	return f, nil
}

// holder is a process that has locked a file.
type holder struct {
	pid, uid int
	// mayWrite says that the file's mode lets it write. One that may not has opened the file when others could still
	// read it.
	mayWrite bool
}

// holdersOf are the processes of this machine that have locked a file, as far as the kernel tells.
func holdersOf(f *os.File) (holders []holder) {
	info, err := f.Stat()
	if err != nil {
		return nil
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	text, err := os.ReadFile("/proc/locks")
	if !ok || err != nil {
		return nil
	}
	id := fmt.Sprintf("%02x:%02x:%d", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line) // 1: FLOCK ADVISORY WRITE 4711 08:02:131090 0 EOF; "->" before those that wait
		if len(fields) < 6 || fields[1] != "FLOCK" || fields[5] != id {
			continue
		}
		pid, err := strconv.Atoi(fields[4])
		if err != nil || pid <= 0 {
			return nil
		}
		h, ok := holderOf(pid, st)
		if !ok {
			return nil // nobody knows
		}
		holders = append(holders, h)
	}
	return holders
}

// holderOf looks at a process.
func holderOf(pid int, st *syscall.Stat_t) (h holder, ok bool) {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
	if err != nil {
		return h, false
	}
	ids := func(name string) []string {
		_, rest, _ := bytes.Cut(text, []byte("\n"+name+":"))
		line, _, _ := bytes.Cut(rest, []byte("\n"))
		return strings.Fields(string(line))
	}
	uids, gids := ids("Uid"), append(ids("Gid"), ids("Groups")...)
	if len(uids) < 2 {
		return h, false
	}
	uid, err := strconv.Atoi(uids[1]) // the effective one
	if err != nil {
		return h, false
	}
	h = holder{pid: pid, uid: uid}
	h.mayWrite = uid == 0 || uid == int(st.Uid) || st.Mode&0o002 != 0 || st.Mode&0o020 != 0 &&
		slices.Contains(gids, strconv.Itoa(int(st.Gid)))
	return h, true
}
