package nodes

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"muster/internal/testutil"
	"muster/launch/control"
	"muster/launch/diagnose"
	"muster/test/drive"
)

// TestNodesHang has a rank on the second host sleep while the others wait for it in a collective of gloo. Both hosts
// say so when they are asked, the hang is explained with the rank's node and line, and the workers that start again go
// on to their end.
func TestNodesHang(t *testing.T) {
	testutil.Torch(t)
	t.Parallel()
	j := newNodes(t, 2, drive.Script(t, "hang.py"))
	ready, logs := filepath.Join(j.dir, "ready"), filepath.Join(j.dir, "logs")
	j.worker = append(j.worker, "sleep", ready)
	j.own = append([]string{"--hang-timeout=20s", "--on-hang=dump,restart", "--grace=1s"}, drive.Warm("torch")...)
	j.flags = []string{
		"--nnodes=2", "--nproc-per-node=1", "--max-restarts=1", "--rdzv-backend=c10d", "--rdzv-endpoint=node1:29400", "--rdzv-id=hang",
		"--log-dir=" + logs, "--redirects=3",
	}
	for host := range 2 {
		j.start(host, "muster")
	}
	testutil.Eventually(t, time.Minute, "the ranks have met", func() bool {
		_, err := os.Stat(ready + ".0")
		return err == nil
	})
	ask := func(host int, args ...string) (string, error) {
		out, err := j.hosts[host].Command("muster", args...).Output()
		return string(out), err
	}
	var culprit string // the node of rank 1
	for host := range 2 {
		testutil.Eventually(t, 20*time.Second, "the rank that does not come is named", func() bool {
			var v struct {
				diagnose.Verdict
				control.Looked
			}
			out, err := ask(host, "diagnose", "-o", "json")
			if err != nil || json.Unmarshal([]byte(out), &v) != nil || v.Kind != diagnose.Sleeps {
				return false
			}
			culprit = v.Nodes[1].Node
			if len(v.Nodes) != 2 || len(v.Missing) > 0 || v.Nodes[1].Ranks[0].Rank != 1 || !slices.Equal(v.Culprits, []int{1}) ||
				!strings.Contains(v.Sentence, "rank 1 on node "+culprit+" has not come to all_reduce: it sleeps at hang.py:") ||
				!strings.Contains(v.Sentence, "in never_comes (time.sleep(3600)); rank 0 waits for it in all_reduce") {
				t.Errorf("asked on host %d: %s", host, out)
			}
			return true
		})
		out, err := ask(host, "stacks")
		if err != nil || !strings.Contains(out, "rank 0, main thread:\n") || !strings.Contains(out,
			"rank 1, main thread:\n    never_comes (") {
			t.Errorf("asked on host %d: %v\n%s", host, err, out)
		}
	}
	if err := os.WriteFile(ready+".again", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for host := range 2 {
		j.ends(j.agentOn(host), time.Minute, 0)
	}
	var explained int
	for _, a := range j.agents {
		said := a.err.String()
		explained += strings.Count(said, "rank 1 on node "+culprit+" has not come to all_reduce: it sleeps at hang.py:")
		if !strings.Contains(said, "no worker has shown a sign of life for 2") {
			t.Errorf("the node does not say why the workers start again:\n%s", said)
		}
	}
	if explained < 2 {
		t.Errorf("it is explained %d times", explained)
	}
	kept, err := filepath.Glob(filepath.Join(logs, "*", "hangs", "*.json"))
	if err != nil || len(kept) != 1 {
		t.Fatalf("%q %v", kept, err)
	}
	var whole control.Looked
	text, err := os.ReadFile(kept[0])
	if err != nil || json.Unmarshal(text, &whole) != nil || len(whole.Nodes) != 2 || len(whole.Missing) > 0 {
		t.Errorf("%v %s", err, text)
	}
}
