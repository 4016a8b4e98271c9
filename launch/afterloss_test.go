package launch

import (
	"strings"
	"testing"

	"muster/launch/job"
	"muster/launch/report"
)

// TestAfterLoss: what follows of the loss of a node is said by the limits, then by the nodes that a round needs.
func TestAfterLoss(t *testing.T) {
	t.Parallel()
	for want, rules := range map[string]job.RestartRules{
		"the others go on":     {ReplaceLimit: -1, BackoffLimit: -1},
		"the job ends by its ": {ReplaceLimit: 1, BackoffLimit: -1},
		"the job ends by":      {ReplaceLimit: -1, BackoffLimit: 2},
		"the job ends":         {ReplaceLimit: -1, BackoffLimit: -1, LossLimit: 2},
	} {
		j := job.Job{Nodes: job.Range{Min: 2, Max: 3}, Restart: rules}
		d := report.Status{Nodes: 3, Replacements: 1, RestartCount: 1}
		if got := afterLoss(&j, &d); !strings.HasPrefix(got, want) {
			t.Errorf("%q does not begin with %q", got, want)
		}
	}
	for want, d := range map[string]struct{ least, nodes int }{
		"it is the last one: ": {1, 1},
		"a round needs 2 nodes: a node that waits or comes takes its place": {2, 2},
		"the other one goes on by its rules, unless":                        {1, 2},
		"the others go on": {1, 3},
	} {
		j := job.Job{Nodes: job.Range{Min: d.least, Max: 3}, Restart: job.RestartRules{ReplaceLimit: -1, BackoffLimit: -1}}
		if got := afterLoss(&j, &report.Status{Nodes: d.nodes}); !strings.HasPrefix(got, want) {
			t.Errorf("of %d nodes, at least %d: %q does not begin with %q", d.nodes, d.least, got, want)
		}
	}
}
