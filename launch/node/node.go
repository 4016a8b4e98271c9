// Package node runs one node's part of a job, whether its user has started it or a launcher: what the job leaves open
// is looked up on this machine, the nodes meet, and an agent runs the workers. Who starts a node does something of its
// own between these steps: it shows the plan, or waits for its launcher.
package node

import (
	"context"
	"errors"

	"github.com/rs/zerolog"

	"muster/internal/errhint"
	"muster/internal/hostaddr"
	"muster/internal/tokenfile"
	"muster/launch"
	"muster/launch/job"
	"muster/launch/plan"
	"muster/rendezvous/place"
)

// Here is the machine and the program that a node runs in.
type Here interface {
	// Machine is what a plan needs to know of this machine.
	Machine(j job.Job, log zerolog.Logger) (plan.Machine, error)
	// Meeting says where the nodes of a plan's job meet.
	Meeting(p *plan.Plan, log zerolog.Logger) place.Config
	// Checker returns what examines the nodes of the job, nil where nothing is asked for.
	Checker(ctx context.Context, p *plan.Plan, at place.Reach, log zerolog.Logger) launch.Checker
	// Examiner returns what examines the nodes of a job after a hang for which no cause was found, nil where Checker does
	// that as thoroughly.
	Examiner(p *plan.Plan, at place.Reach, log zerolog.Logger) func(context.Context) launch.Checker
	// Agent returns an agent that has what this program gives each of them: its streams, its guardian, and what keeps
	// checkpoints.
	Agent(p *plan.Plan, at place.Reach, in *launch.Interrupts, log zerolog.Logger) *launch.Agent
	// Launched reports whether a launcher has started this node: the job is that one's.
	Launched() bool
	// PassEvents returns what takes the node's events for the file of its launcher, nil where that has none.
	PassEvents() func(line []byte)
	// PrintError writes an error and its hint for people.
	PrintError(err error)
}

// Plan looks up what the job leaves open on this machine.
func Plan(ctx context.Context, j job.Job, here Here, log zerolog.Logger) (*plan.Plan, error) {
	machine, err := here.Machine(j, log)
	if err != nil {
		return nil, err
	}
	p, err := plan.New(j, machine)
	if err == nil {
		err = p.CheckWarm(ctx)
	}
	if err != nil {
		return nil, err
	}
	announce(p, log)
	return p, nil
}

// Preflight is Plan for a node that is compared with the others. The facts of this machine are there where its job
// cannot be planned, too: they say why.
func Preflight(ctx context.Context, j job.Job, here Here, log zerolog.Logger) (*plan.Plan, *job.Preflight, error) {
	machine, err := here.Machine(j, log)
	if err != nil {
		return nil, nil, err
	}
	p, facts := plan.TakePreflight(ctx, j, machine)
	if p == nil {
		return nil, &facts, errhint.Code(errhint.With(errors.New(facts.Problem), facts.Hint), facts.Status)
	}
	announce(p, log)
	return p, &facts, nil
}

// announce logs what was looked up.
func announce(p *plan.Plan, log zerolog.Logger) {
	for _, note := range p.Notes() {
		log.Warn().Msg(note)
	}
	if from := p.ProcsFrom(); from.Kind == job.FromMuster {
		log.Info().Int("local_world_size", p.Procs).Str("reason", from.Name).Msg("workers on this node")
	}
	if _, unbound := p.Bound(); unbound != nil {
		log.Warn().Err(unbound).Msg("workers are not bound to CPUs")
	}
}

