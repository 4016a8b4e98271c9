package main

import (
	"context"
	"errors"
	"slices"

	"github.com/rs/zerolog"

	"muster/cmd/dialect"
	"muster/cmd/dryrun"
	"muster/cmd/here"
	"muster/internal/accel"
	"muster/internal/errhint"
	"muster/launch"
	"muster/launch/node"
	"muster/rendezvous/place"
)

// launch does what a command line asked for: it shows the plan or runs the job, and returns how that ended.
func (a *app) launch(ctx context.Context, req dialect.Request) error {
	level, err := zerolog.ParseLevel(req.LogLevel)
	if err != nil {
		return errhint.Usagef("--log-level %q: %w", req.LogLevel, err)
	}
	a.console.Format = req.LogFormat
	log := a.console.Logger(level)
	if !a.here.Simulated() { // else whoever simulates has read the same command line
		for _, w := range req.Job.Warnings {
			log.Warn().Msg(w)
		}
		tellPlatform(req, log)
	}
	if req.MadeUp != "" {
		forget, err := here.MakeUp(&req.Job, req.MadeUp, req.File.Launcher != nil) // a launcher's hosts have names of their own
		if err != nil {
			return a.refused(req, here.Hostname(), err)
		}
		defer forget()
		a.here.RemoveOnDeath = append(a.here.RemoveOnDeath, req.Job.Fake)
	}
	if req.SimulateNodes > 0 && !req.DryRun && !a.here.Simulated() {
		return a.simulate(ctx, req, log)
	}
	req.Job.Logs.Color = req.Job.Logs.PrefixAll && a.console.Colors()
	if a.here.Simulated() {
		a.here.JoinSimulation(&req.Job)
	}
	if h := req.Horovod; h != nil && h.Elastic {
		return a.runElastic(ctx, req, log)
	}
	if req.SavePID && !req.DryRun {
		forget, err := savePID()
		if err != nil {
			return a.refused(req, here.Hostname(), err)
		}
		defer forget()
	}
	if len(req.Job.Hosts.Nodes) > 0 {
		return a.runHosts(ctx, req, log)
	}
	plan, err := node.Plan(ctx, req.Job, a.here, log)
	if err != nil {
		return a.refused(req, a.here.HostOf(&req.Job), err)
	}
	if cpus, unbound := plan.Bound(); cpus != nil && unbound == nil {
		log.Info().Str("mode", req.Job.Bind.Mode).Strs("cpus", accel.FormatLists(cpus)).Msg("workers are bound to CPUs")
	}
	if shown := plan.Job.Logs.Ranks; len(shown) > 0 && slices.Min(shown) >= plan.Procs {
		log.Warn().Ints("local_ranks", shown).Msg("--local-ranks-filter names no worker: nothing will be shown")
	}
	if req.DryRun {
		if err := place.Check(&plan.Job); err != nil {
			return a.refused(req, a.here.HostOf(&req.Job), err)
		}
		d, err := dryrun.NewNode(plan, req)
		if err != nil {
			return err
		}
		return a.show(d, req.JSON)
	}
	ctx, in := launch.WatchSignals(ctx, plan.Job.Stop.Handled, plan.Job.Checkpoint.Signal)
	defer in.Close()
	agent, err := node.Meet(ctx, plan, a.here, in, log)
	if _, stopped := errors.AsType[errhint.StatusError](err); stopped {
		return node.Compat(&req.Job, err, a.console.PrintError)
	}
	if err != nil {
		return a.refused(req, a.here.HostOf(&req.Job), err)
	}
	result, err := node.Run(ctx, agent, a.here)
	a.console.Report(result.Report)
	return err
}

// refused is how a job ends that could not be started, or shown.
func (a *app) refused(req dialect.Request, host string, err error) error {
	if req.DryRun {
		return node.Compat(&req.Job, err, a.console.PrintError)
	}
	return a.here.Refused(req.Job, host, err)
}
