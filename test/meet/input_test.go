package meet

import (
	"context"
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"muster/internal/testutil"
	"muster/rendezvous/tcpstore"
	"muster/test/drive"
)

// meetAt is a job whose agents meet at a port of this machine by torchrun's protocol or ours.
func meetAt(t *testing.T, script, port string, flags ...string) *drive.Meet {
	t.Helper()
	place := []string{"--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:" + port, "--rdzv-id=job7"}
	return drive.NewMeet(t, script, append(place, flags...)...)
}

// storeClient reaches a store as one of PyTorch's clients would.
func storeClient(t *testing.T, port string) *tcpstore.Client {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c, err := tcpstore.Dial(ctx, "127.0.0.1:"+port, tcpstore.ClientConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// TestMeetNobody has agents that find no store, or something else in its place: they end with status 75 in time, and
// say what they tried.
func TestMeetNobody(t *testing.T) {
	testutil.Long(t)
	t.Parallel()
	web := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(web.Close)
	silent, err := net.Listen("tcp", "127.0.0.1:0") // the kernel takes connections, and nobody else does
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	waiting := map[string]func(t *testing.T){} // they all wait at once
	_, webPort, _ := strings.Cut(strings.TrimPrefix(web.URL, "http://"), ":")
	for name, c := range map[string]struct {
		endpoint string
		words    []string
	}{
		"nobody listens":         {"127.0.0.1:" + drive.FreePort(t), []string{"connection refused", "waiting for the host of the store"}},
		"a web server":           {"127.0.0.1:" + webPort, []string{"a web server answers at"}},
		"a silent server":        {silent.Addr().String(), []string{"it takes connections, and does not answer"}},
		"a name without address": {"no-such-host.invalid:29400", []string{`cannot resolve "no-such-host.invalid"`}},
	} {
		m := drive.NewMeet(t, "", "--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint="+c.endpoint, "--rdzv-id=x",
			"--rdzv-conf=is_host=0,join_timeout=6")
		j := m.Start(0)
		waiting[name] = func(t *testing.T) {
			m.T = t
			got := m.Ends(j, 75, append(c.words, c.endpoint)...)
			if took := regexp.MustCompile(`given up after (6|7|8|9|1\d)s`); !took.MatchString(got.Stderr) {
				t.Errorf("the join timeout is 6s:\n%s", got.Stderr)
			}
			drive.Beside(t, j.RuntimeDir, "status", "x").Expect(t, 0, "Failed, NodesNotMet", c.endpoint)
			drive.Beside(t, j.RuntimeDir, "ps", "-a").Expect(t, 0, "(status 75, ")
		}
	}
	for name, test := range waiting {
		t.Run(name, test)
	}
}

// TestMeetTooFew has one node of two: it says every five seconds who is there and how many are missing, and that other
// nodes may mean other jobs.
func TestMeetTooFew(t *testing.T) {
	testutil.Long(t)
	t.Parallel()
	port := drive.FreePort(t)
	m := meetAt(t, "", port, "--nnodes=2")
	m.Env = []string{"MUSTER_JOIN_TIMEOUT=7s"}
	one := m.Start(0)
	testutil.Eventually(t, time.Minute, "the store is there", func() bool {
		client := storeClient(t, port)
		return client != nil
	})
	other := drive.NewMeet(t, "", "--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:"+port, "--rdzv-id=job8")
	other.Env = []string{"MUSTER_JOIN_TIMEOUT=3s"}
	other.Ends(other.Start(1), 75, `cannot join job "job8"`, "1 of 2 nodes are there", `other jobs use this store: ["job7"]`)
	got := m.Ends(one, 75, "waiting for nodes", "1 of 2 are there", "(127.0.0.1); 1 more to come",
		`cannot join job "job7" at the store at 127.0.0.1:`+port, `["job8"]`)
	if got.Elapsed < 7*time.Second || got.Elapsed > 40*time.Second {
		t.Errorf("given up after %v, the join timeout is 7s", got.Elapsed)
	}
}

// TestMeetStopped stops agents that wait, by signal: at once, with nothing left.
func TestMeetStopped(t *testing.T) {
	testutil.Long(t)
	t.Parallel()
	waiting := map[string]func(t *testing.T){}
	for name, place := range map[string]string{
		"for nodes": "c10d://127.0.0.1:" + drive.FreePort(t), "for the store": "c10d://127.0.0.1:" + drive.FreePort(t),
		"for etcd": "etcd://127.0.0.1:" + drive.FreePort(t),
	} {
		m := drive.NewMeet(t, "", "--nnodes=2", "--rdzv="+place, "--run-id=x")
		if m.Native = true; name == "for the store" {
			m.Flags = append(m.Flags, "--rdzv-conf=is_host=0")
		}
		j := m.Start(0)
		waiting[name] = func(t *testing.T) {
			m.T = t
			m.Says(j, "waiting for")
			stopped := time.Now()
			if err := j.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			m.Ends(j, 143)
			if took := time.Since(stopped); took > 10*time.Second {
				t.Errorf("it took %v to stop an agent without workers", took)
			}
			j.NothingLeft(j.RuntimeDir)
			drive.Beside(t, j.RuntimeDir, "status", "x").Expect(t, 0, "Failed, StopRequested")
			drive.Beside(t, j.RuntimeDir, "ps", "-a").Expect(t, 0, "(status 143, ")
		}
	}
	for name, test := range waiting {
		t.Run(name, test)
	}
}

// TestMeetRefused is what no agent begins with.
func TestMeetRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		flags []string
		words string
	}{
		{[]string{"--nnodes=4:2"}, "4:2"},
		{[]string{"--nnodes=0:2"}, "0:2"},
		{[]string{"--nnodes=2", "--local-addr=192.0.2.77"}, "192.0.2.77"},
		{[]string{"--nnodes=2", "--topology-file=none.txt"}, "none.txt"},
	} {
		m := drive.NewMeet(t, "", append([]string{"--rdzv=c10d://127.0.0.1:" + drive.FreePort(t), "--run-id=x"}, c.flags...)...)
		m.Native = true
		m.Ends(m.Start(0), 2, c.words)
	}
}

