package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"muster/internal/errhint"
	"muster/launch/control"
)

// logsOptions are those of muster logs.
type logsOptions struct {
	follow, previous bool
	ranks            string
	tail             int
}

// newLogsCmd is "muster logs".
func newLogsCmd(a *app) *cobra.Command {
	o := logsOptions{tail: -1}
	cmd := &cobra.Command{
		Use:   "logs [-f] [--rank LIST] [--previous] [--tail N] [JOB]",
		Short: "Show what the workers of a job have written",
		Long: `Show what the workers of a job on this machine have written to their log files: standard
output goes to standard output and standard error to standard error, with the rank in front
of each line where there are several. A job has such files where --redirects or --tee (or
--output-filename, --log-dir) were given.

` + jobHelp,
		Example:     "  muster logs -f --rank 3,7\n  muster logs --rank 0 --previous --tail 50",
		Annotations: map[string]string{exitAnnotation: jobsStatus},
		Args:        oneJob,
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("tail") && o.tail < 0 {
				return errhint.Usagef("--tail %d: give a number from 0", o.tail)
			}
			if o.follow && o.previous {
				return errhint.Usagef("cannot use -f and --previous together: what has ended writes nothing more")
			}
			return a.showLogs(cmd.Context(), args, o)
		},
	}
	cmd.Flags().BoolVarP(&o.follow, "follow", "f", false, "go on with what is written from now on, until the job ends")
	cmd.Flags().BoolVar(&o.previous, "previous", false, "of the process before the one that runs, or ran last")
	cmd.Flags().StringVar(&o.ranks, "rank", "", "of these ranks, such as 3 or 0,4-7; all that are here unless given")
	cmd.Flags().IntVar(&o.tail, "tail", -1, "begin with the last N lines of each file; all unless given")
	cmd.ValidArgsFunction = a.completeJob
	return cmd
}

// showLogs is muster logs.
func (a *app) showLogs(ctx context.Context, args []string, o logsOptions) error {
	job, parts, err := a.pickJob(ctx, args)
	if err != nil {
		return err
	}
	here := ranksOf(parts)
	wanted := here
	if o.ranks != "" {
		numbers, err := parseRanks(o.ranks)
		if err != nil {
			return err
		}
		wanted = nil
		for _, n := range numbers {
			i := slices.IndexFunc(here, func(r hereRank) bool { return r.Rank.Rank == n })
			if i < 0 {
				return a.noRank(ctx, job, n, here)
			}
			wanted = append(wanted, here[i])
		}
	}
	if len(wanted) == 0 {
		return a.noRank(ctx, job, 0, nil)
	}
	var logs control.Logs
	defer func() { logs.Close() }()
	for _, r := range wanted {
		l := &control.RankLogs{
			Ask: r.by.Client().Rank, RunID: r.by.RunID(), Rank: r.Rank.Rank, Tail: o.tail, Stdout: a.stdout,
			Stderr: a.stderr,
		}
		if len(wanted) > 1 {
			l.Prefix = fmt.Appendf(nil, "[rank %d] ", r.Rank.Rank)
		}
		if err := l.Open(ctx, o.previous); err != nil {
			return err
		}
		logs = append(logs, l)
	}
	return logs.Show(ctx, o.follow)
}
