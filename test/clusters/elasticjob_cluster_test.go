package clusters

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"muster/internal/errhint"
	"muster/internal/testutil"
	"muster/test/drive"
)

// TestElasticJobRelaunches: DLRover's master of a cluster has nodes started. One of them is sick, which muster's check
// finds: it ends with status 80, the master has another node started with its rank, and the job is done by that.
func TestElasticJobRelaunches(t *testing.T) {
	testutil.SoakOnly(t)
	t.Parallel()
	e := &elasticJob{t: t, bin: testutil.Peer(t, "dlrover"), addr: "127.0.0.1:" + drive.FreePort(t), service: "grpc", dir: t.TempDir()}
	spec := filepath.Join(e.dir, "spec.yaml") // nobody looks for torch
	text := "version: 1\ndefaults:\n  count: 1\n  model: NVIDIA H100 80GB HBM3\n  faults: [{kind: no-torch}]\nnodes:\n" +
		"  node-1: {faults: [{kind: no-torch}, {kind: remap-failed, gpu: 0}]}\n"
	if err := os.WriteFile(spec, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	says, launches := e.startCluster(3)
	type pod struct {
		id, rank int
		job      *drive.Job
	}
	pods, ended, running := map[int]pod{}, make(chan int), 3
	var relaunched []string
	limit := time.After(4 * time.Minute)
	for running > 0 {
		select {
		case line := <-launches:
			var p pod
			if _, err := fmt.Sscanf(line, "launch %d %d", &p.id, &p.rank); err != nil {
				t.Fatalf("the cluster's master says %q: %v\n%s", line, err, e.log.String())
			}
			environ := append(e.environ(p.rank),
				"NODE_ID="+strconv.Itoa(p.id), "MUSTER_FAKE="+spec, "MUSTER_FAKE_NODE=node-"+strconv.Itoa(p.id))
			p.job = drive.Start(t, environ, "dlrover-run", "--network-check", "--nnodes=3", "--nproc_per_node=1", "--no-python", "sh", "-c",
				shell+"echo done by "+strconv.Itoa(p.id))
			pods[p.id] = p
			if p.id > 2 {
				relaunched = append(relaunched, line)
			}
			says(p.id, p.rank, "run")
			go func() {
				_ = p.job.Wait()
				ended <- p.id
			}()
		case id := <-ended:
			p := pods[id]
			status := p.job.ProcessState.ExitCode()
			says(p.id, p.rank, strconv.Itoa(status))
			if want := map[bool]int{true: errhint.Faulty}[id == 1]; status != want {
				t.Fatalf("node %d with rank %d: status %d, want %d\n%s\n%s", id, p.rank, status, want, p.job.Err.String(), e.log.String())
			}
			if status == 0 {
				running--
			}
		case <-limit:
			t.Fatalf("%d nodes have not ended:\n%s", running, e.log.String())
		}
	}
	if strings.Join(relaunched, "; ") != "launch 3 1" {
		t.Errorf("the master has had started again: %q", relaunched)
	}
	if out := pods[3].job.Out.String(); !strings.Contains(out, "rank 1 of 3 in 1 at ") {
		t.Errorf("the node that was started instead is another rank:\n%s", out)
	}
	e.wantLog(`is down\. Reason: CheckFailure`)
}

// startCluster starts DLRover's master of a cluster. What it returns first tells that of a node, and the channel has what
// it wants done.
func (e *elasticJob) startCluster(nodes int) (says func(id, rank int, status string), launches chan string) {
	e.t.Helper()
	_, port, _ := strings.Cut(e.addr, ":")
	e.master = exec.CommandContext(context.WithoutCancel(e.t.Context()), filepath.Join(e.bin, "python"),
		drive.Script(e.t, "elasticjob", "cluster.py"), port, strconv.Itoa(nodes))
	e.master.Env, e.master.Stderr = drive.PeerEnviron(), &e.log
	in, err := e.master.StdinPipe()
	if err != nil {
		e.t.Fatal(err)
	}
	out, err := e.master.StdoutPipe()
	if err != nil {
		e.t.Fatal(err)
	}
	if err := e.master.Start(); err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(e.killMaster)
	launches = make(chan string, 100)
	go func() {
		for s := bufio.NewScanner(out); s.Scan(); {
			launches <- s.Text()
		}
	}()
	return func(id, rank int, status string) {
		_, _ = io.WriteString(in, fmt.Sprintln(id, rank, status)) // a master that has gone says so in its log
	}, launches
}
