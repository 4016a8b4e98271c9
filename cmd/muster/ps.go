package main

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"muster/internal/errhint"
	"muster/launch/control"
	"muster/launch/control/history"
	"muster/launch/control/show"
)

// newPsCmd is "muster ps".
func newPsCmd(a *app) *cobra.Command {
	var output string
	var ended bool
	var page *pageFlags
	cmd := &cobra.Command{
		Use:   "ps [-a] [-o json]",
		Short: "List the jobs of this user that run on this machine",
		Long: `List the jobs of this user whose muster runs on this machine. A job whose launcher runs here,
or several of its nodes, is listed once. A muster that does not answer within 5 s is listed
as such, and so is the run directory of one that was killed.

With -a jobs that have ended follow, the newest first, with their exit status or as died;
each is known for a day (--keep-runs). So do nodes that were lost or have left, by their
names, while others of their job go on here.

Jobs are found in the run directories below XDG_RUNTIME_DIR, TMPDIR and /tmp.`,
		Annotations: map[string]string{exitAnnotation: "  0  done, also where no job runs\n" +
			"  2  usage error, or the run directories cannot be read\n"},
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "" && output != "json" {
				return errhint.Usagef("-o %q: the only other form is json", output)
			}
			jobs, where, err := a.listJobs(cmd.Context(), page)
			if err != nil {
				return err
			}
			slices.SortStableFunc(jobs, func(x, y control.Found) int { return cmp.Compare(x.RunID(), y.RunID()) })
			var past []history.Run
			if ended {
				past = history.Jobs(history.Runs(a.kept()))
			}
			if output == "json" {
				return writeJSON(a.stdout, show.JobList(jobs, past))
			}
			if len(jobs) == 0 && len(past) == 0 {
				say(a.stderr, "no job of yours runs here: it was looked for in %s\n", where)
				return nil
			}
			return show.Jobs(a.stdout, jobs, past, time.Now())
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "json: a list of objects")
	cmd.Flags().BoolVarP(&ended, "all", "a", false, "those that have ended, too")
	page = pageFlagsOf(cmd)
	cmd.MarkFlagsMutuallyExclusive("all", "at")
	fixedWords(cmd, map[string][]string{"output": {"json"}})
	return cmd
}

// listJobs are the jobs of this machine, or the one at a page. where says for people where they were looked for.
func (a *app) listJobs(ctx context.Context, page *pageFlags) (jobs []control.Found, where string, err error) {
	c, err := a.pageClient(page)
	if err != nil {
		return nil, "", err
	}
	if c != nil {
		job, err := control.FindAt(ctx, c, "")
		return []control.Found{job}, page.at, err
	}
	found, where, err := a.findJobs(ctx)
	jobs = control.Jobs(found)
	control.Whole(ctx, jobs)
	return jobs, where, err
}
