package jobs

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"muster/internal/testutil"
	"muster/launch/report"
	"muster/test/drive"
)

// scenarioWorker counts the starts of its rank by files, waits until both ranks have started so often, and does what
// the scenario says.
const scenarioWorker = `cd '%s'
r=${HOROVOD_RANK:-${OMPI_COMM_WORLD_RANK:-$RANK}}
k=0
while [ -e $r.$k ]; do k=$((k+1)); done
: >$r.$k
until [ -e 0.$k -a -e 1.$k ]; do sleep 0.1; done
%s
`

// scenario is what happens to a job.
type scenario struct {
	name   string
	worker string // what it does in its start number $k, as rank $r
	status int
	starts int // of each rank; -1: steer has seen to it, and on a busy machine there may be more
	// steer does something with the job that runs; dir is the workers' own.
	steer func(t *testing.T, j *drive.Job, dir string)
	left  string // a file that the workers leave
	// ruled says that a kind has it only by its rules, soak that it is tried by make soak alone.
	ruled, soak bool
}

var scenarios = []scenario{
	{name: "basic", worker: "exit 0", starts: 1, soak: true}, // TestJobFileKinds, and "pause", which ends as well
	{name: "debug", worker: "exit 0", steer: debugged, status: 143},
	{name: "pause", worker: "until [ $k = 1 -a -e end ]; do sleep 0.2; done", starts: 2, steer: pausedAndResumed},
	{name: "limit", worker: "[ $r = 0 ] || exit 9; sleep 1000", status: 9, starts: 2, ruled: true},
	{name: "exit code", worker: "[ $r = 0 ] || { [ $k = 1 ] && exit 7; exit 137; }; sleep 1000", status: 7, starts: 2, ruled: true},
	{name: "deadline", worker: "sleep 1000", status: 124, starts: 1, ruled: true, soak: true},
	{
		name: "node loss", worker: "until [ $k != 0 -a -e end ]; do sleep 0.2; done", starts: -1, ruled: true,
		steer: func(t *testing.T, j *drive.Job, dir string) {
			t.Helper()
			startAgain(t, dir, func() {
				j.Beside("kill-node", "1").Expect(t, 0, "kills itself")
			})
		},
	},
	{name: "clean all", worker: "[ $r = 1 ] || exit 9; sleep 1000", status: 9, starts: 1, ruled: true},
	{
		name: "clean none", worker: "[ $r = 1 ] || { : >gone; exit 9; }; until [ -e gone ]; do sleep 0.1; done; sleep 3; : >ended",
		status: 9, starts: 1, ruled: true, soak: true,
		left: "ended", // by the worker that was left, which was waited for
	},
}

// debugged finds the job's debug command in the workers' places, and stops it.
func debugged(t *testing.T, j *drive.Job, dir string) {
	t.Helper()
	testutil.Eventually(t, time.Minute, "the debug command runs", func() bool {
		_, err := os.Stat(filepath.Join(dir, "debugged"))
		return err == nil
	})
	j.Beside("stop").Expect(t, 0)
}

// startAgain has something done that both workers start again for, and lets those end.
func startAgain(t *testing.T, dir string, do func()) {
	t.Helper()
	started := func(k int) {
		t.Helper()
		testutil.Eventually(t, time.Minute, fmt.Sprintf("both workers have started %d times", k+1), func() bool {
			return len(startsIn(t, dir)[k]) == 2
		})
	}
	started(0)
	do()
	started(1)
	if err := os.WriteFile(filepath.Join(dir, "end"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

// pausedAndResumed pauses a job, whose workers end, and resumes it.
func pausedAndResumed(t *testing.T, j *drive.Job, dir string) {
	t.Helper()
	startAgain(t, dir, func() {
		j.Beside("pause").Expect(t, 0, "muster resume")
		drive.UntilPhase(t, j.RuntimeDir, report.PhasePaused, j.ID())
		if left := drive.Processes(t, filepath.Join(dir, "worker")); len(left) > 0 {
			t.Errorf("workers run while the job is paused: %d", left)
		}
		j.Beside("resume").Expect(t, 0)
	})
}

// startsIn are the ranks that have started so often.
func startsIn(t *testing.T, dir string) map[int][]string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "[0-9].[0-9]"))
	if err != nil {
		t.Fatal(err)
	}
	starts := map[int][]string{}
	for _, name := range found {
		k := int(name[len(name)-1] - '0')
		starts[k] = append(starts[k], filepath.Base(name))
	}
	return starts
}

