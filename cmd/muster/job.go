package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/rs/zerolog"

	"muster/cmd/dialect"
	"muster/cmd/dryrun"
	"muster/internal/accel"
	"muster/internal/accel/nvline"
	"muster/internal/accel/rehearsal"
	"muster/internal/errhint"
	"muster/internal/hardware"
	"muster/internal/logtext"
	"muster/launch"
	"muster/launch/devices"
	"muster/launch/hosts"
	"muster/launch/job"
	"muster/launch/node"
	"muster/launch/plan"
	"muster/launch/report"
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
	if !a.simulated() { // else whoever simulates has read the same command line
		for _, w := range req.Job.Warnings {
			log.Warn().Msg(w)
		}
		tellPlatform(req, log)
	}
	if req.MadeUp != "" {
		forget, err := makeUp(&req)
		if err != nil {
			return a.refused(req, hostname(), err)
		}
		defer forget()
	}
	if req.SimulateNodes > 0 && !req.DryRun && !a.simulated() {
		return a.simulate(ctx, req, log)
	}
	req.Job.Logs.Color = req.Job.Logs.PrefixAll && a.console.Colors()
	if a.simulated() {
		hosts.MarkWorkers(&req.Job.Logs)
	}
	if h := req.Horovod; h != nil && h.Elastic {
		return a.runElastic(ctx, req, log)
	}
	if req.SavePID && !req.DryRun {
		forget, err := savePID()
		if err != nil {
			return a.refused(req, hostname(), err)
		}
		defer forget()
	}
	if len(req.Job.Hosts.Nodes) > 0 {
		return a.runHosts(ctx, req, log)
	}
	plan, err := node.Plan(ctx, req.Job, a, log)
	if err != nil {
		return a.refused(req, a.host(&req.Job), err)
	}
	if cpus, unbound := plan.Bound(); cpus != nil && unbound == nil {
		log.Info().Str("mode", req.Job.Bind.Mode).Strs("cpus", accel.FormatLists(cpus)).Msg("workers are bound to CPUs")
	}
	if shown := plan.Job.Logs.Ranks; len(shown) > 0 && slices.Min(shown) >= plan.Procs {
		log.Warn().Ints("local_ranks", shown).Msg("--local-ranks-filter names no worker: nothing will be shown")
	}
	if req.DryRun {
		if err := place.Check(&plan.Job); err != nil {
			return a.refused(req, a.host(&req.Job), err)
		}
		d, err := dryrun.NewNode(plan, req)
		if err != nil {
			return err
		}
		return a.show(d, req.JSON)
	}
	ctx, in := launch.WatchSignals(ctx, plan.Job.Stop.Handled, plan.Job.Checkpoint.Signal)
	defer in.Close()
	agent, err := node.Meet(ctx, plan, a, in, log)
	if _, stopped := errors.AsType[errhint.StatusError](err); stopped {
		return a.compat(req.Job, err)
	}
	if err != nil {
		return a.refused(req, a.host(&req.Job), err)
	}
	result, err := node.Run(ctx, agent, a)
	a.console.Report(result.Report)
	return err
}

// Meeting implements node.Here.
func (a *app) Meeting(plan *plan.Plan, log zerolog.Logger) place.Config {
	return place.Config{
		Job: &plan.Job, RunID: plan.RunID, Hostname: plan.Hostname, MasterHost: plan.MasterHost(), Token: a.token,
		IDs: func(ctx context.Context) []string { return a.acceleratorIDs(ctx, &plan.Job) }, Simulated: a.simulated(),
		ClockOffset: clockOffset(), Log: log,
	}
}

// refused is how a job ends that could not be started: its status file says so too.
func (a *app) refused(req dialect.Request, host string, err error) error {
	if !req.DryRun {
		report.TellRefused(req.Job, host, []*os.File{a.stdout, a.stderr}, a.terminationLog(), err)
	}
	return a.compat(req.Job, err)
}

// compat is node.Compat.
func (a *app) compat(job job.Job, err error) error {
	return node.Compat(&job, err, a.console.PrintError)
}

