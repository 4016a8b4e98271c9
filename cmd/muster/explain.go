package main

import (
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"muster/cmd/dialect"
	"muster/cmd/dryrun"
	"muster/internal/errhint"
)

// newExplainCmd is "muster explain".
func newExplainCmd(a *app) *cobra.Command {
	var output string
	usage := map[string]string{ // of the flags of muster run that matter most here
		"kind": "kind of the job that is meant, where the file has several", "lenient": "list fields that nobody knows, where they would " +
			"be refused",
		"name":    "name of the job that is meant, where the file has several",
		"secrets": "directory with a directory for each Secret and ConfigMap",
		"hosts":   "hosts on which the job would run, as muster run takes them", "hostfile": "file that names them",
		"set": "read the file as if VALUE stood at PATH; may be given again",
	}
	cmd := &cobra.Command{
		Use:   "explain FILE",
		Short: "Tell what muster makes of a job file: what would run where, and what becomes of each line",
		Long: `Tell what muster run -f FILE makes of a job file, without starting anything.

First which replica would run where, and what; then each line of the file: applied
(muster does as it says), mapped (muster does so in its own way), cluster (left to
the cluster, with the reason), missing (a start needs it), unknown (with --lenient).

All flags of muster run may be given, and further arguments of the command behind --:
the answer is as for a run with them.`,
		Example: "  muster explain pytorchjob.yaml\n  muster explain volcano.yaml --success-policy rank0 --set spec.maxRetry=5",
		Args: func(cmd *cobra.Command, args []string) error {
			if n := cmd.ArgsLenAtDash(); n >= 0 {
				args = args[:n]
			}
			if f := cmd.Flags().Lookup("job-file"); f.Changed {
				args = append(args, f.Value.String())
			}
			return oneJobFile("muster explain pytorchjob.yaml")(cmd, args)
		},
		Annotations: map[string]string{
			exitAnnotation: "  0  told\n  2  usage error, or a file that muster run would refuse\n",
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if output != "text" && output != "json" {
				return errhint.Usagef("-o %q: choose one of text, json", output)
			}
			var words []string
			file := cmd.Flags().Lookup("job-file")
			if !file.Changed {
				_ = file.Value.Set(args[0])
				words, args = append(words, "--job-file="+args[0]), args[1:]
			}
			cmd.Flags().Visit(func(f *pflag.Flag) {
				if f.Name != "output" {
					words = append(words, "--"+f.Name+"="+f.Value.String())
				}
			})
			req, err := dialect.Read("run", dialect.Invocation{
				Argv0: a.argv[0], Args: slices.Concat(words, []string{"--"}, args), Environ: a.here.Environ, ReadFile: a.readFile,
				ReadDir: readDir, Machine: a.surroundings(), Dir: workingDir(), Explain: true,
			})
			if err != nil {
				return err
			}
			return a.show(dryrun.NewExplained(file.Value.String(), req), output == "json" || req.JSON)
		},
	}
	run := dialect.Flags("run")
	run.VisitAll(func(f *pflag.Flag) {
		if own, most := usage[f.Name]; most {
			f.Usage = own
		} else {
			f.Hidden = true
		}
	})
	cmd.Flags().SetNormalizeFunc(run.GetNormalizeFunc())
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	cmd.Flags().AddFlagSet(run)
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
