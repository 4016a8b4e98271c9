package main

import (
	"strconv"

	"github.com/spf13/cobra"

	"muster/internal/errhint"
	"muster/launch/control"
)

// newScaleCmd is "muster scale".
func newScaleCmd(a *app) *cobra.Command {
	var page *pageFlags
	cmd := &cobra.Command{
		Use:   "scale N [JOB]",
		Short: "Have an elastic job go on with N nodes",
		Long: `Have a job with --nnodes MIN:MAX go on with N nodes. Where it has more, those with the highest
group ranks stop their workers and leave with exit status 0, and the others meet again; the
nodes that serve the store and coordinate stay. Where it has fewer, spare nodes join; the launcher
of --simulate-nodes starts more, and that of --hosts those that have left. Else the answer says
what to call on a new machine. Of an AITrainingJob (muster run -f) N is how many trainers the
launcher finds.

` + jobHelp,
		Annotations: map[string]string{exitAnnotation: jobsStatus},
		Args:        behindOne("a number of nodes"),
		RunE: func(cmd *cobra.Command, args []string) error {
			n, err := strconv.Atoi(args[0])
			if err != nil || n < 1 {
				return errhint.With(errhint.Usagef("%q is no number of nodes", args[0]), "muster scale N [JOB]")
			}
			return a.steer(cmd.Context(), page, args[1:], control.Request{
				What: control.ScaleRequested, Wanted: control.Wanted{Nodes: n},
			})
		},
	}
	page = pageFlagsOf(cmd)
	cmd.ValidArgsFunction = a.completeJobBehindOne
	return cmd
}

// newKillNodeCmd is "muster kill-node".
func newKillNodeCmd(a *app) *cobra.Command {
	var page *pageFlags
	cmd := &cobra.Command{
		Use:   "kill-node NODE [JOB]",
		Short: "Rehearse the loss of a node",
		Long: `Rehearse the loss of a node: its muster kills itself by SIGKILL without a word to the others,
and its guardian ends the workers. The others notice that, and go on by their rules, as when
the machine were lost. NODE is the node's group rank or its name (muster status), of a job file
(muster run -f) also its replica, such as train-worker-1, worker-1 or master. Of an elastic job
of Horovod it is a host, and of an AITrainingJob a trainer, in whose place another one comes as
the file says.

` + jobHelp,
		Annotations: map[string]string{exitAnnotation: jobsStatus},
		Args:        behindOne("a node"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.steer(cmd.Context(), page, args[1:], control.Request{
				What: control.KillRequested, Wanted: control.Wanted{Node: args[0]},
			})
		},
	}
	page = pageFlagsOf(cmd)
	cmd.ValidArgsFunction = a.completeJobBehindOne
	return cmd
}

// behindOne takes one argument, called what, and the name of a job behind it, or none.
func behindOne(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 || args[0] == "" {
			return errhint.With(errhint.Usagef("%s needs %s", cmd.CommandPath(), what), cmd.UseLine())
		}
		return oneJob(cmd, args[1:])
	}
}

// completeJobBehindOne completes the name of a job behind the first argument.
func (a *app) completeJobBehindOne(cmd *cobra.Command, args []string, part string) ([]string, cobra.ShellCompDirective) {
	if len(args) != 1 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.completeJob(cmd, nil, part)
}
