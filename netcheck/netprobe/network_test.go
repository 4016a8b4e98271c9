package netprobe_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"muster/internal/check"
	"muster/internal/testutil"
	"muster/netcheck/netprobe"
)

// onHost runs this test binary on a host, in a role of TestMain's.
func onHost(t *testing.T, h *testutil.Host, role string, o order) *testutil.HostCommand {
	t.Helper()
	line, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	cmd := h.Command(os.Args[0])
	cmd.Env = append(cmd.Env, "NETPROBE_ROLE="+role)
	cmd.Stderr = os.Stderr
	if role == "serve" {
		stdin, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { stdin.Close() })
		go stdin.Write(append(line, '\n')) // a line is less than what a pipe holds
	} else {
		cmd.Stdin = strings.NewReader(string(line) + "\n")
	}
	return cmd
}

// between probes from one host to another one's address.
func between(t *testing.T, from, to *testutil.Host, addr netip.Addr, change func(*netprobe.Config)) netprobe.Facts {
	t.Helper()
	there, here := config(to.Name), config(from.Name)
	there.Listen, here.Listen, there.Host, here.Host = ":0", ":0", addr.String(), from.Addrs[0][0].String()
	if change != nil {
		change(&here)
	}
	server := onHost(t, to, "serve", order{Config: there})
	out, err := server.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	text, err := onHost(t, from, "pair", order{Config: here, Addr: strings.TrimSpace(line)}).Output()
	if err != nil {
		t.Fatal(err)
	}
	var f netprobe.Facts
	if err := json.Unmarshal(text, &f); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	if err := server.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	server.Wait()
	t.Logf("took %v", f.Took)
	return f
}

// verdict returns the worst result under an id.
func verdict(results []check.Result, id string) check.Result {
	var worst check.Result
	for _, r := range results {
		if r.ID == id && (worst.ID == "" || r.Status > worst.Status) {
			worst = r
		}
	}
	return worst
}

// whatever is a status that a test does not look at.
const whatever check.Status = -1

// wantVerdicts compares the worst result under each id; ids that are not named must pass, but for those that a busy
// machine decides: round trips and retransmissions.
func wantVerdicts(t reporter, f netprobe.Facts, limits netprobe.Limits, want map[string]check.Status) {
	t.Helper()
	results := netprobe.Judge([]netprobe.Facts{f}, limits)
	for _, id := range []string{
		"net-reach", "net-rtt", "clock-offset", "mtu-blackhole", "mtu-reduced", "net-bandwidth", "net-retrans", "net-mss",
	} {
		r := verdict(results, id)
		status, named := want[id]
		if !named {
			status = check.Pass
			if id == "net-rtt" || id == "net-retrans" {
				continue
			}
		}
		if r.Status != status && status != whatever {
			t.Errorf("%s: %v, want %v: %s", id, r.Status, status, r.Reason)
		}
		if r.ID == "" || r.Reason == "" || r.Status > check.Pass && (r.Try == "" || r.Limit == "") && id != "net-reach" {
			t.Errorf("it says too little: %+v", r)
		}
		if r.Status > check.Pass {
			t.Logf("%s %v: %s; try: %s (%s, limit %s)", r.ID, r.Status, r.Reason, r.Try, r.Value, r.Limit)
		}
	}
	if t.Failed() {
		t.Logf("%s", pretty(f))
	}
}

// easy is for rules that depend on how fast the machine of the test is.
var easy = netprobe.Limits{Bandwidth: 1e6, SpeedShare: -1}

// filter has the host drop some of what arrives.
func filter(h *testutil.Host, rule string) {
	cmd := h.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader("table inet filter {\n chain input {\n  type filter hook input priority 0;\n  " + rule + "\n }\n}\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		panic(fmt.Sprintf("%s: %v\n%s", rule, err, out)) // the test is wrong
	}
}

