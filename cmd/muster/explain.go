package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"muster/cmd/dialect"
	"muster/cmd/dryrun"
	"muster/internal/errhint"
)

// newExplainCmd is "muster explain".
func newExplainCmd(a *app) *cobra.Command {
	var output, kind, name, secrets, list, file string
	var set []string
	var lenient bool
	cmd := &cobra.Command{
		Use:   "explain FILE",
		Short: "Tell what muster makes of a job file: what would run where, and what becomes of each line",
		Long: `Tell what muster run -f FILE makes of a job file, without starting anything.

First which replica would run where, and what; then each line of the file: applied
(muster does as it says), mapped (muster does so in its own way), cluster (left to
the cluster, with the reason), missing (a start needs it), unknown (with --lenient).`,
		Args: oneJobFile("muster explain pytorchjob.yaml"),
		Annotations: map[string]string{
			exitAnnotation: "  0  told\n  2  usage error, or a file that muster run would refuse\n",
		},
		RunE: func(_ *cobra.Command, args []string) error {
			if output != "text" && output != "json" {
				return errhint.Usagef("-o %q: choose one of text, json", output)
			}
			words := []string{"--job-file", args[0]}
			for _, w := range [][2]string{{"kind", kind}, {"name", name}, {"secrets", secrets}, {"hosts", list}, {"hostfile", file}} {
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
				Argv0: a.argv[0], Args: words, Environ: a.here.Environ, ReadFile: a.readFile, ReadDir: readDir, Machine: a.surroundings(),
				Dir: workingDir(), Explain: true,
			})
			if err != nil {
				return err
			}
			return a.show(dryrun.NewExplained(args[0], req), output == "json")
		},
	}
	flags := cmd.Flags()
	flags.StringVarP(&output, "output", "o", "text", "text or json")
	flags.StringVar(&kind, "kind", "", "kind of the job that is meant, where the file has several")
	flags.StringVar(&name, "name", "", "name of the job that is meant, where the file has several")
	flags.StringVar(&secrets, "secrets", "", "directory with a directory for each Secret and ConfigMap")
	flags.StringVar(&list, "hosts", "", "hosts on which the job would run, as muster run takes them")
	flags.StringVar(&file, "hostfile", "", "file that names them")
	flags.StringArrayVar(&set, "set", nil, "read the file as if VALUE stood at PATH; may be given again")
	flags.BoolVar(&lenient, "lenient", false, "list fields that nobody knows, where they would be refused")
	return cmd
}

// oneJobFile takes one word, the name of a job file, as the example does.
func oneJobFile(example string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == 1 {
			return nil
		}
		what := "no job file is named"
		if len(args) > 1 {
			what = fmt.Sprintf("%s and %s are two files, and a job has one", args[0], args[1])
		}
		return errhint.With(errhint.Usagef("cannot %s: %s", cmd.Name(), what), example)
	}
}
