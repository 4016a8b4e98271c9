package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"muster/internal/durable"
	"muster/internal/errhint"
	"muster/internal/printable"
	"muster/launch/control/ranks"
	"muster/launch/diagnose"
	"muster/launch/evidence"
)

// newStacksCmd is "muster stacks".
func newStacksCmd(a *app) *cobra.Command {
	var native bool
	var out string
	cmd := &cobra.Command{
		Use:   "stacks [--native] [--out FILE] [JOB]",
		Short: "Show the stacks of all workers of a job, equal ones folded",
		Long: `Show what all workers of a job do at the same moment, on all its nodes, and the processes that
they have started: Python's stacks where the job was started with --stacks on or
--hang-timeout, else what the kernel tells. Equal stacks are shown once, with the ranks that
are in them, the fewest first. Nothing is stopped for it.

--out writes a file instead: .svg is a picture, .folded has a line for each stack as programs
for flame graphs read it, .pb.gz is for pprof, .txt the same text as is shown.

` + jobHelp,
		Example:     "  muster stacks\n  muster stacks train-7 --native --out stacks.svg",
		Annotations: map[string]string{exitAnnotation: jobsStatus},
		Args:        oneJob,
		RunE: func(cmd *cobra.Command, args []string) error {
			form := evidence.FormOf(cmp.Or(out, ".txt"))
			if form == nil {
				return errhint.Usagef("--out %s: give a name that ends with .txt, .folded, .svg or .pb.gz", out)
			}
			job, parts, err := a.runningJob(cmd.Context(), &pageFlags{}, args)
			if err != nil {
				return err
			}
			nodes, missing, err := ranks.Look(cmd.Context(), job, parts, native)
			if err != nil {
				return err
			}
			groups := evidence.Merge(nodes, native)
			var text bytes.Buffer
			at := nodes[0].At // a node's clock
			title := fmt.Sprintf("stacks of job %s at %s", job.RunID(), at.Local().Format(time.DateTime))
			if err := form(&text, title, at, groups); err != nil {
				return err
			}
			a.notSeen(nodes, missing)
			if out == "" {
				_, err = a.stdout.Write(text.Bytes())
				return err
			}
			if err := durable.Replace(out, text.Bytes(), 0o644); err != nil {
				return fmt.Errorf("cannot write %s: %w", out, err)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&native, "native", false, "what the kernel tells of all threads, too, and native frames where py-spy 0.4.x is "+
		"there: it stops each Python process for some hundredths of a second")
	cmd.Flags().StringVar(&out, "out", "", "write to this file, in the form that its name ends with")
	cmd.ValidArgsFunction = a.completeJob
	return cmd
}

// newDiagnoseCmd is "muster diagnose".
func newDiagnoseCmd(a *app) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "diagnose [-o json] [JOB]",
		Short: "Say which rank of a job holds up the others, and why",
		Long: `Look at all workers of a job at the same moment, on all its nodes, and say in one sentence which
ranks hold up others and what they do, and which wait for them; below it stands what was seen.
It is one look: a job that goes on well is seen in the midst of a step. Where the evidence is
not enough it says between which causes it cannot tell. Python's stacks are part of it where
the job was started with --stacks on or --hang-timeout (docs/hangs.md).

` + jobHelp,
		Example:     "  muster diagnose\n  muster diagnose train-7 -o json",
		Annotations: map[string]string{exitAnnotation: jobsStatus},
		Args:        oneJob,
		RunE: func(cmd *cobra.Command, args []string) error {
			if output != "" && output != asJSON {
				return errhint.Usagef("-o %q: the only other form is json", output)
			}
			job, parts, err := a.runningJob(cmd.Context(), &pageFlags{}, args)
			if err != nil {
				return err
			}
			nodes, missing, err := ranks.Look(cmd.Context(), job, parts, false)
			if err != nil {
				return err
			}
			v := diagnose.Of(nodes, missing)
			if output == asJSON {
				text, err := json.MarshalIndent(struct {
					diagnose.Verdict
					Nodes   []evidence.Node `json:"nodes"`
					Missing []string        `json:"missing,omitempty"`
				}{v, nodes, missing}, "", "  ")
				if err != nil {
					return err
				}
				say(a.stdout, "%s\n", text)
				return nil
			}
			say(a.stdout, "%s\n", printable.Output(v.Sentence))
			for _, line := range v.Evidence {
				say(a.stdout, "  %s\n", printable.Output(line))
			}
			a.notSeen(nodes, nil)
			return nil
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "json: the verdict and all that was seen")
	fixedWords(cmd, map[string][]string{"output": {asJSON}})
	cmd.ValidArgsFunction = a.completeJob
	return cmd
}

// notSeen says what could not be looked at.
func (a *app) notSeen(nodes []evidence.Node, missing []string) {
	for _, m := range missing {
		say(a.stderr, "muster: node %s does not say what its ranks do\n", printable.Output(m))
	}
	for _, n := range nodes {
		for _, note := range n.Notes {
			say(a.stderr, "muster: node %s: %s\n", printable.Output(n.Node), printable.Output(note))
		}
	}
}
