package plan

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"muster/internal/errhint"
	"muster/launch/job"
	"muster/launch/rundir"
	"muster/rendezvous"
)

// Machine is what a Plan needs to know of the node it is made on.
type Machine struct {
	// Dir is the working directory of the workers.
	Dir string
	// Hostname is shown in prefixes and reports.
	Hostname string
	// RuntimeDir is $XDG_RUNTIME_DIR, empty where there is none; TempDir is where temporary files go.
	RuntimeDir, TempDir string
	// CacheDir is the user's directory of what can be made again, empty for none: ~/.cache, or $XDG_CACHE_HOME.
	CacheDir string
	// CountWorkers resolves auto, cpu, gpu and the like to the number of workers, and says how.
	CountWorkers func(word string) (n int, why string, err error)
	// CountDevices counts the accelerators that workers would see, 0 where there are none.
	CountDevices func() int
	// BindWorkers returns the CPUs for each of the local ranks below workers, as BindRules.Mode has them.
	BindWorkers func(mode string, workers int) ([][]int, error)
	// DeviceEnv are the variables through which workers see a fake accelerator; nil for real ones.
	DeviceEnv map[string]string
	// RoundEnv are more of them, which may be others in each round; nil for none.
	RoundEnv func(round int) map[string]string
	// Untaken says for people which faults of a rehearsal no worker of a round has obeyed; nil: none is planned. well
	// reports whether the process of a local rank, -1 for all, has ended well, and after so many seconds.
	Untaken func(round int, runDir string, well func(localRank, seconds int) bool) []string
	// AssignDevices returns the variables by which workers see their accelerators, for so many workers, counted by the
	// word procs or given as a number; nil for a machine without any. It is called before BindWorkers. It has taken
	// what Job.Lookup finds into account: its variables win over Env.Set and NodeEnv.
	AssignDevices func(procs string, workers int) (DeviceVars, error)
	// DeviceUse tells what the accelerators are used for while the job runs; nil: nobody does.
	DeviceUse DeviceWatch
	// Token says that the launcher has brought the job's token.
	Token bool
}

// DeviceWatch tells what the accelerators of a node are used for.
type DeviceWatch interface {
	// Watchable reports whether there are any of which that can be told. It looks at files, the first time.
	Watchable() bool
	// Watch has told called with how they are used, every so often, until ctx ends. The error, nil then, says why it
	// has ended before that.
	Watch(ctx context.Context, every time.Duration, told func([]DeviceUse)) error
	// DevicesOf are the numbers of the accelerators that a local rank of so many workers has, as far as that is known.
	DevicesOf(localRank, workers int) []int
}

// DeviceUse is what an accelerator is used for, at one moment. What is nil is not known.
type DeviceUse struct {
	Index               int    // as the node numbers them
	Memory, MemoryTotal *int64 // bytes in use by whoever, and in all
	// Busy is the share of the last moments in which it computed, from 0 to 1.
	Busy *float64
	// Processes are by process id the bytes that each has there, 0 where the driver does not tell.
	Processes map[int]int64
}

// DeviceVars are the variables of accelerators that workers get over the inherited ones. The zero value leaves these.
type DeviceVars struct {
	Shared []job.Var
	// Own are by local rank those by which a worker sees its own devices and no others; nil: all workers see the same.
	Own [][]job.Var
}

// Plan is a Job with everything looked up on this machine. Making one starts nothing and writes nothing.
type Plan struct {
	Job   job.Job
	RunID string
	Procs int
	// RunDir is the directory of the job's sockets and state, made by the Agent.
	RunDir   string
	Dir      string
	Hostname string
	// TempDir is where logs go that no directory was given for, CacheDir the user's directory of what can be made
	// again, empty for none.
	TempDir, CacheDir string
	// Scratch is a directory that is to be removed where the agent is killed; empty for none.
	Scratch string

	agentID   string // no other agent's, of this job or another
	runIDFrom job.Source
	// Iface is the network interface that workers are told to use; empty: none. It is known when the nodes have met.
	Iface     string
	places    *Places // where the workers of the round listen for each other; nil: that is not known
	procsFrom job.Source
	entry     entrypoint
	debug     *entrypoint        // what runs in the command's place; nil: the command itself
	base      map[string]job.Var // what all workers of this node get in every round, under torchelastic's variables
	// notes are what is worth knowing of the choice of Python.
	notes []string

	deviceEnv map[string]string
	devices   DeviceVars
	roundEnv  func(round int) map[string]string
	untaken   func(round int, runDir string, well func(localRank, seconds int) bool) []string
	deviceUse DeviceWatch
	// accelerators is how many of them the workers would see, counted where EnvRules.Profile tells of them; -1: not known.
	accelerators int
	cpus         [][]int // by local rank; nil: workers are not bound
	unbound      error   // why they are not, where that was asked for
	warm         WarmCommand
	sidecars     []string // the programs of Job.Sidecars
	cold         error    // why no template can be made, where one was asked for
	// token says that the launcher has brought the job's.
	token   bool
	runDirs rundir.Places // where RunDir lies, and why not where a variable says
}

