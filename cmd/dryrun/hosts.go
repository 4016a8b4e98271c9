package dryrun

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/rs/zerolog"

	"muster/cmd/dialect"
	"muster/internal/accel"
	"muster/internal/wording"
	"muster/launch/devices"
	"muster/launch/hosts"
	"muster/launch/job"
	"muster/launch/plan"
	"muster/rendezvous"
)

// Hosts is what is shown of a job that muster starts on hosts: each of its nodes, as far as that follows
// from what was asked for. What the hosts have, their accelerators and addresses, is not known before they are reached.
type Hosts struct {
	Dialect string      `json:"dialect"`
	RunID   string      `json:"run_id"`
	Flags   []setting   `json:"flags"`
	Nodes   []hostsNode `json:"nodes"`

	fixed bool // every machine has its place in the job
}

type hostsNode struct {
	Name string `json:"name"`
	// first is the rank of its first worker, negative where that is decided later.
	first int
	// ReachedBy is "ssh", or "a process" for this machine.
	ReachedBy string `json:"reached_by"`
	// Counted is the word by which its host counts the workers, and Workers has one of them; empty where the number is
	// known.
	Counted string `json:"workers_counted_by,omitempty"`
	workers int
	*Node
}

// MachineOf returns what the plan of a node needs to know of this machine.
type MachineOf func(node string, j job.Job) (plan.Machine, error)

// countedThere stands for what follows from the number of workers that a host counts.
const countedThere = "<counted on each host>"

// NewHosts shows a job that the launcher c would start.
func NewHosts(ctx context.Context, c hosts.LauncherConfig, req dialect.Request, machineOf MachineOf) (*Hosts, error) {
	f, err := hosts.Foresee(ctx, c)
	if err != nil {
		return nil, err
	}
	j, names := &f.Job, make([]string, len(f.Nodes))
	for i, n := range f.Nodes {
		names[i] = n.Name
	}
	d := &Hosts{Dialect: j.Dialect, RunID: j.RunID, Flags: settings(req), fixed: f.Fixed}
	plans, world := make([]*plan.Plan, len(names)), 0
	counted := make([]string, len(names))
	for i, n := range f.Nodes {
		part := n.Job
		machine, err := machineOf(n.Name, part)
		if err != nil {
			return nil, err
		}
		counted[i] = unseen(&part, &machine, c.Log)
		if plans[i], err = plan.New(part, machine); err != nil {
			return nil, fmt.Errorf("cannot plan node %s with what this machine has: %w", names[i], err)
		}
		world += plans[i].Procs
	}
	all := slices.ContainsFunc(counted, func(word string) bool { return word != "" })
	base, sure := 0, true
	for i, p := range plans {
		place := &knownRound{Round: rendezvous.Round{
			GroupRank: i, GroupWorldSize: len(plans), BaseRank: base, WorldSize: world, BaseRoleRank: base, RoleWorldSize: world,
			MasterAddr: f.MasterAddr, AgentStore: true,
		}, unsettled: unsettledCounts(all, !sure, counted[i] != "")}
		if ports := p.Job.Meeting.WorkerPorts; len(ports) > 0 {
			place.MasterPort = ports[0]
		}
		m := hostsNode{Name: names[i], ReachedBy: "ssh", Counted: counted[i], first: base, workers: p.Procs}
		if !f.Fixed || !sure {
			m.first = -1
		}
		if p.Job.Alone() {
			place.Round = p.DryRound()
		} else if !f.Fixed {
			place = nil
		}
		base, sure = base+p.Procs, sure && counted[i] == ""
		if i == 0 || req.JSON { // the text shows no more
			var err error
			if m.Node, err = newNode(p, nil, place, showingOf(req)); err != nil {
				return nil, err
			}
			m.counted = counted[i]
			d.RunID = m.RunID
		}
		if f.Nodes[i].Here {
			m.ReachedBy = "a process"
		}
		d.Nodes = append(d.Nodes, m)
	}
	return d, nil
}

// unseen takes the launcher's accelerators and CPUs out of what a node's plan is made with: the host has its own. It
// returns the word by which the host will count its workers, empty where their number is known. What a fake is asked is
// the same everywhere.
func unseen(j *job.Job, m *plan.Machine, log zerolog.Logger) string {
	if j.Fake != "" {
		return ""
	}
	none := devices.New(devices.Config{
		Job: j, Near: accel.Real(), Lookup: j.Lookup(), Detect: func() accel.Inventory { return accel.Inventory{} }, Log: log,
	})
	m.AssignDevices = func(_ string, workers int) (plan.DeviceVars, error) {
		var vars plan.DeviceVars
		if listed, ok := none.Listed(workers); ok {
			vars.Shared = append(vars.Shared, listed)
		}
		return vars, nil
	}
	m.BindWorkers = func(string, int) ([][]int, error) { return nil, nil }
	m.CountDevices = nil
	if _, err := strconv.Atoi(j.Procs); err == nil {
		return ""
	}
	m.CountWorkers = func(string) (int, string, error) { return 1, "of what the host has", nil }
	m.AssignDevices = nil // it depends on the number
	return j.Procs
}

// unsettledCounts are the variables that follow from the number of workers: of all nodes, of those before a node, and
// of the node itself.
func unsettledCounts(all, before, own bool) map[string]string {
	unsettled := map[string]string{}
	for names, unknown := range map[string]bool{
		"WORLD_SIZE ROLE_WORLD_SIZE": all, "RANK ROLE_RANK": before,
		"LOCAL_WORLD_SIZE LOCAL_SIZE": own,
	} {
		for name := range strings.FieldsSeq(names) {
			if unknown {
				unsettled[name] = countedThere
			}
		}
	}
	return unsettled
}

// Write shows the nodes, and the first of them in full.
func (d *Hosts) Write(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	_, _ = fmt.Fprintf(w, "nodes\n") // Flush tells what failed
	for _, n := range d.Nodes {
		reached, workers, ranks := "by ssh", wording.Plural(n.workers, "worker"), "ranks are decided when nodes meet"
		if n.ReachedBy != "ssh" {
			reached = "as a process of this machine"
		}
		switch {
		case n.Counted != "":
			workers = "workers counted there (" + n.Counted + ")"
			if n.first >= 0 {
				ranks = fmt.Sprintf("ranks from %d", n.first)
			} else if d.fixed {
				ranks = "ranks behind those of the node above"
			}
		case n.first >= 0 && n.workers == 1:
			ranks = fmt.Sprintf("rank %d", n.first)
		case n.first >= 0:
			ranks = fmt.Sprintf("ranks %d to %d", n.first, n.first+n.workers-1)
		case d.fixed:
			ranks = "ranks behind those of the node above"
		}
		_, _ = fmt.Fprintf(w, "  %s\t%s\t%s\t%s\n", n.Name, reached, workers, ranks)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprint(out, "\nthe first of them, with this machine's environment and programs; no host was asked for its accelerators "+
		"(--json shows all)\n\n")
	if err != nil {
		return err
	}
	first := *d.Nodes[0].Node
	first.Flags, first.Dialect = d.Flags, cmp.Or(d.Dialect, first.Dialect)
	return first.Write(out)
}
