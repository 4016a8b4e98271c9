package policy

import (
	"testing"

	"muster/launch/job"
)

// TestNodeKey: the node of a worker that failed stands under another key than one that has seen the loss of another.
func TestNodeKey(t *testing.T) {
	t.Parallel()
	for want, d := range map[string]Decision{
		"node":       {Verdict: Restart, Rank: 3},
		"decided_by": {Verdict: Reassemble, Rank: -1, Reason: "NodeLost", Node: "node-2"},
		"":           {Verdict: Reassemble, Rank: -1, Reason: job.ReasonScaled, Node: "node-2"},
	} {
		if got := d.NodeKey(); got != want {
			t.Errorf("%+v: %q, want %q", d, got, want)
		}
	}
}
