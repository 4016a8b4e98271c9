package report

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"muster/internal/testutil"
	"muster/launch/report"
	"muster/test/drive"
)

// failureKinds are ways to fail: with the name of the cause and words of the remedy that the summary has for it.
// docs/failures.md lists the causes.
var failureKinds = []struct{ way, cause, remedy string }{
	// One of each sort, which every test run has.
	{"raises", "exception", "raised ValueError at failures.py:"},
	{"segfault", "crash", "PYTHONFAULTHANDLER=1"},
	{"no-module", "module-missing", "muster_no_such_module"},
	{"port", "port-in-use", "ss -ltnp"},
	{"disk", "disk-full", "df -h"},
	{"missing-file", "file-missing", "working directory"},
	{"exits-at-exit", "exit-status", "handlers of atexit"},
	{"thread", "exception", "the thread loader"},
	{"child", "child-failed", "a process that the program has started"},
	{"not-initialized", "not-initialized", "init_process_group"},
	{"nccl-system", "nccl-system", "NCCL_DEBUG=INFO"},
	{"output-at-exit", "output-lost", "standard output"},
	// The others, under MUSTER_SOAK=1.
	{"raises-in-library", "exception", "raised JSONDecodeError at failures.py:"},
	{"asserts", "exception", "AssertionError"},
	{"recursion", "exception", "RecursionError"},
	{"memory", "memory", "smaller batches"},
	{"aborts", "crash", "native code gave up"},
	{"divides", "crash", "divided an integer by zero"},
	{"no-name-in-module", "import-failed", "another version"},
	{"no-library", "library-missing", "ldd"},
	{"syntax", "syntax", "python --version"},
	{"host-name", "hostname", "getent"},
	{"file-size", "limit", "ulimit -f"},
	{"input-output", "file-system", "dmesg"},
	{"permission", "permission", "ls -l"},
	{"open-files", "too-many-files", "ulimit -n"},
	{"no-threads", "too-many-processes", "ulimit -u"},
	{"killed", "killed", "OOM killer"},
	{"terminated", "ended-from-outside", "batch system"},
	{"interrupted", "interrupted", "SIGINT"},
	{"cpu-limit", "limit", "ulimit -t"},
	{"exits", "exit-status", "status 3"},
	{"child-killed", "data-loader", "num_workers=0"},
	{"arguments", "arguments", "--learning-rte"},
	{"script", "command", "muster_gone.py is not there"},
	{"command", "command", "PATH"},
	{"checkpoint", "broken-checkpoint", "earlier checkpoint"},
	{"device-memory", "accelerator-memory", "smaller batches"},
	{"device-assert", "accelerator-fault", "CUDA_LAUNCH_BLOCKING=1"},
	{"no-device", "no-accelerator", "nvidia-smi"},
	{"nccl-usage", "nccl-usage", "set_device"},
	{"nccl-peer", "connection-lost", ""},
	{"nccl-timeout", "collective-timeout", ""},
	{"gloo-timeout", "collective-timeout", ""},
}

const soonFailures = 12 // of failureKinds that every test run has

