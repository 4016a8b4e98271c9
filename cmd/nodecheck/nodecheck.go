// Package nodecheck is muster check: the flags become a policy and rules, the node's files, devices and links are looked
// at, and a report says whether it is fit. What a spec makes up for a rehearsal is brought into the form here in which
// checks of other packages take it. It prints nothing.
package nodecheck

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/rs/zerolog"

	"muster/internal/accel"
	"muster/internal/accel/rehearsal"
	"muster/internal/check"
	"muster/internal/errhint"
	"muster/internal/hardware"
	"muster/internal/logtext"
	"muster/launch/checks"
	"muster/launch/devices"
	"muster/netcheck/devicecheck"
	"muster/netcheck/netprobe"
	"muster/netcheck/switchbox"
)

// List is a line for each check that a node can be asked for.
func List() string {
	var b strings.Builder
	for _, id := range check.IDs() {
		if id.Apart && !strings.HasPrefix(id.Name, "switchbox") {
			continue
		}
		limit := ""
		if id.Unit != "" {
			limit = fmt.Sprintf(" (%d %s)", id.Limit, id.Unit)
		}
		fmt.Fprintf(&b, "  %-18s %-5v %s%s\n", id.Name, id.Default, id.Text, limit)
	}
	return strings.TrimRight(b.String(), "\n")
}

// moments is how often a GPU must be found slowed down to be judged so.
const moments = 3

// Config is what muster check was asked for, in the words of its flags.
type Config struct {
	Policy  string // file; empty for none
	OnSkip  string
	Workers string // that are to run here: a number, or a word such as auto
	Waive   []string
	Limits  []string
	Strict  bool
	Links   Links
	// Look finds this node's accelerators; moments is how often what only several readings tell is read.
	Look func(ctx context.Context, moments int) (hardware.Hardware, error)
	By   Tools
}

// Tools are what the test of links needs of the program.
type Tools struct {
	Environ  []string
	Guardian []string // the command line by which a guardian of processes is started
	Log      func() zerolog.Logger
	Progress func(log zerolog.Logger, step string) *logtext.Progress
}

// Run checks this node. The report says whether it is fit; an error says why it could not be checked.
func (f *Config) Run(ctx context.Context) (report check.Report, err error) {
	policy, err := f.policy()
	if err != nil {
		return report, err
	}
	var rules switchbox.Rules
	if f.Links.On {
		if rules, err = f.Links.rules(); err != nil {
			return report, err
		}
	}
	here, err := f.Look(ctx, moments)
	if err != nil {
		return report, err
	}
	if err := devices.PairsFit(rules.Pairs, here.Inventory); err != nil {
		return report, err
	}
	cpus, _ := accel.CPUs(here.Root)
	workers, err := strconv.Atoi(f.Workers)
	switch {
	case err != nil:
		if workers, _, err = accel.Workers(f.Workers, here.Inventory, cpus); err != nil {
			return report, err
		}
	case workers < 1:
		return report, errhint.Usagef("--nproc-per-node %d: at least 1", workers)
	}
	node := here.Health(ctx)
	node.Workers, node.CPUs, node.Policy = workers, cpus, &policy
	results := node.Check()
	if err := context.Cause(ctx); err != nil {
		return report, err // what was not asked any more would be told as a skip
	}
	if f.Links.On {
		links, err := f.Links.test(ctx, &f.By, &here, rules)
		if err != nil {
			return report, err
		}
		results = append(results, links...)
	}
	report = policy.Judge(here.Host, results)
	report.Fake = here.Inventory.Fake
	if here.NVML != nil && here.NVML.SMI { // any other reason is that of the checks that were skipped
		report.Notes = append(report.Notes, here.Degraded())
	}
	return report, nil
}

// policy makes a policy of the flags; they add to what the file says.
func (f *Config) policy() (check.Policy, error) {
	var p check.Policy
	if f.Policy != "" {
		var err error
		if p, err = check.LoadPolicy(f.Policy); err != nil {
			return p, err
		}
	}
	p.Strict = p.Strict || f.Strict
	onSkip, err := check.ParseOnSkip(f.OnSkip)
	if err != nil {
		return p, errhint.Usagef("--on-skip: %w", err)
	}
	p.OnSkip = max(p.OnSkip, onSkip)
	for _, text := range f.Waive {
		w, err := check.ParseWaiver(text)
		if err != nil {
			return p, errhint.Usagef("--waive: %w", err)
		}
		p.Waive = append(p.Waive, w)
	}
	for _, text := range f.Limits {
		if err := p.ParseLimit(text); err != nil {
			return p, errhint.Usagef("--limit: %w", err)
		}
	}
	return p, nil
}

// Rehearsed is what a spec puts in the place of devices and networks, nil for no spec.
func Rehearsed(fake *rehearsal.Fake) *checks.Rehearsal {
	if fake == nil {
		return nil
	}
	return &checks.Rehearsal{Spec: fake.Path(), HasNetwork: fake.HasNetwork(), At: func(round int) checks.Made {
		now := fake.At(round)
		return checks.Made{Files: now.Root(accel.Real()), Medium: mediumOf(now), Links: fakeLinks(now), NoTorch: now.NoTorch()}
	}}
}

// fakeLinks says what a fake's spec says of its links as the check program takes it.
func fakeLinks(fake *rehearsal.Fake) *devicecheck.FakeLinks {
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
