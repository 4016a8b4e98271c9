package hosts

import (
	"cmp"
	"context"
	"net/netip"
	"time"

	"golang.org/x/sync/errgroup"

	"muster/launch/job"
)

// Foreseen is a job on hosts as far as it follows from what was asked for, before any of them is reached.
type Foreseen struct {
	// Job is the job as the launcher has prepared it.
	Job job.Job
	// Dir is the working directory on the hosts.
	Dir string
	// Nodes are by rank; none in an elastic job.
	Nodes []ForeseenNode
	// MasterAddr is the address of the first node, or what stands for it.
	MasterAddr string
	// Fixed reports whether every machine has its place in the job.
	Fixed bool
}

// ForeseenNode is one node of the job.
type ForeseenNode struct {
	Name string
	// Job is the node's part of the job.
	Job job.Job
	// Here reports whether the node would be on this machine.
	Here bool
}

// Foresee prepares a job as Launch and LaunchElastic do, and refuses what they would refuse. It reaches no machine.
func Foresee(ctx context.Context, c LauncherConfig) (Foreseen, error) {
	l := newLauncher(c)
	if err := l.prepare(); err != nil {
		return Foreseen{}, err
	}
	j := &l.job
	f := Foreseen{Job: *j, Dir: cmp.Or(j.Hosts.Dir, l.dir), Fixed: fixed(j)}
	names := l.nodeNames()
	if len(names) == 0 {
		return f, nil
	}
	l.addrs = make([]string, len(names))
	for i, n := range j.Hosts.Nodes {
		l.addrs[i] = foreseenAddr(n)
	}
	if host := l.masterHost(); host != "" && host != j.Hosts.Nodes[0].Name {
		l.addrs[0] = host
	}
	l.endpoints = []job.Endpoint{{Host: l.addrs[0]}}
	f.MasterAddr = l.addrs[0]
	local := whichAreHere(ctx, j.Hosts.Nodes)
	for i, name := range names {
		f.Nodes = append(f.Nodes, ForeseenNode{Name: name, Job: l.part(i), Here: local[i]})
	}
	return f, nil
}

// foreseenAddr is the address by which the others will reach a node: the one that it was named by, or one that its host
// will say.
func foreseenAddr(n job.Node) string {
	if addr, err := netip.ParseAddr(n.Name); err == nil && !addr.IsLoopback() && !addr.IsUnspecified() {
		return n.Name
	}
	return "<address of " + n.Name + ">"
}

// namesPatience is how long a plan waits for name servers: what they do not say counts as another machine.
const namesPatience = 500 * time.Millisecond

// whichAreHere reports of each node whether it would be on this machine.
func whichAreHere(ctx context.Context, nodes []job.Node) []bool {
	ctx, cancel := context.WithTimeout(ctx, namesPatience)
	defer cancel()
	local := make([]bool, len(nodes))
	var group errgroup.Group
	group.SetLimit(64)
	for i, n := range nodes {
		group.Go(func() error {
			local[i] = here(ctx, n.Host)
			return nil
		})
	}
	_ = group.Wait() // nothing there fails
	return local
}
