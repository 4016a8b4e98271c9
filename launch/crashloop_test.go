package launch

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"muster/internal/errhint"
	"muster/internal/testutil"
	"muster/launch/job"
	"muster/launch/report"
)

// What failures have in common is said, and where they differ.
func TestCompareFailures(t *testing.T) {
	t.Parallel()
	traceback := []string{
		"Traceback (most recent call last):", `  File "/home/u/train.py", line 88, in <module>`, "    step()",
		`  File "/v/lib/python3.11/site-packages/torch/nn/modules/module.py", line 9, in forward`, "ValueError: bad sample 7", "",
	}
	failure := func(rank int, host string, code int, lines ...string) *report.Failure {
		return &report.Failure{Exit: report.Exit{Rank: rank, Code: code, LastLines: lines}, Host: host}
	}
	for name, c := range map[string]struct {
		failed []*report.Failure
		n      int
		nodes  bool
		want   string
	}{
		"one": {[]*report.Failure{failure(1, "a", 1)}, 4, true, ""},
		"the same": {
			[]*report.Failure{failure(1, "a", 1, traceback...), failure(1, "a", 1, traceback...), failure(1, "a", 1, traceback...)},
			3, true,
			"all 3 attempts failed in the same way: rank 1 by exit 1 at train.py:88 on node a (ValueError: bad sample 7)",
		},
		"the newest": {
			[]*report.Failure{failure(0, "a", 9), failure(1, "a", 1, "no more"), failure(1, "a", 1, "no more")},
			2, false,
			"all 2 attempts failed in the same way: rank 1 by exit 1 (no more)",
		},
		"one node": {
			[]*report.Failure{failure(2, "b", 1), failure(3, "b", 1), failure(3, "b", 1)},
			3, true,
			"3 attempts failed in 2 ways, always on node b: 2 × rank 3 by exit 1 on node b; 1 × rank 2 by exit 1 on node b",
		},
		"one rank": {
			[]*report.Failure{failure(2, "a", 1), failure(2, "b", 7)},
			2, true,
			"2 attempts failed in 2 ways, always with rank 2: 1 × rank 2 by exit 1 on node a; 1 × rank 2 by exit 7 on node b",
		},
	} {
		var l crashLoop
		for i, f := range c.failed {
			l.begin(time.Unix(int64(i), 0))
			l.remember(attempt{how: "in a way that was not known yet"})
			l.remember(attemptOf(f))
		}
		if got := l.compare(c.n, c.nodes); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// A job comes further by a greater step or a newer checkpoint.
func TestDistance(t *testing.T) {
	t.Parallel()
	n := func(i int64) *int64 { return &i }
	for _, c := range []struct {
		now, before distance
		want        bool
	}{
		{distance{}, distance{}, false},
		{distance{step: n(3)}, distance{}, true},
		{distance{step: n(3)}, distance{step: n(3)}, false},
		{distance{step: n(4)}, distance{step: n(3)}, true},
		{distance{}, distance{step: n(3)}, false},
		{distance{step: n(2), saved: n(2)}, distance{step: n(3), saved: n(1)}, true},
		{distance{step: n(2), saved: n(1)}, distance{step: n(3), saved: n(1)}, false},
	} {
		if got := c.now.beyond(c.before); got != c.want {
			t.Errorf("%+v beyond %+v: %v", c.now, c.before, got)
		}
	}
	if *greater(nil, 3) != 3 || *greater(n(5), 3) != 5 || *greater(n(2), 3) != 3 {
		t.Error("greater is not")
	}
}

// TestCrashLoopOfNodes: workers of a job on two nodes fail again and again without a word of progress, all on one node
// that the job cannot do without. All nodes end with the status that says so, and what the failures have in common.
func TestCrashLoopOfNodes(t *testing.T) {
	t.Parallel()
	testutil.Long(t)
	// The one that fails waits until all workers of the round have written their line: a worker that is ended before has none.
	c := startAgents(t, 2, see+`test $RANK = 3 || exec sleep 100
until test $(wc -l < $ALL/seen) -ge $((4 * TORCHELASTIC_RESTART_COUNT + 4)); do sleep 0.05; done
echo "no more disk" >&2; exit 7`, func(_ int, n *testNode) {
		n.MinNodes = 2 // else the job goes on without the node
		n.Restart.MaxRestarts, n.Restart.CrashLoop, n.Restart.Delay = 9, 2, time.Millisecond
	})
	c.ends(errhint.DoNotRetry, errhint.DoNotRetry)
	c.lines(12)
	const same = "all 3 attempts failed in the same way: rank 3 by exit 7 on node node-1 (no more disk)"
	for _, n := range c.nodes {
		doc := readStatus(t, n.path("status.json"))
		if doc.Reason != job.ReasonCrashLoop || *doc.ExitStatus != errhint.DoNotRetry || doc.RestartCount != 2 ||
			!strings.Contains(doc.Message, "rank 3 ended with status 7, and 2 restarts in a row have not brought the job further") ||
			!strings.Contains(doc.Message, same) {
			t.Errorf("%+v", doc)
		}
		n.wantLog(t, "the job is in a crash loop", same)
	}
	if logs, _ := filepath.Glob(c.nodes[1].path("logs/*/attempt_2/*/stderr.log")); len(logs) != 2 {
		t.Errorf("%q", logs)
	}
}
