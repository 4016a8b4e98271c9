package nodes

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"muster/internal/testutil"
	"muster/test/drive"
)

// nodes is one job on several hosts.
type nodes struct {
	t     testing.TB
	hosts []*testutil.Host
	dir   string // common to all hosts
	// Every agent gets the flags, the environment and the worker.
	flags, env, worker []string
	own                []string         // flags in front of the launcher's name
	hostEnv            map[int][]string // more of the environment, by host
	kinds              []string         // the launchers by host, where the job has them from its start
	clocked            string           // a muster for hosts whose clock is set
	slow               bool             // the network is
	join               time.Duration    // how long agents wait for each other; 20 s unless given
	python             string           // which runs the workers; testutil.Torch unless given
	agents             []*nodeAgent
}

// torchrunComes is how long agents wait where one of them is a torchrun, which takes tens of seconds to import torch on
// a busy machine.
const torchrunComes = 90 * time.Second

// nodeAgent is a launcher on one host.
type nodeAgent struct {
	*testutil.HostCommand
	kind     string // muster or torchrun
	out, err testutil.Buffer
	began    time.Time
}

// newNodes makes a job of workers that run on n hosts.
func newNodes(t testing.TB, n int, worker ...string) *nodes {
	t.Helper()
	j := &nodes{t: t, dir: t.TempDir(), worker: worker}
	j.hosts = testutil.Hosts(t, n)
	t.Cleanup(func() {
		if t.Failed() {
			j.show()
		}
	})
	return j
}

// show logs what every agent has said.
func (j *nodes) show() {
	for _, a := range j.agents {
		state := "runs"
		select {
		case <-a.Ended():
			state = "ended with " + strconv.Itoa(a.Status())
		default:
		}
		j.t.Logf("%s on %s, %s:\n%s%s", a.kind, a.Host().Name, state, a.out.String(), a.err.String())
	}
}

// agentOn returns the agent that was started last on a host.
func (j *nodes) agentOn(host int) *nodeAgent {
	j.t.Helper()
	for _, a := range slices.Backward(j.agents) {
		if a.Host() == j.hosts[host] {
			return a
		}
	}
	j.t.Fatalf("no agent was started on %s", j.hosts[host].Name)
	return nil
}

// start starts an agent on a host. A muster is told what a torchrun is told.
func (j *nodes) start(host int, kind string, flags ...string) *nodeAgent {
	j.t.Helper()
	h := j.hosts[host]
	conf := fmt.Sprintf("--rdzv-conf=last_call_timeout=3,join_timeout=%.0f", cmp.Or(j.join, 20*time.Second).Seconds())
	if kind == "torchrun" {
		// Else it would host when the other store is late, wait 30 seconds for more nodes, and notice none that is lost
		// for 15.
		conf += fmt.Sprintf(",is_host=%d", btoi(host == 0))
		if !j.slow { // where meeting takes it longer than three of them it takes itself for dead, and is silent from then on
			conf += ",keep_alive_interval=2"
		}
	}
	args := append(append([]string{conf}, j.flags...), flags...)
	args = append(args, j.worker...)
	a := &nodeAgent{kind: kind, began: time.Now()}
	switch kind {
	case "muster":
		muster := "muster"
		if len(j.clock(host, kind)) > 0 {
			muster = j.clocked
		}
		a.HostCommand = h.Command(muster, slices.Concat(j.own, []string{"torchrun"}, args)...)
	case "torchrun":
		torchrun := testutil.Torchrun(j.t)
		if len(j.clock(host, kind)) == 0 { // a fork is not loaded with a clock of its own
			torchrun = drive.ForkedTorchrun(j.t)
		}
		a.HostCommand = h.Command(torchrun, args...)
	default:
		j.t.Fatalf("no launcher %q", kind)
	}
	a.Env = append(append(drive.CleanEnviron(), h.Environ()...), "OMP_NUM_THREADS=1", "PYTHON_EXEC="+cmp.Or(j.python, testutil.Torch(j.t)))
	a.Env = append(append(a.Env, j.env...), j.hostEnv[host]...)
	a.Env = append(a.Env, j.clock(host, kind)...)
	a.Stdout, a.Stderr = &a.out, &a.err
	if err := a.Start(); err != nil {
		j.t.Fatal(err)
	}
	j.agents = append(j.agents, a)
	return a
}

