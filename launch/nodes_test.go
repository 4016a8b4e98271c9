package launch

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"muster/internal/errhint"
	"muster/internal/testutil"
	"muster/launch/job"
	"muster/launch/report"
	"muster/rendezvous"
)

// see is the beginning of most scripts: what every worker says about itself.
const see = `echo "$RANK of $WORLD_SIZE try $TORCHELASTIC_RESTART_COUNT round $MUSTER_ROUND ` +
	`group $GROUP_RANK of $GROUP_WORLD_SIZE" >> $ALL/seen
wait_for() { while ! test -e $1; do sleep 0.02; done; }
`

// TestRestartOfAllNodes: a worker fails on one node, and both start again with the same count and name it.
func TestRestartOfAllNodes(t *testing.T) {
	t.Parallel()
	c := startAgents(t, 2, see+`test $TORCHELASTIC_RESTART_COUNT = 1 && exit 0
test $RANK = 3 || exec sleep 100
echo "no more disk" >&2; exit 7`, func(_ int, n *testNode) { n.Restart.MaxRestarts = 1 })
	c.ends(0, 0)
	lines := c.lines(8)
	for rank := range 4 {
		if n := count(lines, fmt.Sprintf("%d of 4 try 1 round 1 group %d of 2", rank, rank/2)); n != 1 {
			t.Errorf("rank %d was started %d times in the second round: %q", rank, n, lines)
		}
	}
	for i, n := range c.nodes {
		n.wantLog(t, "root cause of the restart", `"rank":3`, "exit 7", "no more disk")
		doc := readStatus(t, n.path("status.json"))
		if doc.RestartCount != 1 || doc.Nodes != 2 || doc.GroupRank != i || doc.WorldSize != 4 || doc.Generation != 1 ||
			doc.Tasks[0].Ranks != []string{"0-1", "2-3"}[i] || doc.Counts.Succeeded != 2 {
			t.Errorf("status of node %d: %+v", i, doc)
		}
		logs, _ := filepath.Glob(n.path("logs/*/attempt_1/*/stdout.log"))
		if len(logs) != 2 {
			t.Errorf("node %d has the logs %q of the second attempt", i, logs)
		}
	}
	c.nodes[0].wantLog(t, "root cause of the restart", `"node":"node-1"`)
}

// TestFailureIsToldOnEveryNode: the same root cause and the same status everywhere, with the host it happened on.
func TestFailureIsToldOnEveryNode(t *testing.T) {
	t.Parallel()
	c := startAgents(t, 3, see+`wait_for $ALL/go; test $RANK = 2 || exec sleep 100
printf '{"message": {"message": "ValueError: boom", "extraInfo": {"py_callstack": "Traceback of it"}}}' > $TORCHELASTIC_ERROR_FILE
exit 9`, nil)
	c.lines(6)
	writeFile(t, filepath.Join(c.dir, "go"), "")
	for i, r := range c.ends(9, 9, 9) {
		for _, want := range []string{
			"rank      : 2 (local_rank: 0)", "host      : node-1", "node      : group rank 1 of 3 nodes",
			"Traceback of it",
		} {
			if !strings.Contains(r.Report, want) {
				t.Errorf("the report of node %d lacks %q:\n%s", i, want, r.Report)
			}
		}
		doc := readStatus(t, c.nodes[i].path("status.json"))
		if doc.RootCause == nil || doc.RootCause.Host != "node-1" || doc.RootCause.Rank != 2 || *doc.ExitStatus != 9 ||
			doc.Reason != job.ReasonWorkerFailed {
			t.Errorf("status of node %d: %+v", i, doc)
		}
		handed, err := os.ReadFile(c.nodes[i].path("handed-on.json"))
		if err != nil || !strings.Contains(string(handed), `"errorCode":9`) || !strings.Contains(string(handed), "ValueError: boom") {
			t.Errorf("error file of node %d: %s, %v", i, handed, err)
		}
	}
}