// TestLinks probes links with one thing wrong, over IPv4 and IPv6.
func TestLinks(t *testing.T) {
	testutil.Long(t)
	for _, c := range []struct {
		name   string
		spoil  func(hosts []*testutil.Host)
		change func(*netprobe.Config)
		limits netprobe.Limits
		want   map[string]check.Status
		look   func(reporter, netprobe.Facts)
	}{
		{
			name: "sound", limits: easy, want: map[string]check.Status{},
			look: func(t reporter, f netprobe.Facts) {
				if f.Local.Iface != "eth0" || f.Local.MTU != 1500 || f.Remote.Iface != "eth0" || f.MTU.Passes() != 1500 ||
					len(f.Bulk) != 2 {
					t.Errorf("%s", pretty(f))
				}
				// Both hosts have the clock of this machine.
				if f.Clock.Offset.Abs() > f.Clock.Error+time.Microsecond {
					t.Errorf("%+v", f.Clock)
				}
			},
		},
		{
			name: "jumbo", spoil: func(hosts []*testutil.Host) {
				hosts[0].MTU(9000, 9000)
				hosts[1].MTU(9000, 9000)
			}, limits: easy, want: map[string]check.Status{},
			look: func(t reporter, f netprobe.Facts) {
				if f.MTU.Passes() != 9000 || len(f.MTU.Sizes) != 4 {
					t.Errorf("%+v", f.MTU)
				}
			},
		},
		{
			name: "slow", spoil: func(hosts []*testutil.Host) { hosts[1].Rate(80_000) },
			change: func(c *netprobe.Config) { c.WarmUp, c.Timed = 500*time.Millisecond, time.Second }, // past what the bucket lets through
			want:   map[string]check.Status{"net-bandwidth": check.Fail},
			look: func(t reporter, f netprobe.Facts) {
				for _, b := range f.Bulk {
					if b.Rate() < 2e6 || b.Rate() > 11e6 {
						t.Errorf("%v B/s of 10 MB/s: %+v", b.Rate(), b)
					}
				}
			},
		},
		{
			name: "lossy", spoil: func(hosts []*testutil.Host) { hosts[1].Loss(2) },
			// A lost segment costs 200 ms and more, so there are fewer round trips, and no time limit on connecting.
			change: func(c *netprobe.Config) { c.Timed = time.Second },
			limits: netprobe.Limits{Bandwidth: -1, SpeedShare: -1, FailedTries: -1},
			want:   map[string]check.Status{"net-retrans": check.Warn},
		},
		{
			name: "delayed", spoil: func(hosts []*testutil.Host) { hosts[1].Delay(20 * time.Millisecond) },
			change: func(c *netprobe.Config) { c.Echoes = 20 },
			// What streams carry there within a second depends on how well the relay of the test keeps up.
			limits: easy, want: map[string]check.Status{"net-rtt": check.Warn, "net-bandwidth": whatever, "net-mss": whatever},
			look: func(t reporter, f netprobe.Facts) {
				if f.RTT.Min < 40*time.Millisecond || f.Clock.Offset.Abs() > f.Clock.Error {
					t.Errorf("%+v %+v", f.RTT, f.Clock)
				}
			},
		},
		{
			name: "black hole", spoil: func(hosts []*testutil.Host) {
				hosts[0].MTU(9000, 1500)
				hosts[1].MTU(9000, 1500)
			},
			want: map[string]check.Status{
				"mtu-blackhole": check.Fail, "net-bandwidth": check.Skip, "net-retrans": check.Skip, "net-mss": check.Skip,
			},
			look: func(t reporter, f netprobe.Facts) {
				if f.MTU.Passes() != 1500 {
					t.Errorf("%+v", f.MTU)
				}
			},
		},
		{
			// An interface that takes fewer bytes than it says it does: those of the other direction pass.
			name: "black hole on the way back", spoil: func(hosts []*testutil.Host) {
				hosts[0].MTU(9000, 9000)
				hosts[1].MTU(9000, 9000)
				filter(hosts[0], "meta l4proto udp meta length > 1500 drop")
			},
			want: map[string]check.Status{
				"mtu-blackhole": check.Fail, "net-bandwidth": check.Skip, "net-retrans": check.Skip, "net-mss": check.Skip,
			},
			look: func(t reporter, f netprobe.Facts) {
				if f.MTU.Passes() != 1500 || f.MTU.Sizes[2].Out != netprobe.Passed || f.MTU.Sizes[2].Back != netprobe.Lost {
					t.Errorf("%+v", f.MTU)
				}
			},
		},
		{
			name: "interfaces of two sizes", spoil: func(hosts []*testutil.Host) {
				hosts[0].MTU(9000, 9000)
				hosts[1].MTU(1500, 9000)
			},
			want: map[string]check.Status{
				"mtu-blackhole": check.Fail, "net-bandwidth": check.Skip, "net-retrans": check.Skip, "net-mss": check.Skip,
			},
			look: func(t reporter, f netprobe.Facts) {
				if f.MTU.Passes() != 1500 || f.Local.MTU != 9000 || f.Remote.MTU != 1500 {
					t.Errorf("%s", pretty(f))
				}
			},
		},
		{
			name: "no datagrams", spoil: func(hosts []*testutil.Host) { filter(hosts[1], "meta l4proto udp drop") }, limits: easy,
			want: map[string]check.Status{"mtu-blackhole": check.Skip, "mtu-reduced": check.Skip},
			look: func(t reporter, f netprobe.Facts) {
				if !strings.Contains(f.MTU.Skip, "filtered") || len(f.Bulk) != 2 {
					t.Errorf("%s", pretty(f))
				}
			},
		},
		{
			name: "no way back", spoil: func(hosts []*testutil.Host) { filter(hosts[0], "tcp flags & (syn|ack) == syn drop") },
			limits: easy,
			change: func(c *netprobe.Config) { c.Tries, c.Patience = 3, time.Second },
			want:   map[string]check.Status{"net-reach": check.Fail},
			look: func(t reporter, f netprobe.Facts) {
				if o, b := f.Reach.Out, f.Reach.Back; o.Failed != 0 || b.Done != 3 || b.Failed != 3 ||
					!strings.Contains(b.Last, "no answer within") {
					t.Errorf("%+v", f.Reach)
				}
			},
		},
		{
			// Nobody answers for longer than the budget lasts.
			name: "no way", spoil: func(hosts []*testutil.Host) { filter(hosts[1], "meta l4proto tcp drop") },
			change: func(c *netprobe.Config) { c.Budget, c.Patience = 3*time.Second, time.Second },
			want: map[string]check.Status{
				"net-reach": check.Fail, "net-rtt": check.Skip, "clock-offset": check.Skip, "mtu-blackhole": check.Skip,
				"mtu-reduced": check.Skip, "net-bandwidth": check.Skip, "net-retrans": check.Skip, "net-mss": check.Skip,
			},
			look: func(t reporter, f netprobe.Facts) {
				if f.Reach.Out.Done < 1 || f.Reach.Out.Failed != f.Reach.Out.Done || !strings.Contains(f.Hint, "firewall") {
					t.Errorf("%s", pretty(f))
				}
			},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.name != "sound" && c.name != "black hole" {
				testutil.Long(t)
			}
			t.Parallel()
			hosts := testutil.Hosts(t, 2)
			if c.spoil != nil {
				c.spoil(hosts)
			}
			for family, version := range []string{"IPv4", "IPv6"} {
				t.Run(version, func(t *testing.T) {
					measured(t, func(r reporter) {
						f := between(t, hosts[0], hosts[1], hosts[1].Addrs[0][family], c.change)
						wantVerdicts(r, f, c.limits, c.want)
						if c.look != nil {
							c.look(r, f)
						}
					})
				})
			}
		})
	}
}

