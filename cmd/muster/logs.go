package main

import (
	"github.com/spf13/cobra"

	"muster/internal/errhint"
	"muster/launch/control/ranks"
)

// newLogsCmd is "muster logs".
func newLogsCmd(a *app) *cobra.Command {
	o := ranks.Logs{Stdout: a.stdout, Stderr: a.stderr}
	cmd := &cobra.Command{
		Use:   "logs [-f] [--rank LIST | --node NODE] [--previous] [--tail N] [JOB]",
		Short: "Show what the workers of a job have written",
		Long: `Show what workers of a job have written to their log files: standard output goes to standard
output and standard error to standard error, with the rank in front of each line where there
are several. A job has such files where --redirects or --tee (or --output-filename,
--log-dir) were given. Of a job that has ended it tells where they are, for a day
(--keep-runs).

Of ranks on other nodes the muster there is asked, by the muster of this one; no disk is
shared. That takes a job token (--token-file), or a launcher of --hosts.

` + jobHelp,
		Example:     "  muster logs -f --rank 3,7\n  muster logs --node 2 --previous\n  muster logs --rank 0 --previous --tail 50",
		Annotations: map[string]string{exitAnnotation: jobsStatus},
		Args:        oneJob,
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("tail") && o.Tail < 0 {
				return errhint.Usagef("--tail %d: give a number from 0", o.Tail)
			}
			if err := o.Check(); err != nil {
				return err
			}
			job, parts, err := a.pickJob(cmd.Context(), args)
			if err != nil {
				return a.kept().SayLogs(args, err)
			}
			return o.Show(cmd.Context(), job, parts)
		},
	}
	cmd.Flags().BoolVarP(&o.Follow, "follow", "f", false, "go on with what is written from now on, until the job ends")
	cmd.Flags().BoolVar(&o.Previous, "previous", false, "of the process before the one that runs, or ran last")
	cmd.Flags().StringVar(&o.Ranks, "rank", "", "of these ranks, such as 3 or 0,4-7; all that are here unless given")
	cmd.Flags().StringVar(&o.Node, "node", "", "of all ranks of this node, by its group rank or its name")
	cmd.Flags().IntVar(&o.Tail, "tail", -1, "begin with the last N lines of each file; all unless given")
	cmd.ValidArgsFunction = a.completeJob
	return cmd
}
