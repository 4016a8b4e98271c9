package rehearsal

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"
)

// FakeNet is what a spec says of this node's end of a network. What is zero is not said.
type FakeNet struct {
	Iface string
	MTU   int // of the interface
	Speed int // of the interface, in Mb/s
	Clock time.Duration
}

// FakePath is what a spec says of the way to another node. What is zero is not said.
type FakePath struct {
	Unreachable bool
	RTT         time.Duration
	RateMbps    int     // in each direction, in 10^6 bits a second
	Loss        float64 // share of packets
	MTU         int     // of the largest packet that passes; Quiet: nobody tells of those that do not
	Quiet       bool
	Seed        [32]byte // of chance on this way
}

// HasNetwork reports whether the spec says something of networks, anywhere: what only probes between nodes meet. It
// has ports of RDMA where it has faults of them.
func (f *Fake) HasNetwork() bool {
	says := func(s nodeSpec) bool {
		n := &s.net
		return n.pathSpec != (pathSpec{}) || n.iface != "" || n.clockMS != 0 || len(n.peers) > 0 || len(s.rdma) > 0 ||
			slices.ContainsFunc(s.faults, func(x fault) bool { return faultKinds()[x.kind].peers || x.kind == "clock" })
	}
	return says(f.whole.defaults) || slices.ContainsFunc(slices.Collect(maps.Values(f.whole.nodes)), says)
}

// Net returns what the spec says of this node's end.
func (f *Fake) Net() FakeNet {
	n := &f.spec.net
	ms := n.clockMS
	for _, x := range f.spec.faults {
		if x.kind == "clock" {
			ms += x.nums["offset_ms"]
		}
	}
	return FakeNet{Iface: n.iface, MTU: n.mtu, Speed: n.rateMbps, Clock: time.Duration(ms) * time.Millisecond}
}

// PathTo returns what the spec says of the way between this node and another one, in the sections of both: the slower,
// longer and narrower one counts.
func (f *Fake) PathTo(peer string) FakePath {
	ends := [2]struct {
		of    nodeSpec
		other string
	}{{f.spec, peer}, {f.whole.at(peer, f.round), f.node}}
	var p FakePath
	copy(p.Seed[:], fmt.Sprintf("%016x", uint64(chance(f.seed, f.node, "path to "+peer, 0, f.round)*(1<<53))))
	narrow := func(mtu int, quiet bool) {
		if mtu > 0 && (p.MTU == 0 || mtu < p.MTU) {
			p.MTU, p.Quiet = mtu, quiet
		}
	}
	if a, b := ends[0].of.net.mtu, ends[1].of.net.mtu; a > 0 && b > 0 && a != b {
		narrow(min(a, b), true) // of what is larger than the other interface takes nobody hears
	}
	var late time.Duration // by faults
	for _, end := range ends {
		for _, way := range []pathSpec{end.of.net.pathSpec, end.of.net.peers[end.other]} {
			p.RTT = max(p.RTT, time.Duration(way.rttUS)*time.Microsecond)
			p.Loss = max(p.Loss, way.loss)
			if way.rateMbps > 0 && (p.RateMbps == 0 || way.rateMbps < p.RateMbps) {
				p.RateMbps = way.rateMbps
			}
		}
		narrow(end.of.net.peers[end.other].mtu, end.of.net.peers[end.other].quiet)
		for _, x := range end.of.faults {
			if !x.concerns(end.other) {
				continue
			}
			switch x.kind {
			case "unreachable":
				p.Unreachable = p.Unreachable || x.nums["value"] != 0
			case "latency":
				late += time.Duration(x.nums["ms"]) * time.Millisecond
			case "mtu-blackhole":
				narrow(x.nums["mtu"], true)
			}
		}
	}
	p.RTT += late
	return p
}

const infiniband = "sys/class/infiniband"

// renderPort writes an RDMA device with one port, as mlx5 has them.
func (f *Fake) renderPort(t fakeTree, i int, p rdmaPort) {
	phys := "5: LinkUp\n"
	for _, x := range f.spec.faults {
		switch {
		case x.text["dev"] != "" && x.text["dev"] != p.dev:
		case x.kind == "rdma-down" && x.nums["value"] != 0:
			p.state = x.text["state"]
		case x.kind == "rdma-slow":
			p.rate = x.nums["rate"]
		}
	}
	if p.state != "ACTIVE" {
		phys = "2: Polling\n"
	}
	dir := path.Join(infiniband, p.dev)
	port := dir + "/ports/1"
	t.put(dir+"/board_id", "MT_0000000838\n")
	t.put(dir+"/hca_type", "MT4129\n")
	t.put(dir+"/fw_ver", "28.39.1002\n")
	t.put(dir+"/device/numa_node", fmt.Sprintln(p.numa))
	if p.net != "" {
		t.put(dir+"/device/net/"+p.net+"/type", "32\n")
	}
	t.put(port+"/state", fmt.Sprintf("%d: %s\n", slices.Index(rdmaStates, p.state), p.state))
	t.put(port+"/phys_state", phys)
	t.put(port+"/rate", fmt.Sprintf("%d Gb/sec (4X)\n", p.rate))
	t.put(port+"/link_layer", "InfiniBand\n")
	for _, name := range rdmaCounters {
		t.put(path.Join(port, counterDir(name), name), "0\n")
	}
	t.node(fmt.Sprintf("dev/infiniband/uverbs%d", i), 0o666)
}

// counterDir is where a port has a counter: those of the protocol are the driver's.
func counterDir(name string) string {
	switch name {
	case "out_of_sequence", "packet_seq_err", "local_ack_timeout_err":
		return "hw_counters"
	}
	return "counters"
}

// grown returns the content of a file that grows with time.
func (f *Fake) grown(name string) (text string, grows bool) {
	rest, within := strings.CutPrefix(name, infiniband+"/")
	if !within {
		return "", false
	}
	var sum int64
	for _, x := range f.spec.faults {
		dev, file, _ := strings.Cut(rest, "/")
		counter := x.text["counter"]
		if x.kind != "rdma-errors" || x.text["dev"] != "" && x.text["dev"] != dev ||
			file != path.Join("ports/1", counterDir(counter), counter) {
			continue
		}
		since := time.Since(f.began) - time.Duration(x.when.seconds)*time.Second
		sum, grows = sum+int64(max(0, since.Seconds())*float64(x.nums["per_s"])), true
	}
	return fmt.Sprintln(sum), grows
}