// TestJobFileScenarios has the same happen to jobs of all kinds, whose files say the rules in their own words.
func TestJobFileScenarios(t *testing.T) {
	for _, k := range scenarioKinds {
		for _, s := range scenarios {
			rules, has := k.rules[s.name]
			if s.ruled && !has || s.soak && !testutil.Soak() {
				continue
			}
			t.Run(k.name+" "+s.name, func(t *testing.T) {
				t.Parallel()
				dir := t.TempDir()
				worker := filepath.Join(dir, "worker")
				for name, text := range map[string]string{
					"worker":    fmt.Sprintf(scenarioWorker, dir, s.worker),
					"worker.py": fmt.Sprintf("import os\nos.execvp('sh', ['sh', %q])\n", worker),
					"debug":     fmt.Sprintf(": >'%s'/debugged; exec sleep 1000\n", dir),
				} {
					if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
						t.Fatal(err)
					}
				}
				port := drive.FreePort(t) // which stays so while the job is paused
				put := strings.NewReplacer("WORKER", worker, "DEBUG", filepath.Join(dir, "debug"), "PORT", port).Replace
				args := []string{"run", "-f", writeJob(t, put(k.text)), "--grace", "5s"}
				if s.name == "debug" && rules == nil {
					args = append(args, put("--debug-mode=sh DEBUG"))
				}
				for _, r := range rules {
					args = append(args, "--set", put(r))
				}
				j := drive.Start(t, nil, args...)
				if s.steer != nil {
					s.steer(t, j, dir)
				}
				got := j.End()
				starts := startsIn(t, dir)
				alone := func(ranks []string) bool { return len(ranks) != 2 }
				if got.Status != s.status || s.starts >= 0 && (len(starts) != s.starts ||
					slices.ContainsFunc(slices.Collect(maps.Values(starts)), alone)) {
					t.Errorf("status %d, want %d, and %d starts of both ranks: %v\n%s%s", got.Status, s.status, s.starts, starts,
						got.Stdout, got.Stderr)
				}
				if _, err := os.Stat(filepath.Join(dir, s.left)); err != nil {
					t.Errorf("workers have not left a file: %v\n%s%s", err, got.Stdout, got.Stderr)
				}
				if left := drive.Processes(t, worker); len(left) > 0 {
					t.Errorf("left: %d", left)
				}
			})
		}
	}
}

// TestJobFileElastic scales a rehearsal of an elastic PyTorchJob in and out, and has a node of it be lost. Its workers see
// who is there.
func TestJobFileElastic(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	script := filepath.Join(dir, "worker")
	if err := os.WriteFile(script, fmt.Appendf(nil, "echo of $WORLD_SIZE >>'%s'/seen; exec sleep 1000\n", dir), 0o600); err != nil {
		t.Fatal(err)
	}
	j := drive.Start(t, nil, "run", "-f", writeJob(t, `apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: elastic}
spec:
  elasticPolicy: {minReplicas: 1, maxReplicas: 3, rdzvBackend: c10d}
  pytorchReplicaSpecs:
    Worker:
      replicas: 2
      restartPolicy: OnFailure
      template: {spec: {containers: [{name: pytorch, command: [torchrun, --nproc-per-node=1, --no-python, sh, `+script+`]}]}}
`), "--grace", "5s")
	seen := func(line string, least int) {
		t.Helper()
		testutil.Eventually(t, 2*time.Minute, fmt.Sprintf("%d workers have seen %q", least, line), func() bool {
			text, err := os.ReadFile(filepath.Join(dir, "seen"))
			return err == nil && strings.Count(string(text), line+"\n") >= least
		})
	}
	seen("of 2", 2)
	j.Beside("scale", "3").Expect(t, 2, "give a number from 1 to 2")
	j.Beside("scale", "1").Expect(t, 0, "goes on with 1 node")
	seen("of 1", 1)
	j.Beside("scale", "2").Expect(t, 0, "started again on 127.0.0.2")
	seen("of 2", 4)
	j.Beside("kill-node", "worker-2").Expect(t, 2, `no node "worker-2"`)
	j.Beside("kill-node", "worker-1").Expect(t, 0, "kills itself")
	seen("of 2", 6)
	j.Beside("stop").Expect(t, 0)
	if got := j.End(); got.Status != 143 {
		t.Errorf("status %d\n%s%s", got.Status, got.Stdout, got.Stderr)
	}
	if left := drive.Processes(t, script); len(left) > 0 {
		t.Errorf("left: %d", left)
	}
}

