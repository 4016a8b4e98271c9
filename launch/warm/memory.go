package warm

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"muster/internal/durable"
	"muster/internal/lazyregexp"
	"muster/launch/plan"
)

// memory is where a script's learned modules are kept between jobs: a file in the directory muster/warm of the user's
// cache. The zero value keeps nothing.
type memory struct{ cache, name string }

// memorySource is what decides which modules a script finds.
type memorySource struct {
	Cache string // the user's directory of what can be made again; empty for none
	// Command and Path are the program; Dir is the working directory, and Environ the environment of its workers.
	Command   plan.WarmCommand
	Path, Dir string
	Environ   []string
}

// scriptLimit is how much of a script is looked at, in bytes.
const scriptLimit = 16 << 20

// memory returns the memory of a script in an environment. In its name are the interpreter, its options, the script
// with its content, and the variables that Python reads. That packages are the same is seen by the files themselves.
func (s memorySource) memory() memory {
	if s.Cache == "" {
		return memory{}
	}
	h := sha256.New()
	part := func(s string) { _, _ = fmt.Fprintf(h, "%d:%s\n", len(s), s) }
	for _, path := range []string{s.Command.ProbePath, s.Path} {
		part(plan.Within(s.Dir, path))
		if target, err := filepath.EvalSymlinks(plan.Within(s.Dir, path)); err == nil {
			info, _ := learnedStat(target)
			part(fmt.Sprint(info))
		}
	}
	for _, text := range []string{s.Command.Form, s.Command.Name, s.Dir, strings.Join(s.Command.Probe, "\x00")} {
		part(text)
	}
	if s.Command.Form == "script" || s.Command.Form == "run_path" {
		if f, err := os.OpenFile(plan.Within(s.Dir, s.Command.Name), os.O_RDONLY|unix.O_NONBLOCK, 0); err == nil {
			if info, err := f.Stat(); err == nil && info.Mode().IsRegular() {
				_, _ = io.Copy(h, io.LimitReader(f, scriptLimit))
			}
			_ = f.Close()
		}
	}
	for _, entry := range s.Environ {
		if name, _, _ := strings.Cut(entry, "="); strings.HasPrefix(name, "PYTHON") || name == "VIRTUAL_ENV" || name == "CONDA_PREFIX" {
			part(entry)
		}
	}
	return memory{s.Cache, hex.EncodeToString(h.Sum(nil)[:16]) + memoryEnd}
}

const (
	// memoryEnd is what the name of a memory ends with.
	memoryEnd = ".json"
	// memoriesKept is how many scripts are remembered.
	memoriesKept = 64
	// memoryLimit bounds a memory, in bytes.
	memoryLimit = 1 << 20
	// leftAfter is after how long a file that a killed job had begun is removed.
	leftAfter = time.Hour
)

// memoryName is what our files in the cache are called, and what they were begun as.
var memoryName = lazyregexp.New(`^(?:[0-9a-f]{32}\.json|\.[0-9a-f]{32}\.json\.[A-Z0-9]+)$`)

// load returns what is kept; nothing where there is none. An error says why what is there cannot be used.
func (m memory) load() (learned, error) {
	fresh := learned{Version: learnedVersion}
	if m.cache == "" {
		return fresh, nil
	}
	dir, err := m.open(false)
	if errors.Is(err, fs.ErrNotExist) {
		return fresh, nil
	} else if err != nil {
		return fresh, err
	}
	defer func() { _ = dir.Close() }()
	l, err := m.read(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fresh, nil
	case err != nil:
		return fresh, fmt.Errorf("cannot use %s: %w", filepath.Join(dir.Name(), m.name), err)
	}
	_ = dir.Chtimes(m.name, time.Now(), time.Now()) // it is used; see tidy
	return l, nil
}

