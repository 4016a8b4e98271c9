package devicecheck_test

import (
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"muster/internal/testutil"
	"muster/netcheck/devicecheck"
)

func TestSwitchbox(t *testing.T) {
	t.Parallel()
	ends := func(a, b int) *devicecheck.Pair { return &devicecheck.Pair{a, b} }
	links := &devicecheck.FakeLinks{Count: 12, Links: []devicecheck.FakeLink{
		{MBps: 40000, Peer: new(true)},
		{Ends: ends(2, 4), MBps: 3000},
		{Ends: ends(3, 5), Corrupt: true, OneWay: true},
		{Ends: ends(6, 7), Hang: true, OneWay: true},
		{Ends: ends(1, 8), MBps: 12000, HostMBps: 15000, Peer: new(false)},
		{Ends: ends(9, 8), Error: "CUDA error: an illegal memory access\nwas encountered"},
		{Ends: ends(10, 9), MBps: 20000, OneWay: true},
	}}
	n := open(t, forked(t, devicecheck.Config{
		Python: []string{testutil.Torch(t)}, Fake: links, Sample: 20 * time.Millisecond, LinkLimit: 15 * time.Second,
	}))
	pairs := []devicecheck.Pair{{0, 1}, {2, 4}, {3, 5}, {7, 6}, {8, 1}, {8, 9}, {9, 10}, {11, 12}, {10, 11}}
	if _, err := n.Local(t.Context()); err == nil {
		t.Error("a program without devices tested one")
	}
	results, err := n.Switchbox(t.Context(), pairs)
	if err != nil || len(results) != len(pairs) {
		t.Fatalf("%+v, %v", results, err)
	}
	for i, r := range results {
		if r.Pair != pairs[i] {
			t.Errorf("result %d is of %v", i, r.Pair)
		}
		switch r.Pair {
		case devicecheck.Pair{7, 6}:
			want(t, r.Err, -1, devicecheck.Hung, "pair 7:6", "")
		case devicecheck.Pair{8, 9}:
			want(t, r.Err, -1, devicecheck.Failed, "pair 8:9", "CUDA error: an illegal memory access")
		case devicecheck.Pair{11, 12}:
			want(t, r.Err, -1, devicecheck.Failed, "pair 11:12", "there is no device 12: the description has 12")
		default:
			if r.Err != nil {
				t.Errorf("%v: %v", r.Pair, r.Err)
				continue
			}
			there, back := 40000.0, 40000.0
			switch r.Pair {
			case devicecheck.Pair{2, 4}:
				there, back = 3000, 3000
			case devicecheck.Pair{8, 1}:
				there, back = 12000, 12000
			case devicecheck.Pair{9, 10}:
				back = 20000
			}
			if !near(r.There.MBps, there) || !near(r.Back.MBps, back) || r.MBps() > r.There.MBps ||
				r.Corrupt() != (r.Pair == devicecheck.Pair{3, 5}) ||
				r.Back.Corrupt || r.ViaHost() != (r.Pair == devicecheck.Pair{8, 1}) {
				t.Errorf("%+v", r)
			}
		}
	}
}