// routed makes a router of the third host: the first one is left in the first network, the second in the other. Packets
// of more than 1500 bytes do not fit between them, while all interfaces are set to 9000.
func routed(t *testing.T, quiet bool) []*testutil.Host {
	t.Helper()
	hosts := testutil.Hosts(t, 3, testutil.TwoNetworks)
	for _, h := range hosts {
		h.MTU(9000, 9000)
	}
	run := func(h *testutil.Host, format string, args ...any) {
		t.Helper()
		if out, err := h.Command("sh", "-ec", fmt.Sprintf(format, args...)).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", h.Name, err, out)
		}
	}
	router := hosts[2]
	for i := range 2 {
		far := 1 - i
		run(hosts[i], "ip link set eth%d down; ip route add 10.66.%d.0/24 via %s; ip -6 route add fd66:%d::/64 via %s",
			far, far, router.Addrs[i][0], far, router.Addrs[i][1])
		run(router, `ip route change 10.66.%d.0/24 dev eth%d mtu lock 1500
			ip -6 route del fd66:%d::/64 dev eth%d; ip -6 route add fd66:%d::/64 dev eth%d mtu lock 1500`, i, i, i, i, i, i)
	}
	run(router, "echo 1 >/proc/sys/net/ipv4/ip_forward; echo 1 >/proc/sys/net/ipv6/conf/all/forwarding")
	if quiet {
		run(router, `nft -f - <<'END'
table inet quiet {
 chain output {
  type filter hook output priority 0;
  icmp type destination-unreachable drop
  icmpv6 type packet-too-big drop
 }
}
END`)
	}
	return hosts
}

