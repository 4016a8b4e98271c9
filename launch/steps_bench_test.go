package launch

import (
	"encoding/json"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"muster/internal/proc"
	"muster/rendezvous/tcpstore"
)

// BenchmarkStepsOfManyNodes has 1,024 nodes tell their steps as often as they are told to, for ten seconds, to a store as a
// coordinator serves it, in a process of its own, of which the processor time is. Then somebody looks at all of them, as an
// open page does once a second: that has the processor time of the node that is asked, too.
func BenchmarkStepsOfManyNodes(b *testing.B) {
	const nodes, lasts, looks = 1024, 10 * time.Second, 10
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil || limit.Cur < 2*nodes+100 {
		b.Skipf("%d descriptors, %v", limit.Cur, err)
	}
	addr, pid := storeProcess(b)
	began := moment(time.Now())
	status := func(node int, step int64) []byte {
		text, err := json.Marshal(heardStatus{Status: simulatedNode(node, nodes, 1, step, began), At: moment(time.Now())})
		if err != nil {
			b.Error(err)
		}
		return text
	}
	every := ProgressEvery(nodes, len(status(0, 1)))
	var clients []*tcpstore.Client
	for range nodes {
		c, err := tcpstore.Dial(b.Context(), addr, tcpstore.ClientConfig{})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = c.Close() })
		clients = append(clients, c)
	}
	for b.Loop() {
		before, started := cpuTime(b, pid), time.Now()
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
		b.ReportMetric((cpuTime(b, pid)-before).Seconds()/took*100, "%core")
		b.ReportMetric(float64(sum)/took/1e6, "MB/s")
		b.ReportMetric(every.Seconds(), "s/say")
		s := &Steering{others: map[int]heardStatus{}, board: roundBoard{clients[0], 0, nodes}}
		own := simulatedNode(0, nodes, 1, 1, began)
		before = cpuTime(b, os.Getpid()) // with that of the store, its child
		for range looks {
			if d := s.world(b.Context(), own); len(d.Ranks) != nodes {
				b.Fatalf("%d ranks", len(d.Ranks))
			}
		}
		b.ReportMetric((cpuTime(b, os.Getpid())-before).Seconds()/looks*100, "%core-to-look")
	}
}

// cpuTime is the processor time of a process and its children so far.
func cpuTime(b *testing.B, pid int) time.Duration {
	b.Helper()
	used, err := proc.UsageOf([]int{pid})
	if err != nil || len(used) != 1 {
		b.Fatalf("process %d: %v, %v", pid, used, err)
	}
	return used[pid].CPU
}
