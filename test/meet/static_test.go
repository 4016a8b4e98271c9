package meet

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"muster/internal/testutil"
	"muster/rendezvous/tcpstore"
	"muster/test/drive"
)

// TestMeetStatic gives ranks by node rank, whatever comes first, with worker counts and roles that differ.
func TestMeetStatic(t *testing.T) {
	for _, native := range []bool{false, true} {
		t.Run(map[bool]string{false: "torchrun", true: "run"}[native], func(t *testing.T) {
			t.Parallel()
			flags, port := drive.StaticFlags(t, 3)
			m := drive.NewMeet(t, "", flags...)
			m.Native = native
			var agents []*drive.Job
			for _, rank := range []int{2, 0, 1} {
				role := "--role=" + map[bool]string{true: "learner", false: "actor"}[rank == 1]
				agents = append(agents,
					m.Start(rank, fmt.Sprintf("--node-rank=%d", rank), fmt.Sprintf("--nproc-per-node=%d", rank+1), role))
			}
			for _, j := range agents {
				m.Ends(j, 0)
			}
			base, roleBase := []int{0, 1, 3}, []int{0, 0, 1}
			roleWorld := []int{4, 2, 4}
			for rank := range 3 {
				for local := range rank + 1 {
					m.Expect(rank, 0, local, fmt.Sprintf("RANK=%d", base[rank]+local), "WORLD_SIZE=6", "GROUP_WORLD_SIZE=3",
						fmt.Sprintf("GROUP_RANK=%d", rank), fmt.Sprintf("ROLE_RANK=%d", roleBase[rank]+local),
						fmt.Sprintf("ROLE_WORLD_SIZE=%d", roleWorld[rank]),
						"MASTER_ADDR=127.0.0.1", "MASTER_PORT="+port, "TORCHELASTIC_USE_AGENT_STORE=True")
				}
			}
		})
	}
}

// TestMeetStaticRestart lets a worker fail: all nodes start anew, with the ranks and at the place of before.
func TestMeetStaticRestart(t *testing.T) {
	t.Parallel()
	flags, port := drive.StaticFlags(t, 2)
	m := drive.NewMeet(t, drive.RankOneFails, append(flags, "--max-restarts=1")...)
	one, zero := m.Start(1, "--node-rank=1"), m.Start(0, "--node-rank=0")
	m.Ends(zero, 0, "rank 1 ended with status 3")
	m.Ends(one, 0)
	for node := range 2 {
		m.Expect(node, 1, 0, fmt.Sprintf("RANK=%d", node), "MASTER_PORT="+port, "TORCHELASTIC_RESTART_COUNT=1")
	}
}

// TestMeetStaticGloo has workers that name the job's own address and port as their store, and meet there again after
// one of them has failed.
func TestMeetStaticGloo(t *testing.T) {
	python := drive.SomeTorch(t) // TestMeetStaticTorchrun has the newest
	t.Parallel()
	flags, _ := drive.StaticFlags(t, 2)
	m := drive.NewMeet(t, `exec "$PYTHON" "$SCRIPT"`, append(flags, "--max-restarts=1")...)
	m.Env = []string{"PYTHON=" + python, "SCRIPT=" + drive.Script(t, "meet", "gloo.py")}
	zero, one := m.Start(0, "--node-rank=0"), m.Start(1, "--node-rank=1")
	if got := m.Ends(zero, 0); !strings.Contains(got.Stdout, "sum 3 in round 1") {
		t.Errorf("rank 0 has not added up the ranks:\n%s", got.Stdout)
	}
	m.Ends(one, 0)
}

// TestMeetStaticSameRank refuses an agent whose node rank a living one has, and names both.
func TestMeetStaticSameRank(t *testing.T) {
	t.Parallel()
	flags, _ := drive.StaticFlags(t, 2)
	m := drive.NewMeet(t, drive.UntilGate, flags...)
	m.Env = []string{"MUSTER_KEEP_ALIVE=1s"}
	zero := m.Start(0, "--node-rank=0")
	one := m.Start(1, "--node-rank=1", "--local-addr=127.0.0.2")
	m.Seen(1, 0, 0)
	again := m.Start(2, "--node-rank=1", "--local-addr=127.0.0.3")
	m.Ends(again, 75, "node rank 1 is taken by", "(127.0.0.2)", "(127.0.0.3)")
	m.Ends(m.Start(3, "--node-rank=0"), 2, "address already in use", "was another agent on this machine started with node rank 0?")
	m.Open()
	m.Ends(zero, 0)
	m.Ends(one, 0)
}

