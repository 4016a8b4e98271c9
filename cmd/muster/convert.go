package main

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"muster/cmd/dialect"
	"muster/cmd/dialect/jobfile"
	"muster/cmd/manifest"
	"muster/internal/errhint"
	"muster/internal/printable"
	"muster/launch/job"
)

func newConvertCmd(a *app) *cobra.Command {
	var to, kind, from string
	var set []string
	var lenient bool
	var given manifest.Spec
	cmd := &cobra.Command{
		Use:   "convert FILE --to KIND",
		Short: "Write a job file of one kind as one of another, or as muster's command lines",
		Long: `Read a job file as muster run -f reads it, and write to standard output what muster manifest
writes of the same job in another kind. What is not carried over is told on standard error,
each line with its place. The flags of muster manifest say what the file does not, or
something else than the file.

KIND is one of ` + strings.Join(manifest.Targets(), ", ") + ".",
		Example: `  muster convert pytorchjob.yaml --to jobset --queue research > jobset.yaml
  muster convert job.yaml --to slurm --deadline 12h > job.sbatch`,
		Annotations: map[string]string{exitAnnotation: "  0  the file was written to standard output\n  2  usage error, or a file that cannot be converted; nothing was written\n"},
		Args:        cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !slices.Contains(manifest.Targets(), to) {
				return errhint.Usagef("--to %q: choose one of %s", to, strings.Join(manifest.Targets(), ", "))
			}
			words := []string{"--job-file", args[0]}
			for _, w := range [][2]string{{"kind", kind}, {"name", from}} {
				if w[1] != "" {
					words = append(words, "--"+w[0]+"="+w[1])
				}
			}
			for _, s := range set {
				words = append(words, "--set="+s)
			}
			if lenient {
				words = append(words, "--lenient")
			}
			req, err := dialect.Read("run", dialect.Invocation{
				Argv0: a.argv[0], Args: words, ReadFile: a.readFile, ReadDir: readDir, Explain: true,
			})
			if err != nil {
				return err
			}
			what, err := launchedBy(req)
			if err != nil {
				return errhint.Code(err, errhint.Usage)
			}
			read, left := manifest.Convert(req.File, to, what)
			var s manifest.Spec
			own := pflag.NewFlagSet("convert", pflag.ContinueOnError)
			manifestFlags(own, &s)
			s = read
			cmd.Flags().Visit(func(f *pflag.Flag) {
				if own.Lookup(f.Name) != nil && err == nil {
					err = overrule(own, cmd.Flags(), f)
				}
			})
			if err != nil {
				return errhint.Code(err, errhint.Usage)
			}
			if s.Queue != "" && s.Gang == "" && manifest.Refused(to, "gang") == "" {
				s.Gang = manifest.DefaultGang(to)
			}
			if s.Gang == "kueue" && s.Queue == "" {
				s.Gang = ""
			}
			if err := verifySpec(&s, cmd.Flags()); err != nil {
				return err
			}
			for _, l := range left {
				say(a.stderr, "muster: %s: %s: %s\n", printable.Text(l.Source), printable.Text(l.Path), printable.Text(l.Why))
			}
			_, err = a.stdout.Write(manifest.Write(s))
			return err
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&to, "to", "", "kind of the file that is written: "+strings.Join(manifest.Targets(), ", "))
	flags.StringVar(&kind, "kind", "", "kind of the job that is meant, where the file has several")
	flags.StringVar(&from, "job", "", "name of the job that is meant, where the file has several")
	flags.StringArrayVar(&set, "set", nil, "read the file as if VALUE stood at PATH; may be given again")
	flags.BoolVar(&lenient, "lenient", false, "pass over fields that nobody knows, where they would be refused")
	manifestFlags(flags, &given)
	for _, name := range []string{"nodes", "nproc-per-node"} { // the file says them
		flags.Lookup(name).Usage += " (default: as in the file)"
		flags.Lookup(name).DefValue = ""
	}
	return cmd
}

// overrule gives a Spec's flag the value that was typed.
func overrule(own, typed *pflag.FlagSet, f *pflag.Flag) error {
	if f.Value.Type() != "stringArray" {
		return own.Set(f.Name, f.Value.String())
	}
	list, err := typed.GetStringArray(f.Name)
	for _, v := range list {
		if err == nil {
			err = own.Set(f.Name, v)
		}
	}
	return err
}

// torchrunNames are the launchers whose command lines say what a node's workers are.
var torchrunNames = []string{"torchrun", "torch.distributed.run", "torch.distributed.launch"}

