package steer

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"muster/internal/testutil"
	"muster/launch/control/show"
	"muster/launch/report"
	"muster/test/drive"
)

// TestHistoryOutlivesTheCoordinator: a job of three nodes has been restarted and paused when the node dies that has
// coordinated it and served its store. Asked from one that is left, what has happened is still known, and the restarts
// still count.
func TestHistoryOutlivesTheCoordinator(t *testing.T) {
	t.Parallel()
	script := `if [ $RANK = 2 ] && mkdir $OUT/failed; then exit 3; fi; while :; do sleep 0.2; done`
	m := drive.NewMeet(t, script, "--nnodes=2:3", "-n", "1", "--max-restarts=3", "--run-id=storied",
		"--rdzv=muster://127.0.0.1:"+drive.FreePort(t), "--last-call=2s")
	m.Native = true
	node := func(i int) *drive.Job { return m.Start(i, fmt.Sprintf("--local-addr=127.0.0.%d", i+1)) }
	first := node(0)
	drive.UntilPhase(t, first.RuntimeDir, report.PhasePending) // it serves the store
	agents := []*drive.Job{first, node(1), node(2)}
	drive.UntilNodes(t, agents[1].RuntimeDir, 3)
	testutil.Eventually(t, time.Minute, "it was restarted", func() bool {
		a, _ := drive.StatusOf(t, agents[1].RuntimeDir)
		return a.Phase == report.PhaseRunning && a.RestartCount == 1 && a.Generation >= 1
	})
	drive.Beside(t, agents[1].RuntimeDir, "pause").Expect(t, 0)
	for _, j := range agents {
		drive.UntilPhase(t, j.RuntimeDir, report.PhasePaused)
	}
	drive.Beside(t, agents[2].RuntimeDir, "resume").Expect(t, 0)
	before := drive.UntilNodes(t, agents[1].RuntimeDir, 3)
	hostname, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	m.Kill(agents[0])
	for i, j := range agents[1:] {
		testutil.Eventually(t, time.Minute, "the others go on", func() bool {
			a, _ := drive.StatusOf(t, j.RuntimeDir)
			return a.Phase == report.PhaseRunning && a.Nodes == 2 && a.Generation > before && a.RestartCount == 1 && len(a.Ranks) == 2
		})
		got := drive.Beside(t, j.RuntimeDir, "events")
		got.Expect(t, 0, " Restarting, round 0, 1 restart: WorkerFailed", " Paused, round ", " Resuming, round ",
			" Running, round "+fmt.Sprint(before)+", 1 restart", "rendezvous completed",
			"node lost "+hostname+": it did not come back: the store at ", "on node "+hostname+" (127.0.0.1)")
		if want := "on node " + hostname + " (127.0.0.1) has closed the connection"; !strings.Contains(j.Err.String(), want) {
			t.Errorf("an agent that goes on has not said %q:\n%s", want, j.Err.String())
		}
		if i == 0 && !strings.Contains(got.Stdout, "pause was asked for by user") {
			t.Errorf("%s", got.Stdout)
		}
		drive.Beside(t, j.RuntimeDir, "status").Expect(t, 0, "2 workers on 2 nodes", "(1 counted)")
	}
	// Who comes later counts the restarts of before, too.
	late := node(0)
	drive.UntilNodes(t, late.RuntimeDir, 3)
	a, _ := drive.StatusOf(t, late.RuntimeDir)
	if a.RestartCount != 1 {
		t.Errorf("%+v", a.Status)
	}
	if b, _ := drive.StatusOf(t, agents[1].RuntimeDir); b.StartTime == nil || a.StartTime == nil || !a.StartTime.Equal(*b.StartTime) {
		t.Errorf("the job has begun at %v by who was there, at %v by who came later", b.StartTime, a.StartTime)
	}
	var list []show.Job
	if got := drive.Beside(t, late.RuntimeDir, "ps", "-o", "json"); json.Unmarshal([]byte(got.Stdout), &list) != nil || len(list) != 1 ||
		list[0].StartTime == nil || !list[0].StartTime.Equal(*a.StartTime) {
		t.Errorf("ps tells another time: %s", got.Stdout)
	}
	drive.Beside(t, late.RuntimeDir, "events").Expect(t, 0, "node joined: this node has joined the job, which ran without it")
	drive.Beside(t, agents[1].RuntimeDir, "events").Expect(t, 0, "node joined")
	drive.Beside(t, late.RuntimeDir, "stop").Expect(t, 0)
	for _, j := range append(agents[1:], late) {
		m.Ends(j, 143)
	}
}
