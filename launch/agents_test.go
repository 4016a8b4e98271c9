package launch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"muster/internal/errhint"
	"muster/internal/proc"
	"muster/internal/testutil"
	"muster/launch/job"
	"muster/launch/plan"
	"muster/rendezvous"
	"muster/rendezvous/memstore"
	"muster/rendezvous/tcpstore"
)

// agentArg as the first argument turns the test binary into one of several agents. A process has one process tree, so
// that each agent needs a process.
const agentArg = "@agent"

// guardianArg alone turns it into an agent's guardian.
const guardianArg = "@guardian"

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == agentArg {
		if err := runTestAgent(os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			syscall.Exit(99)
		}
		syscall.Exit(0) // os.Exit lingers for a second under the race detector
	}
	if len(os.Args) == 2 && os.Args[1] == guardianArg {
		syscall.Exit(proc.RunGuardian())
	}
	os.Exit(m.Run())
}

// testNode says what one of several agents runs.
type testNode struct {
	Store        string // host:port
	Dir          string
	Index, Nodes int
	Spare        bool
	Deaf         int
	Procs        int
	Script       string   // of every worker, for sh
	Python       string   // a script that is started warm instead; empty: none
	Environ      []string // of the job, beside what every node has
	Interpreter  string   // of Python
	Restart      job.RestartRules
	Fatal        string
	Grace        time.Duration
	LossNotice   time.Duration
	Lease        time.Duration // of each round, and never renewed; 0: none, and no guardian
	Alone        bool          // no guardian with a lease either
	Pipes        bool          // output goes to the console alone
	// Checks are what the checks before the rounds say, by round; nil: nothing is checked.
	Checks map[int]testCheck
	// Examined are the same of the checks after hangs for which no cause was found.
	Examined map[int]testCheck
	// Hang are the job's rules for workers that hang.
	Hang job.HangRules
	// OnNodeFault and MinNodes are the job's.
	OnNodeFault string
	MinNodes    int
	// Health is the job's.
	Health job.HealthRules
	// SlowEvery is how often it is seen what ranks do in their steps, ExcludeStraggler is the job's.
	SlowEvery        time.Duration
	ExcludeStraggler bool
}

func (n *testNode) path(name string) string { return filepath.Join(n.Dir, name) }

// testResult is what Agent.Run returned.
type testResult struct {
	Status      int
	Report, Err string
	Code        int
	Over        bool
}