// Meet opens what the nodes of the plan's job meet through, and returns the agent that is to run this node's part. A
// signal that comes meanwhile is an errhint.StatusError.
func Meet(ctx context.Context, p *plan.Plan, here Here, in *launch.Interrupts, log zerolog.Logger) (*launch.Agent, error) {
	meeting := here.Meeting(p, log)
	if file := p.Job.Meeting.TokenFile; p.Job.See.HTTP != "" && meeting.Token == nil && file != "" { // else who meets reads it
		var err error
		if meeting.Token, err = tokenfile.Read(file, log); err != nil {
			return nil, err
		}
	}
	steering, err := launch.OpenSteering(ctx, p, here.Launched(), here.PassEvents(), meeting.Token, log)
	if err != nil {
		return nil, err
	}
	handler, at, err := place.Open(steering.Until(ctx), meeting)
	if err != nil {
		launch.TellStopped(&p.Job, err, &log)
		steering.Refused(err)
		if closeErr := steering.Close(); closeErr != nil { //nolint:contextcheck // it bounds itself, also where ctx has ended
			log.Warn().Err(closeErr).Msg("the run directory could not be removed")
		}
		return nil, Stopped(err)
	}
	switchOn(p, at.Options, log)
	if !p.Job.Alone() {
		steering.OpenRelay(ctx, at.Addr, at.Token)
	}
	exportIface(ctx, p, at, log)
	agent := here.Agent(p, at, in, log)
	agent.Plan, agent.Handler, agent.Addr, agent.Checker, agent.Log = p, handler, at.Addr, here.Checker(ctx, p, at, log), log
	agent.Hurry, agent.Forward, agent.Steering = in.Hurry, in.Forward, steering
	agent.Examiner = here.Examiner(p, at, log)
	return agent, nil
}

// switchOn does what a master of DLRover wants of all nodes, as far as that can be done when the job is planned, and
// tells each of its options once.
func switchOn(p *plan.Plan, options []string, log zerolog.Logger) {
	check := &p.Job.Check
	for _, name := range options {
		var without string // effect
		switch name {
		case "network_check":
			check.Network = true
		case "comm_perf_test":
			check.CommPerf = true
		case "exclude_straggler":
			check.ExcludeStraggler = true
		case "save_at_breakpoint": // which muster does wherever it keeps checkpoints in memory
		case "numa_affinity":
			if p.Job.Bind.Mode == "" {
				without = "the workers' CPUs are settled when the master is asked: give --numa-affinity to dlrover-run"
			}
		case "auto_config":
			without = "the number of workers is settled when the master is asked: give --auto-config to dlrover-run"
		case "auto_tunning":
			without = "no ParallelConfig of the master's is used: muster tunes no data loaders and optimizers"
		default:
			without = "muster does not know it"
		}
		if without != "" {
			log.Warn().Str("option", name).Str("reason", without).Msg("DLRover's master switches an option on, without effect")
			continue
		}
		log.Info().Str("option", name).Msg("DLRover's master switches an option on")
	}
}

// exportIface tells workers which interface has the address by which other nodes reach this one, where that was asked
// for.
func exportIface(ctx context.Context, p *plan.Plan, at place.Reach, log zerolog.Logger) {
	if !p.Job.Meeting.ExportIface || p.Job.Alone() {
		return
	}
	var err error
	if p.Iface, err = hostaddr.InterfaceWith(ctx, at.Addr); err != nil {
		log.Warn().Err(err).Msg("workers are not told which network interface to use")
	}
}

// Stopped returns the status with which muster ends where err says that a signal has come, else err as it is.
func Stopped(err error) error {
	if stopped, ok := errors.AsType[*launch.SignalError](err); ok {
		return errhint.StatusError(errhint.FromSignal(int(stopped.Signal)))
	}
	return err
}

// Run runs an agent of Meet. Its error is an errhint.StatusError where the report, or what was printed, says
// everything.
func Run(ctx context.Context, agent *launch.Agent, here Here) (launch.Result, error) {
	result, err := agent.Run(ctx)
	switch s := result.Status; {
	case err != nil && (s == errhint.Faulty || s == errhint.Straggler || s == errhint.Undecided):
		here.PrintError(err) // what could not be ended is part of why the node is at fault
		return result, errhint.StatusError(s)
	case err != nil:
		return result, Compat(&agent.Plan.Job, err, here.PrintError)
	case s != errhint.OK:
		return result, errhint.StatusError(s)
	}
	return result, nil
}

// Compat gives err the status 1 where the job is to fail as under the launchers that muster replaces; then err is
// printed, unless it is a status alone. Refused input keeps its status 2.
func Compat(j *job.Job, err error, printError func(error)) error {
	if !j.CompatExit || err == nil || errhint.CodeOf(err) == errhint.Usage {
		return err
	}
	if _, told := errors.AsType[errhint.StatusError](err); !told {
		printError(err)
	}
	return errhint.StatusError(1)
}
