package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"muster/cmd/console"
	"muster/internal/testutil"
	"muster/launch/control"
	"muster/launch/report"
)

// remoteWorker is a worker that says who it is, on both streams, and runs until it is stopped.
const remoteWorker = `echo "rank $RANK on $(hostname) round $MUSTER_ROUND"; echo "err $RANK" >&2; while :; do sleep 0.2; done`

// musterOn runs muster on a host, with input, until its end.
func musterOn(t *testing.T, h *testutil.Host, stdin string, args ...string) outcome {
	t.Helper()
	c := h.Command("muster", args...)
	c.Env = append(append(cleanEnviron(), h.Environ()...), console.FormatVariable+"=text")
	var out, errs bytes.Buffer
	c.Stdin, c.Stdout, c.Stderr = strings.NewReader(stdin), &out, &errs
	began := time.Now()
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	status := c.Status()
	return outcome{status, out.String(), errs.String(), time.Since(began)}
}

// worldOn is what muster status says on a host.
func worldOn(t *testing.T, h *testutil.Host) (a control.Answer) {
	t.Helper()
	if got := musterOn(t, h, "", "status", "-o", "json"); got.status == 0 {
		if err := json.Unmarshal([]byte(got.stdout), &a); err != nil {
			t.Fatalf("%v:\n%s", err, got.stdout)
		}
	}
	return a
}

// untilRanksOn waits until so many ranks run, as a host knows it, and returns the hosts' names by rank.
func untilRanksOn(t *testing.T, h *testutil.Host, n int) (on []string) {
	t.Helper()
	testutil.Eventually(t, time.Minute, fmt.Sprintf("%d ranks run", n), func() bool {
		a := worldOn(t, h)
		on = make([]string, n)
		for _, r := range a.Ranks {
			if r.Phase == report.PhaseRunning && r.Rank < n {
				on[r.Rank] = r.Node
			}
		}
		return a.Phase == report.PhaseRunning && !slices.Contains(on, "")
	})
	return on
}

// untilPausedOn waits until the job that is asked on a host is paused.
func untilPausedOn(t *testing.T, h *testutil.Host) {
	t.Helper()
	testutil.Eventually(t, time.Minute, "the job is paused, as "+h.Name+" says", func() bool {
		a := worldOn(t, h)
		return a.Phase == report.PhasePaused
	})
}

// usageKnown reports whether it is known what all ranks use.
func usageKnown(a *control.Answer) bool {
	return !slices.ContainsFunc(a.Ranks, func(r report.Rank) bool {
		return r.CPUSeconds == nil || r.ResidentBytes == nil || *r.ResidentBytes < 1<<16 || r.UsageTime == nil
	})
}

// startOnHosts starts a job of sh on three hosts, and returns these by rank.
func startOnHosts(t *testing.T, flags ...string) []*testutil.Host {
	t.Helper()
	hosts := testutil.Hosts(t, 3)
	var said [3]testutil.Buffer
	t.Cleanup(func() {
		for i := range said {
			if t.Failed() {
				t.Logf("%s:\n%s", hosts[i].Name, said[i].String())
			}
		}
	})
	for i, h := range hosts {
		c := h.Command("muster", slices.Concat([]string{
			"run", "--run-id", "it", "--nnodes", "3", "-n", "1", "--rdzv", "muster://node1:29400", "--max-restarts", "3", "--tee", "3",
		}, flags, []string{"--", "sh", "-c", remoteWorker})...)
		c.Env = append(cleanEnviron(), h.Environ()...)
		c.Stdout, c.Stderr = &said[i], &said[i]
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
	}
	byRank := make([]*testutil.Host, 3)
	for rank, name := range untilRanksOn(t, hosts[0], 3) {
		byRank[rank] = hosts[slices.IndexFunc(hosts, func(h *testutil.Host) bool { return h.Name == name })]
	}
	untilRanksOn(t, hosts[1], 3)
	untilRanksOn(t, hosts[2], 3)
	return byRank
}

// runsOn reports whether a process with an argument runs on a host.
func runsOn(h *testutil.Host, arg string) bool {
	return slices.ContainsFunc(h.Processes(), func(p testutil.Process) bool { return slices.Contains(p.Args, arg) })
}

