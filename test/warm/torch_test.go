package warm

import (
	"encoding/json"
	"fmt"
	"os/exec"
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

// logLine is what the tests read of a line of muster's own log.
type logLine struct {
	Level   string `json:"level"`
	Message string `json:"message"`
	Rank    *int   `json:"rank"`
}

// splitLog parts stderr into muster's log and everything else, such as what the workers printed.
func splitLog(stderr string) (lines []logLine, rest string) {
	var others strings.Builder
	for text := range strings.Lines(stderr) {
		var l logLine
		if json.Unmarshal([]byte(text), &l) == nil && l.Message != "" {
			lines = append(lines, l)
		} else {
			others.WriteString(text)
		}
	}
	return lines, others.String()
}

// wantForks fails the test unless one template served the job and each of two ranks was forked from it attempts times.
func wantForks(t *testing.T, got drive.Outcome, attempts int) {
	t.Helper()
	lines, _ := splitLog(got.Stderr)
	ready, forks := 0, map[int]int{}
	for _, l := range lines {
		switch {
		case l.Message == "template ready":
			ready++
		case l.Message == "worker forked from the template" && l.Rank != nil:
			forks[*l.Rank]++
		}
	}
	if diff := cmp.Diff(map[int]int{0: attempts, 1: attempts}, forks); diff != "" || ready != 1 {
		t.Errorf("%d templates became ready, want 1; forks by rank (-want +got):\n%s\n%s", ready, diff, got.Stderr)
	}
}

// warmed puts the flags in front of a dialect that make its workers warm and tell of it.
func warmed(args ...string) []string { return warmedWith("auto", args...) }

func warmedWith(modules string, args ...string) []string {
	// On a busy machine the imports of transformers take longer than the 60 s of the default.
	return append([]string{"--warm", modules, "--warm-wait", "300", "--log-level", "debug"}, args...)
}

// sortedLines is text with its lines in an order that does not depend on which rank was faster.
func sortedLines(text string) []string {
	return slices.Sorted(strings.Lines(text))
}

// finished runs a job of two workers with flags for warm starts, and fails the test unless both were forked and come to
// their end.
func finished(t *testing.T, environ, args []string) drive.Outcome {
	t.Helper()
	warm := drive.StartFor(t, drive.CompileLimit, environ, args...).End()
	if warm.Status != 0 || strings.Count(warm.Stdout, "finished") != 2 {
		t.Fatalf("warm: status %d\n%s%s", warm.Status, warm.Stdout, warm.Stderr)
	}
	wantForks(t, warm, 1)
	return warm
}

// sameOutput runs a job of two workers warm and then cold, and fails the test unless both succeed and print the same.
// The last entry of a name in an environment counts: warmOnly overrides environ.
func sameOutput(t *testing.T, environ, warmOnly []string, args ...string) {
	t.Helper()
	warm := finished(t, slices.Concat(environ, warmOnly), warmed(args...))
	cold := drive.StartFor(t, drive.CompileLimit, environ, args...).End()
	if cold.Status != 0 {
		t.Fatalf("cold: status %d\n%s%s", cold.Status, cold.Stdout, cold.Stderr)
	}
	if diff := cmp.Diff(sortedLines(cold.Stdout), sortedLines(warm.Stdout)); diff != "" {
		t.Errorf("stdout differs (-cold +warm):\n%s", diff)
	}
	_, coldErr := splitLog(cold.Stderr)
	_, warmErr := splitLog(warm.Stderr)
	if diff := cmp.Diff(sortedLines(coldErr), sortedLines(warmErr)); diff != "" {
		t.Errorf("stderr differs (-cold +warm):\n%s", diff)
	}
}

// TestWarmTraining does in forked workers what training scripts do: gloo, DDP, both kinds of FSDP, data loaders and
// subprocesses that fork or spawn, imports of own modules. Two OpenMP threads, because a fork keeps only the calling
// one. The cold run forks where the warm one spawns: it gives the same results without importing PyTorch four more
// times.
func TestWarmTraining(t *testing.T) {
	t.Parallel()
	sameOutput(t, []string{"PYTHON_EXEC=" + testutil.Torch(t), "OMP_NUM_THREADS=2", "START_METHOD=fork"}, []string{"START_METHOD=spawn"},
		"torchrun", "--standalone", "--nproc-per-node", "2", drive.Script(t, "warmtorch", "train.py"))
}

// TestWarmModule trains a transformers model and compiles a layer, in a module run with -m. Under MUSTER_SOAK=1 rank 0
// of the warm run compiles to C++, rank 1 after it and the cold run find the code in the cache; else the compiler ends
// with its graphs. The cold run, which imports transformers and the compiler in each of its workers, runs under
// MUSTER_SOAK=1 only.
func TestWarmModule(t *testing.T) {
	t.Parallel()
	python := testutil.Torch(t)
	if _, err := exec.LookPath("g++"); err != nil && testutil.Soak() {
		testutil.Missing(t, "g++, which torch.compile calls")
	}
	environ := []string{
		"PYTHON_EXEC=" + python, "PYTHONPATH=" + drive.Script(t, "warmtorch"), "HF_HUB_OFFLINE=1", "HF_HOME=" + t.TempDir(),
		"TORCHINDUCTOR_CACHE_DIR=" + t.TempDir(), "TORCHINDUCTOR_VEC_ISA_OK=1", // else a program is compiled for each kind of vectors
	}
	args := []string{"torchrun", "--standalone", "--nproc-per-node", "2", "-m", "tiny.train", "--lr", "0.01"}
	if testutil.Soak() {
		sameOutput(t, environ, nil, args...)
		return
	}
	warm := finished(t, environ, warmedWith("auto,torch._dynamo", args...)) // else each worker imports that for its optimizer
	for rank := range 2 {
		said := fmt.Sprintf("rank %d: train.py is tiny.train of tiny, arguments ['--lr', '0.01']\n", rank)
		if !strings.Contains(warm.Stdout, said) {
			t.Errorf("no %q in:\n%s", said, warm.Stdout)
		}
	}
	if _, others := splitLog(warm.Stderr); others != "" {
		t.Errorf("the workers say:\n%s", others)
	}
}

var workerPrefix = regexp.MustCompile(`(?m)^\[\d\] `)

// TestWarmRestarts kills one of two workers in each of three attempts under the oldest PyTorch in use, and under
// MUSTER_SOAK=1 also under the newest. Every restart forks anew from the one template and trains on from the checkpoint.
func TestWarmRestarts(t *testing.T) {
	t.Parallel()
	t.Run("Debian's PyTorch 1.13.1", func(t *testing.T) { warmRestarts(t, testutil.DebianTorch(t), 3) })
	if testutil.Soak() {
		t.Run("PyTorch "+testutil.TorchVersion, func(t *testing.T) { warmRestarts(t, testutil.Torch(t), 3) })
	}
}

// warmRestarts compares a warm job that loses workers with a cold one in which nobody dies: its losses must be the
// same.
func warmRestarts(t *testing.T, python string, kills int) {
	train := func(kills int, args ...string) drive.Outcome {
		args = append(args, "run", "-n", "2", "--max-restarts", strconv.Itoa(kills), "--", python, "-u",
			drive.Script(t, "warmtorch", "resume.py"))
		got := drive.Run(t, []string{
			"KILLS=" + strconv.Itoa(kills), "CHECKPOINT=" + filepath.Join(t.TempDir(), "checkpoint"),
		}, args...)
		if got.Status != 0 {
			t.Fatalf("status %d\n%s%s", got.Status, got.Stdout, got.Stderr)
		}
		got.Stdout = workerPrefix.ReplaceAllString(got.Stdout, "")
		return got
	}
	warm, cold := train(kills, warmed()...), train(0)
	wantForks(t, warm, kills+1)

	var want []string
	for attempt := range kills + 1 {
		for rank := range 2 {
			want = append(want, fmt.Sprintf("rank %d: attempt %d starts at step %d\n", rank, attempt, 2*attempt))
		}
	}
	losses, _ := partLines(cold.Stdout, "losses")
	want = append(want, losses...)
	draws, got := partLines(warm.Stdout, "drew")
	slices.Sort(want)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); len(losses) != 2 || diff != "" {
		t.Errorf("%d losses of the cold job, want 2; the warm one printed (-want +got):\n%s", len(losses), diff)
	}
	slices.Sort(draws)
	if n, distinct := 4*(kills+1), len(slices.Compact(slices.Clone(draws))); len(draws) != n || distinct != n {
		t.Errorf("%d random draws, %d of them distinct, want %d:\n%s", len(draws), distinct, n, strings.Join(draws, ""))
	}
}