// TestRouted has a router in between with a narrower way: one that says so, and one whose words are dropped.
func TestRouted(t *testing.T) {
	testutil.Long(t)
	for _, quiet := range []bool{false, true} {
		t.Run(fmt.Sprintf("quiet=%v", quiet), func(t *testing.T) {
			t.Parallel()
			hosts := routed(t, quiet)
			for family, version := range []string{"IPv4", "IPv6"} {
				want := map[string]check.Status{"mtu-reduced": check.Warn, "net-mss": check.Warn}
				passage := netprobe.TooBig
				if quiet {
					want = map[string]check.Status{
						"mtu-blackhole": check.Fail, "net-bandwidth": check.Skip, "net-retrans": check.Skip, "net-mss": check.Skip,
					}
					passage = netprobe.Lost
				}
				measured(t, func(r reporter) {
					f := between(t, hosts[0], hosts[1], hosts[1].Addrs[1][family], nil)
					wantVerdicts(r, f, easy, want)
					if f.MTU.Passes() != 1500 || len(f.MTU.Sizes) != 3 || f.MTU.Sizes[2].Out != passage {
						r.Errorf("%s: %+v", version, f.MTU)
					}
				})
			}
		})
	}
}

// TestDefaults probes with what users get. The budget holds, and figures are printed for docs/node-probes.md.
func TestDefaults(t *testing.T) {
	testutil.Long(t)
	for name, spoil := range map[string]func([]*testutil.Host){
		"sound": func([]*testutil.Host) {},
		"late":  func(hosts []*testutil.Host) { hosts[1].Delay(25 * time.Millisecond) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			hosts := testutil.Hosts(t, 2)
			spoil(hosts)
			f := between(t, hosts[0], hosts[1], hosts[1].Addrs[0][0], func(c *netprobe.Config) {
				*c = netprobe.Config{Token: token, Node: c.Node, Listen: ":0"}
			})
			// A machine that is overloaded may have to leave runs out, and must say so.
			if f.Took > 15*time.Second || f.Error != "" || len(f.Bulk) != 4 && !strings.Contains(f.NoBulk, "budget") {
				t.Errorf("%s", pretty(f))
			}
			t.Logf("RTT p50 %v, p99 %v of %d; clock %v ± %v", f.RTT.P50, f.RTT.P99, f.RTT.Count, f.Clock.Offset, f.Clock.Error)
			for _, b := range f.Bulk {
				t.Logf("%d streams %s: %.3f GB/s over %v, %+v", b.Streams, b.Direction, b.Rate()/1e9, b.Window, b.Sent)
			}
		})
	}
}