// execAcross runs commands in the place of a rank on the host there, by muster on another one.
func execAcross(t *testing.T, here, there *testutil.Host, rank int) {
	t.Helper()
	exec := func(stdin string, args ...string) outcome {
		t.Helper()
		return musterOn(t, here, stdin, append([]string{"exec", "--rank", fmt.Sprint(rank), "--"}, args...)...)
	}
	got := exec("some input", "sh", "-c", `echo "$RANK $(hostname) $(cat)"; echo oops >&2; exit 7`)
	if want := fmt.Sprintf("%d %s some input\n", rank, there.Name); got.status != 7 || got.stdout != want || got.stderr != "oops\n" {
		t.Errorf("status %d, %q, %q, want %q", got.status, got.stdout, got.stderr, want)
	}
	much := strings.Repeat("0123456789abcdef\n", 100_000)
	if got := exec(much, "cat"); got.status != 0 || got.stdout != much {
		t.Errorf("status %d, %d bytes of %d came back\n%s", got.status, len(got.stdout), len(much), got.stderr)
	}
	exec(much, "true").expect(t, 0) // which reads nothing
	exec("", "sh", "-c", "kill -9 $$").expect(t, 128+9)
	exec("", "no-such-program").expect(t, 127, "no-such-program")
	musterOn(t, here, "", "exec", "--rank", fmt.Sprint(rank), "--attempt", "9", "--", "sh", "-c", "echo $TORCHELASTIC_RESTART_COUNT").
		expect(t, 0, "9\n")

	// A signal is passed on, and what its caller leaves behind is ended.
	for _, c := range []struct {
		signal syscall.Signal
		status int
	}{{syscall.SIGTERM, 9}, {syscall.SIGKILL, 128 + 9}} {
		mark := fmt.Sprintf("12%d34", c.signal)
		run := here.Command("muster", "exec", "--rank", fmt.Sprint(rank), "--", "sh", "-c",
			`trap "exit 9" TERM; echo ready; while :; do sleep 0.1; done`, mark)
		run.Env = append(cleanEnviron(), here.Environ()...)
		var out testutil.Buffer
		run.Stdout = &out
		if err := run.Start(); err != nil {
			t.Fatal(err)
		}
		testutil.Eventually(t, time.Minute, "it is ready", func() bool { return strings.Contains(out.String(), "ready") })
		if !runsOn(there, mark) {
			t.Errorf("the command does not run on %s", there.Name)
		}
		if err := run.Process.Signal(c.signal); err != nil {
			t.Fatal(err)
		}
		if got := run.Status(); got != c.status {
			t.Errorf("%v: status %d, want %d", c.signal, got, c.status)
		}
		testutil.Eventually(t, time.Minute, "the command has ended", func() bool { return !runsOn(there, mark) })
	}

	// Who did what stands in the events of the node, and with which status it ended.
	events := musterOn(t, there, "", "events", "-o", "json")
	var started, ended *control.Event
	for line := range strings.Lines(events.stdout) {
		var e control.Event
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatal(err)
		}
		switch {
		case e.Type == control.ExecStarted && started == nil:
			started = &e
		case e.Type == control.ExecEnded && ended == nil:
			ended = &e
		}
	}
	if started == nil || ended == nil || started.By == nil || !strings.Contains(started.By.Node, here.Name) ||
		started.By.UID != os.Getuid() ||
		*started.Rank != rank || !strings.HasPrefix(started.Message, "sh -c ") || started.PID != ended.PID || *ended.ExitCode != 7 {
		t.Errorf("%+v\n%+v\n%s", started, ended, events.stdout)
	}
}

