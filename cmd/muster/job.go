package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rs/zerolog"

	"muster/cmd/dialect"
	"muster/internal/accel"
	"muster/internal/errhint"
	"muster/internal/hostaddr"
	"muster/internal/logtext"
	"muster/launch"
	"muster/launch/job"
	"muster/launch/plan"
	"muster/launch/report"
	"muster/rendezvous"
	"muster/rendezvous/place"
)

// launch does what a command line asked for: it shows the plan or runs the job, and returns how that ended.
func (a *app) launch(ctx context.Context, req dialect.Request) error {
	level, err := zerolog.ParseLevel(req.LogLevel)
	if err != nil {
		return errhint.Usagef("--log-level %q: %w", req.LogLevel, err)
	}
	a.logFormat = req.LogFormat
	log := a.logger(level)
	if !a.simulated() { // else whoever simulates has read the same command line
		for _, w := range req.Job.Warnings {
			log.Warn().Msg(w)
		}
		tellPlatform(req, log)
	}
	if req.SimulateNodes > 0 && !req.DryRun && !a.simulated() {
		return a.simulate(ctx, req, log)
	}
	req.Job.Logs.Color = req.Job.Logs.PrefixAll && a.colors()
	if a.simulated() {
		markWorkers(&req.Job.Logs)
	}
	if h := req.Horovod; h != nil && h.Elastic {
		return a.horovodElastic(ctx, req, log)
	}
	if req.SavePID && !req.DryRun {
		forget, err := savePID()
		if err != nil {
			return a.refused(req, plan.Machine{Hostname: hostname()}, err)
		}
		defer forget()
	}
	if len(req.Job.Hosts.Nodes) > 0 {
		return a.dispatch(ctx, req, log)
	}
	machine, err := a.machine(req.Job, log)
	if err != nil {
		return a.refused(req, machine, err)
	}
	plan, err := plan.New(req.Job, machine)
	if err != nil {
		return a.refused(req, machine, err)
	}
	for _, note := range plan.Notes() {
		log.Warn().Msg(note)
	}
	if from := plan.ProcsFrom(); from.Kind == job.FromMuster {
		log.Info().Int("local_world_size", plan.Procs).Str("reason", from.Name).Msg("workers on this node")
	}
	cpus, unbound := plan.Bound()
	if unbound != nil {
		log.Warn().Err(unbound).Msg("workers are not bound to CPUs")
	} else if cpus != nil {
		log.Info().Str("mode", req.Job.Bind.Mode).Strs("cpus", formatLists(cpus)).Msg("workers are bound to CPUs")
	}
	if shown := plan.Job.Logs.Ranks; len(shown) > 0 && slices.Min(shown) >= plan.Procs {
		log.Warn().Ints("local_ranks", shown).Msg("--local-ranks-filter names no worker: nothing will be shown")
	}
	if req.DryRun {
		if err := place.Check(&plan.Job); err != nil {
			return a.refused(req, machine, err)
		}
		return a.showPlan(plan, req)
	}
	ctx, in := watchSignals(ctx, plan.Job.Stop.Handled, plan.Job.Checkpoint.Signal)
	defer in.close()
	handler, at, err := place.Open(ctx, a.meeting(plan, log))
	if stopped, ok := errors.AsType[*launch.SignalError](err); ok {
		return a.compat(req.Job, statusError(errhint.FromSignal(int(stopped.Signal))))
	}
	if err != nil {
		return a.refused(req, machine, err)
	}
	a.exportIface(ctx, plan, at, log)
	return a.runJob(ctx, plan, handler, at, a.newChecker(ctx, plan, at, log), in, log)
}

// meeting is where the nodes of a plan's job meet.
func (a *app) meeting(plan *plan.Plan, log zerolog.Logger) place.Config {
	return place.Config{
		Job: &plan.Job, RunID: plan.RunID, Hostname: plan.Hostname, MasterHost: plan.MasterHost(), Token: a.token,
		IDs: func(ctx context.Context) []string { return a.acceleratorIDs(ctx, &plan.Job) }, Simulated: a.simulated(), ClockOffset: clockOffset(), Log: log,
	}
}

