package steer

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"muster/internal/testutil"
	"muster/launch/control"
	"muster/test/drive"
)

// Who asks without a name, and after the job has ended, hears of the last one of this user. To every other command
// a job that runs no more is none.
func TestLastJobIsMeant(t *testing.T) {
	t.Parallel()
	env := drive.Apart(t.TempDir())
	for id, c := range map[string]struct{ script, phase string }{"first": {"exit 3", "Failed"}, "second": {"exit 0", "Succeeded"}} {
		drive.Run(t, env, "--run-id", id, "run", "-n", "1", "--", "sh", "-c", c.script)
		got := drive.Run(t, env, "events")
		got.Expect(t, 0, "this is what is kept of the last one, "+id)
		if !strings.Contains(got.Stdout, c.phase) {
			t.Errorf("%s: %s", id, got.Stdout)
		}
	}
	for _, verb := range []string{"status", "stop", "restart", "pause"} {
		if got := drive.Run(t, env, verb); got.Status != 2 || !strings.Contains(got.Stderr, "no job of yours runs here") {
			t.Errorf("%s: status %d\n%s", verb, got.Status, got.Stderr)
		}
	}
	if got := drive.Run(t, env, "status"); !strings.Contains(got.Stderr, "has ended: muster status ") {
		t.Errorf("who asks for a status is not told how the last one is seen:\n%s", got.Stderr)
	}
}

// Who names a job that has ended to a command for jobs that run is told when and how it has ended.
func TestEndedJobIsNamed(t *testing.T) {
	t.Parallel()
	env, logs := drive.Apart(t.TempDir()), t.TempDir()
	drive.Run(t, env, "run", "--run-id", "over-1", "-n", "1", "--log-dir", logs, "--", "sh", "-c", "exit 3")
	for _, args := range [][]string{
		{"stop"}, {"restart"}, {"pause"}, {"resume"}, {"metrics"}, {"diagnose"}, {"stacks"}, {"top"}, {"scale", "2"}, {"kill-node", "0"},
	} {
		drive.Run(t, env, append(args, "over")...).Expect(t, 2, "job over-1 runs no more: it has ended at ",
			" with status 3, WorkerFailed", "muster status over-1 shows how it stood last")
	}
	drive.Run(t, env, "logs", "over-1").Expect(t, 2, " with status 3, WorkerFailed", "its workers' output: "+logs)
	drive.Run(t, env, "exec", "--run-id", "over-1", "--rank", "0", "--", "true").Expect(t, 2, " with status 3, WorkerFailed")
	drive.Run(t, env, "exec", "over-1", "--rank", "0", "--", "true").Expect(t, 2,
		`"over-1" stands in front of --rank`, "the job is named by --run-id: muster exec --run-id JOB --rank 0 -- COMMAND")
	drive.Run(t, env, "stop", "never").Expect(t, 2, `no job that runs here matches "never"`)
}

// Who looks on while a muster is killed is told so, and not that the job has ended: it may go on elsewhere.
func TestWatchedMusterDies(t *testing.T) {
	t.Parallel()
	j := drive.Start(t, nil, "run", "-n", "1", "--run-id", "watched", "--", "sh", "-c", "while :; do sleep 0.2; done")
	drive.UntilRanks(t, j.RuntimeDir, 1)
	env := drive.Apart(j.RuntimeDir)
	lookers := map[string]*drive.Job{}
	for _, args := range [][]string{{"status", "--watch"}, {"events", "-f"}} {
		looker := drive.Start(t, env, args...)
		testutil.Eventually(t, time.Minute, "it shows the job", func() bool { return strings.Contains(looker.Out.String(), "Running") })
		lookers[args[0]] = looker
	}
	testutil.Eventually(t, time.Minute, "something is kept of it", func() bool {
		kept, _ := filepath.Glob(filepath.Join(j.RuntimeDir, "muster", "history", "*", "run.json"))
		return len(kept) > 0
	})
	if err := j.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	j.End()
	for name, looker := range lookers {
		if got := looker.End(); got.Status != 0 || !strings.Contains(got.Stderr, "its muster died, and was last heard of at ") {
			t.Errorf("%s: status %d\n%s", name, got.Status, got.Stderr)
		}
	}
	drive.Run(t, env, "status", "watched").Expect(t, 0, "job watched (sh): Running when its muster died, up ")
	got := drive.Run(t, env, "status", "watched", "-o", "json")
	var a control.Answer
	if err := json.Unmarshal([]byte(got.Stdout), &a); err != nil || !a.Died || a.EndTime == nil || a.ExitStatus != nil {
		t.Errorf("%v\n%s", err, got.Stdout)
	}
}

// Who follows a job of several musters is shown its end, also where all of them end between two questions.
func TestFollowedToTheEnd(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	gate := filepath.Join(dir, "gate")
	j := drive.Start(t, []string{"MUSTER_FAKE=" + filepath.Join("..", "..", "examples", "cluster.yaml")},
		"run", "--simulate-nodes", "2", "-n", "1", "--run-id", "followed", "--",
		"sh", "-c", "until [ -e "+gate+" ]; do sleep 0.1; done; exit 5")
	drive.UntilRanks(t, j.RuntimeDir, 2)
	env := drive.Apart(j.RuntimeDir)
	lookers := map[string]*drive.Job{}
	for _, args := range [][]string{{"status", "--watch"}, {"events", "-f"}} {
		looker := drive.Start(t, env, args...)
		testutil.Eventually(t, time.Minute, "it shows the job", func() bool { return strings.Contains(looker.Out.String(), "Running") })
		lookers[args[0]] = looker
	}
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	j.End()
	for name, words := range map[string][]string{
		"status": {"job followed (sh): Failed, WorkerFailed", "it has ended at "},
		"events": {", ended with status 5", " Terminating, round 0", "\n", " Failed, round 0, exit status 5: WorkerFailed"},
	} {
		lookers[name].End().Expect(t, 0, words...)
	}
}

// Commands beside a job of a test do not find what other jobs of this user have in the directories of all users: one of them
// would be meant as well by a command that names no job.
func TestJobsOfTheMachineAreNotFound(t *testing.T) {
	t.Parallel()
	for _, dir := range []string{"/tmp", "/var/tmp", "/dev/shm"} {
		parent := filepath.Join(dir, fmt.Sprintf("muster-%d", os.Getuid()))
		other := filepath.Join(parent, fmt.Sprintf("job-other-%d", os.Getpid()))
		if err := os.MkdirAll(other, 0o700); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = os.Remove(other)
			_ = os.Remove(parent) // it stays while there are others
		})
	}
	got := drive.Beside(t, t.TempDir(), "ps")
	got.Expect(t, 0, "no job of yours runs here")
	if strings.Contains(got.Stdout, "other-") {
		t.Errorf("it shows a job of the machine:\n%s", got.Stdout)
	}
}
