package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRoundsAreRead(t *testing.T) {
	m := &meetings{first: []float64{9}}
	out := `{"agents":4,"round":0,"seconds":1.5}` + "\n" + `{"agents":4,"round":1,"seconds":0.5}` + "\n" +
		`{"agents":4,"round":2,"seconds":0.25}` + "\n"
	if err := m.add([]byte(out)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(meetings{first: []float64{9, 1.5}, restart: []float64{0.5, 0.25}}, *m,
		cmp.AllowUnexported(meetings{})); diff != "" {
		t.Errorf("rounds (-want +got):\n%s", diff)
	}
	for name, text := range map[string]string{
		"nothing":        "",
		"no restart":     `{"agents":4,"round":0,"seconds":1.5}`,
		"a round is not": `{"agents":4,"round":0,"seconds":1.5}{"agents":4,"round":2,"seconds":1.5}`,
		"no time":        `{"agents":4,"round":0,"seconds":0}{"agents":4,"round":1,"seconds":1}`,
		"no JSON":        "round 0: 1.5 s",
	} {
		if err := (&meetings{}).add([]byte(text)); err == nil {
			t.Errorf("%s: %q is taken for rounds", name, text)
		}
	}
}

func TestRoundsHaveBudgets(t *testing.T) {
	few := &meetings{first: []float64{0.3, 0.5, 0.4}, restart: []float64{1, 1}}
	many := &meetings{first: []float64{3, 1.9, 1.2}, restart: []float64{6, 6}}
	var got []string
	for _, c10d := range []bool{false, true} {
		for _, r := range agentRows(c10d, few, many) {
			verdict := map[bool]string{true: "PASS", false: "FAIL"}[r.Pass]
			got = append(got, strings.Join([]string{r.Figure, number(r.Ours) + " " + r.Unit, r.PeerText, r.Budget, verdict}, " | "))
		}
	}
	want := []string{
		"1000 agents, own protocol, first round | 0.4 s |  | information | PASS",
		"4000 agents, own protocol, first round | 1.9 s | 373 s, later 10 s | ≤ 2 s | PASS",
		"own protocol, first round: time of 4000 agents in those of 1000 | 4.75 × |  | ≤ 5 × | PASS",
		"1000 agents, own protocol, restart | 1 s |  | information | PASS",
		"4000 agents, own protocol, restart | 6 s | 373 s, later 10 s | ≤ 2 s | FAIL",
		"own protocol, restart: time of 4000 agents in those of 1000 | 6 × |  | ≤ 5 × | FAIL",
		"1000 agents, torchrun's, first round | 0.4 s |  | information | PASS",
		"4000 agents, torchrun's, first round | 1.9 s | 373 s, later 10 s | ≤ 10 s | PASS",
		"torchrun's, first round: time of 4000 agents in those of 1000 | 4.75 × |  | ≤ 5 × | PASS",
		"1000 agents, torchrun's, restart | 1 s |  | information | PASS",
		"4000 agents, torchrun's, restart | 6 s | 373 s, later 10 s | ≤ 10 s | PASS",
		"torchrun's, restart: time of 4000 agents in those of 1000 | 6 × |  | ≤ 5 × | FAIL",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("rows (-want +got):\n%s", diff)
	}
}
