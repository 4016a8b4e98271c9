package node

import (
	"bytes"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"muster/launch/plan"
)

// TestSwitchOn: what a master of DLRover switches on for all nodes is done, and what cannot be is told.
func TestSwitchOn(t *testing.T) {
	t.Parallel()
	var p plan.Plan
	var log bytes.Buffer
	switchOn(&p, []string{"network_check", "exclude_straggler", "comm_perf_test", "numa_affinity"}, zerolog.New(&log))
	if c := p.Job.Check; !c.Network || !c.ExcludeStraggler || !c.CommPerf {
		t.Errorf("%+v", c)
	}
	if text := log.String(); strings.Count(text, "without effect") != 1 || !strings.Contains(text, `"option":"numa_affinity"`) {
		t.Errorf("%s", text)
	}
}
