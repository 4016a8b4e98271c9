package report

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"muster/launch/job"
)

// TestLostNodes: nobody knows of what ran on a node whose muster is dead; how its workers had ended before stays.
func TestLostNodes(t *testing.T) {
	before := Status{
		Phase: PhaseRunning, Counts: Counts{Running: 2, Succeeded: 2},
		Tasks: []Task{{Node: "a", Phase: PhaseRunning}, {Node: "b", Phase: PhaseRunning}},
		Ranks: []Rank{
			{Node: "a", Phase: PhaseRunning, CPUSeconds: new(float64)},
			{Node: "a", Phase: PhaseSucceeded},
			{Node: "b", Phase: PhaseRunning, CPUSeconds: new(float64)},
			{Node: "b", Phase: PhaseSucceeded},
		},
	}
	want := Status{
		Phase: PhaseRunning, Counts: Counts{Running: 1, Succeeded: 2, Unknown: 1},
		Tasks: []Task{{Node: "a", Phase: PhaseRunning}, {Node: "b", Phase: PhaseUnknown}},
		Ranks: []Rank{
			{Node: "a", Phase: PhaseRunning, CPUSeconds: new(float64)},
			{Node: "a", Phase: PhaseSucceeded},
			{Node: "b", Phase: PhaseUnknown},
			{Node: "b", Phase: PhaseSucceeded},
		},
	}
	if diff := cmp.Diff(want, before.Lost(func(name string) bool { return name == "b" })); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if before.Ranks[2].Phase != PhaseRunning || before.Tasks[1].Phase != PhaseRunning {
		t.Error("what was told before has changed")
	}
}

// TestEnding: a job that was told to end is ending for that reason and no earlier one, also where its nodes say already
// that they were stopped; one that has ended for another reason stays as it is.
func TestEnding(t *testing.T) {
	before := Status{
		Phase: PhaseRestarting, Reason: job.ReasonWorkerFailed, Hint: "try this", Counts: Counts{Running: 1, Failed: 1},
		Ranks: []Rank{{Phase: PhaseRunning}, {Phase: PhaseFailed}},
	}
	want := Status{
		Phase: PhaseTerminating, Reason: job.ReasonStopped, Message: "received SIGTERM", Counts: Counts{Terminating: 1, Failed: 1},
		Ranks: []Rank{{Phase: PhaseTerminating}, {Phase: PhaseFailed}},
	}
	if diff := cmp.Diff(want, before.Ending(job.ReasonStopped, "received SIGTERM")); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	over, status := time.Unix(1, 0), 143
	stopped := before
	stopped.Phase, stopped.EndTime, stopped.ExitStatus, stopped.Reason = PhaseFailed, &over, &status, job.ReasonStopped
	stopped.Conditions = []Condition{{Type: conditionRunning, Status: "False"}, {Type: conditionFailed, Status: "True"}}
	want.Reason, want.Message, want.Conditions = job.ReasonNotMet, "too few", stopped.Conditions[:1]
	if diff := cmp.Diff(want, stopped.Ending(job.ReasonNotMet, "too few")); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	before.Phase, before.EndTime = PhaseFailed, &over
	if diff := cmp.Diff(before, before.Ending(job.ReasonStopped, "received SIGTERM")); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}