// TestEchoOfAnotherNode: the first failure by time is a connection that broke when a worker elsewhere died.
func TestEchoOfAnotherNode(t *testing.T) {
	t.Parallel()
	testutil.Long(t)
	c := startAgents(t, 2, see+`if test $RANK = 0; then echo "`+glooLine+`" >&2; touch $ALL/echo; exit 1; fi
wait_for $ALL/echo; sleep 0.3; kill -9 $$`, func(_ int, n *testNode) { n.Procs, n.Restart.Fail = 1, job.QuorumAll })
	for i, r := range c.ends(137, 137) {
		_, root, _ := strings.Cut(r.Report, "Root Cause")
		if !strings.Contains(root, "rank      : 1 (") ||
			!strings.Contains(r.Report, "secondary : its connection broke when rank 1 failed") {
			t.Errorf("report of node %d:\n%s", i, r.Report)
		}
	}
}

// TestFatalCodeElsewhere: it ends the job on every node, and is the root cause although something else failed before.
func TestFatalCodeElsewhere(t *testing.T) {
	t.Parallel()
	testutil.Long(t)
	c := startAgents(t, 2, see+`test $RANK = 0 && { touch $ALL/first; exit 5; }
wait_for $ALL/first; exit 3`, func(_ int, n *testNode) {
		n.Procs, n.Restart.Fail, n.Fatal, n.Restart.MaxRestarts = 1, job.QuorumNone, "3", 5
	})
	for i, r := range c.ends(3, 3) {
		if _, root, _ := strings.Cut(r.Report, "Root Cause"); !strings.Contains(root, "rank      : 1 (") {
			t.Errorf("report of node %d:\n%s", i, r.Report)
		}
	}
}

// TestNodeIsStopped: SIGTERM of one agent, and the others go on without its node.
func TestNodeIsStopped(t *testing.T) {
	t.Parallel()
	c := startAgents(t, 2, see+`test $WORLD_SIZE = 2 && exit 0; exec sleep 100`, nil)
	c.lines(4)
	if err := c.nodes[1].cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	c.ends(0, 143)
	if lines := c.lines(6); count(lines, "0 of 2 try 0 round 1 group 0 of 1") != 1 || count(lines, "1 of 2 try 0 round 1") != 1 {
		t.Errorf("%q", lines)
	}
	c.nodes[0].wantLog(t, "meeting the others again", "node node-1 was stopped by SIGTERM")
	if doc := readStatus(t, c.nodes[1].path("status.json")); doc.Reason != job.ReasonStopped || *doc.ExitStatus != 143 {
		t.Errorf("status %+v", doc)
	}
}

// TestVerdictDuringPause: what is said while nodes pause before a restart is done at once.
func TestVerdictDuringPause(t *testing.T) {
	t.Parallel()
	testutil.Long(t)
	script := see + `test $TORCHELASTIC_RESTART_COUNT = 0 && test $RANK = 0 && exit 1
test $MUSTER_ROUND = 2 && exit 0
test $TORCHELASTIC_RESTART_COUNT = 1 && { wait_for $ALL/go; exit 1; }
exec sleep 100`
	for _, test := range []struct {
		v      rendezvous.Verdict
		status int
	}{
		{rendezvous.Verdict{Kind: rendezvous.Reassemble, Reason: "NodeLost", Message: "node-7 is lost", Rank: -1}, 0},
		{rendezvous.Verdict{
			Kind: rendezvous.Fail, Reason: "RestartLimitReached", Message: "too many nodes\x1b[2J were lost", Rank: -1,
			Status: 75,
		}, 75},
	} {
		t.Run(string(test.v.Kind), func(t *testing.T) {
			t.Parallel()
			c := startAgents(t, 2, script, func(_ int, n *testNode) {
				n.Procs, n.Restart.MaxRestarts, n.Restart.Delay = 1, 9, time.Hour
			})
			c.lines(4)
			writeFile(t, filepath.Join(c.dir, "go"), "")
			for _, n := range c.nodes {
				testutil.Eventually(t, time.Minute, "restarting", func() bool {
					doc := readStatus(t, n.path("status.json"))
					return doc.Phase == report.PhaseRestarting && doc.RestartCount == 2
				})
			}
			c.push(1, 0, test.v)
			c.push(1, 1, test.v)
			for i, r := range c.ends(test.status, test.status) {
				doc := readStatus(t, c.nodes[i].path("status.json"))
				if over := test.status != 0; r.Over != over {
					t.Errorf("node %d: over for all nodes: %t, want %t", i, r.Over, over)
				}
				if test.status == 0 {
					if lines := c.lines(6); count(lines, fmt.Sprintf("%d of 2 try 2 round 2", i)) != 1 {
						t.Errorf("%q", lines)
					}
					continue
				}
				if !strings.Contains(r.Report, `muster: error: too many nodes\x1b[2J were lost`) || doc.Reason != "RestartLimitReached" {
					t.Errorf("reason %s, report:\n%s", doc.Reason, r.Report)
				}
			}
		})
	}
}