// TestKindsOfFailure has each rank of a job fail in another way: the summary names cause and remedy of each. Who only
// suffers from others is said to do so.
func TestKindsOfFailure(t *testing.T) {
	t.Parallel()
	kinds := failureKinds
	if !testutil.Soak() {
		kinds = kinds[:soonFailures]
	}
	args := []string{
		"run", "-n", fmt.Sprint(len(kinds)), "--fail-policy", "none", "--log-dir", t.TempDir(), "--", "python3",
		drive.Script(t, "failures.py"),
	}
	for _, k := range kinds {
		args = append(args, k.way)
	}
	j := drive.Start(t, []string{"TMPDIR=" + t.TempDir(), "LC_ALL=C", "MUSTER_LOG_FORMAT=json"}, args...)
	j.End()
	type failure struct {
		report.Cause
		Hint string
	}
	var said struct {
		Hint      string
		RootCause *report.Cause
		Failures  []failure
	}
	for line := range strings.Lines(j.Err.String()) {
		if strings.Contains(line, `"rootCause"`) {
			if err := json.Unmarshal([]byte(line), &said); err != nil {
				t.Fatal(err)
			}
		}
	}
	if said.RootCause == nil {
		t.Fatalf("no summary:\n%s", j.Err.String())
	}
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "failures.md"))
	if err != nil {
		t.Fatal(err)
	}
	found, right := map[int]failure{said.RootCause.Rank: {*said.RootCause, said.Hint}}, 0
	for _, f := range said.Failures {
		found[f.Rank] = f
	}
	for rank, k := range kinds {
		f, is := found[rank]
		switch {
		case !is:
			t.Errorf("%s: rank %d has not failed", k.way, rank)
		case f.Cause.Cause != k.cause || !strings.Contains(f.Hint, k.remedy):
			t.Errorf("%s: cause %q, want %q; remedy %q lacks %q; it said\n%s", k.way, f.Cause.Cause, k.cause, f.Hint, k.remedy,
				strings.Join(f.LastLines, "\n"))
		case !strings.Contains(string(page), "| `"+k.cause+"` |"):
			t.Errorf("docs/failures.md does not list the cause %s", k.cause)
		default:
			right++
		}
	}
	t.Logf("%d of %d kinds of failure named right", right, len(kinds))
}

// TestWhoDidNotCome: the rank that complains that it has waited in vain is a victim. The summary has the one first that
// did not come, and what it does.
func TestWhoDidNotCome(t *testing.T) {
	t.Parallel()
	j := drive.Start(t, []string{"MUSTER_LOG_FORMAT=text"}, "run", "-n", "2", "--stacks", "on", "--grace", "1s", "--",
		"python3", drive.Script(t, "failures.py"), "held-up", filepath.Join(t.TempDir(), "sleeper"))
	got := j.End()
	late, complains := strings.Index(got.Stderr, "Did not come"), strings.Index(got.Stderr, "Root Cause")
	if got.Status != 1 || late < 0 || complains < late || !strings.Contains(got.Stderr[late:complains], "rank      : 1\n") ||
		!strings.Contains(got.Stderr[late:complains], "sleep") {
		t.Errorf("status %d\n%s", got.Status, got.Stderr)
	}
}

// TestSimulatedNodesBehindOpenLine: a simulated node says how the job stands on a line of its own, also where a worker has
// left one unfinished, as progress bars do. Who simulates it shows nothing of that.
func TestSimulatedNodesBehindOpenLine(t *testing.T) {
	t.Parallel()
	got := drive.Run(t, []string{drive.AsText, "MUSTER_FAKE=" + fourNodes(t)}, "run", "--simulate-nodes", "2", "--nnodes", "2", "-n", "1",
		"--", "sh", "-c", "printf half >&2; sleep 2; test $RANK = 0 || sleep 100; exit 9")
	if got.Status != 9 || strings.Contains(got.Stderr, "conditions") || strings.Count(got.Stderr, "] half\n") != 2 {
		t.Errorf("status %d\n%s", got.Status, got.Stderr)
	}
}

// TestSimulatedNodesFailOnce: why the job of several simulated nodes has failed is said once, and the directories of
// their log files have their names.
func TestSimulatedNodesFailOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	got := drive.Run(t, []string{drive.AsText, "MUSTER_FAKE=" + fourNodes(t)}, "run", "--simulate-nodes", "4", "--nnodes", "4", "-n", "1",
		"--run-id", "x", "--log-dir", dir, "--", "sh", "-c", "test $RANK = 1 && exit 9; exec sleep 600")
	if got.Status != 9 || strings.Count(got.Stderr, "\nRoot Cause (first observed failure):\n") != 1 ||
		strings.Count(got.Stderr, " FAILED") != 1 {
		t.Errorf("status %d\n%s", got.Status, got.Stderr)
	}
	for i := range 4 {
		if found, err := filepath.Glob(filepath.Join(dir, fmt.Sprintf("x_node-%d_*", i))); err != nil || len(found) != 1 {
			t.Errorf("directories of node-%d: %v, %v", i, found, err)
		}
	}
}
