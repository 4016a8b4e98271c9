package netprobe_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"muster/internal/check"
	"muster/netcheck/netprobe"
)

// fair is a pair in which nothing is wrong.
func fair(from, to string) netprobe.Facts {
	end := func(last byte) netprobe.End {
		return netprobe.End{Addr: netip.AddrFrom4([4]byte{10, 0, 0, last}), Iface: "eth0", MTU: 9000, Speed: 100000}
	}
	f := netprobe.Facts{
		From: netprobe.Node{Name: from}, To: netprobe.Node{Name: to}, Local: end(1), Remote: end(2), Took: 7 * time.Second,
		Reach: netprobe.Reach{Out: netprobe.Tries{Done: 10}, Back: netprobe.Tries{Done: 10}},
		RTT:   netprobe.RTT{Count: 1800, Min: 20e3, P50: 40e3, P99: 90e3, Max: 1e6},
		Clock: netprobe.Clock{Offset: -3 * time.Millisecond, Error: 10e3},
	}
	for _, n := range []int{1280, 1500, 4200, 9000} {
		f.MTU.Sizes = append(f.MTU.Sizes, netprobe.Size{Bytes: n, Out: netprobe.Passed, Back: netprobe.Passed})
	}
	for _, n := range []int{1, 4} {
		for _, d := range []netprobe.Direction{netprobe.Out, netprobe.Back} {
			f.Bulk = append(f.Bulk, netprobe.Bulk{
				Direction: d, Streams: n, Bytes: 3e9, Window: time.Second,
				Sent: &netprobe.Sent{Segments: 400000, Retransmitted: 40, MSS: 8948},
			})
		}
	}
	return f
}