// TestMeetForeignState finds at torchrun's place in the store what no agent of torchrun writes.
func TestMeetForeignState(t *testing.T) {
	testutil.Long(t)
	t.Parallel()
	waiting := map[string]func(t *testing.T){}
	marker := filepath.Join(t.TempDir(), "ran")
	for name, value := range map[string]string{
		// os.system("touch ..."), as pickle's opcodes.
		"a pickle that calls": "cposix\nsystem\n(S'touch " + marker + "'\ntR.",
		"a deep pickle":       strings.Repeat("(", 100_000) + ".",
		"a long string":       "\x8d\xff\xff\xff\xff\xff\xff\xff\x7f.",
		"no pickle":           "GET / HTTP/1.1",
	} {
		port := drive.FreePort(t)
		serveStore(t, "127.0.0.1:"+port)
		if err := storeClient(t, port).Set(t.Context(), "/torch.rendezvous.job7",
			[]byte(base64.StdEncoding.EncodeToString([]byte(value)))); err != nil {
			t.Fatal(err)
		}
		m := meetAt(t, "", port, "--nnodes=2")
		m.Env = []string{"MUSTER_JOIN_TIMEOUT=20s"}
		m.Start(0)
		m.Start(1)
		waiting[name] = func(t *testing.T) {
			for _, j := range m.Agents {
				got := j.End()
				if (got.Status != 75 && got.Status != 2) || !strings.Contains(got.Stderr, "/torch.rendezvous.job7") {
					t.Errorf("status %d\n%s", got.Status, got.Stderr)
				}
			}
			if _, err := os.Stat(marker); err == nil {
				t.Error("the pickle was run")
			}
		}
	}
	for name, test := range waiting {
		t.Run(name, test)
	}
}

// TestMeetSharedStore has two jobs at one store, which holds 100,000 keys of somebody else.
func TestMeetSharedStore(t *testing.T) {
	testutil.Long(t)
	t.Parallel()
	port := drive.FreePort(t)
	serveStore(t, "127.0.0.1:"+port)
	client := storeClient(t, port)
	for k := 0; k < 100_000; k += 1000 {
		pairs := make([]tcpstore.Pair, 1000)
		for i := range pairs {
			pairs[i] = tcpstore.Pair{Key: fmt.Sprintf("/torch.rendezvous.other.%d/key", k+i), Value: []byte("value")}
		}
		if err := client.MultiSet(t.Context(), pairs...); err != nil {
			t.Fatal(err)
		}
	}
	var jobs []*drive.Meet
	for _, id := range []string{"one", "two"} {
		m := drive.NewMeet(t, drive.RankOneFails, "--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:"+port, "--rdzv-id="+id,
			"--max-restarts=1")
		m.Start(0)
		m.Start(1)
		jobs = append(jobs, m)
	}
	for i, m := range jobs {
		for node, j := range m.Agents {
			m.Ends(j, 0)
			m.Expect(node, 1, 0, "WORLD_SIZE=2", "TORCHELASTIC_RUN_ID="+[]string{"one", "two"}[i])
		}
	}
	if n, err := client.NumKeys(t.Context()); err != nil || n < 100_000 {
		t.Errorf("%d keys are left of 100000: %v", n, err)
	}
}

