package netprobe_test

import (
	"testing"
	"time"

	"muster/internal/check"
	"muster/internal/testutil"
	"muster/netcheck/netprobe"
)

// rehearsed probes over loopback, between two nodes whose network is made up.
func rehearsed(t *testing.T, here, there netprobe.Medium, path netprobe.Path, change func(*netprobe.Config)) netprobe.Facts {
	t.Helper()
	mine, theirs := config("here"), config("there")
	mine.Streams, mine.Tries, mine.Echoes = []int{}, 2, 20
	here.Path = func(peer string) netprobe.Path {
		if peer != "there" {
			t.Errorf("asked for the way to %q", peer)
		}
		return path
	}
	mine.Peer, mine.Medium, theirs.Medium = "there", &here, &there
	if change != nil {
		change(&mine)
	}
	mine.Serve = serve(t, mine)
	return pair(t, mine, serve(t, theirs))
}

// streams has a probe measure one.
func streams(c *netprobe.Config) { c.Streams = []int{1} }

// TestMedium: each fault of a network that is made up leads to the verdict that it would have in earnest, and to none
// just on the passing side. Limits of time are such that a busy machine keeps them.
func TestMedium(t *testing.T) {
	testutil.Long(t)
	t.Parallel()
	type medium = netprobe.Medium
	type path = netprobe.Path
	calm := netprobe.Limits{
		RTT: 700 * time.Millisecond, RTTFactor: -1, Bandwidth: 5e6, BandwidthShare: -1, SpeedShare: -1,
		Retransmitted: 0.1,
	} // a busy kernel sends again what was not lost
	jumbo := medium{Iface: "eth7", MTU: 9000, Speed: 1000}
	for _, c := range []struct {
		name        string
		here, there medium
		path        path
		change      func(*netprobe.Config)
		id          string
		want        check.Status
	}{
		{name: "a clock ahead", there: medium{Clock: 3 * time.Second}, id: "clock-offset", want: check.Fail},
		{name: "our clock behind", here: medium{Clock: -3 * time.Second}, id: "clock-offset", want: check.Fail},
		{
			name: "both alike", here: medium{Clock: 3 * time.Second}, there: medium{Clock: 3 * time.Second}, id: "clock-offset",
			want: check.Pass,
		},
		{name: "a clock nearly right", there: medium{Clock: 40 * time.Millisecond}, id: "clock-offset", want: check.Pass},
		{name: "far away", path: path{RTT: 800 * time.Millisecond}, id: "net-rtt", want: check.Warn},
		{name: "not that far", path: path{RTT: 50 * time.Millisecond}, id: "net-rtt", want: check.Pass},
		{
			name: "nobody answers", path: path{Unreachable: true}, change: func(c *netprobe.Config) { c.Patience = 200 * time.Millisecond },
			id: "net-reach", want: check.Fail,
		},
		{name: "everybody answers", id: "net-reach", want: check.Pass},
		{name: "packets vanish", here: jumbo, there: jumbo, path: path{MTU: 8999, Quiet: true}, id: "mtu-blackhole", want: check.Fail},
		{name: "none vanishes", here: jumbo, there: jumbo, path: path{MTU: 9000, Quiet: true}, id: "mtu-blackhole", want: check.Pass},
		{name: "packets are refused", here: jumbo, there: jumbo, path: path{MTU: 8999}, id: "mtu-reduced", want: check.Warn},
		{name: "none is refused", here: jumbo, there: jumbo, path: path{MTU: 9000}, id: "mtu-reduced", want: check.Pass},
		{name: "small segments", here: jumbo, there: jumbo, path: path{MTU: 8999}, change: streams, id: "net-mss", want: check.Warn},
		{name: "large segments", here: jumbo, there: jumbo, path: path{MTU: 9000}, change: streams, id: "net-mss", want: check.Pass},
		{name: "a narrow way", path: path{Rate: 2e6}, change: streams, id: "net-bandwidth", want: check.Fail},
		{name: "a way wide enough", path: path{Rate: 80e6}, change: streams, id: "net-bandwidth", want: check.Pass},
		{name: "segments are lost", path: path{Loss: 0.12}, change: streams, id: "net-retrans", want: check.Warn},
		{name: "few are lost", path: path{Loss: 0.08}, change: streams, id: "net-retrans", want: check.Pass},
		{name: "all datagrams are lost", path: path{Loss: 1}, id: "mtu-blackhole", want: check.Skip},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			measured(t, func(r reporter) {
				f := rehearsed(t, c.here, c.there, c.path, c.change)
				worst := check.Skip
				for _, found := range netprobe.Judge([]netprobe.Facts{f}, calm) {
					if found.ID == c.id {
						worst = max(worst, found.Status)
					}
				}
				if worst != c.want {
					r.Errorf("%s: %v, want %v\n%s", c.id, worst, c.want, pretty(f))
				}
				for _, b := range f.Bulk {
					if c.path.Rate > 0 && b.Rate() > 1.5*c.path.Rate {
						r.Errorf("%s: %.0f bytes a second of %.0f", b.Direction, b.Rate(), c.path.Rate)
					}
				}
				if c.here.Iface != "" && (f.Local.Iface != "eth7" || f.Remote.MTU != 9000 || f.Remote.Speed != 1000) {
					r.Errorf("ends: %+v %+v", f.Local, f.Remote)
				}
			})
		})
	}
}

// TestMediumRoundTrips: each round trip is late by the whole way, also where there is only time for a few of them, and
// clocks are not taken for apart by it.
func TestMediumRoundTrips(t *testing.T) {
	t.Parallel()
	for _, rtt := range []time.Duration{100 * time.Millisecond, 400 * time.Millisecond} {
		t.Run(rtt.String(), func(t *testing.T) {
			t.Parallel()
			f := rehearsed(t, netprobe.Medium{}, netprobe.Medium{}, netprobe.Path{RTT: rtt}, nil)
			if f.RTT.Min < rtt || f.Clock.Offset.Abs() > f.Clock.Error || f.Error != "" {
				t.Errorf("%s", pretty(f))
			}
		})
	}
}

// TestMediumEnds: streams at a crawl end when their time is over, and not when what they were given has gone through,
// which takes minutes.
func TestMediumEnds(t *testing.T) {
	testutil.Long(t)
	t.Parallel()
	f := rehearsed(t, netprobe.Medium{}, netprobe.Medium{}, netprobe.Path{Rate: 2000, RTT: time.Millisecond},
		func(c *netprobe.Config) { c.Streams = []int{4} })
	if f.Took > time.Minute || f.Error != "" {
		t.Errorf("%s", pretty(f))
	}
}
