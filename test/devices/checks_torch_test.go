package devices

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"muster/internal/testutil"
	"muster/test/drive"
)

// boxSpec is eight GPUs with healthy links, and what else a test wants. The links are so fast that a sample has many copies:
// a busy machine may be late by a tenth of a second, and they still reach what is wanted of them.
func boxSpec(t *testing.T, more string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "box.yaml")
	text := "version: 1\ndefaults:\n  vendor: nvidia\n  count: 8\n  links:\n    - {pairs: all, mbps: 500000}\n" + more
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// boxes are what may be wrong with a switchbox: the status of muster check, and what it says.
var boxes = []struct {
	name, spec string
	flags      []string
	status     int
	says       []string
}{
	{"healthy", "", nil, 0, []string{"4 of 4 channels are healthy"}},
	{"a slow link", "    - {pair: \"2:4\", mbps: 2000}\n", nil, 0, []string{"switchbox-link", "pair 2:4", "3 of 4 channels are healthy"}},
	{
		"three bad links",
		"    - {pair: \"2:4\", mbps: 2000}\n  faults:\n    - {kind: pair-corrupt, pair: \"0:1\"}\n" +
			"    - {kind: pair-error, pair: \"3:5\", text: gone}\n", nil, 80,
		[]string{"1 healthy channels of 4, and 2 are needed", "was not what was sent", "gone"},
	},
	{"less is wanted", "    - {pairs: all, mbps: 2900}\n", []string{"--min-bandwidth", "300"}, 0, []string{"4 of 4"}},
	{
		"pairs of the user", "    - {pair: \"2:4\", mbps: 2000}\n",
		[]string{"--box-pairs", "0:1 2:4", "--min-channels", "1"},
		0,
		[]string{"1 of 2 channels"},
	},
}

// busyBandwidth is what copies of good links reach on a busy machine, too, in MB/s.
const busyBandwidth = "3000"

// TestCheckSwitchbox tests the links of a made-up box by muster check, with the real check program.
func TestCheckSwitchbox(t *testing.T) {
	python := drive.SomeTorch(t)
	example := filepath.Join("..", "..", "examples", "8gpus.yaml") // says nothing of links
	if got := drive.Run(t, nil, "check", "--all", "--switchbox-check", "--python", python, "--accelerator", "fake:"+example, "--probe-exec",
		"none", "--min-bandwidth", busyBandwidth); !strings.Contains(got.Stdout, "4 of 4 channels are healthy") {
		t.Errorf("status %d\n%s%s", got.Status, got.Stdout, got.Stderr)
	}
	python = drive.ForkedSomeTorch(t)
	for _, b := range boxes {
		if (b.name == "healthy" || b.name == "a slow link") && !testutil.Soak() {
			continue // that of the example is healthy; one of three bad links is slow
		}
		t.Run(strings.ReplaceAll(b.name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			args := append([]string{
				"check", "--all", "--switchbox-check", "--python", python, "--accelerator",
				"fake:" + boxSpec(t, b.spec), "--probe-exec", "none", "--min-bandwidth", busyBandwidth,
			}, b.flags...)
			got := drive.Run(t, nil, args...)
			if got.Status != b.status {
				t.Errorf("status %d, want %d", got.Status, b.status)
			}
			for _, want := range b.says {
				if !strings.Contains(got.Stdout, want) {
					t.Errorf("%q is missing", want)
				}
			}
			if t.Failed() {
				t.Logf("%s%s", got.Stdout, got.Stderr)
			}
		})
	}
}

