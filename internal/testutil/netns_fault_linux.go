package testutil

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
)

// faults is what is wrong with a wire. It is written to the kernel as a whole, in one transaction, whenever it changes.
type faults struct {
	mu    sync.Mutex
	cuts  map[[2]int]bool // from one host to another
	loss  map[int]int     // percent, by host
	pumps map[int]*pump   // by host
}

// Cut cuts the host off from peers, or from everybody where none is named, in both directions and in all its networks.
func (h *Host) Cut(peers ...*Host) {
	h.t.Helper()
	h.cut(peers, true, true)
}

// CutTo loses what the host sends to peers, or to anybody, while what they send arrives.
func (h *Host) CutTo(peers ...*Host) {
	h.t.Helper()
	h.cut(peers, true, false)
}

// CutFrom loses what peers, or all, send to the host, while what it sends arrives.
func (h *Host) CutFrom(peers ...*Host) {
	h.t.Helper()
	h.cut(peers, false, true)
}

func (h *Host) cut(peers []*Host, to, from bool) {
	h.t.Helper()
	if len(peers) == 0 {
		peers = h.wire.hosts
	}
	h.wire.change(h.t, func(f *faults) {
		for _, peer := range peers {
			if peer == h {
				continue
			}
			if to {
				f.cuts[[2]int{h.index, peer.index}] = true
			}
			if from {
				f.cuts[[2]int{peer.index, h.index}] = true
			}
		}
	})
}

// Loss loses so many percent of what the host sends, and of what is sent to it: frames, chosen at random.
func (h *Host) Loss(percent int) {
	h.t.Helper()
	h.wire.change(h.t, func(f *faults) { f.loss[h.index] = percent })
}

// Heal ends every cut that the host takes part in, and its losses.
func (h *Host) Heal() {
	h.t.Helper()
	h.wire.change(h.t, func(f *faults) {
		maps.DeleteFunc(f.cuts, func(pair [2]int, _ bool) bool { return slices.Contains(pair[:], h.index) })
		delete(f.loss, h.index)
	})
}

func (w *wire) change(t testing.TB, change func(*faults)) {
	t.Helper()
	f := &w.faults
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.cuts == nil {
		f.cuts, f.loss = map[[2]int]bool{}, map[int]int{}
	}
	change(f)
	// Bridges see Ethernet frames: a rule for a port holds for IPv4, IPv6 and what finds neighbours alike.
	var rules strings.Builder
	rules.WriteString("table bridge faults\ndelete table bridge faults\ntable bridge faults {\n chain forward {\n" +
		"  type filter hook forward priority 0;\n")
	for pair := range f.cuts {
		fmt.Fprintf(&rules, "  iifname { %s } oifname { %s } drop\n", w.ports(pair[0]), w.ports(pair[1]))
	}
	for host, percent := range f.loss {
		for _, direction := range []string{"iifname", "oifname"} {
			fmt.Fprintf(&rules, "  %s { %s } numgen random mod 100 < %d drop\n", direction, w.ports(host), percent)
		}
	}
	rules.WriteString(" }\n}\n")
	if err := w.run(rules.String(), "nft", "-f", "-"); err != nil {
		t.Fatalf("cannot change the network: %v", err)
	}
}

// ports names, for nft, the ports by which a host may be joined to the bridges.
func (w *wire) ports(host int) string {
	var names []string
	for k := range w.networks {
		names = append(names, w.hosts[host].port(k), w.hosts[host].delayPort(k))
	}
	return strings.Join(names, ", ")
}

// Rate limits what the host sends, and what is sent to it, to so many kilobits a second in each direction; 0 ends that.
func (h *Host) Rate(kbit int) {
	h.t.Helper()
	var inside, ports strings.Builder
	for k := range h.Addrs {
		if kbit == 0 {
			fmt.Fprintf(&inside, "qdisc del dev eth%d root\n", k)
			fmt.Fprintf(&ports, "qdisc del dev %s root\n", h.port(k))
			continue
		}
		// The burst lets one segment of 64 KiB pass, which the kernel cuts only behind the interface.
		limit := fmt.Sprintf("root tbf rate %dkbit burst 70k latency 400ms", kbit)
		fmt.Fprintf(&inside, "qdisc replace dev eth%d %s\n", k, limit)
		fmt.Fprintf(&ports, "qdisc replace dev %s %s\n", h.port(k), limit)
	}
	err := h.Do(func() error { return runTool(inside.String(), "tc", "-batch", "-") })
	if err == nil {
		err = h.wire.run(ports.String(), "tc", "-batch", "-")
	}
	if err != nil {
		h.t.Fatalf("cannot limit the rate of %s: %v", h.Name, err)
	}
}

// MTU sets how large packets may be: on the host's interfaces, and on the ports that these end in. Where a port takes
// less than the interface, larger packets vanish there and nobody is told, as in a switch.
func (h *Host) MTU(iface, port int) {
	h.t.Helper()
	var inside, ports strings.Builder
	for k := range h.Addrs {
		fmt.Fprintf(&inside, "link set eth%d mtu %d\n", k, iface)
		fmt.Fprintf(&ports, "link set %s mtu %d\n", h.port(k), port)
	}
	err := h.Do(func() error { return runTool(inside.String(), "ip", "-batch", "-") })
	if err == nil {
		err = h.wire.run(ports.String(), "ip", "-batch", "-")
	}
	if err != nil {
		h.t.Fatalf("cannot set the MTU of %s: %v", h.Name, err)
	}
}
