package netprobe

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"muster/internal/check"
)

// JudgeNodes compares what nodes say of themselves: the interfaces that NCCL and Gloo will take, and their RDMA ports.
// A rule that compares needs two nodes. Results are in the order of the nodes.
func JudgeNodes(nodes []Node) []check.Result {
	var results []check.Result
	common := commonChoice(nodes)
	models, shapes := modelRates(nodes), commonShape(nodes)
	for i := range nodes {
		n := &nodes[i]
		results = append(results, n.judgeChoices(nodes, common)...)
		results = append(results, n.judgeGloo(len(nodes))...)
		if !slices.ContainsFunc(nodes, func(n Node) bool { return len(n.RDMA.Ports) > 0 }) {
			continue // a cluster without RDMA has nothing to hear about it
		}
		results = append(results, n.judgePorts(nodes)...)
		results = append(results, n.judgeRates(models)...)
		results = append(results, n.judgeShape(nodes, shapes)...)
		results = append(results, n.judgeGrowth()...)
		results = append(results, n.judgeUse()...)
	}
	return results
}

// Nodes returns the nodes that facts tell of, each once, in the order in which they come up first.
func Nodes(facts []Facts) []Node {
	var nodes []Node
	add := func(n Node) {
		if !slices.ContainsFunc(nodes, func(o Node) bool { return o.Name == n.Name }) {
			nodes = append(nodes, n)
		}
	}
	for i := range facts {
		add(facts[i].From)
		if facts[i].RTT.Count > 0 { // else it has said nothing
			add(facts[i].To)
		}
	}
	return nodes
}

func (n *Node) result(id string, status check.Status, iface string) check.Result {
	return check.Result{ID: id, Status: status, Source: "L0", Subject: check.Subject{Node: n.Name, Iface: iface}}
}

func (n *Node) passed(id, reason string) []check.Result {
	r := n.result(id, check.Pass, "")
	r.Reason = reason
	return []check.Result{r}
}

// mode returns the most frequent item; of several the one that comes first.
func mode[T comparable](items []T) (best T, times int) {
	count := map[T]int{}
	for _, v := range items {
		count[v]++
	}
	for _, v := range items {
		if count[v] > times {
			best, times = v, count[v]
		}
	}
	return best, times
}

// choice is where NCCL goes on a node: what has to agree.
type choice struct{ iface, subnet string }

func (n *Node) choice() choice { return choice{n.NCCL.Iface, n.NCCL.Addr.Masked().String()} }

// common is what most nodes choose, part by part.
type common struct {
	iface, subnet string
	v4            bool
	subnets       int // different ones
}

func commonChoice(nodes []Node) (c common) {
	var ifaces, subnets []string
	var v4 []bool
	seen := map[string]bool{}
	for i := range nodes {
		if nodes[i].NCCL.Error == "" && nodes[i].NCCL.Iface != "" {
			ifaces, subnets = append(ifaces, nodes[i].choice().iface), append(subnets, nodes[i].choice().subnet)
			v4 = append(v4, nodes[i].NCCL.Addr.Addr().Is4())
			seen[nodes[i].choice().subnet] = true
		}
	}
	c.iface, _ = mode(ifaces)
	c.subnet, _ = mode(subnets)
	c.v4, _ = mode(v4)
	c.subnets = len(seen)
	return c
}

// judgeChoices: NCCL connects from the interface that it chose to the one that the others chose. That goes wrong where
// this is one which they do not reach: another subnet, unless it is the interface which routes to them (in a routed
// fabric every rack is a subnet), or addresses of another family.
func (n *Node) judgeChoices(nodes []Node, c common) []check.Result {
	const id = "iface-mismatch"
	if n.NCCL.Error != "" {
		r := n.result(id, check.Fail, "")
		r.Reason, r.Try = "NCCL finds no interface: "+n.NCCL.Error, n.export()
		return []check.Result{r}
	}
	if len(nodes) < 2 {
		r := n.result(id, check.Skip, n.NCCL.Iface)
		r.Reason = "one node has nothing to agree with"
		return []check.Result{r}
	}
	r := n.result(id, check.Pass, n.NCCL.Iface)
	r.Value, r.Limit = fmt.Sprintf("%s %s", n.NCCL.Iface, n.NCCL.Addr), strings.TrimSpace(c.iface+" "+c.subnet)
	r.Reason = fmt.Sprintf("NCCL takes %s, %s", r.Value, n.NCCL.Why)
	warn := func(why string) {
		if r.Status == check.Pass {
			r.Status, r.Try = check.Warn, n.export()
			r.Reason += "; " + why
		}
	}
	own := n.choice()
	if n.NCCL.Addr.Addr().Is4() != c.v4 {
		warn("most other nodes have addresses of another family there")
	}
	if n.NCCL.Addr.Addr().IsLoopback() {
		warn("no other node can be reached by that")
	}
	if own.subnet != c.subnet && own.iface != c.iface {
		warn(fmt.Sprintf("most nodes take %s in %s", c.iface, c.subnet))
	}
	if c.subnets > 1 && n.Route != "" && n.Route != own.iface {
		warn("nodes are in several subnets, and the way to the others is " + n.Route)
	}
	if n.Gloo.Error != "" {
		gloo := n.result(id, check.Fail, "")
		gloo.Reason, gloo.Try = "Gloo finds no interface: "+n.Gloo.Error, n.export()
		return []check.Result{r, gloo}
	}
	return []check.Result{r}
}

