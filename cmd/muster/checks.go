package main

import (
	"context"
	"strconv"

	"github.com/rs/zerolog"

	"muster/internal/accel"
	"muster/internal/accel/rehearsal"
	"muster/internal/hardware"
	"muster/internal/logtext"
	"muster/launch"
	"muster/launch/checks"
	"muster/launch/job"
	"muster/launch/plan"
	"muster/netcheck/devicecheck"
	"muster/netcheck/netprobe"
	"muster/rendezvous/place"
)

// Checker implements node.Here.
func (a *app) Checker(ctx context.Context, plan *plan.Plan, at place.Reach, log zerolog.Logger) launch.Checker {
	if !plan.Job.Check.On() {
		return nil
	}
	here, err := a.onFiles(ctx, &plan.Job)
	if err != nil {
		log.Warn().Err(err).Msg("accelerators not looked at for the check") // they were, a moment ago
		here = hardware.Hardware{}
	}
	return checks.New(checks.Config{
		Plan: plan, At: at, Hostname: hostname(), Files: accel.Real(), Inventory: here.Inventory, Rehearsal: rehearsed(here.Fake),
		Examine:  func(round int) (args, environ []string) { return a.checkCommand(plan, round) },
		Tables:   &a.log,
		AsJSON:   a.logsJSON(),
		Progress: func(step string) *logtext.Progress { return a.progress(log, step) },
		Log:      log,
	})
}

// checkCommand is the command line of muster check that examines the node of a plan in a round, and its environment.
func (a *app) checkCommand(plan *plan.Plan, round int) (args, environ []string) {
	args = []string{"muster", "check", "--json", "--nproc-per-node", strconv.Itoa(plan.Procs)}
	environ = job.WithVariable(a.environ, hardware.RoundVariable, strconv.Itoa(round))
	if asked := &plan.Job; asked.Fake != "" {
		environ = job.WithVariable(environ, fakeNodeName, plan.Hostname) // which a launcher may have named
		args = append(args, "--accelerator", "fake:"+asked.Fake)
		if asked.FakeOnReal {
			args = append(args, "--fake-on-real")
		}
	}
	return args, environ
}

// rehearsed is what a spec puts in the place of devices and networks, nil for no spec.
func rehearsed(fake *rehearsal.Fake) *checks.Rehearsal {
	if fake == nil {
		return nil
	}
	return &checks.Rehearsal{Spec: fake.Path(), HasNetwork: fake.HasNetwork(), At: func(round int) checks.Made {
		now := fake.At(round)
		return checks.Made{Files: now.Root(accel.Real()), Medium: mediumOf(now), Links: linksOf(now), NoTorch: now.NoTorch()}
	}}
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
