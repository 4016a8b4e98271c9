package devicecheck_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"muster/internal/proc"
	"muster/internal/testutil"
	"muster/netcheck/devicecheck"
)

// tree is the only one that this process can have.
var tree *proc.Tree

// oldest is Debian's python3 where it has a torch of 1.x. It is asked before there is a tree, which would reap the
// answer.
var oldest string

func TestMain(m *testing.M) {
	flag.Parse()
	if flag.Lookup("test.fuzz").Value.String() != "" {
		os.Exit(m.Run()) // it starts processes of its own, whose ends a tree would take away
	}
	if !testing.Short() {
		const python = "/usr/bin/python3"
		const version = "import importlib.metadata as m; print(m.version('torch'))" // to import it would take a second
		out, err := exec.CommandContext(context.Background(), python, "-c", version).Output()
		if err == nil && bytes.HasPrefix(out, []byte("1.")) {
			oldest = python
		}
	}
	var err error
	if tree, err = proc.Open(proc.Config{}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	status := m.Run()
	if err := errors.Join(closeTemplates(), tree.Stop(context.Background(), proc.Ladder{}), tree.Close(), goleak.Find()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		status = 1
	}
	os.Exit(status)
}

// budget is more than any healthy command needs, however busy the machine is.
const budget = 2 * time.Minute

// node is a program of a test, and what may be changed about it.
type node struct {
	*devicecheck.Program
	devices int

	mu    sync.Mutex
	env   []string // of processes that start from now on, beside ours
	steps func(local int, step string)
}

// open starts the program of a node, with env beside our environment. At the end of the test nothing of it is left.
func open(t testing.TB, cfg devicecheck.Config, env ...string) *node {
	t.Helper()
	n := &node{devices: cfg.Devices, env: env}
	cfg.Tree, cfg.Scratch = tree, t.TempDir()
	cfg.Env = func(int) []string {
		n.mu.Lock()
		defer n.mu.Unlock()
		return append(os.Environ(), n.env...)
	}
	cfg.Progress = func(local int, step string) {
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.steps != nil {
			n.steps(local, step)
		}
	}
	if cfg.Budget == 0 {
		cfg.Budget = budget
	}
	var err error
	if n.Program, err = devicecheck.Open(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		pids := n.PIDs()
		if err := n.Close(); err != nil {
			t.Error(err)
		}
		for _, pid := range pids {
			if pid != 0 && !errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
				t.Errorf("process %d is left", pid)
			}
		}
		if left, _ := os.ReadDir(cfg.Scratch); len(left) > 0 {
			t.Errorf("%v is left", left)
		}
	})
	return n
}

func (n *node) setEnv(env ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.env = env
}

// at calls f once, when the process of a local rank says that it is at a step that begins so.
func (n *node) at(local int, step string, f func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.steps = func(l int, s string) {
		if l == local && strings.HasPrefix(s, step) {
			n.steps = nil
			f()
		}
	}
}

