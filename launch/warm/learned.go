package warm

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"muster/internal/lazyregexp"
)

// learned is what the workers of a script have imported after they were forked. It is kept in the user's cache: see
// memory. What is read from there is checked as if a stranger had written it, and names files only: the template
// imports what is installed under such a name, and nothing else.
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
	learnedVersion = 2
	// learnedFilesLimit bounds what one script imports, in files. PyTorch and transformers are some 5,000 files, of
	// which a script imports half.
	learnedFilesLimit = 4096
	// learnedPathLimit bounds a path, learnedTextLimit all of them in a message, in bytes.
	learnedPathLimit = 512
	learnedTextLimit = 1 << 19
)

var (
	learnedPath   = lazyregexp.New(`^/[A-Za-z0-9_./+@~,: -]+$`)
	learnedModule = lazyregexp.New(`^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.(py|so)$`)
	// warnings.filters stands for filters of warnings that the script has set.
	learnedVariable = lazyregexp.New(`^([A-Za-z_][A-Za-z0-9_]{0,127}|warnings\.filters)$`)
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
		if !learnedVariable().MatchString(name) {
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
	return len(path) <= learnedPathLimit && utf8.ValidString(path) && filepath.Clean(path) == path && learnedPath().MatchString(path)
}

// learnable reports whether a path may be that of a module.
func learnable(path string) bool {
	return cleanPath(path) && learnedModule().MatchString(filepath.Base(path))
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

// add takes files that all workers have executed, and what their script had set, and returns the bytes of those that
// were not known.
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
		if learnedVariable().MatchString(name) && !slices.Contains(l.Variables, name) && len(l.Variables) < learnedFilesLimit {
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
