package meet

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"muster/internal/errhint"
	"muster/internal/testutil"
	"muster/test/drive"
)

// TestExcludedNodeComesBack has a platform start an excluded node again at once: it waits until its quarantine is over,
// and leaves after a check at the door. The others are stopped once, for a healthy node.
func TestExcludedNodeComesBack(t *testing.T) {
	t.Parallel()
	spec := filepath.Join(t.TempDir(), "spec.yaml")
	text := "version: 1\ndefaults:\n  count: 1\n  model: NVIDIA H100 80GB HBM3\n  faults: [{kind: no-torch}]\nnodes:\n" +
		"  node-2: {faults: [{kind: no-torch}, {kind: remap-failed, gpu: 0}]}\n"
	if err := os.WriteFile(spec, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	m := drive.NewMeet(t, `until [ -e "$OUT/stop" ] && [ "$WORLD_SIZE" = 3 ]; do sleep 0.05; done`)
	m.Native = true
	m.Flags = []string{
		"--nnodes=2:3", "--nproc-per-node=1", "--rdzv=muster://127.0.0.1:" + drive.FreePort(t), "--run-id=back", "--last-call=3s",
		"--network-check", "--quarantine=30s", // a round, a start and an examination may take 10 s of it
		"--log-level=info",
	}
	join := func(node int) *drive.Job {
		m.Env = []string{"MUSTER_FAKE=" + spec, "MUSTER_FAKE_NODE=node-" + strconv.Itoa(node)}
		return m.Start(node)
	}
	first, second := join(0), join(1)
	bad := join(2)
	m.Ends(bad, errhint.Faulty, "remap-failed")
	began := time.Now()
	round := 1
	if strings.Contains(bad.Err.String(), "before it joins") { // the others have begun without it
		round = 0
	}
	m.Seen(0, round, 0)
	again := join(2)
	m.Ends(again, errhint.Faulty, "this node is in quarantine", "check of this node before it joins", "remap-failed")
	if waited := time.Since(began); waited < 20*time.Second {
		t.Errorf("it was not kept out: examined after %v", waited)
	}
	good := join(3)
	m.Seen(3, round+1, 0)
	if env := m.Seen(0, round+1, 0); env["WORLD_SIZE"] != "3" {
		t.Errorf("world size %s", env["WORLD_SIZE"])
	}
	if err := os.WriteFile(filepath.Join(m.Out, "stop"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, j := range []*drive.Job{first, second, good} {
		m.Ends(j, errhint.OK)
		if n := strings.Count(j.Err.String(), "the nodes have changed"); n > round+1 {
			t.Errorf("the world was stopped %d times", n)
		}
	}
	testutil.Eventually(t, time.Minute, "the others were told",
		func() bool { return strings.Contains(drive.AgentsSaid(m), "a node that a check has excluded is back") })
}

// TestNewcomerWithoutTorch: a node whose Python has no torch looks good enough by itself. It is compared with those
// that train, and does not stop them.
func TestNewcomerWithoutTorch(t *testing.T) {
	t.Parallel()
	python := testutil.DebianTorch(t)
	spec := filepath.Join(t.TempDir(), "spec.yaml")
	text := "version: 1\ndefaults:\n  count: 1\n  model: NVIDIA H100 80GB HBM3\nnodes:\n  node-2: {faults: [{kind: no-torch}]}\n"
	if err := os.WriteFile(spec, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	told := filepath.Join(t.TempDir(), "told")
	m := drive.NewMeet(t, `until [ -e "$OUT/stop" ]; do sleep 0.05; done`)
	m.Native = true
	m.Flags = []string{
		"--nnodes=2:3", "--nproc-per-node=1", "--rdzv=muster://127.0.0.1:" + drive.FreePort(t), "--run-id=torchless", "--last-call=2s",
		"--network-check", "--log-level=info",
		"--on-node-fault=echo $MUSTER_NODE $MUSTER_VERDICT $MUSTER_STATUS >> " + told, "--report=" + filepath.Dir(told),
	}
	join := func(node int) *drive.Job {
		m.Env = []string{
			"MUSTER_FAKE=" + spec, "MUSTER_FAKE_NODE=node-" + strconv.Itoa(node),
			"PATH=" + filepath.Dir(python) + ":" + os.Getenv("PATH"),
		}
		return m.Start(node)
	}
	first, second := join(0), join(1)
	m.Seen(0, 0, 0)
	m.Seen(1, 0, 0)
	m.Ends(join(2), errhint.Faulty, "node node-2 does not join", "cannot import torch")
	if text, err := os.ReadFile(told); err != nil || string(text) != "node-2 faulty 80\n" {
		t.Errorf("--on-node-fault was told %q, %v", text, err)
	}
	if text, err := os.ReadFile(filepath.Join(filepath.Dir(told), "network-check-1-door-node-2.txt")); err != nil ||
		!strings.Contains(string(text), "cannot import torch") {
		t.Errorf("the report is %q, %v", text, err)
	}
	if err := os.WriteFile(filepath.Join(m.Out, "stop"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, j := range []*drive.Job{first, second} {
		m.Ends(j, errhint.OK)
		if strings.Contains(j.Err.String(), "the nodes have changed") {
			t.Error("the world was stopped")
		}
	}
}