// serve returns where a node serves a store.
func serve(t testing.TB, n *node) string {
	t.Helper()
	port, err := n.Serve(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
}

var groups atomic.Uint64 // so far

// meet has nodes sum together; the first one serves the store.
func meet[T any](t testing.TB, name string, sum func(n *node, g devicecheck.Group) (T, error), nodes ...*node) ([]T, []error) {
	t.Helper()
	g := devicecheck.Group{Name: fmt.Sprint(name, groups.Add(1)), Store: serve(t, nodes[0])}
	for _, n := range nodes {
		g.World += n.devices
	}
	results, errs := make([]T, len(nodes)), make([]error, len(nodes))
	var wg sync.WaitGroup
	for i, n := range nodes {
		own := g
		wg.Go(func() { results[i], errs[i] = sum(n, own) })
		g.FirstRank += n.devices
	}
	wg.Wait()
	return results, errs
}

func pair(t testing.TB, name string, nodes ...*node) ([]devicecheck.Sum, []error) {
	t.Helper()
	return meet(t, name, func(n *node, g devicecheck.Group) (devicecheck.Sum, error) { return n.Pair(t.Context(), g, 0) }, nodes...)
}

// healthy is a pair without errors.
func healthy(t testing.TB, name string, nodes ...*node) {
	t.Helper()
	sums, errs := pair(t, name, nodes...)
	world := 0
	for _, n := range nodes {
		world += n.devices
	}
	for i, s := range sums {
		if errs[i] != nil {
			t.Fatalf("%s, node %d: %v", name, i, errs[i])
		}
		if s.World != world || s.Bytes != 4<<20 || s.Median <= 0 || s.Best > s.Median || s.AlgMBps() <= 0 || world > 1 &&
			s.BusMBps() <= 0 || s != sums[0] {
			t.Errorf("%s, node %d: %+v", name, i, s)
		}
	}
}

// pythons are the interpreters that the program has to run in. The oldest torch takes half the time to import: it is for
// tests in which torch is not the subject.
func pythons(t testing.TB) map[string]string {
	t.Helper()
	newest := testutil.Torch(t)
	if oldest == "" {
		testutil.Missing(t, "Debian's python3-torch 1.x")
	}
	return map[string]string{"newest": newest, "oldest": oldest}
}

func TestHealthyNodes(t *testing.T) {
	t.Parallel()
	for name, python := range pythons(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// What the user's Python prints is no concern of ours, wherever and whenever it does.
			noise := t.TempDir()
			write(t, filepath.Join(noise, "sitecustomize.py"), `import os; print("{}"); os.write(1, b'{"event": "done"}\n')`)
			single := open(t, forked(t, devicecheck.Config{Python: []string{python}, Devices: 1}))
			cfg := devicecheck.Config{Python: []string{python, "-W", "ignore"}, Devices: 2, Dir: t.TempDir()}
			if name == "newest" && !testutil.Soak() {
				cfg = forked(t, cfg)
			}
			double := open(t, cfg, "PYTHONPATH="+noise) // a fork does not read it

			local := func(n *node) {
				results, err := n.Local(t.Context())
				if err != nil || len(results) != n.devices {
					t.Fatalf("%+v, %v", results, err)
				}
				for i, r := range results {
					if r.Local != i || r.Kind != "cpu" || r.Backend != "gloo" || r.Torch == "" || r.Matmul.Size != 128 ||
						r.Matmul.Count < 1 || r.Matmul.Count > 500 ||
						r.Matmul.Best <= 0 || r.Matmul.Best > r.Matmul.Median || r.Matmul.TFLOPS() <= 0 || r.ToDevice <= 0 ||
						r.FromDevice <= 0 {
						t.Errorf("%+v", r)
					}
					if (r.AllReduce == nil) != (n.devices == 1) || r.AllReduce != nil &&
						(r.AllReduce.World != 2 || r.AllReduce.Median <= 0) {
						t.Errorf("all-reduce of %d devices: %+v", n.devices, r.AllReduce)
					}
				}
			}
			local(single)
			local(double)
			pids := fmt.Sprint(single.PIDs(), double.PIDs())
			healthy(t, "first", single, double)
			healthy(t, "second", double, single)
			healthy(t, "alone", single)
			tables, errs := meet(t, "table", func(n *node, g devicecheck.Group) ([]devicecheck.Sum, error) {
				return n.CommPerf(t.Context(), g, []int64{4, 1 << 20, 3 << 20})
			}, single, double)
			for i, table := range tables {
				if errs[i] != nil || len(table) != 3 || table[2].Bytes != 3<<20 || table[2].World != 3 || table[2].AlgMBps() <= 0 {
					t.Errorf("node %d: %+v, %v", i, table, errs[i])
				}
			}
			if now := fmt.Sprint(single.PIDs(), double.PIDs()); now != pids {
				t.Errorf("the processes were %s and are %s", pids, now)
			}

			if err := unix.Kill(double.PIDs()[1], unix.SIGKILL); err != nil { // idle: the next command is none the wiser
				t.Fatal(err)
			}
			local(double)
		})
	}
}

