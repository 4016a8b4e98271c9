package hostaddr_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"muster/internal/hostaddr"
)

func addrs(texts ...string) []netip.Addr {
	var out []netip.Addr
	for _, text := range texts {
		out = append(out, netip.MustParseAddr(text))
	}
	return out
}

// machine is a node with two networks, a link that is down, and these names in its resolver.
func machine(names map[string][]netip.Addr) hostaddr.Machine {
	return hostaddr.Machine{
		Resolve: func(_ context.Context, name string) ([]netip.Addr, error) {
			if found, ok := names[name]; ok {
				return found, nil
			}
			return nil, &net.DNSError{Err: "no such host", Name: name, Server: "10.0.0.53:53", IsNotFound: true}
		},
		Interfaces: func() ([]hostaddr.Interface, error) {
			return []hostaddr.Interface{
				{Name: "lo", Index: 1, Up: true, Loopback: true, Addrs: addrs("127.0.0.1", "::1")},
				{Name: "eth0", Index: 2, Up: true, Addrs: addrs("fe80::2%eth0", "fd00::2", "10.0.0.2", "10.0.0.22")},
				{Name: "ib0", Index: 3, Up: true, Addrs: addrs("fe80::3%ib0", "fd01::3")},
				{Name: "ll0", Index: 4, Up: true, Addrs: addrs("fe80::4%ll0")},
				{Name: "auto0", Index: 5, Up: true, Addrs: addrs("fe80::2%auto0", "169.254.7.7")},
				{Name: "eth1", Index: 6, Addrs: addrs("10.1.0.2")},
				{Name: "bare0", Index: 7, Up: true},
			}, nil
		},
		Hostname: func() (string, error) { return "Node-2.cluster.example", nil },
	}
}

func TestOurs(t *testing.T) {
	every := []string{"10.0.0.2", "10.0.0.22", "fd00::2", "fd01::3"}
	m := machine(map[string][]netip.Addr{
		"n1":         addrs("10.0.0.1", "fd00::1"),
		"n2":         addrs("10.0.0.2"),
		"n2-both":    addrs("127.0.0.1", "fd00::2", "10.0.0.2", "10.0.0.2"),
		"n2-mapped":  addrs("::ffff:10.0.0.2"),
		"service":    addrs("10.0.0.1", "10.0.0.2", "10.0.0.3"), // of all nodes
		"debian":     addrs("127.0.1.1"),
		"down":       addrs("10.1.0.2"),
		"link":       addrs("fe80::3"),
		"loop":       addrs("10.0.0.1", "127.0.0.1"),
		"node-2.lab": addrs("10.0.0.9"),
	})
	for _, c := range []struct {
		host  string
		want  []string
		local bool
	}{
		{"n1", []string{"10.0.0.1", "fd00::1"}, false},
		{"n2", []string{"10.0.0.2"}, true},
		{"n2-both", []string{"fd00::2", "10.0.0.2", "127.0.0.1"}, true},
		{"n2-mapped", []string{"10.0.0.2"}, true},
		{"service", []string{"10.0.0.2"}, true},
		{"debian", append(every, "127.0.0.1", "::1", "127.0.1.1"), true},
		{"down", []string{"10.1.0.2"}, true}, // it is this machine's, whatever the state of the link
		{"link", []string{"fe80::3%ib0"}, true},
		{"loop", append(every, "127.0.0.1", "::1"), true},
		{"node-2.lab", []string{"10.0.0.9"}, false}, // what the resolver says of another domain counts
		// The machine's own name, which its resolver does not know.
		{"node-2", append(every, "127.0.0.1", "::1"), true},
		{"NODE-2.cluster.example.", append(every, "127.0.0.1", "::1"), true},
		{"localhost", []string{"127.0.0.1", "::1"}, true},
		{"LOCALHOST.", []string{"127.0.0.1", "::1"}, true},
		{"db.localhost", []string{"127.0.0.1", "::1"}, true},
		{"10.0.0.22", []string{"10.0.0.22"}, true},
		{"10.0.0.3", []string{"10.0.0.3"}, false},
		{"::ffff:10.0.0.2", []string{"10.0.0.2"}, true},
		{"127.8.9.10", []string{"127.8.9.10"}, true},
		{"::1", []string{"::1"}, true},
		{"0.0.0.0", []string{"0.0.0.0"}, true},
		{"::", []string{"::"}, true},
		{"FD00:0::2", []string{"fd00::2"}, true},
		{"fd00::3", []string{"fd00::3"}, false},
		// A zone is part of a link-local address; without one the first interface that has it counts.
		{"fe80::2", []string{"fe80::2%eth0"}, true},
		{"fe80::2%auto0", []string{"fe80::2%auto0"}, true},
		{"fe80::2%5", []string{"fe80::2%auto0"}, true},
		{"fe80::2%ib0", []string{"fe80::2%ib0"}, false},
		{"fe80::9%eth0", []string{"fe80::9%eth0"}, false},
	} {
		got, local, err := m.Ours(t.Context(), c.host)
		var texts []string
		for _, a := range got {
			texts = append(texts, a.String())
		}
		if diff := cmp.Diff(c.want, texts); err != nil || local != c.local || diff != "" {
			t.Errorf("%s: local %v, %v (-want +got):\n%s", c.host, local, err, diff)
		}
	}
}

