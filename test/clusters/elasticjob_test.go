package clusters

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"muster/internal/errhint"
	"muster/internal/testutil"
	"muster/test/drive"
)

// elasticJob is a real master of DLRover on this machine, and who takes part in its job.
type elasticJob struct {
	t       *testing.T
	bin     string // of DLRover's environment
	addr    string
	service string
	master  *exec.Cmd
	log     testutil.Buffer // of the master
	dir     string          // for what workers leave for each other
}

// newElasticJob starts a master for some nodes.
func newElasticJob(t *testing.T, service string, nodes int) *elasticJob {
	t.Helper()
	e := &elasticJob{t: t, bin: testutil.Peer(t, "dlrover"), addr: "127.0.0.1:" + drive.FreePort(t), service: service, dir: t.TempDir()}
	e.startMaster(nodes)
	return e
}

func (e *elasticJob) startMaster(nodes int) {
	e.t.Helper()
	_, port, _ := strings.Cut(e.addr, ":")
	e.master = exec.CommandContext(context.WithoutCancel(e.t.Context()), filepath.Join(e.bin, "python"), "-m", "dlrover.python.master.main",
		"--job_name", "job", "--platform", "local", "--node_num", strconv.Itoa(nodes), "--port", port, "--service_type", e.service)
	e.master.Env, e.master.Stdout, e.master.Stderr = drive.PeerEnviron(), &e.log, &e.log
	if err := e.master.Start(); err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(e.killMaster)
	testutil.Eventually(e.t, time.Minute, "the master listens", func() bool {
		return strings.Contains(e.log.String(), "Master "+e.service+" server started")
	})
}

func (e *elasticJob) killMaster() {
	if e.master.ProcessState == nil {
		_ = e.master.Process.Kill()
		_ = e.master.Wait()
	}
}

// environ is what a pod is given.
func (e *elasticJob) environ(rank int) []string {
	return []string{
		"DLROVER_MASTER_ADDR=" + e.addr, "DLROVER_MASTER_SERVICE_TYPE=" + e.service, "ELASTIC_JOB_NAME=job", "POD_IP=127.0.0.1",
		"NODE_RANK=" + strconv.Itoa(rank), "NODE_ID=" + strconv.Itoa(rank), "NODE_TYPE=worker", "OUT=" + e.dir,
	}
}

// node starts a node of ours.
func (e *elasticJob) node(rank int, args ...string) *drive.Job {
	e.t.Helper()
	return drive.Start(e.t, e.environ(rank), append([]string{"dlrover-run"}, args...)...)
}

// agent starts an agent of DLRover.
func (e *elasticJob) agent(rank int, environ []string, args ...string) (*exec.Cmd, *testutil.Buffer) {
	e.t.Helper()
	out := &testutil.Buffer{}
	cmd := exec.CommandContext(e.t.Context(), filepath.Join(e.bin, "dlrover-run"), args...)
	cmd.Env = slices.Concat(drive.PeerEnviron(), e.environ(rank), environ)
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = out, out, 10*time.Second
	if err := cmd.Start(); err != nil {
		e.t.Fatal(err)
	}
	return cmd, out
}

// leave writes a file by which workers are told something.
func (e *elasticJob) leave(name string) {
	e.t.Helper()
	if err := os.WriteFile(filepath.Join(e.dir, name), nil, 0o600); err != nil {
		e.t.Fatal(err)
	}
}

// succeed waits for nodes, all of which have to end with success, and returns what their workers have written.
func (e *elasticJob) succeed(nodes ...*drive.Job) string {
	e.t.Helper()
	all := ""
	for i, n := range nodes {
		got := n.End()
		if got.Status != 0 {
			e.t.Errorf("node %d ended with status %d:\n%s\n%s", i, got.Status, got.Stdout, got.Stderr)
		}
		all += got.Stdout
	}
	if e.t.Failed() {
		e.t.Fatalf("the master has written\n%s", e.log.String())
	}
	return all
}

