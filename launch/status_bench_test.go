package launch

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"muster/launch/control"
	"muster/launch/report"
	"muster/launch/rundir"
	"muster/rendezvous/tcpstore"
)

// releasedMuster is the binary of make build.
func releasedMuster(b *testing.B) string {
	b.Helper()
	path, err := filepath.Abs("../bin/muster")
	if err == nil {
		_, err = os.Stat(path)
	}
	if err != nil {
		b.Skipf("make build first: %v", err)
	}
	return path
}

// storeProcess is a store as a coordinator serves it, in a process of its own.
func storeProcess(b *testing.B) (addr string, pid int) {
	b.Helper()
	cmd := exec.CommandContext(b.Context(), releasedMuster(b), "store", "--bind", "127.0.0.1:0")
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	addr, err = bufio.NewReader(out).ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	return strings.TrimSpace(addr), cmd.Process.Pid
}

// simulatedNode is what a node of a simulated world says of itself, whose workers are at a step.
func simulatedNode(node, nodes, each int, step int64, began time.Time) report.Status {
	took, cpu, bytes := 0.25, 7.5, int64(1<<30)
	d := report.Status{
		Version: 1, RunID: "train-7", Name: "train.py", Phase: report.PhaseRunning, Nodes: nodes, WorldSize: nodes * each, GroupRank: node,
		StartTime: &began, Conditions: []report.Condition{},
		Tasks: []report.Task{{
			Node: "node-" + strconv.Itoa(node), Ranks: fmt.Sprintf("%d-%d", node*each, node*each+each-1), Phase: report.PhaseRunning,
		}},
	}
	for i := range each {
		d.Ranks = append(d.Ranks, report.Rank{
			Node: d.Tasks[0].Node, Rank: node*each + i, LocalRank: i, PID: 4242 + i, Phase: report.PhaseRunning, StartTime: &began,
			CPUSeconds: &cpu, ResidentBytes: &bytes, UsageTime: &began, LastOutput: &began,
			Progress: &report.Progress{Step: step, Total: 1e6, StepSeconds: &took, Values: map[string]float64{"loss": 2.5}, Time: began},
		})
	}
	return d
}

// simulatedWorld answers as the first node of a world whose other nodes have said how they stand.
type simulatedWorld struct {
	served
	own report.Status
}

func (w simulatedWorld) Status(ctx context.Context, scope control.Scope) (report.Status, error) {
	if scope == control.Node {
		return w.own, nil
	}
	return w.s.world(ctx, w.own), nil
}

// BenchmarkStatusOfManyRanks is the time of the command muster status of simulated worlds, from its start to its end.
func BenchmarkStatusOfManyRanks(b *testing.B) {
	binary := releasedMuster(b)
	for _, size := range []struct{ nodes, each int }{{3, 1}, {64, 64}, {512, 8}} {
		addr, _ := storeProcess(b)
		client, err := tcpstore.Dial(b.Context(), addr, tcpstore.ClientConfig{})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = client.Close() })
		began := moment(time.Now())
		for node := range size.nodes {
			text, err := json.Marshal(heardStatus{Status: simulatedNode(node, size.nodes, size.each, 1, began), At: began})
			if err == nil {
				err = client.Set(b.Context(), statusKey+strconv.Itoa(node), text)
			}
			if err != nil {
				b.Fatal(err)
			}
		}
		runtimeDir := b.TempDir()
		if err := os.Chmod(runtimeDir, 0o700); err != nil {
			b.Fatal(err)
		}
		dir, err := rundir.Make(filepath.Join(rundir.FindPlaces(runtimeDir, b.TempDir()).Parent, rundir.Name("train-7")), zerolog.Nop())
		if err != nil {
			b.Fatal(err)
		}
		s := &Steering{others: map[int]heardStatus{}, board: roundBoard{client, 0, size.nodes}}
		server, err := control.Serve(control.Config{
			Dir: dir.Path, Log: zerolog.Nop(), Served: simulatedWorld{served{s}, simulatedNode(0, size.nodes, size.each, 1, began)},
			Muster: control.Muster{Role: control.Agent, PID: os.Getpid(), RunDir: dir.Path},
		})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = server.Close() })
		for _, form := range []string{"table", "wide", "json", "yaml"} {
			b.Run(fmt.Sprintf("%dx%d/%s", size.nodes, size.each, form), func(b *testing.B) {
				args := []string{"status"}
				if form != "table" {
					args = append(args, "-o", form)
				}
				for b.Loop() {
					var out bytes.Buffer
					cmd := exec.CommandContext(b.Context(), binary, args...)
					cmd.Env = []string{"XDG_RUNTIME_DIR=" + runtimeDir, "HOME=/"}
					cmd.Stdout, cmd.Stderr = &out, os.Stderr
					if err := cmd.Run(); err != nil {
						b.Fatal(err)
					}
					if !bytes.Contains(out.Bytes(), []byte("node-"+strconv.Itoa(size.nodes-1))) {
						b.Fatalf("the last node is missing in %d bytes", out.Len())
					}
				}
				b.ReportMetric(float64(b.Elapsed().Milliseconds())/float64(b.N), "ms/command")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}
