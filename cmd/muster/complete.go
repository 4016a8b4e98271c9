package main

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"muster/cmd/dialect"
	"muster/internal/accel/probe"
)

// inFront is the name under which cobra completes muster's own flags in front of a launcher's name. There is no such
// command otherwise.
const inFront = "flags-in-front"

// completing returns the words that cobra is to complete. It knows nothing of muster's own flags in front of a
// launcher's name: where only these were typed, a command that exists for no other purpose completes them.
func completing(root *cobra.Command, args []string) []string {
	if len(args) < 2 || args[0] != cobra.ShellCompRequestCmd && args[0] != cobra.ShellCompNoDescRequestCmd {
		return args
	}
	typed, last := args[1:len(args)-1], args[len(args)-1]
	flags := dialect.OwnFlags()
	front := dialect.FlagWords(flags, typed)
	if front < len(typed) {
		return slices.Concat(args[:1], typed[front:], args[len(args)-1:])
	}
	if len(typed) == 0 && !strings.HasPrefix(last, "-") || len(typed) > 0 && !strings.HasPrefix(last, "-") &&
		dialect.WordOf(flags, typed) == nil {
		return []string{args[0], last}
	}
	root.AddCommand(&cobra.Command{
		Use: inFront, DisableFlagParsing: true, Hidden: true, RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		ValidArgsFunction: func(_ *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
			return directed(dialect.Complete(inFront, flags, args, toComplete))
		},
	})
	return slices.Concat(args[:1], []string{inFront}, typed, []string{last})
}

// probeWords are those of --probe-exec.
var probeWords = []string{probe.ExecAuto, probe.ExecMemfd, probe.ExecFile, probe.ExecNone}

// fixedWords completes the words of a command's flags.
func fixedWords(cmd *cobra.Command, words map[string][]string) {
	for flag, choices := range words {
		complete := func(_ *cobra.Command, _ []string, part string) ([]string, cobra.ShellCompDirective) {
			return starting(choices, part)
		}
		if err := cmd.RegisterFlagCompletionFunc(flag, complete); err != nil {
			panic("internal error: " + err.Error())
		}
	}
}

// starting are the words that begin like part; files where there are no words to choose from.
func starting(words []string, part string) ([]string, cobra.ShellCompDirective) {
	return directed(dialect.Starting(words, part))
}

// directed tells cobra whether the shell is to complete files.
func directed(words []string, files bool) ([]string, cobra.ShellCompDirective) {
	if files {
		return words, cobra.ShellCompDirectiveDefault
	}
	return words, cobra.ShellCompDirectiveNoFileComp
}