// exportIface tells workers which interface has the address by which other nodes reach this one, where that was asked for.
func (a *app) exportIface(ctx context.Context, plan *plan.Plan, at place.Reach, log zerolog.Logger) {
	if !plan.Job.Meeting.ExportIface || plan.Job.Alone() {
		return
	}
	var err error
	if plan.Iface, err = hostaddr.InterfaceWith(ctx, at.Addr); err != nil {
		log.Warn().Err(err).Msg("workers are not told which network interface to use")
	}
}

// refused is how a job ends that could not be started: its status file says so too.
func (a *app) refused(req dialect.Request, m plan.Machine, err error) error {
	if !req.DryRun {
		report.TellRefused(req.Job, m.Hostname, []*os.File{a.stdout, a.stderr}, a.terminationLog(), err)
	}
	return a.compat(req.Job, err)
}

// compat gives err the status 1 where the job is to fail as under the launchers that muster replaces. Refused input keeps
// its status 2.
func (a *app) compat(job job.Job, err error) error {
	if job.CompatExit && err != nil && errhint.CodeOf(err) != errhint.Usage {
		a.printError(err)
		return statusError(1)
	}
	return err
}

// cacheDir is where what can be made again is kept for this user, empty where there is no such place.
func (a *app) cacheDir() string {
	for _, dir := range []string{a.getenv("XDG_CACHE_HOME"), filepath.Join(a.getenv("HOME"), ".cache")} {
		if filepath.IsAbs(dir) { // as the XDG Base Directory Specification has it
			return dir
		}
	}
	return ""
}

// machine is what a plan needs to know of this node.
func (a *app) machine(job job.Job, log zerolog.Logger) (plan.Machine, error) {
	m := plan.Machine{RuntimeDir: a.getenv("XDG_RUNTIME_DIR"), CacheDir: a.cacheDir()}
	var err error
	if m.Dir, err = os.Getwd(); err != nil {
		return m, errhint.Code(errhint.With(fmt.Errorf("cannot tell the working directory: %w", err), "was it removed? change to one that is there"), errhint.Usage)
	}
	if m.TempDir, err = filepath.Abs(os.TempDir()); err != nil {
		return m, fmt.Errorf("cannot tell the directory of temporary files: %w", err)
	}
	m.Hostname, m.Token = cmp.Or(a.nodeName, hostname()), a.token != nil || len(job.Hosts.Nodes) > 0
	root := accel.Real()
	seen := job.Lookup() // what workers will be told of devices counts, not what we were
	near, lookup := root, seen
	find := func() accel.Inventory { return accel.Detect(root, seen) }
	var standIns func([]int) ([]int, error)
	if job.Fake != "" {
		m.Hostname = a.fakeNode(m.Hostname)
		fake, err := a.loadFake(job.Fake, m.Hostname, job.FakeOnReal)
		if err != nil {
			return m, err
		}
		level := zerolog.WarnLevel
		if a.simulated() {
			level = zerolog.DebugLevel // whoever simulates the nodes has said so of all
		}
		log.WithLevel(level).Str("spec", fake.Path()).Msg(fake.Banner())
		if fake.HasNetwork() && !job.Check.Network {
			log.Warn().Str("spec", fake.Path()).Msg("the spec says something of networks, which nobody looks at: nodes probe each other only in their check (--network-check), and with a token (--token-file)")
		}
		m.DeviceEnv, m.RoundEnv = fake.Env(), fake.RoundEnv
		near, lookup = fake.Root(root), fake.Lookup(seen)
		find = func() accel.Inventory { return fake.Detect(root, seen) }
		standIns = func(cpus []int) ([]int, error) { return fake.OnMachine(cpus, root) }
	}
	devices := newNodeDevices(&job, near, lookup, find, log)
	devices.standIns = standIns
	m.CountWorkers, m.CountDevices, m.AssignDevices, m.BindWorkers = devices.count, devices.visible, devices.assign, devices.bind
	return m, nil
}