// export says what to set.
func (n *Node) export() string {
	if n.Route == "" {
		return "set NCCL_SOCKET_IFNAME==NAME and GLOO_SOCKET_IFNAME=NAME to the interface that reaches the other nodes"
	}
	return fmt.Sprintf("set NCCL_SOCKET_IFNAME==%s and GLOO_SOCKET_IFNAME=%s", n.Route, n.Route)
}

// judgeGloo: Debian's installer writes the machine's name with 127.0.1.1 into /etc/hosts. Gloo then works on one node.
func (n *Node) judgeGloo(nodes int) []check.Result {
	const id = "loopback-hostname"
	if n.Gloo.Error != "" {
		return nil // iface-mismatch tells of it
	}
	r := n.result(id, check.Pass, n.Gloo.Iface)
	r.Value = n.Gloo.Addr.Addr().String()
	r.Reason = fmt.Sprintf("Gloo takes %s, %s", r.Value, n.Gloo.Why)
	if nodes > 1 && n.Gloo.Addr.Addr().IsLoopback() {
		r.Status = check.Fail
		r.Reason += "; no other node reaches that"
		r.Try = "give the machine's name an address in /etc/hosts that others reach, or " + n.export()
	}
	return []check.Result{r}
}

// judgePorts: a port that is down is a fault where it is meant to be used, by the user's list or by the example of
// others.
func (n *Node) judgePorts(nodes []Node) []check.Result {
	const id = "rdma-port-down"
	var results []check.Result
	for i := range n.RDMA.Ports {
		p := &n.RDMA.Ports[i]
		if p.Active() {
			continue
		}
		r := n.result(id, check.Pass, p.Name())
		r.Value, r.Limit = p.State+", "+p.Phys, "ACTIVE, LinkUp"
		r.Reason = "it is " + r.Value
		peers := 0
		for k := range nodes {
			if nodes[k].Name != n.Name &&
				slices.ContainsFunc(nodes[k].RDMA.Ports, func(o RDMAPort) bool { return o.Name() == p.Name() && o.Active() }) {
				peers++
			}
		}
		switch {
		case p.Listed:
			r.Status = check.Fail
			r.Reason += ", and NCCL_IB_HCA=" + n.RDMA.Chosen + " asks for it"
		case peers > 0:
			r.Status = check.Fail
			r.Reason += fmt.Sprintf(", and active on %d other nodes", peers)
		}
		if r.Status == check.Fail {
			r.Try = "look at the cable, the switch port, and for InfiniBand whether a subnet manager runs (ibstat, ibdiagnet)"
		}
		results = append(results, r)
	}
	if results == nil {
		return n.passed(id, fmt.Sprintf("%d ports are active", len(n.RDMA.Ports)))
	}
	return results
}

// modelRates is the most frequent rate of the active ports of each model.
func modelRates(nodes []Node) map[string]float64 {
	rates := map[string][]float64{}
	for i := range nodes {
		for _, p := range nodes[i].RDMA.Ports {
			if p.Active() && p.Rate > 0 {
				rates[p.Model] = append(rates[p.Model], p.Rate)
			}
		}
	}
	usual := map[string]float64{}
	for model, r := range rates {
		slices.Sort(r)
		slices.Reverse(r) // of two the faster one is what the model can do
		usual[model], _ = mode(r)
	}
	return usual
}

func (n *Node) judgeRates(usual map[string]float64) []check.Result {
	const id = "rdma-rate"
	var results []check.Result
	for i := range n.RDMA.Ports {
		p := &n.RDMA.Ports[i]
		if want := usual[p.Model]; p.Active() && p.Rate > 0 && p.Rate < want {
			r := n.result(id, check.Fail, p.Name())
			r.Value, r.Limit = gigabits(p.Rate), gigabits(want)
			r.Reason = fmt.Sprintf("its rate is %s, that of most ports of the model %s is %s", r.Value, p.Model, r.Limit)
			r.Try = "look for a bad cable, and at the speed that the switch port is set to (mlxlink, ibdiagnet)"
			results = append(results, r)
		}
	}
	if results == nil {
		return n.passed(id, "no port is slower than others of its model")
	}
	return results
}

func gigabits(rate float64) string { return fmt.Sprintf("%g Gb/s", math.Round(rate*100)/100) }

// shape is how many ports a node has, and what rates those have that are active. A port that is down does not change
// it: rdma-port-down tells of that.
func (n *Node) shape() string {
	var rates []float64
	for i := range n.RDMA.Ports {
		if p := &n.RDMA.Ports[i]; p.Active() && !slices.Contains(rates, p.Rate) {
			rates = append(rates, p.Rate)
		}
	}
	slices.Sort(rates)
	var texts []string
	for _, r := range rates {
		texts = append(texts, gigabits(r))
	}
	if len(texts) == 0 {
		return fmt.Sprintf("%d ports", len(n.RDMA.Ports))
	}
	return fmt.Sprintf("%d ports (%s)", len(n.RDMA.Ports), strings.Join(texts, ", "))
}

