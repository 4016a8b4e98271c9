package launch

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"muster/internal/testutil"
	"muster/launch/job"
	"muster/rendezvous"
)

// echoes is the beginning of scripts whose workers can end like the victims of another node.
const echoes = see + `echo_of_another() { echo "` + glooLine + `" >&2; exit 1; }
now() { date +%s.%N; }
`

// waitsForWord waits until an agent holds back what its workers' broken connections would lead to.
func (c *testAgents) waitsForWord(nodes ...int) {
	c.t.Helper()
	for _, i := range nodes {
		testutil.Eventually(c.t, time.Minute, fmt.Sprintf("agent %d waits for word", i), func() bool {
			return strings.Contains(c.nodes[i].log.String(), "waiting for word of what became of the other nodes")
		})
	}
}

// verdict returns the one that counted for a round.
func (c *testAgents) verdict(round int) (v rendezvous.Verdict) {
	c.t.Helper()
	text, err := c.store.Get(c.t.Context(), fmt.Sprintf("r%d/verdict", round))
	if err == nil {
		err = json.Unmarshal(text, &v)
	}
	if err != nil {
		c.t.Fatal(err)
	}
	return v
}

// TestNodeDies: its death breaks the connections of the others before anybody knows of it. They wait, although no
// restart is left, and go on without it; what else runs on them is left alone until then.
func TestNodeDies(t *testing.T) {
	t.Parallel()
	testutil.Long(t)
	c := startAgents(t, 3, echoes+`test $MUSTER_ROUND = 0 || exit 0
trap "echo asked to end >> $ALL/seen; exit 0" TERM
case $RANK in
0|2) wait_for $ALL/lost; echo_of_another;; # node 0, and another worker goes on
3) wait_for $ALL/lost; exit 0;;            # node 1: all have ended
*) while :; do sleep 0.05; done
esac`, func(i int, n *testNode) { n.LossNotice, n.Pipes = time.Hour, i == 0 })
	c.lines(6)
	if err := c.nodes[2].cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(c.dir, "lost"), "")
	c.waitsForWord(0, 1)
	if lines := c.lines(6); count(lines, "asked to end") != 0 {
		t.Errorf("a worker was not left alone: %q", lines)
	}
	if err := c.store.Set(t.Context(), "r1/node/2", []byte("left")); err != nil {
		t.Fatal(err)
	}
	c.said(0, rendezvous.Verdict{Kind: rendezvous.Reassemble, Reason: "NodeLost", Message: "node-2 is lost", Rank: -1, Node: "node-1"})
	c.ends(0, 0)
	lines := c.lines(11)
	if count(lines, "asked to end") != 1 {
		t.Errorf("%q", lines)
	}
	for rank := range 4 {
		if n := count(lines, fmt.Sprintf("%d of 4 try 0 round 1 group %d of 2", rank, rank/2)); n != 1 {
			t.Errorf("rank %d was started %d times in the second round: %q", rank, n, lines)
		}
	}
	for i, n := range c.nodes[:2] {
		n.wantLog(t, `"level":"info"`, "waiting for word", `"limit_ms":3601000`)
		n.wantLog(t, "meeting the others again", "node-2 is lost", `"decided_by":"node-1"`)
		if strings.Contains(n.log.String(), "root cause") {
			t.Errorf("agent %d blames a worker:\n%s", i, n.log.String())
		}
		doc := readStatus(t, n.path("status.json"))
		if doc.RestartCount != 0 || doc.Replacements != 1 || doc.Counts.Succeeded != 2 {
			t.Errorf("status of node %d: %+v", i, doc)
		}
	}
}

// TestEchoWaitsForNothingElse: a failure of another kind, wherever it is, decides at once and is the one to blame.
func TestEchoWaitsForNothingElse(t *testing.T) {
	t.Parallel()
	testutil.Long(t)
	for name, culprit := range map[string]int{"another node": 2, "this node": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := startAgents(t, 2, echoes+`test $RANK = 0 && echo_of_another
test $RANK = `+strconv.Itoa(culprit)+` || exec sleep 100
wait_for $ALL/go; echo "no more disk" >&2; exit 9`, func(_ int, n *testNode) { n.LossNotice = time.Hour })
			c.waitsForWord(0)
			writeFile(t, filepath.Join(c.dir, "go"), "")
			host := fmt.Sprintf("node-%d", culprit/2)
			for i, r := range c.ends(9, 9) {
				_, root, _ := strings.Cut(r.Report, "Root Cause")
				if !strings.Contains(root, fmt.Sprintf("rank      : %d (", culprit)) || !strings.Contains(root, "host      : "+host) ||
					!strings.Contains(r.Report, fmt.Sprintf("secondary : its connection broke when rank %d failed", culprit)) {
					t.Errorf("report of node %d:\n%s", i, r.Report)
				}
			}
			if v := c.verdict(0); v.Kind != rendezvous.Fail || v.Node != host || v.Rank != culprit || v.Status != 9 {
				t.Errorf("verdict %+v", v)
			}
		})
	}
}

