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
	ranks, node      string
	tail             int
}

// newLogsCmd is "muster logs".
func newLogsCmd(a *app) *cobra.Command {
	o := logsOptions{tail: -1}
	cmd := &cobra.Command{
		Use:   "logs [-f] [--rank LIST | --node NODE] [--previous] [--tail N] [JOB]",
		Short: "Show what the workers of a job have written",
		Long: `Show what workers of a job have written to their log files: standard output goes to standard
output and standard error to standard error, with the rank in front of each line where there
are several. A job has such files where --redirects or --tee (or --output-filename,
--log-dir) were given.

Of ranks on other nodes the muster there is asked, by the muster of this one; no disk is
shared. That takes a job token (--token-file), or a launcher of --hosts.

` + jobHelp,
		Example:     "  muster logs -f --rank 3,7\n  muster logs --node 2 --previous\n  muster logs --rank 0 --previous --tail 50",
		Annotations: map[string]string{exitAnnotation: jobsStatus},
		Args:        oneJob,
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("tail") && o.tail < 0 {
				return errhint.Usagef("--tail %d: give a number from 0", o.tail)
			}
			if o.follow && o.previous {
				return errhint.Usagef("cannot use -f and --previous together: what has ended writes nothing more")
			}
			if o.ranks != "" && o.node != "" {
				return errhint.Usagef("cannot use --rank and --node together: give one of them")
			}
			return a.showLogs(cmd.Context(), args, o)
		},
	}
	cmd.Flags().BoolVarP(&o.follow, "follow", "f", false, "go on with what is written from now on, until the job ends")
	cmd.Flags().BoolVar(&o.previous, "previous", false, "of the process before the one that runs, or ran last")
	cmd.Flags().StringVar(&o.ranks, "rank", "", "of these ranks, such as 3 or 0,4-7; all that are here unless given")
	cmd.Flags().StringVar(&o.node, "node", "", "of all ranks of this node, by its group rank or its name")
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
	wanted, err := wantedRanks(ctx, job, here, o)
	if err != nil {
		return err
	}
	show := &logShow{client: job.Client(), o: o, prefix: len(wanted) > 1, stdout: a.stdout, stderr: a.stderr}
	defer func() { show.here.Close() }()
	var away []int
	for _, n := range wanted {
		i := slices.IndexFunc(here, func(r hereRank) bool { return r.Rank.Rank == n })
		if i < 0 {
			away = append(away, n)
			continue
		}
		l := &control.RankLogs{
			Ask: here[i].by.Client().Rank, RunID: here[i].by.RunID(), Rank: n, Tail: o.tail, Stdout: lines{show, a.stdout},
			Stderr: lines{show, a.stderr},
		}
		if show.prefix {
			l.Prefix = fmt.Appendf(nil, "[rank %d] ", n)
		}
		if err := l.Open(ctx, o.previous); err != nil {
			return err
		}
		show.here = append(show.here, l)
	}
	if len(away) > 0 {
		d, err := job.Client().Status(ctx, control.World)
		if err != nil {
			return err
		}
		if show.far, err = elsewhere(job, &d, away, here); err != nil {
			return err
		}
	}
	return show.show(ctx)
}

// wantedRanks are the ranks that muster logs is asked for: those that are here where none are named.
func wantedRanks(ctx context.Context, job control.Found, here []hereRank, o logsOptions) ([]int, error) {
	switch {
	case o.ranks != "":
		return parseRanks(o.ranks)
	case o.node != "":
		d, err := job.Client().Status(ctx, control.World)
		if err != nil {
			return nil, err
		}
		return ranksOn(&d, o.node)
	case len(here) == 0:
		return nil, errhint.With(errhint.Usagef("job %s has no worker on this machine (%s)", job.RunID(), job.Answer.Phase),
			"name ranks of other nodes by --rank, or a node by --node")
	}
	var ranks []int
	for _, r := range here {
		ranks = append(ranks, r.Rank.Rank)
	}
	return slices.Compact(ranks), nil
}