func (m memory) read(dir *os.Root) (l learned, err error) {
	at, err := dir.Lstat(m.name)
	if err == nil && !at.Mode().IsRegular() {
		err = errors.New("it is no regular file") // and not even opened
	}
	if err != nil {
		return l, err
	}
	f, err := dir.OpenFile(m.name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return l, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err == nil && (!info.Mode().IsRegular() || !durable.OwnedByUs(info) || info.Mode().Perm()&0o022 != 0) {
		err = errors.New("others may have written to it")
	}
	if err != nil {
		return l, err
	}
	text, err := io.ReadAll(io.LimitReader(f, memoryLimit+1))
	if err == nil && len(text) > memoryLimit {
		err = errors.New("it is too long")
	}
	if err == nil {
		err = json.Unmarshal(text, &l)
	}
	if err == nil {
		err = l.check()
	}
	return l, err
}

// save keeps l, as a whole or not at all, and forgets the scripts that nobody has started for the longest time.
func (m memory) save(l learned) error {
	if m.cache == "" {
		return nil
	}
	if err := l.check(); err != nil {
		return err
	}
	text, err := json.Marshal(l)
	if err == nil && len(text) > memoryLimit {
		err = errors.New("it is too long")
	}
	if err != nil {
		return err
	}
	dir, err := m.open(true)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	if err := durable.ReplaceIn(dir, m.name, text, 0o600); err != nil {
		return err
	}
	return tidy(dir)
}

// open opens the directory of memories, if nobody but this user can put anything there, or in its place. Links on the
// way to the cache are followed, and none behind it.
func (m memory) open(create bool) (*os.Root, error) {
	if create {
		if err := makeCache(m.cache); err != nil {
			return nil, err
		}
	}
	dir, err := soleDir(m.cache)
	if err != nil {
		return nil, err
	}
	for _, part := range []string{"muster", "warm"} {
		dir = filepath.Join(dir, part)
		if create {
			if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
				return nil, err
			}
		}
		own, err := durable.OpenOwn(dir)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, err
		} else if err != nil {
			return nil, fmt.Errorf("cannot use %s: %w", dir, err)
		}
		_ = own.Close()
	}
	return os.OpenRoot(dir)
}

// makeCache makes the user's cache where it is missing, not in a place of somebody else's, such as the home of who
// called sudo.
func makeCache(path string) error {
	there := path
	_, err := os.Stat(there)
	for errors.Is(err, fs.ErrNotExist) && there != "/" {
		there = filepath.Dir(there)
		_, err = os.Stat(there)
	}
	if err != nil || there == path {
		return err
	}
	if _, err := soleDir(there); err != nil {
		return err
	}
	return os.MkdirAll(path, 0o700)
}

// soleDir returns a directory without links, if nobody but this user, root and the owner of / can put another one in
// its place: each directory from / on belongs to one of them, and others may not write there, unless the sticky bit
// keeps them from what is not theirs.
func soleDir(path string) (string, error) {
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", err
	}
	top, err := os.Stat("/")
	if err != nil {
		return "", err
	}
	for at := path; ; at = filepath.Dir(at) {
		info, err := os.Lstat(at)
		if err != nil {
			return "", err
		}
		owner := info.Sys().(*syscall.Stat_t).Uid
		switch {
		case !info.IsDir():
			return "", fmt.Errorf("%s is no directory", at)
		case owner != 0 && !durable.OwnedByUs(info) && owner != top.Sys().(*syscall.Stat_t).Uid:
			return "", fmt.Errorf("%s belongs to user %d", at, owner)
		case info.Mode().Perm()&0o022 != 0 && info.Mode()&fs.ModeSticky == 0:
			return "", fmt.Errorf("others may write to %s", at)
		}
		if at == "/" {
			return path, nil
		}
	}
}

// tidy forgets the scripts that were not started for the longest time, and what killed jobs had begun to write.
func tidy(dir *os.Root) error {
	entries, err := fs.ReadDir(dir.FS(), ".")
	if err != nil {
		return err
	}
	var files, gone []fs.FileInfo
	for _, e := range entries {
		info, err := e.Info()
		switch {
		case err != nil || !memoryName().MatchString(e.Name()):
		case strings.HasSuffix(e.Name(), memoryEnd):
			files = append(files, info)
		case time.Since(info.ModTime()) > leftAfter:
			gone = append(gone, info)
		}
	}
	slices.SortFunc(files, func(a, b fs.FileInfo) int { return cmp.Compare(b.ModTime().UnixNano(), a.ModTime().UnixNano()) })
	gone = append(gone, files[min(len(files), memoriesKept):]...)
	for _, f := range gone {
		if err := dir.Remove(f.Name()); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