// launchedBy finds what a node of a job file starts.
func launchedBy(req dialect.Request) (manifest.Launched, error) {
	file := req.File
	first := req.Placed[0]
	at := "the command of " + first.Pod.Name
	for _, l := range file.Lines {
		if strings.HasSuffix(l.Path, ".command") {
			at = l.Source + ": " + l.Path
			break
		}
	}
	refuse := func(what, hint string) (manifest.Launched, error) {
		return manifest.Launched{}, errhint.With(fmt.Errorf("%s: %s", at, what), hint)
	}
	for _, p := range req.Placed[1:] {
		if !slices.Equal(p.Node.Argv, first.Node.Argv) {
			return refuse("the nodes have different commands: "+first.Pod.Name+" and "+p.Pod.Name, "give all nodes one command by --set")
		}
	}
	argv := first.Node.Argv
	program := path.Base(argv[0])
	switch {
	case file.Native:
		procs := "1"
		for _, w := range file.Words {
			if w.Own && w.Flag == "nproc-per-node" {
				procs = w.Text
			}
		}
		return manifest.Launched{Procs: procs, Command: argv}, nil
	case slices.Contains(torchrunNames, program):
		return torchrunOf(program, argv[1:], first, refuse)
	case file.Launcher != nil && (program == "mpirun" || program == "mpiexec"):
		return mpirunOf(argv[1:], file, refuse)
	case dialect.Named(program) || program == "muster":
		return refuse("muster convert does not take the command line of "+program+" apart",
			"give muster run as the command by --set: '...command=[muster, run, -n, \"8\", --, python, train.py]'")
	case slices.ContainsFunc(argv[1:], func(w string) bool {
		return slices.ContainsFunc(strings.FieldsFunc(w, func(r rune) bool { return strings.ContainsRune(" \t\n;&|'\"", r) }),
			func(w string) bool { return dialect.Named(path.Base(w)) && w != "run" })
	}) && !strings.HasPrefix(program, "python"):
		return refuse("the command is a script in which a launcher stands, and muster convert reads no scripts",
			"give the launcher's words as the command by --set")
	}
	return manifest.Launched{Procs: "1", Command: argv}, nil
}

// torchrunOf reads the command line of torchrun, with the variables of its node.
func torchrunOf(program string, args []string, node dialect.PlacedNode, refuse func(what, hint string) (manifest.Launched, error)) (manifest.Launched, error) {
	var environ []string
	for _, v := range node.Node.Env {
		environ = append(environ, v.Name+"="+v.Value)
	}
	req, err := dialect.Read(program, dialect.Invocation{Argv0: program, Args: args, Environ: environ})
	if err != nil {
		return refuse(fmt.Sprintf("its %s would be refused: %v", program, err), "")
	}
	what := manifest.Launched{Procs: req.Job.Procs, MaxRestarts: req.Job.Restart.MaxRestarts}
	if _, err := strconv.Atoi(what.Procs); err != nil && node.Pod.Accelerators > 0 && what.Procs != "cpu" {
		what.Procs = strconv.Itoa(node.Pod.Accelerators)
	}
	c := req.Job.Command
	switch c.Kind {
	case job.Module:
		what.Command = []string{"python", "-u", "-m", c.Name}
	case job.Script:
		what.Command = []string{"python", "-u", c.Name}
	default:
		what.Command = []string{c.Name}
	}
	what.Command = append(what.Command, c.Args...)
	return what, nil
}

// mpirunOf reads a short command line of mpirun: how many processes, and variables.
func mpirunOf(args []string, file *jobfile.File, refuse func(what, hint string) (manifest.Launched, error)) (manifest.Launched, error) {
	n := len(file.Pods)
	for len(args) > 1 && strings.HasPrefix(args[0], "-") {
		switch strings.TrimPrefix(args[0], "-") {
		case "-allow-run-as-root", "allow-run-as-root":
			args = args[1:]
			continue
		case "np", "n", "-np", "-n":
			if count, err := strconv.Atoi(args[1]); err == nil {
				n = count
			}
		case "x":
		default:
			return refuse("muster convert knows -np and -x of mpirun, and not "+args[0], "leave it out by --set")
		}
		args = args[2:]
	}
	if len(args) == 0 {
		return refuse("its mpirun starts nothing", "")
	}
	if n%len(file.Pods) != 0 {
		return refuse(fmt.Sprintf("%d processes on %d nodes: muster run has the same number on each", n, len(file.Pods)), "change it by --set")
	}
	return manifest.Launched{Procs: strconv.Itoa(n / len(file.Pods)), Command: args}, nil
}