// TestPairTakesASecondAtMost counts what a pair costs on a clock that only copies move: two verified copies of 256 MiB
// each way where the link is slow, and never more than a second at 2 GB/s or more. Nothing runs beside it: the process
// trees of other tests kill all that descends from this process.
func TestPairTakesASecondAtMost(t *testing.T) {
	const program = `import json, os, sys
sys.path.insert(0, "../../internal/python/netcheck")
import muster_links, torch

class Clock:
    now = 0.0
    def monotonic(self): return self.now
    def sleep(self, seconds): self.now += seconds

for mbps in (2000, 20000, 400000):
    os.environ[muster_links.FAKE] = json.dumps({"count": 2, "links": [{"mbps": mbps}]})
    clock, copies, checks = Clock(), {True: 0, False: 0}, []
    muster_links.time = clock
    class Counted(muster_links.Paced):
        def take(self, target, source, size, mbps):
            assert size in (256 << 20, 64 << 20)
            copies[size == 256 << 20] += 1
            super().take(target, source, size, mbps)
        def wrong(self):
            checks.append(super().wrong())
            return checks[-1]
    measured, muster_links.Paced = muster_links.Paced, Counted
    for ends in ((0, 1), (1, 0)):
        muster_links.measure(torch, None, *ends, float(sys.argv[1]))
    muster_links.Paced = measured
    print(mbps, copies[True], copies[False], len(checks), sum(checks), clock.now < 1)
`
	out, err := exec.CommandContext(t.Context(), testutil.Torch(t), "-c", program,
		fmt.Sprint(devicecheck.DefaultSample.Seconds())).CombinedOutput()
	var slow, usual, fast [4]int // copies of 256 MiB and of 64 MiB, how often they were compared, how many numbers were wrong
	var ok [3]string
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	for i, counts := range []*[4]int{&slow, &usual, &fast} {
		var mbps int
		if i < len(lines) {
			_, _ = fmt.Sscan(lines[i], &mbps, &counts[0], &counts[1], &counts[2], &counts[3], &ok[i])
		}
	}
	if err != nil || slow[0] != 4 || slow[2] != 4 || slow[3]+usual[3]+fast[3] != 0 || usual[2] != 4 || fast[2] != 4 ||
		ok != [3]string{"True", "True", "True"} {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestLinksOfWhichNothingIsSaid: a description with devices alone has links, as fast as the documentation promises.
func TestLinksOfWhichNothingIsSaid(t *testing.T) {
	t.Parallel()
	n := open(t, forked(t, devicecheck.Config{
		Python: []string{testutil.Torch(t)}, Fake: &devicecheck.FakeLinks{Count: 2}, Sample: 20 * time.Millisecond,
	}))
	testutil.Eventually(t, time.Minute, "a look for which there was a core shows both rates", func() bool {
		results, err := n.Switchbox(t.Context(), []devicecheck.Pair{{0, 1}})
		if err != nil || len(results) != 1 || results[0].Err != nil {
			t.Fatalf("%+v, %v", results, err)
		}
		way := results[0].There
		if way.MBps >= 1.1*50000 || way.HostMBps >= 1.1*20000 {
			t.Fatalf("%+v", way)
		}
		return near(way.MBps, 50000) && near(way.HostMBps, 20000)
	})
}

// near allows for a busy machine, which makes any link slower.
func near(got, want float64) bool { return 0.2*want < got && got < 1.1*want }

func TestViaHost(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		mbps, host float64
		peer       *bool
		want       bool
	}{
		{mbps: 20000, host: 20000, want: true},
		{mbps: 10000, host: 20000, want: true},
		{mbps: 3000, host: 20000}, // slower than any copy through the host
		{mbps: 40000, host: 20000},
		{mbps: 40000, host: 20000, peer: new(false), want: true},
		{mbps: 20000, host: 20000, peer: new(true)},
	} {
		if got := (devicecheck.Way{MBps: c.mbps, HostMBps: c.host, Peer: c.peer}).ViaHost(); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

// One process of torch_npu connects eight devices.
func TestFitting(t *testing.T) {
	t.Parallel()
	pairs := []devicecheck.Pair{{0, 1}, {2, 3}, {4, 5}, {6, 7}, {0, 7}, {8, 9}, {1, 2}}
	for devices, want := range map[int]int{1: 1, 2: 1, 3: 1, 4: 2, 7: 3, 8: 5, 9: 5, 10: 7} {
		if got := devicecheck.Fitting(pairs, devices); got != want {
			t.Errorf("%d devices: %d pairs, not %d", devices, got, want)
		}
	}
}

// A pair costs two copies each way beside the import of torch, which is done once however often pairs are tested; and
// what is told of the progress is what is done.
func TestSwitchboxCost(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var steps []string
	n := open(t, forked(t, devicecheck.Config{
		Python: []string{pythons(t)["oldest"]}, LinkLimit: 15 * time.Second, // 16 copies each way would take longer
		Fake: &devicecheck.FakeLinks{Count: 4, Links: []devicecheck.FakeLink{{Ends: &devicecheck.Pair{0, 1}, MBps: 400}}},
	}))
	n.steps = func(_ int, step string) { // no process runs before the first command
		mu.Lock()
		defer mu.Unlock()
		steps = append(steps, step)
	}
	for _, pairs := range [][]devicecheck.Pair{{{0, 1}, {2, 3}}, {{0, 2}, {1, 2}}} {
		results, err := n.Switchbox(t.Context(), pairs)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range results {
			if r.Err != nil {
				t.Errorf("%v: %v", r.Pair, r.Err)
			}
		}
	}
	mu.Lock()
	defer mu.Unlock()
	want := []string{"importing torch", "pair 0:1", "pair 2:3", "pair 0:2", "pair 1:2"}
	if diff := cmp.Diff(want, steps); diff != "" {
		t.Errorf("steps (-want +got):\n%s", diff)
	}
}

// A single number that arrives wrong is found, wherever it is.
func TestSwitchboxLooksAtAll(t *testing.T) {
	t.Parallel()
	n := open(t, forked(t, devicecheck.Config{
		Python: []string{pythons(t)["oldest"]},
		Fake:   &devicecheck.FakeLinks{Count: 2, Links: []devicecheck.FakeLink{{Corrupt: true}}},
	}))
	results, err := n.Switchbox(t.Context(), []devicecheck.Pair{{0, 1}})
	if err != nil || len(results) != 1 || results[0].Err != nil || !results[0].Corrupt() {
		t.Errorf("%+v, %v", results, err)
	}
}
