package netprobe

import (
	"context"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"slices"

	"muster/internal/hostaddr"
)

// Node is what a node says of itself. It travels as JSON, and JudgeNodes takes that of all nodes.
type Node struct {
	Name string
	// Route is the interface by which the node reaches the others, "" for unknown.
	Route string `json:",omitempty"`
	// NCCL and Gloo are the interfaces that these will take.
	NCCL, Gloo Choice
	RDMA       RDMA
	GPUs       []GPU `json:",omitempty"`
}

// GPU is where an accelerator is.
type GPU struct {
	Index    int
	NUMANode int // -1 for unknown
}

// Machine is where Look looks.
type Machine struct {
	Name string // of the node, in reports
	// RDMA reads the ports, nil for none. A second look with the same reader tells what has grown meanwhile.
	RDMA *RDMAReader
	// Lookup returns the variables that workers will see.
	Lookup func(name string) (string, bool)
	// Iface is the interface that the user chose, "" for the one that routes to Toward: a peer, such as the master.
	Iface  string
	Toward netip.AddrPort
	// Hostname is what this machine calls itself, Resolve what addresses that has for its programs.
	Hostname string
	Resolve  func(ctx context.Context, name string) ([]netip.Addr, error)
	// Interfaces are those of this machine, in the kernel's order.
	Interfaces []Interface
	GPUs       []GPU
}

// Look gathers what a node says of itself. What cannot be seen is missing; errors are about RDMA and the route only.
func (m Machine) Look(ctx context.Context) (Node, error) {
	n := Node{Name: m.Name, Route: m.Iface, GPUs: m.GPUs}
	var problem error
	if n.Route == "" && m.Toward.IsValid() {
		source, err := hostaddr.ToReach(m.Toward)
		if err != nil {
			problem = err
		} else {
			n.Route = ifaceOf(m.Interfaces, source)
		}
	}
	n.NCCL = NCCL(m.Interfaces, m.Lookup)
	var own []netip.Addr
	if m.Resolve != nil {
		own, _ = m.Resolve(ctx, m.Hostname) // no address is an answer, too
	}
	n.Gloo = Gloo(m.Interfaces, own, m.Lookup)
	if m.RDMA != nil {
		var err error
		if n.RDMA, err = m.RDMA.Read(); err != nil && problem == nil {
			problem = err
		}
		hca, _ := m.Lookup("NCCL_IB_HCA")
		n.RDMA.choose(hca)
	}
	return n, problem
}

// Real is this machine as far as it can be asked without knowing the job: the caller adds the rest.
func Real(root fs.FS) (Machine, error) {
	ifaces, err := interfaces()
	if err != nil {
		return Machine{}, err
	}
	return Machine{
		RDMA: NewRDMAReader(root), Interfaces: ifaces,
		Resolve: func(ctx context.Context, name string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", name)
		},
	}, nil
}

// Limits of what is taken from another node: more than any machine has, and too little to hurt.
const (
	mostPorts  = 256
	mostGPUs   = 1024
	nameLength = 253
)

// clean cuts down what another node has said.
func (n *Node) clean() {
	n.Name, n.Route = clean(n.Name, nameLength), clean(n.Route, 64)
	for _, c := range []*Choice{&n.NCCL, &n.Gloo} {
		c.Iface, c.Why, c.Error, c.Set = clean(c.Iface, 64), clean(c.Why, 200), clean(c.Error, 200), clean(c.Set, 200)
	}
	n.GPUs = slices.Clip(n.GPUs[:min(len(n.GPUs), mostGPUs)])
	n.RDMA.clean()
}

// Interface is a network interface as NCCL and Gloo see it.
type Interface struct {
	Name    string
	Running bool // up, and something is connected
	Up      bool
	// Addrs are its addresses with the length of their subnet, in the kernel's order.
	Addrs []netip.Prefix
	Speed int // in Mb/s, 0 where it cannot be read
}

// interfaces lists the interfaces of this machine, in the kernel's order.
func interfaces() ([]Interface, error) {
	found, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("cannot list the network interfaces: %w", err)
	}
	slices.SortStableFunc(found, func(a, b net.Interface) int { return a.Index - b.Index })
	var ifaces []Interface
	for _, f := range found {
		addrs, err := f.Addrs()
		if err != nil {
			continue // it has gone since it was listed
		}
		i := Interface{Name: f.Name, Up: f.Flags&net.FlagUp != 0, Running: f.Flags&net.FlagRunning != 0, Speed: speedOf(f.Name)}
		for _, a := range addrs {
			own, ok := a.(*net.IPNet)
			if !ok {
				continue
			}
			ones, _ := own.Mask.Size()
			if addr, ok := netip.AddrFromSlice(own.IP); ok {
				i.Addrs = append(i.Addrs, netip.PrefixFrom(addr.Unmap(), ones))
			}
		}
		ifaces = append(ifaces, i)
	}
	return ifaces, nil
}

// ifaceOf returns the interface that has an address, "" for none.
func ifaceOf(ifaces []Interface, addr netip.Addr) string {
	for _, i := range ifaces {
		for _, a := range i.Addrs {
			if a.Addr() == addr.WithZone("") || addr.IsLoopback() && a.Addr().IsLoopback() && a.Contains(addr) {
				return i.Name
			}
		}
	}
	return ""
}
