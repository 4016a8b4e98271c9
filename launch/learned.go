package launch

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
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"muster/internal/durable"
)

// learned is what the workers of a script have imported after they were forked. It is kept in the user's cache. What is read
// from there is checked as if a stranger had written it, and names files only: the template imports what is installed
// under such a name, and nothing else.
type learned struct {
	Version int `json:"version"`
	// Modules are the files of installed modules, in the order in which they were executed.
	Modules []learnedFile `json:"modules"`
	// Variables are those that the script had set by then.
	Variables []string `json:"variables,omitempty"`
	// Refused are the files and directories of modules that cannot be shared.
	Refused []string `json:"refused,omitempty"`
}

// learnedFile is a file as it was when workers executed it.
type learnedFile struct {
	Path    string `json:"path"`
	Size    int64  `json:"size"`
	ModTime int64  `json:"mtime"` // ns since 1970
}

const (
	learnedVersion = 1
	// learnedFilesLimit and learnedSizeLimit bound what one script imports: files, and bytes of all that is kept of them.
	// PyTorch and transformers are some 5,000 files, of which a script imports half.
	learnedFilesLimit = 4096
	learnedSizeLimit  = 1 << 20
	// learnedKept is how many scripts are remembered.
	learnedKept = 64
	// learnedPathLimit bounds a path, learnedTextLimit all of them in a message, in bytes.
	learnedPathLimit = 512
	learnedTextLimit = 1 << 19
)

