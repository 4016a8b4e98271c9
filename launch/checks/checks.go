// Package checks is a node's part in the checks of a job, as its agent asks for them: what the job's rules mean for the
// network check (package netcheck), what of this node is examined and by which program, and what the record of a check
// means for this node.
package checks

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"muster/internal/accel"
	"muster/internal/errhint"
	"muster/internal/logtext"
	"muster/launch"
	"muster/launch/job"
	"muster/launch/plan"
	"muster/netcheck"
	"muster/netcheck/devicecheck"
	"muster/netcheck/netprobe"
	"muster/rendezvous"
	"muster/rendezvous/place"
)

// Config is what a node is checked with.
type Config struct {
	Plan *plan.Plan
	// At is how the other nodes reach this one.
	At place.Reach
	// Hostname is the name of this machine, Files are its files.
	Hostname string
	Files    accel.Root
	// Inventory is the accelerators of this node; the zero value where they are not known.
	Inventory accel.Inventory
	// Rehearsal is what stands in for devices and networks; nil for real ones.
	Rehearsal *Rehearsal
	// Examine is the command line of muster's own by which this node is examined in a round, and its environment.
	Examine func(round int) (args, environ []string)
	// Tables is where tables for people go; with AsJSON what they say is a field of a line of the log.
	Tables io.Writer
	AsJSON bool
	// Progress begins to show what a check does just now.
	Progress func(step string) *logtext.Progress
	Log      zerolog.Logger
}

// Rehearsal is what is made up of this node.
type Rehearsal struct {
	// Spec is the path of what says so; HasNetwork reports whether it says something of networks.
	Spec       string
	HasNetwork bool
	// At is what there is in a round.
	At func(round int) Made
}

// Made is what is made up of this node in a round.
type Made struct {
	Files   accel.Root
	Medium  *netprobe.Medium
	Links   *devicecheck.FakeLinks
	NoTorch bool
}

// Checker does this node's part in the checks of a job. It implements launch.Checker.
type Checker struct {
	config  Config
	plan    *plan.Plan
	devices int // processes that test devices here
	log     zerolog.Logger
	checker *netcheck.Checker

	// Of the check that is going on.
	in    launch.CheckInput
	now   *logtext.Progress
	files accel.Root
	made  *Made // nil for real devices
}

var _ launch.Checker = (*Checker)(nil)

// New returns what checks a node by the rules of its job.
func New(c Config) *Checker {
	rules, log := c.Plan.Job.Check, c.Log
	n := &Checker{config: c, plan: c.Plan, devices: processes(c.Plan, c.Inventory), log: log, files: c.Files}
	cfg := netcheck.Config{
		Node: c.Plan.Hostname, Addr: c.At.Addr, Devices: n.devices, IDs: c.At.IDs, Fake: c.Plan.Job.Fake, Log: log,
		Rules: netcheck.Rules{
			Network: rules.Network, Full: rules.Full, Budget: rules.Budget, Factor: rules.StragglerFactor, Median: rules.StragglerMedian,
			ExcludeStraggler: rules.ExcludeStraggler, CommPerf: rules.CommPerf, Limits: netLimits(rules),
		},
		Progress: func(s netcheck.Step) { n.now.Next("check of the nodes: "+s.String(), s.Limit) },
	}
	if floor := c.Plan.Job.Sources["min-net-bandwidth"]; len(c.At.Token) == 0 && floor.Kind == job.FromFlag {
		log.Warn().Msg("--min-net-bandwidth has no effect: without a job token (--token-file) no stream between nodes is measured")
	}
	if len(c.At.Token) > 0 {
		cfg.Probe, cfg.Look = probing(rules, c.At.Token), n.lookAtNetwork()
	} else if r := c.Rehearsal; rules.Network && r != nil && r.HasNetwork {
		log.Warn().Str("spec", r.Spec).
			Msg("the spec says something of networks, which nobody looks at: nodes probe each other only with a token (--token-file)")
	}
	if rules.Network {
		cfg.Inspect = n.inspect
	}
	n.checker = netcheck.New(cfg)
	return n
}

// processes is how many processes test devices here: one for each worker, but no more than there are devices that all
// workers see.
func processes(p *plan.Plan, found accel.Inventory) int {
	if n, _, err := accel.Workers("gpu", found, 0); err == nil && n > 0 && !p.OwnDevices() {
		return min(n, p.Procs)
	}
	return p.Procs
}

