package onpath

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"muster/internal/errhint"
	"muster/internal/proc"
)

// KeptSuffix is behind the name of a file in whose place Make with Force has put a link.
const KeptSuffix = ".before-muster"

// Links are links to muster in a directory. Fields with capitals are for who makes it.
type Links struct {
	Dir      string                 // empty: where muster was found
	Force    bool                   // make links although they hide another launcher
	Argv0    string                 // by which muster was called
	Environ  []string               // whose PATH counts
	Launcher func(name string) bool // muster runs as a launcher under this name
	Tell     func(line string)      // what has become of a link
	Warn     func(line string)      // why a link may not be found

	target string // what the links lead to
	self   os.FileInfo
}

// Make makes all links, or none. A file that lies in the place of one is kept beside it with KeptSuffix.
func (l *Links) Make(names []string) error {
	if err := l.findSelf(); err != nil {
		return err
	}
	var hidden []string
	for _, name := range names {
		if other := l.hides(name); other != "" {
			hidden = append(hidden, other)
		}
	}
	if len(hidden) > 0 && !l.Force {
		return errhint.With(errhint.Usagef("cannot make the links: they would hide %s", strings.Join(hidden, " and ")),
			"--force makes them all the same, and keeps a file that lies in the way as NAME"+KeptSuffix+"; muster "+names[0]+
				" ... runs muster without a link")
	}
	var made []string
	for _, name := range names {
		_, there := os.Lstat(filepath.Join(l.Dir, name))
		fresh := there != nil || !l.ours(filepath.Join(l.Dir, name))
		if err := l.link(name); err != nil {
			for _, m := range made {
				err = errors.Join(err, l.restore(m))
			}
			return errhint.With(errhint.Usagef("cannot make the link %s: %w", filepath.Join(l.Dir, name), err),
				"--dir DIR puts the links where you may write, such as ~/.local/bin; DIR belongs on PATH")
		}
		if fresh {
			made = append(made, name)
		}
	}
	for _, name := range names {
		l.tellLinked(name)
	}
	return nil
}

// findSelf settles where the links go and what they lead to: muster as it was called, as an installer's link to it
// stays when the file behind it moves.
func (l *Links) findSelf() error {
	called := l.Argv0
	if l.Launcher(filepath.Base(called)) {
		called = "" // through a link of ours
	} else if path, err := proc.LookPath(called, "", l.Environ); err == nil {
		called = path
	}
	var err error
	if l.self, err = os.Stat("/proc/self/exe"); err != nil {
		return errhint.With(fmt.Errorf("cannot find muster's own file: %w", err), "is /proc mounted?")
	}
	if st, err := os.Stat(called); err != nil || !os.SameFile(st, l.self) {
		if called, err = os.Executable(); err != nil {
			return fmt.Errorf("cannot find muster's own file: %w", err)
		}
	}
	if l.target, err = filepath.Abs(called); err != nil {
		return fmt.Errorf("cannot find muster's own file: %w", err)
	}
	if l.Dir == "" {
		l.Dir = filepath.Dir(l.target)
	}
	if l.Dir, err = filepath.Abs(l.Dir); err != nil {
		return errhint.Usagef("cannot use --dir: %w", err)
	}
	if st, err := os.Stat(l.Dir); err != nil {
		return errhint.With(errhint.Usagef("cannot use --dir: %w", err), "make the directory first")
	} else if !st.IsDir() {
		return errhint.Usagef("cannot use --dir: %s is no directory", l.Dir)
	}
	if filepath.Dir(l.target) == l.Dir {
		l.target = filepath.Base(l.target) // the directory may be moved as a whole
	}
	return nil
}

// ours says whether path is a link to a muster, perhaps to one that is gone, or is this muster itself.
func (l *Links) ours(path string) bool {
	if to, err := os.Readlink(path); err == nil && filepath.Base(to) == "muster" {
		return true
	}
	st, err := os.Stat(path)
	return err == nil && os.SameFile(st, l.self)
}

