package main

import (
	"context"

	"github.com/rs/zerolog"

	"muster/checkpointd"
	"muster/launch"
)

// checkpointService opens what keeps the checkpoints of a plan's workers.
func checkpointService(plan *launch.Plan, at reach, log zerolog.Logger) func(context.Context, string) (launch.Checkpoints, error) {
	return func(ctx context.Context, socket string) (launch.Checkpoints, error) {
		rules := plan.Job.Checkpoint
		cfg := checkpointd.Config{
			Socket: socket, RunID: plan.RunID, Workers: plan.Procs, Slots: rules.Slots, Keep: rules.Keep, Log: log,
		}
		if !plan.Job.Alone() {
			cfg.Token, cfg.Addr, cfg.Node, cfg.Replicas = at.token, at.addr, plan.Hostname, rules.Replicas
		}
		return checkpointd.Open(ctx, cfg)
	}
}
