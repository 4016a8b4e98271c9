package main

import (
	"strings"
	"testing"
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
