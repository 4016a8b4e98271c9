package accel

import (
	"fmt"

	"muster/internal/errhint"
)

// Share is what one worker has for itself.
type Share struct {
	Device Device            // that the worker's share is of
	Vars   map[string]string // the variables by which the worker sees nothing else
	How    string            // in a few words, for people
}

// ShareInstances gives each worker that Workers counts for "auto" a MIG instance of its own, by local rank: a CUDA process
// sees one instance and no more, the same one in every worker that inherits the same mask. It returns nil where workers
// share what they inherit.
func (inv Inventory) ShareInstances() ([]Share, error) {
	if n := inv.divided(); n == 0 || n < len(inv.Visible) {
		return nil, nil
	}
	var shares []Share
	for _, d := range inv.Visible {
		for _, in := range d.usableInstances() {
			if in.Mask == "" {
				return nil, undecided(errhint.Usagef("cannot give each worker a MIG instance of its own: the driver does not tell the UUID of GPU %d", d.Index))
			}
			shares = append(shares, Share{d, map[string]string{"CUDA_VISIBLE_DEVICES": in.Mask}, fmt.Sprintf("a MIG instance of GPU %d", d.Index)})
		}
	}
	return shares, nil
}
