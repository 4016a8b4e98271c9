package node

import (
	"bytes"
	"encoding/json"
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
	switchOn(&p, []string{
		"network_check", "exclude_straggler", "comm_perf_test", "save_at_breakpoint", "numa_affinity", "auto_config", "auto_tunning", "new",
	}, zerolog.New(&log))
	if c := p.Job.Check; !c.Network || !c.ExcludeStraggler || !c.CommPerf {
		t.Errorf("%+v", c)
	}
	for line := range strings.SplitSeq(strings.TrimSpace(log.String()), "\n") {
		var l struct{ Option, Message, Reason string }
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Fatal(err)
		}
		want := map[string]string{
			"numa_affinity": "--numa-affinity", "auto_config": "--auto-config", "auto_tunning": "ParallelConfig", "new": "does not know it",
		}[l.Option]
		if told := strings.HasSuffix(l.Message, "without effect"); told != (want != "") || !strings.Contains(l.Reason, want) {
			t.Error(line)
		}
	}
	if n := strings.Count(log.String(), `"option"`); n != 8 {
		t.Errorf("%d lines for 8 options:\n%s", n, log.String())
	}
	log.Reset()
	p.Job.Bind.Mode = "node"
	switchOn(&p, []string{"numa_affinity"}, zerolog.New(&log))
	if strings.Contains(log.String(), "without") {
		t.Errorf("workers are bound: %s", log.String())
	}
}
