package here

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
func (h *Here) Checker(ctx context.Context, plan *plan.Plan, at place.Reach, log zerolog.Logger) launch.Checker {
	if !plan.Job.Check.On() {
		return nil
	}
	return h.checker(ctx, plan, at, log)
}

// Examiner implements node.Here.
func (h *Here) Examiner(plan *plan.Plan, at place.Reach, log zerolog.Logger) func(context.Context) launch.Checker {
	if plan.Job.Check.Network {
		return nil
	}
	return func(ctx context.Context) launch.Checker {
		thorough := *plan
		thorough.Job.Check.Network = true
		return h.checker(ctx, &thorough, at, log)
	}
}

// checker returns what examines the nodes of a job as it wants it.
func (h *Here) checker(ctx context.Context, plan *plan.Plan, at place.Reach, log zerolog.Logger) *checks.Checker {
	here, err := h.onFiles(ctx, &plan.Job)
	if err != nil {
		log.Warn().Err(err).Msg("accelerators not looked at for the check") // they were, a moment ago
		here = hardware.Hardware{}
	}
	return checks.New(checks.Config{
		Plan: plan, At: at, Hostname: Hostname(), Files: accel.Real(), Inventory: here.Inventory, Rehearsal: nodecheck.Rehearsed(here.Fake),
		Examine:  func(round int) (args, environ []string) { return h.checkCommand(plan, round) },
		Tables:   h.Console.Tables(),
		AsJSON:   h.Console.LogsJSON(),
		Progress: func(step string) *logtext.Progress { return h.Console.Progress(log, step) },
		Log:      log,
	})
}

// checkCommand is the command line of muster check that examines the node of a plan in a round, and its environment.
func (h *Here) checkCommand(plan *plan.Plan, round int) (args, environ []string) {
	args = []string{"muster", "check", "--json", "--nproc-per-node", strconv.Itoa(plan.Procs)}
	environ = job.WithVariable(h.Environ, hardware.RoundVariable, strconv.Itoa(round))
	if asked := &plan.Job; asked.Fake != "" {
		environ = job.WithVariable(environ, FakeNodeVariable, plan.Hostname) // which a launcher may have named
		args = append(args, "--accelerator", "fake:"+asked.Fake)
		if asked.FakeOnReal {
			args = append(args, "--fake-on-real")
		}
	}
	return args, environ
}

// acceleratorIDs are the ids of the accelerators that this node's workers see, by which it is known under another name,
// too: none where nodes are not checked, and where accelerators have none of their own.
func (h *Here) acceleratorIDs(ctx context.Context, j *job.Job) []string {
	if !j.Check.On() {
		return nil
	}
	here, err := h.onFiles(ctx, j)
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
