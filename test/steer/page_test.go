package steer

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"muster/internal/testutil"
	"muster/launch/control"
	"muster/launch/report"
	"muster/test/drive"
)

// TestPageOfAJob serves a page at a free port, which the log tells, and steers by the token; the events are in a file,
// and known after the end.
func TestPageOfAJob(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	token, events := filepath.Join(dir, "token"), filepath.Join(dir, "events.jsonl")
	if err := os.WriteFile(token, []byte("0123456789abcdef0123\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	j := drive.Start(t, nil, "run", "-n", "2", "--run-id", "paged", "--http", "0", "--token-file", token, "--events", events,
		"--", "sh", "-c",
		drive.UntilStopped)
	drive.UntilRanks(t, j.RuntimeDir, 2)
	var url string
	testutil.Eventually(t, 20*time.Second, "the log tells the address", func() bool {
		_, rest, found := strings.Cut(j.Err.String(), "http://")
		port, _, whole := strings.Cut(rest, "/")
		url = "http://" + port + "/"
		return found && whole
	})
	get := func(method, path, bearer string) (int, string) {
		req, err := http.NewRequestWithContext(t.Context(), method, url+path, strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		if bearer != "" {
			req.Header.Set("Authorization", "Bearer "+bearer)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		buf := make([]byte, 64<<10)
		n, _ := resp.Body.Read(buf)
		return resp.StatusCode, string(buf[:n])
	}
	for path, want := range map[string]string{"": "<canvas", "healthz": "ok", "readyz": "ok", "api/v1/status": `"runId":"paged"`} {
		testutil.Eventually(t, 20*time.Second, path+" is answered", func() bool { // the job may have been looked at before it ran
			status, text := get(http.MethodGet, path, "")
			return status == 200 && strings.Contains(text, want)
		})
	}
	if status, text := get(http.MethodGet, "api/v1/ranks/1/logs", ""); status != 200 || !strings.Contains(text, `"text":"rank 1 is here"`) {
		t.Errorf("its output: %d %s", status, text)
	}
	askedAtPage(t, url, token)
	if status, text := get(http.MethodPost, "api/v1/stop", ""); status != 403 {
		t.Errorf("stopped without a token: %d %s", status, text)
	}
	follow := drive.Start(t, nil, "events", "-f", "--at", url)
	testutil.Eventually(t, time.Minute, "the events are followed", func() bool {
		return strings.Contains(follow.Out.String(), "rank 1, process")
	})
	if status, text := get(http.MethodPost, "api/v1/stop", "0123456789abcdef0123"); status != 200 ||
		!strings.Contains(text, "is being stopped") {
		t.Errorf("%d %s", status, text)
	}
	j.End().Expect(t, 143)
	follow.End().Expect(t, 0)
	types := drive.EventTypes(t, events)
	if types[control.WorkerStarted] != 2 || types[control.WorkerExited] != 2 || types[control.StopRequested] != 1 ||
		types[control.PhaseChanged] < 4 ||
		types[control.RendezvousCompleted] != 1 {
		t.Errorf("%v", types)
	}
	drive.Beside(t, j.RuntimeDir, "events", "paged").Expect(t, 0, "rank 1, process", "on the page, from 127.0.0.1", "exit status 143")
	drive.Beside(t, j.RuntimeDir, "events", "-o", "json", "page").Expect(t, 0, `"type":"StopRequested"`)
	drive.Beside(t, j.RuntimeDir, "status", "paged").Expect(t, 0, "job paged (sh): Failed, StopRequested", "it has ended at")
	drive.Beside(t, j.RuntimeDir, "ps", "-a").Expect(t, 0, "paged", "(status 143, ")
	drive.Beside(t, j.RuntimeDir, "ps").Expect(t, 0, "no job of yours runs here")
	drive.Beside(t, j.RuntimeDir, "events").Expect(t, 0)
}

// askedAtPage asks the job of TestPageOfAJob at its page, from where no run directory of it is found.
func askedAtPage(t *testing.T, url, token string) {
	t.Helper()
	elsewhere := t.TempDir()
	at := strings.TrimSuffix(strings.TrimPrefix(url, "http://"), "/")
	drive.Beside(t, elsewhere, "ps", "--at", at).Expect(t, 0, "paged", "Running")
	drive.Beside(t, elsewhere, "status", "--at", url, "page").Expect(t, 0, "job paged (sh): Running")
	drive.Beside(t, elsewhere, "top", "--at", at, "--token-file", token).Expect(t, 0, "paged")
	drive.Beside(t, elsewhere, "events", "--at", at, "-o", "json").Expect(t, 0, `"type":"WorkerStarted"`)
	drive.Beside(t, elsewhere, "metrics", "--world", "--at", at).Expect(t, 0, "# TYPE muster_")
	drive.Beside(t, elsewhere, "scale", "3", "--at", at, "--token-file", token).Expect(t, 2, "the page at "+at+": ")
	drive.Beside(t, elsewhere, "resume", "--at", at, "--token-file", token, "--", "other.py").Expect(t, 2, "cannot take a new command")
	wrong := filepath.Join(elsewhere, "token")
	if err := os.WriteFile(wrong, []byte("another-token-of-another-job\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	free, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := free.Addr().String()
	_ = free.Close()
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"restart", "--at", at}, "only who has shown the job's token may steer it"},
		{[]string{"restart", "--at", at, "--token-file", wrong}, "only who has shown the job's token may steer it"},
		{[]string{"status", "--at", at, "another"}, "the job at " + at + " is paged, and not \"another\""},
		{[]string{"status", "--at", nobody}, "no page is served at " + nobody},
		{[]string{"stop", "--at", "ftp://" + at}, "--at \"ftp://" + at + "\" is no address of a page"},
		{[]string{"stop", "--at", "node7"}, "give HOST:PORT"},
		{[]string{"stop", "--token-file", token}, "--token-file goes with --at"},
		{[]string{"stop", "--at", at, "--token-file", wrong + ".none"}, "cannot read the job's token"},
	} {
		drive.Beside(t, elsewhere, c.args...).Expect(t, 2, c.says)
	}
}

// TestSimulatedJobIsKnown: what is kept of a simulated job says how it has ended, when no node answers any more.
func TestSimulatedJobIsKnown(t *testing.T) {
	t.Parallel()
	spec := filepath.Join(t.TempDir(), "spec.yaml")
	if err := os.WriteFile(spec, []byte("version: 1\ndefaults: {count: 1}\nnodes:\n  node-0: {}\n  node-1: {}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, command string
		stop          bool
		status        int
		says          string
		tasks         [2]report.Phase // by rank
		culprit       bool
	}{
		{"succeeds", "true", false, 0, "Succeeded, WorkersSucceeded", [2]report.Phase{"Succeeded", "Succeeded"}, false},
		{"fails", "[ $RANK = 1 ] && exit 7; exec sleep 600", false, 7, "Failed, WorkerFailed", [2]report.Phase{"Stopped", "Failed"}, true},
		{"stopped", drive.UntilStopped, true, 143, "Failed, StopRequested", [2]report.Phase{"Stopped", "Stopped"}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			j := drive.Start(t, []string{"MUSTER_FAKE=" + spec},
				"run", "--simulate-nodes", "2", "--nnodes", "2", "-n", "1", "--run-id", "played",
				"--max-restarts", "0", "--", "sh", "-c", c.command)
			if c.stop {
				drive.UntilRanks(t, j.RuntimeDir, 2)
				drive.Beside(t, j.RuntimeDir, "stop").Expect(t, 0)
			}
			j.End().Expect(t, c.status)
			drive.Beside(t, j.RuntimeDir, "status", "played").Expect(t, 0, "job played (sh): "+c.says, "it has ended at")
			a, got := drive.StatusOf(t, j.RuntimeDir, "played")
			got.Expect(t, 0, fmt.Sprintf(`"exitStatus": %d,`, c.status))
			if len(a.Tasks) != 2 || a.Tasks[0].Phase != c.tasks[0] || a.Tasks[1].Phase != c.tasks[1] || (a.RootCause != nil) != c.culprit {
				t.Errorf("want %v, and is there a root cause: %v\n%s", c.tasks, c.culprit, got.Stdout)
			}
			drive.Beside(t, j.RuntimeDir, "ps", "-a").Expect(t, 0, "played", fmt.Sprintf("(status %d, ", c.status))
		})
	}
}

// TestKilledJobIsKnown: a muster that was killed leaves what has happened to its job.
func TestKilledJobIsKnown(t *testing.T) {
	t.Parallel()
	j := drive.Start(t, nil, "run", "-n", "1", "--run-id", "killed", "--", "sh", "-c", drive.UntilStopped)
	drive.UntilRanks(t, j.RuntimeDir, 1)
	testutil.Eventually(t, 20*time.Second, "how it stands is written", func() bool {
		found, _ := filepath.Glob(filepath.Join(j.RuntimeDir, "muster/history/job-killed.*/run.json"))
		if len(found) != 1 {
			return false
		}
		text, _ := os.ReadFile(found[0])
		return strings.Contains(string(text), `"phase":"Running"`)
	})
	if err := j.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	j.End()
	testutil.Eventually(t, 20*time.Second, "the run directory is gone", func() bool {
		left, _ := filepath.Glob(filepath.Join(j.RuntimeDir, "muster", "job-*"))
		return len(left) == 0
	})
	drive.Beside(t, j.RuntimeDir, "events", "killed").Expect(t, 0, "rank 0, process", "its muster died")
	drive.Beside(t, j.RuntimeDir, "status", "killed").Expect(t, 0, "job killed (sh): Running", "its muster died")
	drive.Beside(t, j.RuntimeDir, "ps", "-a").Expect(t, 0, "killed", "(died, ")
}

// TestShortJobIsKnown: a job that has ended before its history was opened has all of its events there, also where muster
// is process 1, with whose end all others end.
func TestShortJobIsKnown(t *testing.T) {
	t.Parallel()
	binary, err := exec.LookPath("muster")
	if err != nil {
		t.Fatal(err)
	}
	for name, front := range map[string][]string{
		"plain": nil, "process one": {"unshare", "--pid", "--fork", "--mount-proc"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if front != nil && os.Geteuid() != 0 {
				testutil.Missing(t, "root (for a pid namespace)")
			}
			dir := t.TempDir()
			for i := range 2 {
				id := fmt.Sprintf("short%d", i)
				argv := append(slices.Clone(front), binary, "run", "-n", "2", "--run-id", id, "--", "sh", "-c", `exit "$RANK"`)
				cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
				cmd.Env = append(drive.CleanEnviron(), "XDG_RUNTIME_DIR="+dir, "MUSTER_CKPT_MEMORY="+drive.MemoryDir(t))
				if out, err := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() != 1 {
					t.Fatalf("%v, want status 1\n%s", err, out)
				}
				drive.Beside(t, dir, "status", id).Expect(t, 0, "job "+id+" (sh): Failed", "it has ended at")
				got := drive.Beside(t, dir, "events", "-o", "json", id)
				got.Expect(t, 0)
				var types []string
				var last, sum uint64
				for line := range strings.Lines(got.Stdout) { // by their times
					var e control.Event
					if err := json.Unmarshal([]byte(line), &e); err != nil {
						t.Fatalf("%v: %s", err, line)
					}
					last, sum = max(last, e.Seq), sum+e.Seq
					types = append(types, string(e.Type)+" "+string(e.Phase))
				}
				if n := uint64(len(types)); last != n || sum != n*(n+1)/2 {
					t.Errorf("events are missing:\n%s", got.Stdout)
				}
				count := func(kind control.EventType, phase string) int {
					return strings.Count(strings.Join(types, ",")+",", string(kind)+" "+phase+",")
				}
				if count(control.WorkerStarted, "") != 2 || count(control.WorkerExited, "") != 2 ||
					count(control.PhaseChanged, "Failed") != 1 {
					t.Errorf("%s", strings.Join(types, "\n"))
				}
			}
		})
	}
}

// TestPageRefused: what cannot be served or appended to is refused before anything starts, whoever starts the job.
func TestPageRefused(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	taken, dir := l.Addr().String(), t.TempDir()
	for i, c := range []struct {
		args []string
		says string
	}{
		{[]string{"run", "--http", taken}, "address already in use"},
		{[]string{"--http", taken, "torchrun", "--standalone", "--no-python"}, "address already in use"},
		{[]string{"run", "--hosts", "localhost", "--http", taken}, "address already in use"},
		{[]string{"run", "--http", "0.0.0.0:0"}, "the job has no token"},
		{[]string{"run", "--hosts", "localhost", "--http", "0.0.0.0:0"}, "the job has no token"},
		{[]string{"run", "--http", "here"}, "cannot serve a page at \"here\""},
		{[]string{"run", "--events", "/nowhere/e.jsonl"}, "cannot append events to \"/nowhere/e.jsonl\""},
		{[]string{"run", "--hosts", "localhost", "--events", "/nowhere/e.jsonl"}, "cannot append events to"},
	} {
		ran := filepath.Join(dir, fmt.Sprint(i))
		drive.Run(t, nil, append(c.args, "--", "touch", ran)...).Expect(t, 2, c.says, "muster: hint: ")
		if _, err := os.Stat(ran); err == nil {
			t.Errorf("%v: a worker has run", c.args)
		}
	}
}
