package devices

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"muster/internal/testutil"
	"muster/test/drive"
)

// rehearse runs a job of n nodes of one spec, each with two workers that obey its faults as the example trainer does.
func rehearse(t *testing.T, spec, steps string, flags ...string) drive.Outcome {
	t.Helper()
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	examples, err := filepath.Abs("../../examples/digits")
	if err != nil {
		t.Fatal(err)
	}
	trainer := write("trainer.py", `import os, sys, time, faults
rehearsal = faults.Faults()
for step in range(1, int(sys.argv[1]) + 1):
    print("attempt", os.environ["TORCHELASTIC_RESTART_COUNT"], "rank", os.environ["LOCAL_RANK"], "step", step, flush=True)
    time.sleep(0.1)  # the others are to be at work when one fails
    rehearsal.after(step)
`)
	args := append([]string{"run", "--accelerator", "fake:" + write("spec.yaml", spec), "-n", "2"}, flags...)
	return drive.Run(t, []string{"MUSTER_LAST_CALL=1s", "PYTHONPATH=" + examples, "PYTHONDONTWRITEBYTECODE=1"},
		append(args, "--", drive.SystemPython(t), trainer, steps)...)
}

// TestFaultNotObeyed: who has planned a fault that no worker obeys is told that nothing was rehearsed.
func TestFaultNotObeyed(t *testing.T) {
	t.Parallel()
	spec := filepath.Join(t.TempDir(), "spec.yaml")
	if err := os.WriteFile(spec, []byte(`version: 1
defaults: {count: 2}
nodes:
  node-1:
    faults:
      - {kind: crash, local_rank: 1, after_s: 1, attempts: [0]}
      - {kind: hang, after_s: 3600}
      - {kind: crash, local_rank: 7}
      - {kind: crash, attempts: [1]}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	got := drive.Run(t, nil, "run", "--accelerator", "fake:"+spec, "--simulate-nodes", "2", "-n", "gpu", "--", "sleep", "1.5")
	got.Expect(t, 0, "the rehearsal has a fault that no worker has obeyed: nothing failed", "crash of local rank 1 after 1 s",
		"workers obey MUSTER_FAKE_FAULT themselves")
	if n := strings.Count(got.Stderr, "no worker has obeyed"); n != 1 {
		t.Errorf("%d warnings\n%s", n, got.Stderr)
	}
}

// TestRehearsedCrash has a worker of node-1 crash at a step, in the attempts that the spec names and in no other.
func TestRehearsedCrash(t *testing.T) {
	const spec = `version: 1
defaults: {count: 2}
nodes:
  node-1:
    faults: [{kind: crash, after_step: 3, local_rank: 1, status: 9, attempts: [ATTEMPT]}]
`
	for attempt, restarts := range map[string]int{"0": 1, "1": 0} {
		t.Run(attempt, func(t *testing.T) {
			t.Parallel()
			got := rehearse(t, strings.Replace(spec, "ATTEMPT", attempt, 1), "20", "--simulate-nodes", "2", "--nnodes", "2",
				"--max-restarts", "1")
			said := got.Stdout + got.Stderr
			if got.Status != 0 || strings.Count(said, "] rehearsal: crash after step 3") != restarts ||
				strings.Contains(said, "attempt 1") != (restarts == 1) {
				t.Errorf("status %d, want %d restarts", got.Status, restarts)
			}
			if restarts == 1 && regexp.MustCompile(`\[node-1 \d\] attempt 0 rank 1 step 4`).MatchString(said) {
				t.Error("the worker goes on")
			}
			for _, node := range []string{"node-0", "node-1"} {
				for _, rank := range []string{"0", "1"} {
					if last := fmt.Sprintf(`\[%s \d\] attempt %d rank %s step 20`, node, restarts,
						rank); !regexp.MustCompile(last).MatchString(said) {
						t.Errorf("%q is missing", last)
					}
				}
			}
			if t.Failed() {
				t.Log(said)
			}
		})
	}
}

// TestRehearsedOnce: one of the workers has a fault that is there once, whichever comes first, and none after it.
func TestRehearsedOnce(t *testing.T) {
	const spec = "version: 1\ndefaults:\n  count: 2\n  faults: [{kind: crash, after_step: 2, local_rank: -1MORE}]\n"
	for more, status := range map[string]int{", once: true": 0, "": 1} {
		t.Run(strings.Trim(more, ", "), func(t *testing.T) {
			t.Parallel()
			got := rehearse(t, strings.Replace(spec, "MORE", more, 1), "5", "--max-restarts", "1")
			crashes := strings.Count(got.Stdout+got.Stderr, "] rehearsal: crash after step 2")
			if got.Status != status || status == 0 && crashes != 1 || status != 0 && crashes < 2 {
				t.Errorf("status %d, want %d; %d crashes\n%s%s", got.Status, status, crashes, got.Stdout, got.Stderr)
			}
		})
	}
}

// TestRehearsedCheck rehearses what the check of two nodes may meet: who leaves, with which status, and what is said.
func TestRehearsedCheck(t *testing.T) {
	usual, forked := testutil.DebianTorch(t), drive.ForkedSomeTorch(t)
	for _, c := range []struct {
		name, node1, both string // of the spec
		flags             []string
		leaves            string // the status with which node-1 leaves; "": it trains
		says              string
	}{
		{name: "no torch anywhere", both: "  faults: [{kind: no-torch}]\n", says: "nodes could not be tested: the check is skipped"},
		{
			name: "no torch in a template", both: "  faults: [{kind: no-torch}]\n", flags: []string{"--warm", "torch"},
			says: "nodes could not be tested: the check is skipped",
		},
		{name: "no torch on one", node1: "{kind: no-torch}", leaves: "80", says: "no-torch"},
		{name: "crash", node1: "{kind: crash, in: check, status: 139, attempts: [0]}", leaves: "80", says: "was killed by SIGSEGV"},
		{
			name: "all in another round",
			node1: "{kind: no-torch, attempts: [5]}, {kind: crash, in: check, status: 139, attempts: [5]}, " +
				"{kind: remap-failed, gpu: 0, attempts: [5]}",
		},
		{name: "sick in the first round", node1: "{kind: remap-failed, gpu: 0, attempts: [0]}", leaves: "80", says: "remap-failed"},
		{name: "slow", node1: "{kind: slow-node, factor: 0.02}", flags: []string{"--exclude-straggler"}, leaves: "81", says: "a straggler"},
	} {
		if (c.name == "all in another round" || c.name == "sick in the first round") && !testutil.Soak() {
			continue // TestSimulate has a node that is sick in the first round, TestFakeRound one in another
		}
		t.Run(strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
			if c.leaves != "81" { // who is slow is seen where the others are not
				t.Parallel()
			}
			spec := filepath.Join(t.TempDir(), "spec.yaml")
			text := "version: 1\ndefaults:\n  count: 1\n  model: NVIDIA H100 80GB HBM3\n" + c.both + "nodes:\n  node-1: {faults: [" +
				c.node1 + "]}\n"
			if c.node1 == "" {
				text = strings.Split(text, "nodes:")[0]
			}
			if err := os.WriteFile(spec, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			python := forked
			if strings.Contains(c.node1+c.both, "no-torch") { // a fork has it already
				python = usual
			}
			args := append([]string{"run", "--network-check", "--simulate-nodes", "2", "--nnodes", "1:2", "--last-call", "2s"}, c.flags...)
			got := drive.Run(t, []string{"MUSTER_FAKE=" + spec}, append(args, "--", python, "-c", "print('trains')")...)
			nodes := 2
			if c.leaves != "" {
				nodes = 1
			}
			if got.Status != 0 || strings.Count(got.Stdout, "trains") != nodes || !strings.Contains(got.Stdout+got.Stderr, c.says) {
				t.Errorf("status %d, want 0, with %d nodes and %q", got.Status, nodes, c.says)
			}
			if left := strings.Contains(got.Stderr, `"agent":"node-1","exit_code":`+c.leaves); c.leaves != "" && !left {
				t.Errorf("node-1 does not leave with %s", c.leaves)
			}
			if t.Failed() {
				t.Log(got.Stdout + got.Stderr)
			}
		})
	}
}

// TestRehearsalHasNoLimitsOfThisMachine: what the shell allows is no finding about nodes that are made up, and costs no
// line.
func TestRehearsalHasNoLimitsOfThisMachine(t *testing.T) {
	t.Parallel()
	python := drive.SystemPython(t) // the node itself is looked at, without torch, too
	spec := filepath.Join(t.TempDir(), "spec.yaml")
	text := "version: 1\ndefaults: {count: 1, model: NVIDIA H100 80GB HBM3, faults: [{kind: no-torch}]}\n"
	if err := os.WriteFile(spec, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	job := fmt.Sprintf("ulimit -n 4096; exec muster --network-check run --simulate-nodes 2 -n 1 -- %s -c 'print(1)'", python)
	got := drive.Command(t, []string{drive.AsText, "MUSTER_FAKE=" + spec, "XDG_RUNTIME_DIR=" + t.TempDir()}, "sh", "-c", job)
	if got.Status != 0 || strings.Contains(got.Stderr, "open-files") {
		t.Errorf("status %d\n%s", got.Status, got.Stderr)
	}
}

// TestRehearsedAlone: a node that cannot be tested is skipped, and has not passed. That nobody probes the network is
// told where the spec has one.
func TestRehearsedAlone(t *testing.T) {
	t.Parallel()
	for said, warned := range map[string]bool{
		"faults: [{kind: no-torch}]": false, "faults: [{kind: no-torch}, {kind: clock, offset_ms: 1}]": true,
		"faults: [{kind: no-torch}]\n  rdma: [{dev: mlx5_0, state: DOWN}]": true,
	} {
		spec := filepath.Join(t.TempDir(), "spec.yaml")
		if err := os.WriteFile(spec, []byte("version: 1\ndefaults:\n  count: 1\n  "+said+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		got := drive.Run(t, []string{"MUSTER_FAKE=" + spec}, "run", "--network-check", "--",
			drive.SystemPython(t), "-c", "print('trains')")
		if got.Status != 0 || !strings.Contains(got.Stderr, `"status":"SKIP"`) || !strings.Contains(got.Stderr, "no-torch") ||
			strings.Contains(got.Stderr, "which nobody looks at") != warned {
			t.Errorf("status %d, want 0 and SKIP, and a warning: %v\n%s%s", got.Status, warned, got.Stdout, got.Stderr)
		}
		got = drive.Run(t, []string{"MUSTER_FAKE=" + spec}, "run", "--", "true")
		if told := strings.Count(got.Stderr, "which nobody looks at"); got.Status != 0 || (told == 1) != warned || told == 1 &&
			!strings.Contains(got.Stderr, "--network-check") {
			t.Errorf("without a check: status %d, want 0, and a warning: %v\n%s%s", got.Status, warned, got.Stdout, got.Stderr)
		}
	}
}

// TestFakeRound: a command shows a spec as it is in a round, the first one unless another is named.
func TestFakeRound(t *testing.T) {
	t.Parallel()
	spec := filepath.Join(t.TempDir(), "spec.yaml")
	text := "version: 1\ndefaults:\n  count: 1\n  faults: [{kind: gpu-lost, gpu: 0, attempts: [1]}]\n"
	if err := os.WriteFile(spec, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for round, status := range map[string]int{"": 0, "0": 0, "1": 80, "2": 0, "-1": 2, "first": 2} {
		got := drive.Run(t, []string{"MUSTER_FAKE=" + spec, "MUSTER_FAKE_ROUND=" + round}, "check", "--waive", "shm-writable,disk-space")
		if got.Status != status || status == 80 && !strings.Contains(got.Stdout, "gpu-lost") {
			t.Errorf("round %q: status %d, want %d\n%s%s", round, got.Status, status, got.Stdout, got.Stderr)
		}
	}
}

// TestFakeRoundOfAnother: a job's rounds are its own, whichever one its environment names for muster check.
func TestFakeRoundOfAnother(t *testing.T) {
	t.Parallel()
	spec := filepath.Join(t.TempDir(), "spec.yaml")
	text := "version: 1\ndefaults:\n  count: 1\n  model: NVIDIA H100 80GB HBM3\n" +
		"  faults: [{kind: no-torch}, {kind: remap-failed, gpu: 0, attempts: [0]}]\n"
	if err := os.WriteFile(spec, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, round := range []string{"5", "first"} {
		got := drive.Run(t, []string{"MUSTER_FAKE=" + spec, "MUSTER_FAKE_ROUND=" + round}, "run", "--network-check", "--",
			drive.SystemPython(t), "-c", "print('trains')")
		if got.Status != 80 || !strings.Contains(got.Stderr, "remap-failed") || strings.Contains(got.Stderr, "not looked at") {
			t.Errorf("round %s: status %d, want 80\n%s%s", round, got.Status, got.Stdout, got.Stderr)
		}
	}
}

// TestSimulatedNodesOfAnother: each simulated node is one of its own, whichever one the environment names.
func TestSimulatedNodesOfAnother(t *testing.T) {
	t.Parallel()
	spec := filepath.Join(t.TempDir(), "spec.yaml")
	text := "version: 1\ndefaults: {count: 1}\nnodes:\n  node-0: {env: {OF: zero}}\n  node-1: {env: {OF: one}}\n"
	if err := os.WriteFile(spec, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	got := drive.Run(t, []string{"MUSTER_FAKE=" + spec, "MUSTER_FAKE_NODE=node-1"}, "run", "--simulate-nodes", "2", "--nnodes", "2", "--",
		"sh", "-c", "echo is $OF")
	if got.Status != 0 || !strings.Contains(got.Stdout, "is zero") || !strings.Contains(got.Stdout, "is one") {
		t.Errorf("status %d\n%s%s", got.Status, got.Stdout, got.Stderr)
	}
}

// TestRehearsedNetwork rehearses networks between two nodes, with each fault as it is found, and just as it is not.
func TestRehearsedNetwork(t *testing.T) {
	t.Parallel()
	python := drive.ForkedSomeTorch(t)
	const spec = `version: 1
defaults:
  count: 1
  rdma: [{dev: mlx5_0, net: ib0}, {dev: mlx5_1}]
  net: {iface: eth7, mtu: 9000}
  faults: [{kind: rdma-errors, counter: link_downed, per_s: RDMA_PER_S}]
nodes:
  node-0: {}
  node-1:
    faults:
      - {kind: rdma-errors, counter: link_downed, per_s: RDMA_PER_S}
      - {kind: rdma-down, dev: mlx5_1, state: RDMA_STATE}
      - {kind: rdma-slow, dev: mlx5_0, rate: RDMA_RATE}
      - {kind: clock, offset_ms: CLOCK}
      - {kind: mtu-blackhole, peers: [node-0], mtu: MTU}
      - {kind: unreachable, peers: [node-0], value: UNREACHABLE}
`
	for _, c := range []struct {
		name   string
		values []string // of the spec
		says   string   // all checks that are heard of, but for those that the machine of the test decides
	}{
		{"faults", []string{
			"RDMA_PER_S", "1000000", "RDMA_STATE", "DOWN", "RDMA_RATE", "200", "CLOCK", "3000", "MTU", "1500",
			"UNREACHABLE", "0",
		}, "clock-offset mtu-blackhole rdma-errors rdma-heterogeneous rdma-port-down rdma-rate"},
		{
			"none",
			[]string{"RDMA_PER_S", "0", "RDMA_STATE", "ACTIVE", "RDMA_RATE", "400", "CLOCK", "5", "MTU", "9000", "UNREACHABLE", "0"},
			"",
		},
		{"unreachable", []string{
			"RDMA_PER_S", "0", "RDMA_STATE", "ACTIVE", "RDMA_RATE", "400", "CLOCK", "5", "MTU", "9000", "UNREACHABLE",
			"1",
		}, "net-reach"},
	} {
		if c.name == "none" && !testutil.Soak() {
			continue // "unreachable" has the same inputs, and finds nothing but what is unreachable
		}
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			for name, text := range map[string]string{
				"spec.yaml": strings.NewReplacer(c.values...).Replace(spec),
				"token":     "the token of a rehearsal",
			} {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			got := drive.Run(t, []string{"MUSTER_FAKE=" + filepath.Join(dir, "spec.yaml")}, "--token-file", filepath.Join(dir, "token"),
				"run", "--network-check", "--simulate-nodes", "2", "--nnodes", "2", "--", python, "-c", "print('trains')")
			if strings.Contains(got.Stderr, "which nobody looks at") {
				t.Error("it is said that the network is not probed")
			}
			heard := map[string]bool{}
			for line := range strings.Lines(got.Stderr) {
				if _, rest, found := strings.Cut(line, `"check":"`); found && strings.Contains(line, "network between nodes") {
					heard[rest[:strings.Index(rest, `"`)]] = true
				}
			}
			for _, id := range []string{"net-rtt", "iface-mismatch", "loopback-hostname"} {
				delete(heard, id)
			}
			if ids := strings.Join(slices.Sorted(maps.Keys(heard)), " "); got.Status != 0 || ids != c.says {
				t.Errorf("status %d, heard of %q, want %q\n%s%s", got.Status, ids, c.says, got.Stdout, got.Stderr)
			}
		})
	}
}