// TestMeetOtherRange starts one node with other numbers: the coordinator's count, and it says so.
func TestMeetOtherRange(t *testing.T) {
	t.Parallel()
	m := meetAt(t, drive.UntilGate, drive.FreePort(t))
	first := m.Start(0, "--nnodes=2")
	m.Says(first, "this machine itself")
	testutil.Eventually(t, time.Minute, "the first node waits", func() bool { return strings.Contains(m.Flags[1], "127.0.0.1") })
	port := strings.TrimPrefix(m.Flags[1], "--rdzv-endpoint=127.0.0.1:")
	storeClient(t, port) // it hosts the store, and so it is the coordinator in a moment
	second := m.Start(1, "--nnodes=1:4")
	m.Expect(0, 0, 0, "WORLD_SIZE=2")
	m.Expect(1, 0, 0, "WORLD_SIZE=2")
	m.Open()
	m.Ends(first, 0)
	m.Ends(second, 0)
	if !strings.Contains(drive.AgentsSaid(m), "node was started with another --nnodes") {
		t.Errorf("nobody has noticed:\n%s", drive.AgentsSaid(m))
	}
}

// TestMeetSpares holds one of three nodes ready, and kills one that trains.
func TestMeetSpares(t *testing.T) {
	testutil.Long(t)
	t.Parallel()
	m := meetAt(t, drive.UntilGate, drive.FreePort(t), "--nnodes=2:4")
	m.Env = []string{"MUSTER_SPARES=1", "MUSTER_LOG_LEVEL=debug", "MUSTER_KEEP_ALIVE=2s", "MUSTER_LAST_CALL=2s"}
	agents := []*drive.Job{m.Start(0), m.Start(1), m.Start(2)}
	begun := func(round int) (nodes []int) {
		for node := range agents {
			if m.Worker(node, round, 0) != nil {
				nodes = append(nodes, node)
			}
		}
		return nodes
	}
	testutil.Eventually(t, time.Minute, "two nodes train", func() bool { return len(begun(0)) == 2 })
	training := begun(0)
	victim := training[1]
	if strings.Contains(agents[victim].Err.String(), `"message":"this node hosts the store"`) { // without it, one of two must stop
		victim = training[0]
	}
	m.Kill(agents[victim])
	testutil.Eventually(t, time.Minute, "the spare takes the place", func() bool { return len(begun(1)) == 2 })
	for _, node := range begun(1) {
		m.Expect(node, 1, 0, "WORLD_SIZE=2")
	}
	m.Open()
	for node, j := range agents {
		if node != victim {
			m.Ends(j, 0)
		}
	}
}

// TestMeetUnit lets three nodes come, of which only pairs train, and then a fourth one.
func TestMeetUnit(t *testing.T) {
	testutil.Long(t)
	t.Parallel()
	m := meetAt(t, drive.UntilGate, drive.FreePort(t), "--nnodes=2:4")
	m.Env = []string{"MUSTER_NODE_UNIT=2", "MUSTER_LAST_CALL=2s"}
	m.Start(0)
	m.Start(1)
	m.Start(2)
	testutil.Eventually(t, time.Minute, "two nodes train", func() bool {
		n := 0
		for node := range 3 {
			if vars := m.Worker(node, 0, 0); vars != nil {
				if n++; vars["WORLD_SIZE"] != "2" {
					t.Fatalf("a world of %s", vars["WORLD_SIZE"])
				}
			}
		}
		return n == 2
	})
	m.Start(3)
	for node := range 4 {
		m.Expect(node, 1, 0, "WORLD_SIZE=4")
	}
	m.Open()
	for _, j := range m.Agents {
		m.Ends(j, 0)
	}
}

// TestMeetTopology ranks nodes by their switches, and logs who has which rank.
func TestMeetTopology(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "topology")
	if err := os.WriteFile(file, []byte("a1 p1 127.0.0.2\na2 p1 127.0.0.3\na1 p1 127.0.0.4\na2 p1 127.0.0.5\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	m := drive.NewMeet(t, "", "--nnodes=4", "--rdzv=muster://127.0.0.1:"+drive.FreePort(t), "--run-id=x",
		"--topology-file="+file, "--log-level=debug")
	m.Native = true
	for node := range 4 {
		m.Start(node, "--local-addr=127.0.0."+strconv.Itoa(node+2))
	}
	for _, j := range m.Agents {
		m.Ends(j, 0)
	}
	rank := func(node int) int {
		n, _ := strconv.Atoi(m.Seen(node, 0, 0)["RANK"])
		return n
	}
	if rank(0)/2 != rank(2)/2 || rank(1)/2 != rank(3)/2 {
		t.Errorf("nodes 0 and 2 share a switch, and 1 and 3: ranks %d %d %d %d", rank(0), rank(1), rank(2), rank(3))
	}
	addrs := make([]string, 4)
	for node := range 4 {
		addrs[rank(node)] = strconv.Quote("127.0.0." + strconv.Itoa(node+2))
	}
	if said := drive.AgentsSaid(m); !strings.Contains(said, `"addresses_by_rank":[`+strings.Join(addrs, ",")+`]`) {
		t.Errorf("the order %v was not logged:\n%s", addrs, said)
	}
}