// runTestAgent is an agent's process: what cmd does, with the handler of the test.
func runTestAgent(config string) error {
	text, err := os.ReadFile(config)
	if err != nil {
		return err
	}
	var n testNode
	if err := json.Unmarshal(text, &n); err != nil {
		return err
	}
	if n.Restart.Fatal, err = job.ParseExitCodes(n.Fatal); n.Fatal != "" && err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	hurry := make(chan struct{})
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		s := <-signals
		cancel(&SignalError{Signal: s.(syscall.Signal)})
		<-signals
		close(hurry)
	}()
	forward, toForward := make(chan syscall.Signal, 4), make(chan os.Signal, 4)
	signal.Notify(toForward, syscall.SIGUSR1, syscall.SIGUSR2)
	go func() {
		for s := range toForward {
			forward <- s.(syscall.Signal)
			_ = os.WriteFile(n.path("received"), nil, 0o600)
		}
	}()
	store, err := tcpstore.Dial(context.Background(), n.Store, tcpstore.ClientConfig{})
	if err != nil {
		return err
	}
	host := fmt.Sprintf("node-%d", n.Index)
	command, warm := job.Command{Kind: job.Program, Name: "sh", Args: []string{"-c", n.Script}}, job.WarmRules{}
	if n.Python != "" {
		command = job.Command{Kind: job.Script, Name: n.Python, Interpreters: []string{n.Interpreter}}
		warm = job.WarmRules{Auto: true, Wait: time.Hour}
	}
	toFiles := job.StreamMap{Default: job.Both}
	if n.Pipes {
		toFiles = job.StreamMap{}
	}
	plan, err := plan.New(job.Job{
		Dialect: "run", RunID: "agents", Procs: strconv.Itoa(n.Procs), Role: "default",
		Command: command, Warm: warm, Restart: n.Restart, Hang: n.Hang, Health: n.Health,
		Stop: job.StopRules{Grace: n.Grace}, Logs: job.LogRules{Dir: n.path("logs"), Redirect: toFiles},
		StatusFile: n.path("status.json"),
		Environ:    append([]string{"PATH=" + os.Getenv("PATH"), "NODE=" + n.Dir, "ALL=" + filepath.Dir(n.Dir)}, n.Environ...),
	}, plan.Machine{Dir: n.Dir, Hostname: host, RuntimeDir: n.Dir, TempDir: n.Dir})
	if err != nil {
		return err
	}
	handler := &testHandler{
		Store: store, Index: n.Index, Nodes: n.Nodes, Spare: n.Spare, Deaf: n.Deaf, LossNotice: n.LossNotice, Lasts: n.Lease,
		Done: store.Close,
	}
	plan.Job.Check.OnNodeFault, plan.Job.Nodes.Min, plan.Job.Check.ExcludeStraggler = n.OnNodeFault, n.MinNodes, n.ExcludeStraggler
	a := &Agent{
		Plan: plan, Handler: handler, Checker: n.checker(), Examiner: n.examiner(),
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Log: zerolog.New(os.Stderr).With().Timestamp().Logger(),
		LogTo: func(io.Writer) {},
		Hurry: hurry, Forward: forward, ErrorFile: n.path("handed-on.json"),
	}
	a.slow.pace = slowPace{every: n.SlowEvery} // whatever share a look has: it takes long under the race detector
	if n.Lease > 0 && !n.Alone {
		a.Guardian = []string{"/proc/self/exe", guardianArg}
	}
	res, err := a.Run(ctx)
	out := testResult{Status: res.Status, Report: res.Report, Over: res.Over}
	if err != nil {
		out.Err, out.Code = err.Error(), errhint.CodeOf(err)
	}
	if text, err = json.Marshal(out); err != nil {
		return err
	}
	return os.WriteFile(n.path("result.json"), text, 0o600)
}

// testAgents is agents in processes of their own, and the store they meet at.
type testAgents struct {
	t      *testing.T
	dir    string
	addr   string
	server *tcpstore.Server
	store  *tcpstore.Client
	nodes  []*agentNode
}

type agentNode struct {
	testNode
	cmd  *exec.Cmd
	log  testutil.Buffer
	done chan error
}

