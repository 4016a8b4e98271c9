package steer

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"muster/internal/testutil"
	"muster/launch/control"
	"muster/launch/report"
	"muster/test/drive"
)

// remoteWorker is a worker that says who it is, on both streams, and runs until it is stopped.
const remoteWorker = `echo "rank $RANK on $(hostname) round $MUSTER_ROUND"; echo "err $RANK" >&2; while :; do sleep 0.2; done`

// untilPausedOn waits until the job that is asked on a host is paused.
func untilPausedOn(t *testing.T, h *testutil.Host) {
	t.Helper()
	testutil.Eventually(t, time.Minute, "the job is paused, as "+h.Name+" says", func() bool {
		a := drive.StatusOn(t, h)
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
		c.Env = append(drive.CleanEnviron(), h.Environ()...)
		c.Stdout, c.Stderr = &said[i], &said[i]
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
	}
	byRank := make([]*testutil.Host, 3)
	for rank, name := range drive.UntilRanksOn(t, hosts[0], 3) {
		byRank[rank] = hosts[slices.IndexFunc(hosts, func(h *testutil.Host) bool { return h.Name == name })]
	}
	drive.UntilRanksOn(t, hosts[1], 3)
	drive.UntilRanksOn(t, hosts[2], 3)
	return byRank
}

// execAcross runs commands in the place of a rank on the host there, by muster on another one.
func execAcross(t *testing.T, here, there *testutil.Host, rank int) {
	t.Helper()
	exec := func(stdin string, args ...string) drive.Outcome {
		t.Helper()
		return drive.RunOn(t, here, stdin, append([]string{"exec", "--rank", fmt.Sprint(rank), "--"}, args...)...)
	}
	got := exec("some input", "sh", "-c", `echo "$RANK $(hostname) $(cat)"; echo oops >&2; exit 7`)
	if want := fmt.Sprintf("%d %s some input\n", rank, there.Name); got.Status != 7 || got.Stdout != want || got.Stderr != "oops\n" {
		t.Errorf("status %d, %q, %q, want %q", got.Status, got.Stdout, got.Stderr, want)
	}
	much := strings.Repeat("0123456789abcdef\n", 100_000)
	if got := exec(much, "cat"); got.Status != 0 || got.Stdout != much {
		t.Errorf("status %d, %d bytes of %d came back\n%s", got.Status, len(got.Stdout), len(much), got.Stderr)
	}
	exec(much, "true").Expect(t, 0) // which reads nothing
	exec("", "sh", "-c", "kill -9 $$").Expect(t, 128+9)
	exec("", "no-such-program").Expect(t, 127, "no-such-program")
	drive.RunOn(t, here, "", "exec", "--rank", fmt.Sprint(rank), "--attempt", "9", "--", "sh", "-c", "echo $TORCHELASTIC_RESTART_COUNT").
		Expect(t, 0, "9\n")

	// A signal is passed on, and what its caller leaves behind is ended.
	for _, c := range []struct {
		signal syscall.Signal
		status int
	}{{syscall.SIGTERM, 9}, {syscall.SIGKILL, 128 + 9}} {
		mark := fmt.Sprintf("12%d34", c.signal)
		run := here.Command("muster", "exec", "--rank", fmt.Sprint(rank), "--", "sh", "-c",
			`trap "exit 9" TERM; echo ready; while :; do sleep 0.1; done`, mark)
		run.Env = append(drive.CleanEnviron(), here.Environ()...)
		var out testutil.Buffer
		run.Stdout = &out
		if err := run.Start(); err != nil {
			t.Fatal(err)
		}
		testutil.Eventually(t, time.Minute, "it is ready", func() bool { return strings.Contains(out.String(), "ready") })
		if !drive.RunsOn(there, mark) {
			t.Errorf("the command does not run on %s", there.Name)
		}
		if err := run.Process.Signal(c.signal); err != nil {
			t.Fatal(err)
		}
		if got := run.Status(); got != c.status {
			t.Errorf("%v: status %d, want %d", c.signal, got, c.status)
		}
		testutil.Eventually(t, time.Minute, "the command has ended", func() bool { return !drive.RunsOn(there, mark) })
	}

	// Who did what stands in the events of the node, and with which status it ended.
	events := drive.RunOn(t, there, "", "events", "-o", "json")
	var started, ended *control.Event
	for line := range strings.Lines(events.Stdout) {
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
		t.Errorf("%+v\n%+v\n%s", started, ended, events.Stdout)
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
	muster := func(rank int, args ...string) drive.Outcome {
		t.Helper()
		return drive.RunOn(t, on[rank], "", args...)
	}
	for rank := range on {
		testutil.Eventually(t, time.Minute, "what all ranks use is known", func() bool {
			a := drive.StatusOn(t, on[rank])
			return len(a.Ranks) == 3 && usageKnown(&a)
		})
		got := muster(rank, "logs", "--rank", "0-2")
		for r, h := range on {
			if !strings.Contains(got.Stdout, fmt.Sprintf("[rank %d] rank %d on %s round 0\n", r, r, h.Name)) ||
				!strings.Contains(got.Stderr, fmt.Sprintf("[rank %d] err %d\n", r, r)) {
				t.Errorf("on %s, of rank %d: %s%s", on[rank].Name, r, got.Stdout, got.Stderr)
			}
		}
	}
	muster(0, "logs", "--node", "2", "--tail", "1").Expect(t, 0, "rank 2 on "+on[2].Name)
	muster(0, "logs", "--node", on[1].Name).Expect(t, 0, "rank 1 on "+on[1].Name)
	muster(0, "logs", "--node", "3").Expect(t, 2, "no such node", "0 to 2")
	muster(0, "logs", "--rank", "7").Expect(t, 2, "no rank 7")
	muster(0, "exec", "--rank", "7", "--", "true").Expect(t, 2, "no rank 7")
	muster(0, "logs", "--rank", "1", "--previous").Expect(t, 2, on[1].Name, "has not been started again")
	execAcross(t, on[0], on[1], 1)
	execAcross(t, on[2], on[0], 0)
	shellInTerminal(t, deskOn(on[2], on[1]), 1)

	// Logs are followed over a restart, of a rank here and of others at once.
	follow := on[2].Command("muster", "logs", "-f", "--rank", "0,1,2")
	follow.Env = append(drive.CleanEnviron(), on[2].Environ()...)
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
	muster(1, "restart").Expect(t, 0)
	says(1)
	muster(2, "logs", "--rank", "0", "--previous").Expect(t, 0, "rank 0 on "+on[0].Name+" round 0")

	// The job is paused by one node, and resumed by another.
	muster(0, "pause").Expect(t, 0)
	for _, h := range on {
		untilPausedOn(t, h)
	}
	muster(2, "resume").Expect(t, 0)
	drive.UntilRanksOn(t, on[1], 3)

	// A host that is gone is named: not the one that serves the store.
	gone := slices.IndexFunc(on, func(h *testutil.Host) bool { return h.Name == "node0" })
	others := slices.DeleteFunc([]int{0, 1, 2}, func(rank int) bool { return rank == gone })
	on[gone].PowerOff()
	got := muster(others[0], "exec", "--rank", fmt.Sprint(gone), "--", "true")
	got.Expect(t, 75, fmt.Sprintf("cannot ask node %s (group rank %d) for rank %d", on[gone].Name, gone, gone))
	if got.Elapsed > 30*time.Second {
		t.Errorf("it took %v", got.Elapsed)
	}
	muster(others[0], "stop", "--now").Expect(t, 0) // the other one hears of it
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
				got := drive.RunOn(t, on[rank], "", args...)
				if other == rank {
					got.Expect(t, 0, h.Name)
				} else {
					got.Expect(t, 2, fmt.Sprintf("rank %d is on node %s (group rank %d)", other, h.Name, other), "without a job token",
						"--token-file")
				}
			}
		}
	}
	// The node that serves the store stays, whatever its rank is.
	server := on[slices.IndexFunc(on, func(h *testutil.Host) bool { return h.Name == "node1" })]
	drive.RunOn(t, on[1], "", "scale", "2").Expect(t, 0, "the job goes on with 2 nodes")
	testutil.Eventually(t, time.Minute, "it goes on with two nodes", func() bool {
		a := drive.StatusOn(t, server)
		return a.Phase == report.PhaseRunning && a.Nodes == 2 && len(a.Ranks) == 2
	})
	drive.RunOn(t, server, "", "stop", "--now").Expect(t, 0)
	for rank := range on {
		testutil.Eventually(t, time.Minute, "nothing is left", func() bool { return len(on[rank].Processes()) == 0 })
	}
}