// TestConnectionBreaksByItself: nobody is lost and nobody else fails. When that is sure, the failure is one like any
// other.
func TestConnectionBreaksByItself(t *testing.T) {
	t.Parallel()
	testutil.Long(t)
	c := startAgents(t, 2, echoes+`test $TORCHELASTIC_RESTART_COUNT = 0 || { test $RANK = 0 && now > $ALL/again; exit 0; }
test $RANK = 1 && { sleep 0.5; echo_of_another; } # waits no longer for it
test $RANK = 0 || exec sleep 100
now > $ALL/broke; echo_of_another`, func(_ int, n *testNode) { n.LossNotice, n.Restart.MaxRestarts = time.Second, 1 })
	c.ends(0, 0)
	var at [2]float64
	for i, name := range []string{"broke", "again"} {
		text, err := os.ReadFile(filepath.Join(c.dir, name))
		if err == nil {
			at[i], err = strconv.ParseFloat(strings.TrimSpace(string(text)), 64)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if waited := at[1] - at[0]; waited < 2 {
		t.Errorf("started again after %.1f s", waited)
	}
	if v := c.verdict(0); v.Kind != rendezvous.Restart || v.Node != "node-0" || v.Rank != 0 || v.Restarts != 1 {
		t.Errorf("verdict %+v", v)
	}
	if n := strings.Count(c.nodes[0].log.String(), "waiting for word"); n != 1 {
		t.Errorf("said %d times what is waited for", n)
	}
	c.nodes[0].wantLog(t, "root cause of the restart", `"rank":0`)
	for i, n := range c.nodes {
		if doc := readStatus(t, n.path("status.json")); doc.RestartCount != 1 {
			t.Errorf("status of node %d: %+v", i, doc)
		}
	}
}

// TestEndWhileWaitingForWord: a signal and the deadline do not wait.
func TestEndWhileWaitingForWord(t *testing.T) {
	t.Parallel()
	testutil.Long(t)
	for status, end := range map[int]string{143: "signal", 124: "deadline"} {
		t.Run(end, func(t *testing.T) {
			t.Parallel()
			c := startAgents(t, 2, echoes+`test $RANK = 0 && echo_of_another
test $GROUP_WORLD_SIZE = 1 && exit 0; exec sleep 100`, func(_ int, n *testNode) {
				n.LossNotice = time.Hour
				if end == "deadline" {
					n.Restart.Deadline = 10 * time.Second
				}
			})
			c.waitsForWord(0)
			if end == "deadline" {
				c.ends(124, 124)
				return
			}
			if err := c.nodes[0].cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			if r := c.wait(0); r.Status != status || r.Err != "" {
				t.Errorf("status %d, error %q", r.Status, r.Err)
			}
			if v := c.verdict(0); v.Kind != rendezvous.Reassemble || v.Reason != string(job.ReasonNodeStopped) {
				t.Errorf("verdict %+v", v)
			}
		})
	}
}

// TestNothingIsHeldBack: where a failure is the affair of one worker or node, or there is no other node.
func TestNothingIsHeldBack(t *testing.T) {
	t.Parallel()
	testutil.Long(t)
	for name, nodes := range map[string]int{string(job.ScopeProcess): 2, string(job.ScopeNode): 2, string(job.ScopeWorld): 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := startAgents(t, nodes, echoes+`test $TORCHELASTIC_RESTART_COUNT = 0 && test $RANK = 0 && echo_of_another
test $RANK != 0 || touch $ALL/again; wait_for $ALL/again`, func(_ int, n *testNode) {
				n.LossNotice, n.Restart.MaxRestarts, n.Restart.Scope = time.Hour, 1, job.RestartScope(name)
			})
			c.ends([]int{0, 0}[:nodes]...)
			if strings.Contains(c.nodes[0].log.String(), "waiting for word") {
				t.Error("something was waited for")
			}
		})
	}
}
