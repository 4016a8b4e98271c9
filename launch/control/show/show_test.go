package show

import (
	"bytes"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"muster/launch/control"
	"muster/launch/control/history"
	"muster/launch/job"
	"muster/launch/report"
)

// noon is the time at which the tests look.
var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.Local)

// TestEvent: an event is a sentence, and one of a type that this version does not know is the words of its fields.
func TestEvent(t *testing.T) {
	t.Parallel()
	by := &control.Peer{UID: 7, PID: 8}
	for want, e := range map[string]control.Event{
		"Running, round 1, 2 restarts": {
			Type: control.PhaseChanged, Phase: report.PhaseRunning, Generation: 1, RestartCount: 2,
		},
		"Failed, round 0, exit status 3: WorkerFailed, rank 1 says so": {
			Type: control.PhaseChanged, Phase: report.PhaseFailed, ExitCode: new(3), Reason: job.Reason("WorkerFailed"),
			Message: "rank 1 says so",
		},
		"rank 4, process 9, started": {
			Type: control.WorkerStarted, Rank: new(4), PID: 9,
		},
		"rank 4, process 9, was killed by SIGKILL": {
			Type: control.WorkerExited, Rank: new(4), PID: 9, ExitCode: new(137), Signal: "SIGKILL",
		},
		"rank 4, process 9, ended with status 1, while muster was stopping it": {
			Type: control.WorkerExited, Rank: new(4), PID: 9, ExitCode: new(1), Stopped: true,
		},
		"worker exited": {Type: control.WorkerExited},
		"sidecar 0 (tensorboard): process 5 started": {
			Type: control.SidecarStarted, PID: 5, Message: "0 (tensorboard)",
		},
		"sidecar 0 (tensorboard): process 5 was killed by SIGTERM": {
			Type: control.SidecarExited, PID: 5, Message: "0 (tensorboard)", Signal: "SIGTERM",
		},
		"in the place of rank 2 process 5 ended with status 0 after 1.5 s: ls": {
			Type: control.ExecEnded, Rank: new(2), PID: 5, By: by, ExitCode: new(0), Seconds: 1.5, Message: "ls",
		},
		"in the place of rank 2 process 5 ended, its status is not known, after 1.5 s: ls": {
			Type: control.ExecEnded, Rank: new(2), PID: 5, By: by, Seconds: 1.5, Message: "ls",
		},
		"exec ended, after 2 s: ls":               {Type: control.ExecEnded, Seconds: 2, Message: "ls"},
		"stop was asked for by user 7, process 8": {Type: control.StopRequested, By: by},
		"the loss of a node was asked for":        {Type: control.KillRequested},
		"the loss of node 2 was asked for by user 7, process 8": {
			Type: control.KillRequested, Subject: "2", By: by,
		},
		"the loss of node-2 was asked for": {Type: control.KillRequested, Subject: "node-2"},
		"scale to 1 node was asked for":    {Type: control.ScaleRequested, Message: "1 node"},
		"what was asked for by user 7, process 8 is refused: scale the job to 5 nodes: no": {
			Type: control.RequestRefused, By: by, Message: "scale the job to 5 nodes: no",
		},
		"node lost node-3: it is silent": {
			Type: control.NodeLost, Subject: "node-3", Message: "it is silent",
		},
		"rendezvous completed, after less than 1 ms: alone": {Type: control.RendezvousCompleted, Seconds: 1.3e-5, Message: "alone"},
		"rendezvous completed, after 0.25 s":                {Type: control.RendezvousCompleted, Seconds: 0.25},
		"rendezvous completed, after 99.9 s":                {Type: control.RendezvousCompleted, Seconds: 99.91},
		"rendezvous completed, after 4321 s":                {Type: control.RendezvousCompleted, Seconds: 4321.1},
		"checkpoint committed, step 40, after 3 s": {
			Type: control.CheckpointCommitted, Step: new(int64(40)), Seconds: 3,
		},
		"something new: \\x1b[2J": {Type: "SomethingNew", Message: "\x1b[2J"},
		"rank 2 on node n1 is slow": {
			Type: control.RankSlow, Rank: new(2), Subject: "n1", Message: "rank 2 on node n1 is slow",
		},
		"the workers hang: rank 1 waits": {Type: control.WorkersHang, Message: "rank 1 waits"},
	} {
		e.Time, e.Node = noon, "n0"
		if got := Event(&e, false); got != "12:00:00 "+want {
			t.Errorf("%q, want %q", got, want)
		}
		if got := Event(&e, true); got != "12:00:00 n0: "+want {
			t.Errorf("%q, want n0 in front of %q", got, want)
		}
	}
}

