package main

import (
	"context"

	"muster/launch/job"
)

// acceleratorIDs are the ids of the accelerators that this node's workers see, by which it is known under another name,
// too: none where nodes are not checked, and where accelerators have none of their own.
func (a *app) acceleratorIDs(ctx context.Context, job *job.Job) []string {
	if !job.Check.On() {
		return nil
	}
	here, err := a.onFiles(ctx, job)
	if err != nil {
		return nil // the node has a name, too
	}
	var ids []string
	for _, d := range here.Inventory.Visible {
		if d.UUID != "" {
			ids = append(ids, d.UUID)
		}
	}
	return ids
}
