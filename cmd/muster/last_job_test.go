package main

import (
	"strings"
	"testing"
	"time"

	"muster/internal/testutil"
)

// Who asks without a name, and after the job has ended, hears of the last one of this user. To every other command
// a job that runs no more is none.
func TestLastJobIsMeant(t *testing.T) {
	t.Parallel()
	env := []string{"XDG_RUNTIME_DIR=" + t.TempDir()}
	for id, c := range map[string]struct{ script, phase string }{"first": {"exit 3", "Failed"}, "second": {"exit 0", "Succeeded"}} {
		muster(t, env, "--run-id", id, "run", "-n", "1", "--", "sh", "-c", c.script)
		got := muster(t, env, "events")
		if got.status != 0 || !strings.Contains(got.stderr, "this is what is kept of the last one, ") {
			t.Errorf("status %d\n%s%s", got.status, got.stdout, got.stderr)
		}
		// Another test's job, among temporary files, may have ended later.
		if strings.Contains(got.stderr, "the last one, "+id) && !strings.Contains(got.stdout, c.phase) {
			t.Errorf("%s: %s", id, got.stdout)
		}
	}
	for _, verb := range []string{"status", "stop", "restart", "pause"} {
		if got := muster(t, env, verb); got.status != 2 || !strings.Contains(got.stderr, "no job of yours runs here") {
			t.Errorf("%s: status %d\n%s", verb, got.status, got.stderr)
		}
	}
	if got := muster(t, env, "status"); !strings.Contains(got.stderr, "has ended: muster status ") {
		t.Errorf("who asks for a status is not told how the last one is seen:\n%s", got.stderr)
	}
}

// Who looks on while a muster is killed is told where to look then, and not that the job has ended: it may go on elsewhere.
func TestWatchedMusterDies(t *testing.T) {
	t.Parallel()
	j := start(t, nil, "run", "-n", "1", "--run-id", "watched", "--", "sh", "-c", "while :; do sleep 0.2; done")
	untilRanks(t, j.runtimeDir, 1)
	env := []string{"XDG_RUNTIME_DIR=" + j.runtimeDir}
	lookers := map[string]*testJob{}
	for _, args := range [][]string{{"status", "--watch"}, {"events", "-f"}} {
		looker := start(t, env, args...)
		testutil.Eventually(t, time.Minute, "it shows the job", func() bool { return strings.Contains(looker.out.String(), "Running") })
		lookers[args[0]] = looker
	}
	if err := j.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	j.wait()
	for name, looker := range lookers {
		if got := looker.wait(); got.status != 0 ||
			!strings.Contains(got.stderr, "its muster has ended: muster status watched shows how the job stood last") {
			t.Errorf("%s: status %d\n%s", name, got.status, got.stderr)
		}
	}
}
