package dialects

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"muster/internal/testutil"
	"muster/test/drive"
)

// An elastic job goes by muster's deadline, exit codes and restart policy, and keeps a status file.
func TestHorovodrunElasticRules(t *testing.T) {
	t.Parallel()
	sleeping := []string{"sh", "-c", "[ $HOROVOD_RANK = 1 ] || exec sleep 1000; exit 3"}
	for name, c := range map[string]struct {
		own     []string
		command []string
		status  int
		phase   string
		reason  string
		said    string
	}{
		"deadline": {
			[]string{"--active-deadline", "1s"},
			[]string{"sleep", "1000"},
			124, "Timeout", "DeadlineExceeded",
			"--active-deadline",
		},
		"fatal": {[]string{"--fatal-exit-codes", "3"}, sleeping, 3, "Failed", "FatalExitCode", "3 is one of --fatal-exit-codes"},
		"never": {[]string{"--restart-policy", "never"}, sleeping, 3, "Failed", "WorkerFailed", "--restart-policy never"},
		"exit codes": {
			[]string{"--restart-policy", "exit-code", "--retryable-exit-codes", "7"},
			sleeping, 3, "Failed", "WorkerFailed",
			"3 is none of --retryable-exit-codes",
		},
		"success": {nil, []string{"true"}, 0, "Succeeded", "WorkersSucceeded", "the job has succeeded"},
		"node fails": {
			[]string{"--restart-policy", "on-node-fail"},
			sleeping, 3, "Failed", "WorkerFailed",
			"--restart-policy on-node-fail",
		},
		"rank 0 decides": {
			[]string{"--restart-policy", "never", "--fail-policy", "rank0"},
			[]string{"sh", "-c", "[ $HOROVOD_RANK = 0 ] && sleep 1 || exit 3; exit 4"},
			4, "Failed", "WorkerFailed", "rank 0",
		},
		"one success": {
			[]string{"--success-policy", "any"},
			[]string{"sh", "-c", "[ $HOROVOD_RANK = 1 ] || exec sleep 1000"},
			0, "Succeeded",
			"WorkersSucceeded", "",
		},
		"rank 0 succeeds": {
			[]string{"--success-policy", "rank0", "--linger", "200s"},
			[]string{"sh", "-c", "[ $HOROVOD_RANK = 0 ] || { sleep 1; exit 5; }"},
			0, "Succeeded", "WorkersSucceeded", "",
		},
		"no status": {
			[]string{"--success-policy", "none", "--fail-policy", "none"},
			[]string{"sh", "-c", "exit 9"},
			0, "Succeeded",
			"WorkersSucceeded", "",
		},
		"limit": {
			[]string{"--backoff-limit", "0", "--restart-window", "1h"},
			sleeping, 3, "Failed", "BackoffLimitReached",
			"limit of 0 restarts of the whole job is reached (--backoff-limit) within 1h0m0s",
		},
	} {
		file := filepath.Join(t.TempDir(), "status.json")
		args := append(c.own, "--status-file", file, "horovodrun", "-np", "2", "--min-np", "1", "--host-discovery-script",
			"echo localhost:2")
		got := drive.Run(t, nil, append(args, c.command...)...)
		if got.Status != c.status || !strings.Contains(got.Stderr, c.said) {
			t.Errorf("%s: status %d, want %d and %q\n%s%s", name, got.Status, c.status, c.said, got.Stdout, got.Stderr)
		}
		var doc struct {
			Phase, Reason string
			ExitStatus    *int
			Generation    int
			WorldSize     int
			Counts        map[string]int
		}
		text, err := os.ReadFile(file)
		if err == nil {
			err = json.Unmarshal(text, &doc)
		}
		if err != nil || doc.Phase != c.phase || doc.Reason != c.reason || doc.ExitStatus == nil || *doc.ExitStatus != c.status ||
			doc.Generation != 1 || doc.WorldSize != 2 || doc.Counts["running"] != 0 {
			t.Errorf("%s: %v\n%s", name, err, text)
		}
	}
}