// TestGraceOfAVerdict: workers that do not heed SIGTERM are killed when others may go on without them.
func TestGraceOfAVerdict(t *testing.T) {
	t.Parallel()
	c := startAgents(t, 1, see+`trap "" TERM; echo ready >> $ALL/seen; while :; do sleep 0.1; done`,
		func(_ int, n *testNode) { n.Procs, n.Grace = 1, time.Hour })
	c.lines(2)
	c.said(0, rendezvous.Verdict{
		Kind: rendezvous.Fail, Reason: "NodeLost", Message: "this node", Rank: -1, Status: 75,
		Grace: 200 * time.Millisecond,
	})
	if r := c.ends(75)[0]; r.Over {
		t.Error("the end of this node's part is told as the end of the job")
	}
}

// TestGraceComesLater: the same, said when the workers are being stopped already for a restart.
func TestGraceComesLater(t *testing.T) {
	t.Parallel()
	testutil.Long(t)
	c := startAgents(t, 1, see+`test $RANK = 0 && wait_for $ALL/go && exit 1
trap "touch $ALL/asked" TERM; echo ready >> $ALL/seen; while :; do sleep 0.1; done`,
		func(_ int, n *testNode) { n.Grace, n.Restart.MaxRestarts = time.Hour, 1 })
	c.lines(3)
	writeFile(t, filepath.Join(c.dir, "go"), "")
	testutil.Eventually(t, time.Minute, "the worker is asked to end", func() bool {
		_, err := os.Stat(filepath.Join(c.dir, "asked"))
		return err == nil
	})
	c.push(0, 0, rendezvous.Verdict{Kind: rendezvous.Fail, Reason: "StoreLost", Rank: -1, Status: 75, Grace: 100 * time.Millisecond})
	c.ends(75)
	if doc := readStatus(t, c.nodes[0].path("status.json")); doc.Reason != "StoreLost" || doc.Counts.Stopped != 1 ||
		doc.Counts.Failed != 1 {
		t.Errorf("status %+v", doc)
	}
}

// TestVerdictBeforeTheStart: the round ends while this node still imports for a warm start.
func TestVerdictBeforeTheStart(t *testing.T) {
	t.Parallel()
	testutil.Long(t)
	if _, err := exec.LookPath("python3"); err != nil {
		testutil.Missing(t, "python3")
	}
	code := t.TempDir()
	writeFile(t, filepath.Join(code, "slow.py"),
		"import os, time\nopen(os.environ['ALL'] + '/importing', 'w').close()\nwhile True: time.sleep(0.05)\n")
	writeFile(t, filepath.Join(code, "train.py"), "import slow\n")
	c := startAgents(t, 1, "", func(_ int, n *testNode) { n.Python = filepath.Join(code, "train.py") })
	testutil.Eventually(t, time.Minute, "importing", func() bool {
		_, err := os.Stat(filepath.Join(c.dir, "importing"))
		return err == nil
	})
	c.said(0, rendezvous.Verdict{Kind: rendezvous.Fail, Reason: "NodeLost", Message: "too few nodes are left", Rank: -1, Status: 75})
	if r := c.ends(75)[0]; !strings.Contains(r.Report, "too few nodes are left") {
		t.Errorf("report %q", r.Report)
	}
}