// TestEventsOfNodes: a phase that several nodes tell within a moment is one line, which names them or says how many they are;
// what differs, comes later or comes again from the same node is a line of its own.
func TestEventsOfNodes(t *testing.T) {
	phase := func(node string, after time.Duration, p report.Phase, message string) control.Event {
		return control.Event{Type: control.PhaseChanged, Time: noon.Add(after), Node: node, Phase: p, Message: message}
	}
	found := []control.Event{
		phase("n0", 0, report.PhaseRunning, ""),
		{Type: control.WorkerStarted, Time: noon, Node: "n0", Rank: new(0), PID: 7},
		phase("n1", time.Second, report.PhaseRunning, ""),
		{Type: control.WorkerStarted, Time: noon.Add(time.Second), Node: "n1", Rank: new(1), PID: 8},
		phase("", time.Second, report.PhaseRunning, ""), // of the launcher
		phase("n2", 3*time.Second, report.PhaseRunning, ""),
		phase("n2", 3*time.Second, report.PhaseRunning, ""),
		phase("n0", 9*time.Second, report.PhaseFailed, "it"),
		phase("n1", 9*time.Second, report.PhaseFailed, "another"),
	}
	// What n1 tells in between stays in front of its phase.
	found = append(found, phase("n0", 12*time.Second, report.PhaseCreating, ""),
		control.Event{Type: control.WorkerStarted, Time: noon.Add(12 * time.Second), Node: "n1", Rank: new(1), PID: 9},
		phase("n1", 12*time.Second, report.PhaseCreating, ""))
	for i := range 5 {
		found = append(found, phase(strconv.Itoa(i), 20*time.Second, report.PhasePending, ""))
	}
	want := []string{
		"12:00:00 n0, n1: Running, round 0", "12:00:00 n0: rank 0, process 7, started", "12:00:01 n1: rank 1, process 8, started",
		"12:00:01 Running, round 0", "12:00:03 n2: Running, round 0", "12:00:03 n2: Running, round 0",
		"12:00:09 n0: Failed, round 0: it", "12:00:09 n1: Failed, round 0: another", "12:00:12 n0: Creating, round 0",
		"12:00:12 n1: rank 1, process 9, started", "12:00:12 n1: Creating, round 0", "12:00:20 5 nodes: Pending, round 0",
	}
	if diff := cmp.Diff(want, Events(found, true)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if got := Events(found[:3], false); len(got) != 3 {
		t.Errorf("of a job of one node: %q", got)
	}
}

// TestStatus: what is known of a job stands above its ranks; columns that say nothing are left out.
func TestStatus(t *testing.T) {
	t.Parallel()
	began := noon.Add(-2*time.Hour - 5*time.Minute)
	d := control.Answer{Status: report.Status{
		RunID: "one", Name: "a\x1bb", Phase: report.PhaseRunning, WorldSize: 2, Nodes: 1, Generation: 3, RestartCount: 1, StartTime: &began,
		Message: "why",
		Ranks: []report.Rank{
			{
				Rank: 1, Node: "n0", Phase: report.PhaseFailed, LocalRank: 1,
				LastExit: &report.RankExit{ExitCode: 137, Signal: "SIGKILL", Time: began},
			},
			{
				Rank: 0, Node: "n0", Phase: report.PhaseRunning, PID: 12, Restarts: 2, StartTime: &began, CPUSeconds: new(90.0),
				ResidentBytes: new(int64(3 << 30)),
			},
		},
		Sidecars: []report.Sidecar{{Node: "n0", Command: "board", State: "Running", PID: 5, Port: 80, Healthy: new(false)}},
		Tasks:    []report.Task{{Node: "n1", LastKnown: new(noon.Add(-time.Minute))}},
	}}
	lines := func(wide bool) []string {
		var b bytes.Buffer
		if err := Status(&b, &d, wide, noon); err != nil {
			t.Fatal(err)
		}
		return strings.Split(strings.TrimRight(b.String(), "\n"), "\n")
	}
	got := strings.Join(lines(false), "\n")
	want := `job one (a\x1bb): Running, up 2h5m, 2 workers on 1 node, round 3, 2 restarts (1 counted)
  why
  sidecar 0 on n0 (board): Running, process 5, port 80 takes no connections, 0 restarts
  node n1 does not answer: last known 1m0s ago
RANK  NODE  PID  PHASE    RESTARTS  CPU    MEM     UPTIME
0     n0    12   Running  2         1m30s  3.0GiB  2h5m
1     n0    -    Failed   0         -      -       -`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	d.Ranks[1].Progress = &report.Progress{
		Step: 7, Total: 9, Section: "eval", StepSeconds: new(0.05), Time: noon,
		Values: map[string]float64{"loss": 0.25}, NotFinite: []string{"lr"},
	}
	d.Ranks[1].Slowness, d.Ranks[1].Slow = new(1.5), "rank 0 is slow: \x1b"
	if got := lines(true); got[1] != `  rank 0 is slow: \x1b` {
		t.Errorf("%q", got)
	}
	if got := lines(true)[5:]; strings.Join(strings.Fields(got[1]), " ") !=
		"0 n0 12 Running 2 1m30s 3.0GiB 2h5m 7/9 (eval) 50.0ms 0s ago loss=0.25 lr=nan 1.50 0 - -" ||
		!strings.HasSuffix(got[2], "SIGKILL, 2h5m ago") {
		t.Errorf("%q", got)
	}
	d.Ranks = nil
	if got := lines(false); got[len(got)-1] != "  no worker has been started yet" {
		t.Errorf("%q", got)
	}
}

// TestJobs: jobs that run, that do not answer, and that have ended are told apart, in the table and for programs.
func TestJobs(t *testing.T) {
	t.Parallel()
	began := noon.Add(-26 * time.Hour)
	running := control.Answer{Status: report.Status{
		RunID: "a", Name: "sh", Phase: report.PhaseRunning, WorldSize: 4, Nodes: 2, RestartCount: 1, StartTime: &began,
		Ranks: []report.Rank{{Restarts: 1}, {Restarts: 2}},
	}}
	jobs := []control.Found{{Dir: "/run/a", PID: 3, Answer: &running}, {Dir: "/run/b", PID: 4}}
	ended := func(s report.Status, ago time.Duration, died bool) history.Run {
		s.StartTime = &began
		return history.Run{Record: history.Record{Status: s, Ended: new(noon.Add(-ago))}, Died: died}
	}
	past := []history.Run{
		ended(report.Status{RunID: "c", Phase: report.PhaseSucceeded, ExitStatus: new(0)}, time.Hour, false),
		ended(report.Status{RunID: "d", Phase: report.PhaseRunning}, time.Minute, true),
		ended(report.Status{RunID: "a", Name: "sh", Phase: report.PhaseRunning, Tasks: []report.Task{{Node: "n1"}}}, time.Minute, true),
	}
	running.Muster = control.Muster{Role: control.Driver}
	past[2].Muster = control.Muster{Role: control.Agent, Part: true}
	for i, at := range []string{"h:1", "h:2"} { // the second one is of an earlier job with that id
		d := report.Status{RunID: "e", Name: "sh", Phase: report.PhaseSucceeded, Tasks: []report.Task{{Node: "n2"}}}
		r := ended(d, time.Minute, false)
		r.Muster = control.Muster{Role: control.Agent, Meets: at}
		past = append(past, r)
		if i == 0 {
			goesOn := control.Answer{Status: report.Status{RunID: "e"}, Muster: r.Muster}
			jobs = append(jobs, control.Found{PID: 5, Dir: "/run/e", Answer: &goesOn})
		}
	}
	d := report.Status{RunID: "a", Name: "sh", Phase: report.PhaseSucceeded, Tasks: []report.Task{{Node: "n1"}}}
	before := ended(d, 27*time.Hour, false)
	before.Muster = past[2].Muster
	past = append(past, before) // of the job with the id a that was there before
	var b bytes.Buffer
	if err := Jobs(&b, jobs, past, noon); err != nil {
		t.Fatal(err)
	}
	var states []string
	for _, j := range JobList(jobs, past) {
		states = append(states, strings.TrimSpace(j.RunID+" "+j.State+" "+j.Node))
	}
	wantStates := "a running, b silent, e running, c ended, d died, a died n1, e ended n2, e ended, a ended"
	if got := strings.Join(states, ", "); got != wantStates {
		t.Error(got)
	}
	rows := strings.Split(b.String(), "\n")
	for i, want := range []string{
		"JOB PHASE", "a Running 2 4 2 1d2h 3 sh", "b silent - - - - 4 (/run/b)", "e", "c Succeeded - - 0 1d1h - (status 0, 1h0m ago)",
		"d Running - - 0 1d1h - (died, 1m0s ago)", "a Running - - 0 1d1h - sh on node n1 (died, 1m0s ago)",
		"e Succeeded - - 0 1d1h - sh on node n2 (ended", "e Succeeded - - 0 1d1h - sh (ended", "a Succeeded - - 0 0s - sh (ended",
	} {
		if got := strings.Join(strings.Fields(rows[i]), " "); !strings.HasPrefix(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
	b.Reset()
	err := YAML(&b, JobList(jobs[:1], nil)[0])
	if err != nil || !strings.HasPrefix(b.String(), "runId: a\nrunDir: /run/a\npid: 3\nstate: running\n") {
		t.Errorf("%v %q", err, b.String())
	}
}

// TestCells: times have their two largest units, and sizes three digits.
func TestCells(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{-1: "0s", 59 * time.Second: "59s", time.Hour: "1h0m", 76 * time.Hour: "3d4h"} {
		if got := shortTime(d); got != want {
			t.Errorf("%v: %q, want %q", d, got, want)
		}
	}
	for n, want := range map[int64]string{0: "0B", 999: "999B", 1000: "1.0KiB", 10 << 20: "10MiB", 1 << 40: "1.0TiB"} {
		if got := bytesText(&n); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
	if got := cutTo("größer", 3); got != "grö" {
		t.Error(got)
	}
}
