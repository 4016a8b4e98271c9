package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"muster/internal/accel"
	"muster/internal/accel/probe"
	"muster/internal/accel/rehearsal"
	"muster/internal/errhint"
	"muster/launch"
	"muster/launch/job"
	"muster/launch/plan"
	"muster/netcheck"
	"muster/netcheck/devicecheck"
	"muster/netcheck/netprobe"
	"muster/netcheck/report"
	"muster/netcheck/switchbox"
	"muster/rendezvous"
	"muster/rendezvous/place"
)

// nodeChecker does this node's part in the checks of a job.
type nodeChecker struct {
	plan    *plan.Plan
	devices int // of this node that are tested
	environ []string
	in      launch.CheckInput // of the check that is going on
	checker *netcheck.Checker
	fake    *rehearsal.Fake // nil for real devices
	files   accel.Root      // of this machine, or of the fake in the round of the check
	out     io.Writer       // where tables go
	began   func() *progress
	now     *progress // of the check that is going on
	log     zerolog.Logger
}

// Checker implements node.Here.
func (a *app) Checker(ctx context.Context, plan *plan.Plan, at place.Reach, log zerolog.Logger) launch.Checker {
	rules := plan.Job.Check
	if !rules.On() {
		return nil
	}
	devices, fake := a.checkedHardware(ctx, plan, log)
	cfg := netcheck.Config{
		Node: plan.Hostname, Addr: at.Addr, Devices: devices, IDs: at.IDs, Fake: plan.Job.Fake, Log: log,
		Rules: netcheck.Rules{
			Network: rules.Network, Full: rules.Full, Budget: rules.Budget, Factor: rules.StragglerFactor, Median: rules.StragglerMedian,
			ExcludeStraggler: rules.ExcludeStraggler, CommPerf: rules.CommPerf, Limits: netLimits(rules),
		},
	}
	c := &nodeChecker{plan: plan, devices: devices, environ: a.environ, fake: fake, files: accel.Real(), out: &a.log, log: log}
	if floor := plan.Job.Sources["min-net-bandwidth"]; len(at.Token) == 0 && floor.Kind == job.FromFlag {
		log.Warn().Msg("--min-net-bandwidth has no effect: without a job token (--token-file) no stream between nodes is measured")
	}
	if len(at.Token) > 0 {
		cfg.Probe, cfg.Look = probing(rules, at.Token), a.lookAtNetwork(plan, current{c}, log)
	} else if rules.Network && fake != nil && fake.HasNetwork() {
		log.Warn().Str("spec",
			fake.Path()).Msg("the spec says something of networks, which nobody looks at: nodes probe each other only with a token (--token-file)")
	}
	c.began = func() *progress { return a.newProgress(log, "check of the nodes") }
	cfg.Progress = func(s netcheck.Step) { c.now.check(s) }
	if rules.Network {
		cfg.Inspect = c.inspect
	}
	c.checker = netcheck.New(cfg)
	return c
}

// checkedHardware is what the check program is given: how many processes test devices here, one for each worker but no
// more than there are devices, and the fake that they are of, nil for real ones.
func (a *app) checkedHardware(ctx context.Context, plan *plan.Plan, log zerolog.Logger) (devices int, fake *rehearsal.Fake) {
	f := acceleratorFlags{spec: "auto", onReal: plan.Job.FakeOnReal, exec: probe.ExecNone}
	if plan.Job.Fake != "" {
		f.spec = "fake:" + plan.Job.Fake
	}
	here, err := f.look(ctx, a, 0) // files alone, at once
	if err != nil {
		log.Warn().Err(err).Msg("accelerators not looked at for the check") // they were, a moment ago
		return plan.Procs, nil
	}
	if n, _, err := accel.Workers("gpu", here.inv, 0); err == nil && n > 0 && !plan.OwnDevices() {
		return min(n, plan.Procs), here.fake
	}
	return plan.Procs, here.fake
}

// linksOf says what a fake's spec says of its links as the check program takes it.
func linksOf(fake *rehearsal.Fake) *devicecheck.FakeLinks {
	f := &devicecheck.FakeLinks{Count: fake.Count()}
	for _, l := range fake.Links() {
		link := devicecheck.FakeLink{
			OneWay: l.OneWay, MBps: float64(l.MBps), HostMBps: float64(l.HostMBps), Error: l.Error, Corrupt: l.Corrupt, Hang: l.Hang,
		}
		if !l.All {
			link.Ends = &devicecheck.Pair{l.A, l.B}
		}
		f.Links = append(f.Links, link)
	}
	return f
}

// mediumOf says what a fake's spec says of networks as the probes take it.
func mediumOf(fake *rehearsal.Fake) *netprobe.Medium {
	n := fake.Net()
	return &netprobe.Medium{Iface: n.Iface, MTU: n.MTU, Speed: n.Speed, Clock: n.Clock, Path: func(peer string) netprobe.Path {
		p := fake.PathTo(peer)
		return netprobe.Path{
			Unreachable: p.Unreachable, RTT: p.RTT, Rate: float64(p.RateMbps) * 1e6 / 8, Loss: p.Loss, MTU: p.MTU, Quiet: p.Quiet,
			Seed: p.Seed,
		}
	}}
}

