package main

import (
	"github.com/spf13/cobra"

	"muster/internal/errhint"
	"muster/launch/control"
)

// newPauseCmd is "muster pause".
func newPauseCmd(a *app) *cobra.Command {
	var page *pageFlags
	cmd := &cobra.Command{
		Use:   "pause [JOB]",
		Short: "End the workers of a job, and keep all else until muster resume",
		Long: `Pause a job: the workers of all nodes get SIGTERM, and SIGKILL after --grace. The nodes keep
together, with their memory for checkpoints and what is left of --max-restarts; what workers
have saved to memory is written to disk. A deadline does not run meanwhile. Any node of the job
can be asked, in each phase: a job that starts or restarts pauses before its workers run.

` + jobHelp,
		Annotations: map[string]string{exitAnnotation: jobsStatus},
		Args:        oneJob,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.steer(cmd.Context(), page, args, control.Request{What: control.PauseRequested})
		},
	}
	page = pageFlagsOf(cmd)
	cmd.ValidArgsFunction = a.completeJob
	return cmd
}

// newResumeCmd is "muster resume".
func newResumeCmd(a *app) *cobra.Command {
	var page *pageFlags
	cmd := &cobra.Command{
		Use:   "resume [JOB] [-- COMMAND [ARGUMENTS]]",
		Short: "Start the workers of a paused job again, by another command if one is given",
		Long: `Start the workers of a paused job again, in a new round. A command takes the place of the
program and its arguments on all nodes, for this start and those that follow. It is written
as behind the flags of the command line that has started the job: for a script, the script
and its arguments. Where a node cannot run it, as it lacks a file, the job stays paused.

` + jobHelp,
		Example:     "  muster resume\n  muster resume train-7 -- train.py --lr 0.1",
		Annotations: map[string]string{exitAnnotation: jobsStatus},
		Args: func(cmd *cobra.Command, args []string) error {
			names, words := beforeDash(cmd, args)
			if words != nil && (len(words) == 0 || words[0] == "") {
				return errhint.With(errhint.Usagef("there is no command behind --"), "leave -- out to run what ran before")
			}
			return oneJob(cmd, names)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			names, words := beforeDash(cmd, args)
			return a.steer(cmd.Context(), page, names, control.Request{
				What: control.ResumeRequested, Wanted: control.Wanted{Command: words},
			})
		},
	}
	page = pageFlagsOf(cmd)
	cmd.ValidArgsFunction = a.completeJob
	return cmd
}

// beforeDash are the arguments in front of "--" and those behind it, nil where there is none.
func beforeDash(cmd *cobra.Command, args []string) (before, behind []string) {
	if n := cmd.ArgsLenAtDash(); n >= 0 {
		return args[:n], append([]string{}, args[n:]...)
	}
	return args, nil
}