func mkdir(t testing.TB, path string) {
	t.Helper()
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
}

func write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// want fails the test if err is not that of a device with such a cause.
func want(t testing.TB, err error, local int, cause devicecheck.Cause, step, text string) *devicecheck.DeviceError {
	t.Helper()
	var e *devicecheck.DeviceError
	if !errors.As(err, &e) {
		t.Fatalf("%v is not of a device", err)
	}
	if e.Local != local || e.Cause != cause || !strings.Contains(e.Step, step) || !strings.Contains(e.Error(), text) {
		t.Errorf("%+v (%v); want device %d, %s, step %q, %q", e, e, local, cause, step, text)
	}
	return e
}

// TestCloseKills: what does not end by itself is killed. That nothing is left, open sees to.
func TestCloseKills(t *testing.T) {
	n := open(t, devicecheck.Config{Python: []string{pythons(t)["oldest"]}, Devices: 2})
	if err := n.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(n.PIDs()[0], unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
}

// One program's processes are at fault in several ways, and what comes next is always as if nothing had been.
func TestFaultsAmongNodes(t *testing.T) {
	t.Parallel()
	python := testutil.Torch(t) // the oldest one's messages about a stopped peer differ
	a := open(t, forked(t, devicecheck.Config{Python: []string{python}, Devices: 1}))
	b := open(t, forked(t, devicecheck.Config{Python: []string{python}, Devices: 2}))
	healthy(t, "before", a, b)

	t.Run("killed", func(t *testing.T) {
		pid := b.PIDs()[1]
		b.at(1, "all-reduce", func() { _ = unix.Kill(pid, unix.SIGKILL) })
		_, errs := pair(t, "killed", a, b)
		want(t, errs[0], 0, devicecheck.Comm, "all-reduce", "")
		e := want(t, errs[1], 1, devicecheck.Died, "all-reduce", "SIGKILL")
		if e.Exit.Signal != unix.SIGKILL {
			t.Errorf("%+v", e.Exit)
		}
		healthy(t, "after killed", b, a)
	})

	t.Run("killed early", func(t *testing.T) {
		pid := b.PIDs()[0]
		b.at(0, "connecting", func() { _ = unix.Kill(pid, unix.SIGKILL) })
		begin := time.Now()
		_, errs := pair(t, "early", a, b)
		died, is := errors.AsType[*devicecheck.DeviceError](errs[1])
		if !is {
			t.Fatalf("%v is not of a device", errs[1])
		}
		switch step := died.Step; { // the signal may come some steps later
		case strings.Contains(step, "all-reduce"):
			want(t, errs[0], 0, devicecheck.Comm, "all-reduce", "")
		case step == "making the process group":
			want(t, errs[0], 0, devicecheck.Comm, "", "")
		case strings.HasPrefix(step, "connecting"), step == "waiting for the other devices":
			want(t, errs[0], 0, devicecheck.Peer, "waiting", "another device failed: rank 1: was killed by SIGKILL")
		default:
			t.Errorf("it died in the step %q", step)
		}
		want(t, errs[1], 0, devicecheck.Died, "", "SIGKILL")
		if took := time.Since(begin); took > budget/2 { // it is told, not waited for
			t.Errorf("it took %v", took)
		}
		healthy(t, "after early", a, b)
	})

	t.Run("node gone", func(t *testing.T) {
		g := devicecheck.Group{Name: "gone", Store: serve(t, a), World: 3}
		a.at(0, "waiting", func() { a.Abandon(g, "node 2 was switched off") })
		_, err := a.Pair(t.Context(), g, 0)
		want(t, err, 0, devicecheck.Peer, "waiting", "another device failed: node 2 was switched off")
	})

	t.Run("stopped", func(t *testing.T) {
		a.SetBudget(20 * time.Second)
		b.SetBudget(20 * time.Second)
		pid := a.PIDs()[0]
		a.at(0, "all-reduce", func() { _ = unix.Kill(pid, unix.SIGSTOP) })
		_, errs := pair(t, "stopped", a, b)
		a.SetBudget(budget)
		b.SetBudget(budget)
		want(t, errs[0], 0, devicecheck.Hung, "all-reduce", "no answer within 20s")
		// The other node may still be at the group that the stopped one has made already, with any of its devices.
		if late := (*devicecheck.DeviceError)(nil); errors.As(errs[1], &late) && late.Cause == devicecheck.Hung {
			want(t, errs[1], late.Local, devicecheck.Hung, "making the process group", "no end within")
		} else {
			want(t, errs[1], 0, devicecheck.Comm, "all-reduce", "")
		}
		healthy(t, "after stopped", b, a)
	})

	t.Run("mock error", func(t *testing.T) {
		b.setEnv("MOCK_ERR_RANK=1")
		for _, pid := range b.PIDs() {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		results, err := b.Local(t.Context())
		if len(results) != 0 {
			t.Errorf("%+v", results) // device 0 was told that device 1 does not come
		}
		want(t, err, 0, devicecheck.Peer, "waiting", "rank 1: mock error of local rank 1")
		_, errs := pair(t, "mock", b, a)
		want(t, errs[0], 1, devicecheck.Failed, "", "mock error of local rank 1")
		want(t, errs[1], 0, devicecheck.Peer, "", "another device failed: rank 1: mock error")
		b.setEnv()
	})

	t.Run("alone", func(t *testing.T) {
		a.SetBudget(8 * time.Second)
		_, err := a.Pair(t.Context(), devicecheck.Group{Name: "lonely", Store: "127.0.0.1:1", World: 2}, 0)
		want(t, err, 0, devicecheck.Store, "connecting", "cannot reach the store at 127.0.0.1:1")
		_, err = a.Pair(t.Context(), devicecheck.Group{Name: "waiting", Store: serve(t, a), World: 4}, 0)
		want(t, err, 0, devicecheck.Peer, "waiting", "rank 1, 2, 3 of 4 did not come")
		a.SetBudget(budget)
	})

	t.Run("its context ends", func(t *testing.T) {
		pid := a.PIDs()[0]
		store := serve(t, a)
		ctx, cancel := context.WithTimeout(t.Context(), 6*time.Second)
		defer cancel()
		_, err := a.Pair(ctx, devicecheck.Group{Name: "limited", Store: store, World: 2}, 0)
		want(t, err, 0, devicecheck.Peer, "waiting", "rank 1 of 2 did not come")
		if a.PIDs()[0] != pid {
			t.Error("the process was replaced")
		}
	})

	t.Run("cancelled", func(t *testing.T) {
		store := serve(t, a)
		ctx, cancel := context.WithCancelCause(t.Context())
		cause := errors.New("enough")
		a.at(0, "waiting", func() { cancel(cause) })
		_, err := a.Pair(ctx, devicecheck.Group{Name: "cancelled", Store: store, World: 2}, 0)
		if !errors.Is(err, cause) {
			t.Errorf("%v", err)
		}
		// Another process serves another store: Close has to end what waits for it.
		store = serve(t, a)
		var wg sync.WaitGroup
		defer wg.Wait()
		a.at(0, "waiting", func() {
			wg.Go(func() {
				if err := a.Close(); err != nil {
					t.Error(err)
				}
			})
		})
		_, err = a.Pair(t.Context(), devicecheck.Group{Name: "closed", Store: store, World: 2}, 0)
		if !errors.Is(err, devicecheck.ErrClosed) {
			t.Errorf("%v", err)
		}
		if _, err = a.Local(t.Context()); !errors.Is(err, devicecheck.ErrClosed) {
			t.Errorf("%v", err)
		}
	})
}

// TestForkInheritsWhatIsNoFaultOfTheDevice: what a module of the user's leaves in the processes of the check, where
// they are forks, is not held against the node. Most of them are of the oldest torch, which is imported in half the time.
func TestForkInheritsWhatIsNoFaultOfTheDevice(t *testing.T) {
	t.Parallel()
	few := 1 // where each device does the same
	if testutil.Soak() {
		few = 2
	}
	for _, c := range []struct {
		name, code string
		budget     time.Duration
		devices    int
		kept       bool // the forks go on
		links      bool
		newest     bool
		soak       bool // another one like it is tried always
	}{
		{
			name: "defaults of torch", code: "import torch; torch.set_default_device('meta'); torch.set_default_dtype(torch.float64)",
			devices: 2, kept: true, newest: true,
		},
		{name: "breaks the program", code: "import json; json.dumps = None", devices: 2, soak: true},
		{name: "breaks the test", code: "import torch; torch.mm = torch.matmul = None", devices: few},
		{
			name: "hangs", code: "import sys\nif 'muster_check.py' in sys.orig_argv[-2]: import time; time.sleep(100)",
			budget: 40 * time.Second, devices: few,
		},
		{name: "breaks the test of links", code: "import torch; torch.full = None", links: true, soak: true},
		{name: "breaks the program of links", code: "import json; json.dumps = None", links: true},
	} {
		if c.soak && !testutil.Soak() {
			continue
		}
		python := pythons(t)[map[bool]string{true: "newest", false: "oldest"}[c.newest]]
		t.Run(strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			inherited := t.TempDir()
			write(t, filepath.Join(inherited, "sitecustomize.py"), c.code)
			var forks []int // what the program makes here, it makes one after the other
			cfg := devicecheck.Config{
				Python: []string{python}, Devices: c.devices, Budget: c.budget,
				Fork: func(_ context.Context, spec proc.Spec) *proc.Process {
					spec.Env = append(spec.Env, "PYTHONPATH="+inherited)
					p, err := tree.Start(spec)
					if err != nil {
						t.Error(err)
					}
					forks = append(forks, p.PID())
					return p
				},
			}
			if c.links {
				cfg.Fake, cfg.Sample = &devicecheck.FakeLinks{Count: 2}, 20*time.Millisecond
			}
			n := open(t, forked(t, cfg)) // those behind the forks
			if c.links {
				results, err := n.Switchbox(t.Context(), []devicecheck.Pair{{0, 1}, {1, 0}})
				if err != nil || len(results) != 2 || results[0].Err != nil || results[1].Err != nil {
					t.Errorf("%+v, %v", results, err)
				}
			} else if results, err := n.Local(t.Context()); err != nil || len(results) != c.devices {
				t.Errorf("%+v, %v", results, err)
			}
			if want := max(1, cfg.Devices); len(forks) != want {
				t.Errorf("%d forks, not %d", len(forks), want)
			}
			if pids := n.PIDs(); !c.links && slices.Equal(pids, forks) != c.kept {
				t.Errorf("the processes are %v, the forks were %v", pids, forks)
			}
		})
	}
}

// TestCloseDuringImport: a process that still imports torch is not told that there is nothing more to do, which it
// could not hear, nor waited for.
func TestCloseDuringImport(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	began, told := filepath.Join(dir, "began"), filepath.Join(dir, "told")
	write(t, filepath.Join(dir, "torch.py"),
		fmt.Sprintf("import os\nopen(%q, 'w').close()\nos.read(3, 1)\nopen(%q, 'w').close()\nimport time; time.sleep(100)\n", began, told))
	n := open(t, devicecheck.Config{Python: []string{"/usr/bin/python3", "-S"}, Devices: 1, Dir: dir}, "PYTHONPATH="+dir)
	testutil.Eventually(t, time.Minute, "the import began", func() bool {
		_, err := os.Stat(began)
		return err == nil
	})
	if err := n.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(told); err == nil {
		t.Error("it was given time")
	}
}