func commonShape(nodes []Node) string {
	var shapes []string
	for i := range nodes {
		shapes = append(shapes, nodes[i].shape())
	}
	best, _ := mode(shapes)
	return best
}

// judgeShape: a job is as fast as its slowest node. Where two nodes differ nobody knows which one is right.
func (n *Node) judgeShape(nodes []Node, usual string) []check.Result {
	const id = "rdma-heterogeneous"
	if len(nodes) < 2 {
		r := n.result(id, check.Skip, "")
		r.Reason = "one node has nothing to differ from"
		return []check.Result{r}
	}
	own := n.shape()
	if own == usual {
		if len(nodes) > 2 || nodes[0].shape() == nodes[1].shape() {
			return n.passed(id, own)
		}
		usual = nodes[0].shape()
		if n.Name == nodes[0].Name {
			usual = nodes[1].shape()
		}
	}
	r := n.result(id, check.Fail, "")
	r.Value, r.Limit = own, usual
	r.Reason = fmt.Sprintf("it has %s, others have %s", own, usual)
	r.Try = "use nodes of one kind, or name ports that all of them have in NCCL_IB_HCA"
	return []check.Result{r}
}

// Counters that grow while is tested: of the first a link was lost or is about to be, the others slow it down.
var (
	rdmaFaults = []string{"link_downed", "local_link_integrity_errors"}
	rdmaNoise  = []string{"symbol_error", "out_of_sequence"}
)

func (n *Node) judgeGrowth() []check.Result {
	const id = "rdma-errors"
	var results []check.Result
	looked := false
	for i := range n.RDMA.Ports {
		p := &n.RDMA.Ports[i]
		looked = looked || p.Grown != nil
		r := n.result(id, check.Pass, p.Name())
		var grown []string
		for _, rule := range []struct {
			names  []string
			status check.Status
		}{{rdmaFaults, check.Fail}, {rdmaNoise, check.Warn}} {
			for _, name := range rule.names {
				if by := p.Grown[name]; by > 0 {
					r.Status = max(r.Status, rule.status)
					grown = append(grown, fmt.Sprintf("%s by %d", name, by))
				}
			}
		}
		if grown != nil {
			r.Value, r.Limit = strings.Join(grown, ", "), "0"
			r.Reason = "it has counted errors during the tests: " + r.Value
			r.Try = "exchange the cable or transceiver; out_of_sequence alone points to a congested or lossy fabric (PFC, ECN)"
			results = append(results, r)
		}
	}
	switch {
	case results != nil:
		return results
	case !looked:
		r := n.result(id, check.Skip, "")
		r.Reason = "counters were not read twice"
		return []check.Result{r}
	}
	return n.passed(id, "no counter of errors has grown")
}

// judgeUse is about whether active ports can be used.
func (n *Node) judgeUse() []check.Result {
	var results []check.Result
	active, noGID := 0, []string{}
	for i := range n.RDMA.Ports {
		p := &n.RDMA.Ports[i]
		if !p.Active() {
			continue
		}
		active++
		if p.Layer == "Ethernet" && !p.GID {
			noGID = append(noGID, p.Name())
		}
	}
	for _, name := range noGID {
		r := n.result("rdma-gid", check.Warn, name)
		r.Reason = "it has no GID of RoCE v2 for IPv4"
		r.Try = "give its network interface an IPv4 address (NCCL_IB_GID_INDEX then is the one of RoCE v2)"
		results = append(results, r)
	}
	if active == 0 {
		return results
	}
	if len(noGID) == 0 {
		results = append(results, n.passed("rdma-gid", "every active Ethernet port has a GID of RoCE v2 for IPv4")...)
	}
	if !n.RDMA.Verbs {
		r := n.result("rdma-device", check.Warn, "")
		r.Reason = fmt.Sprintf("%d ports are active, and there is no /dev/infiniband/uverbs*", active)
		r.Try = "start the container with --device=/dev/infiniband, or load ib_uverbs"
		results = append(results, r)
	} else {
		results = append(results, n.passed("rdma-device", "/dev/infiniband is there")...)
	}
	return append(results, n.judgeAffinity()...)
}

// judgeAffinity only informs: there may be no better place for the card.
func (n *Node) judgeAffinity() []check.Result {
	var far []string
	for _, g := range n.GPUs {
		near := slices.ContainsFunc(n.RDMA.Ports, func(p RDMAPort) bool { return p.Active() && p.NUMANode == g.NUMANode })
		if g.NUMANode >= 0 && !near {
			far = append(far, fmt.Sprint(g.Index))
		}
	}
	switch {
	case len(n.GPUs) == 0:
		return nil
	case far == nil:
		return n.passed("rdma-affinity", "every GPU has an active port on its NUMA node, as far as that is known")
	}
	return n.passed("rdma-affinity",
		fmt.Sprintf("no active port is on the NUMA node of GPU %s: their traffic crosses between sockets", strings.Join(far, ", ")))
}
