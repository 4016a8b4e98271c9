package launch

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"muster/internal/errhint"
	"muster/launch/job"
)

// A crash loop all failures of which come from one node ends with that node, where the others can do without it.
func TestCrashLoopOfOneNode(t *testing.T) {
	c := startAgents(t, 3, see+`test $WORLD_SIZE = 2 && exit 0
test $RANK = 1 || exec sleep 100
exit 7`, func(_ int, n *testNode) {
		n.Procs, n.Grace, n.OnNodeFault = 1, time.Second, `echo "$MUSTER_NODE $MUSTER_VERDICT $MUSTER_REASON" >> $PWD/told`
		n.Restart.MaxRestarts, n.Restart.CrashLoop, n.Restart.Delay = 9, 1, time.Millisecond
	})
	c.ends(0, errhint.Faulty, 0)
	doc := readStatus(t, c.nodes[1].path("status.json"))
	if doc.Reason != reasonFaulty ||
		!strings.Contains(doc.Message, "node node-1 has to leave: the last 2 failures, which were in a crash loop") {
		t.Errorf("%s: %s", doc.Reason, doc.Message)
	}
	if told, _ := os.ReadFile(c.nodes[0].path("told")); !strings.HasPrefix(string(told), "node-1 faulty the last 2 failures") {
		t.Errorf("the command was told %q", told)
	}
	if doc := readStatus(t, c.nodes[0].path("status.json")); doc.WorldSize != 2 || doc.RestartCount != 2 {
		t.Errorf("%+v", doc)
	}
}

// A job that cannot do without the node ends with status 93, as does one whose failures go on elsewhere.
func TestCrashLoopOfTheLastNodes(t *testing.T) {
	c := startAgents(t, 2, see+`test $RANK = 0 && exit 7
exec sleep 100`, func(_ int, n *testNode) {
		n.Procs, n.Grace, n.MinNodes = 1, time.Second, 2
		n.Restart.MaxRestarts, n.Restart.CrashLoop, n.Restart.Delay = 9, 1, time.Millisecond
	})
	c.ends(errhint.DoNotRetry, errhint.DoNotRetry)
}

// --on-hang exclude has the node leave whose worker is stopped by a signal, and the others start again without it.
func TestHungNodeLeaves(t *testing.T) {
	c := startAgents(t, 3, see+`test $WORLD_SIZE = 2 && exit 0
test $RANK = 2 && kill -STOP $$
exec sleep 100`, func(_ int, n *testNode) {
		n.Procs, n.Grace = 1, time.Second
		n.Restart.MaxRestarts = 1
		n.Hang = job.HangRules{Timeout: 2 * time.Second, Exclude: true, Action: job.HangDump}
	})
	c.ends(0, 0, errhint.Faulty)
	doc := readStatus(t, c.nodes[2].path("status.json"))
	if doc.Reason != reasonFaulty || !strings.Contains(doc.Message, "rank 2 on node node-2 is stopped by a signal") {
		t.Errorf("%s: %s", doc.Reason, doc.Message)
	}
	if doc := readStatus(t, c.nodes[0].path("status.json")); doc.WorldSize != 2 || doc.RestartCount != 1 {
		t.Errorf("%+v", doc)
	}
	if found, _ := filepath.Glob(c.nodes[0].path("logs/*/hangs/*.json")); len(found) != 1 {
		t.Errorf("the evidence is kept in %q", found)
	}
}

// A hang whose cause lies in no node, and one on a node that the others need, is answered by what follows in the list:
// here by nothing.
func TestHungNodeStays(t *testing.T) {
	c := startAgents(t, 2, see+`test $RANK = 1 && kill -STOP $$
while ! test -e $ALL/go; do sleep 0.2; done`, func(_ int, n *testNode) {
		n.Procs, n.Grace, n.MinNodes = 1, time.Second, 2
		n.Restart.MaxRestarts = 1
		n.Hang = job.HangRules{Timeout: 2 * time.Second, Exclude: true, Action: job.HangFail}
	})
	for _, r := range c.ends(errhint.Deadline, errhint.Deadline) {
		if !strings.Contains(r.Report, "is stopped by a signal") {
			t.Errorf("the report does not say why: %s", r.Report)
		}
	}
	c.nodes[0].wantLog(t, "the node is not excluded: too few nodes would be left", `"node":"node-1"`)
}

// The site is asked before a node takes part. One that is not fit leaves; an answer that cannot be used changes nothing.
func TestSiteHealth(t *testing.T) {
	for name, c := range map[string]struct {
		health job.HealthRules
		status int
		says   string
	}{
		"not fit": {
			job.HealthRules{Command: `echo checked; echo "GPU 2 of $MUSTER_NODE is gone"; exit 3`},
			errhint.Faulty,
			"its health command ended with status 3: GPU 2 of node-0 is gone",
		},
		"not to be run": {job.HealthRules{Command: "muster_no_such_command"}, 0, "has not said whether this node is fit"},
		"killed":        {job.HealthRules{Command: "kill -9 $$"}, 0, "has not said whether this node is fit"},
		"no service":    {job.HealthRules{Socket: "/nonexistent/socket"}, 0, "cannot ask the health service at /nonexistent/socket"},
	} {
		t.Run(name, func(t *testing.T) {
			a := startAgents(t, 1, see, func(_ int, n *testNode) { n.Procs, n.Health = 1, c.health })
			r := a.ends(c.status)
			if said := r[0].Report + a.nodes[0].log.String(); !strings.Contains(said, c.says) {
				t.Errorf("it does not say %q: %s", c.says, said)
			}
		})
	}
}
