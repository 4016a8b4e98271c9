package report

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"muster/internal/errhint"
	"muster/launch/job"
)

// nodeStatus is a node's status file with one task.
func nodeStatus(t *testing.T, node string, p Phase, counts Counts, exitStatus *int) []byte {
	t.Helper()
	d := Status{
		Version: 1, Phase: p, ExitStatus: exitStatus, Counts: counts, Tasks: []Task{{Node: node, Phase: p}},
		Conditions: []Condition{},
	}
	if exitStatus != nil {
		d.EndTime, d.Reason = &failedAt, job.ReasonWorkerFailed
	}
	text, err := json.Marshal(&d)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func worldOf(t *testing.T, w *WorldStatus) (Status, []Phase) {
	t.Helper()
	var d Status
	if err := json.Unmarshal(w.Encode(), &d); err != nil {
		t.Fatal(err)
	}
	var phases []Phase
	for _, task := range d.Tasks {
		phases = append(phases, task.Phase)
	}
	return d, phases
}

func TestWorldStatus(t *testing.T) {
	w := NewWorldStatus([]string{"a", "b", "c"})
	if w.Encode() != nil {
		t.Error("there is a status of which nobody has said anything")
	}
	take := func(node int, data []byte) {
		t.Helper()
		if err := w.Take(node, data); err != nil {
			t.Fatal(err)
		}
	}
	take(1, nodeStatus(t, "b", PhaseRunning, Counts{Running: 2}, nil))
	d, phases := worldOf(t, w)
	if diff := cmp.Diff([]Phase{PhasePending, PhaseRunning, PhasePending}, phases); diff != "" || d.Phase != PhaseRunning ||
		d.Counts.Running != 2 {
		t.Errorf("%+v\n%s", d, diff)
	}
	take(0, nodeStatus(t, "a", PhaseChecking, Counts{Pending: 2}, nil))
	take(2, nodeStatus(t, "c", PhaseRunning, Counts{Running: 3}, nil))
	if d, _ = worldOf(t, w); d.Phase != PhaseChecking || d.Counts != (Counts{Pending: 2, Running: 5}) {
		t.Errorf("the first node does not lead: %+v", d)
	}
	if err := w.Take(0, []byte("{")); err == nil {
		t.Error("half a file was taken")
	}
	// The first node is lost, the second has decided, and the third has not said how its workers ended.
	seven := 7
	take(1, nodeStatus(t, "b", PhaseFailed, Counts{Failed: 2}, &seven))
	w.End(7, 1, []int{0}, "")
	d, phases = worldOf(t, w)
	if diff := cmp.Diff([]Phase{PhaseUnknown, PhaseFailed, PhaseUnknown}, phases); diff != "" || *d.ExitStatus != 7 ||
		d.Phase != PhaseFailed ||
		d.Reason != job.ReasonWorkerFailed || d.Counts != (Counts{Unknown: 5, Failed: 2}) {
		t.Errorf("%+v\n%s", d, diff)
	}
}

// No task, rank or count of a job that has ended is of something that lives, also where a node has said nothing, or its
// last word was that it waits.
func TestWorldStatusEnded(t *testing.T) {
	w := NewWorldStatus([]string{"a", "b", "c"})
	w.TakeStatus(0, Status{
		Phase: PhaseRunning, Counts: Counts{Running: 1}, Tasks: []Task{{Phase: PhaseRunning}}, Ranks: []Rank{{Phase: PhaseRunning}},
	})
	w.TakeStatus(1, Status{Phase: PhasePending, Counts: Counts{Pending: 1}, Tasks: []Task{{Phase: PhasePending}}})
	w.End(errhint.TryAgain, -1, nil, "they did not meet")
	d, phases := worldOf(t, w)
	if diff := cmp.Diff([]Phase{PhaseUnknown, PhaseUnknown, PhaseUnknown}, phases); diff != "" || d.Counts != (Counts{Unknown: 2}) ||
		d.Ranks[0].Phase != PhaseUnknown {
		t.Errorf("%+v\n%s", d, diff)
	}
	if w.docs[0].Ranks[0].Phase != PhaseRunning {
		t.Error("what the node said has changed")
	}
}

// The job has begun when the first of its nodes has: one that answers, and came later, was not there.
func TestWorldStatusStart(t *testing.T) {
	w := NewWorldStatus([]string{"a", "b", "c"})
	later := failedAt.Add(time.Hour)
	w.TakeStatus(0, Status{StartTime: &later})
	w.TakeStatus(1, Status{StartTime: &failedAt})
	w.TakeStatus(2, Status{})
	w.By(0)
	if d, _ := w.Status(); d.StartTime == nil || !d.StartTime.Equal(failedAt) {
		t.Errorf("it has begun at %v, want %v", d.StartTime, failedAt)
	}
	w.TakeStatus(1, Status{StartTime: &later}) // another agent in its place
	if d, _ := w.Status(); !d.StartTime.Equal(failedAt) {
		t.Errorf("it has begun at %v, want %v", d.StartTime, failedAt)
	}
}

// TestWorldStatusWithoutFirst: where the node that leads is lost, or has left as fewer were wanted, another one says how the
// job stands, until its successor takes part.
func TestWorldStatusWithoutFirst(t *testing.T) {
	w := NewWorldStatus([]string{"a", "b"})
	want := func(phase Phase, restarts int, when string) {
		t.Helper()
		if d, _ := w.Status(); d.Phase != phase || d.RestartCount != restarts {
			t.Errorf("%s: %s with %d restarts, want %s with %d", when, d.Phase, d.RestartCount, phase, restarts)
		}
	}
	w.TakeStatus(0, Status{Phase: PhaseRunning})
	w.TakeStatus(1, Status{Phase: PhaseRunning, RestartCount: 1})
	want(PhaseRunning, 0, "the first one leads")
	w.Lose(0)
	w.TakeStatus(1, Status{Phase: PhaseRestarting, RestartCount: 2})
	want(PhaseRestarting, 2, "it is lost")
	for _, early := range []Phase{PhasePending, PhaseChecking, PhaseCreating} {
		w.TakeStatus(0, Status{Phase: early})
		want(PhaseRestarting, 2, "its successor is "+string(early))
	}
	w.TakeStatus(0, Status{Phase: PhaseRunning, RestartCount: 3})
	want(PhaseRunning, 3, "its successor takes part")
	w.TakeStatus(0, Status{Phase: PhaseSucceeded, Reason: job.ReasonSurplus})
	want(PhaseRestarting, 2, "it has left")
	w.TakeStatus(0, Status{Phase: PhasePending})
	want(PhaseRestarting, 2, "it is started again")
	w.Lose(0)
	w.Lose(1)
	want(PhasePending, 0, "both are lost")
}

// Where all nodes were lost no file says that the job runs.
func TestWorldStatusOfLostNodes(t *testing.T) {
	w := NewWorldStatus([]string{"a", "b"})
	for i, name := range []string{"a", "b"} {
		if err := w.Take(i, nodeStatus(t, name, PhaseRunning, Counts{Running: 1}, nil)); err != nil {
			t.Fatal(err)
		}
	}
	w.End(errhint.TryAgain, -1, []int{0, 1}, "node a was lost")
	d, phases := worldOf(t, w)
	if diff := cmp.Diff([]Phase{PhaseUnknown, PhaseUnknown}, phases); diff != "" || d.Phase != PhaseFailed ||
		d.Reason != job.ReasonNotMet ||
		*d.ExitStatus != errhint.TryAgain || d.EndTime == nil || d.Message != "node a was lost" {
		t.Errorf("%+v\n%s", d, diff)
	}
}

// What is said of a node's workers is how they ended, whatever became of the job.
func TestTaskEnds(t *testing.T) {
	four := Exit{Code: 4, At: failedAt}
	for name, c := range map[string]struct {
		exits []Exit
		phase Phase
		code  int // -1: none
	}{
		"all succeeded, the job failed elsewhere": {[]Exit{{}, {}}, PhaseSucceeded, 0},
		"muster stopped them":                     {[]Exit{{}, {Stopped: true, Signal: 15}}, PhaseStopped, -1},
		"one failed, one was stopped":             {[]Exit{{Stopped: true, Signal: 15}, four}, PhaseFailed, 4},
	} {
		p, code := taskEnd(&Outcome{Status: 4, Exits: c.exits}, false)
		if p != c.phase || (code == nil) != (c.code < 0) || code != nil && *code != c.code {
			t.Errorf("%s: %s with %v", name, p, code)
		}
	}
}
