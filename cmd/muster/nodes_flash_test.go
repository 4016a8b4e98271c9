package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"muster/checkpointd"
	"muster/internal/testutil"
)

// TestNodesFlashCheckpoint has three hosts keep their workers' states in memory, each on two of them. A worker dies, then a
// whole host, and the one that leads among them: each time all ranks go on from the same step in memory, and what is on
// disk at the end is the last.
func TestNodesFlashCheckpoint(t *testing.T) {
	testutil.Torch(t)
	t.Parallel()
	const steps = 60
	j := newNodes(t, 3, testScript(t, "nodes", "flash.py"))
	j.worker = append(j.worker, j.dir, fmt.Sprint(steps))
	token := filepath.Join(j.dir, "token")
	if err := os.WriteFile(token, []byte("a token of this job, long enough"), 0o600); err != nil {
		t.Fatal(err)
	}
	j.own = []string{"--ckpt=on", "--ckpt-replicas=2", "--token-file=" + token}
	j.flags = []string{
		"--nnodes=3", "--nproc-per-node=1", "--max-restarts=3", "--rdzv-backend=c10d", "--rdzv-endpoint=node1:29400", "--rdzv-id=flash",
	}
	restored := func() (all []string) {
		for _, a := range j.agents {
			for line := range strings.Lines(a.out.String()) {
				if at := strings.Index(line, "restored "); at >= 0 {
					all = append(all, strings.TrimSpace(line[at:]))
				}
			}
		}
		return all
	}
	begins := func(what string, step, times int) {
		t.Helper()
		testutil.Eventually(t, time.Minute, what, func() bool { return len(restored()) == times })
		j.hold(step + 10)
		testutil.Eventually(t, time.Minute, what+", and trains", func() bool { return j.step() == step+10 })
		time.Sleep(time.Second) // for the copies; a copy that is late is no failure, but an older step
	}
	j.hold(10)
	for host := range 3 {
		j.start(host, "muster")
	}
	begins("the job starts", 0, 3)
	j.killWorker(2)
	begins("a worker was killed", 10, 6)
	j.hosts[2].PowerOff()
	j.hosts[2].Boot()
	j.start(2, "muster")
	begins("a host was lost", 20, 9)
	j.hosts[0].PowerOff()
	j.hosts[0].Boot()
	j.start(0, "muster")
	begins("the host that leads was lost", 30, 12)
	j.release()
	for _, a := range j.agents {
		if !a.Host().Off() {
			select {
			case <-a.Ended():
			case <-time.After(time.Minute):
				t.Fatalf("the agent on %s does not end", a.Host().Name)
			}
		}
	}
	for i, line := range restored() {
		var step, rank int
		var source string
		if _, err := fmt.Sscanf(line, "restored %d %s rank %d", &step, &source, &rank); err != nil {
			t.Fatal(err)
		}
		if source == "disk" || source == "none" && step != -1 {
			t.Errorf("%d: %s", i, line)
		}
	}
	found, err := checkpointd.List(filepath.Join(j.dir, "ckpt"))
	if err != nil || len(found) == 0 || found[0].Step != steps || found[0].Verify() != nil || len(found[0].Files) != 3 {
		t.Fatalf("on disk: %+v: %v", found, err)
	}
	for _, h := range j.hosts {
		if left := h.Processes(); len(left) > 0 {
			t.Errorf("left on %s: %v", h.Name, left)
		}
	}
}
