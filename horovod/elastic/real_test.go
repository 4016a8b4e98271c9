package elastic_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"muster/horovod"
	"muster/horovod/discovery"
	"muster/horovod/elastic"
	"muster/horovod/kv"
	"muster/internal/proc"
	"muster/internal/testutil"
)

// machine is this machine in the place of all hosts: its processes are real workers of Horovod 0.28.1. But in a soak test
// they are forks of one process, as Horovod and torch take two seconds of processor time to import.
type machine struct {
	t      *testing.T
	tree   *proc.Tree
	python string
	script string
	args   []string
	out    *testutil.Buffer

	mu    sync.Mutex
	begun int               // how many processes
	pids  map[string]int    // the last process of each slot
	lines map[string]string // and the file that it writes
	procs sync.WaitGroup
}

func newMachine(t *testing.T, script string, args ...string) *machine {
	t.Helper()
	python := filepath.Join(testutil.Peer(t, "horovod"), "python")
	if !testutil.Soak() {
		forks := testutil.ForksOf(python, "horovod.torch", "")
		python = filepath.Join(t.TempDir(), "python")
		if err := forks.Program(python); err != nil {
			t.Fatal(err)
		}
	}
	tree, err := proc.Open(proc.Config{})
	if err != nil {
		t.Fatal(err)
	}
	path, err := filepath.Abs(filepath.Join("testdata", script))
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{
		t: t, tree: tree, python: python, script: path, args: args, out: new(testutil.Buffer), pids: map[string]int{},
		lines: map[string]string{},
	}
	t.Cleanup(func() {
		m.procs.Wait()
		if err := tree.Close(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("the workers' output:\n%s", m.out.String())
		}
	})
	return m
}

type realProcess struct {
	m *machine
	p *proc.Process
}

func (p realProcess) Done() <-chan struct{} { return p.p.Done() }
func (p realProcess) Lost() bool            { return false }

func (p realProcess) Status() int { return p.p.Exit().Status() }
func (p realProcess) Stop(grace time.Duration) {
	p.m.procs.Go(func() {
		if err := p.m.tree.Stop(context.Background(), proc.Ladder{Grace: grace}, p.p); err != nil {
			p.m.t.Error(err)
		}
	})
}

func (m *machine) Start(_ context.Context, host string, local int, env []string, label string) (elastic.Process, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer w.Close()
	m.mu.Lock()
	m.begun++
	lines := fmt.Sprint(horovod.Key(host, local), ".", m.begun)
	m.mu.Unlock()
	inherited := []string{
		"LINES=" + lines,
		"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "MUSTER_TEST_REQUIRE=" + os.Getenv("MUSTER_TEST_REQUIRE"),
		"MUSTER_SOAK=" + os.Getenv("MUSTER_SOAK"), "OMP_NUM_THREADS=1", "HOROVOD_GLOO_IFACE=lo", "HOROVOD_LOG_LEVEL=ERROR",
		"HOROVOD_CYCLE_TIME=0.1", "HOROVOD_GLOO_TIMEOUT_SECONDS=12",
	}
	p, err := m.tree.Start(proc.Spec{
		Path: m.python, Args: slices.Concat([]string{m.python, "-W", "ignore", m.script}, m.args), Env: slices.Concat(inherited, env),
		Files: []*os.File{nil, w, w}, Label: "rank " + label,
	})
	if err != nil {
		r.Close()
		return nil, err
	}
	m.mu.Lock()
	m.pids[horovod.Key(host, local)], m.lines[horovod.Key(host, local)] = p.PID(), lines
	m.mu.Unlock()
	m.procs.Go(func() {
		defer r.Close()
		buf := make([]byte, 4096)
		for {
			n, err := r.Read(buf)
			_, _ = m.out.Write(buf[:n])
			if err != nil {
				return
			}
		}
	})
	return realProcess{m, p}, nil
}

func (m *machine) pid(key string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.pids[key]
}

// batch is a line of a worker's file.
type batch struct{ rank, size, number, sum int }

// last returns the last batch of the worker that has a slot now.
func (m *machine) last(dir, key string) batch {
	m.mu.Lock()
	name := m.lines[key]
	m.mu.Unlock()
	text, err := os.ReadFile(filepath.Join(dir, name))
	lines := strings.Split(string(text), "\n")
	var b batch
	if err != nil || len(lines) < 2 {
		return b
	}
	if _, err := fmt.Sscan(lines[len(lines)-2], &b.rank, &b.size, &b.number, &b.sum); err != nil {
		m.t.Fatal(err)
	}
	return b
}

// settled waits until the workers of these slots, in the order of their ranks, are a world that computes.
func (m *machine) settled(dir string, keys ...string) batch {
	m.t.Helper()
	was := make([]batch, len(keys))
	testutil.Eventually(m.t, 60*time.Second, fmt.Sprintf("a world of %v", keys), func() bool {
		for rank, key := range keys {
			now := m.last(dir, key)
			if now.rank != rank || now.size != len(keys) || now.sum != len(keys) {
				return false
			}
			if was[rank].number == 0 {
				was[rank] = now
			}
			if now.number < was[rank].number+2 {
				return false
			}
		}
		return true
	})
	return m.last(dir, keys[0])
}

