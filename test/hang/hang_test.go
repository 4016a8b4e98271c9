package hang

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"muster/internal/testutil"
	"muster/launch/diagnose"
	"muster/launch/evidence"
	"muster/test/drive"
)

// hanging starts a job of PyTorch with so many ranks that hangs in ways, one after the other, and waits until the ranks
// have met for the first.
func hanging(t *testing.T, ways string, ranks int, flags ...string) (j *drive.Job, ready string) {
	t.Helper()
	python := testutil.Torch(t)
	ready = filepath.Join(t.TempDir(), "ready")
	name, _, _ := strings.Cut(ways, ",")
	args := append([]string{"run", "-n", fmt.Sprint(ranks), "--run-id", "hang-" + name, "--grace", "1s"}, flags...)
	args = append(args, drive.Warm("torch")...)
	j = drive.Start(t, nil, append(args, "--", python, drive.Script(t, "hang.py"), ways, ready)...)
	meets(t, ready, 0)
	return j, ready
}

// meets waits until the ranks have met for a way.
func meets(t *testing.T, ready string, number int) {
	t.Helper()
	testutil.Eventually(t, time.Minute, fmt.Sprintf("the ranks have met for way %d", number), func() bool {
		_, err := os.Stat(fmt.Sprintf("%s.%d", ready, number))
		return err == nil
	})
}

// judged is what muster diagnose says, once it says that much; after three minutes what it says then. Before, a process may
// still be on its way to where it hangs, or one that gets no core has not answered yet where it is.
func judged(t *testing.T, j *drive.Job, kind diagnose.Kind, says []string) (v diagnose.Verdict) {
	t.Helper()
	for began := time.Now(); time.Since(began) < 3*time.Minute; time.Sleep(50 * time.Millisecond) {
		got := drive.Beside(t, j.RuntimeDir, "diagnose", "-o", "json")
		v = diagnose.Verdict{}
		if got.Status == 0 && json.Unmarshal([]byte(got.Stdout), &v) == nil && v.Kind == kind &&
			!slices.ContainsFunc(says, func(s string) bool { return !strings.Contains(v.Sentence, s) }) {
			return v
		}
	}
	told := j.Out.String() + j.Err.String()
	t.Errorf("it does not hang by %s: %s\n%s\nthe job has said: %s", kind, v.Sentence, strings.Join(v.Evidence, "\n"),
		told[max(0, len(told)-4000):])
	return v
}

