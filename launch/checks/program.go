package checks

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"muster/launch"
	"muster/launch/job"
	"muster/netcheck"
	"muster/netcheck/devicecheck"
	"muster/netcheck/switchbox"
)

// open starts the check program.
func (c *Checker) open(ctx context.Context, in launch.CheckInput) (netcheck.Program, error) {
	rules := &c.plan.Job.Check
	processes := c.devices
	if !rules.Network {
		processes = 0 // the process that tests links sees all of them
	}
	devices, err := c.openDevices(ctx, in, processes, rules.Budget)
	if err != nil {
		return nil, err
	}
	return &program{devices: devices, rules: rules, log: c.log}, nil
}

// openDevices starts so many processes of it, each of whose commands takes no longer than budget.
func (c *Checker) openDevices(ctx context.Context, in launch.CheckInput, processes int, budget time.Duration) (*devicecheck.Program,
	error,
) {
	if in.Python == "" {
		return nil, fmt.Errorf("no Python was found for the check program: %w", netcheck.ErrUnable)
	}
	cfg := devicecheck.Config{
		Tree: in.Tree, Fork: in.Fork, Python: []string{in.Python}, Dir: in.Dir, Scratch: c.plan.RunDir, Devices: processes,
		Budget: budget, Log: c.log,
		Progress: func(local int, step string) {
			if c.now != nil {
				c.now.Detail(devicecheck.StepText(local, step))
			}
		},
		Env: func(local int) []string {
			env, err := in.Env(local)
			if err != nil {
				c.log.Warn().Err(err).Msg("environment of the check program")
			}
			return env
		},
	}
	if c.made != nil {
		cfg.Fake, cfg.NoTorch = c.made.Links, c.made.NoTorch
	}
	return devicecheck.Open(ctx, cfg)
}

// program is the check program as the network check uses it.
type program struct {
	devices *devicecheck.Program
	rules   *job.CheckRules
	kind    string // of its devices, once that is known
	log     zerolog.Logger
}

var _ netcheck.Program = (*program)(nil)

// unable marks errors that speak neither for nor against the node.
func unable(err error) error {
	if fault, ok := errors.AsType[*devicecheck.DeviceError](err); ok &&
		(fault.Cause == devicecheck.NoTorch || fault.Cause == devicecheck.NoDevice) {
		return fmt.Errorf("%w: %w", netcheck.ErrUnable, err)
	}
	return err
}

func (p *program) Ready(ctx context.Context) error { return unable(p.devices.Ready(ctx)) }

func (p *program) Local(ctx context.Context) (netcheck.Local, error) {
	var l netcheck.Local
	if box := p.rules.Switchbox; len(box.Pairs) > 0 {
		switch err := p.switchbox(ctx, box); {
		case err == nil:
		case p.rules.Network && devicecheck.HasNoDevice(err): // the other tests need none
			p.log.Warn().Err(err).Msg("the links between accelerators are not tested: this node has none")
		default:
			return l, unable(err)
		}
	}
	if !p.rules.Network {
		return l, nil
	}
	devices, err := p.devices.Local(ctx)
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

func (p *program) switchbox(ctx context.Context, rules job.SwitchboxRules) error {
	r, err := switchbox.Test(ctx, p.devices, switchboxRules(rules))
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

// switchboxRules are a job's rules as the test takes them.
func switchboxRules(rules job.SwitchboxRules) switchbox.Rules {
	r := switchbox.Rules{MinBandwidth: rules.MinBandwidth, MinChannels: rules.MinChannels}
	for _, p := range rules.Pairs {
		r.Pairs = append(r.Pairs, devicecheck.Pair(p))
	}
	return r
}

func (p *program) Serve(ctx context.Context) (int, error) { return p.devices.Serve(ctx) }

func (p *program) Exchange(ctx context.Context, g netcheck.Group) (netcheck.Timing, error) {
	sum, err := p.devices.Pair(ctx, groupOf(g), 0)
	return p.timing(sum), err
}

func (p *program) Perf(ctx context.Context, g netcheck.Group) ([]netcheck.Timing, error) {
	sums, err := p.devices.CommPerf(ctx, groupOf(g), nil)
	timings := make([]netcheck.Timing, len(sums))
	for i, s := range sums {
		timings[i] = p.timing(s)
	}
	return timings, err
}

func (p *program) Close() error { return p.devices.Close() }

func groupOf(g netcheck.Group) devicecheck.Group {
	return devicecheck.Group{Name: g.Name, Store: g.Store, FirstRank: g.FirstRank, World: g.World}
}

func (p *program) timing(s devicecheck.Sum) netcheck.Timing {
	return netcheck.Timing{Bytes: s.Bytes, Took: s.Median, AlgBW: s.AlgMBps() / 1e3, BusBW: s.BusMBps() / 1e3, Device: p.kind}
}
