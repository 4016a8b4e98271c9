package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"muster/cmd/dialect"
	"muster/internal/errhint"
	"muster/internal/proc"
)

// keptSuffix is behind the name of a file in whose place alias --force put a link.
const keptSuffix = ".before-muster"

// newAliasCmd is "muster alias": it makes links with launchers' names.
func newAliasCmd(a *app) *cobra.Command {
	var l linking
	cmd := &cobra.Command{
		Use:   "alias [--dir DIR] [--force | --remove] NAME...",
		Short: "Make links, so that muster runs under a launcher's name",
		Long: `Make a link to muster for each NAME of a launcher, so that scripts which say torchrun run
muster. The links go to the directory in which muster was found, or to DIR.

A launcher that the link would hide, because it lies there already or later on PATH, is
named, and nothing is changed: --force makes the link all the same. A file that lay in
the link's place is kept beside it as NAME` + keptSuffix + `. --remove takes links to muster
away again, and puts such files back. Either all links are made, or none.

NAME is one of: ` + strings.Join(aliasNames(), ", ") + `.`,
		Example:     "  muster alias torchrun\n  muster alias --dir ~/.local/bin torchrun deepspeed\n  muster alias --remove torchrun",
		Annotations: map[string]string{exitAnnotation: "  0    the links are there, or with --remove not there\n  2    usage error, a launcher would be hidden, or the directory cannot be written\n  125  internal error of muster\n"},
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errhint.With(errhint.Usagef("there is no name to make a link for"), "name launchers, such as: muster alias torchrun")
			}
			for _, name := range args {
				if !slices.Contains(aliasNames(), name) {
					return errhint.With(errhint.Usagef("muster does not run under the name %q", name),
						"choose of "+strings.Join(aliasNames(), ", "))
				}
			}
			return nil
		},
		ValidArgs: aliasNames(),
		RunE: func(_ *cobra.Command, args []string) error {
			if l.force && l.remove {
				return errhint.Usagef("cannot use --force with --remove: a link is made, or taken away")
			}
			slices.Sort(args)
			return a.alias(&l, slices.Compact(args))
		},
	}
	cmd.Flags().StringVar(&l.dir, "dir", "", "where the links go (default: where muster was found)")
	cmd.Flags().BoolVar(&l.force, "force", false, "make the links although they hide another launcher")
	cmd.Flags().BoolVar(&l.remove, "remove", false, "take links to muster away")
	return cmd
}

// aliasNames are the names of launchers that are commands: run says too little, and names with a dot belong to python
// -m.
func aliasNames() []string {
	names := slices.DeleteFunc(dialect.Names(), func(n string) bool { return n == "run" || strings.Contains(n, ".") })
	slices.Sort(names)
	return names
}

// linking is what muster alias was asked for.
type linking struct {
	dir           string
	force, remove bool
	target        string // what the links lead to
	self          os.FileInfo
}

func (a *app) alias(l *linking, names []string) error {
	if err := a.findSelf(l); err != nil {
		return err
	}
	if l.remove {
		return a.unlink(l, names)
	}
	var hidden []string
	for _, name := range names {
		if other := a.hides(l, name); other != "" {
			hidden = append(hidden, other)
		}
	}
	if len(hidden) > 0 && !l.force {
		return errhint.With(errhint.Usagef("cannot make the links: they would hide %s", strings.Join(hidden, " and ")),
			"--force makes them all the same, and keeps a file that lies in the way as NAME"+keptSuffix+"; muster "+names[0]+
				" ... runs muster without a link")
	}
	var made []string
	for _, name := range names {
		_, there := os.Lstat(filepath.Join(l.dir, name))
		fresh := there != nil || !l.ours(filepath.Join(l.dir, name))
		if err := l.link(name); err != nil {
			for _, m := range made {
				err = errors.Join(err, l.restore(m))
			}
			return errhint.With(errhint.Usagef("cannot make the link %s: %w", filepath.Join(l.dir, name), err),
				"--dir DIR puts the links where you may write, such as ~/.local/bin; DIR belongs on PATH")
		}
		if fresh {
			made = append(made, name)
		}
	}
	for _, name := range names {
		a.sayLinked(l, name)
	}
	return nil
}

