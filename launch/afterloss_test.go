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
}
