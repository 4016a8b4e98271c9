package main

import (
	"context"
	"encoding/json"

	"github.com/spf13/cobra"

	"muster/internal/errhint"
	"muster/internal/printable"
	"muster/launch/control"
	"muster/launch/control/history"
	"muster/launch/control/show"
	"muster/launch/rundir"
)

// newEventsCmd is "muster events".
func newEventsCmd(a *app) *cobra.Command {
	var follow bool
	var output string
	var page *pageFlags
	cmd := &cobra.Command{
		Use:   "events [-f] [-o json] [JOB]",
		Short: "Show what has happened to a job",
		Long: `Show what has happened to a job: how its phase has changed and why, which workers were
started and how they ended, and who has asked for a stop or a restart. The musters of this
machine are asked; of another node, ask there. Each keeps its last 4,096 events. Of a job
that has ended they are known for a day (--keep-runs), also where its muster was killed:
name it by its run id, or give no name for the last one where none runs.

-o json writes one object per line (docs/events.md).

` + jobHelp,
		Example:     "  muster events\n  muster events -f train-7 -o json",
		Annotations: map[string]string{exitAnnotation: jobsStatus},
		Args:        oneJob,
		RunE: func(cmd *cobra.Command, args []string) error {
			if output != "" && output != asJSON {
				return errhint.Usagef("-o %q: the only other form is json", output)
			}
			job, parts, err := a.jobAt(cmd.Context(), page, args)
			if err != nil && page.at != "" {
				return err
			}
			if err != nil {
				runs, last, err := a.kept().AskedOrLast(args, err)
				if err != nil {
					return err
				}
				if last {
					say(a.stderr, "no job runs here: this is what is kept of the last one, %s\n", printable.Output(runs[0].Status.RunID))
				}
				return a.showPast(runs, output == asJSON)
			}
			nodes := job.Answer.Nodes > 1 || len(parts) > 1
			feed := control.NewFeed(parts)
			if page.at == "" { // else it may be the page of a job on another machine
				feed.Kept, feed.Later = history.EventsOf, func(ctx context.Context) ([]control.Found, error) {
					found, _, err := a.findJobs(ctx, rundir.Name(job.RunID()))
					found = control.Parts(found, job)
					nodes = nodes || len(found) > 1
					return found, err
				}
			}
			err = feed.Each(cmd.Context(), follow, a.printEvents(output == asJSON, &nodes))
			if err == nil && follow {
				a.sayMusterEnded(job, page.at == "")
			}
			return err
		},
	}
	page = pageFlagsOf(cmd)
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on until the job ends")
	cmd.Flags().StringVarP(&output, "output", "o", "", "json: an object per line")
	fixedWords(cmd, map[string][]string{"output": {asJSON}})
	cmd.ValidArgsFunction = a.completeJob
	return cmd
}

// showPast shows what is kept of a job that has ended.
func (a *app) showPast(runs []history.Run, json bool) error {
	var found []control.Event
	for i := range runs {
		more, err := runs[i].Events()
		if err != nil {
			return err
		}
		found = append(found, more...)
	}
	control.SortEvents(found)
	nodes := len(runs) > 1 || runs[0].Status.Nodes > 1
	a.printEvents(json, &nodes)(found)
	if runs[0].Died {
		say(a.stderr, "%s\n", runs[0].When())
	}
	return nil
}

// printEvents prints events, each as JSON, or as lines for people, which name the nodes where there are several.
func (a *app) printEvents(asJSON bool, nodes *bool) func([]control.Event) {
	return func(found []control.Event) {
		if !asJSON {
			for _, line := range show.Events(found, *nodes) {
				say(a.stdout, "%s\n", line)
			}
			return
		}
		for i := range found {
			if text, err := json.Marshal(&found[i]); err == nil { // texts and numbers
				say(a.stdout, "%s\n", text)
			}
		}
	}
}
