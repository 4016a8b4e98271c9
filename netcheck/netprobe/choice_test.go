package netprobe_test

import (
	"net/netip"
	"strings"
	"testing"

	"muster/internal/accel"
	"muster/internal/check"
	"muster/netcheck/netprobe"
)

// iface reads an interface: "eth0 10.0.0.1/24 fd00::1/64", with "!" before the name of one that does not run.
func iface(text string) netprobe.Interface {
	fields := strings.Fields(text)
	name, down := strings.CutPrefix(fields[0], "!")
	i := netprobe.Interface{Name: name, Up: true, Running: !down}
	for _, f := range fields[1:] {
		i.Addrs = append(i.Addrs, netip.MustParsePrefix(f))
	}
	return i
}

func ifaces(texts ...string) (list []netprobe.Interface) {
	for _, t := range texts {
		list = append(list, iface(t))
	}
	return list
}

// A cloud machine, one with InfiniBand, a desktop with containers only.
var (
	cloud   = ifaces("lo 127.0.0.1/8 ::1/128", "!eno1", "docker0 172.17.0.1/16", "ens5 10.1.2.3/20 fe80::5/64", "ens6 fd00::6/64")
	hpc     = ifaces("lo 127.0.0.1/8 ::1/128", "eth0 10.0.0.7/24", "ibp1s0 192.168.7.7/24", "ibp2s0 192.168.8.7/24", "!ib9 192.168.9.7/24")
	box     = ifaces("lo 127.0.0.1/8 ::1/128", "docker0 172.17.0.1/16", "virbr0 192.168.122.1/24")
	alone   = ifaces("lo 127.0.0.1/8 ::1/128", "!eth0 10.0.0.7/24")
	modern  = ifaces("lo ::1/128", "eth0 fd00::1/64 fe80::1/64")
	speeder = []netprobe.Interface{{Name: "eth0", Running: true, Speed: 25000, Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/8")}}}
)

// TestNCCL is a golden table of ncclFindInterfaces' rules.
func TestNCCL(t *testing.T) {
	for _, c := range []struct {
		name   string
		ifaces []netprobe.Interface
		env    []string
		want   string // name and address, or "error: " and words of it
	}{
		{"first that runs, IPv4 first", cloud, nil, "ens5 10.1.2.3/20"},
		{"ib goes ahead", hpc, nil, "ibp1s0 192.168.7.7/24"},
		{"docker before lo and virbr", box, nil, "docker0 172.17.0.1/16"},
		{"lo last", alone, nil, "lo 127.0.0.1/8"},
		{"IPv6 only", modern, nil, "eth0 fd00::1/64"},
		{"nothing", ifaces("lo ::1/128", "!eth0 10.0.0.1/8"), nil, "error: no interface runs"},
		{"prefix", cloud, []string{"NCCL_SOCKET_IFNAME=ens"}, "ens5 10.1.2.3/20"},
		{"prefix of one later", hpc, []string{"NCCL_SOCKET_IFNAME=ibp2"}, "ibp2s0 192.168.8.7/24"},
		{"order is the machine's, not the list's", hpc, []string{"NCCL_SOCKET_IFNAME=ibp2s0,eth"}, "eth0 10.0.0.7/24"},
		{"excluded", hpc, []string{"NCCL_SOCKET_IFNAME=^ib,lo"}, "eth0 10.0.0.7/24"},
		{"exclusion takes in docker and lo", box, []string{"NCCL_SOCKET_IFNAME=^virbr"}, "lo 127.0.0.1/8"},
		{"exact", hpc, []string{"NCCL_SOCKET_IFNAME==ibp2s0"}, "ibp2s0 192.168.8.7/24"},
		{"exact does not match prefixes", hpc, []string{"NCCL_SOCKET_IFNAME==ibp"}, "error: matches NCCL_SOCKET_IFNAME==ibp"},
		{"exactly excluded", hpc, []string{"NCCL_SOCKET_IFNAME=^=lo,eth0,ibp1s0"}, "ibp2s0 192.168.8.7/24"},
		{"a prefix is not excluded exactly", hpc, []string{"NCCL_SOCKET_IFNAME=^=l,eth,ibp1s0"}, "lo 127.0.0.1/8"},
		{"too short, ignored", cloud, []string{"NCCL_SOCKET_IFNAME=x"}, "ens5 10.1.2.3/20"},
		{"empty", cloud, []string{"NCCL_SOCKET_IFNAME="}, "ens5 10.1.2.3/20"},
		{"does not run", cloud, []string{"NCCL_SOCKET_IFNAME=eno1"}, "error: matches NCCL_SOCKET_IFNAME=eno1"},
		{"empty items are skipped", hpc, []string{"NCCL_SOCKET_IFNAME=,,eth0,"}, "eth0 10.0.0.7/24"},
		{"ports are not looked at", hpc, []string{"NCCL_SOCKET_IFNAME=eth0:1"}, "eth0 10.0.0.7/24"},
		{"nothing but commas has all", hpc, []string{"NCCL_SOCKET_IFNAME=,,"}, "lo 127.0.0.1/8"},
		{"family 6", cloud, []string{"NCCL_SOCKET_FAMILY=AF_INET6"}, "ens5 fe80::5/64"},
		{"family 6 skips ::1", alone, []string{"NCCL_SOCKET_FAMILY=AF_INET6"}, "error: no interface runs"},
		{"family 4", modern, []string{"NCCL_SOCKET_FAMILY=AF_INET"}, "error: no interface runs"},
		{"an unknown family is none", cloud, []string{"NCCL_SOCKET_FAMILY=IPv6"}, "ens5 10.1.2.3/20"},
		{"in the subnet of the id", cloud, []string{"NCCL_COMM_ID=172.17.5.5:1234"}, "docker0 172.17.0.1/16"},
		{"ib before the id", hpc, []string{"NCCL_COMM_ID=10.0.0.1:1234"}, "ibp1s0 192.168.7.7/24"},
		{"id with IPv6", cloud, []string{"NCCL_COMM_ID=[fd00::1]:1234"}, "ens6 fd00::6/64"},
		{"id in no subnet", cloud, []string{"NCCL_COMM_ID=8.8.8.8:1234"}, "ens5 10.1.2.3/20"},
		{"id with a name", cloud, []string{"NCCL_COMM_ID=head:1234"}, "ens5 10.1.2.3/20"},
		{"id without a port", cloud, []string{"NCCL_COMM_ID=10.1.2.9"}, "ens5 10.1.2.3/20"},
	} {
		got := netprobe.NCCL(c.ifaces, env(c.env...))
		wantChoice(t, c.name, got, c.want)
	}
	if got := netprobe.NCCL(speeder, env()).Speed; got != 25000 {
		t.Errorf("speed %d", got)
	}
	if got := netprobe.NCCL(cloud, env()).Speed; got != 10000 {
		t.Errorf("speed of one that tells none: %d", got)
	}
}

func wantChoice(t *testing.T, name string, got netprobe.Choice, want string) {
	t.Helper()
	text := got.Iface + " " + got.Addr.String()
	if words, fails := strings.CutPrefix(want, "error: "); fails {
		if !strings.Contains(got.Error, words) {
			t.Errorf("%s: %s, error %q, want one with %q", name, text, got.Error, words)
		}
		return
	}
	if text != want || got.Error != "" || got.Why == "" {
		t.Errorf("%s: %s (%q, error %q), want %s", name, text, got.Why, got.Error, want)
	}
}

// TestGloo is a golden table of createDefaultDevice's rules.
func TestGloo(t *testing.T) {
	for _, c := range []struct {
		name   string
		ifaces []netprobe.Interface
		own    string // addresses of the machine's name
		env    []string
		want   string
	}{
		{"the name's address", cloud, "10.1.2.3", nil, "ens5 10.1.2.3/20"},
		{"the first that is here", cloud, "8.8.8.8 172.17.0.1 10.1.2.3", nil, "docker0 172.17.0.1/16"},
		{"Debian's 127.0.1.1", cloud, "127.0.1.1", nil, "lo 127.0.1.1/8"},
		{"::1", cloud, "::1", nil, "lo ::1/128"},
		{"mapped", cloud, "::ffff:10.1.2.3", nil, "ens5 10.1.2.3/20"},
		{"somebody else's", cloud, "8.8.8.8", nil, "lo 127.0.0.1/8"},
		{"no address", cloud, "", nil, "lo 127.0.0.1/8"},
		{"by name", cloud, "127.0.1.1", []string{"GLOO_SOCKET_IFNAME=ens5"}, "ens5 10.1.2.3/20"},
		{"several: the first is told", hpc, "", []string{"GLOO_SOCKET_IFNAME=ibp2s0,eth0"}, "ibp2s0 192.168.8.7/24"},
		{"too short, ignored", cloud, "10.1.2.3", []string{"GLOO_SOCKET_IFNAME=x"}, "ens5 10.1.2.3/20"},
		{"prefixes are not", cloud, "10.1.2.3", []string{"GLOO_SOCKET_IFNAME=ens"}, `error: there is no interface "ens"`},
		{"NCCL's exact", cloud, "10.1.2.3", []string{"GLOO_SOCKET_IFNAME==ens5"}, "error: mean something to NCCL only"},
		{"NCCL's not", cloud, "10.1.2.3", []string{"GLOO_SOCKET_IFNAME=^lo"}, "error: mean something to NCCL only"},
		{"all must be there", cloud, "10.1.2.3", []string{"GLOO_SOCKET_IFNAME=ens5,eth9"}, `error: there is no interface "eth9"`},
		{"an empty item", cloud, "10.1.2.3", []string{"GLOO_SOCKET_IFNAME=ens5,"}, "error: an empty name"},
		{"without an address", cloud, "10.1.2.3", []string{"GLOO_SOCKET_IFNAME=eno1"}, "error: has no address"},
		{"that does not run: Gloo takes it", hpc, "", []string{"GLOO_SOCKET_IFNAME=ib9"}, "ib9 192.168.9.7/24"},
	} {
		var own []netip.Addr
		for a := range strings.FieldsSeq(c.own) {
			own = append(own, netip.MustParseAddr(a))
		}
		wantChoice(t, c.name, netprobe.Gloo(c.ifaces, own, env(c.env...)), c.want)
	}
}

// node is one with these choices.
func node(name, route string, list []netprobe.Interface, own string, vars ...string) netprobe.Node {
	return netprobe.Node{
		Name: name, Route: route, NCCL: netprobe.NCCL(list, env(vars...)),
		Gloo: netprobe.Gloo(list, []netip.Addr{netip.MustParseAddr(own)}, env(vars...)),
	}
}

// TestChoicesAgree compares nodes.
func TestChoicesAgree(t *testing.T) {
	a := node("a", "eth0", ifaces("lo 127.0.0.1/8", "eth0 10.0.0.1/24"), "10.0.0.1")
	b := node("b", "eth0", ifaces("lo 127.0.0.1/8", "eth0 10.0.0.2/24"), "10.0.0.2")
	otherName := node("c", "ens5", ifaces("lo 127.0.0.1/8", "ens5 10.0.0.3/24"), "10.0.0.3")
	otherRack := node("c", "eth0", ifaces("lo 127.0.0.1/8", "eth0 10.0.1.3/24"), "10.0.1.3")
	bridge := node("c", "eth0", ifaces("lo 127.0.0.1/8", "br-1 172.18.0.1/16", "eth0 10.0.0.3/24"), "10.0.0.3")
	wrongOne := node("c", "eth1", ifaces("lo 127.0.0.1/8", "eth0 192.168.0.3/24", "eth1 10.0.0.3/24"), "10.0.0.3")
	six := node("c", "eth0", ifaces("lo 127.0.0.1/8", "eth0 fd00::3/64"), "fd00::3")
	typo := node("c", "eth0", ifaces("lo 127.0.0.1/8", "eth0 10.0.0.3/24"), "10.0.0.3", "NCCL_SOCKET_IFNAME=etf0")
	exact := node("c", "eth0", ifaces("lo 127.0.0.1/8", "eth0 10.0.0.3/24"), "10.0.0.3", "GLOO_SOCKET_IFNAME==eth0")
	debian := node("c", "eth0", ifaces("lo 127.0.0.1/8", "eth0 10.0.0.3/24"), "127.0.1.1")
	offline := node("c", "", ifaces("lo 127.0.0.1/8"), "127.0.0.1")
	for _, c := range []struct {
		name        string
		nodes       []netprobe.Node
		iface, gloo check.Status
		words, try  string
	}{
		{"agree", []netprobe.Node{a, b}, check.Pass, check.Pass, "NCCL takes eth0 10.0.0.2/24", ""},
		{"names may differ", []netprobe.Node{a, b, otherName}, check.Pass, check.Pass, "ens5", ""},
		{"a routed fabric", []netprobe.Node{a, b, otherRack}, check.Pass, check.Pass, "", ""},
		{
			"a bridge of containers",
			[]netprobe.Node{a, b, bridge},
			check.Warn, check.Pass, "most nodes take eth0 in 10.0.0.0/24",
			"NCCL_SOCKET_IFNAME==eth0 and GLOO_SOCKET_IFNAME=eth0",
		},
		{
			"another network, same name",
			[]netprobe.Node{a, b, wrongOne},
			check.Warn, check.Pass, "the way to the others is eth1",
			"NCCL_SOCKET_IFNAME==eth1",
		},
		{"another family", []netprobe.Node{a, b, six}, check.Warn, check.Pass, "another family", "eth0"},
		{
			"a name that is not there",
			[]netprobe.Node{a, b, typo},
			check.Fail, check.Pass, "NCCL finds no interface",
			"NCCL_SOCKET_IFNAME==eth0",
		},
		{
			"NCCL's spelling for Gloo",
			[]netprobe.Node{a, b, exact},
			check.Fail, check.Status(-1), "Gloo finds no interface",
			"GLOO_SOCKET_IFNAME=eth0",
		},
		{"127.0.1.1", []netprobe.Node{a, b, debian}, check.Pass, check.Fail, "127.0.1.1", "/etc/hosts"},
		{"nothing but loopback", []netprobe.Node{a, b, offline}, check.Warn, check.Fail, "lo 127.0.0.1/8", "interface that reaches"},
		{"alone", []netprobe.Node{debian}, check.Skip, check.Pass, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			results := netprobe.JudgeNodes(c.nodes)
			last := c.nodes[len(c.nodes)-1].Name
			var said []check.Result
			worst := map[string]check.Status{"iface-mismatch": -1, "loopback-hostname": -1}
			for _, r := range results {
				if r.Subject.Node == last {
					said = append(said, r)
					worst[r.ID] = max(worst[r.ID], r.Status)
				} else if r.Status > check.Pass {
					t.Errorf("%s is blamed: %+v", r.Subject.Node, r)
				}
			}
			text := pretty(said)
			if worst["iface-mismatch"] != c.iface || worst["loopback-hostname"] != c.gloo || !strings.Contains(text, c.words) ||
				!strings.Contains(text, c.try) {
				t.Errorf("%v, want %v and %v, %q and %q\n%s", worst, c.iface, c.gloo, c.words, c.try, text)
			}
		})
	}
}

// TestLook asks this machine.
func TestLook(t *testing.T) {
	m, err := netprobe.Real(accel.Real())
	if err != nil {
		t.Fatal(err)
	}
	m.Name, m.Lookup, m.Hostname, m.Toward = "here", env("NCCL_SOCKET_IFNAME==lo"), "localhost", netip.MustParseAddrPort("127.0.0.1:9")
	n, err := m.Look(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if n.Name != "here" || n.Route != "lo" || n.NCCL.Iface != "lo" || !n.Gloo.Addr.Addr().IsLoopback() || n.Gloo.Iface != "lo" {
		t.Errorf("%s", pretty(n))
	}
	m.Iface = "eth7"
	if n, err := m.Look(t.Context()); err != nil || n.Route != "eth7" {
		t.Errorf("the user's choice: %v %s", err, pretty(n))
	}
	m.Iface, m.Toward = "", netip.MustParseAddrPort("0.0.0.0:9")
	if n, err := m.Look(t.Context()); err == nil || n.Route != "" || n.NCCL.Iface != "lo" {
		t.Errorf("no route: %v %s", err, pretty(n))
	}
}
