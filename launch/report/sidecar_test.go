package report

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The world has the sidecars of the node that has had group rank 0 last, whatever older words say.
func TestWorldSidecars(t *testing.T) {
	w := NewWorldStatus([]string{"a", "b", "c"})
	say := func(node, generation, groupRank int, sidecars ...Sidecar) {
		t.Helper()
		text, err := json.Marshal(&Status{
			Version: 1, Phase: PhaseRunning, Nodes: 3, Generation: generation, GroupRank: groupRank, Tasks: []Task{},
			Conditions: []Condition{},
			Sidecars:   sidecars,
		})
		if err == nil {
			err = w.Take(node, text)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	expect := func(when string, want ...Sidecar) {
		t.Helper()
		d, _ := w.Status()
		if diff := cmp.Diff(want, d.Sidecars); diff != "" {
			t.Errorf("%s (-want +got):\n%s", when, diff)
		}
	}
	healthy := true
	first, second := Sidecar{Node: "b", Command: "x", State: PhaseRunning, PID: 7, Port: 80, Healthy: &healthy}, Sidecar{Node: "c", PID: 8}
	say(0, 0, 1)
	say(1, 0, 0, first)
	say(2, 0, 2)
	expect("in the first round", first)
	say(2, 1, 0, second) // b is lost, and cannot say that it is not the first any more
	say(0, 1, 1)
	expect("after the loss of the first", second)
	w.End(1, -1, []int{2}, "it is lost")
	expect("where the last one is lost, too", first)
}
