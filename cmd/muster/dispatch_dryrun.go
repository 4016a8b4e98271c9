package main

import (
	"cmp"
	"context"
	"fmt"
	"text/tabwriter"
	"time"

	"golang.org/x/sync/errgroup"

	"muster/launch"
	"muster/launch/job"
	"muster/rendezvous"
)

// dryDispatch is what --dry-run prints of a job that muster starts on machines: each of them as it would be with what this
// one has.
type dryDispatch struct {
	Dialect string       `json:"dialect"`
	RunID   string       `json:"run_id"`
	Flags   []dryFlag    `json:"flags"`
	Nodes   []dryMachine `json:"nodes"`
}

type dryMachine struct {
	Name string `json:"name"`
	// first is the rank of its first worker, negative where that is decided later; workers is how many it has.
	first, workers int
	// ReachedBy is "ssh", or "a process" for this machine.
	ReachedBy string `json:"reached_by"`
	*dryRun
}

// showPlan is --dry-run of a job on machines.
func (l *launcher) showPlan(ctx context.Context) error {
	if err := l.prepare(); err != nil {
		return err
	}
	j := &l.req.Job
	names := l.nodeNames()
	l.addrs = make([]string, len(names))
	for i, n := range j.Hosts.Nodes {
		l.addrs[i] = n.Name
	}
	if host := l.masterHost(); host != "" {
		l.addrs[0] = host
	}
	l.endpoints = []job.Endpoint{{Host: l.addrs[0]}}
	d := dryDispatch{Dialect: j.Dialect, RunID: j.RunID, Flags: dryFlags(l.req)}
	plans, world := make([]*launch.Plan, len(names)), 0
	for i := range names {
		node := &app{environ: l.environ, nodeName: names[i]}
		machine, err := node.machine(l.job(i), l.log)
		if err != nil {
			return err
		}
		if plans[i], err = launch.NewPlan(l.job(i), machine); err != nil {
			return fmt.Errorf("cannot plan node %s with what this machine has: %w", names[i], err)
		}
		world += plans[i].Procs
	}
	base, local := 0, whichAreHere(ctx, j.Hosts.Nodes)
	for i, p := range plans {
		r := rendezvous.Round{
			GroupRank: i, GroupWorldSize: len(plans), BaseRank: base, WorldSize: world, BaseRoleRank: base, RoleWorldSize: world,
			MasterAddr: l.addrs[0], AgentStore: true,
		}
		if ports := p.Job.Meeting.WorkerPorts; len(ports) > 0 {
			r.MasterPort = ports[0]
		}
		base += p.Procs
		m, place := dryMachine{Name: names[i], ReachedBy: "ssh", first: r.BaseRank, workers: p.Procs}, &r
		if !fixed(j) {
			m.first, place = -1, nil
		}
		if i == 0 || l.req.JSON { // the text shows no more
			var err error
			if m.dryRun, err = newDryRun(p, nil, place, showing(l.req.ShowValues)); err != nil {
				return err
			}
			d.RunID = m.RunID
		}
		if local[i] {
			m.ReachedBy = "a process"
		}
		d.Nodes = append(d.Nodes, m)
	}
	if l.req.JSON {
		return writeJSON(l.stdout, d)
	}
	return d.writeText(l)
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

// writeText shows the machines, and the first of them in full.
func (d *dryDispatch) writeText(l *launcher) error {
	w := tabwriter.NewWriter(l.stdout, 0, 8, 2, ' ', 0)
	_, _ = fmt.Fprintf(w, "machines\n") // Flush tells what failed
	for _, n := range d.Nodes {
		ranks := "ranks are decided when nodes meet"
		if n.first >= 0 {
			ranks = fmt.Sprintf("ranks %d to %d", n.first, n.first+n.workers-1)
		}
		_, _ = fmt.Fprintf(w, "  %s\t%s\t%d workers\t%s\n", n.Name, n.ReachedBy, n.workers, ranks)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	say(l.stdout, "\nthe first of them, as it would be with what this machine has (--json shows all)\n\n")
	first := *d.Nodes[0].dryRun
	first.Flags, first.Dialect = d.Flags, cmp.Or(d.Dialect, first.Dialect)
	return first.writeText(l.stdout)
}
