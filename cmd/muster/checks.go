package main

import (
	"context"
	"strconv"

	"github.com/rs/zerolog"

	"muster/cmd/nodecheck"
	"muster/internal/accel"
	"muster/internal/hardware"
	"muster/internal/logtext"
	"muster/launch"
	"muster/launch/checks"
	"muster/launch/job"
	"muster/launch/plan"
	"muster/rendezvous/place"
)

// Checker implements node.Here.
func (a *app) Checker(ctx context.Context, plan *plan.Plan, at place.Reach, log zerolog.Logger) launch.Checker {
	if !plan.Job.Check.On() {
		return nil
	}
	return a.checker(ctx, plan, at, log)
}

// Examiner implements node.Here.
func (a *app) Examiner(plan *plan.Plan, at place.Reach, log zerolog.Logger) func(context.Context) launch.Checker {
	if plan.Job.Check.Network {
		return nil
	}
	return func(ctx context.Context) launch.Checker {
		thorough := *plan
		thorough.Job.Check.Network = true
		return a.checker(ctx, &thorough, at, log)
	}
}

// checker returns what examines the nodes of a job as it wants it.
func (a *app) checker(ctx context.Context, plan *plan.Plan, at place.Reach, log zerolog.Logger) *checks.Checker {
	here, err := a.onFiles(ctx, &plan.Job)
	if err != nil {
		log.Warn().Err(err).Msg("accelerators not looked at for the check") // they were, a moment ago
		here = hardware.Hardware{}
	}
	return checks.New(checks.Config{
		Plan: plan, At: at, Hostname: hostname(), Files: accel.Real(), Inventory: here.Inventory, Rehearsal: nodecheck.Rehearsed(here.Fake),
		Examine:  func(round int) (args, environ []string) { return a.checkCommand(plan, round) },
		Tables:   a.console.Tables(),
		AsJSON:   a.console.LogsJSON(),
		Progress: func(step string) *logtext.Progress { return a.console.Progress(log, step) },
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

// acceleratorIDs are the ids of the accelerators that this node's workers see, by which it is known under another name,
// too: none where nodes are not checked, and where accelerators have none of their own.
func (a *app) acceleratorIDs(ctx context.Context, job *job.Job) []string {
	if !job.Check.On() {
		return nil
	}
	here, err := a.onFiles(ctx, job)
	if err != nil {
		return nil // the node has a name, too
	}
	var ids []string
	for _, d := range here.Inventory.Visible {
		if d.UUID != "" {
			ids = append(ids, d.UUID)
		}
	}
	return ids
}