// TestMeetStaticSameRankAtOnce has two agents of one node rank, and nobody of another, before any round.
func TestMeetStaticSameRankAtOnce(t *testing.T) {
	t.Parallel()
	flags, _ := drive.StaticFlags(t, 3)
	m := drive.NewMeet(t, "", flags...)
	m.Env = []string{"MUSTER_KEEP_ALIVE=1s", "MUSTER_LOG_LEVEL=debug"}
	zero := m.Start(0, "--node-rank=0")
	one := m.Start(1, "--node-rank=1", "--local-addr=127.0.0.2")
	m.Says(zero, `"message":"this node hosts the store"`)
	again := m.Start(2, "--node-rank=1", "--local-addr=127.0.0.3")
	// Which of the two came first is up to them.
	var refused *drive.Job
	testutil.Eventually(t, time.Minute, "one of two agents is refused", func() bool {
		for _, j := range []*drive.Job{one, again} {
			if strings.Contains(drive.ForPeople(j.Err.String()), "muster: error:") {
				refused = j
			}
		}
		return refused != nil
	})
	m.Ends(refused, 75, "node rank 1 is taken by", "(127.0.0.2)", "(127.0.0.3)")
	if refused == one {
		one = again
	}
	two := m.Start(3, "--node-rank=2")
	for _, j := range []*drive.Job{zero, one, two} {
		m.Ends(j, 0)
	}
}

// TestMeetStaticReturns kills an agent and starts it again: it takes its place.
func TestMeetStaticReturns(t *testing.T) {
	t.Parallel()
	flags, _ := drive.StaticFlags(t, 2)
	m := drive.NewMeet(t, drive.UntilGate, flags...)
	m.Env = []string{"MUSTER_KEEP_ALIVE=1s"}
	zero := m.Start(0, "--node-rank=0")
	one := m.Start(1, "--node-rank=1")
	m.Seen(0, 0, 0)
	m.Seen(1, 0, 0)
	m.Kill(one)
	one = m.Start(2, "--node-rank=1")
	m.Expect(2, 1, 0, "RANK=1", "WORLD_SIZE=2")
	m.Expect(0, 1, 0, "RANK=0", "WORLD_SIZE=2")
	m.Open()
	m.Ends(zero, 0)
	m.Ends(one, 0)
}

// TestMeetStaticTorchrun shares a job of fixed node ranks with a real torchrun, whoever has rank 0 and so the store,
// and kills a worker of either.
func TestMeetStaticTorchrun(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name                  string
		nodes, theirs, victim int
	}{
		{"muster hosts", 2, 1, 1},
		{"torchrun hosts two musters", 3, 0, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			flags, _ := drive.StaticFlags(t, c.nodes)
			flags = append(flags, "--max-restarts=3")
			script := drive.Script(t, "meet", "static.py")
			m := drive.NewMeet(t, `exec "$PYTHON" "$SCRIPT"`, flags...)
			m.Env = []string{
				"PYTHON=" + drive.ForkedPython(t), "SCRIPT=" + script, fmt.Sprintf("VICTIM=%d", c.victim),
			}
			said := make([]string, c.nodes)
			var other drive.Outcome
			var wg sync.WaitGroup
			wg.Go(func() {
				args := append(slices.Clone(flags), fmt.Sprintf("--node-rank=%d", c.theirs), "--no-python", "sh", "-c", m.Script)
				other = drive.Torchrun(t, m.Environ(c.theirs), args...)
			})
			ours := map[int]*drive.Job{}
			for rank := range c.nodes {
				if rank != c.theirs { // one import of torch for both lives of its worker
					args := slices.Concat(drive.Warm("torch"), []string{"torchrun"}, flags,
						[]string{fmt.Sprint("--node-rank=", rank), script})
					ours[rank] = drive.Start(t, append(m.Environ(rank), "PYTHON_EXEC="+testutil.Torch(t)), args...)
					m.Agents = append(m.Agents, ours[rank])
				}
			}
			for rank, j := range ours {
				said[rank] = m.Ends(j, 0).Stdout
			}
			wg.Wait()
			if said[c.theirs] = other.Stdout; other.Status != 0 {
				t.Errorf("torchrun ended with %d:\n%s%s", other.Status, other.Stdout, other.Stderr)
			}
			if strings.Contains(other.Stderr, "exit barrier") {
				t.Errorf("torchrun lost its store before the end:\n%s", other.Stderr)
			}
			if all := drive.AgentsSaid(m); !strings.Contains(all, "an agent of torchrun takes part") {
				t.Errorf("it was not said that torchrun takes part:\n%s", all)
			}
			for rank, text := range said {
				if want := fmt.Sprintf("rank %d sum %d", rank, c.nodes*(c.nodes+1)/2); !strings.Contains(text, want) {
					t.Errorf("node %d has not said %q:\n%s", rank, want, text)
				}
			}
		})
	}
}

