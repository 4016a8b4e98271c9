package ranks

import (
	"slices"
	"strings"
	"testing"

	"muster/internal/errhint"
	"muster/launch/control"
	"muster/launch/report"
)

// TestParse: a list has single ranks and ranges, and gives each rank once.
func TestParse(t *testing.T) {
	t.Parallel()
	if got, err := parse("4-6, 0,5"); err != nil || !slices.Equal(got, []int{0, 4, 5, 6}) {
		t.Errorf("%v %v", got, err)
	}
	for _, list := range []string{"", "1,", "x", "-1", "3-2", "1-2-3", "0-70000", "99999999"} {
		if got, err := parse(list); errhint.CodeOf(err) != errhint.Usage {
			t.Errorf("%q: %v %v", list, got, err)
		}
	}
}

// world is a job of four ranks on two nodes, the second of which is listed first, beside one that has said nothing.
func world() *control.Answer {
	return &control.Answer{Status: report.Status{
		RunID: "one", WorldSize: 4, Nodes: 2,
		Tasks: []report.Task{{Node: "n\x1b1", Ranks: "2-3"}, {Node: "n0", Ranks: "0-1"}, {Node: "n2"}},
	}}
}

// TestNodes: a node is named by its group rank or its name, and ranks are sorted by the nodes on which they are.
func TestNodes(t *testing.T) {
	t.Parallel()
	for node, want := range map[string][]int{"0": {0, 1}, "1": {2, 3}, "n0": {0, 1}} {
		if got, err := on(world(), node); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %v %v", node, got, err)
		}
	}
	for _, node := range []string{"2", "n2", "-1", ""} {
		if got, err := on(world(), node); errhint.CodeOf(err) != errhint.Usage || !strings.Contains(errhint.Of(err), "0 to 1") {
			t.Errorf("%q: %v %v", node, got, err)
		}
	}
	nodes, err := elsewhere(control.Found{}, world(), []int{1, 2, 3}, nil)
	if err != nil || len(nodes) != 2 || !slices.Equal(nodes[0].ranks, []int{1}) || !slices.Equal(nodes[1].ranks, []int{2, 3}) ||
		nodes[1].node != `n\x1b1` {
		t.Errorf("%v %v", nodes, err)
	}
}

// TestNowhere: a rank that nobody runs yet is to be asked for again, one that there cannot be is an error of usage.
func TestNowhere(t *testing.T) {
	t.Parallel()
	here := []Local{{Rank: report.Rank{Rank: 0}}}
	started := world()
	started.Tasks, started.Ranks = started.Tasks[:1], []report.Rank{{Rank: 3}, {Rank: 2}, {Rank: 2}}
	empty := world()
	empty.Tasks, empty.WorldSize = nil, 0
	for _, c := range []struct {
		d      *control.Answer
		rank   int
		here   []Local
		status int
		want   string
	}{
		{started, 1, here, errhint.TryAgain, "no node of job one has said that it runs rank 1"},
		{started, 7, here, errhint.Usage, "has no rank 7: there are only 2, 3"},
		{world(), 7, nil, errhint.Usage, "has no rank 7: its ranks are 0 to 3"},
		{empty, 1, nil, errhint.Usage, "job one has no worker yet"},
	} {
		_, err := elsewhere(control.Found{Answer: c.d}, c.d, []int{c.rank}, c.here)
		if errhint.CodeOf(err) != c.status || !strings.Contains(err.Error(), c.want) {
			t.Errorf("rank %d: %v, want %q", c.rank, err, c.want)
		}
	}
}

// TestHere: the workers of this machine are those of agents, as a launcher tells of workers everywhere.
func TestHere(t *testing.T) {
	t.Parallel()
	of := func(role control.Role, ranks ...int) control.Found {
		a := &control.Answer{Muster: control.Muster{Role: role}}
		for _, r := range ranks {
			a.Ranks = append(a.Ranks, report.Rank{Rank: r})
		}
		return control.Found{Answer: a}
	}
	here := here([]control.Found{of(control.Launcher, 0, 1, 2, 3), of(control.Agent, 3, 2), {}, of(control.Agent, 0)})
	if got := rankNumbers(here); got != "0, 2, 3" {
		t.Error(got)
	}
}
