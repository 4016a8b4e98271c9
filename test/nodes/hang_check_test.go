package nodes

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"muster/internal/testutil"
	"muster/test/drive"
)

// pausesOnce has a worker wait where nobody sees what for, once.
const pausesOnce = `import os, signal, sys, time
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0": signal.pause()
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "1":
    open(os.path.join(sys.argv[1], os.environ["RANK"]), "w").close()
    while len(os.listdir(sys.argv[1])) < 2:  # a round that is over before a node has begun it shows no check there
        print("alone", flush=True)
        time.sleep(.1)
    sys.exit(7)
`

// TestHangIsFollowedByCheck: a job that does not check its node does so before it starts again after a hang for which no
// cause was found, once, and says so in its log and its events.
func TestHangIsFollowedByCheck(t *testing.T) {
	t.Parallel()
	events := filepath.Join(t.TempDir(), "events")
	j := drive.Start(t, nil, "run", "-n", "2", "--hang-timeout", "2s", "--on-hang", "restart", "--stacks", "off", "--max-restarts", "2",
		"--grace", "1s", "--events", events, "--", "python3", "-c", pausesOnce, t.TempDir())
	got := j.End()
	got.Expect(t, 0, "the workers hung, and no cause was found: the nodes are checked before they start again")
	text, err := os.ReadFile(events)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(text), `"type":"Check`); n != 1 {
		t.Errorf("checked %d times:\n%s", n, text)
	}
}

// TestNodesHangIsFollowedByCheck: all nodes check each other in the same round then.
func TestNodesHangIsFollowedByCheck(t *testing.T) {
	python := testutil.Torch(t)
	t.Parallel()
	j := newNodes(t, 2, "--no-python", python, "-c", pausesOnce, t.TempDir())
	events := filepath.Join(j.dir, "events")
	j.own = []string{"--hang-timeout=2s", "--on-hang=restart", "--stacks=off", "--grace=1s"}
	j.flags = []string{
		"--nnodes=2", "--nproc-per-node=1", "--max-restarts=2", "--rdzv-backend=c10d", "--rdzv-endpoint=node1:29400", "--rdzv-id=check",
	}
	for host, name := range []string{"0", "1"} {
		j.own = append(j.own, "--events="+events+name)
		j.start(host, "muster")
	}
	for host := range 2 {
		j.ends(j.agentOn(host), 2*time.Minute, 0)
	}
	for host, name := range []string{"0", "1"} {
		text, err := os.ReadFile(events + name)
		if err != nil || strings.Count(string(text), `"type":"Check`) != 1 ||
			!strings.Contains(string(text), `"message":"after a hang for which no cause was found"`) {
			t.Errorf("events on host %d: %v\n%s", host, err, text)
		}
		if said := j.agentOn(host).err.String(); !strings.Contains(said, "check of this node") {
			t.Errorf("host %d was not checked:\n%s", host, said)
		}
	}
}
