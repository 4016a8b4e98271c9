package main

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"muster/cmd/convert"
	"muster/cmd/dialect"
	"muster/cmd/manifest"
	"muster/internal/errhint"
	"muster/internal/printable"
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
		Annotations: map[string]string{exitAnnotation: "  0  the file was written to standard output\n" +
			"  2  usage error, or a file that cannot be converted; nothing was written\n"},
		Args: oneJobFile("muster convert pytorchjob.yaml --to jobset"),
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
				JobNameFlag: "--job",
			})
			if err != nil {
				return err
			}
			what, err := convert.Launched(req)
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
			convert.Gang(&s)
			if err := convert.Verify(&s, typed(cmd.Flags())); err != nil {
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