// The status file of an elastic job is of the whole world, as that of every job on hosts: a task for each host.
func TestHorovodrunElasticTasks(t *testing.T) {
	t.Parallel()
	three, none := 3, 0
	for script, want := range map[string][]drive.StatusTask{
		"[ $HOROVOD_RANK = 2 ] || exec sleep 1000; exit 3": {
			{Node: "localhost", Ranks: "0-1", Phase: "Stopped"}, {Node: "127.0.0.1", Ranks: "2", Phase: "Failed", ExitCode: &three},
		},
		"true": {
			{Node: "localhost", Ranks: "0-1", Phase: "Succeeded", ExitCode: &none},
			{Node: "127.0.0.1", Ranks: "2", Phase: "Succeeded", ExitCode: &none},
		},
	} {
		file := filepath.Join(t.TempDir(), "status.json")
		got := drive.Run(t, nil, "--restart-policy", "never", "--status-file", file, "horovodrun", "-np", "3", "--min-np", "2", "-H",
			"localhost:2,127.0.0.1:1", "sh", "-c", script)
		if diff := cmp.Diff(want, drive.ReadWorld(t, file).Tasks); diff != "" {
			t.Errorf("%s: status %d (-want +got):\n%s\n%s", script, got.Status, diff, got.Stderr)
		}
	}
}

// workers runs an elastic job of two workers here, and returns its end and what the workers have written to a file.
func workers(t *testing.T, env []string, own, words []string, script string) (drive.Outcome, []string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "said")
	args := append(own, "horovodrun", "-np", "2", "--min-np", "1")
	if len(words) == 0 || words[0] != "-H" {
		args = append(args, "--host-discovery-script", "echo localhost:2")
	}
	args = append(args, words...)
	got := drive.Run(t, append(env, "SAID="+file), append(args, "sh", "-c", script)...)
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("nothing was said: %v\n%s", err, got.Stderr)
	}
	return got, strings.Fields(string(text))
}

// A failure starts anew whom --restart-scope names, as often as the limits allow.
func TestHorovodrunElasticScope(t *testing.T) {
	t.Parallel()
	// Rank 1 fails when rank 0 has said that it was started, too.
	fail := `echo $HOROVOD_RANK >> $SAID; [ $HOROVOD_RANK = 1 ] || exec sleep 1000
		until [ $(grep -c 0 $SAID) -ge $(grep -c 1 $SAID) ]; do sleep 0.05; done; exit 3`
	for name, c := range map[string]struct {
		own, words []string
		said       int
		reason     string
	}{
		"world": {[]string{"--restart-scope", "world", "--backoff-limit", "2"}, nil, 6, "limit of 2 restarts of the whole job"},
		"one host": {
			[]string{"--restart-scope", "world", "--backoff-limit", "1"},
			[]string{"-H", "localhost:2"},
			4,
			"limit of 1 restarts of the whole job",
		},
		"reset limit": {[]string{"--restart-scope", "world"}, []string{"--reset-limit", "1"}, 4, "the limit, 1 (--reset-limit)"},
		"host":        {[]string{"--restart-scope", "node", "--backoff-limit", "2"}, []string{"--elastic-timeout", "1"}, 2, ""},
	} {
		if name == "host" { // its other worker ends when it is killed with the job: Horovod's rule waits for it
			c.own = append(c.own, "--active-deadline", "2s")
		}
		got, said := workers(t, nil, c.own, c.words, fail)
		if len(said) != c.said || got.Status == 0 || !strings.Contains(got.Stderr, c.reason) {
			t.Errorf("%s: status %d, %d starts, want %d and %q\n%s", name, got.Status, len(said), c.said, c.reason, got.Stderr)
		}
	}
}

// borneWorker is a worker by Horovod's protocol without Horovod: rank 1 fails in each world, and rank 0 asks for its
// place in the next one.
const borneWorker = `
import os, sys, urllib.request
at = "http://%s:%s" % (os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"], os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"])
me = os.environ["HOROVOD_HOSTNAME"] + ":" + os.environ["HOROVOD_LOCAL_RANK"]
rank = os.environ["HOROVOD_RANK"]
print("world", rank, flush=True)
while rank != "-1":
    urllib.request.urlopen(urllib.request.Request(at + "/global/rank_" + rank, b"host", method="PUT")).read()
    if rank == "1":
        sys.exit(9)
    rank = urllib.request.urlopen(at + "/rank_and_size/" + me).read().decode().split(",")[0]
`