// ends fails the test unless the agent ends within the time with one of the statuses.
func (j *nodes) ends(a *nodeAgent, within time.Duration, want ...int) {
	j.t.Helper()
	within *= testutil.Patience
	select {
	case <-a.Ended():
	case <-time.After(within):
		j.t.Errorf("%s on %s has not ended after %v", a.kind, a.Host().Name, within)
		return
	}
	for _, w := range want {
		if a.Status() == w {
			return
		}
	}
	j.t.Errorf("%s on %s ended with %d, want %v", a.kind, a.Host().Name, a.Status(), want)
}

// life is one life of one worker, as test/testdata/nodes/life.py writes it. began and last are in seconds: when its program
// began, and the last sign of it. Only muster's workers are told the round; it is -1 for others.
type life struct {
	host                                 string
	pid                                  int
	rank, worldSize, groupRank, restarts int
	round                                int
	began, last                          float64
}

// lives returns the lives of the job's workers that have begun, in their order.
func (j *nodes) lives() []life {
	j.t.Helper()
	files, err := filepath.Glob(filepath.Join(j.dir, "life-*"))
	if err != nil {
		j.t.Fatal(err)
	}
	var found []life
	for _, file := range files {
		parts := strings.Split(filepath.Base(file), "-")
		if strings.HasSuffix(file, ".tmp") {
			continue
		}
		l := life{host: parts[1]}
		l.pid, _ = strconv.Atoi(parts[2])
		text, err := os.ReadFile(file)
		if err != nil {
			j.t.Fatal(err)
		}
		if _, err := fmt.Sscan(string(text), &l.rank, &l.worldSize, &l.groupRank, &l.restarts, &l.round, &l.began); err != nil {
			j.t.Fatalf("%s: %v", file, err)
		}
		info, err := os.Stat(file)
		if err != nil {
			j.t.Fatal(err)
		}
		l.last = float64(info.ModTime().UnixNano()) / 1e9
		found = append(found, l)
	}
	slices.SortFunc(found, func(a, b life) int { return cmp.Compare(a.began, b.began) })
	return found
}

// step returns the newest step that rank 0 has finished.
func (j *nodes) step() int {
	text, _ := os.ReadFile(filepath.Join(j.dir, "progress"))
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	fields := strings.Fields(lines[len(lines)-1])
	if len(fields) < 3 {
		return 0
	}
	n, _ := strconv.Atoi(fields[2])
	return n
}

// hold keeps training behind a step until release.
func (j *nodes) hold(step int) {
	j.t.Helper()
	if err := os.WriteFile(filepath.Join(j.dir, "hold"), []byte(strconv.Itoa(step)), 0o644); err != nil {
		j.t.Fatal(err)
	}
}

func (j *nodes) release() {
	j.t.Helper()
	if err := os.Remove(filepath.Join(j.dir, "hold")); err != nil {
		j.t.Fatal(err)
	}
}

// hasWorld reports whether a world of so many workers has begun since a time.
func (j *nodes) hasWorld(size int, since time.Time) bool {
	ranks := map[int]bool{}
	for _, l := range j.lives() {
		if l.worldSize == size && l.began > seconds(since) {
			ranks[l.rank] = true
		}
	}
	return len(ranks) == size
}

// seconds is a time as lives have it.
func seconds(t time.Time) float64 { return float64(t.UnixMicro()) / 1e6 }

// killWorker sends SIGKILL to the newest worker of a host.
func (j *nodes) killWorker(host int) {
	j.t.Helper()
	name := j.hosts[host].Name
	lives := j.lives()
	for _, l := range slices.Backward(lives) {
		if l.host == name {
			if !j.hosts[host].Signal(l.pid, syscall.SIGKILL) {
				j.t.Fatalf("the newest worker of %s is dead: %+v", name, l)
			}
			return
		}
	}
	j.t.Fatalf("%s has had no worker: %+v", name, lives)
}
