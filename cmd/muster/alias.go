package main

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"muster/cmd/dialect"
	"muster/internal/errhint"
	"muster/internal/onpath"
)

// newAliasCmd is "muster alias": it makes links with launchers' names.
func newAliasCmd(a *app) *cobra.Command {
	var l onpath.Links
	var remove bool
	cmd := &cobra.Command{
		Use:   "alias [--dir DIR] [--force | --remove] NAME...",
		Short: "Make links, so that muster runs under a launcher's name",
		Long: `Make a link to muster for each NAME of a launcher, so that scripts which say torchrun run
muster. The links go to the directory in which muster was found, or to DIR.

A launcher that the link would hide, because it lies there already or later on PATH, is
named, and nothing is changed: --force makes the link all the same. A file that lay in
the link's place is kept beside it as NAME` + onpath.KeptSuffix + `. --remove takes links to muster
away again, and puts such files back. Either all links are made, or none.

NAME is one of: ` + strings.Join(aliasNames(), ", ") + `.`,
		Example: "  muster alias torchrun\n  muster alias --dir ~/.local/bin torchrun deepspeed\n  muster alias --remove torchrun",
		Annotations: map[string]string{exitAnnotation: "  0    the links are there, or with --remove not there\n" +
			"  2    usage error, a launcher would be hidden, or the directory cannot be written\n  125  internal error of muster\n"},
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
			if l.Force && remove {
				return errhint.Usagef("cannot use --force with --remove: a link is made, or taken away")
			}
			slices.Sort(args)
			l.Argv0, l.Environ, l.Launcher = a.argv[0], a.here.Environ, namesLauncher
			l.Tell = func(line string) { say(a.stdout, "%s\n", line) }
			l.Warn = func(line string) { say(a.stderr, "muster: warning: %s\n", line) }
			names := slices.Compact(args)
			if remove {
				return l.Remove(names)
			}
			return l.Make(names)
		},
	}
	cmd.Flags().StringVar(&l.Dir, "dir", "", "where the links go (default: where muster was found)")
	cmd.Flags().BoolVar(&l.Force, "force", false, "make the links although they hide another launcher")
	cmd.Flags().BoolVar(&remove, "remove", false, "take links to muster away")
	return cmd
}

// namesLauncher reports whether muster runs as something else under a name.
func namesLauncher(name string) bool { return dialect.Named(name) || slices.Contains(timerNames, name) }

// aliasNames are the names of launchers that are commands: run says too little, and names with a dot belong to python
// -m.
func aliasNames() []string {
	names := slices.DeleteFunc(dialect.Names(), func(n string) bool { return n == "run" || strings.Contains(n, ".") })
	names = append(names, timerNames...)
	slices.Sort(names)
	return names
}
