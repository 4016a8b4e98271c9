package c10d_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"muster/internal/testutil"
	"muster/rendezvous/c10d"
	"muster/rendezvous/tcpstore"
)

// mixed is a job of real torchrun agents and a group of ours, which a Bridge stands for.
type mixed struct {
	*testing.T
	ctx      context.Context
	cancel   context.CancelCauseFunc
	dir      string // what workers write and read
	python   string
	forks    *testutil.Forks // of python
	cold     bool
	env      []string
	endpoint string
	meet     *tcpstore.Server // where workers meet when rank 0 is ours
	group    []c10d.Peer
	changed  chan struct{}
	*c10d.Bridge
	store   *tcpstore.Client
	log     testutil.Buffer
	agents  []*script
	workers []*script // ours, of the round that runs
	seen    map[string]bool
}

// script is a Python script that runs: an agent of the real torchrun, which is a script, too, or a worker of ours.
type script struct {
	args []string
	log  string
	err  error
	done chan struct{} // closed when it has ended, and log and err are set

	stop   context.CancelFunc
	killed atomic.Bool
}

// kill ends it without a word, but not what it has started.
func (s *script) kill() {
	s.killed.Store(true)
	s.stop()
	<-s.done
}

type mixedConfig struct {
	theirs     bool // whether the first torchrun hosts the store
	noTorch    bool // workers only say what environment they have
	cold       bool // each torchrun and its workers are new processes of Python; else they are forks, as our workers always are
	names      []string
	settings   func(*c10d.Settings)
	min, max   int
	torch      string // the interpreter, "" for testutil.Torch
	readTime   time.Duration
	beforeDial func(m *mixed)
}