// partLines returns the lines of text with word in them, and the others.
func partLines(text, word string) (with, without []string) {
	for line := range strings.Lines(text) {
		if strings.Contains(line, word) {
			with = append(with, line)
		} else {
			without = append(without, line)
		}
	}
	return with, without
}

var failureVarying = regexp.MustCompile(`(time +: ).*|(\(pid: )\d+|(error_file: ).*(/attempt_)`)

// TestWarmErrorFile lets a forked worker decorated with torch's record fail: its traceback and the summary are those of
// a cold one, line by line.
func TestWarmErrorFile(t *testing.T) {
	t.Parallel()
	environ := []string{"PYTHON_EXEC=" + drive.SomeTorch(t)}
	args := []string{"torchrun", "--standalone", "--nproc-per-node", "2", drive.Script(t, "warmtorch", "boom.py")}
	warm, cold := drive.Run(t, environ, warmed(args...)...), drive.Run(t, environ, args...)
	wantForks(t, warm, 1)
	if warm.Status != 1 || cold.Status != 1 {
		t.Errorf("status %d warm, %d cold, want 1", warm.Status, cold.Status)
	}
	_, coldErr := splitLog(cold.Stderr)
	_, warmErr := splitLog(warm.Stderr)
	for _, want := range []string{
		"rank      : 1 (local_rank: 1)", "ZeroDivisionError: integer division or modulo by zero",
		"attempt_0/1/error.json",
	} {
		if !strings.Contains(coldErr, want) {
			t.Errorf("the cold summary lacks %q:\n%s", want, coldErr)
		}
	}
	steady := func(text string) string { return failureVarying.ReplaceAllString(text, "$1$2$3$4") }
	if diff := cmp.Diff(steady(coldErr), steady(warmErr)); diff != "" {
		t.Errorf("stderr differs (-cold +warm):\n%s", diff)
	}
}