// formatLists writes lists of CPUs for people.
func formatLists(lists [][]int) []string {
	texts := make([]string, len(lists))
	for i, list := range lists {
		texts[i] = accel.FormatList(list)
	}
	return texts
}

// runJob runs the agent, and prints what it reports.
func (a *app) runJob(ctx context.Context, plan *plan.Plan, handler rendezvous.Handler, at place.Reach, checker launch.Checker, in *interrupts, log zerolog.Logger) error {
	result, err := a.runAgent(ctx, plan, handler, at, checker, in, log)
	say(a.stderr, "%s", result.Report)
	return err
}

// runAgent runs the agent. Its error is a statusError where the report, or what was printed, says everything.
func (a *app) runAgent(ctx context.Context, plan *plan.Plan, handler rendezvous.Handler, at place.Reach, checker launch.Checker, in *interrupts, log zerolog.Logger) (launch.Result, error) {
	agent := &launch.Agent{
		Plan: plan, Handler: handler, Checker: checker, Log: log, LogTo: a.logTo,
		Stdin: a.stdin, Stdout: a.stdout, Stderr: a.stderr,
		StopTold: a.nodeName != "", Hurry: in.hurry, Forward: in.forward, Guardian: []string{"/proc/self/exe", guardianArg},
		OpenCheckpoints: checkpointService(plan, at, a.memoryDir(), log), Salvager: []string{"/proc/self/exe", salvageArg, cmp.Or(a.logFormat, logtext.Auto)},
		Notices:   a.notices(plan.Job.Checkpoint, in),
		ErrorFile: a.getenv("TORCHELASTIC_ERROR_FILE"), TerminationLog: a.terminationLog(), LogsGo: a.logsGo,
	}
	result, err := agent.Run(ctx)
	if s := result.Status; err != nil && (s == errhint.Faulty || s == errhint.Straggler || s == errhint.Undecided) {
		a.printError(err) // what could not be ended is part of why the node is at fault
		return result, statusError(s)
	}
	if err != nil {
		return result, a.compat(plan.Job, err)
	}
	if result.Status != errhint.OK {
		return result, statusError(result.Status)
	}
	return result, nil
}

// logTo sends our own log to out, or back to standard error for nil.
func (a *app) logTo(out io.Writer) {
	if out == nil {
		out = a.stderr
	}
	a.log.to(out)
	a.endWaiting()
}

// terminationLog is the file from which Kubernetes reads why a container ended, empty outside of it.
func (a *app) terminationLog() string {
	const path = "/dev/termination-log"
	if a.getenv("KUBERNETES_SERVICE_HOST") == "" {
		return ""
	}
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		return ""
	}
	return path
}

// dryFlags are a request's settings as --dry-run shows them: those that were given or derived, with --all and for machines
// those that have their defaults, too. A flag that a launcher and muster both have stands there once, with its stronger source.
func dryFlags(req dialect.Request) []dryFlag {
	flags := []dryFlag{}
	strongest := map[string]job.SourceKind{}
	for _, s := range req.Settings {
		strongest[s.Flag] = max(strongest[s.Flag], s.Source.Kind)
	}
	shown := map[string]bool{}
	for _, s := range req.Settings {
		name := strings.ReplaceAll(s.Flag, "_", "-")
		byDefault := s.Source.Kind == job.FromDefault
		if shown[name] || s.Source.Kind < strongest[s.Flag] || byDefault && !req.All && !req.JSON {
			continue
		}
		shown[name] = true
		value := s.Value
		if req.ShowValues {
			value = s.Full
		}
		flags = append(flags, dryFlag{Name: s.Flag, Value: value, Source: s.Source.String()})
	}
	return flags
}

// showPlan is --dry-run.
func (a *app) showPlan(plan *plan.Plan, req dialect.Request) error {
	d, err := newDryRun(plan, dryFlags(req), nil, showing(req.ShowValues))
	if err != nil {
		return err
	}
	d.Platform = newDryPlatform(req.Platform)
	if req.JSON {
		return writeJSON(a.stdout, d)
	}
	return d.writeText(a.stdout)
}