// TestSpareIsTold: a node that was never needed ends when the job does.
func TestSpareIsTold(t *testing.T) {
	t.Parallel()
	testutil.Long(t)
	for status, script := range map[int]string{0: "exit 0", 6: "exit 6"} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			c := startAgents(t, 1, see+"wait_for $ALL/go;"+script, nil)
			spare := c.nodes[0].testNode
			spare.Dir, spare.Index, spare.Spare = filepath.Join(c.dir, "1"), 1, true
			c.start(spare)
			c.lines(2)
			writeFile(t, filepath.Join(c.dir, "go"), "")
			results := c.ends(status, status)
			doc := readStatus(t, c.nodes[1].path("status.json"))
			if status == 0 {
				c.nodes[1].wantLog(t, `"level":"warn"`, "without this node")
				if doc.Phase != report.PhaseSucceeded {
					t.Errorf("status %+v", doc)
				}
				return
			}
			if !strings.Contains(results[1].Report, "ended with status 6") || doc.Phase != report.PhaseFailed ||
				doc.Reason != job.ReasonWorkerFailed {
				t.Errorf("status %+v, report %q", doc, results[1].Report)
			}
		})
	}
}

// TestEndWhileWaiting: a signal and the deadline end an agent that waits for the others.
func TestEndWhileWaiting(t *testing.T) {
	t.Parallel()
	testutil.Long(t)
	for status, end := range map[int]string{143: "signal", 124: "deadline"} {
		t.Run(end, func(t *testing.T) {
			t.Parallel()
			c := startAgents(t, 2, see+"exec sleep 100", func(i int, n *testNode) {
				n.Procs = 1
				if end == "deadline" && i == 0 {
					n.Restart.Deadline = 3 * time.Second
				}
			})
			c.lines(2)
			// The other node is not told, and never comes.
			v := rendezvous.Verdict{Kind: rendezvous.Reassemble, Reason: "NodeLost", Message: "node-1 is lost", Rank: -1}
			c.push(0, 0, v)
			testutil.Eventually(t, time.Minute, "waiting", func() bool {
				doc := readStatus(t, c.nodes[0].path("status.json"))
				return doc.Phase == report.PhaseRestarting && doc.Reason == "NodeLost" && doc.Message == v.Message || doc.EndTime != nil
			})
			if end == "signal" {
				if err := c.nodes[0].cmd.Process.Signal(syscall.SIGTERM); err != nil {
					t.Fatal(err)
				}
			}
			if r := c.wait(0); r.Status != status || r.Err != "" {
				t.Errorf("status %d, error %q", r.Status, r.Err)
			}
		})
	}
}

// TestSignalBeforeTheFirstRound: nothing ever ran, and nothing is told but the status.
func TestSignalBeforeTheFirstRound(t *testing.T) {
	t.Parallel()
	c := startAgents(t, 1, see, func(_ int, n *testNode) { n.Nodes = 2 })
	testutil.Eventually(t, time.Minute, "joining", func() bool {
		v, err := c.store.CompareAndSet(t.Context(), "r0/node/0", []byte("?"), []byte("?"))
		return err == nil && string(v) != "?"
	})
	if err := c.nodes[0].cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if r := c.ends(130)[0]; r.Report != "" || strings.Contains(c.nodes[0].log.String(), "cannot") {
		t.Errorf("report %q, log %s", r.Report, &c.nodes[0].log)
	}
}