// A failure that --fail-policy bears leads to a new world, which counts: a worker that always fails is not started for
// ever.
func TestHorovodrunElasticBorne(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		own    []string
		starts int // of rank 1
		says   string
	}{
		"process": {
			[]string{"--restart-scope", "process", "--backoff-limit", "2"},
			3,
			"limit of 2 restarts of the whole job is reached (--backoff-limit)",
		},
		"world": {
			[]string{"--restart-scope", "world", "--backoff-limit", "2"},
			3,
			"limit of 2 restarts of the whole job is reached (--backoff-limit)",
		},
		"host":  {[]string{"--backoff-limit", "0"}, 1, "limit of 0 restarts of the whole job is reached (--backoff-limit)"},
		"never": {[]string{"--restart-policy", "never"}, 1, "--restart-policy never"},
	} {
		args := append(c.own, "--fail-policy", "none", "--restart-delay", "10ms", "--active-deadline", "60s")
		if !slices.Contains(c.own, "--restart-scope") {
			args = append(c.own, "--fail-policy", "none", "--active-deadline", "60s")
		}
		got := drive.Run(t, nil,
			append(args, "horovodrun", "-np", "2", "--min-np", "1", "--host-discovery-script", "echo localhost:1; echo 127.0.0.1:1",
				"python3", "-c", borneWorker)...)
		if got.Status != 9 || strings.Count(got.Stdout, "world 1") != c.starts || !strings.Contains(got.Stderr, c.says) {
			t.Errorf("%s: status %d, rank 1 started %d times, want %d and %q\n%s%s", name, got.Status, strings.Count(got.Stdout, "world 1"),
				c.starts, c.says, got.Stdout, got.Stderr)
		}
	}
}

// A success begins the job again until its deadline.
func TestHorovodrunElasticAlways(t *testing.T) {
	t.Parallel()
	own := []string{"--restart-policy", "always", "--active-deadline", "4s", "--restart-delay", "0s"}
	got, said := workers(t, nil, own, nil, `echo $HOROVOD_RANK >> $SAID; sleep 0.2`)
	if got.Status != 124 || len(said) < 4 {
		t.Errorf("status %d after %d starts\n%s", got.Status, len(said), got.Stderr)
	}
}