// TestNodesRemote has a job with a token on three hosts: from each of them logs of all ranks are read, commands run in
// the places of ranks elsewhere, and what workers use is known.
func TestNodesRemote(t *testing.T) {
	testutil.Long(t)
	t.Parallel()
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("a token of this job, long enough"), 0o600); err != nil {
		t.Fatal(err)
	}
	on := startOnHosts(t, "--token-file", token)
	muster := func(rank int, args ...string) outcome {
		t.Helper()
		return musterOn(t, on[rank], "", args...)
	}
	for rank := range on {
		testutil.Eventually(t, time.Minute, "what all ranks use is known", func() bool {
			a := worldOn(t, on[rank])
			return len(a.Ranks) == 3 && usageKnown(&a)
		})
		got := muster(rank, "logs", "--rank", "0-2")
		for r, h := range on {
			if !strings.Contains(got.stdout, fmt.Sprintf("[rank %d] rank %d on %s round 0\n", r, r, h.Name)) ||
				!strings.Contains(got.stderr, fmt.Sprintf("[rank %d] err %d\n", r, r)) {
				t.Errorf("on %s, of rank %d: %s%s", on[rank].Name, r, got.stdout, got.stderr)
			}
		}
	}
	muster(0, "logs", "--node", "2", "--tail", "1").expect(t, 0, "rank 2 on "+on[2].Name)
	muster(0, "logs", "--node", on[1].Name).expect(t, 0, "rank 1 on "+on[1].Name)
	muster(0, "logs", "--node", "3").expect(t, 2, "no such node", "0 to 2")
	muster(0, "logs", "--rank", "7").expect(t, 2, "no rank 7")
	muster(0, "exec", "--rank", "7", "--", "true").expect(t, 2, "no rank 7")
	muster(0, "logs", "--rank", "1", "--previous").expect(t, 2, on[1].Name, "has not been started again")
	execAcross(t, on[0], on[1], 1)
	execAcross(t, on[2], on[0], 0)
	shellInTerminal(t, deskOn(on[2], on[1]), 1)

	// Logs are followed over a restart, of a rank here and of others at once.
	follow := on[2].Command("muster", "logs", "-f", "--rank", "0,1,2")
	follow.Env = append(cleanEnviron(), on[2].Environ()...)
	var lines testutil.Buffer
	follow.Stdout = &lines
	if err := follow.Start(); err != nil {
		t.Fatal(err)
	}
	says := func(round int) {
		t.Helper()
		testutil.Eventually(t, time.Minute, fmt.Sprintf("round %d of all ranks is shown", round), func() bool {
			return strings.Count(lines.String(), fmt.Sprintf(" round %d\n", round)) == 3
		})
	}
	says(0)
	muster(1, "restart").expect(t, 0)
	says(1)
	muster(2, "logs", "--rank", "0", "--previous").expect(t, 0, "rank 0 on "+on[0].Name+" round 0")

	// The job is paused by one node, and resumed by another.
	muster(0, "pause").expect(t, 0)
	for _, h := range on {
		untilPausedOn(t, h)
	}
	muster(2, "resume").expect(t, 0)
	untilRanksOn(t, on[1], 3)

	// A host that is gone is named: not the one that serves the store.
	gone := slices.IndexFunc(on, func(h *testutil.Host) bool { return h.Name == "node0" })
	others := slices.DeleteFunc([]int{0, 1, 2}, func(rank int) bool { return rank == gone })
	on[gone].PowerOff()
	got := muster(others[0], "exec", "--rank", fmt.Sprint(gone), "--", "true")
	got.expect(t, 75, fmt.Sprintf("cannot ask node %s (group rank %d) for rank %d", on[gone].Name, gone, gone))
	if got.elapsed > 30*time.Second {
		t.Errorf("it took %v", got.elapsed)
	}
	muster(others[0], "stop", "--now").expect(t, 0) // the other one hears of it
	select {
	case <-follow.Ended():
	case <-time.After(time.Minute):
		t.Error("logs -f goes on when the job has ended")
	}
	for _, rank := range others {
		testutil.Eventually(t, time.Minute, "nothing is left", func() bool { return len(on[rank].Processes()) == 0 })
	}
}