// TestScopes: who starts anew after rank 1 has failed.
func TestScopes(t *testing.T) {
	t.Parallel()
	testutil.Long(t)
	for scope, want := range map[job.RestartScope][4]int{
		job.ScopeProcess: {1, 2, 1, 1}, job.ScopeNode: {2, 2, 1, 1}, job.ScopeWorld: {2, 2, 2, 2},
	} {
		t.Run(string(scope), func(t *testing.T) {
			t.Parallel()
			c := startAgents(t, 2, see+`
if test $RANK$TORCHELASTIC_RESTART_COUNT = 10; then wait_for $ALL/go; echo "it broke" >&2; exit 4; fi
wait_for $ALL/end`, func(_ int, n *testNode) { n.Restart.Scope, n.Restart.MaxRestarts = scope, 1 })
			c.lines(4)
			writeFile(t, filepath.Join(c.dir, "go"), "")
			total := want[0] + want[1] + want[2] + want[3]
			lines := c.lines(total)
			writeFile(t, filepath.Join(c.dir, "end"), "")
			c.ends(0, 0)
			round := 0
			if scope == job.ScopeWorld {
				round = 1
			}
			for rank, n := range want {
				if got := count(lines, fmt.Sprintf("%d of 4", rank)); got != n {
					t.Errorf("rank %d was started %d times, want %d: %q", rank, got, n, lines)
				}
				again := fmt.Sprintf("%d of 4 try 1 round %d group %d of 2", rank, round, rank/2)
				if got := count(lines, again); got != n-1 {
					t.Errorf("%d lines %q, want %d: %q", got, again, n-1, lines)
				}
			}
			c.nodes[0].wantLog(t, "root cause of the restart", `"rank":1`, "it broke")
			for i, n := range c.nodes {
				doc := readStatus(t, n.path("status.json"))
				if doc.RestartCount != want[i*2]+want[i*2+1]-2 && scope == job.ScopeProcess || doc.Counts.Succeeded != 2 {
					t.Errorf("status of node %d: %+v", i, doc)
				}
			}
			logs, _ := filepath.Glob(c.nodes[0].path("logs/*/attempt_1/*/stdout.log"))
			if len(logs) != want[0]+want[1]-2 {
				t.Errorf("logs of the second attempt: %q", logs)
			}
		})
	}
}

// TestScopeLimits: restarts of one worker are counted, and the one too many ends the job on every node.
func TestScopeLimits(t *testing.T) {
	t.Parallel()
	c := startAgents(t, 2, see+`test $RANK = 1 || exec sleep 100; exit 4`, func(_ int, n *testNode) {
		n.Restart.Scope, n.Restart.MaxRestarts, n.Restart.Delay = job.ScopeProcess, 2, 10*time.Millisecond
	})
	c.ends(4, 4)
	if lines := c.lines(6); count(lines, "1 of 4") != 3 || len(lines) != 6 {
		t.Errorf("%q", lines)
	}
}

// TestLingerOfTheWorld: rank 0 has succeeded, and workers on another node may go on for the linger time only.
func TestLingerOfTheWorld(t *testing.T) {
	t.Parallel()
	c := startAgents(t, 2, see+`test $RANK = 0 && { wait_for $ALL/go; exit 0; }; trap "echo asked >> $ALL/seen; exit 5" TERM
while :; do sleep 0.05; done`, func(_ int, n *testNode) {
		n.Procs, n.Restart.Success, n.Restart.Linger = 1, job.QuorumRank0, 300*time.Millisecond
	})
	c.lines(2)
	writeFile(t, filepath.Join(c.dir, "go"), "")
	c.ends(0, 0)
	if lines := c.lines(3); lines[2] != "asked" {
		t.Errorf("%q", lines)
	}
}

// TestSilentNode: one that was killed says nothing about its failures. Whoever waits for it is patient, and a second
// signal ends that.
func TestSilentNode(t *testing.T) {
	t.Parallel()
	testutil.Long(t)
	c := startAgents(t, 2, see+"test $RANK = 0 && wait_for $ALL/go && exit 3; exec sleep 100",
		func(_ int, n *testNode) { n.Grace = time.Hour })
	c.lines(4)
	if err := c.nodes[1].cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(c.dir, "go"), "")
	testutil.Eventually(t, time.Minute, "the report of this node", func() bool {
		v, err := c.store.CompareAndSet(t.Context(), "r0/report/0", []byte("?"), []byte("?"))
		return err == nil && string(v) != "?"
	})
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} { // one of a kind would wait for the other
		if err := c.nodes[0].cmd.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
	}
	if r := c.wait(0); r.Status != 3 || r.Err != "" || !strings.Contains(r.Report, "rank      : 0 ") {
		t.Errorf("%+v", r)
	}
}

