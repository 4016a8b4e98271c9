package launch

import (
	"os"
	"strings"
	"testing"
	"time"

	"muster/internal/errhint"
	"muster/internal/testutil"
	"muster/launch/job"
	"muster/rendezvous"
)

// hangsOnce has workers wait somewhere that cannot be seen, fail when all have started again, and succeed then.
const hangsOnce = see + `test $TORCHELASTIC_RESTART_COUNT = 0 && exec python3 -c 'import signal; signal.pause()'
test $TORCHELASTIC_RESTART_COUNT = 1 || exit 0
touch $ALL/again$RANK
for rank in $(seq 0 $((WORLD_SIZE - 1))); do wait_for $ALL/again$rank; done
exit 7`

// examined has nodes examined after a hang, with what that says by their index.
func examined(says map[int]testCheck, change func(n *testNode)) func(i int, n *testNode) {
	return func(i int, n *testNode) {
		n.Procs, n.Grace, n.Restart.MaxRestarts, n.Restart.Delay = 1, time.Second, 3, time.Millisecond
		n.Hang = job.HangRules{Timeout: 2 * time.Second, Action: job.HangRestart, Stacks: job.StacksOff}
		n.Examined = map[int]testCheck{1: says[i]}
		if change != nil {
			change(n)
		}
	}
}

// wasExamined says in which rounds a node was.
func (n *agentNode) wasExamined(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(n.path("checks"))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	var rounds []string
	for line := range strings.Lines(string(text)) {
		rounds = append(rounds, strings.Fields(line)[1])
	}
	return strings.Join(rounds, " ")
}

// After a hang that names no rank the nodes are examined in the next round, on one node as on two, and not again after
// the next failure.
func TestExaminedAfterHang(t *testing.T) {
	t.Parallel()
	testutil.Long(t)
	for _, nodes := range []int{1, 2} {
		c := startAgents(t, nodes, hangsOnce, examined(nil, nil))
		c.ends(make([]int, nodes)...)
		for _, n := range c.nodes {
			if rounds := n.wasExamined(t); rounds != "1" {
				t.Errorf("node %d of %d was examined in the rounds %q", n.Index, nodes, rounds)
			}
		}
		c.nodes[0].wantLog(t, "the workers hung, and no cause was found: the nodes are checked before they start again")
		c.nodes[0].wantLog(t, "the check after the hang has found nothing")
	}
}

// An examination in which nothing could be tested has not found that nothing is wrong.
func TestExaminationSkipped(t *testing.T) {
	t.Parallel()
	testutil.Long(t)
	skipped := testCheck{Out: CheckOutcome{Skipped: "its Python has no torch"}}
	c := startAgents(t, 1, hangsOnce, examined(map[int]testCheck{0: skipped}, nil))
	c.ends(0)
	c.nodes[0].wantLog(t, "the check after the hang was skipped")
	c.nodes[0].wantLog(t, "its Python has no torch")
	if strings.Contains(c.nodes[0].log.String(), "has found nothing") {
		t.Error("it is said that nothing was found")
	}
}

// A job that is paused before such an examination has it when it goes on, and not again after another pause.
func TestExaminedAfterPause(t *testing.T) {
	t.Parallel()
	m := &meeting{Round: rendezvous.Round{Number: 3, Orders: rendezvous.Orders{Version: 5, CheckAt: 3}}}
	for m.Number < 5 { // the second one is paused when it meets again
		m = &meeting{Round: rendezvous.Round{Number: m.Number + 1, Orders: m.pausedOrders()}}
		if a := (&Agent{meeting: m}); a.afterHang() || !m.Orders.Paused {
			t.Errorf("round %d: %+v", m.Number, m.Orders)
		}
	}
	m = &meeting{Round: rendezvous.Round{Number: 6, Orders: m.resumedOrders()}}
	if a := (&Agent{meeting: m}); !a.afterHang() || m.Orders.Paused || m.Orders.Version != 8 {
		t.Errorf("%+v", m.Orders)
	}
	m.checked = true
	m = &meeting{Round: rendezvous.Round{Number: 7, Orders: m.pausedOrders()}}
	m = &meeting{Round: rendezvous.Round{Number: 8, Orders: m.resumedOrders()}}
	if a := (&Agent{meeting: m}); a.afterHang() {
		t.Errorf("%+v", m.Orders)
	}
}

