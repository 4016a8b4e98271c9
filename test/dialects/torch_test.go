package dialects

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"muster/internal/testutil"
	"muster/test/drive"
)

// TestDDP trains with DistributedDataParallel under the oldest store protocol in use, and with MUSTER_SOAK=1 under the
// newest PyTorch, which is TestWarmTraining's.
func TestDDP(t *testing.T) {
	t.Parallel()
	pythons := map[string]func(testing.TB) string{"Debian's PyTorch 1.13.1": testutil.DebianTorch}
	if testutil.Soak() {
		pythons["PyTorch "+testutil.TorchVersion] = testutil.Torch
	}
	for name, python := range pythons {
		t.Run(name, func(t *testing.T) {
			got := drive.Run(t, []string{"PYTHON_EXEC=" + python(t)}, "torchrun", "--standalone", "--nproc-per-node",
				"2", drive.Script(t, "torch", "ddp.py"))
			if got.Status != 0 || strings.Count(got.Stdout, "finished") != 2 {
				t.Fatalf("status %d\n%s%s", got.Status, got.Stdout, got.Stderr)
			}
		})
	}
}

// TestCrashSurvived kills one of 4 gloo workers in the middle of training, in three attempts of a job: it must survive,
// because a restart starts with an empty store. torchrun 2.15.0, which keeps the keys of the dead, survives none of
// four. With MUSTER_SOAK=1 that is done to 100 jobs of 8 workers.
func TestCrashSurvived(t *testing.T) {
	t.Parallel()
	python, runs, workers := testutil.Torch(t), 1, 4
	if testutil.Soak() {
		runs, workers = 100, 8
	}
	survived := 0
	for i := range runs {
		victims := fmt.Sprintf("VICTIMS=%d,%d,%d", i%workers, (i+1)%workers, (i+workers-1)%workers)
		got := drive.Run(t, []string{victims}, "run", "-n", strconv.Itoa(workers), "--warm", "auto", "--max-restarts", "3", "--", python,
			"-u", drive.Script(t, "torch", "crash.py"))
		if got.Status == 0 && strings.Count(got.Stdout, "finished") == workers && strings.Count(got.Stderr, "SIGKILL") >= 3 {
			survived++
		} else {
			t.Errorf("run %d: status %d\n%s%s", i, got.Status, got.Stdout, got.Stderr)
		}
	}
	t.Logf("%d of %d jobs survived", survived, runs)
}

// TestEnvironmentLikeTorchrun compares the variables that the real torchrun and muster give their workers.
func TestEnvironmentLikeTorchrun(t *testing.T) {
	t.Parallel()
	dump := func(launch func(dir string, args ...string) drive.Outcome) map[string]string {
		dir := t.TempDir()
		got := launch(dir, "--standalone", "--nproc-per-node", "2", "--max-restarts", "3", "--role", "trainer",
			"--no-python", "sh", "-c", `env > "$DUMP/$LOCAL_RANK"`)
		if got.Status != 0 {
			t.Fatalf("status %d\n%s", got.Status, got.Stderr)
		}
		text, err := os.ReadFile(filepath.Join(dir, "1"))
		if err != nil {
			t.Fatal(err)
		}
		vars := map[string]string{}
		for line := range strings.Lines(string(text)) {
			name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
			vars[name] = value
		}
		return vars
	}
	theirs := dump(func(dir string, args ...string) drive.Outcome {
		return drive.Torchrun(t, []string{"DUMP=" + dir}, args...)
	})
	ours := dump(func(dir string, args ...string) drive.Outcome {
		return drive.Run(t, []string{"DUMP=" + dir}, append([]string{"torchrun"}, args...)...)
	})
	// What differs by nature is compared by its form.
	forms := map[string]string{
		"MASTER_PORT": `\d+`, "TORCHELASTIC_RUN_ID": `[0-9a-z-]+`, "TORCHELASTIC_ERROR_FILE": `/.*/attempt_0/1/error\.json`,
		"MASTER_ADDR": `localhost|127\.0\.0\.1`,
	}
	for name, form := range forms {
		for _, vars := range []map[string]string{theirs, ours} {
			if !regexp.MustCompile(`^(` + form + `)$`).MatchString(vars[name]) {
				t.Errorf("%s=%q has not the form %s", name, vars[name], form)
			}
			delete(vars, name)
		}
	}
	// Ours, and what the shell and the test set.
	for _, name := range []string{
		"MUSTER_AGENT", "MUSTER_RUN_DIR", "MUSTER_ROUND", "XDG_RUNTIME_DIR", "XDG_CACHE_HOME", "DUMP", "_",
		"SHLVL", "PWD", "OLDPWD",
	} {
		delete(ours, name)
		delete(theirs, name)
	}
	if diff := cmp.Diff(theirs, ours); diff != "" {
		t.Errorf("environment differs (-torchrun +muster):\n%s", diff)
	}
}

