package report

import (
	"testing"

	"github.com/google/go-cmp/cmp"
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