// hides returns the launcher that a link called name would hide, "" for none.
func (l *Links) hides(name string) string {
	at := filepath.Join(l.Dir, name)
	if _, err := os.Lstat(at); err == nil && !l.ours(at) {
		return at
	}
	dirs := filepath.SplitList(l.path())
	for _, dir := range dirs[slices.Index(dirs, l.Dir)+1:] {
		path := filepath.Join(dir, name)
		st, err := os.Stat(path)
		if err == nil && filepath.IsAbs(dir) && filepath.Clean(dir) != l.Dir && st.Mode().IsRegular() && st.Mode().Perm()&0o111 != 0 &&
			!l.ours(path) {
			return path
		}
	}
	return ""
}

// link makes the link called name at once, or not at all. What lies there, and is not ours, is kept.
func (l *Links) link(name string) error {
	at := filepath.Join(l.Dir, name)
	if _, err := os.Lstat(at); err == nil && !l.ours(at) {
		if _, err := os.Lstat(at + KeptSuffix); err == nil {
			return fmt.Errorf("%s is kept there from an earlier time", at+KeptSuffix)
		}
		if err := os.Link(at, at+KeptSuffix); err != nil { // at stays until the link takes its place
			return withoutPath(err)
		}
	}
	made := filepath.Join(l.Dir, "."+name+".muster")
	if err := os.Remove(made); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return withoutPath(err)
	}
	if err := os.Symlink(l.target, made); err != nil {
		return withoutPath(err)
	}
	if err := os.Rename(made, at); err != nil {
		return errors.Join(withoutPath(err), os.Remove(made))
	}
	return nil
}

// restore takes a link of ours away, and puts back what lay there before.
func (l *Links) restore(name string) error {
	at := filepath.Join(l.Dir, name)
	err := os.Rename(at+KeptSuffix, at)
	if errors.Is(err, fs.ErrNotExist) {
		err = os.Remove(at)
	}
	return err
}

// Remove takes links away, and puts files back that were kept in their places. It touches nothing that is no link to
// muster.
func (l *Links) Remove(names []string) error {
	if err := l.findSelf(); err != nil {
		return err
	}
	for _, name := range names {
		at := filepath.Join(l.Dir, name)
		if _, err := os.Lstat(at); err == nil && !l.ours(at) {
			return errhint.With(errhint.Usagef("cannot remove %s: it is no link to muster", at),
				"nothing was removed; --dir DIR says where the links are")
		}
	}
	for _, name := range names {
		at := filepath.Join(l.Dir, name)
		if _, err := os.Lstat(at); err != nil {
			l.Tell(at + " is not there")
			continue
		}
		if err := l.restore(name); err != nil {
			return errhint.Usagef("cannot remove %s: %w", at, withoutPath(err))
		}
		l.Tell(at + " is removed")
	}
	return nil
}

// tellLinked tells what was made, and what keeps a shell from finding it.
func (l *Links) tellLinked(name string) {
	at := filepath.Join(l.Dir, name)
	l.Tell(at + " -> " + l.target)
	dirs := filepath.SplitList(l.path())
	if !slices.ContainsFunc(dirs, func(d string) bool { return filepath.Clean(d) == l.Dir }) {
		l.Warn(l.Dir + " is not on PATH: put it in front, or the link is not found")
		return
	}
	if first, err := proc.LookPath(name, "", l.Environ); err == nil && !l.ours(first) {
		l.Warn(first + " stands in front on PATH: that one runs, not muster; put the link there (--dir " + filepath.Dir(first) +
			" --force), or the directory of this one in front")
	}
}

// path is PATH.
func (l *Links) path() string {
	value := variable(l.Environ, "PATH")
	return value
}

// withoutPath is err without the path that the caller tells.
func withoutPath(err error) error {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		return p.Err
	}
	if l, ok := errors.AsType[*os.LinkError](err); ok {
		return l.Err
	}
	return err
}