// TestStacksOfHealthyJob looks at a job again and again: it ends with the result that it has without being looked at.
func TestStacksOfHealthyJob(t *testing.T) {
	t.Parallel()
	j, _ := hanging(t, "healthy", 2, "--stacks", "on")
	dir := t.TempDir()
	looks := 0
	for a, _ := drive.StatusOf(t, j.RuntimeDir); a.Phase == "Running"; a, _ = drive.StatusOf(t, j.RuntimeDir) {
		for _, end := range []string{".svg", ".folded", ".pb.gz"} {
			if got := drive.Beside(t, j.RuntimeDir, "stacks", "--native", "--out", filepath.Join(dir, "s"+end)); got.Status == 0 {
				looks++
			}
		}
	}
	j.End().Expect(t, 0, "rank 0 result 60.0", "rank 1 result 60.0")
	if looks < 2 {
		t.Errorf("it was looked at %d times", looks)
	}
	svg, err := os.Open(filepath.Join(dir, "s.svg"))
	if err != nil {
		t.Fatal(err)
	}
	defer svg.Close()
	for d := xml.NewDecoder(svg); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

// TestStacksWithoutPython looks at workers that are no Python, and at Python that was not told to answer: they live on.
func TestStacksWithoutPython(t *testing.T) {
	t.Parallel()
	for _, flags := range [][]string{{"--stacks", "on"}, nil} {
		args := append([]string{"run", "-n", "2", "--max-restarts", "0"}, flags...)
		j := drive.Start(t, nil, append(args, "--", "sleep", "3600")...)
		a := drive.UntilRanks(t, j.RuntimeDir, 2)
		var got drive.Outcome
		testutil.Eventually(t, time.Minute, "both ranks sleep", func() bool {
			got = drive.Beside(t, j.RuntimeDir, "stacks")
			return strings.Contains(got.Stdout, "ranks 0-1, process sleep")
		})
		got.Expect(t, 0, "state S")
		drive.Beside(t, j.RuntimeDir, "diagnose").Expect(t, 0, "no Python stacks: it is no Python that answers")
		drive.Beside(t, j.RuntimeDir, "stacks", "--out", "s.png").Expect(t, 2, ".svg or .pb.gz")
		for _, r := range a.Ranks {
			if err := syscall.Kill(r.PID, 0); err != nil {
				t.Errorf("rank %d is gone: %v", r.Rank, err)
			}
		}
		drive.Beside(t, j.RuntimeDir, "stop", "--now").Expect(t, 0)
		j.End().Expect(t, 143)
	}
}

// TestHangRestarts hangs a job by a stopped process: it is explained, its evidence is kept, and the workers that start
// again go on to their end.
func TestHangRestarts(t *testing.T) {
	t.Parallel()
	logs := t.TempDir()
	j, ready := hanging(t, "stopped", 3, "--hang-timeout", "3s", "--on-hang", "dump,restart", "--max-restarts", "1", "--log-dir", logs,
		"--redirects", "3")
	if err := os.WriteFile(ready+".again", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	j.End().Expect(t, 0, `"reason":"rank 1 has not come to all_reduce: it is stopped by a signal`,
		`"message":"the workers hang"`, `"reason":"no worker has shown a sign of life for 3`)
	kept, err := filepath.Glob(filepath.Join(logs, "*", "hangs", "*"))
	if err != nil || len(kept) != 3 {
		t.Fatalf("%v %v", kept, err)
	}
	text, err := os.ReadFile(kept[0])
	var whole struct {
		Verdict diagnose.Verdict
		Nodes   []evidence.Node
	}
	if err != nil || json.Unmarshal(text, &whole) != nil || whole.Verdict.Kind != diagnose.Stopped || len(whole.Nodes[0].Ranks) != 3 ||
		whole.Nodes[0].Ranks[1].Silent < 3 {
		t.Errorf("%v %s", err, text)
	}
}

// TestHangSpins hangs a job whose ranks keep their processors busy while they wait for their devices. Without
// MUSTER_SOAK=1 it is the one that hangs in Python processes that started cold.
func TestHangSpins(t *testing.T) {
	t.Parallel()
	python := testutil.Torch(t)
	j := drive.Start(t, nil, "run", "-n", "2", "--hang-timeout", "3s", "--on-hang", "fail", "--grace", "1s", "--", python,
		drive.Script(t, "spin.py"))
	j.End().Expect(t, 124, `"kind":"sleep"`, "rank 1 has not come to all_reduce: it sleeps at spin.py:16",
		"rank 0 waits for it in all_reduce at spin.py:18 in <module> (hashlib.pbkdf2_hmac(")
}

// TestHangFails hangs a job that nobody wants to go on: it fails with the status of a deadline, and says why.
func TestHangFails(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j := drive.Start(t, nil, "run", "-n", "2", "--hang-timeout", "2s", "--on-hang", "fail", "--hang-dir", dir, "--grace", "1s", "--",
		"python3", "-c", "import time\nif True: time.sleep(3600)")
	j.End().Expect(t, 124, "no worker has shown a sign of life for", "ranks 0-1: each sleeps at <string>:2 in <module>")
	drive.Run(t, nil, "xpu_timer_stacktrace_viewer", "--path", t.TempDir()).Expect(t, 2, "there is no evidence of a hang in ")
	drive.Run(t, nil, "xpu_timer_stacktrace_viewer", "--path", dir).Expect(t, 0, "py_stack.svg", "cpp_stack.svg")
	for name, want := range map[string]string{
		"py_stack": "main_thread@0-1|;<module>@<string>:2@0-1| 2\n", "cpp_stack": "process_python3@0-1|;state_S@kernel@0-1|;",
		"py_stack.svg": "merge stack in py", "cpp_stack.svg": "merge stack in cpp",
	} {
		if text, err := os.ReadFile(filepath.Join(dir, name)); err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%s: %v\n%s", name, err, text)
		}
	}
}

// TestHangAuto hangs a job that has told its steps: no time-out was given, and a minute is enough.
func TestHangAuto(t *testing.T) {
	t.Parallel()
	j := drive.Start(t, nil, "run", "-n", "2", "--ckpt", "on", "--hang-timeout", "auto", "--on-hang", "fail", "--grace", "1s", "--",
		"python3", "-c", `
import muster, time
for step in range(1, 31):
    time.sleep(0.1)
    muster.progress.step(step)
time.sleep(3600)`)
	j.End().Expect(t, 124, "no worker has shown a sign of life for 1m",
		" (--hang-timeout auto: 1m0s): ranks 0-1: each sleeps at <string>:6")
}

// TestHangDump hangs a job that is only looked at: what was found is in its status and its events, once, and the job
// goes on; one that writes, computes or tells of its steps does not hang.
func TestHangDump(t *testing.T) {
	t.Parallel()
	seen := filepath.Join(t.TempDir(), "seen")
	j := drive.Start(t, nil, "run", "-n", "1", "--hang-timeout", "2s", "--", "sh", "-c", `until [ -e "$0" ]; do sleep 0.2; done`, seen)
	testutil.Eventually(t, time.Minute, "the hang is told", func() bool {
		return strings.Contains(drive.Beside(t, j.RuntimeDir, "status").Stdout, "the workers hung at ")
	})
	drive.Beside(t, j.RuntimeDir, "events").Expect(t, 0, "the workers hang: rank 0 ")
	if err := os.WriteFile(seen, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	got := j.End()
	got.Expect(t, 0)
	if n := strings.Count(got.Stderr, "the workers hang"); n != 1 {
		t.Errorf("said %d times\n%s", n, got.Stderr)
	}
	computing := "1" // its ranks compute for 6 s
	if testutil.Soak() {
		computing = "2"
	}
	for text, ranks := range map[string]string{
		"for i in 1 2 3 4 5 6 7 8 9 10 11 12; do echo $i; sleep 0.5; done": "2",
		"timeout 6 sh -c 'while :; do :; done'; true":                      computing,
	} {
		got := drive.Run(t, nil, "run", "-n", ranks, "--tee", "3", "--hang-timeout", "3s", "--on-hang", "fail", "--", "sh", "-c", text)
		got.Expect(t, 0)
	}
}

// TestCrashLoop has a job fail at the same step again and again: it ends before its restarts are used up, with the
// status for that, and says what the failures have in common. One that comes a step further each time goes on.
func TestCrashLoop(t *testing.T) {
	t.Parallel()
	const script = `
import muster, os, sys
n = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
for step in range(1, 6 + n * int(sys.argv[1])):
    muster.progress.step(step)
if n < 3: raise ValueError("bad sample")`
	run := func(further string) drive.Outcome {
		return drive.Run(t, nil, "run", "-n", "1", "--ckpt", "on", "--max-restarts", "9", "--crash-loop", "2", "--restart-delay", "0",
			"--", "python3", "-c", script, further)
	}
	run("0").Expect(t, 93, "rank 0 ended with status 1, and 2 restarts in a row have not brought the job further",
		"all 3 attempts failed in the same way: rank 0 by exit 1 at <string>:6 (ValueError: bad sample)",
		"2 of 9 used: 2 in a row have not brought the job further (--crash-loop)")
	run("1").Expect(t, 0)
}