// What ended workers have left behind is ended with the job, or not, as --clean-policy says; a job that is stopped
// leaves nothing.
func TestHorovodrunElasticClean(t *testing.T) {
	t.Parallel()
	leave := `[ $HOROVOD_RANK = 0 ] || exit 0; setsid sleep 300 > /dev/null 2>&1 & echo $! >> $SAID; sleep ${LAST:-0.5}`
	for name, c := range map[string]struct {
		own   []string
		env   []string
		stays bool
	}{
		"all":        {nil, nil, false},
		"unfinished": {[]string{"--clean-policy", "unfinished"}, nil, true},
		"none":       {[]string{"--clean-policy", "none"}, nil, true},
		"deadline":   {[]string{"--clean-policy", "none", "--active-deadline", "2s"}, []string{"LAST=100"}, false},
	} {
		got, said := workers(t, c.env, c.own, nil, leave)
		pid, err := strconv.Atoi(said[0])
		if err != nil {
			t.Fatal(err)
		}
		runs := syscall.Kill(pid, 0) == nil
		if runs {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		if runs != c.stays {
			t.Errorf("%s: status %d, what a worker left behind runs: %v\n%s", name, got.Status, runs, got.Stderr)
		}
	}
}

// The workers of a debug job do not train, and each can be entered.
func TestHorovodrunElasticDebug(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	env := drive.Apart(dir) // other jobs of this user can be entered, too
	j := drive.Start(t, env, "--debug-mode", "horovodrun", "-np", "2", "--min-np", "1", "--host-discovery-script", "echo localhost:2",
		"touch", filepath.Join(dir, "trained"))
	var got drive.Outcome
	testutil.Eventually(t, 30*time.Second, "rank 1 can be entered", func() bool {
		got = drive.Run(t, env, "exec", "--rank", "1", "--", "sh", "-c", "echo rank $HOROVOD_RANK of $HOROVOD_SIZE")
		return got.Status == 0
	})
	if got.Stdout != "rank 1 of 2\n" {
		t.Errorf("in rank 1: %q\n%s", got.Stdout, got.Stderr)
	}
	if err := j.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if got := j.End(); got.Status != 143 ||
		!strings.HasSuffix(got.Stderr, "muster: error: the job was stopped: muster received SIGTERM\n") {
		t.Errorf("status %d\n%s", got.Status, got.Stderr)
	}
	if _, err := os.Stat(filepath.Join(dir, "trained")); err == nil {
		t.Error("it trained")
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "muster*", "job-*")); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

// The hosts of the first world are checked before it begins, and it begins without those that are unfit.
func TestHorovodrunElasticCheck(t *testing.T) {
	t.Parallel()
	path := "PATH=" + filepath.Dir(testutil.Torch(t)) + ":" + os.Getenv("PATH")
	for name, c := range map[string]struct {
		faults string
		status int
		says   string
	}{
		"one host": {
			"nodes:\n  127.0.0.1: {faults: [{kind: remap-failed, gpu: 0}]}\n", 0,
			"the job goes on without the hosts that are unfit",
		},
		"all": {
			"  faults: [{kind: remap-failed, gpu: 0}]\n", 80,
			"muster: error: the check has found all hosts unfit (--network-check)",
		},
	} {
		dir := t.TempDir()
		spec, ran := filepath.Join(dir, "spec.yaml"), filepath.Join(dir, "ran")
		if err := os.WriteFile(spec, []byte("version: 1\ndefaults:\n  count: 1\n  model: NVIDIA H100 80GB HBM3\n"+c.faults),
			0o600); err != nil {
			t.Fatal(err)
		}
		got := drive.Run(t, []string{path}, "--network-check", "--accelerator", "fake:"+spec, "--status-file", filepath.Join(dir, "status"),
			"horovodrun",
			"-np", "1", "--min-np", "1", "--host-discovery-script", "echo 127.0.0.1:1; echo localhost:1", "sh", "-c",
			"echo $HOROVOD_HOSTNAME >> "+ran)
		said, _ := os.ReadFile(ran)
		if got.Status != c.status || !strings.Contains(got.Stderr, c.says) || !strings.Contains(got.Stderr, "remap-failed") ||
			string(said) != map[int]string{0: "localhost\n"}[c.status] {
			t.Errorf("%s: status %d, want %d; ran on %q\n%s", name, got.Status, c.status, said, got.Stderr)
		}
		if text, err := os.ReadFile(filepath.Join(dir, "status")); err != nil ||
			!strings.Contains(string(text), fmt.Sprintf(`"exitStatus": %d`, c.status)) {
			t.Errorf("%s: status file %s, %v", name, text, err)
		}
	}
}

// A job none of whose hosts can be reached may be tried again, and its last line says why.
func TestHorovodrunElasticUnreachable(t *testing.T) {
	t.Parallel()
	got := drive.Run(t, nil, "horovodrun", "-np", "1", "--min-np", "1", "--start-timeout", "2", "--host-discovery-script",
		"echo nowhere.invalid:1", "true")
	lines := strings.Split(strings.TrimSpace(got.Stderr), "\n")
	last := lines[len(lines)-1]
	if got.Status != 75 || !strings.HasPrefix(last, "muster: error: the worker of rank 0 on nowhere.invalid") ||
		!strings.Contains(last, "nobody knows the name") {
		t.Errorf("status %d\n%s", got.Status, got.Stderr)
	}
}

// A worker of Horovod that is killed is forked anew on its host, and the other one goes on with its state.
func TestHorovodrunElasticWarmProcess(t *testing.T) {
	t.Parallel()
	bin := testutil.Peer(t, "horovod")
	dir := t.TempDir()
	j := drive.Start(t, []string{"PATH=" + bin + ":" + os.Getenv("PATH"), "OMP_NUM_THREADS=1", "HOROVOD_GLOO_TIMEOUT_SECONDS=12"},
		"--restart-scope", "process", "--backoff-limit", "2", "--warm", "auto", "--log-level", "debug", "horovodrun", "-np", "2",
		"--min-np", "2",
		"--host-discovery-script", "echo localhost:2", "python", "-W", "ignore", drive.HorovodWorker(t, "elastic_worker.py"), dir)
	// last are the workers of a world of two by their local rank, with their process ids and the batch that they are
	// at.
	last := func() (pids, batches [2]int) {
		files, _ := filepath.Glob(filepath.Join(dir, "localhost:*"))
		for _, file := range files {
			var local, pid, rank, size, batch, sum int
			_, wrong := fmt.Sscanf(filepath.Base(file), "localhost:%d.%d", &local, &pid)
			text, err := os.ReadFile(file)
			lines := strings.Split(strings.TrimSpace(string(text)), "\n")
			_, odd := fmt.Sscan(lines[len(lines)-1], &rank, &size, &batch, &sum)
			if wrong == nil && err == nil && odd == nil && sum == 2 && syscall.Kill(pid, 0) == nil {
				pids[local], batches[local] = pid, batch
			}
		}
		return pids, batches
	}
	var before, at [2]int
	testutil.Eventually(t, 90*time.Second, "a world of two", func() bool {
		before, at = last()
		return at[0] > 20 && at[1] > 20
	})
	if err := syscall.Kill(before[1], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	testutil.Eventually(t, 90*time.Second, "another worker", func() bool {
		now, on := last()
		return now[0] == before[0] && now[1] != 0 && now[1] != before[1] && on[0] > at[0] && on[1] > at[1]
	})
	if err := os.WriteFile(filepath.Join(dir, "stop"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if got := j.End(); got.Status != 0 || strings.Count(got.Stderr, "worker forked from the template") != 3 ||
		strings.Count(got.Stderr, `"new world"`) != 2 {
		t.Errorf("status %d\n%s%s", got.Status, got.Stdout, got.Stderr)
	}
}