// TestHandlerFails: an error that the handler did not turn into a verdict ends the job, and the workers with it.
func TestHandlerFails(t *testing.T) {
	t.Parallel()
	c := startAgents(t, 1, `echo $$ >> $ALL/seen; test $RANK = 1 || exec sleep 100; while ! test -e $ALL/go; do sleep 0.02; done; exit 3`,
		nil)
	pids := c.lines(2)
	if err := c.server.Close(); err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(c.dir, "go"), "")
	r := c.wait(0)
	if !strings.Contains(r.Err, "cannot agree with the other nodes") || r.Code != errhint.Internal {
		t.Errorf("%+v", r)
	}
	for _, pid := range pids {
		if _, err := os.Stat("/proc/" + pid); !os.IsNotExist(err) {
			t.Errorf("worker %s is left: %v", pid, err)
		}
	}
	if doc := readStatus(t, c.nodes[0].path("status.json")); doc.Reason != job.ReasonInternal || *doc.ExitStatus != errhint.Internal {
		t.Errorf("status %+v", doc)
	}
}

// A node that is stopped while it waits for the next round: none of its workers is left, and the status file says so.
func TestStoppedBetweenRounds(t *testing.T) {
	t.Parallel()
	testutil.Long(t)
	c := startAgents(t, 2, see+`exec sleep 100`, nil)
	c.lines(4)
	_ = c.nodes[1].cmd.Process.Kill()
	c.said(0, rendezvous.Verdict{Kind: rendezvous.Reassemble, Reason: "NodeLost", Message: "node-1 is lost", Rank: -1})
	testutil.Eventually(t, time.Minute, "waits for the next round", func() bool {
		text, err := c.store.CompareAndSet(t.Context(), "r1/node/0", []byte("?"), []byte("?"))
		return err == nil && strings.Contains(string(text), "LocalWorldSize")
	})
	_ = c.nodes[0].cmd.Process.Signal(syscall.SIGTERM)
	c.ends(143)
	doc := readStatus(t, c.nodes[0].path("status.json"))
	if doc.Counts != (report.Counts{Stopped: 2}) {
		t.Errorf("phase %s, counts %+v", doc.Phase, doc.Counts)
	}
}

// TestAgentStandsStill: an agent is stopped for longer than the others wait for it. Its workers are killed meanwhile,
// which is nobody's failure, and when it goes on it takes part in the next round.
func TestAgentStandsStill(t *testing.T) {
	t.Parallel()
	testutil.Long(t)
	for name, warm := range map[string]bool{"cold": false, "warm": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			standStill(t, warm)
		})
	}
}

// standStill is that with workers that are started, or forked from a template, which is nobody's worker and lives on.
func standStill(t *testing.T, warm bool) {
	code := filepath.Join(t.TempDir(), "train.py")
	writeFile(t, code, `import json, os, sys, time
rank, number = os.environ["GROUP_RANK"], os.environ["MUSTER_ROUND"]
with open(os.environ["ALL"] + f"/pids.{rank}.{number}", "a") as f: f.write(f"{os.getpid()}\n")
with open(os.environ["ALL"] + "/seen", "a") as f: f.write("python\n")
if number == "0": time.sleep(100)
`)
	c := startAgents(t, 2, see+`echo $$ >> $ALL/pids.$GROUP_RANK.$MUSTER_ROUND; test $MUSTER_ROUND = 1 && exit 0; exec sleep 100`,
		func(i int, n *testNode) {
			if i == 1 {
				n.Lease = 4 * time.Second
				if warm {
					n.Lease, n.Python = 20*time.Second, code // a busy machine takes seconds for a template
				}
			}
		})
	c.lines(4)
	_ = c.nodes[1].cmd.Process.Signal(syscall.SIGSTOP)
	text, err := os.ReadFile(filepath.Join(c.dir, "pids.1.0"))
	if err != nil {
		t.Fatal(err)
	}
	for pid := range strings.FieldsSeq(string(text)) {
		testutil.Eventually(t, time.Minute, "worker "+pid+" is dead", func() bool {
			stat, err := os.ReadFile("/proc/" + pid + "/stat")
			return err != nil || strings.Contains(string(stat), ") Z ")
		})
	}
	_ = c.nodes[1].cmd.Process.Signal(syscall.SIGCONT)
	testutil.Eventually(t, time.Minute, "the agent has seen that", func() bool {
		return strings.Count(c.nodes[1].log.String(), "worker exited") == 2
	})
	c.ends(0, 0)
	if log := c.nodes[1].log.String(); strings.Contains(log, "the template of warm starts ended") {
		t.Errorf("the template was killed, too:\n%s", log)
	}
}

