package main

import (
	"context"

	"muster/internal/accel/probe"
	"muster/launch/job"
)

// acceleratorIDs are the ids of the accelerators that this node's workers see, by which it is known under another name,
// too: none where nodes are not checked, and where accelerators have none of their own.
func (a *app) acceleratorIDs(ctx context.Context, job *job.Job) []string {
	if !job.Check.On() {
		return nil
	}
	f := acceleratorFlags{spec: "auto", onReal: job.FakeOnReal, exec: probe.ExecNone}
	if job.Fake != "" {
		f.spec = "fake:" + job.Fake
	}
	here, err := f.look(ctx, a, 0)
	if err != nil {
		return nil // the node has a name, too
	}
	var ids []string
	for _, d := range here.inv.Visible {
		if d.UUID != "" {
			ids = append(ids, d.UUID)
		}
	}
	return ids
}