// current is the files of a node in the round of the check that goes on: whoever counts what has grown reads them in
// each.
type current struct{ *nodeChecker }

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
func (a *app) lookAtNetwork(plan *plan.Plan, files fs.FS, log zerolog.Logger) func(context.Context) netprobe.Node {
	machine, err := netprobe.Real(files)
	if err != nil {
		log.Warn().Err(err).Msg("network interfaces not looked at")
	}
	machine.Name, machine.Hostname, machine.Iface = plan.Hostname, hostname(), plan.Job.Meeting.Iface
	machine.Lookup = plan.Lookup // what the workers will see
	return func(ctx context.Context) netprobe.Node {
		n, err := machine.Look(ctx)
		if err != nil {
			log.Debug().Err(err).Msg("not all is known of this node's network")
		}
		return n
	}
}

// Check implements launch.Checker.
func (c *nodeChecker) Check(ctx context.Context, in launch.CheckInput) (launch.CheckOutcome, error) {
	began := time.Now()
	c.in = in
	round := netcheck.Round{
		Board: in.Board, Rank: in.Round.GroupRank, Size: in.Round.GroupWorldSize, Suspect: in.Suspect, Door: in.Door, Standard: in.Standard,
		Open: func(ctx context.Context) (netcheck.Program, error) { return c.open(ctx, in) },
	}
	if c.fake != nil {
		fake := c.fake.At(in.Round.Number)
		c.files, round.Medium = fake.Root(accel.Real()), mediumOf(fake)
	}
	c.log.Debug().Int("round", in.Round.Number).Int("group_world_size", in.Round.GroupWorldSize).Msg("checking the nodes")
	c.now = c.began()
	record, err := c.checker.Check(ctx, round)
	c.now.end()
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
	out := launch.CheckOutcome{Again: !r.Fit()}
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

// tell says what a check has found: what concerns everybody on every node, the tables on the one that leads.
func (c *nodeChecker) tell(in launch.CheckInput, r *netcheck.Record, took time.Duration) {
	own := &r.Nodes[in.Round.GroupRank]
	level := zerolog.InfoLevel
	if own.Fault != nil || len(r.Undecided) > 0 || own.Unable != "" {
		level = zerolog.WarnLevel
	}
	what := "check of this node"
	if in.Door {
		what += " before it joins"
	}
	c.log.WithLevel(level).Str("status", string(own.Status)).Str("reason", own.Reason).Int("rounds", r.Rounds).Dur("dur_ms", took).Msg(what)
	if own.Unable != "" {
		c.log.Warn().Str("reason", own.Unable).Msg("nodes could not be tested: the check is skipped")
	}
	for i, n := range r.Nodes {
		if n.Fault != nil && i != in.Round.GroupRank {
			c.log.Warn().Str("node", n.Node).Int("exit_code", n.Fault.Status).Str("reason", n.Fault.Reason).Msg("node has to leave")
		}
	}
	for _, s := range r.Stragglers {
		c.log.Warn().Str("node", r.Nodes[s.Node].Node).Str("resource", s.Resource).Dur("took_ms", s.Took).Dur("others_ms",
			s.Others).Msg("node is a straggler")
	}
	for _, p := range r.Probes {
		c.log.Warn().Str("check", p.ID).Str("status", p.Status.String()).Str("node", p.Subject.Node).Str("pair", p.Subject.Pair).
			Str("reason", p.Reason).Str("hint", p.Try).Msg("network between nodes")
	}
	for _, link := range r.Links {
		if link.Faulty {
			c.log.Warn().Strs("nodes", []string{r.Nodes[link.A].Node, r.Nodes[link.B].Node}).Str("reason", link.Err).Msg("link is bad")
		}
	}
	if in.Round.GroupRank != 0 {
		return
	}
	write := report.Write
	if in.Door {
		write = report.WriteDoor
	} else if len(r.Links) > 0 || len(r.Perf) > 0 || !r.Fit() {
		say(c.out, "%s", report.Text(r))
	}
	if dir := c.plan.Job.Check.ReportDir; dir != "" {
		paths, err := write(dir, in.Round.Number, r)
		if err != nil {
			c.log.Warn().Err(err).Msg("report not written")
			return
		}
		c.log.Info().Strs("paths", paths).Msg("report written")
	}
}

// open starts the check program.
func (c *nodeChecker) open(ctx context.Context, in launch.CheckInput) (netcheck.Program, error) {
	if in.Python == "" {
		return nil, fmt.Errorf("no Python was found for the check program: %w", netcheck.ErrUnable)
	}
	rules := &c.plan.Job.Check
	devices := c.devices
	if !rules.Network {
		devices = 0 // the process that tests links sees all of them
	}
	cfg := devicecheck.Config{
		Tree: in.Tree, Fork: in.Fork, Python: []string{in.Python}, Dir: in.Dir, Scratch: c.plan.RunDir, Devices: devices,
		Budget: rules.Budget, Log: c.log,
		Progress: c.now.process,
		Env: func(local int) []string {
			env, err := in.Env(local)
			if err != nil {
				c.log.Warn().Err(err).Msg("environment of the check program")
			}
			return env
		},
	}
	if c.fake != nil {
		now := c.fake.At(in.Round.Number)
		cfg.Fake, cfg.NoTorch = linksOf(now), now.NoTorch()
	}
	program, err := devicecheck.Open(ctx, cfg)
	if err != nil {
		return nil, err
	}
	return &checkProgram{program: program, rules: rules, log: c.log}, nil
}

// checkProgram is the check program as the network check uses it.
type checkProgram struct {
	program *devicecheck.Program
	rules   *job.CheckRules
	kind    string // of its devices, once that is known
	log     zerolog.Logger
}

var _ netcheck.Program = (*checkProgram)(nil)

// unable marks errors that speak neither for nor against the node.
func unable(err error) error {
	if fault, ok := errors.AsType[*devicecheck.DeviceError](err); ok &&
		(fault.Cause == devicecheck.NoTorch || fault.Cause == devicecheck.NoDevice) {
		return fmt.Errorf("%w: %w", netcheck.ErrUnable, err)
	}
	return err
}

func (p *checkProgram) Ready(ctx context.Context) error { return unable(p.program.Ready(ctx)) }

func (p *checkProgram) Local(ctx context.Context) (netcheck.Local, error) {
	var l netcheck.Local
	if box := p.rules.Switchbox; len(box.Pairs) > 0 {
		switch err := p.switchbox(ctx, box); {
		case err == nil:
		case p.rules.Network && noDevice(err): // the other tests need none
			p.log.Warn().Err(err).Msg("the links between accelerators are not tested: this node has none")
		default:
			return l, unable(err)
		}
	}
	if !p.rules.Network {
		return l, nil
	}
	devices, err := p.program.Local(ctx)
	if err != nil {
		return l, unable(err)
	}
	for _, d := range devices {
		p.kind, l.Kind = d.Kind, d.Kind
		took := d.Matmul.Median
		if d.Kind == "cpu" {
			took = d.Matmul.Best // a product takes microseconds there: whatever else runs would make a straggler of the node
		}
		l.Compute = max(l.Compute, took)
		if d.AllReduce != nil {
			l.Reduce = max(l.Reduce, d.AllReduce.Median)
		}
	}
	return l, nil
}

func (p *checkProgram) switchbox(ctx context.Context, rules job.SwitchboxRules) error {
	r, err := switchbox.Test(ctx, p.program, switchboxRules(rules))
	if err != nil {
		return err
	}
	for _, line := range r.Lines() {
		level := zerolog.InfoLevel
		if r.Fault() != "" || strings.HasSuffix(line, "FAULT") || strings.HasSuffix(line, "WARN") {
			level = zerolog.WarnLevel
		}
		p.log.WithLevel(level).Msg(line)
	}
	if why := r.Fault(); why != "" {
		return errors.New(why)
	}
	return nil
}

func switchboxRules(rules job.SwitchboxRules) switchbox.Rules {
	r := switchbox.Rules{MinBandwidth: rules.MinBandwidth, MinChannels: rules.MinChannels}
	for _, p := range rules.Pairs {
		r.Pairs = append(r.Pairs, devicecheck.Pair(p))
	}
	return r
}

func (p *checkProgram) Serve(ctx context.Context) (int, error) { return p.program.Serve(ctx) }

func (p *checkProgram) Exchange(ctx context.Context, g netcheck.Group) (netcheck.Timing, error) {
	sum, err := p.program.Pair(ctx, groupOf(g), 0)
	return p.timing(sum), err
}

func (p *checkProgram) Perf(ctx context.Context, g netcheck.Group) ([]netcheck.Timing, error) {
	sums, err := p.program.CommPerf(ctx, groupOf(g), nil)
	timings := make([]netcheck.Timing, len(sums))
	for i, s := range sums {
		timings[i] = p.timing(s)
	}
	return timings, err
}

func (p *checkProgram) Close() error { return p.program.Close() }

func groupOf(g netcheck.Group) devicecheck.Group {
	return devicecheck.Group{Name: g.Name, Store: g.Store, FirstRank: g.FirstRank, World: g.World}
}

func (p *checkProgram) timing(s devicecheck.Sum) netcheck.Timing {
	return netcheck.Timing{Bytes: s.Bytes, Took: s.Median, AlgBW: s.AlgMBps() / 1e3, BusBW: s.BusMBps() / 1e3, Device: p.kind}
}