// current is the files of a node in the round of the check that goes on: whoever counts what has grown reads them in
// each.
type current struct{ *Checker }

// Open opens the file name.
func (c current) Open(name string) (fs.File, error) { return c.files.Open(name) }

// probing is how the network between two nodes is measured: at length where its figures were asked for.
func probing(rules job.CheckRules, token []byte) *netprobe.Config {
	cfg := &netprobe.Config{Token: token}
	if !rules.CommPerf {
		cfg.Tries, cfg.Echoes, cfg.EchoTime, cfg.Streams = 3, 500, 500*time.Millisecond, []int{}
	}
	return cfg
}

// netLimits are what is wanted of the network between two nodes.
func netLimits(rules job.CheckRules) netprobe.Limits {
	if rules.MinNetBandwidth == 0 {
		return netprobe.Limits{Bandwidth: -1} // zero would be the default
	}
	return netprobe.Limits{Bandwidth: rules.MinNetBandwidth * 1e6}
}

// lookAtNetwork returns what tells what this node has of a network.
func (c *Checker) lookAtNetwork() func(context.Context) netprobe.Node {
	machine, err := netprobe.Real(current{c})
	if err != nil {
		c.log.Warn().Err(err).Msg("network interfaces not looked at")
	}
	machine.Name, machine.Hostname, machine.Iface = c.plan.Hostname, c.config.Hostname, c.plan.Job.Meeting.Iface
	machine.Lookup = c.plan.Lookup // what the workers will see
	return func(ctx context.Context) netprobe.Node {
		n, err := machine.Look(ctx)
		if err != nil {
			c.log.Debug().Err(err).Msg("not all is known of this node's network")
		}
		return n
	}
}

// Check implements launch.Checker.
func (c *Checker) Check(ctx context.Context, in launch.CheckInput) (launch.CheckOutcome, error) {
	began := time.Now()
	c.in = in
	round := netcheck.Round{
		Board: in.Board, Rank: in.Round.GroupRank, Size: in.Round.GroupWorldSize, Suspect: in.Suspect, Door: in.Door, Standard: in.Standard,
		Open: func(ctx context.Context) (netcheck.Program, error) { return c.open(ctx, in) },
	}
	if r := c.config.Rehearsal; r != nil {
		made := r.At(in.Round.Number)
		c.made, c.files, round.Medium = &made, made.Files, made.Medium
	}
	c.log.Debug().Int("round", in.Round.Number).Int("group_world_size", in.Round.GroupWorldSize).Msg("checking the nodes")
	c.now = c.config.Progress("check of the nodes")
	record, err := c.checker.Check(ctx, round)
	c.now.End()
	if err != nil {
		return launch.CheckOutcome{}, err
	}
	c.tell(in, record, time.Since(began))
	out := outcomeFor(record, in.Round.GroupRank)
	switch {
	case !in.Door:
	case out.Everybody: // what is wrong shows when they are tested with nodes that are known to be good
		out = launch.CheckOutcome{}
	case out.Status != errhint.OK:
		own := record.Nodes[in.Round.GroupRank]
		out.Message = fmt.Sprintf("node %s does not join: %s", own.Node, own.Fault.Reason)
	}
	return out, nil
}

// outcomeFor is what a record means for the node with a group rank.
func outcomeFor(r *netcheck.Record, rank int) launch.CheckOutcome {
	if len(r.Undecided) > 0 {
		return launch.CheckOutcome{
			Status: errhint.Undecided, Everybody: true,
			Message: "the check of the nodes failed, and nobody can be blamed: " + strings.Join(r.Undecided, "; "),
		}
	}
	out := launch.CheckOutcome{Again: !r.Fit(), Skipped: r.Nodes[rank].Unable}
	for i, n := range r.Nodes {
		switch f := n.Fault; {
		case f == nil:
			continue
		case i == rank:
			out.Status, out.Message = f.Status, fmt.Sprintf("node %s (group rank %d) has to leave: %s", n.Node, i, f.Reason)
		}
		out.Excluded = append(out.Excluded, rendezvous.Exclusion{Node: n.Node, IDs: n.IDs, Reason: n.Fault.Reason})
		if rank == 0 {
			out.Faults = append(out.Faults, launch.NodeFault{Node: n.Node, Reason: n.Fault.Reason, Status: n.Fault.Status})
		}
	}
	return out
}
