package here

import (
	"cmp"
	"context"
	"os"

	"github.com/rs/zerolog"

	"muster/checkpointd"
	"muster/internal/platform"
	"muster/internal/preempt"
	"muster/launch"
	"muster/launch/job"
	"muster/launch/plan"
	"muster/rendezvous/place"
)

// MemoryDir is where checkpoints lie that outlive a muster that is killed.
func (h *Here) MemoryDir() string {
	return cmp.Or(h.Getenv("MUSTER_CKPT_MEMORY"), checkpointd.DefaultMemory)
}

// checkpointService opens what keeps the checkpoints of a plan's workers.
func checkpointService(plan *plan.Plan, at place.Reach, memory string, log zerolog.Logger) func(context.Context,
	string, launch.CheckpointEvents) (launch.Checkpoints, error) {
	return func(ctx context.Context, socket string, told launch.CheckpointEvents) (launch.Checkpoints, error) {
		rules := plan.Job.Checkpoint
		cfg := checkpointd.Config{
			Socket: socket, RunID: plan.RunID, Workers: plan.Procs, Slots: rules.Slots, Keep: rules.Keep, Rate: rules.Rate,
			Dir: plan.CheckpointDir(), Log: log, Committed: told.Committed, Saved: told.Saved,
		}
		if plan.CheckpointsOutlive() {
			cfg.Memory = memory
		}
		if !plan.Job.Alone() {
			cfg.Several, cfg.Token, cfg.Addr, cfg.Node, cfg.Replicas = true, at.Token, at.Addr, plan.Hostname, rules.Replicas
		}
		return checkpointd.Open(ctx, cfg)
	}
}

// notices are what the agent hears from that this machine will be taken away.
func (h *Here) notices(rules job.CheckpointRules, in *launch.Interrupts) (sources []*preempt.Source) {
	if !rules.On {
		return nil
	}
	if rules.Signal != 0 {
		sources = append(sources, preempt.Signals(in.Save))
	}
	if rules.OnFile != "" {
		sources = append(sources, preempt.File(rules.OnFile))
	}
	if rules.OnCommand != "" {
		sources = append(sources, preempt.Command(rules.OnCommand, job.ShownText(rules.OnCommand), h.Environ))
	}
	if !rules.Unasked {
		sources = append(sources, preempt.Cloud(platform.Cloud(os.DirFS("/")), preempt.Metadata)...)
	}
	return sources
}
