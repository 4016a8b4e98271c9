package main

import (
	"github.com/spf13/cobra"

	"muster/launch/control"
)

// newMetricsCmd is "muster metrics".
func newMetricsCmd(a *app) *cobra.Command {
	var world bool
	var page *pageFlags
	cmd := &cobra.Command{
		Use:   "metrics [--world] [JOB]",
		Short: "Print a job's metrics in the text format of Prometheus",
		Long: `Print what is known of a job in the text format of Prometheus (docs/metrics.md): of the job
as a whole, and of the ranks of this node. With --world the ranks of other nodes are there,
too, as far as they have told of themselves.

` + jobHelp,
		Example:     "  muster metrics | grep goodput\n  muster metrics train-7 >/var/lib/node_exporter/train-7.prom",
		Annotations: map[string]string{exitAnnotation: jobsStatus},
		Args:        oneJob,
		RunE: func(cmd *cobra.Command, args []string) error {
			job, _, err := a.runningJob(cmd.Context(), page, args)
			if err != nil {
				return err
			}
			scope := control.Node
			if world {
				scope = control.World
			}
			text, err := job.Client().Metrics(cmd.Context(), scope)
			if err != nil {
				return err
			}
			_, err = a.stdout.Write(text)
			return err
		},
	}
	page = pageFlagsOf(cmd)
	cmd.Flags().BoolVar(&world, "world", false, "the ranks of all nodes, and not of this one alone")
	cmd.ValidArgsFunction = a.completeJob
	return cmd
}
