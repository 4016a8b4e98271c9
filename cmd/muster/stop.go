package main

import (
	"context"

	"github.com/spf13/cobra"

	"muster/launch/control"
)

// newStopCmd is "muster stop".
func newStopCmd(a *app) *cobra.Command {
	var now bool
	var page *pageFlags
	cmd := &cobra.Command{
		Use:   "stop [--now] [JOB]",
		Short: "Stop a job on all its nodes",
		Long: `Stop a job on all its nodes, as SIGTERM to each of their musters would: workers get SIGTERM,
and SIGKILL after --grace. Any node of the job can be asked. The job ends with status
143. muster stop does not wait for that; muster status --watch shows it.

` + jobHelp,
		Annotations: map[string]string{exitAnnotation: jobsStatus},
		Args:        oneJob,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.steer(cmd.Context(), page, args, control.Request{
				What: control.StopRequested, Wanted: control.Wanted{Now: now},
			})
		},
	}
	cmd.Flags().BoolVar(&now, "now", false, "without grace: workers get SIGKILL; also for a job that is being stopped")
	page = pageFlagsOf(cmd)
	cmd.ValidArgsFunction = a.completeJob
	return cmd
}

// newRestartCmd is "muster restart".
func newRestartCmd(a *app) *cobra.Command {
	var page *pageFlags
	cmd := &cobra.Command{
		Use:   "restart [JOB]",
		Short: "Restart all workers of a job",
		Long: `Restart all workers of a job that run: they are stopped as by muster stop, and start again in
a new round. No restart is counted, so that --max-restarts is not used up.

` + jobHelp,
		Annotations: map[string]string{exitAnnotation: jobsStatus},
		Args:        oneJob,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.steer(cmd.Context(), page, args, control.Request{What: control.RestartRequested})
		},
	}
	page = pageFlagsOf(cmd)
	cmd.ValidArgsFunction = a.completeJob
	return cmd
}

// steer asks the job that the arguments name for a change, and prints what follows.
func (a *app) steer(ctx context.Context, page *pageFlags, args []string, r control.Request) error {
	job, _, err := a.runningJob(ctx, page, args)
	if err != nil {
		return err
	}
	sentence, err := job.Client().Do(ctx, r)
	if err != nil {
		return err
	}
	say(a.stdout, "%s: %s\n", job.RunID(), sentence)
	return nil
}