// Real workers: a slot is added, a host is added, a worker is killed, hosts are replaced. Who stays keeps its process
// and goes on counting.
func TestRealHorovodElastic(t *testing.T) {
	dir := t.TempDir()
	m := newMachine(t, "elastic_worker.py", dir)
	s := &source{}
	s.set("a:1", nil)
	l, err := kv.Listen(t.Context(), "127.0.0.1", 0)
	if err != nil {
		t.Fatal(err)
	}
	var log testutil.Buffer
	d, err := elastic.New(elastic.Config{
		Rules: elastic.Rules{NP: 1, MinNP: 1, MaxNP: 4, ResetLimit: -1, Timeout: time.Minute, Cooldown: discovery.DefaultCooldown},
		Log:   zerolog.New(&log), Source: s, Interval: 200 * time.Millisecond, Spawner: m, Listener: l, Advertise: "127.0.0.1",
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancelCause(t.Context())
	ended := make(chan struct{})
	var result elastic.Result
	go func() {
		defer close(ended)
		if result, err = d.Run(ctx); err != nil {
			t.Log(err)
		}
	}()
	t.Cleanup(func() {
		stop(errors.New("the test is over"))
		<-ended
		if t.Failed() {
			t.Logf("the driver's log:\n%s", log.String())
		}
	})
	step := func(what, hosts string, keys ...string) batch {
		t.Helper()
		begin := time.Now()
		s.set(hosts, nil)
		b := m.settled(dir, keys...)
		t.Logf("%s: a world of %d after %v, at batch %d", what, b.size, time.Since(begin).Round(10*time.Millisecond), b.number)
		return b
	}
	first := step("the first world", "a:1", "a:0")
	oldest := m.pid("a:0")
	two := step("a slot is added", "a:2", "a:0", "a:1")
	three := step("a host is added", "a:2 b:1", "a:0", "a:1", "b:0")
	if err := syscall.Kill(m.pid("b:0"), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	killed := step("a worker is killed", "a:2 b:1", "a:0", "a:1")
	four := step("a host is added", "a:2 c:1", "a:0", "a:1", "c:0")
	if pid := m.pid("a:0"); pid != oldest {
		t.Errorf("the first worker was process %d and is %d", oldest, pid)
	}
	survivor := m.pid("c:0")
	last := step("the first host is taken away", "c:1", "c:0")
	if m.pid("c:0") != survivor {
		t.Error("the worker that stays was started anew")
	}
	numbers := []int{first.number, two.number, three.number, killed.number, four.number, last.number}
	if !slices.IsSorted(numbers) {
		t.Errorf("the count of batches went back: %v", numbers)
	}
	if err := os.WriteFile(filepath.Join(dir, "stop"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ended:
	case <-time.After(patience):
		t.Fatal("the job does not end")
	}
	if result.Status != 0 || result.Worlds != 6 || result.Size != 1 {
		t.Errorf("%+v, want 6 worlds, the last of 1", result)
	}
	if n := strings.Count(log.String(), "the host is not used"); n != 1 {
		t.Errorf("%d hosts were left out, want b", n)
	}
}

func TestRealHorovodStatic(t *testing.T) {
	m := newMachine(t, "static_worker.py")
	slots, err := horovod.Allocate([]horovod.Host{{Name: "localhost", Slots: 2}, {Name: "127.0.0.1", Slots: 1}}, 3, 3)
	if err != nil {
		t.Fatal(err)
	}
	server := kv.New(nil)
	server.Begin(horovod.Scopes(slots))
	l, err := kv.Listen(t.Context(), "", 0)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx, l) }()
	var workers []elastic.Process
	for _, slot := range slots {
		_, port, _ := net.SplitHostPort(l.Addr().String())
		p, err := m.Start(ctx, slot.Host, slot.LocalRank, slices.Concat(elastic.Env("127.0.0.1", port), slot.Env()),
			strconv.Itoa(slot.Rank))
		if err != nil {
			t.Fatal(err)
		}
		workers = append(workers, p)
	}
	for i, p := range workers {
		select {
		case <-p.Done():
		case <-time.After(time.Minute):
			t.Errorf("rank %d hangs", i)
			p.Stop(time.Second)
		}
		if p.Status() != 0 {
			t.Errorf("rank %d ended with status %d", i, p.Status())
		}
	}
	m.procs.Wait()
	for rank := range 3 {
		if want := fmt.Sprintf("rank %d of 3: 7\n", rank); !strings.Contains(m.out.String(), want) {
			t.Errorf("no %q in %q", want, m.out.String())
		}
	}
	cancel()
	if err := <-served; err != nil {
		t.Error(err)
	}
}