// newMixed makes the store, if it is ours to make, and the bridge.
func newMixed(t *testing.T, c mixedConfig) *mixed {
	t.Helper()
	python := c.torch
	if python == "" {
		python = testutil.Torch(t)
	}
	ctx, stop := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(stop)
	ctx, cancel := context.WithCancelCause(ctx)
	m := &mixed{T: t, ctx: ctx, cancel: cancel, dir: t.TempDir(), python: python, changed: make(chan struct{}, 1), seen: map[string]bool{}}
	m.env = append(os.Environ(), "DIR="+m.dir, "OMP_NUM_THREADS=1", "GLOO_SOCKET_IFNAME=lo", "PYTHONUNBUFFERED=1")
	m.forks, m.cold = testutil.ForksOf(python, "torch.distributed.run", ""), c.cold
	switch {
	case c.noTorch:
		m.env = append(m.env, "NO_TORCH=1")
	case !c.cold && !testutil.Soak():
		path := filepath.Join(t.TempDir(), "python")
		if err := m.forks.Program(path); err != nil {
			t.Fatal(err)
		}
		m.env = append(m.env, "PYTHON_EXEC="+path) // by which torchrun starts its workers
	}
	// Before everything below: it runs last.
	t.Cleanup(m.end)
	var err error
	if m.meet, err = tcpstore.Listen(tcpstore.ServerConfig{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.meet.Close() })
	if c.theirs {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		m.endpoint = l.Addr().String()
		l.Close()
	} else {
		server, err := tcpstore.Listen(tcpstore.ServerConfig{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { server.Close() })
		m.endpoint = fmt.Sprintf("127.0.0.1:%d", server.Port())
	}
	if c.beforeDial != nil {
		c.beforeDial(m)
	}
	store, err := tcpstore.Dial(ctx, m.endpoint, tcpstore.ClientConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	m.store = store
	for i, name := range c.names {
		m.group = append(m.group, c10d.Peer{Node: c10d.Node{Addr: name, PID: int64(i)}, Role: "default", LocalWorldSize: 1})
	}
	set := c10d.DefaultSettings(c.min, c.max)
	set.LastCall = 2 * time.Second
	if c.settings != nil {
		c.settings(&set)
	}
	m.Bridge, err = c10d.NewBridge(c10d.BridgeConfig{
		Store: store, RunID: "job", Settings: set, ReadTimeout: c.readTime,
		Log: zerolog.New(zerolog.ConsoleWriter{Out: &m.log, NoColor: true}).With().Timestamp().Logger(),
	})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// state is what the store holds, for people.
func (m *mixed) state() string {
	m.Helper()
	text, err := m.store.Get(m.ctx, "/torch.rendezvous.job")
	if err != nil {
		m.Fatal(err)
	}
	s, err := c10d.Decode(text)
	if err != nil {
		m.Fatal(err)
	}
	if s == nil {
		return ""
	}
	return show(s, time.Now())
}

// end kills what is left and shows what it said if the test has failed.
func (m *mixed) end() {
	m.stopWorkers()
	for _, a := range m.agents {
		a.kill()
	}
	found, _ := filepath.Glob(m.dir + "/saw.*")
	for _, path := range found { // workers that survived their agent's SIGKILL
		if pid, err := strconv.Atoi(filepath.Ext(path)[1:]); err == nil {
			line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)) // a fork has that of the process that it is one of
			if err == nil && (strings.Contains(string(line), "worker.py") || strings.Contains(string(line), "FORKS_NAME")) {
				syscall.Kill(pid, syscall.SIGKILL)
			}
		}
	}
	if m.Failed() {
		m.Logf("bridge:\n%s", m.log.String())
		for _, a := range m.agents {
			m.Logf("%v\n%s", a.args, a.log)
		}
	}
}

// start starts a Python script, in a fork or anew; torchrun is given as -m MODULE.
func (m *mixed) start(cold bool, env []string, args ...string) *script {
	ctx, stop := context.WithCancel(context.Background())
	s := &script{args: args, done: make(chan struct{}), stop: stop}
	go func() {
		defer close(s.done)
		var out []byte
		if cold {
			cmd := exec.CommandContext(ctx, m.python, args...)
			cmd.Env, cmd.WaitDelay = env, time.Second
			out, s.err = cmd.CombinedOutput()
		} else {
			if args[0] == "-m" {
				args = append([]string{"-c", "import " + args[1] + " as m; m.main()"}, args[2:]...)
			}
			out, s.err = m.forks.Run(ctx, env, args...)
		}
		s.log = string(out)
	}()
	return s
}

// torchrun starts an agent with one worker. Its flags are those that 1.13 has too.
func (m *mixed) torchrun(nodes string, args ...string) *script {
	m.Helper()
	worker, err := filepath.Abs("testdata/worker.py")
	if err != nil {
		m.Fatal(err)
	}
	all := append([]string{
		"-m", "torch.distributed.run", "--nnodes=" + nodes, "--nproc_per_node=1", "--rdzv_backend=c10d", "--rdzv_endpoint=" + m.endpoint,
		"--rdzv_id=job", "--log_dir=" + m.TempDir(), "--max_restarts=3", "--monitor_interval=0.1",
	}, args...)
	a := m.start(m.cold, m.env, append(all, worker)...)
	m.agents = append(m.agents, a)
	go func() {
		<-a.done
		if a.err != nil && !a.killed.Load() {
			m.cancel(fmt.Errorf("torchrun has ended: %w", a.err)) // nothing that a test waits for will come
		}
	}()
	return a
}
func (m *mixed) peers() []c10d.Peer { return m.group }

// master empties the store that our agents serve to the workers, and says where it is.
func (m *mixed) master(_ context.Context, _ c10d.Peer, served bool) (string, int, error) {
	if served {
		m.meet.Reset()
		return "127.0.0.1", m.meet.Port(), nil
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", 0, err
	}
	defer l.Close()
	return "127.0.0.1", l.Addr().(*net.TCPAddr).Port, nil
}

// join joins a round of n nodes.
func (m *mixed) join(n int) c10d.Joined {
	m.Helper()
	j, err := m.Join(m.ctx, m.peers, m.changed, m.master)
	if err != nil {
		m.Fatal(err)
	}
	if j.GroupWorldSize != n || len(j.Names) != n {
		m.Fatalf("joined %+v, want %d nodes", j, n)
	}
	return j
}

// work starts our workers of the round, waits until those of all agents have met, and checks what they saw.
func (m *mixed) work(j c10d.Joined) []sight {
	m.Helper()
	m.stopWorkers()
	for _, a := range j.Ranks {
		for i := range a.LocalWorldSize {
			env := slices.Concat(m.env, []string{
				fmt.Sprintf("RANK=%d", a.BaseRank+i), fmt.Sprintf("WORLD_SIZE=%d", j.WorldSize),
				fmt.Sprintf("GROUP_RANK=%d", a.GroupRank),
				"MASTER_ADDR=" + j.MasterAddr, fmt.Sprintf("MASTER_PORT=%d", j.MasterPort), "TORCHELASTIC_RESTART_COUNT=0",
				"TORCHELASTIC_USE_AGENT_STORE=" + map[bool]string{true: "True", false: "False"}[j.AgentStore],
			})
			m.workers = append(m.workers, m.start(false, env, "testdata/worker.py"))
		}
	}
	var all []sight
	m.holding("all workers have met", func() bool {
		all = nil
		found, _ := filepath.Glob(m.dir + "/saw.*[0-9]")
		for _, path := range found {
			if m.seen[path] {
				continue
			}
			text, err := os.ReadFile(path)
			var s sight
			if err != nil || json.Unmarshal(text, &s) != nil {
				return false
			}
			all = append(all, s)
		}
		return len(all) >= j.WorldSize
	})
	found, _ := filepath.Glob(m.dir + "/saw.*[0-9]")
	for _, path := range found {
		m.seen[path] = true
	}
	ranks := map[string]bool{}
	for _, s := range all {
		ranks[s.Rank] = true
		if s.WorldSize != strconv.Itoa(j.WorldSize) || s.Sum != 0 && s.Sum != j.WorldSize*(j.WorldSize+1)/2 {
			m.Errorf("a worker saw %+v, want a world of %d", s, j.WorldSize)
		}
		if s.MasterAddr != j.MasterAddr || s.MasterPort != strconv.Itoa(j.MasterPort) {
			m.Errorf("a worker of round %d saw %+v, we %s:%d", j.Round, s, j.MasterAddr, j.MasterPort)
		}
	}
	if len(ranks) != j.WorldSize || len(all) != j.WorldSize {
		m.Errorf("workers of round %d saw %+v", j.Round, all)
	}
	return all
}

// holding keeps the round until cond is true.
func (m *mixed) holding(what string, cond func() bool) {
	m.Helper()
	hold, cancel := context.WithCancel(m.ctx)
	defer cancel()
	held := make(chan error, 1)
	go func() { held <- m.Hold(hold, m.peers) }()
	testutil.Eventually(m.T, time.Minute, what, cond)
	cancel()
	if err := <-held; err != nil {
		m.Fatal(err)
	}
}

// noted waits until the state says which ranks a round had. Where a torchrun was the one to complete the round, as on a
// busy machine, that takes until our first heartbeat: ranks of those who leave before are given anew.
func (m *mixed) noted(j c10d.Joined) {
	m.Helper()
	m.holding("one of us has written to the round", func() bool {
		text, err := m.store.Get(m.ctx, "/torch.rendezvous.job")
		if err != nil {
			return false
		}
		s, err := c10d.Decode(text)
		return err == nil && s != nil && s.RanksRound == j.Round
	})
}

// sight is what a worker wrote down.
type sight struct {
	Rank       string `json:"RANK"`
	WorldSize  string `json:"WORLD_SIZE"`
	GroupRank  string `json:"GROUP_RANK"`
	MasterAddr string `json:"MASTER_ADDR"`
	MasterPort string `json:"MASTER_PORT"`
	AgentStore string `json:"TORCHELASTIC_USE_AGENT_STORE"`
	Sum        int    `json:"sum"`
}

func (m *mixed) stopWorkers() {
	for _, w := range m.workers {
		w.kill()
		fmt.Fprint(&m.log, w.log)
	}
	m.workers = nil
}

// stay waits for the round to end, with a reason that says reason.
func (m *mixed) stay(reason string) {
	m.Helper()
	why, err := m.Stay(m.ctx, m.peers, m.changed)
	if err != nil {
		m.Fatal(err)
	}
	if !strings.Contains(why, reason) {
		m.Errorf("the round is over because %q, want it to say %q", why, reason)
	}
	m.stopWorkers()
}

// touch makes a file that tells workers what to do.
func (m *mixed) touch(name string) {
	m.Helper()
	if err := os.WriteFile(filepath.Join(m.dir, name), nil, 0o644); err != nil {
		m.Fatal(err)
	}
}

// succeed ends all workers well, and all agents after them.
func (m *mixed) succeed(agents ...*script) {
	m.Helper()
	m.touch("end")
	for _, w := range m.workers {
		if <-w.done; w.err != nil {
			m.Errorf("worker of ours: %v\n%s", w.err, w.log)
		}
	}
	m.workers = nil
	if err := m.Barrier(m.ctx, m.peers, m.changed); err != nil {
		m.Fatal(err)
	}
	if err := m.Close(m.ctx); err != nil && !errors.Is(err, c10d.ErrClosed) {
		m.Error(err)
	}
	for _, a := range agents {
		if <-a.done; a.err != nil {
			m.Errorf("torchrun: %v", a.err)
		}
	}
}