var (
	learnedPath     = regexp.MustCompile(`^/[A-Za-z0-9_./+@~,: -]+$`)
	learnedModule   = regexp.MustCompile(`^[A-Za-z0-9_]+(\.[A-Za-z0-9_-]+)*\.(py|so)$`)
	learnedVariable = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,127}$`)
)

// check returns why it is not something that muster would have written, nil where it may be.
func (l *learned) check() error {
	switch {
	case l.Version != learnedVersion:
		return fmt.Errorf("version %d", l.Version)
	case len(l.Modules) > learnedFilesLimit || len(l.Variables) > learnedFilesLimit || len(l.Refused) > learnedFilesLimit:
		return errors.New("too many entries")
	}
	total := 0
	for _, m := range l.Modules {
		if !learnable(m.Path) || m.Size < 0 {
			return fmt.Errorf("%.100q is no module's file", m.Path)
		}
		total += len(m.Path)
	}
	for _, name := range l.Variables {
		if !learnedVariable.MatchString(name) {
			return fmt.Errorf("%.100q is no variable", name)
		}
		total += len(name)
	}
	for _, path := range l.Refused {
		if !cleanPath(strings.TrimSuffix(path, "/")) {
			return fmt.Errorf("%.100q is no path", path)
		}
	}
	if total > learnedTextLimit {
		return errors.New("too long")
	}
	return nil
}

func cleanPath(path string) bool {
	return len(path) <= learnedPathLimit && utf8.ValidString(path) && filepath.Clean(path) == path && learnedPath.MatchString(path)
}

// learnable reports whether a path may be that of a module.
func learnable(path string) bool {
	return cleanPath(path) && learnedModule.MatchString(filepath.Base(path))
}

// refuses reports whether a module was found not to be sharable.
func (l *learned) refuses(path string) bool {
	return slices.ContainsFunc(l.Refused, func(r string) bool {
		return path == r || strings.HasSuffix(r, "/") && strings.HasPrefix(path, r)
	})
}

// refuse leaves a module out from now on; with a package go all its modules.
func (l *learned) refuse(path string) {
	if strings.TrimSuffix(filepath.Base(path), filepath.Ext(path)) == "__init__" {
		path = filepath.Dir(path) + "/"
	}
	if !slices.Contains(l.Refused, path) && len(l.Refused) < learnedFilesLimit {
		l.Refused = append(l.Refused, path)
	}
}

// add takes files that all workers have executed, and what their script had set, and returns the bytes of those that were
// not known.
func (l *learned) add(files, variables []string) (size int64) {
	known := make(map[string]int, len(l.Modules))
	for i, m := range l.Modules {
		known[m.Path] = i
	}
	for _, path := range files {
		m, ok := learnedStat(path)
		at, there := known[path]
		switch {
		case !ok || !learnable(path) || !there && len(l.Modules) == learnedFilesLimit || there && l.Modules[at] == m:
			continue
		case there: // it is another one now, and may be mended
			l.Modules[at] = m
			l.Refused = slices.DeleteFunc(l.Refused, func(r string) bool { return (&learned{Refused: []string{r}}).refuses(path) })
		default:
			known[path] = len(l.Modules)
			l.Modules = append(l.Modules, m)
		}
		if !l.refuses(path) {
			size += m.Size
		}
	}
	for _, name := range variables {
		if learnedVariable.MatchString(name) && !slices.Contains(l.Variables, name) && len(l.Variables) < learnedFilesLimit {
			l.Variables = append(l.Variables, name)
		}
	}
	return size
}

func learnedStat(path string) (learnedFile, bool) {
	info, err := os.Stat(path)
	if err != nil || !info.Mode().IsRegular() {
		return learnedFile{}, false
	}
	return learnedFile{path, info.Size(), info.ModTime().UnixNano()}, true
}

// usable returns the files that a template may import: those that are as they were.
func (l *learned) usable() []string {
	var files []string
	for _, m := range l.Modules {
		if now, ok := learnedStat(m.Path); ok && now == m && !l.refuses(m.Path) {
			files = append(files, m.Path)
		}
	}
	return files
}

// memory is where a script's learned modules are kept between jobs. The zero value keeps nothing.
type memory struct{ dir, name string }

// newMemory returns the memory for a script in an environment. What decides which modules it finds is in the name: the
// interpreter, its options, the script with its content, and the variables that Python reads. That packages are the same
// is seen by the files themselves.
func newMemory(cache string, w warmCommand, interpreter, dir string, environ []string) memory {
	if cache == "" {
		return memory{}
	}
	h := sha256.New()
	part := func(s string) { _, _ = fmt.Fprintf(h, "%d:%s\n", len(s), s) }
	part(within(dir, interpreter))
	if target, err := filepath.EvalSymlinks(within(dir, interpreter)); err == nil {
		info, _ := learnedStat(target)
		part(fmt.Sprint(info))
	}
	for _, s := range []string{w.form, w.name, dir, strings.Join(w.probe, "\x00")} {
		part(s)
	}
	if w.form == "script" || w.form == "run_path" {
		if f, err := os.Open(within(dir, w.name)); err == nil {
			if info, err := f.Stat(); err == nil && info.Mode().IsRegular() {
				_, _ = io.Copy(h, io.LimitReader(f, 16<<20))
			}
			_ = f.Close()
		}
	}
	for _, entry := range environ {
		if name, _, _ := strings.Cut(entry, "="); strings.HasPrefix(name, "PYTHON") || name == "VIRTUAL_ENV" || name == "CONDA_PREFIX" {
			part(entry)
		}
	}
	return memory{filepath.Join(cache, "muster", "warm"), hex.EncodeToString(h.Sum(nil)[:16]) + ".json"}
}

// load returns what is kept; nothing where there is none. An error says why what is there cannot be used.
func (m memory) load() (l learned, err error) {
	fresh := learned{Version: learnedVersion}
	if m.dir == "" {
		return fresh, nil
	}
	dir, err := m.open()
	if errors.Is(err, fs.ErrNotExist) {
		return fresh, nil
	} else if err != nil {
		return fresh, err
	}
	defer func() { _ = dir.Close() }()
	f, err := dir.OpenFile(m.name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return fresh, nil
	} else if err != nil {
		return fresh, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	switch {
	case err != nil:
		return fresh, err
	case !info.Mode().IsRegular() || !ownedByUs(info) || info.Mode().Perm()&0o022 != 0:
		return fresh, fmt.Errorf("%s is not this user's alone", filepath.Join(m.dir, m.name))
	}
	text, err := io.ReadAll(io.LimitReader(f, learnedSizeLimit+1))
	if err == nil && len(text) > learnedSizeLimit {
		err = errors.New("it is too long")
	}
	if err == nil {
		err = json.Unmarshal(text, &l)
	}
	if err == nil {
		err = l.check()
	}
	if err != nil {
		return fresh, fmt.Errorf("%s: %w", filepath.Join(m.dir, m.name), err)
	}
	_ = dir.Chtimes(m.name, time.Now(), time.Now()) // it is used; see forgetOld
	return l, nil
}

// open opens the directory, which must be ours alone to write to.
func (m memory) open() (*os.Root, error) {
	for _, dir := range []string{filepath.Dir(m.dir), m.dir} {
		info, err := os.Lstat(dir)
		if err != nil {
			return nil, err
		}
		if !info.IsDir() || !ownedByUs(info) || info.Mode().Perm()&0o022 != 0 {
			return nil, fmt.Errorf("%s is not a directory to which this user alone may write", dir)
		}
	}
	return os.OpenRoot(m.dir)
}

// save keeps l, as a whole or not at all, and forgets the scripts that nobody has started for the longest time.
func (m memory) save(l learned) error {
	if m.dir == "" {
		return nil
	}
	if err := l.check(); err != nil {
		return err
	}
	text, err := json.Marshal(l)
	if err != nil {
		return err
	}
	if len(text) > learnedSizeLimit {
		return errors.New("it is too long")
	}
	if err := os.MkdirAll(m.dir, 0o700); err != nil {
		return err
	}
	dir, err := m.open()
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	if err := durable.ReplaceIn(dir, m.name, text, 0o600); err != nil {
		return err
	}
	return forgetOld(dir)
}

func forgetOld(dir *os.Root) error {
	entries, err := fs.ReadDir(dir.FS(), ".")
	if err != nil {
		return err
	}
	var files []fs.FileInfo
	for _, e := range entries {
		if info, err := e.Info(); err == nil && strings.HasSuffix(e.Name(), ".json") {
			files = append(files, info)
		}
	}
	slices.SortFunc(files, func(a, b fs.FileInfo) int { return cmp.Compare(b.ModTime().UnixNano(), a.ModTime().UnixNano()) })
	for _, f := range files[min(len(files), learnedKept):] {
		if err := dir.Remove(f.Name()); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
