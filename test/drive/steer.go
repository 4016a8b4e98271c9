package drive

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"muster/cmd/console"
	"muster/internal/testutil"
	"muster/launch/control"
	"muster/launch/report"
)

// Apart is the environment of a muster that finds no other jobs than those with the same run directories.
func Apart(runtimeDir string) []string {
	return []string{"XDG_RUNTIME_DIR=" + runtimeDir, "TMPDIR=" + runtimeDir}
}

// besideLimit is how long a command beside a job may take. One that a job does not answer gives up after 5 s.
const besideLimit = 2 * time.Minute

// Beside runs muster beside jobs with the same run directories. One that does not end is killed; its status is -1 then.
func Beside(t *testing.T, runtimeDir string, args ...string) Outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), besideLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "muster", args...)
	cmd.Env = append(append(CleanEnviron(), Apart(runtimeDir)...), console.FormatVariable+"=text")
	cmd.WaitDelay = 10 * time.Second // what it has started may hold the pipes
	var out, err bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &err
	began := time.Now()
	_ = cmd.Run() // its status says it
	return Outcome{cmd.ProcessState.ExitCode(), out.String(), err.String(), time.Since(began)}
}

// ID names the job for commands beside it: other jobs of this user may run on the machine.
func (j *Job) ID() string { return strconv.Itoa(j.Process.Pid) }

// Beside runs muster beside the job, which it names behind args.
func (j *Job) Beside(args ...string) Outcome {
	j.t.Helper()
	return Beside(j.t, j.RuntimeDir, append(args, j.ID())...)
}

// StatusOf is what muster status says of a job.
func StatusOf(t *testing.T, runtimeDir string, args ...string) (control.Answer, Outcome) {
	t.Helper()
	got := Beside(t, runtimeDir, append([]string{"status", "-o", "json"}, args...)...)
	var a control.Answer
	if got.Status == 0 {
		if err := json.Unmarshal([]byte(got.Stdout), &a); err != nil {
			t.Fatalf("%v:\n%s", err, got.Stdout)
		}
	}
	return a, got
}

// UntilRanks waits until so many workers of a job run.
func UntilRanks(t *testing.T, runtimeDir string, n int, args ...string) control.Answer {
	t.Helper()
	var a control.Answer
	testutil.Eventually(t, time.Minute, fmt.Sprintf("%d workers run", n), func() bool {
		a, _ = StatusOf(t, runtimeDir, args...)
		running := 0
		for _, r := range a.Ranks {
			if r.Phase == report.PhaseRunning {
				running++
			}
		}
		return a.Phase == report.PhaseRunning && running == n
	})
	return a
}

// Expect fails the test unless a command has ended with a status, and said certain things.
func (o Outcome) Expect(t *testing.T, status int, says ...string) {
	t.Helper()
	if o.Status != status {
		t.Errorf("status %d, want %d\n%s%s", o.Status, status, o.Stdout, o.Stderr)
	}
	for _, s := range says {
		if !strings.Contains(o.Stdout+o.Stderr, s) {
			t.Errorf("it has not said %q:\n%s%s", s, o.Stdout, o.Stderr)
		}
	}
}

// UntilNodes waits until workers run on so many nodes, one on each, and returns the number of the round.
func UntilNodes(t *testing.T, runtimeDir string, n int) int {
	t.Helper()
	generation := 0
	testutil.Eventually(t, time.Minute, fmt.Sprintf("workers run on %d nodes", n), func() bool {
		a, _ := StatusOf(t, runtimeDir)
		running := 0
		for _, r := range a.Ranks {
			if r.Phase == report.PhaseRunning {
				running++
			}
		}
		generation = a.Generation
		return a.Phase == report.PhaseRunning && a.Nodes == n && a.WorldSize == n && running == n
	})
	return generation
}

// UntilPhase waits until a job stands in a phase, and no worker of it runs: the node that answers hears of another one's a
// little later.
func UntilPhase(t *testing.T, runtimeDir string, phase report.Phase, args ...string) control.Answer {
	t.Helper()
	var a control.Answer
	testutil.Eventually(t, time.Minute, "the job is "+string(phase)+", and none of its workers runs", func() bool {
		a, _ = StatusOf(t, runtimeDir, args...)
		return a.Phase == phase && !slices.ContainsFunc(a.Ranks, func(r report.Rank) bool {
			return r.Phase == report.PhaseRunning || phase == report.PhasePaused && unix.Kill(r.PID, 0) == nil
		})
	})
	return a
}
