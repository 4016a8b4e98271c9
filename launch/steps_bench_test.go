package launch

import (
	"encoding/json"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"muster/launch/report"
	"muster/rendezvous/tcpstore"
)

// BenchmarkStepsOfManyNodes has 1,024 nodes tell their steps as often as they are told to, for ten seconds, to a store as a
// coordinator serves it. Processor time is that of the store and of all its clients, which are in this process, too.
func BenchmarkStepsOfManyNodes(b *testing.B) {
	const nodes, lasts = 1024, 10 * time.Second
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil || limit.Cur < 2*nodes+100 {
		b.Skipf("%d descriptors, %v", limit.Cur, err)
	}
	server, err := tcpstore.Listen(tcpstore.ServerConfig{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = server.Close() })
	began := moment(time.Now())
	status := func(node int, step int64) []byte {
		took, cpu, bytes := 0.25, 7.5, int64(1<<30)
		d := report.Status{
			Version: 1, RunID: "train-7", Name: "train.py", Phase: report.PhaseRunning, Nodes: nodes, WorldSize: nodes, GroupRank: node,
			StartTime: &began, Tasks: []report.Task{{
				Node: "node-" + strconv.Itoa(node), Ranks: strconv.Itoa(node),
				Phase: report.PhaseRunning,
			}},
			Ranks: []report.Rank{{
				Node: "node-" + strconv.Itoa(node), Rank: node, PID: 4242, Phase: report.PhaseRunning, StartTime: &began, CPUSeconds: &cpu,
				ResidentBytes: &bytes, UsageTime: &began,
				Progress: &report.Progress{
					Step: step, Total: 1e6, StepSeconds: &took, Values: map[string]float64{"loss": 2.5},
					Time: began,
				},
			}},
		}
		text, err := json.Marshal(heardStatus{Status: d, At: moment(time.Now())})
		if err != nil {
			b.Error(err)
		}
		return text
	}
	every := ProgressEvery(nodes, len(status(0, 1)))
	var clients []*tcpstore.Client
	for range nodes {
		c, err := tcpstore.Dial(b.Context(), server.Addrs()[0].String(), tcpstore.ClientConfig{})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = c.Close() })
		clients = append(clients, c)
	}
	for b.Loop() {
		before, started := cpuTime(b), time.Now()
		said := make([]int, nodes) // bytes of each node
		var all sync.WaitGroup
		for i, c := range clients {
			all.Go(func() {
				time.Sleep(time.Duration(i) * every / nodes) // they do not keep time with each other
				for step := int64(1); time.Since(started) < lasts; step++ {
					text := status(i, step)
					if err := c.Set(b.Context(), statusKey+strconv.Itoa(i), text); err != nil {
						b.Error(err)
						return
					}
					said[i] += len(text)
					time.Sleep(every)
				}
			})
		}
		all.Wait()
		sum := 0
		for _, n := range said {
			sum += n
		}
		took := time.Since(started).Seconds()
		b.ReportMetric((cpuTime(b)-before).Seconds()/took*100, "%core")
		b.ReportMetric(float64(sum)/took/1e6, "MB/s")
		b.ReportMetric(every.Seconds(), "s/say")
	}
}

// cpuTime is the processor time of this process so far.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