// TestMeetStaticExit has a torchrun that hosts the store and leaves the moment that everybody has entered its exit
// barrier. A client and a store are that torchrun.
func TestMeetStaticExit(t *testing.T) {
	t.Parallel()
	flags, port := drive.StaticFlags(t, 3)
	number, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	store, err := tcpstore.Listen(tcpstore.ServerConfig{Hosts: []string{"127.0.0.1"}, Port: number})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = store.Close() }()
	client := storeClient(t, port)
	const elastic = "/none/torchelastic/"
	if err := client.Set(t.Context(), elastic+"role_info/0", []byte(`{"role": "default", "rank": 0, "local_world_size": 1}`)); err != nil {
		t.Fatal(err)
	}
	m := drive.NewMeet(t, "", flags...)
	ours := []*drive.Job{m.Start(1, "--node-rank=1"), m.Start(2, "--node-rank=2")}
	if err := client.Wait(t.Context(), elastic+"role_info/1", elastic+"role_info/2"); err != nil {
		t.Fatal(err)
	}
	for rank := range 3 {
		if err := client.Set(t.Context(), fmt.Sprint(elastic, "assigned_ranks/", rank),
			fmt.Appendf(nil, "[%d, 3, %d, 3]", rank, rank)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := client.Add(t.Context(), elastic+"agent/terminal_state/num_members", 1); err != nil {
		t.Fatal(err)
	}
	if err := client.Wait(t.Context(), elastic+"agent/terminal_state/last_member"); err != nil {
		t.Fatal(err)
	}
	_ = store.Close()
	for _, j := range ours {
		m.Ends(j, 0)
	}
}

// TestMeetStaticMisfits has agents of torchrun that muster cannot have beside itself: one of a node rank that muster
// has, one of a version that ranks in another way, and one that says nonsense. A client writes what they write.
func TestMeetStaticMisfits(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ key, value, words string }{
		"the same rank": {
			"role_info/0", `{"role": "default", "rank": 0, "local_world_size": 1}`,
			"node rank 0 is that of an agent of torchrun and of node 127.0.0.1",
		},
		"1.13": {
			"role_info1", `{"role": "default", "rank": 1, "local_world_size": 1}`,
			"node rank 1 is an agent of a torchrun before 2.4",
		},
		"nonsense": {
			"role_info/1", `{"role": "default", "rank": 1, "local_world_size": 1e99}`,
			"is not what an agent of torchrun writes there",
		},
	} {
		flags, port := drive.StaticFlags(t, 2)
		m := drive.NewMeet(t, "", flags...)
		zero := m.Start(0, "--node-rank=0")
		client := storeClient(t, port)
		if err := client.Set(t.Context(), "/none/torchelastic/"+c.key, []byte(c.value)); err != nil {
			t.Fatal(err)
		}
		if _, err := client.Add(t.Context(), "init/", 1); err != nil {
			t.Fatal(err)
		}
		if got := m.Ends(zero, 75, c.words); got.Elapsed > time.Minute {
			t.Errorf("%s: it took %v", name, got.Elapsed)
		}
	}
}