// startAgents starts n agents whose workers run script, as set says of each.
func startAgents(t *testing.T, n int, script string, set func(i int, n *testNode)) *testAgents {
	t.Helper()
	server, err := tcpstore.Listen(tcpstore.ServerConfig{Hosts: []string{"127.0.0.1"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	dir := filepath.Join(t.TempDir(), "agents")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // the last system call of a worker that was killed may be under way
		testutil.Eventually(t, time.Minute, dir+" is removed", func() bool { return os.RemoveAll(dir) == nil })
	})
	c := &testAgents{t: t, server: server, dir: dir, addr: net.JoinHostPort("127.0.0.1", strconv.Itoa(server.Port()))}
	if c.store, err = tcpstore.Dial(t.Context(), c.addr, tcpstore.ClientConfig{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.store.Close() })
	for i := range n {
		node := testNode{
			Store: c.addr, Dir: filepath.Join(c.dir, fmt.Sprint(i)), Index: i, Nodes: n, Procs: 2, Script: script, Grace: 20 * time.Second,
			Restart: job.RestartRules{
				Policy: job.RestartOnFailure, BackoffLimit: -1, ReplaceLimit: -1, Success: job.QuorumAll, Fail: job.QuorumAny,
				Clean: job.CleanAll,
				Delay: time.Second, DelayFactor: 1,
			},
		}
		if set != nil {
			set(i, &node)
		}
		if node.Python != "" { // the interpreter itself, not a script in front of it
			self, err := exec.Command("python3", "-c", "import sys; print(sys.executable, end='')").Output()
			if err != nil {
				t.Fatal(err)
			}
			node.Interpreter = string(self)
		}
		c.start(node)
	}
	return c
}

func (c *testAgents) start(n testNode) *agentNode {
	c.t.Helper()
	if err := os.Mkdir(n.Dir, 0o700); err != nil {
		c.t.Fatal(err)
	}
	text, err := json.Marshal(n)
	if err != nil {
		c.t.Fatal(err)
	}
	writeFile(c.t, n.path("config.json"), string(text))
	node := &agentNode{testNode: n, done: make(chan error, 1)}
	ctx, cancel := context.WithTimeout(context.Background(), testutil.Patience*2*time.Minute)
	node.cmd = exec.CommandContext(ctx, "/proc/self/exe", agentArg, n.path("config.json"))
	node.cmd.Stdout, node.cmd.Stderr = &node.log, &node.log
	node.cmd.WaitDelay = 10 * time.Second
	if err := node.cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	exited := make(chan struct{})
	go func() {
		node.done <- node.cmd.Wait()
		close(exited)
	}()
	c.t.Cleanup(func() {
		_ = node.cmd.Process.Kill() // its workers die with it
		<-exited
		cancel()
		if c.t.Failed() {
			c.t.Logf("agent %d:\n%s", n.Index, &node.log)
		}
	})
	c.nodes = append(c.nodes, node)
	return node
}

// wait returns how an agent ended.
func (c *testAgents) wait(i int) testResult {
	c.t.Helper()
	n := c.nodes[i]
	if err := <-n.done; err != nil {
		c.t.Fatalf("agent %d: %v\n%s", i, err, &n.log)
	}
	text, err := os.ReadFile(n.path("result.json"))
	if err != nil {
		c.t.Fatal(err)
	}
	var r testResult
	if err := json.Unmarshal(text, &r); err != nil {
		c.t.Fatal(err)
	}
	return r
}

// ends waits for all agents, which must end with these statuses and without an error.
func (c *testAgents) ends(statuses ...int) []testResult {
	c.t.Helper()
	var all []testResult
	for i, want := range statuses {
		r := c.wait(i)
		if r.Status != want || r.Err != "" {
			c.t.Errorf("agent %d ended with status %d and error %q, want status %d", i, r.Status, r.Err, want)
		}
		all = append(all, r)
	}
	return all
}

// lines waits until the workers of all nodes have left n lines in the file "seen", and returns them.
func (c *testAgents) lines(n int) []string {
	c.t.Helper()
	var lines []string
	testutil.Eventually(c.t, time.Minute, fmt.Sprintf("%d lines of workers", n), func() bool {
		text, _ := os.ReadFile(filepath.Join(c.dir, "seen"))
		lines = strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
		return strings.Count(string(text), "\n") >= n
	})
	return lines
}

// count returns how many of the lines begin with prefix.
func count(lines []string, prefix string) int {
	n := 0
	for _, l := range lines {
		if strings.HasPrefix(l, prefix) {
			n++
		}
	}
	return n
}

// push says a verdict to a node as its handler would.
func (c *testAgents) push(round, index int, v rendezvous.Verdict) {
	c.t.Helper()
	text, err := json.Marshal(v)
	if err == nil {
		err = c.store.Set(c.t.Context(), fmt.Sprintf("r%d/push/%d", round, index), text)
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

// said makes a verdict the one that counts for a whole round.
func (c *testAgents) said(round int, v rendezvous.Verdict) {
	c.t.Helper()
	text, err := json.Marshal(v)
	if err == nil {
		_, err = c.store.CompareAndSet(c.t.Context(), fmt.Sprintf("r%d/verdict", round), nil, text)
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

func (n *agentNode) wantLog(t *testing.T, parts ...string) {
	t.Helper()
	for line := range strings.Lines(n.log.String()) {
		all := true
		for _, p := range parts {
			all = all && strings.Contains(line, p)
		}
		if all {
			return
		}
	}
	t.Errorf("agent %d has no line with %q in its log", n.Index, parts)
}

// TestTestHandler holds the handler of these tests against the contract it stands for.
func TestTestHandler(t *testing.T) {
	space := memstore.NewSpace()
	defer space.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var nodes [2]*testHandler
	for i := range nodes {
		client := space.Client()
		nodes[i] = &testHandler{Store: client, Index: i, Nodes: 2, Done: client.Close}
	}
	rounds := make(chan rendezvous.Round, 2)
	next := func() (rs [2]rendezvous.Round) {
		for i, h := range nodes {
			go func() {
				r, err := h.Next(ctx, rendezvous.Member{Role: "default", LocalWorldSize: i + 1})
				if err != nil {
					t.Error(err)
				}
				rounds <- r
			}()
		}
		for range nodes {
			r := <-rounds
			rs[r.GroupRank] = r
		}
		return rs
	}
	rs := next()
	if a, b := rs[0], rs[1]; a.BaseRank != 0 || b.BaseRank != 1 || a.WorldSize != 3 || b.GroupWorldSize != 2 || b.Restarts != 0 {
		t.Fatalf("rounds %+v", rs)
	}
	first := rendezvous.Verdict{Kind: rendezvous.Restart, Node: "a", Rank: 1, Status: 7, Restarts: 1, Delay: time.Second}
	for i, v := range []rendezvous.Verdict{first, {Kind: rendezvous.Fail, Rank: 0, Status: 3}} {
		if said, err := nodes[i].Propose(ctx, v); said != first || err != nil {
			t.Errorf("proposal %d: %+v, %v", i, said, err)
		}
		if v := <-nodes[i].Verdict(); v != first {
			t.Errorf("verdict %+v", v)
		}
	}
	for i, n := range []rendezvous.Tally{{Ended: 1, Failed: 1}, {Ended: 2}} {
		if err := nodes[i].Tally(ctx, n); err != nil {
			t.Error(err)
		}
	}
	if sum := <-nodes[1].Tallied(); sum != (rendezvous.Tally{Ended: 3, Failed: 1}) || len(nodes[0].Tallied()) > 0 {
		t.Errorf("tally %+v", sum)
	}
	if err := nodes[1].Report(ctx, []byte("it")); err != nil {
		t.Error(err)
	}
	short, done := context.WithTimeout(ctx, 20*time.Millisecond)
	defer done()
	if reports, err := nodes[0].Reports(short); err != nil || len(reports) != 1 || string(reports[0]) != "it" {
		t.Errorf("reports %q, %v", reports, err)
	}
	if v, err := nodes[1].Agree(ctx, []byte("3")); string(v) != "3" || err != nil {
		t.Errorf("agreed on %q, %v", v, err)
	}
	if v, err := nodes[0].Agree(ctx, []byte("4")); string(v) != "3" || err != nil {
		t.Errorf("agreed on %q, %v", v, err)
	}
	if rs = next(); rs[0].Number != 1 || rs[1].Restarts != 1 {
		t.Errorf("rounds %+v", rs)
	}
	if _, err := nodes[0].Propose(ctx, rendezvous.Verdict{Kind: rendezvous.Succeed}); err != nil {
		t.Error(err)
	}
	late := &testHandler{Store: space.Client(), Spare: true}
	over, ok := errors.AsType[*rendezvous.OverError](func() error { _, err := late.Next(ctx, rendezvous.Member{}); return err }())
	if !ok || over.Verdict.Kind != rendezvous.Succeed {
		t.Errorf("a spare is told %v", over)
	}
	for _, h := range nodes {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	}
}