// New looks up what job leaves open and refuses what could not run.
func New(j job.Job, m Machine) (*Plan, error) {
	p := &Plan{
		Job: j, Dir: m.Dir, TempDir: m.TempDir, Hostname: m.Hostname, RunID: j.RunID, agentID: strings.ToLower(rand.Text()[:12]),
		deviceEnv: m.DeviceEnv, roundEnv: m.RoundEnv, untaken: m.Untaken, deviceUse: m.DeviceUse, token: m.Token, CacheDir: m.CacheDir,
	}
	p.runIDFrom = p.source("rdzv-id")
	if s := p.source("run-id"); s.Kind != job.FromDefault {
		p.runIDFrom = s
	}
	if p.RunID == "" {
		p.RunID, p.runIDFrom = strings.ToLower(rand.Text()[:12]), job.Source{Kind: job.FromMuster, Name: "random"}
	}
	if err := p.countWorkers(m); err != nil {
		return nil, err
	}
	if err := p.assignDevices(m); err != nil {
		return nil, err
	}
	if err := p.bindWorkers(m); err != nil {
		return nil, err
	}
	if p.accelerators = -1; j.Env.Profile != "" && m.CountDevices != nil {
		p.accelerators = m.CountDevices()
	}
	if err := p.makeBase(); err != nil {
		return nil, err
	}
	environ, command := p.environ(), p.Job.Command // of the Python that was chosen
	var err error
	if p.entry, err = resolveCommand(command, j.Vars(), m.Dir, environ); err != nil {
		return nil, err
	}
	switch {
	case j.Debug.On:
		if p.debug, err = debugEntry(j.Debug.Command, environ); err != nil {
			return nil, err
		}
		p.cold = errors.New("the command is replaced by --debug-mode")
	case p.Warms():
		if p.warm, p.cold = planWarm(command, p.entry, j.Warm.Auto, m.Dir, environ); p.cold == nil {
			p.cold = warmBound(p.cpus, environ)
		}
	}
	if err := p.findSidecars(environ); err != nil {
		return nil, err
	}
	places := rundir.FindPlaces(m.RuntimeDir, m.TempDir)
	p.RunDir, p.runDirs = filepath.Join(places.Parent, rundir.Name(p.RunID)), places
	// What would fail for one worker fails for the last.
	if _, err := p.Worker(p.DryRound(), p.Procs-1, 0, ""); err != nil {
		return nil, errhint.Code(err, errhint.Usage)
	}
	return p, nil
}

// Title is what a failure summary calls the command: the script or program as the user wrote it, and no secret.
func (p *Plan) Title() string { return p.entry.name }

// Executable is the path of the program that the command runs in, of Python's interpreter for a script.
func (p *Plan) Executable() string { return p.entry.path }

// CommandOf is the argument vector of the command of a local rank, whatever runs in its place.
func (p *Plan) CommandOf(localRank int) []string { return p.entry.argv(p.Job.Command, localRank) }

// WatchdogFile is the FIFO of torchelastic's file timer.
func (p *Plan) WatchdogFile() string {
	if p.Job.WatchdogFile != "" {
		return p.Job.WatchdogFile
	}
	return filepath.Join(p.RunDir, "watchdog")
}

// RankMonitorSocket is where the worker with a local rank reaches who listens to NVRx's RankMonitorClient.
func (p *Plan) RankMonitorSocket(localRank int) string {
	return filepath.Join(p.RunDir, "rank-monitor-"+strconv.Itoa(localRank))
}

func (p *Plan) countWorkers(m Machine) error {
	if n, err := strconv.Atoi(p.Job.Procs); err == nil {
		p.Procs, p.procsFrom = n, p.source("nproc-per-node")
	} else {
		p.procsFrom.Kind = job.FromMuster
		p.Procs, p.procsFrom.Name, err = m.CountWorkers(p.Job.Procs)
		if err != nil {
			return errhint.Code(fmt.Errorf("cannot resolve --nproc-per-node %s: %w", p.Job.Procs, err), errhint.Usage)
		}
	}
	if p.Procs < 1 || p.Procs > job.MaxProcs {
		return errhint.Usagef("--nproc-per-node is %d: it must be from 1 to %d", p.Procs, job.MaxProcs)
	}
	return nil
}

func (p *Plan) assignDevices(m Machine) error {
	if m.AssignDevices == nil {
		return nil
	}
	vars, err := m.AssignDevices(p.Job.Procs, p.Procs)
	if err != nil {
		return errhint.Code(err, errhint.Usage)
	}
	if vars.Own != nil && len(vars.Own) != p.Procs {
		return fmt.Errorf("internal error: devices for %d workers of %d", len(vars.Own), p.Procs)
	}
	p.devices = vars
	return nil
}

// DeviceUse tells what the node's accelerators are used for; nil: nobody does.
func (p *Plan) DeviceUse() DeviceWatch { return p.deviceUse }

// OwnDevices reports whether each worker sees devices of its own and no others.
func (p *Plan) OwnDevices() bool { return p.devices.Own != nil }