// findSelf settles where the links go and what they lead to: muster as it was called, as an installer's link to it
// stays when the file behind it moves.
func (a *app) findSelf(l *linking) error {
	called := a.argv[0]
	if dialect.Named(filepath.Base(called)) {
		called = "" // through a link of ours
	} else if path, err := proc.LookPath(called, "", a.environ); err == nil {
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
	if l.dir == "" {
		l.dir = filepath.Dir(l.target)
	}
	if l.dir, err = filepath.Abs(l.dir); err != nil {
		return errhint.Usagef("cannot use --dir: %w", err)
	}
	if st, err := os.Stat(l.dir); err != nil {
		return errhint.With(errhint.Usagef("cannot use --dir: %w", err), "make the directory first")
	} else if !st.IsDir() {
		return errhint.Usagef("cannot use --dir: %s is no directory", l.dir)
	}
	if filepath.Dir(l.target) == l.dir {
		l.target = filepath.Base(l.target) // the directory may be moved as a whole
	}
	return nil
}

// ours says whether path is a link to a muster, perhaps to one that is gone, or is this muster itself.
func (l *linking) ours(path string) bool {
	if to, err := os.Readlink(path); err == nil && filepath.Base(to) == "muster" {
		return true
	}
	st, err := os.Stat(path)
	return err == nil && os.SameFile(st, l.self)
}

// hides returns the launcher that a link called name would hide, "" for none.
func (a *app) hides(l *linking, name string) string {
	at := filepath.Join(l.dir, name)
	if _, err := os.Lstat(at); err == nil && !l.ours(at) {
		return at
	}
	dirs := filepath.SplitList(a.getenv("PATH"))
	for _, dir := range dirs[slices.Index(dirs, l.dir)+1:] {
		path := filepath.Join(dir, name)
		st, err := os.Stat(path)
		if err == nil && filepath.IsAbs(dir) && filepath.Clean(dir) != l.dir && st.Mode().IsRegular() && st.Mode().Perm()&0o111 != 0 &&
			!l.ours(path) {
			return path
		}
	}
	return ""
}

// link makes the link called name at once, or not at all. What lies there, and is not ours, is kept.
func (l *linking) link(name string) error {
	at := filepath.Join(l.dir, name)
	if _, err := os.Lstat(at); err == nil && !l.ours(at) {
		if _, err := os.Lstat(at + keptSuffix); err == nil {
			return fmt.Errorf("%s is kept there from an earlier time", at+keptSuffix)
		}
		if err := os.Link(at, at+keptSuffix); err != nil { // at stays until the link takes its place
			return withoutPath(err)
		}
	}
	made := filepath.Join(l.dir, "."+name+".muster")
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
func (l *linking) restore(name string) error {
	at := filepath.Join(l.dir, name)
	err := os.Rename(at+keptSuffix, at)
	if errors.Is(err, fs.ErrNotExist) {
		err = os.Remove(at)
	}
	return err
}

func (a *app) unlink(l *linking, names []string) error {
	for _, name := range names {
		at := filepath.Join(l.dir, name)
		if _, err := os.Lstat(at); err == nil && !l.ours(at) {
			return errhint.With(errhint.Usagef("cannot remove %s: it is no link to muster", at),
				"nothing was removed; --dir DIR says where the links are")
		}
	}
	for _, name := range names {
		at := filepath.Join(l.dir, name)
		if _, err := os.Lstat(at); err != nil {
			say(a.stdout, "%s is not there\n", at)
			continue
		}
		if err := l.restore(name); err != nil {
			return errhint.Usagef("cannot remove %s: %w", at, withoutPath(err))
		}
		say(a.stdout, "%s is removed\n", at)
	}
	return nil
}

// sayLinked tells what was made, and what keeps a shell from finding it.
func (a *app) sayLinked(l *linking, name string) {
	at := filepath.Join(l.dir, name)
	say(a.stdout, "%s -> %s\n", at, l.target)
	dirs := filepath.SplitList(a.getenv("PATH"))
	if !slices.ContainsFunc(dirs, func(d string) bool { return filepath.Clean(d) == l.dir }) {
		say(a.stderr, "muster: warning: %s is not on PATH: put it in front, or the link is not found\n", l.dir)
		return
	}
	if first, err := proc.LookPath(name, "", a.environ); err == nil && !l.ours(first) {
		say(a.stderr, "muster: warning: %s stands in front on PATH: that one runs, not muster\n", first)
	}
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
