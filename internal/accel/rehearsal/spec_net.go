package rehearsal

import (
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"muster/internal/wording"
)

// netSpec is what a spec says of a node's network. What is zero is not said.
type netSpec struct {
	pathSpec
	iface   string
	clockMS int
	peers   map[string]pathSpec
}

// pathSpec is what a spec says of the way to another node, or of a node's end of all ways.
type pathSpec struct {
	mtu, rateMbps, rttUS int
	loss                 float64
	quiet                bool // nobody tells of packets that are too large
}

// rdmaPort is port 1 of an RDMA device.
type rdmaPort struct {
	dev, state string
	rate       int // in Gb/s
	numa       int // -1: unknown
	net        string
}

// rdmaStates are those of a port, with the number that sysfs puts before each.
var rdmaStates = []string{"NOP", "DOWN", "INIT", "ARMED", "ACTIVE"}

// rdmaCounters are those that a fault can have grow.
var rdmaCounters = []string{
	"symbol_error", "link_downed", "local_link_integrity_errors", "port_rcv_errors", "out_of_sequence", "packet_seq_err",
	"local_ack_timeout_err",
}

// Limits of networks. The largest packet is what a header can say, the smallest what IPv6 guarantees: smaller ones
// could not be told from a path that lets nothing pass.
const (
	minMTU, maxMTU = 1280, 65535
	maxRate        = 100_000     // Gb/s of an RDMA port
	maxRateMbps    = 100_000_000 // Mb/s
	maxLatencyMS   = 60_000
	maxOffsetMS    = 1 << 40
)

// net reads what is said of a node's network over the values that s holds.
func (r *specReader) net(n *yaml.Node, where string) netSpec {
	var s netSpec
	keys := r.mapping(n, where, []string{"iface", "mtu", "rate_mbps", "rtt_us", "loss", "clock_ms", "peers"}, nil)
	s.pathSpec = r.path(keys, where)
	if v, ok := keys["iface"]; ok {
		s.iface = r.formed(v, where+".iface", deviceForm, "an interface such as eth0")
	}
	if v, ok := keys["clock_ms"]; ok {
		s.clockMS = r.number(v, where+".clock_ms", -maxOffsetMS, maxOffsetMS)
	}
	if v, ok := keys["peers"]; ok {
		s.peers = map[string]pathSpec{}
		for _, e := range r.entries(v, where+".peers") {
			at := where + ".peers." + wording.Clip(e.key)
			r.named = append(r.named, reference{e.line, where + ".peers", e.key, r.within})
			own := r.mapping(e.value, at, []string{"mtu", "icmp", "rate_mbps", "rtt_us", "loss"}, nil)
			p := r.path(own, at)
			if v, ok := own["icmp"]; ok {
				p.quiet = r.word(v, at+".icmp", []string{"pass", "drop"}) == "drop"
				if p.mtu == 0 {
					r.add(e.line, "%s: icmp is about packets that do not pass: add mtu", at)
				}
			}
			s.peers[e.key] = p
		}
	}
	return s
}

func (r *specReader) path(keys map[string]*yaml.Node, where string) (p pathSpec) {
	if v, ok := keys["mtu"]; ok {
		p.mtu = r.number(v, where+".mtu", minMTU, maxMTU)
	}
	if v, ok := keys["rate_mbps"]; ok {
		p.rateMbps = r.number(v, where+".rate_mbps", 1, maxRateMbps)
	}
	if v, ok := keys["rtt_us"]; ok {
		p.rttUS = r.number(v, where+".rtt_us", 0, maxLatencyMS*1000)
	}
	if v, ok := keys["loss"]; ok {
		p.loss = r.real(v, where+".loss", 0, 1)
	}
	return p
}

// ports reads RDMA devices, each with one port.
func (r *specReader) ports(n *yaml.Node, where string) []rdmaPort {
	ports := []rdmaPort{}
	for i, item := range r.sequence(n, where, maxPorts) {
		at := fmt.Sprintf("%s[%d]", where, i)
		keys := r.mapping(item, at, []string{"dev", "state", "rate", "numa", "net"}, nil)
		p := rdmaPort{state: "ACTIVE", rate: 400, numa: -1}
		if v, ok := keys["dev"]; ok {
			p.dev = r.formed(v, at+".dev", deviceForm, "a device such as mlx5_0")
		} else {
			r.add(item.Line, "%s: dev is missing", at)
		}
		if v, ok := keys["state"]; ok {
			p.state = r.word(v, at+".state", rdmaStates)
		}
		if v, ok := keys["rate"]; ok {
			p.rate = r.number(v, at+".rate", 1, maxRate)
		}
		if v, ok := keys["numa"]; ok {
			p.numa = r.number(v, at+".numa", -1, maxNUMANode)
		}
		if v, ok := keys["net"]; ok {
			p.net = r.formed(v, at+".net", deviceForm, "an interface such as ib0")
		}
		if slices.ContainsFunc(ports, func(o rdmaPort) bool { return o.dev == p.dev }) {
			r.add(item.Line, "%s: dev %s is given twice", at, quote(p.dev))
		}
		ports = append(ports, p)
	}
	return ports
}

// devices reports faults about RDMA devices that the node has not.
func (r *specReader) devices(where string, s *nodeSpec) {
	for _, f := range s.faults {
		dev := f.text["dev"]
		known := slices.ContainsFunc(s.rdma, func(p rdmaPort) bool { return p.dev == dev || dev == "" })
		if strings.HasPrefix(f.kind, "rdma-") && !known {
			r.add(f.line, "%s: %s is about %s, and rdma has no such device here", where, f.kind, quote(dev))
		}
	}
}