// TestHostsRemote has a launcher of two hosts by ssh: from its machine and from each host all ranks are reached.
func TestHostsRemote(t *testing.T) {
	t.Parallel()
	j := drive.NewHostsJob(t, 2, func(_ string, cfg *testutil.SSHDConfig) { cfg.Env = append(cfg.Env, cfg.Host.Environ()...) })
	r := j.Start("run", "--run-id", "it", "--hosts", j.Names(), "-n", "2", "--tee", "3", "--", "sh", "-c", remoteWorker)
	for _, h := range append([]*testutil.Host{j.Launcher}, j.On...) {
		drive.UntilRanksOn(t, h, 4) // a node may hear of the others' ranks later than the launcher
		got := drive.RunOn(t, h, "", "logs", "--rank", "0-3")
		for rank := range 4 {
			if on := j.On[rank/2].Name; !strings.Contains(got.Stdout, fmt.Sprintf("[rank %d] rank %d on %s round 0\n", rank, rank, on)) {
				t.Errorf("on %s, of rank %d: %s%s", h.Name, rank, got.Stdout, got.Stderr)
			}
		}
	}
	drive.RunOn(t, j.Launcher, "", "logs").Expect(t, 2, "has no worker on this machine", "--node")
	drive.RunOn(t, j.Launcher, "", "logs", "--node", "1").Expect(t, 0, "[rank 2] rank 2 on node2", "[rank 3] rank 3 on node2")
	drive.RunOn(t, j.Launcher, "", "logs", "--node", "node1").Expect(t, 0, "[rank 0] rank 0 on node1")
	drive.RunOn(t, j.Launcher, "", "logs", "--rank", "9").Expect(t, 2, "no rank 9")
	execAcross(t, j.Launcher, j.On[1], 3)
	execAcross(t, j.On[1], j.On[0], 1)
	shellInTerminal(t, deskOn(j.Launcher, j.On[1]), 2)

	follow := j.Launcher.Command("muster", "logs", "-f", "--rank", "1,2")
	follow.Env = append(drive.CleanEnviron(), j.Launcher.Environ()...)
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
			drive.RunOn(t, j.Launcher, "", "restart").Expect(t, 0)
		}
	}
	drive.RunOn(t, j.Launcher, "", "logs", "--rank", "2", "--previous").Expect(t, 0, "rank 2 on node2 round 0")
	drive.RunOn(t, j.On[1], "", "pause").Expect(t, 0)
	untilPausedOn(t, j.Launcher)
	drive.RunOn(t, j.Launcher, "", "resume").Expect(t, 0)
	drive.UntilRanksOn(t, j.Launcher, 4)
	testutil.Eventually(t, time.Minute, "what all ranks use is known", func() bool {
		a := drive.StatusOn(t, j.Launcher)
		return len(a.Ranks) == 4 && usageKnown(&a)
	})
	drive.RunOn(t, j.Launcher, "", "stop").Expect(t, 0)
	j.Ends(r, 143)
	select {
	case <-follow.Ended():
	case <-time.After(time.Minute):
		t.Error("logs -f goes on when the job has ended")
	}
	j.Clean(time.Minute)
}