func (e *elasticJob) wantLog(patterns ...string) {
	e.t.Helper()
	for _, p := range patterns {
		if !regexp.MustCompile(p).MatchString(e.log.String()) {
			e.t.Errorf("no %s in what the master has written:\n%s", p, e.log.String())
		}
	}
}

// shell is a worker that says who it is, and does the rest in a round whose number is that of restarts.
const shell = `echo rank $RANK of $WORLD_SIZE in $GROUP_RANK at $MASTER_ADDR:$MASTER_PORT restart $TORCHELASTIC_RESTART_COUNT
`

// Two nodes take their rounds from a real master: a worker fails once, both nodes start again, and the master hears of
// that, and how the nodes have ended. With MUSTER_SOAK=1 three nodes do so by HTTP, and two that have to see by
// themselves who answers at the master's address.
func TestElasticJob(t *testing.T) {
	t.Parallel()
	type way struct {
		service string
		nodes   int
		ask     bool
	}
	ways := []way{{"grpc", 2, false}}
	if testutil.Soak() {
		ways = append(ways, way{"http", 3, false}, way{"grpc", 2, true}, way{"http", 2, true}, way{"grpc", 1, false})
	}
	for _, w := range ways {
		t.Run(fmt.Sprint(w), func(t *testing.T) {
			t.Parallel()
			e := newElasticJob(t, w.service, w.nodes)
			var nodes []*drive.Job
			for rank := range w.nodes {
				environ := e.environ(rank)
				if w.ask {
					environ = slices.DeleteFunc(environ, func(kv string) bool {
						return strings.HasPrefix(kv, "DLROVER_MASTER_SERVICE_TYPE=")
					})
				}
				nodes = append(nodes, drive.Start(t, environ, "dlrover-run", "--nnodes", strconv.Itoa(w.nodes), "--nproc_per_node=2",
					"--max_restarts=1",
					"--no-python", "sh", "-c", shell+
						`if mkdir $OUT/failed 2>/dev/null; then sleep 0.3; exit 5; fi
						[ $TORCHELASTIC_RESTART_COUNT = 1 ] || sleep 100`))
			}
			all := e.succeed(nodes...)
			for rank := range 2 * w.nodes {
				want := fmt.Sprintf("rank %d of %d in %d at 127.0.0.1:", rank, 2*w.nodes, rank/2)
				if !regexp.MustCompile(regexp.QuoteMeta(want) + `[0-9]+ restart 1\n`).MatchString(all) {
					t.Errorf("no %q in:\n%s", want, all)
				}
			}
			e.wantLog(`worker-\d restart \d fails: \{"\d": ?\{.*"exitcode": ?5`, `Completed 1 round rendezvous of elastic-training`,
				`max_nodes=`+strconv.Itoa(w.nodes))
		})
	}
}

