package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"muster/internal/testutil"
	"muster/launch/report"
)

// TestHistoryOutlivesTheCoordinator: a job of three nodes has been restarted and paused when the node dies that has
// coordinated it and served its store. Asked from one that is left, what has happened is still known, and the restarts
// still count.
func TestHistoryOutlivesTheCoordinator(t *testing.T) {
	t.Parallel()
	script := `if [ $RANK = 2 ] && mkdir $OUT/failed; then exit 3; fi; while :; do sleep 0.2; done`
	m := newMeet(t, script, "--nnodes=2:3", "-n", "1", "--max-restarts=3", "--run-id=storied",
		"--rdzv=muster://127.0.0.1:"+freePort(t), "--last-call=2s")
	m.native = true
	node := func(i int) *testJob { return m.start(i, fmt.Sprintf("--local-addr=127.0.0.%d", i+1)) }
	first := node(0)
	untilPhase(t, first.runtimeDir, report.PhasePending) // it serves the store
	agents := []*testJob{first, node(1), node(2)}
	untilNodes(t, agents[1].runtimeDir, 3)
	testutil.Eventually(t, time.Minute, "it was restarted", func() bool {
		a, _ := statusOf(t, agents[1].runtimeDir)
		return a.Phase == report.PhaseRunning && a.RestartCount == 1 && a.Generation >= 1
	})
	steering(t, agents[1].runtimeDir, "pause").expect(t, 0)
	for _, j := range agents {
		untilPhase(t, j.runtimeDir, report.PhasePaused)
	}
	steering(t, agents[2].runtimeDir, "resume").expect(t, 0)
	before := untilNodes(t, agents[1].runtimeDir, 3)
	m.kill(agents[0])
	for i, j := range agents[1:] {
		testutil.Eventually(t, time.Minute, "the others go on", func() bool {
			a, _ := statusOf(t, j.runtimeDir)
			return a.Phase == report.PhaseRunning && a.Nodes == 2 && a.Generation > before && a.RestartCount == 1 && len(a.Ranks) == 2
		})
		got := steering(t, j.runtimeDir, "events")
		got.expect(t, 0, " Restarting, round 0, 1 restart: WorkerFailed", " Paused, round ", " Resuming, round ",
			" Running, round "+fmt.Sprint(before)+", 1 restart", "rendezvous completed",
			"node lost: 1 node did not come back: the store at ")
		if i == 0 && !strings.Contains(got.stdout, "pause was asked for by user") {
			t.Errorf("%s", got.stdout)
		}
		steering(t, j.runtimeDir, "status").expect(t, 0, "2 workers on 2 nodes", "1 restart")
	}
	// Who comes later counts the restarts of before, too.
	late := node(0)
	untilNodes(t, late.runtimeDir, 3)
	if a, _ := statusOf(t, late.runtimeDir); a.RestartCount != 1 {
		t.Errorf("%+v", a.Status)
	}
	steering(t, late.runtimeDir, "events").expect(t, 0, "node joined: this node has joined the job, which ran without it")
	steering(t, agents[1].runtimeDir, "events").expect(t, 0, "node joined")
	steering(t, late.runtimeDir, "stop").expect(t, 0)
	for _, j := range append(agents[1:], late) {
		m.ends(j, 143)
	}
}
