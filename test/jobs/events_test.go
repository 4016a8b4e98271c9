package jobs

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"muster/launch/control"
	"muster/test/drive"
)

// TestEventsOfAllNodes: the file of --events has what happens on each node of a job that one muster starts, once, under
// the node's name, beside what the launcher itself tells.
func TestEventsOfAllNodes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	spec := filepath.Join(dir, "spec.yaml")
	if err := os.WriteFile(spec, []byte("version: 1\ndefaults: {count: 1}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	file := writeJob(t, `apiVersion: batch/v1
kind: Job
metadata: {name: j}
spec: {completions: 2, parallelism: 2, completionMode: Indexed, template: {spec: {containers: [{name: c, command: [sh, -c, "sleep 0.2"]}]}}}
`)
	worker := []string{"--", "sh", "-c", "sleep 0.2"}
	for name, c := range map[string]struct {
		args  []string
		nodes [2]string
	}{
		"rehearsal": {[]string{"-f", file}, [2]string{"127.0.0.1", "127.0.0.2"}},
		"simulation": {
			append([]string{"--simulate-nodes", "2", "--accelerator", "fake:" + spec, "-n", "1"}, worker...),
			[2]string{"node-0", "node-1"},
		},
		"hosts": {append([]string{"--hosts", "localhost,127.0.0.2", "-n", "1"}, worker...), [2]string{"localhost", "127.0.0.2"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(dir, name+".jsonl")
			got := drive.Run(t, nil, append([]string{"run", "--events", path}, c.args...)...)
			if got.Status != 0 {
				t.Fatalf("status %d\n%s", got.Status, got.Stderr)
			}
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			seen, counts := map[string]bool{}, map[string]int{}
			for line := range strings.Lines(string(text)) {
				var e control.Event
				if err := json.Unmarshal([]byte(line), &e); err != nil || e.RunID == "" || e.Version != 1 {
					t.Errorf("%v: %s", err, line)
				}
				if id := fmt.Sprint(e.Node, " ", e.Seq); seen[id] {
					t.Errorf("twice: %s", line)
				} else {
					seen[id] = true
				}
				counts[e.Node+" "+string(e.Type)]++
			}
			for _, node := range c.nodes {
				if counts[node+" WorkerStarted"] != 1 || counts[node+" WorkerExited"] != 1 || counts[node+" PhaseChanged"] == 0 {
					t.Errorf("node %s: %v\n%s", node, counts, text)
				}
			}
			if counts[" PhaseChanged"] == 0 || counts[" WorkerStarted"] != 0 {
				t.Errorf("the launcher: %v", counts)
			}
		})
	}
}
