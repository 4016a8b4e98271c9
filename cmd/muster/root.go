package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"muster/cmd/dialect"
	"muster/internal/errhint"
	"muster/launch/hosts"
)

// rootCmdFor is the root command for a command line. One that starts a job has no other commands: to make them all takes
// longer than to read its flags.
func rootCmdFor(a *app, args []string) *cobra.Command {
	if len(args) == 0 {
		return newRootCmd(a)
	}
	var start *cobra.Command
	switch name := args[0]; {
	case dialect.Named(name):
		start = newDialectCmd(a, name)
	case name == hosts.AgentCommand:
		start = newAgentCmd(a)
	default:
		return newRootCmd(a)
	}
	root := bareRootCmd(a)
	root.CompletionOptions.DisableDefaultCmd = true
	root.AddCommand(start)
	refuseArgs(root)
	return root
}

// newRootCmd is the root command with all commands.
func newRootCmd(a *app) *cobra.Command {
	root := bareRootCmd(a)
	for _, name := range dialect.Names() {
		root.AddCommand(newDialectCmd(a, name))
	}
	root.AddCommand(newStoreCmd(a), newTokenCmd(a), newExecCmd(a), newPsCmd(a), newStatusCmd(a), newTopCmd(a), newMetricsCmd(a),
		newStacksCmd(a), newDiagnoseCmd(a), newViewerCmd(a), newTimerLaunchCmd(), newStopCmd(a), newExplainCmd(a), newManifestCmd(a),
		newConvertCmd(a), newRestartCmd(a), newPauseCmd(a), newResumeCmd(a), newScaleCmd(a), newKillNodeCmd(a), newEventsCmd(a),
		newLogsCmd(a), newDevicesCmd(a), newCheckCmd(a), newAgentCmd(a), newCkptCmd(a), newAliasCmd(a), newVersionCmd(a))
	root.AddCommand(buildCommands(a)...)
	root.InitDefaultCompletionCmd()
	root.SetHelpCommand(newHelpCmd())
	refuseArgs(root)
	for _, c := range root.Commands() {
		if c.Name() == "completion" {
			c.Args = func(_ *cobra.Command, args []string) error {
				return errhint.With(errhint.Usagef("there is no completion for %q", strings.Join(args, " ")),
					"name a shell: bash, fish, powershell or zsh")
			}
			c.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
		}
	}
	return root
}

// bareRootCmd is the root command without any other.
func bareRootCmd(a *app) *cobra.Command {
	root := &cobra.Command{
		Use:   "muster",
		Short: "Launch distributed training",
		Long: `muster launches distributed training: a node of a job on this machine, or a whole job on
its hosts. Put it in front of the launcher you use, or give it that launcher's name by a
link, and the same job runs.`,
		Example: `  muster torchrun --standalone --nproc-per-node 2 train.py
  muster run -n 4 --max-restarts 3 -- python train.py --lr 0.1
  muster run --hosts node1:8,node2:8 -- python train.py
  muster --dry-run torchrun --standalone --nproc-per-node 8 train.py
  muster store --bind 127.0.0.1:29400`,
		Version:       a.version + probeText,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil // RunE shows the help
			}
			hint := "muster --help lists the commands"
			tooShort := func(name string) bool { return len(name) < cmd.SuggestionsMinimumDistance } // it is near to every short word
			if start := dialect.StartOf(args[0]); start != "" {
				hint = "a launcher starts a job, as in " + start
			} else if near := slices.DeleteFunc(cmd.SuggestionsFor(args[0]), tooShort); len(near) > 0 {
				hint = "did you mean " + strings.Join(near, " or ") + "?"
			}
			return errhint.With(errhint.Usagef("unknown command %q", args[0]), hint)
		},
		Annotations: map[string]string{exitAnnotation: strings.TrimPrefix(dialect.ExitStatusHelp, exitTitle)},
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if dialect.Named(cmd.Name()) || cmd.Name() == hosts.AgentCommand {
				return nil // it has --log-format, or is told by one that has
			}
			if err := given(cmd); err != nil {
				return err
			}
			return a.console.CheckFormat()
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetHelpFunc(func(cmd *cobra.Command, _ []string) { a.help(cmd) })
	root.SuggestionsMinimumDistance = 3
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		if cmd == root && len(a.argv) > 1 && !strings.HasPrefix(a.argv[1], "-") { // its flags are unknown because it is
			return root.Args(root, a.argv[1:])
		}
		hint := cmd.CommandPath() + flagHint(cmd, err)
		if wrong, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
			err = wrongValue(wrong)
		}
		return errhint.Code(errhint.With(err, hint), errhint.Usage)
	})
	return root
}

// emptyAnnotation marks a flag to which an empty text means something.
const emptyAnnotation = "empty"