// TestLeaseEndsWithTheJob: the job is decided, so nobody goes on without this node: its workers have the time that they
// were given, though nobody renews the lease any more.
func TestLeaseEndsWithTheJob(t *testing.T) {
	t.Parallel()
	testutil.Long(t)
	lease := func(i int, n *testNode) {
		n.Procs = 1
		if i == 1 {
			n.Lease = 3 * time.Second
		}
	}
	for name, c := range map[string]struct {
		script string
		set    func(i int, n *testNode)
	}{
		"grace after a failure": {`
if test $GROUP_RANK = 0; then sleep 1; exit 9; fi
trap 'sleep 4; touch $ALL/saved; exit 0' TERM
while :; do sleep 0.1; done`, lease},
		"left to itself": {`
if test $GROUP_RANK = 0; then sleep 1; exit 0; fi
sleep 6; touch $ALL/saved; exit 0`, func(i int, n *testNode) {
			lease(i, n)
			n.Restart.Success, n.Restart.Clean = job.QuorumAny, job.CleanNone
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := startAgents(t, 2, see+c.script, c.set)
			j.wait(0)
			j.wait(1)
			if _, err := os.Stat(filepath.Join(j.dir, "saved")); err != nil {
				t.Errorf("killed before it had saved: %v", err)
			}
		})
	}
}

// TestLeaseWithoutGuardian: a lease that ends while the agent runs ends the workers, too: as PID 1 it has no guardian.
// Where the others have not missed this node they are told, since they wait for its workers.
func TestLeaseWithoutGuardian(t *testing.T) {
	t.Parallel()
	testutil.Long(t)
	c := startAgents(t, 2, see+`test $MUSTER_ROUND = 1 && exit 0; exec sleep 100`, func(i int, n *testNode) {
		if i == 1 {
			n.Lease, n.Alone = 2*time.Second, true
		}
	})
	c.lines(4)
	testutil.Eventually(t, time.Minute, "the agent has killed its workers", func() bool {
		return strings.Count(c.nodes[1].log.String(), "worker exited") >= 2
	})
	c.nodes[1].wantLog(t, `"level":"warn"`, "its workers are killed")
	c.ends(0, 0)
	c.nodes[0].wantLog(t, "node node-1 was not heard of for too long, and its workers were killed")
}

// TestRoundsBeginAlike: restarts on one node alone are counted there, but in a new round all nodes start with the same
// count again, whoever asks for that round.
func TestRoundsBeginAlike(t *testing.T) {
	t.Parallel()
	testutil.Long(t)
	c := startAgents(t, 2, see+`test $MUSTER_ROUND = 0 && test $RANK$TORCHELASTIC_RESTART_COUNT = 00 && exit 4
test $MUSTER_ROUND = 1 && exit 0
exec sleep 100`, func(_ int, n *testNode) {
		n.Restart.Scope, n.Restart.MaxRestarts, n.Restart.Delay = job.ScopeNode, 3, time.Millisecond
	})
	c.lines(6)
	c.said(0, rendezvous.Verdict{Kind: rendezvous.Reassemble, Reason: "NodeCame", Message: "another node", Rank: -1})
	c.ends(0, 0)
	lines := c.lines(10)
	for rank := range 4 {
		if n := count(lines, fmt.Sprintf("%d of 4 try 0 round 1", rank)); n != 1 {
			t.Errorf("rank %d began the second round %d times with the count of all: %q", rank, n, lines)
		}
	}
	if count(lines, "0 of 4 try 1 round 0") != 1 {
		t.Errorf("%q", lines)
	}
}