// An agent of DLRover and a node of ours are one job, whichever has rank 0: real PyTorch adds up over all workers,
// before and after one of ours has failed, and both end with success. With --network-check they are tested together
// before each of these rounds, as two agents of DLRover are, by their test.
func TestElasticJobMixed(t *testing.T) {
	testutil.SoakOnly(t)
	for _, c := range []struct {
		theirs int
		checks []string
		tested int // how often
		rounds int // of the training's rendezvous, where all nodes are measured, too
	}{
		{0, nil, 0, 2}, {1, nil, 0, 2}, {0, []string{"--network-check"}, 2, 2}, {1, []string{"--network-check", "--comm-perf-test"}, 2, 4},
	} {
		theirs := c.theirs
		t.Run(fmt.Sprint("agent ", theirs, c.checks), func(t *testing.T) {
			e := newElasticJob(t, "grpc", 2)
			script := filepath.Join(e.dir, "train.py")
			// A line is one write: DLRover's agent runs Python with -u, which writes the parts of a print one by one. The
			// barrier lets every rank say its line before one fails.
			if err := os.WriteFile(script, []byte(`import os, sys, time, torch, torch.distributed as dist
def say(line):
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
dist.init_process_group("gloo")
t = torch.ones(1)
dist.all_reduce(t)
say(f'rank {os.environ["RANK"]} of {os.environ["WORLD_SIZE"]} sum {int(t.item())}')
dist.barrier()
ours = os.environ["GROUP_RANK"] != os.environ["THEIRS"]
if ours and os.environ["LOCAL_RANK"] == "1" and not os.path.exists(os.environ["OUT"] + "/failed"):
    open(os.environ["OUT"] + "/failed", "w").close()
    sys.exit(5)
time.sleep(3)
dist.barrier()
say("done " + os.environ["RANK"])
`), 0o600); err != nil {
				t.Fatal(err)
			}
			args := slices.Concat(c.checks, []string{"--nnodes", "2", "--nproc_per_node", "2", "--max_restarts", "2", script})
			agent, out := e.agent(theirs, []string{"THEIRS=" + strconv.Itoa(theirs)}, args...)
			ours := drive.Start(t, append(e.environ(1-theirs), "THEIRS="+strconv.Itoa(theirs), "PATH="+e.bin+":"+os.Getenv("PATH")),
				append([]string{"dlrover-run"}, args...)...)
			all := e.succeed(ours)
			if err := agent.Wait(); err != nil {
				t.Errorf("DLRover's agent: %v\n%s\n%s", err, out.String(), e.log.String())
			}
			all += out.String()
			for rank := range 4 {
				if n := strings.Count(all, fmt.Sprintf("rank %d of 4 sum 4", rank)); n != 2 ||
					!strings.Contains(all, fmt.Sprintf("done %d\n", rank)) {
					t.Errorf("rank %d was started %d times:\n%s", rank, n, all)
				}
			}
			for name, want := range map[string]int{"network-check": c.tested, "elastic-training": c.rounds} {
				if n := strings.Count(e.log.String(), "round rendezvous of "+name+" is {0: 0, 1: 1}"); n != want {
					t.Errorf("%d rounds of %s, want %d:\n%s", n, name, want, e.log.String())
				}
			}
		})
	}
}

// A node without --network-check comes to two that are tested together, one of them an agent of DLRover, and waits for a
// round: each time that these go to their test the master forgets it. Once they start again it is one of them, and the
// job goes on.
func TestElasticJobUntested(t *testing.T) {
	testutil.SoakOnly(t)
	t.Parallel()
	e := newElasticJob(t, "grpc", 3)
	script := filepath.Join(e.dir, "train.py") // with --no-python DLRover's agent tests nothing
	if err := os.WriteFile(script, []byte(`import os, sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
size = os.environ["WORLD_SIZE"]
sys.stdout.write(f'rank {os.environ["RANK"]} of {size}\n')
sys.stdout.flush()
open(os.environ["OUT"] + "/" + size + "-" + os.environ["RANK"], "w").close()
go = torch.zeros(1)
while not go:
    time.sleep(0.2)
    go[0] = os.path.exists(os.environ["OUT"] + "/go")
    dist.all_reduce(go)
dist.destroy_process_group()
`), 0o600); err != nil {
		t.Fatal(err)
	}
	rounds := func() int { return strings.Count(e.log.String(), "round rendezvous of elastic-training is") }
	run := func(size int) {
		testutil.Eventually(t, 5*time.Minute, fmt.Sprintf("%d workers run", size), func() bool {
			found, err := filepath.Glob(filepath.Join(e.dir, fmt.Sprint(size, "-*")))
			return err == nil && len(found) == size
		})
	}
	args := []string{"--nnodes=2:3", "--nproc_per_node=1", "--max_restarts=9", "--rdzv-conf", "lastcall_timeout=1", script}
	tested := append([]string{"--network-check"}, args...)
	ours := func(rank int, args []string) *drive.Job {
		return drive.StartFor(t, 15*time.Minute, append(e.environ(rank), "PATH="+e.bin+":"+os.Getenv("PATH")),
			append([]string{"dlrover-run"}, args...)...)
	}
	agent, out := e.agent(0, nil, tested...)
	nodes := []*drive.Job{ours(1, tested)}
	run(2)
	nodes = append(nodes, ours(2, args))
	run(3)
	time.Sleep(25 * time.Second) // twice as long as a node waits before it joins again
	e.leave("go")
	all := e.succeed(nodes...)
	if err := agent.Wait(); err != nil {
		t.Errorf("DLRover's agent: %v\n%s\n%s", err, out.String(), e.log.String())
	}
	if n := rounds(); n > 3 { // that of two, perhaps one without the agent, and that of three
		t.Errorf("%d rounds:\n%s\n%s", n, all, e.log.String())
	}
}