// given makes sure that no flag has an empty text: that is what a variable is that was not set, and would count as not given.
func given(cmd *cobra.Command) (err error) {
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if _, means := f.Annotations[emptyAnnotation]; f.Value.String() == "" && !means {
			err = errhint.With(errhint.Usagef("%s was given an empty --%s", cmd.CommandPath(), f.Name), "is a variable not set?")
		}
	})
	return err
}

// wrongValue says what a flag takes that was given something else.
func wrongValue(err *pflag.InvalidValueError) error {
	takes := map[string]string{
		"int": "a whole number", "int64": "a whole number", "float64": "a number", "duration": "a time such as 30s or 5m",
		"bool": "true or false",
	}
	f := err.GetFlag()
	if what := takes[f.Value.Type()]; what != "" {
		return fmt.Errorf("cannot use --%s %q: give %s", f.Name, err.GetValue(), what)
	}
	return fmt.Errorf("cannot use --%s %q: %w", f.Name, err.GetValue(), err.Unwrap())
}

// flagHint is what to write behind a command instead of flags that it does not take. Looks at jobs have -o json, as kubectl
// does; checks, which people read as text, have --json.
func flagHint(cmd *cobra.Command, err error) string {
	if unknown, ok := errors.AsType[*pflag.NotExistError](err); ok {
		switch name := unknown.GetSpecifiedName(); {
		case (name == "o" || name == "output") && cmd.Flags().Lookup("json") != nil:
			return " --json writes JSON"
		case name == "json" && cmd.Flags().Lookup("output") != nil:
			return " -o json writes JSON"
		}
	}
	return " --help lists the flags"
}

// newHelpCmd is "muster help", which refuses what it has no help for.
func newHelpCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "help [command]",
		Short: "Help about any command",
		RunE: func(cmd *cobra.Command, args []string) error {
			about, rest, err := cmd.Root().Find(args)
			if err != nil || len(rest) > 0 {
				return errhint.With(errhint.Usagef("there is no help for %q", strings.Join(args, " ")), "muster --help lists the commands")
			}
			return about.Help()
		},
	}
}

// refuseArgs makes wrong arguments of the commands that cobra parses errors of usage.
func refuseArgs(cmd *cobra.Command) {
	for _, c := range cmd.Commands() {
		if check := c.Args; check != nil {
			c.Args = func(cmd *cobra.Command, args []string) error {
				return errhint.Code(check(cmd, args), errhint.Usage)
			}
		}
		refuseArgs(c)
	}
}

// help prints the text of the root command, or of one that cobra parses.
func (a *app) help(cmd *cobra.Command) {
	say(a.stdout, "%s\n\n%s", cmd.Long, cmd.UsageString())
	if !cmd.HasParent() {
		say(a.stdout, "\nmuster's own flags may stand in front of a launcher's name (muster run --help-all explains them):\n  %s\n",
			strings.Join(ownFlagNames(), " "))
	}
	say(a.stdout, "%s", exitHelp(cmd))
}

// exitAnnotation is where a command keeps its table of exit statuses, which ends its help.
const (
	exitAnnotation = "exit status"
	exitTitle      = "EXIT STATUS\n"
)

// exitHelp is the end of a command's help.
func exitHelp(cmd *cobra.Command) string {
	table := cmd.Annotations[exitAnnotation]
	if table == "" {
		table = "  0  done\n  2  usage error\n"
	}
	return "\n" + exitTitle + table
}

// ownFlagNames are the flags that may stand in front of every dialect.
func ownFlagNames() []string {
	var names []string
	dialect.OwnFlags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden { // an alias, which may be another flag of the launcher
			names = append(names, "--"+f.Name)
		}
	})
	return names
}

// newDialectCmd is the command of one dialect. The dialect parses the arguments, not cobra: each has rules of its own.
func newDialectCmd(a *app, name string) *cobra.Command {
	cmd := &cobra.Command{
		Use:                name + " [flags] command [arguments]",
		Short:              dialect.About(name),
		DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			req, err := dialect.Read(name, dialect.Invocation{
				Argv0: a.argv[0], Args: args, Environ: a.here.Environ, ReadFile: a.readFile, Machine: a.surroundings(),
				Dir: workingDir(), Own: a.own, ReadDir: readDir,
			})
			a.console.ErrorsJSON, a.console.Format = req.JSON, req.LogFormat
			if err != nil {
				return err
			}
			return a.launch(cmd.Context(), req)
		},
		ValidArgsFunction: func(_ *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
			return directed(dialect.Complete(name, dialect.Flags(name), args, toComplete))
		},
	}
	// The text is made when it is asked for: starting a job must not pay for it.
	cmd.SetHelpFunc(func(*cobra.Command, []string) { say(a.stdout, "%s", dialect.Help(name)) })
	return cmd
}
