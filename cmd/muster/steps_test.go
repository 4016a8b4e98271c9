package main

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"muster/internal/testutil"
	"muster/launch/control"
	"muster/launch/report"
)

// stepping is a training that tells its steps, 50 ms each, and goes on where the one before it has saved one: each fifth. Rank
// 0 fails after the steps that FAIL names, once each.
const stepping = `
import os, sys, time
import muster
rank, marks = int(os.environ["RANK"]), os.environ["MARKS"]
at = os.path.join(marks, "saved")
begin = int(open(at).read()) if os.path.exists(at) else 0
time.sleep(float(os.environ.get("IMPORT", "0")))
for n in range(begin + 1, int(os.environ.get("STEPS", "100000")) + 1):
    time.sleep(0.05)
    muster.progress.step(n, total=100000, loss=1/n, bad=float("nan"))
    if rank == 0 and n % 5 == 0:
        open(at + "~", "w").write(str(n))
        os.rename(at + "~", at)
    mark = os.path.join(marks, "failed %d" % n)
    if rank == 0 and str(n) in os.environ.get("FAIL", "").split() and not os.path.exists(mark):
        open(mark, "w")
        sys.exit(7)
`

// untilSteps waits until all of n ranks have told of so many steps.
func untilSteps(t *testing.T, runtimeDir string, n int, step int64) control.Answer {
	t.Helper()
	var a control.Answer
	testutil.Eventually(t, time.Minute, fmt.Sprintf("%d ranks are at step %d", n, step), func() bool {
		a, _ = statusOf(t, runtimeDir)
		there := 0
		for _, r := range a.Ranks {
			if p := r.Progress; p != nil && p.Step >= step && p.StepSeconds != nil {
				there++
			}
		}
		return there == n && a.Phase == report.PhaseRunning
	})
	return a
}

// TestSeeSteps sees how far workers have come, anew after a restart, and nothing where they tell nothing.
func TestSeeSteps(t *testing.T) {
	t.Parallel()
	script := filepath.Join(t.TempDir(), "train.py")
	if err := os.WriteFile(script, []byte(stepping), 0o600); err != nil {
		t.Fatal(err)
	}
	j := start(t, []string{"MARKS=" + t.TempDir()}, "run", "-n", "2", "--ckpt", "on", "--", "python3", script)
	a := untilSteps(t, j.runtimeDir, 2, 20)
	for _, r := range a.Ranks {
		p := r.Progress
		if p.Total != 100000 || *p.StepSeconds < 0.05 || *p.StepSeconds > 5 || p.Section != "" || p.Values["loss"] != 1/float64(p.Step) ||
			len(p.Values) != 1 || len(p.NotFinite) != 1 || time.Since(p.Time) > time.Minute {
			t.Errorf("%+v", p)
		}
	}
	steering(t, j.runtimeDir, "status").expect(t, 0, "STEP TIME\n", "/100000  ")
	steering(t, j.runtimeDir, "status", "-o", "wide").expect(t, 0, "VALUES", "bad=nan", "loss=0.0")
	steering(t, j.runtimeDir, "restart").expect(t, 0)
	testutil.Eventually(t, time.Minute, "the workers begin anew", func() bool {
		b, _ := statusOf(t, j.runtimeDir)
		return len(b.Ranks) == 2 && b.Generation == 1 && (b.Ranks[0].Progress == nil || b.Ranks[0].Progress.StepSeconds == nil || b.Ranks[0].PID != a.Ranks[0].PID)
	})
	untilSteps(t, j.runtimeDir, 2, a.Ranks[0].Progress.Step)
	steering(t, j.runtimeDir, "stop").expect(t, 0)
	j.wait().expect(t, 143)
	j.nothingLeft(j.runtimeDir)
}

// TestSeeStepsOfOtherNodes sees on each of two nodes how far the workers of both have come.
func TestSeeStepsOfOtherNodes(t *testing.T) {
	t.Parallel()
	script := filepath.Join(t.TempDir(), "train.py")
	if err := os.WriteFile(script, []byte(stepping), 0o600); err != nil {
		t.Fatal(err)
	}
	flags, _ := staticFlags(t, 2)
	m := newMeet(t, "exec python3 "+script, append(flags, "--nproc-per-node=2")...)
	m.env, m.native = []string{"MARKS=" + t.TempDir(), "MUSTER_CKPT=on"}, true
	one, zero := m.start(1, "--node-rank=1"), m.start(0, "--node-rank=0")
	for _, j := range []*testJob{one, zero} {
		a := untilSteps(t, j.runtimeDir, 4, 10)
		far := a.Ranks[3*(1-a.GroupRank)].Progress // of the other node
		testutil.Eventually(t, time.Minute, "what is known of the other node goes on", func() bool {
			b, _ := statusOf(t, j.runtimeDir)
			return len(b.Ranks) == 4 && b.Ranks[3*(1-b.GroupRank)].Progress.Step >= far.Step+20
		})
	}
	steering(t, one.runtimeDir, "stop").expect(t, 0)
	m.ends(one, 143)
	m.ends(zero, 143)
}