func TestOursWithoutAddress(t *testing.T) {
	m := machine(map[string][]netip.Addr{"empty": nil})
	for host, pieces := range map[string][]string{
		"pod-7":       {`cannot resolve "pod-7"`, "no such host at 10.0.0.53:53"},
		"empty":       {`cannot resolve "empty"`},
		"node-2x":     {`cannot resolve "node-2x"`},
		"node-2.lab2": {`cannot resolve "node-2.lab2"`},
	} {
		_, _, err := m.Ours(t.Context(), host)
		if !errors.Is(err, hostaddr.ErrUnresolved) {
			t.Errorf("%s: %v", host, err)
			continue
		}
		for _, piece := range pieces {
			if !strings.Contains(err.Error(), piece) {
				t.Errorf("no %q in: %v", piece, err)
			}
		}
	}
	if _, _, err := m.Ours(t.Context(), ""); err == nil || errors.Is(err, hostaddr.ErrUnresolved) {
		t.Errorf("an empty name: %v", err)
	}
}

// A name that could not be looked up because the caller gave up is not one without an address.
func TestOursEndsWithItsContext(t *testing.T) {
	stop := errors.New("the join timeout is over")
	ctx, cancel := context.WithCancelCause(t.Context())
	m := machine(nil)
	m.Resolve = func(ctx context.Context, name string) ([]netip.Addr, error) {
		cancel(stop)
		<-ctx.Done()
		return nil, &net.DNSError{Err: "operation was canceled", Name: name}
	}
	_, _, err := m.Ours(ctx, "slow")
	if !errors.Is(err, stop) || errors.Is(err, hostaddr.ErrUnresolved) {
		t.Error(err)
	}
}

func TestInterfacesThatCannotBeListed(t *testing.T) {
	broken := errors.New("netlink is closed")
	m := machine(nil)
	m.Interfaces = func() ([]hostaddr.Interface, error) { return nil, broken }
	if _, _, err := m.Ours(t.Context(), "10.0.0.2"); !errors.Is(err, broken) {
		t.Error(err)
	}
	if _, err := m.OfInterface("eth0"); !errors.Is(err, broken) {
		t.Error(err)
	}
}

func TestOfInterface(t *testing.T) {
	m := machine(nil)
	for name, want := range map[string]string{
		"eth0": "10.0.0.2", "ib0": "fd01::3", "ll0": "fe80::4%ll0", "auto0": "169.254.7.7", "lo": "127.0.0.1",
	} {
		if got, err := m.OfInterface(name); err != nil || got.String() != want {
			t.Errorf("%s: %v, %v; want %s", name, got, err, want)
		}
	}
	for name, pieces := range map[string][]string{
		"eth7": {
			`cannot find the network interface "eth7"`, "lo (127.0.0.1, ::1)", "eth0 (fe80::2, fd00::2, 10.0.0.2, 10.0.0.22)",
			"eth1 (down, 10.1.0.2)", "bare0 (no address)",
		},
		"":      {`interface ""`, "lo (127.0.0.1, ::1)"},
		"eth1":  {`"eth1": it is down`, "eth0 ("},
		"bare0": {`"bare0": it has no address`, "eth0 ("},
	} {
		_, err := m.OfInterface(name)
		if err == nil {
			t.Errorf("%q has an address", name)
			continue
		}
		for _, piece := range pieces {
			if !strings.Contains(err.Error(), piece) {
				t.Errorf("no %q in: %v", piece, err)
			}
		}
	}
	m.Interfaces = func() ([]hostaddr.Interface, error) {
		many := make([]hostaddr.Interface, 300)
		for i := range many {
			many[i].Name = fmt.Sprintf("veth%d", i)
		}
		return many, nil
	}
	if _, err := m.OfInterface("eth0"); err == nil || !strings.HasSuffix(err.Error(), ", 284 more") || len(err.Error()) > 1000 {
		t.Error(err)
	}
	m.Interfaces = func() ([]hostaddr.Interface, error) { return nil, nil }
	if _, err := m.OfInterface("eth0"); err == nil || !strings.HasSuffix(err.Error(), "there are none") {
		t.Error(err)
	}
}

