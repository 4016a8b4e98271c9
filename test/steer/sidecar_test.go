package steer

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"muster/internal/testutil"
	"muster/launch/control"
	"muster/launch/report"
	"muster/test/drive"
)

// untilSidecars waits until the sidecars of a job are as is says.
func untilSidecars(t *testing.T, runtimeDir, what string, is func(list []report.Sidecar) bool) []report.Sidecar {
	t.Helper()
	var list []report.Sidecar
	testutil.Eventually(t, time.Minute, what, func() bool {
		a, _ := drive.StatusOf(t, runtimeDir)
		list = a.Sidecars
		return is(list)
	})
	return list
}

// gone reports whether no process has a number any more.
func gone(pid int) bool { return unix.Kill(pid, 0) != nil }

// TestSidecar runs a web server and a shell beside the workers of a job on one node: they are seen, started again,
// outlive a pause, and end with the job.
func TestSidecar(t *testing.T) {
	t.Parallel()
	dir, port := t.TempDir(), drive.FreePort(t)
	events := filepath.Join(dir, "events.jsonl")
	server := "python3 -m http.server --bind 127.0.0.1 --directory '" + dir + "' " + port
	j := drive.Start(t, nil, "run", "-n", "1", "--run-id", "beside", "--log-dir", filepath.Join(dir, "logs"), "--events", events,
		"--sidecar", server, "--sidecar", `sh -c 'trap "" TERM; echo number $MUSTER_SIDECAR_INDEX of ${RANK-none}; sleep 86400 & wait'`,
		"--", "sh", "-c", drive.UntilStopped)
	drive.UntilRanks(t, j.RuntimeDir, 1)
	healthy := func(list []report.Sidecar) bool {
		return len(list) == 2 && list[0].State == report.PhaseRunning && fmt.Sprint(list[0].Port) == port && list[0].Healthy != nil &&
			*list[0].Healthy && list[1].State == report.PhaseRunning
	}
	first := untilSidecars(t, j.RuntimeDir, "the sidecars run, and one takes connections", healthy)
	if first[0].Restarts != 0 || first[0].LastExit != nil || first[0].StartTime == nil || first[1].Port != 0 || first[1].Healthy != nil ||
		!strings.HasSuffix(first[0].Command, " "+port) {
		t.Errorf("%+v", first)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:"+port+"/events.jsonl", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(resp.Body)
	if _ = resp.Body.Close(); err != nil || !strings.Contains(string(text), `"SidecarStarted"`) {
		t.Errorf("the sidecar answers %v %q", err, text)
	}
	drive.Beside(t, j.RuntimeDir, "status").Expect(t, 0, "sidecar 0 on ", ": Running, process ",
		"port "+port+" takes connections, 0 restarts")

	// One that is held takes no connections; one that is killed starts again, the other stays.
	if err := unix.Kill(first[0].PID, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	untilSidecars(t, j.RuntimeDir, "it is not healthy", func(list []report.Sidecar) bool {
		return len(list) == 2 && list[0].PID == first[0].PID && list[0].Healthy != nil && !*list[0].Healthy
	})
	if err := unix.Kill(first[0].PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	second := untilSidecars(t, j.RuntimeDir, "it has started again", func(list []report.Sidecar) bool {
		return healthy(list) && list[0].PID != first[0].PID
	})
	if e := second[0].LastExit; second[0].Restarts != 1 || e == nil || e.Signal != "SIGKILL" || e.Stopped || second[1].PID != first[1].PID {
		t.Errorf("%+v", second)
	}
	drive.Beside(t, j.RuntimeDir, "pause").Expect(t, 0)
	drive.UntilPhase(t, j.RuntimeDir, report.PhasePaused)
	if a, _ := drive.StatusOf(t, j.RuntimeDir); !healthy(a.Sidecars) || a.Sidecars[0].PID != second[0].PID ||
		a.Sidecars[1].PID != second[1].PID {
		t.Errorf("in the pause: %+v", a.Sidecars)
	}
	drive.Beside(t, j.RuntimeDir, "resume").Expect(t, 0)
	drive.UntilRanks(t, j.RuntimeDir, 1)

	drive.Beside(t, j.RuntimeDir, "stop").Expect(t, 0)
	got := j.End()
	got.Expect(t, 143, "sidecar started", "sidecar ended, starting it again", "[sidecar 1] number 1 of none")
	for _, s := range second {
		if !gone(s.PID) {
			t.Errorf("process %d has outlived the job", s.PID)
		}
	}
	logs, err := filepath.Glob(filepath.Join(dir, "logs", "beside_*", "sidecar_1", "stdout.log"))
	if err != nil || len(logs) != 1 {
		t.Fatalf("%v, %v", logs, err)
	}
	if text, err := os.ReadFile(logs[0]); err != nil || string(text) != "number 1 of none\n" {
		t.Errorf("%v: %q", err, text)
	}
	types := drive.EventTypes(t, events)
	if types[control.SidecarStarted] != 3 || types[control.SidecarExited] != 3 {
		t.Errorf("%v", types)
	}
	drive.Beside(t, j.RuntimeDir, "events", "beside").Expect(t, 0, fmt.Sprintf("process %d was killed by SIGKILL\n", first[0].PID),
		fmt.Sprintf("process %d was killed by SIGTERM, while muster was stopping it", second[0].PID),
		fmt.Sprintf("process %d was killed by SIGKILL, while muster was stopping it", second[1].PID))
	drive.Beside(t, j.RuntimeDir, "status", "beside").Expect(t, 0, ": Stopped, 1 restart, last exit SIGTERM (stopped)")
	j.NothingLeft(j.RuntimeDir)
}

// TestSidecarFails: one that cannot run for long is started again after pauses that grow, and changes nothing for the
// job; one that muster's death leaves behind is ended by the guardian.
func TestSidecarFails(t *testing.T) {
	t.Parallel()
	status := filepath.Join(t.TempDir(), "status.json")
	j := drive.Start(t, nil, "--status-file", status, "--sidecar", "sh -c 'echo it fails >&2; exit 7'", "--sidecar", "sleep 86400",
		"torchrun", "--standalone", "--nproc-per-node", "1", "--no-python", "sh", "-c", "sleep 5")
	got := j.End()
	got.Expect(t, 0, `"last_line":"it fails","delay_ms":1000`, `"delay_ms":2000`, "[sidecar 0] it fails")
	var d report.Status
	text, err := os.ReadFile(status)
	if err == nil {
		err = json.Unmarshal(text, &d)
	}
	if err != nil || d.Phase != report.PhaseSucceeded || len(d.Sidecars) != 2 || d.Sidecars[0].State != report.PhaseStopped ||
		d.Sidecars[0].Restarts < 1 || d.Sidecars[0].Restarts > 2 || d.Sidecars[0].LastExit.ExitCode != 7 ||
		d.Sidecars[1].LastExit.Signal != "SIGTERM" {
		t.Errorf("%v: %s", err, text)
	}

	j = drive.Start(t, nil, "run", "-n", "1", "--sidecar", "sleep 86400", "--", "sh", "-c", drive.UntilStopped)
	list := untilSidecars(t, j.RuntimeDir, "it runs", func(list []report.Sidecar) bool { return len(list) == 1 && list[0].PID != 0 })
	if err := j.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = j.End()
	testutil.Eventually(t, time.Minute, "the sidecar ends", func() bool { return gone(list[0].PID) })
}

// TestSidecarMoves: the sidecars of a job are where group rank 0 is. When that node is lost they start on another one.
func TestSidecarMoves(t *testing.T) {
	t.Parallel()
	j := drive.Start(t, []string{"MUSTER_FAKE=" + filepath.Join("..", "..", "examples", "cluster.yaml")},
		"run", "--simulate-nodes", "3", "--nnodes", "2:3", "-n", "1", "--max-restarts", "9", "--last-call", "2s",
		"--sidecar", "sleep 86400", "--", "sh", "-c", drive.UntilStopped)
	drive.UntilNodes(t, j.RuntimeDir, 3)
	runs := func(list []report.Sidecar) bool {
		return len(list) == 1 && list[0].State == report.PhaseRunning && list[0].PID != 0
	}
	before := untilSidecars(t, j.RuntimeDir, "it runs", runs)[0]
	a, _ := drive.StatusOf(t, j.RuntimeDir)
	if before.Node != a.Tasks[0].Node {
		t.Errorf("it runs on %s, and group rank 0 is %s", before.Node, a.Tasks[0].Node)
	}
	drive.Beside(t, j.RuntimeDir, "kill-node", "0").Expect(t, 0, "kills itself")
	after := untilSidecars(t, j.RuntimeDir, "it runs on another node", func(list []report.Sidecar) bool {
		return runs(list) && list[0].Node != before.Node
	})[0]
	testutil.Eventually(t, time.Minute, "the first one has ended", func() bool { return gone(before.PID) })
	drive.Beside(t, j.RuntimeDir, "stop").Expect(t, 0)
	j.End().Expect(t, 143)
	if !gone(after.PID) {
		t.Errorf("process %d has outlived the job", after.PID)
	}
	j.NothingLeft(j.RuntimeDir)
}

// TestSidecarOnHosts: the first of a launcher's nodes runs the sidecars, and the launcher tells of them.
func TestSidecarOnHosts(t *testing.T) {
	t.Parallel()
	j := drive.Start(t, nil, "run", "--hosts", "localhost,127.0.0.1", "-n", "1", "--sidecar", "sh -c 'echo beside; exec sleep 86400'",
		"--", "sh", "-c", drive.UntilStopped)
	drive.UntilRanks(t, j.RuntimeDir, 2)
	list := untilSidecars(t, j.RuntimeDir, "it runs", func(list []report.Sidecar) bool {
		return len(list) == 1 && list[0].State == report.PhaseRunning && list[0].PID != 0
	})
	testutil.Eventually(t, time.Minute, "its output is shown", func() bool { return strings.Contains(j.Out.String(), "sidecar 0] beside") })
	drive.Beside(t, j.RuntimeDir, "stop").Expect(t, 0)
	j.End().Expect(t, 143)
	if !gone(list[0].PID) {
		t.Errorf("process %d has outlived the job", list[0].PID)
	}
	j.NothingLeft(j.RuntimeDir)
}

// TestSidecarRefused: what could not run is refused before anything starts.
func TestSidecarRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args   []string
		status int
		says   string
	}{
		{[]string{"run", "--sidecar", " ", "--", "true"}, 2, "cannot use --sidecar: give a command"},
		{[]string{"run", "--sidecar", "sh -c 'x", "--", "true"}, 2, "a quote ' is not closed"},
		{[]string{"run", "--sidecar", "no-such-program --port 1", "--", "true"}, 127, `cannot run the sidecar "no-such-program --port 1"`},
		{[]string{"run", "--sidecar", "/etc/passwd", "--", "true"}, 126, `cannot execute "/etc/passwd"`},
		{[]string{"run", "--hosts", "localhost", "--sidecar", "no-such-program", "--", "true"}, 127, "cannot find the command"},
	} {
		j := drive.Start(t, nil, c.args...)
		got := j.End()
		got.Expect(t, c.status, c.says)
		if strings.Contains(got.Stderr, "sidecar started") {
			t.Errorf("something was started:\n%s", got.Stderr)
		}
	}
}
