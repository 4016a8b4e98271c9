package main

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"muster/cmd/dialect"
	"muster/internal/accel/probe"
)

// inFront is the name under which cobra completes muster's own flags in front of a launcher's name. There is no such
// command otherwise.
const inFront = "flags-in-front"

// secondWords are what must follow the names of launchers that have several commands.
var secondWords = map[string]string{"accelerate": "launch", "colossalai": "run"}

// completing returns the words that cobra is to complete. It knows nothing of muster's own flags in front of a
// launcher's name: where only these were typed, a command that exists for no other purpose completes them.
func completing(root *cobra.Command, args []string) []string {
	if len(args) < 2 || args[0] != cobra.ShellCompRequestCmd && args[0] != cobra.ShellCompNoDescRequestCmd {
		return args
	}
	typed, last := args[1:len(args)-1], args[len(args)-1]
	flags := dialect.OwnFlags()
	front := flagWords(flags, typed)
	if front < len(typed) {
		return slices.Concat(args[:1], typed[front:], args[len(args)-1:])
	}
	if len(typed) == 0 && !strings.HasPrefix(last, "-") || len(typed) > 0 && !strings.HasPrefix(last, "-") && wordOf(flags, typed) == nil {
		return []string{args[0], last}
	}
	root.AddCommand(&cobra.Command{
		Use: inFront, DisableFlagParsing: true, Hidden: true, RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		ValidArgsFunction: func(_ *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
			return completed(inFront, flags, args, toComplete)
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

// completed completes a word behind a launcher's name: the names of its flags, the fixed words that a flag takes, and
// files.
func completed(name string, flags *pflag.FlagSet, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
	if second := secondWords[name]; second != "" {
		if len(args) == 0 {
			return starting([]string{second}, toComplete)
		}
		args = args[1:]
	}
	if flagWords(flags, args) < len(args) && name != "colossalai" &&
		name != "colossalairun" { // which takes its flags behind the script, too
		return nil, cobra.ShellCompDirectiveDefault // the command's own words
	}
	if spelling, part, joined := strings.Cut(toComplete, "="); joined {
		if f := dialect.FlagNamed(flags, spelling); f != nil {
			return starting(dialect.Choices(f), part)
		}
	}
	if f := wordOf(flags, args); f != nil {
		return starting(dialect.Choices(f), toComplete)
	}
	if !strings.HasPrefix(toComplete, "-") {
		return nil, cobra.ShellCompDirectiveDefault
	}
	var found []string
	flags.VisitAll(func(f *pflag.Flag) {
		if long := "--" + f.Name; strings.HasPrefix(long, toComplete) {
			found = append(found, long+"\t"+f.Usage)
		}
	})
	return found, cobra.ShellCompDirectiveNoFileComp
}

// starting are the words that begin like part; files where there are no words to choose from.
func starting(words []string, part string) ([]string, cobra.ShellCompDirective) {
	if len(words) == 0 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	return slices.DeleteFunc(slices.Clone(words), func(w string) bool { return !strings.HasPrefix(w, part) }),
		cobra.ShellCompDirectiveNoFileComp
}

// flagWords is how many of args are flags and their words, up to the command.
func flagWords(flags *pflag.FlagSet, args []string) int {
	for i := 0; i < len(args); i++ {
		if !strings.HasPrefix(args[i], "-") || args[i] == "--" {
			return i
		}
		if f := dialect.FlagNamed(flags, args[i]); f != nil && takesNext(f, args[i]) {
			i++
		}
	}
	return len(args)
}

// wordOf is the flag whose word is to follow args, nil for none.
func wordOf(flags *pflag.FlagSet, args []string) *pflag.Flag {
	if len(args) == 0 || len(args) > 1 && flagWords(flags, args[:len(args)-1]) >= len(args) { // the last one is a flag's word
		return nil
	}
	if last := args[len(args)-1]; strings.HasPrefix(last, "-") {
		if f := dialect.FlagNamed(flags, last); f != nil && takesNext(f, last) {
			return f
		}
	}
	return nil
}

func takesNext(f *pflag.Flag, spelling string) bool {
	return f.NoOptDefVal == "" && !strings.Contains(spelling, "=")
}