func (p *Plan) bindWorkers(m Machine) (err error) {
	rules := p.Job.Bind
	if rules.Mode == "" {
		return nil
	}
	if p.cpus, err = m.BindWorkers(rules.Mode, p.Procs); err == nil {
		return nil
	}
	if rules.Mode == job.BindCores {
		return errhint.Code(fmt.Errorf("cannot give each worker CPUs of its own: %w", err), errhint.Usage)
	}
	err = fmt.Errorf("cannot use --numa-binding %s: %w", rules.Mode, err)
	if rules.Fallback {
		p.unbound = err
		return nil
	}
	return errhint.Code(errhint.With(err, "to start the workers unbound there, give --numa-fallback or MUSTER_NUMA_FALLBACK=1"),
		errhint.Usage)
}

// Binding says in a few words which CPUs the workers are bound to.
func (p *Plan) Binding() string {
	switch {
	case p.Job.Bind.Mode == "":
		return "off"
	case p.unbound != nil:
		return "no: " + p.unbound.Error()
	}
	return p.Job.Bind.Mode
}

// Bound returns the CPUs of each local rank, nil where workers are not bound; err says why not where that was asked
// for.
func (p *Plan) Bound() (cpus [][]int, err error) { return p.cpus, p.unbound }

// IsBound reports whether each worker is bound to CPUs.
func (p *Plan) IsBound() bool { return p.cpus != nil }

// Notes are what is worth knowing of how the plan was made, one sentence each.
func (p *Plan) Notes() []string { return p.notes }

// source returns where a flag's value came from.
func (p *Plan) source(flag string) job.Source {
	if s, ok := p.Job.Sources[flag]; ok {
		return s
	}
	return job.Source{Kind: job.FromDefault, Name: "default"}
}

// Worker is one worker as it will be started.
type Worker struct {
	Rank, LocalRank int
	Path            string
	Argv            []string
	Env             Env
	Dir             string
	// Varying are names of variables that other workers may have, or have other values of.
	Varying []string
	// CPUs are those that it is bound to, ascending; none: it is not.
	CPUs []int
}

// Worker returns the worker of a local rank in a round. errorFile is where it may write why it failed, empty for none.
func (p *Plan) Worker(r rendezvous.Round, localRank, restarts int, errorFile string) (Worker, error) {
	env, err := p.workerEnv(r, localRank, restarts, errorFile)
	if err != nil {
		return Worker{}, err
	}
	w := Worker{
		Rank: r.BaseRank + localRank, LocalRank: localRank, Dir: p.Dir,
		Path: p.entry.path, Argv: p.entry.argv(p.Job.Command, localRank), Env: env, Varying: p.varying(),
	}
	if p.debug != nil {
		w.Path, w.Argv = p.debug.path, p.debug.prefix
	}
	if p.cpus != nil {
		w.CPUs = p.cpus[localRank]
	}
	return w, nil
}

// DryRound is the round that --dry-run shows: the first one, with the port still open where none was asked for.
func (p *Plan) DryRound() rendezvous.Round {
	return rendezvous.Round{
		GroupWorldSize: 1, WorldSize: p.Procs, RoleWorldSize: p.Procs,
		MasterAddr: p.MasterHost(), MasterPort: p.Job.Meeting.Port, AgentStore: true,
	}
}

// MasterHost is what MASTER_ADDR says.
func (p *Plan) MasterHost() string {
	if p.Job.Meeting.Host == "" {
		return "127.0.0.1"
	}
	return p.Job.Meeting.Host
}

// ProcsFrom says where the number of workers came from, and how a word such as auto was understood.
func (p *Plan) ProcsFrom() job.Source { return p.procsFrom }

// RandomRunID reports whether nobody chose the run id: another run will have another one.
func (p *Plan) RandomRunID() bool { return p.runIDFrom.Kind == job.FromMuster }

// signalNames writes signals as torchrun's --signals-to-handle reads them.
func signalNames(signals []syscall.Signal) string {
	names := make([]string, len(signals))
	for i, s := range signals {
		names[i] = unix.SignalName(s)
	}
	return strings.Join(names, ",")
}

// Untaken says which faults of a rehearsal no worker of a round has obeyed.
func (p *Plan) Untaken(round int, well func(localRank, seconds int) bool) []string {
	if p.untaken == nil {
		return nil
	}
	return p.untaken(round, p.RunDir, well)
}

// OpenRunDir makes the run directory, and says where it lies if that is not where a variable has it.
func (p *Plan) OpenRunDir(log zerolog.Logger) (rundir.Dir, error) {
	d, err := rundir.Make(p.RunDir, log, p.runDirs.Safe...)
	if over := p.runDirs.PassedOver; err == nil && over != nil {
		log.Warn().Err(over).Str("path", d.Path).Str("hint",
			"set XDG_RUNTIME_DIR or TMPDIR to a directory to which only you can write").
			Msg("the run directory lies elsewhere: another user of this machine could have replaced it")
	}
	return d, err
}
