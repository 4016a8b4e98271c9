package launch

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"muster/internal/testutil"
	"muster/launch/job"
	"muster/rendezvous"
)

// Under scope process, what a failed worker left behind is ended while the others go on; a node that others go on
// without hears of it all the same.
func TestFenceWhileWorkerIsEnded(t *testing.T) {
	t.Parallel()
	testutil.Long(t)
	c := startAgents(t, 2, see+`trap ": > $ALL/asked.$RANK; exit 0" TERM
test $RANK$TORCHELASTIC_RESTART_COUNT = 00 && {
	(trap "" TERM; touch $ALL/left; while :; do sleep 0.1; done) & wait_for $ALL/left; wait_for $ALL/go; exit 4; }
while :; do sleep 0.05; done`, func(_ int, n *testNode) {
		n.Restart.Scope, n.Restart.MaxRestarts, n.Restart.Delay = job.ScopeProcess, 3, time.Millisecond
	})
	c.lines(4)
	writeFile(t, filepath.Join(c.dir, "go"), "")
	testutil.Eventually(t, time.Minute, "restarting the worker", func() bool {
		return strings.Contains(c.nodes[0].log.String(), "restarting the worker")
	})
	said := time.Now()
	c.said(0, rendezvous.Verdict{
		Kind: rendezvous.Fail, Reason: "NodeLost", Message: "this node", Rank: -1, Status: 75,
		Grace: 5 * time.Second,
	})
	testutil.Eventually(t, time.Minute, "rank 1 is asked to end", func() bool {
		_, err := os.Stat(filepath.Join(c.dir, "asked.1"))
		return err == nil
	})
	if d := time.Since(said); d > 20*time.Second {
		t.Errorf("rank 1 was let run for %v", d)
	}
}

// --clean-policy none waits for workers, but not on a node that others go on without: the verdict that ends the job
// here (QuorumLost, JobElsewhere) says so itself.
func TestGraceUnderCleanNone(t *testing.T) {
	t.Parallel()
	testutil.Long(t)
	c := startAgents(t, 1, see+`trap "" TERM; echo ready >> $ALL/seen; n=0; while test $n -lt 80; do n=$((n+1)); sleep 0.1; done`,
		func(_ int, n *testNode) { n.Procs, n.Grace, n.Restart.Clean = 1, time.Hour, job.CleanNone })
	c.lines(2)
	said := time.Now()
	c.said(0, rendezvous.Verdict{
		Kind: rendezvous.Fail, Reason: "QuorumLost", Message: "this node", Rank: -1, Status: 75,
		Grace: 200 * time.Millisecond,
	})
	c.ends(75)
	if d := time.Since(said); d > 4*time.Second {
		t.Errorf("the worker went on for %v", d)
	}
}