// The real machine has a loopback interface, and knows itself.
func TestInterfaceWith(t *testing.T) {
	m := hostaddr.Machine{
		Resolve: func(context.Context, string) ([]netip.Addr, error) { return addrs("10.0.0.7"), nil },
		Interfaces: func() ([]hostaddr.Interface, error) {
			return []hostaddr.Interface{
				{Name: "lo", Up: true, Loopback: true, Addrs: addrs("127.0.0.1")},
				{Name: "eth0", Up: true, Addrs: addrs("192.168.1.7", "10.0.0.7")},
				{Name: "ib0", Up: true, Addrs: addrs("fe80::1%ib0", "10.1.0.7")},
			}, nil
		},
	}
	for host, want := range map[string]string{
		"10.0.0.7": "eth0", "node-7": "eth0", "10.1.0.7": "ib0", "fe80::1%ib0": "ib0",
		"127.0.0.1": "lo", "10.0.0.8": "",
	} {
		got, err := m.InterfaceWith(t.Context(), host)
		if got != want || (err == nil) != (want != "") || err != nil && !strings.Contains(err.Error(), "ib0 (") {
			t.Errorf("%s: %q, %v", host, got, err)
		}
	}
}

func TestRealMachine(t *testing.T) {
	if got, err := hostaddr.OfInterface("lo"); err != nil || !got.IsLoopback() {
		t.Errorf("lo: %v, %v", got, err)
	}
	if _, err := hostaddr.OfInterface("no such interface"); err == nil || !strings.Contains(err.Error(), "lo (") {
		t.Error(err)
	}
	interfaces, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range interfaces {
		prefix, err := netip.ParsePrefix(i.String())
		if err != nil {
			t.Fatal(err)
		}
		got, local, err := hostaddr.Ours(t.Context(), prefix.Addr().String())
		if err != nil || !local || len(got) != 1 || got[0].WithZone("") != prefix.Addr() {
			t.Errorf("%s: %v, local %v, %v", prefix.Addr(), got, local, err)
		}
	}
	// 192.0.2.0/24 is for documentation: no machine has it.
	if got, local, err := hostaddr.Ours(t.Context(), "192.0.2.1"); err != nil || local || len(got) != 1 {
		t.Errorf("%v, local %v, %v", got, local, err)
	}
}

func TestToReach(t *testing.T) {
	for _, text := range []string{"127.0.0.1:29400", "127.0.0.1:0", "[::ffff:127.0.0.1]:5"} {
		got, err := hostaddr.ToReach(netip.MustParseAddrPort(text))
		if err != nil || got != netip.MustParseAddr("127.0.0.1") {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
	// To reach an address of its own this machine uses the same one.
	interfaces, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range interfaces {
		own := netip.MustParsePrefix(i.String()).Addr()
		if own.IsLinkLocalUnicast() {
			continue // its zone is not in the list
		}
		got, err := hostaddr.ToReach(netip.AddrPortFrom(own, 29400))
		if err != nil || got != own {
			t.Errorf("%s: %v, %v", own, got, err)
		}
	}
	for text, piece := range map[string]string{
		"0.0.0.0:5": "no machine's address", "[::]:5": "no machine's address", "[fe80::1]:5": "as in fe80::1%eth0",
		"[fe80::1%no-such]:5": "cannot find a route to fe80::1%no-such",
	} {
		if got, err := hostaddr.ToReach(netip.MustParseAddrPort(text)); err == nil || !strings.Contains(err.Error(), piece) {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
	if _, err := hostaddr.ToReach(netip.AddrPort{}); err == nil {
		t.Error("the zero address has a route")
	}
}