// TestNodesRemoteNoToken has a job without a token on three hosts: another node's ranks are refused by name, with what to
// try, and the own ones are there as ever. It goes on with two of them, as asked for on one.
func TestNodesRemoteNoToken(t *testing.T) {
	testutil.Long(t)
	t.Parallel()
	on := startOnHosts(t, "--nnodes", "2:3")
	for rank := range on {
		for other, h := range on {
			for _, args := range [][]string{
				{"logs", "--rank", fmt.Sprint(other)}, {"exec", "--rank", fmt.Sprint(other), "--", "hostname"},
			} {
				got := musterOn(t, on[rank], "", args...)
				if other == rank {
					got.expect(t, 0, h.Name)
				} else {
					got.expect(t, 2, fmt.Sprintf("rank %d is on node %s (group rank %d)", other, h.Name, other), "without a job token",
						"--token-file")
				}
			}
		}
	}
	// The node that serves the store stays, whatever its rank is.
	server := on[slices.IndexFunc(on, func(h *testutil.Host) bool { return h.Name == "node1" })]
	musterOn(t, on[1], "", "scale", "2").expect(t, 0, "the job goes on with 2 nodes")
	testutil.Eventually(t, time.Minute, "it goes on with two nodes", func() bool {
		a := worldOn(t, server)
		return a.Phase == report.PhaseRunning && a.Nodes == 2 && len(a.Ranks) == 2
	})
	musterOn(t, server, "", "stop", "--now").expect(t, 0)
	for rank := range on {
		testutil.Eventually(t, time.Minute, "nothing is left", func() bool { return len(on[rank].Processes()) == 0 })
	}
}

// TestHostsRemote has a launcher of two hosts by ssh: from its machine and from each host all ranks are reached.
func TestHostsRemote(t *testing.T) {
	t.Parallel()
	j := newHostsJob(t, 2, func(_ string, cfg *testutil.SSHDConfig) { cfg.Env = append(cfg.Env, cfg.Host.Environ()...) })
	r := j.start("run", "--run-id", "it", "--hosts", j.names(), "-n", "2", "--tee", "3", "--", "sh", "-c", remoteWorker)
	untilRanksOn(t, j.launcher, 4)
	for _, h := range append([]*testutil.Host{j.launcher}, j.on...) {
		got := musterOn(t, h, "", "logs", "--rank", "0-3")
		for rank := range 4 {
			if on := j.on[rank/2].Name; !strings.Contains(got.stdout, fmt.Sprintf("[rank %d] rank %d on %s round 0\n", rank, rank, on)) {
				t.Errorf("on %s, of rank %d: %s%s", h.Name, rank, got.stdout, got.stderr)
			}
		}
	}
	musterOn(t, j.launcher, "", "logs").expect(t, 2, "has no worker on this machine", "--node")
	musterOn(t, j.launcher, "", "logs", "--node", "1").expect(t, 0, "[rank 2] rank 2 on node2", "[rank 3] rank 3 on node2")
	musterOn(t, j.launcher, "", "logs", "--node", "node1").expect(t, 0, "[rank 0] rank 0 on node1")
	musterOn(t, j.launcher, "", "logs", "--rank", "9").expect(t, 2, "no rank 9")
	execAcross(t, j.launcher, j.on[1], 3)
	execAcross(t, j.on[1], j.on[0], 1)
	shellInTerminal(t, deskOn(j.launcher, j.on[1]), 2)

	follow := j.launcher.Command("muster", "logs", "-f", "--rank", "1,2")
	follow.Env = append(cleanEnviron(), j.launcher.Environ()...)
	var lines testutil.Buffer
	follow.Stdout = &lines
	if err := follow.Start(); err != nil {
		t.Fatal(err)
	}
	for round := range 2 {
		testutil.Eventually(t, time.Minute, fmt.Sprintf("round %d is shown", round), func() bool {
			return strings.Count(lines.String(), fmt.Sprintf(" round %d\n", round)) == 2
		})
		if round == 0 {
			musterOn(t, j.launcher, "", "restart").expect(t, 0)
		}
	}
	musterOn(t, j.launcher, "", "logs", "--rank", "2", "--previous").expect(t, 0, "rank 2 on node2 round 0")
	musterOn(t, j.on[1], "", "pause").expect(t, 0)
	untilPausedOn(t, j.launcher)
	musterOn(t, j.launcher, "", "resume").expect(t, 0)
	untilRanksOn(t, j.launcher, 4)
	testutil.Eventually(t, time.Minute, "what all ranks use is known", func() bool {
		a := worldOn(t, j.launcher)
		return len(a.Ranks) == 4 && usageKnown(&a)
	})
	musterOn(t, j.launcher, "", "stop").expect(t, 0)
	j.ends(r, 143)
	select {
	case <-follow.Ended():
	case <-time.After(time.Minute):
		t.Error("logs -f goes on when the job has ended")
	}
	j.clean(time.Minute)
}