// TestGuide runs the command line of MetaX's guide on a made-up box: healthy, and with too few channels.
func TestGuide(t *testing.T) {
	python := drive.ForkedSomeTorch(t)
	guide := strings.Fields("dlrover-run --network-check --switchbox-check --box-pairs 0:1 2:4 3:5 6:7 --min-bandwidth 10000 " +
		"--min-channels 2 --nnodes=1 --nproc_per_node=2")
	for _, c := range []struct {
		name, spec string
		status     int
		says       string
	}{
		{"healthy", "", 0, ""},
		{"faulty", "    - {pairs: all, mbps: 9900}\n", 80, "0 healthy channels of 4"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			script := filepath.Join(t.TempDir(), "train.py")
			if err := os.WriteFile(script, []byte("print('trains')\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			got := drive.Run(t, []string{"MUSTER_FAKE=" + boxSpec(t, c.spec), "PYTHON_EXEC=" + python}, append(guide, script)...)
			if got.Status != c.status || !strings.Contains(got.Stderr, c.says) ||
				strings.Contains(got.Stdout, "trains") != (c.status == 0) {
				t.Errorf("status %d, want %d:\n%s%s", got.Status, c.status, got.Stdout, got.Stderr)
			}
		})
	}
}

// clusterSpec is nodes with a GPU each. That of node-2 has lost memory, where a test does not say for how long.
const clusterSpec = `version: 1
defaults: {vendor: nvidia, count: 1, model: NVIDIA H100 80GB HBM3}
nodes:
  node-2:
    faults:
      - {gpu: 0, kind: remap-failed, attempts: [0]}
`

// TestSimulate rehearses a job of four nodes, of which one is at fault: it leaves, and the others train.
func TestSimulate(t *testing.T) {
	t.Parallel()
	python := testutil.DebianTorch(t)
	spec := filepath.Join(t.TempDir(), "cluster.yaml")
	if err := os.WriteFile(spec, []byte(clusterSpec), 0o600); err != nil {
		t.Fatal(err)
	}
	out := t.TempDir()
	got := drive.Run(t, []string{"MUSTER_FAKE=" + spec}, "run", "--network-check", "--simulate-nodes", "4", "--nnodes", "2:4",
		"--last-call", "1s",
		"--on-node-fault", `echo "$MUSTER_NODE $MUSTER_VERDICT" >> `+out+`/told`, "--report", out, "--", python, "-c",
		"import os; print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])")
	if got.Status != 0 || strings.Count(got.Stdout, " of 3") != 3 || !strings.Contains(got.Stderr, "remap-failed") ||
		!strings.Contains(got.Stderr, `"agent":"node-2","exit_code":80`) {
		t.Errorf("status %d:\n%s%s", got.Status, got.Stdout, got.Stderr)
	}
	if told, _ := os.ReadFile(filepath.Join(out, "told")); string(told) != "node-2 faulty\n" {
		t.Errorf("the command was told %q", told)
	}
	if report, _ := os.ReadFile(filepath.Join(out, "network-check-0.txt")); !strings.Contains(string(report), "accelerator=fake") ||
		!strings.Contains(string(report), "node-2") {
		t.Errorf("report:\n%s", report)
	}
}

// TestCheckForked checks two nodes by processes that come from the template of their workers.
func TestCheckForked(t *testing.T) {
	t.Parallel()
	python := drive.SomeTorch(t)
	dir := t.TempDir()
	spec, script := filepath.Join(dir, "cluster.yaml"), filepath.Join(dir, "train.py")
	for path, text := range map[string]string{
		spec:   "version: 1\ndefaults: {vendor: nvidia, count: 1}\n",
		script: "import torch\nprint('trains with', torch.get_num_threads() > 0)\n",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got := drive.Run(t, []string{"MUSTER_FAKE=" + spec, "TORCH_DISTRIBUTED_DEBUG=DETAIL"}, "run", "--warm", "auto", "--network-check",
		"--report", dir,
		"--simulate-nodes", "2", "--log-level", "debug", "--", python, script)
	if got.Status != 0 || strings.Count(got.Stdout, "trains with True") != 2 {
		t.Errorf("status %d:\n%s%s", got.Status, got.Stdout, got.Stderr)
	}
	if checks, workers := strings.Count(got.Stderr, `"what":"the check of device 0"`), drive.Forked(got); checks != 2 || workers != 2 {
		t.Errorf("%d processes of the check and %d workers were forked, want 2 and 2\n%s", checks, workers, got.Stderr)
	}
	if report, _ := os.ReadFile(filepath.Join(dir, "network-check-0.txt")); !strings.Contains(string(report), "all 2 nodes may take part") {
		t.Errorf("report:\n%s", report)
	}
}

// TestCheckForkedFromWhatCannotBeTested checks a node whose template has imported what breaks the check program: it
// passes.
func TestCheckForkedFromWhatCannotBeTested(t *testing.T) {
	t.Parallel()
	python := testutil.Torch(t)
	dir := t.TempDir()
	spec, script := filepath.Join(dir, "spec.yaml"), filepath.Join(dir, "train.py")
	for path, text := range map[string]string{
		spec:                             "version: 1\ndefaults: {vendor: nvidia, count: 1}\n",
		filepath.Join(dir, "changes.py"): "import json, torch\ntorch.set_default_device('meta')\njson.dumps = None\n",
		script:                           "import changes\nprint('trains')\n",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got := drive.Run(t, []string{"MUSTER_FAKE=" + spec}, "run", "--warm", "changes", "--network-check", "--log-level", "debug", "--",
		python, script)
	if got.Status != 0 || !strings.Contains(got.Stdout, "trains") || strings.Count(got.Stderr, `"what":"the check of device 0"`) != 1 ||
		!strings.Contains(got.Stderr, "one that was forked from the template has failed") {
		t.Errorf("status %d:\n%s%s", got.Status, got.Stdout, got.Stderr)
	}
}

// TestSimulationEnds ends with everything of it, by a signal and by SIGKILL.
func TestSimulationEnds(t *testing.T) {
	t.Parallel()
	spec := filepath.Join(t.TempDir(), "cluster.yaml")
	if err := os.WriteFile(spec, []byte(clusterSpec), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, s := range []struct {
		signal syscall.Signal
		status int
	}{{syscall.SIGTERM, 143}, {syscall.SIGKILL, 137}} {
		t.Run(s.signal.String(), func(t *testing.T) {
			mark := fmt.Sprintf("simulation-%d-%d", os.Getpid(), s.signal)
			j := drive.Start(t, []string{"MUSTER_FAKE=" + spec}, "run", "--simulate-nodes", "3", "--", "sh", "-c",
				"echo ready; while :; do sleep 0.1; done; : "+mark)
			testutil.Eventually(t, time.Minute, "three workers are ready",
				func() bool { return strings.Count(j.Out.String(), "ready") == 3 })
			j.Signal(s.signal)
			if got := j.End(); got.Status != s.status {
				t.Errorf("status %d, want %d\n%s", got.Status, s.status, got.Stderr)
			}
			testutil.Eventually(t, time.Minute, "nothing is left",
				func() bool { return len(drive.Processes(t, spec)) == 0 && len(drive.Processes(t, mark)) == 0 })
		})
	}
}