// TestJobFileScriptGone refuses jobs of all kinds whose script is not here, with its place, and starts nothing. On hosts it
// is looked for where it would run.
func TestJobFileScriptGone(t *testing.T) {
	t.Parallel()
	gone := filepath.Join(t.TempDir(), "gone")
	for _, k := range scenarioKinds {
		text := strings.NewReplacer("WORKER", gone, "PORT", "29500").Replace(k.text)
		before, _, _ := strings.Cut(text, gone)
		before, _, _ = strings.Cut(before, ">-") // of a shell's text, where that begins
		line := strings.Count(before, "\n") + 1
		place := fmt.Sprintf("job.yaml:%d:%d: spec.", line, len(before)-strings.LastIndex(before, "\n"))
		got := drive.Run(t, nil, "run", "-f", writeJob(t, text))
		if got.Status != 2 || !strings.Contains(got.Stderr, place) || !strings.Contains(got.Stderr, "cannot find the script \""+gone) ||
			strings.Contains(got.Stderr, "round") {
			t.Errorf("%s: status %d, want 2 and %s\n%s%s", k.name, got.Status, place, got.Stdout, got.Stderr)
		}
	}
	file := writeJob(t, fmt.Sprintf(`apiVersion: batch/v1
kind: Job
metadata: {name: gone}
spec: {parallelism: 2, completionMode: Indexed, template: {spec: {containers: [{command: [python3, %s.py]}]}}}
`, gone))
	got := drive.Run(t, nil, "run", "-f", file, "--hosts", "localhost,127.0.0.3")
	if got.Status != 127 || !strings.Contains(got.Stderr, "127.0.0.3: cannot find the script") {
		t.Errorf("status %d, want 127\n%s%s", got.Status, got.Stdout, got.Stderr)
	}
}

// TestJobFileGang starts nothing where a node is missing, for as long as the file's PodGroup says, and names it.
func TestJobFileGang(t *testing.T) {
	t.Parallel()
	j := drive.NewHostsJob(t, 2)
	mark := filepath.Join(j.Out, "started")
	i := slices.IndexFunc(scenarioKinds, func(k scenarioKind) bool { return k.name == "ElasticJob" })
	file := writeJob(t, strings.Replace(scenarioKinds[i].text, "[sh, WORKER]", "[touch, "+mark+"]", 1)+`---
apiVersion: scheduling.sigs.k8s.io/v1alpha1
kind: PodGroup
metadata: {name: kinds}
spec: {minMember: 3, scheduleTimeoutSeconds: 5}
`)
	r := j.Start("run", "-f", file, "--set", "spec.replicaSpecs.worker.replicas=3", "--hosts", j.Names()+",nowhere")
	j.Ends(r, 75, "nowhere")
	if took := time.Since(r.Began); took < 5*time.Second || took > 55*time.Second {
		t.Errorf("the missing node was waited for for %v, and not as the file says", took)
	}
	if _, err := os.Stat(mark); err == nil {
		t.Error("a worker has started without all nodes")
	}
	j.Clean(time.Minute)
}