func TestJudge(t *testing.T) {
	type facts = netprobe.Facts
	last := func(f *facts, out, back netprobe.Passage) {
		f.MTU.Sizes[3].Out, f.MTU.Sizes[3].Back = out, back
	}
	for _, c := range []struct {
		name   string
		spoil  func(*facts)
		limits netprobe.Limits
		nodes  int    // in a ring, 2 if 0
		want   string // "id STATUS words; ..." of what does not pass
	}{
		{name: "fair", spoil: func(*facts) {}},
		{name: "three tries may fail", spoil: func(f *facts) { f.Reach.Out.Failed = 3 }},
		{
			name: "the fourth warns", spoil: func(f *facts) { f.Reach.Out.Failed = 4; f.Reach.Out.Last = "no answer" },
			want: "net-reach WARN a to b: 4 of 10 tries failed, the last with: no answer",
		},
		{name: "unsteady is fine for some", spoil: func(f *facts) { f.Reach.Out.Failed = 9 }, limits: netprobe.Limits{FailedTries: -1}},
		{name: "no way back", spoil: func(f *facts) { f.Reach.Back.Failed = 10 }, want: "net-reach FAIL b to a"},
		{
			name: "the way back was not tried", spoil: func(f *facts) { f.Reach.Back = netprobe.Tries{Skip: "no port"} },
			want: "net-reach SKIP no port",
		},
		{name: "slow tail", spoil: func(f *facts) { f.RTT.P99 = 2001e3 }, want: "net-rtt WARN p99 2ms"},
		{name: "a limit of its own", spoil: func(f *facts) { f.RTT.P99 = 80e6 }, limits: netprobe.Limits{RTT: 100 * time.Millisecond}},
		{name: "far", nodes: 4, spoil: func(f *facts) { f.RTT.P50 = 161e3 }, want: "net-rtt WARN the median of all pairs is 40µs"},
		{name: "not that far", nodes: 4, spoil: func(f *facts) { f.RTT.P50 = 160e3 }},
		{name: "three nodes have no median", nodes: 3, spoil: func(f *facts) { f.RTT.P50 = 1e6 }},
		{
			name: "clock behind", spoil: func(f *facts) { f.Clock.Offset = -51 * time.Millisecond },
			want: "clock-offset WARN b is 51ms (± 10µs) behind",
		},
		{name: "clock far ahead", spoil: func(f *facts) { f.Clock.Offset = 3 * time.Second }, want: "clock-offset FAIL 2s"},
		{
			name:  "clock off by no more than is known",
			spoil: func(f *facts) { f.Clock.Offset, f.Clock.Error = 80*time.Millisecond, 40*time.Millisecond },
		},
		{name: "clock backwards", spoil: func(f *facts) { f.Clock.Skip = "ran backwards" }, want: "clock-offset SKIP ran backwards"},
		{
			name: "hole out", spoil: func(f *facts) { last(f, netprobe.Lost, netprobe.Untried) },
			want: "mtu-blackhole FAIL from a to b vanish",
		},
		{
			name: "hole back", spoil: func(f *facts) { last(f, netprobe.Passed, netprobe.Lost) },
			want: "mtu-blackhole FAIL from b to a vanish",
		},
		{name: "told", spoil: func(f *facts) { last(f, netprobe.TooBig, netprobe.Untried) }, want: "mtu-reduced WARN 9000"},
		{name: "told back", spoil: func(f *facts) { last(f, netprobe.Passed, netprobe.TooBig) }, want: "mtu-reduced WARN 9000"},
		{
			name: "no datagrams", spoil: func(f *facts) { f.MTU = netprobe.PathMTU{Skip: "filtered"} },
			want: "mtu-blackhole SKIP filtered; mtu-reduced SKIP filtered",
		},
		{name: "slow", spoil: func(f *facts) { f.Bulk[1].Bytes = 99e6 }, want: "net-bandwidth FAIL 99.0 MB/s in 1 stream from b to a"},
		{name: "nothing came", spoil: func(f *facts) { f.Bulk[0].Bytes = 0 }, want: "net-bandwidth FAIL 0 kB/s"},
		{
			name: "a floor of its own", spoil: func(f *facts) { f.Bulk[1].Bytes = 99e6 },
			limits: netprobe.Limits{Bandwidth: 10e6, SpeedShare: -1},
		},
		{
			name: "the odd one", nodes: 4, spoil: func(f *facts) { f.Bulk[2].Bytes = 1.4e9 },
			want: "net-bandwidth WARN the median of all pairs is 3.00 GB/s",
		},
		{name: "two nodes have no odd one", spoil: func(f *facts) { f.Bulk[2].Bytes = 1.4e9 }},
		{name: "less than the interface could", spoil: func(f *facts) { f.Bulk[2].Bytes = 1.1e9 }, want: "net-bandwidth WARN 100000 Mb/s"},
		{name: "a slow interface is no fault", spoil: func(f *facts) {
			f.Remote.Speed = 10000
			for i := range f.Bulk {
				f.Bulk[i].Bytes = 1e9
			}
		}},
		{name: "an interface that tells no speed", spoil: func(f *facts) { f.Bulk[0].Bytes, f.Local.Speed = 2e8, 0 }},
		{name: "left out", spoil: func(f *facts) { f.Bulk, f.NoBulk = f.Bulk[:2], "the budget" }, want: "net-bandwidth SKIP the budget"},
		{
			name: "again and again", spoil: func(f *facts) { f.Bulk[3].Sent.Retransmitted = 401 },
			want: "net-retrans WARN 401 of 400000 segments were sent again in 4 streams from b to a",
		},
		{name: "that much is fine", spoil: func(f *facts) { f.Bulk[3].Sent.Retransmitted = 400 }},
		{name: "a tunnel", spoil: func(f *facts) { f.Bulk[0].Sent.MSS = 8900 }, want: "net-mss WARN the interfaces allow 8948"},
		{name: "the smaller interface counts", spoil: func(f *facts) { f.Bulk[0].Sent.MSS, f.Remote.MTU = 1448, 1500 }},
		{name: "the kernel does not say", spoil: func(f *facts) {
			for i := range f.Bulk {
				f.Bulk[i].Sent = nil
			}
		}, want: "net-retrans SKIP does not tell; net-mss SKIP does not tell"},
		{name: "died in between", spoil: func(f *facts) {
			*f = netprobe.Facts{From: f.From, To: f.To, Reach: f.Reach, Error: "echo 7 did not come back", Hint: "alive?"}
		}, want: "net-reach FAIL and then: echo 7; net-rtt SKIP echo 7; clock-offset SKIP echo 7; mtu-blackhole SKIP echo 7; " +
			"mtu-reduced SKIP echo 7; net-bandwidth SKIP echo 7; net-retrans SKIP echo 7; net-mss SKIP echo 7"},
	} {
		t.Run(c.name, func(t *testing.T) {
			all := []netprobe.Facts{fair("a", "b")}
			c.spoil(&all[0])
			for i := 1; c.nodes > 2 && i < c.nodes; i++ {
				all = append(all, fair(string(rune('a'+i)), string(rune('a'+(i+1)%c.nodes))))
			}
			want := map[string][2]string{}
			for item := range strings.SplitSeq(c.want, "; ") {
				if f := strings.SplitN(item, " ", 3); len(f) == 3 {
					want[f[0]] = [2]string{f[1], f[2]}
				}
			}
			seen := map[string]bool{}
			for _, r := range netprobe.Judge(all, c.limits) {
				if r.Source != "net" || r.Subject.Node == "" || r.Subject.Pair == "" || r.Reason == "" {
					t.Errorf("it says too little: %+v", r)
				}
				if _, err := check.Lookup(r.ID); err != nil {
					t.Error(err)
				}
				if r.Status == check.Pass {
					continue
				}
				if r.Status > check.Pass && r.Try == "" {
					t.Errorf("nothing to try: %+v", r)
				}
				w := want[r.ID]
				if r.Subject.Pair != "a->b" || r.Status.String() != w[0] || !strings.Contains(r.Reason+" "+r.Limit, w[1]) {
					t.Errorf("%s: %+v, want %q", c.name, r, w)
				}
				seen[r.ID] = true
			}
			for id := range want {
				if !seen[id] {
					t.Errorf("nothing of %s", id)
				}
			}
		})
	}
}

// TestJudgePolicy: results are of a kind that policies know.
func TestJudgePolicy(t *testing.T) {
	f := fair("a", "b")
	f.Clock.Offset = time.Minute
	p := check.Policy{Status: map[string]check.Status{"clock-offset": check.Warn}}
	if r := p.Judge("a", netprobe.Judge([]netprobe.Facts{f}, netprobe.Limits{})); r.Status != check.Warn {
		t.Errorf("%+v", r)
	}
	w, err := check.ParseWaiver("clock-offset@a")
	if err != nil {
		t.Fatal(err)
	}
	p = check.Policy{Waive: []check.Waiver{w}, Strict: true}
	if r := p.Judge("a", netprobe.Judge([]netprobe.Facts{f}, netprobe.Limits{})); r.Status != check.Pass {
		t.Errorf("%+v", r)
	}
}

// TestNodes: each node once, and none of which nothing is known.
func TestNodes(t *testing.T) {
	lost := netprobe.Facts{From: netprobe.Node{Name: "b"}, To: netprobe.Node{Name: "10.0.0.9:1"}}
	got := ""
	for _, n := range netprobe.Nodes([]netprobe.Facts{fair("a", "b"), fair("c", "a"), lost}) {
		got += fmt.Sprint(n.Name, " ")
	}
	if got != "a b c " {
		t.Error(got)
	}
}