// Where the test of DLRover's network check fails on one of two nodes, both leave, as two agents of DLRover do.
func TestElasticJobUnfit(t *testing.T) {
	testutil.SoakOnly(t)
	e := newElasticJob(t, "grpc", 2)
	script := filepath.Join(e.dir, "train.py") // with --no-python DLRover's agent tests nothing
	if err := os.WriteFile(script, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"--network-check", "--nnodes=2", "--nproc_per_node=1", script}
	agent, out := e.agent(0, nil, args...)
	ours := drive.Start(t, append(e.environ(1), "MOCK_ERR_RANK=0", "PATH="+e.bin+":"+os.Getenv("PATH")),
		append([]string{"dlrover-run"}, args...)...)
	got := ours.End()
	if got.Status != errhint.Undecided || !strings.Contains(got.Stderr, "mock error of local rank 0") ||
		!strings.Contains(got.Stderr, "nobody can be blamed") {
		t.Errorf("status %d:\n%s\n%s", got.Status, got.Stderr, e.log.String())
	}
	if err := agent.Wait(); err == nil || !strings.Contains(out.String(), "failed the node-check procedure") {
		t.Errorf("DLRover's agent: %v\n%s", err, out.String())
	}
}

// A node that is killed, and the one that Kubernetes starts in its place: the others meet it, whichever it was.
func TestElasticJobReplaces(t *testing.T) {
	testutil.SoakOnly(t)
	for _, killed := range []int{0, 1} {
		t.Run(fmt.Sprint("node ", killed), func(t *testing.T) {
			t.Parallel()
			e := newElasticJob(t, "grpc", 2)
			args := []string{
				"--nnodes=2", "--nproc_per_node=1", "--no-python", "sh", "-c",
				shell + `touch $OUT/started-$RANK; while [ ! -e $OUT/go ]; do sleep 0.1; done`,
			}
			nodes := []*drive.Job{e.node(0, args...), e.node(1, args...)}
			testutil.Eventually(t, time.Minute, "workers run", func() bool {
				found, err := filepath.Glob(filepath.Join(e.dir, "started-*"))
				return err == nil && len(found) == 2
			})
			if err := nodes[killed].Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = nodes[killed].Wait()
			again := e.node(killed, args...)
			testutil.Eventually(t, time.Minute, "the others meet the new node", func() bool {
				return strings.Count(e.log.String(), "Completed 1 round rendezvous") > 0
			})
			e.leave("go")
			all := e.succeed(nodes[1-killed], again)
			if n := strings.Count(all, "restart 0"); n != 3 { // a lost node is no restart
				t.Errorf("workers were started %d times:\n%s", n, all)
			}
		})
	}
}