// A job that checks its nodes before each round does not rest on what an earlier check found good.
func TestCheckedAnewAfterHang(t *testing.T) {
	t.Parallel()
	testutil.Long(t)
	c := startAgents(t, 2, hangsOnce, examined(nil, func(n *testNode) { n.Examined, n.Checks = nil, map[int]testCheck{0: {}} }))
	c.ends(0, 0)
	for _, n := range c.nodes {
		text, err := os.ReadFile(n.path("checks"))
		if err != nil || !strings.Contains(string(text), "round 0 suspect false") ||
			!strings.Contains(string(text), "round 1 suspect true") {
			t.Errorf("node %d: %v\n%s", n.Index, err, text)
		}
	}
}

// A hang whose cause is known needs no examination.
func TestNotExaminedAfterExplainedHang(t *testing.T) {
	t.Parallel()
	testutil.Long(t)
	c := startAgents(t, 1, see+`test $TORCHELASTIC_RESTART_COUNT = 0 || exit 0
test $RANK = 1 && kill -STOP $$
exec sleep 100`, examined(nil, func(n *testNode) { n.Procs = 2 }))
	c.ends(0)
	if rounds := c.nodes[0].wasExamined(t); rounds != "" {
		t.Errorf("the node was examined in the rounds %q", rounds)
	}
}

// A node that is found unfit leaves, and the others go on without it.
func TestExaminedNodeLeaves(t *testing.T) {
	t.Parallel()
	testutil.Long(t)
	gone := []rendezvous.Exclusion{{Node: "node-1", Reason: "its GPU is gone"}}
	unfit, fit := leaves(errhint.Faulty), again
	unfit.Out.Excluded, fit.Out.Excluded = gone, gone
	c := startAgents(t, 3, hangsOnce, examined(map[int]testCheck{0: fit, 1: unfit, 2: fit}, nil))
	c.ends(0, errhint.Faulty, 0)
	for _, i := range []int{0, 2} {
		if rounds := c.nodes[i].wasExamined(t); rounds != "1" {
			t.Errorf("node %d was examined in the rounds %q", i, rounds)
		}
	}
	if doc := readStatus(t, c.nodes[1].path("status.json")); !strings.Contains(doc.Message, "its GPU is gone") {
		t.Errorf("%s: %s", doc.Reason, doc.Message)
	}
}

// Nobody has asked for the examination: a job that cannot do without the unfit node, and one whose check says nothing,
// start again all the same.
func TestExaminedNodeStays(t *testing.T) {
	t.Parallel()
	testutil.Long(t)
	gone := []rendezvous.Exclusion{{Node: "node-1", Reason: "its GPU is gone"}}
	unfit, fit := leaves(errhint.Faulty), again
	unfit.Out.Excluded, fit.Out.Excluded = gone, gone
	undecided := testCheck{Out: CheckOutcome{Status: errhint.Undecided, Everybody: true, Message: "either of them is bad"}}
	broken := testCheck{Err: "a peer speaks in tongues"}
	for says, checks := range map[string]map[int]testCheck{
		"a peer speaks in tongues":                                                   {0: broken, 1: broken},
		"which is not excluded: too few nodes would be left":                         {0: fit, 1: unfit},
		"the check after the hang could not be done; the workers start all the same": {0: undecided, 1: undecided},
	} {
		c := startAgents(t, 2, hangsOnce, examined(checks, func(n *testNode) { n.MinNodes = 2 }))
		c.ends(0, 0)
		c.nodes[0].wantLog(t, says)
	}
}
