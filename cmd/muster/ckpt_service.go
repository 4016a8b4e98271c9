package main

import (
	"context"

	"github.com/rs/zerolog"

	"muster/checkpointd"
	"muster/launch"
)

// checkpointService opens what keeps the checkpoints of a plan's workers.
func checkpointService(plan *launch.Plan, log zerolog.Logger) func(context.Context, string) (launch.Checkpoints, error) {
	return func(ctx context.Context, socket string) (launch.Checkpoints, error) {
		rules := plan.Job.Checkpoint
		return checkpointd.Open(ctx, checkpointd.Config{
			Socket: socket, RunID: plan.RunID, Workers: plan.Procs, Slots: rules.Slots, Keep: rules.Keep, Log: log,
		})
	}
}