// host is what this node is called in a job.
func (a *app) host(job *job.Job) string {
	host := cmp.Or(a.nodeName, hostname())
	if job.Fake != "" {
		return a.fakeNode(host)
	}
	return host
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

// Machine implements node.Here.
func (a *app) Machine(job job.Job, log zerolog.Logger) (plan.Machine, error) {
	m := plan.Machine{RuntimeDir: a.getenv("XDG_RUNTIME_DIR"), CacheDir: a.cacheDir()}
	var err error
	if m.Dir, err = os.Getwd(); err != nil {
		return m, errhint.Code(errhint.With(fmt.Errorf("cannot tell the working directory: %w", err),
			"was it removed? change to one that is there"), errhint.Usage)
	}
	if m.TempDir, err = filepath.Abs(os.TempDir()); err != nil {
		return m, fmt.Errorf("cannot tell the directory of temporary files: %w", err)
	}
	m.Hostname, m.Token = a.host(&job), a.token != nil || len(job.Hosts.Nodes) > 0
	root := accel.Real()
	seen := job.Lookup() // what workers will be told of devices counts, not what we were
	near, lookup := root, seen
	find := func() accel.Inventory { return accel.Detect(root, seen) }
	var standIns func([]int) ([]int, error)
	var rehearsed *rehearsal.Fake
	if job.Fake != "" {
		fake, err := hardware.LoadFake(job.Fake, m.Hostname, job.FakeOnReal)
		if err != nil {
			return m, err
		}
		level := zerolog.WarnLevel
		if a.simulated() {
			level = zerolog.DebugLevel // whoever simulates the nodes has said so of all
		}
		log.WithLevel(level).Str("spec", fake.Path()).Msg(fake.Banner())
		if fake.HasNetwork() && !job.Check.Network {
			log.Warn().Str("spec",
				fake.Path()).Msg("the spec says something of networks, which nobody looks at: nodes probe each other only in their check " +
				"(--network-check), and with a token (--token-file)")
		}
		m.DeviceEnv, m.RoundEnv = fake.Env(), fake.RoundEnv
		rehearsed = fake
		near, lookup = fake.Root(root), fake.Lookup(seen)
		find = func() accel.Inventory { return fake.Detect(root, seen) }
		standIns = func(cpus []int) ([]int, error) { return fake.OnMachine(cpus, root) }
	}
	use := func(ctx context.Context, gpus int, every time.Duration, told func([]nvline.Use)) error {
		return hardware.WatchUse(ctx, rehearsed, a.environ, gpus, every, told)
	}
	d := devices.New(devices.Config{Job: &job, Near: near, Lookup: lookup, Detect: find, WatchUse: use, StandIns: standIns, Log: log})
	m.CountWorkers, m.CountDevices, m.AssignDevices, m.BindWorkers = d.Count, d.Visible, d.Assign, d.Bind
	m.DeviceUse = d
	return m, nil
}

// PrintError implements node.Here.
func (a *app) PrintError(err error) { a.console.PrintError(err) }

// Launched implements node.Here.
func (a *app) Launched() bool { return a.nodeName != "" || a.simulated() }

// Agent implements node.Here.
func (a *app) Agent(plan *plan.Plan, at place.Reach, in *launch.Interrupts, log zerolog.Logger) *launch.Agent {
	return &launch.Agent{
		LogTo: a.console.LogTo, LogJSON: a.console.LogsJSON(), Stdin: a.stdin, Stdout: a.stdout, Stderr: a.stderr,
		StopTold: a.nodeName != "", Guardian: []string{"/proc/self/exe", guardianArg},
		OpenCheckpoints: checkpointService(plan, at, a.memoryDir(), log),
		Salvager:        []string{"/proc/self/exe", salvageArg, cmp.Or(a.console.Format, logtext.Auto)},
		Notices:         a.notices(plan.Job.Checkpoint, in),
		ErrorFile:       a.getenv("TORCHELASTIC_ERROR_FILE"), TerminationLog: a.terminationLog(), LogsGo: a.logsGo,
	}
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