// TestErrorFile lets a worker decorated with torch's record fail, and expects its traceback in the summary.
func TestErrorFile(t *testing.T) {
	t.Parallel()
	script := filepath.Join(t.TempDir(), "boom.py")
	text := "import os\nfrom torch.distributed.elastic.multiprocessing.errors import record\n\n@record\ndef main():\n" +
		"    if os.environ['RANK'] == '1':\n        raise ValueError('boom of rank 1')\n    import time; time.sleep(60)\n\nmain()\n"
	if err := os.WriteFile(script, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	got := drive.Run(t, []string{drive.AsText, "PYTHON_EXEC=" + testutil.Torch(t)},
		append(drive.Warm("auto"), "torchrun", "--standalone", "--nproc-per-node", "2", script)...)
	if got.Status != 1 {
		t.Errorf("status %d, want 1", got.Status)
	}
	for _, want := range []string{
		"boom.py FAILED", "Root Cause (first observed failure):", "rank      : 1 (local_rank: 1)",
		"ValueError: boom of rank 1", "error.json",
	} {
		if !strings.Contains(got.Stderr, want) {
			t.Errorf("the summary lacks %q:\n%s", want, got.Stderr)
		}
	}
}

// TestEventRecords compares the event records of --event-log-handler console with the real torchrun's, without what
// differs from run to run.
func TestEventRecords(t *testing.T) {
	t.Parallel()
	args := []string{
		"--standalone", "--nproc-per-node", "2", "--event-log-handler", "console", "--max-restarts", "1", "--no-python",
		"sh", "-c", `[ "$TORCHELASTIC_RESTART_COUNT$RANK" != 01 ] || exit 3; sleep 0.2`,
	}
	shape := func(got drive.Outcome) []string {
		if got.Status != 0 {
			t.Fatalf("status %d\n%s", got.Status, got.Stderr)
		}
		var lines []string
		for line := range strings.Lines(got.Stderr) {
			if r, ok := eventShape(line); ok {
				lines = append(lines, r)
			}
		}
		return lines
	}
	theirs := shape(drive.Torchrun(t, nil, args...))
	ours := shape(drive.Run(t, nil, append([]string{"torchrun"}, args...)...))
	if len(theirs) == 0 {
		t.Fatal("the real torchrun printed no event")
	}
	if diff := cmp.Diff(theirs, ours); diff != "" {
		t.Errorf("events differ (-torchrun +muster):\n%s", diff)
	}
}

var eventVarying = regexp.MustCompile(`"(run_id|worker_id|timestamp|duration_ms|total_run_time|hostname)": ?("[^"]*"|[0-9.]+|null),? ?`)

// eventShape returns what two launchers must agree on in an event record: all but ids, times and the order of keys.
func eventShape(line string) (string, bool) {
	if !strings.HasPrefix(line, `{"name"`) {
		return "", false
	}
	line = eventVarying.ReplaceAllString(strings.TrimSpace(line), "")
	line = strings.NewReplacer(`": `, `":`, `, `, `,`).Replace(line)
	parts := strings.Split(line, `,`)
	slices.Sort(parts)
	return fmt.Sprint(parts), true
}

// TestFileTimer lets a worker overstay its own torchelastic timer, with PyTorch's client of it.
func TestFileTimer(t *testing.T) {
	t.Parallel()
	script := filepath.Join(t.TempDir(), "slow.py")
	text := "import os, time\nfrom torch.distributed.elastic import timer\n" +
		"timer.configure(timer.FileTimerClient(os.environ['TORCHELASTIC_TIMER_FILE']))\n" +
		"with timer.expires(after=300):\n    pass\n" +
		"with timer.expires(after=0.5, scope='too slow'):\n    time.sleep(120)\n"
	if err := os.WriteFile(script, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	got := drive.Run(t, []string{"PYTHON_EXEC=" + testutil.Torch(t), "TORCHELASTIC_ENABLE_FILE_TIMER=1"},
		"torchrun", "--standalone", script)
	if got.Status != 137 || !strings.Contains(got.Stderr, "too slow") {
		t.Errorf("status %d, want 137\n%s", got.Status, got.Stderr)
	}
}