// A node that fails for good ends alone: the other waits for the one that takes its place.
func TestElasticJobFails(t *testing.T) {
	testutil.SoakOnly(t)
	t.Parallel()
	e := newElasticJob(t, "grpc", 2)
	args := []string{
		"--nnodes=2", "--nproc_per_node=1", "--no-python", "sh", "-c",
		shell + `if [ $RANK = 1 ] && mkdir $OUT/failed 2>/dev/null; then sleep 1; exit 7; fi; [ -e $OUT/again ] || sleep 100`,
	}
	other, failing := e.node(0, args...), e.node(1, args...)
	if got := failing.End(); got.Status != 7 {
		t.Errorf("status %d:\n%s", got.Status, got.Stderr)
	}
	e.wantLog(`worker-1 restart \d fails: `)
	e.leave("again")
	e.succeed(other, e.node(1, args...))
}

// A master that dies leaves workers alone. Where a round is needed after that, the node ends with status 75 and says
// why, as long as DLRover's agents would try.
func TestElasticJobLosesMaster(t *testing.T) {
	testutil.SoakOnly(t)
	for _, fails := range []bool{false, true} {
		t.Run(fmt.Sprint("workers fail ", fails), func(t *testing.T) {
			t.Parallel()
			e := newElasticJob(t, "grpc", 2)
			status := map[bool]string{false: "0", true: "3"}[fails]
			args := []string{
				"--nnodes=2", "--nproc_per_node=1", "--max_restarts=3", "--no-python", "sh", "-c",
				shell + `touch $OUT/started-$RANK; while [ ! -e $OUT/go ]; do sleep 0.1; done; sleep 3; exit ` + status,
			}
			nodes := []*drive.Job{e.node(0, args...), e.node(1, args...)}
			testutil.Eventually(t, time.Minute, "workers run", func() bool {
				found, err := filepath.Glob(filepath.Join(e.dir, "started-*"))
				return err == nil && len(found) == 2
			})
			e.killMaster()
			e.leave("go")
			if !fails {
				e.succeed(nodes...)
				return
			}
			for i, n := range nodes {
				got := n.End()
				if got.Status != errhint.TryAgain || !strings.Contains(got.Stderr, "given up after 5") ||
					!strings.Contains(got.Stderr, "does the pod of the master run") || got.Elapsed > 2*time.Minute {
					t.Errorf("node %d: status %d after %v:\n%s", i, got.Status, got.Elapsed, got.Stderr)
				}
			}
		})
	}
}

// From the start of a pod's command to the first instruction of its worker, beside DLRover's launcher at the same master.
func TestElasticJobStarts(t *testing.T) {
	testutil.SoakOnly(t)
	took := map[string]time.Duration{}
	for _, name := range []string{"dlrover-run", "muster"} {
		e := newElasticJob(t, "grpc", 1)
		args := []string{"--nnodes=1", "--nproc_per_node=1", "--no-python", filepath.Join(e.dir, "worker")}
		if err := os.WriteFile(args[3], []byte("#!/bin/sh\ndate +%s.%N >$OUT/began\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			began := time.Now()
			if name == "muster" {
				e.succeed(e.node(0, args...))
			} else {
				cmd := exec.CommandContext(t.Context(), filepath.Join(e.bin, "dlrover-run"), args...)
				cmd.Env = slices.Concat(drive.PeerEnviron(), e.environ(0))
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Fatalf("%v\n%s", err, out)
				}
			}
			text, err := os.ReadFile(filepath.Join(e.dir, "began"))
			at, parseErr := strconv.ParseFloat(strings.TrimSpace(string(text)), 64)
			if err := errors.Join(err, parseErr); err != nil {
				t.Fatal(err)
			}
			d := time.Duration(at*1e9) - time.Duration(began.UnixNano())
			t.Logf("%s: %v", name, d)
			if took[name] == 0 || d < took[name] {
				took[name] = d
			}
		}
	}
	if took["muster"] > took["dlrover-run"]/5 {
		t.Errorf("%v, more than a fifth of %v", took["muster"], took["dlrover-run"])
	}
}
