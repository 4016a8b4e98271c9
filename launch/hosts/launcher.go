package hosts

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/term"

	"muster/horovod"
	"muster/horovod/kv"
	"muster/internal/errhint"
	"muster/internal/proc"
	"muster/internal/tokenfile"
	"muster/launch"
	"muster/launch/control"
	"muster/launch/job"
	"muster/launch/node"
	"muster/launch/plan"
	"muster/launch/report"
	"muster/rendezvous/topology"
	"muster/sshexec"
)

// Console is where a launcher shows what its job says.
type Console interface {
	// NodesLog takes the lines of the logs of so many nodes, HostsLog those of hosts that come and go.
	NodesLog(nodes int) io.Writer
	HostsLog() io.Writer
	// Show replaces the terminal's line of status, "" for none. It reports whether there is a terminal to show it on.
	Show(status string) bool
	// EndWaiting takes the line away that says what is waited for.
	EndWaiting()
	// Flush shows what is left of the logs.
	Flush()
	// PrintError writes an error and its hint for people.
	PrintError(err error)
}

// World is what Horovod's workers learn of theirs.
type World struct {
	// Slots are the world of a job that is not elastic, by rank.
	Slots []horovod.Slot
	// NICs are the interfaces that workers are to use, the first of them for gloo; none: what reaches the other hosts.
	NICs []string
}

// LauncherConfig is what a launcher is asked, and what it is given by the program that it runs in.
type LauncherConfig struct {
	Job job.Job
	// LogLevel and LogFormat are how much the agents say of themselves, and in which form.
	LogLevel, LogFormat string
	// Horovod is the world of a job of Horovod, nil in others.
	Horovod *World
	// Environ is the environment that the process was started in.
	Environ []string
	// Version is that of the program, Hostname what this machine calls itself.
	Version, Hostname string
	// Stdout and Stderr are where the workers' output goes.
	Stdout, Stderr *os.File
	Console        Console
	// TerminationLog is the file from which Kubernetes reads why a container ended, empty for none.
	TerminationLog string
	// Guardian is the command of the guardian process.
	Guardian []string
	// RemoveOnDeath is what the guardian removes, too.
	RemoveOnDeath []string
	Log           zerolog.Logger
}

// launcher runs a job on machines that it reaches itself.
type launcher struct {
	config LauncherConfig
	job    job.Job // what was asked for, with what prepare has settled
	// summary is the file for what is told at the end, empty for none.
	summary string
	tree    *proc.Tree
	fleet   *Fleet

	children  agentsHere
	dir       string            // where the launcher was started
	files     map[string][]byte // that the job names
	token     []byte
	endpoints []job.Endpoint // where the nodes meet
	addrs     []string       // by which each node is reached by the others, empty where it was not reached
	away      []atomic.Bool  // machines that are not this one
	own       string         // the address of this machine that they reach
	world     *worldServer   // of a Horovod job, else nil
	told      *worldStatus   // what the nodes have said of the job
}

func newLauncher(c LauncherConfig) *launcher { return &launcher{config: c, job: c.Job} }

// Launch starts an agent on each of the job's machines, and shows and ends what they do.
func Launch(ctx context.Context, c LauncherConfig) error { return newLauncher(c).run(ctx) }

func (l *launcher) run(ctx context.Context) (err error) {
	if err := l.prepare(); err != nil {
		return l.refused(&l.config.Job, err)
	}
	job, log := &l.job, l.config.Log
	ctx, in := launch.WatchSignals(ctx, job.Stop.Handled, job.Checkpoint.Signal)
	defer in.Close()
	view, err := l.openView(ctx)
	if err != nil {
		return l.refused(&l.config.Job, err)
	}
	defer view.Close() //nolint:contextcheck // it bounds itself
	marker := launcherMarker()
	if err := l.openTree(marker); err != nil {
		return err
	}
	defer l.closeTree(&err)
	machines, closeMachines, err := l.machines(marker)
	if err != nil {
		return l.refused(&l.config.Job, err)
	}
	defer closeMachines()
	if job.RunID == "" {
		job.RunID = strings.ToLower(rand.Text()[:12])
	}
	console := l.config.Console
	l.fleet = openFleet(Config{
		Machines: machines, Min: min(job.Nodes.Min, len(machines)), Parallel: job.Hosts.SSH.Parallel, StartTimeout: job.Hosts.StartTimeout,
		Linger: linger(job), Grace: job.Stop.Grace, Transient: sshexec.Transient,
		Output: &Output{
			Stdout: afterWaiting{console, l.config.Stdout}, Stderr: afterWaiting{console, l.config.Stderr},
			Log: console.NodesLog(len(machines)),
		},
		Logs: collectLogs(job.Hosts.CollectLogs, job.Hosts.CollectLimit, log), Log: log,
		Status: func(machine int, data []byte) { l.told.take(machine, data) }, Lost: func(machine int) { l.told.lost(machine) },
		Events: func(node string, line []byte) {
			if e, ok := eventOf(line); ok {
				e.Node = node
				view.Tell(e)
			}
		},
	})
	l.told = keepStatus(l.nodeNames(), job.StatusFile, log)
	defer l.told.close()
	defer openFront(frontConfig{ //nolint:contextcheck // its end bounds itself
		RunID: job.RunID, Name: job.Command.Name, Role: control.Launcher, Environ: l.config.Environ, Grace: job.Stop.Grace, Interrupts: in,
		Status: l.told.now, Events: &l.told.events, Ask: l.ask, Reach: l.reachRanks, Evidence: l.look, Guard: l.tree.RemoveOnDeath,
		View: view, Log: log,
		Look: func(ctx context.Context) {
			if _, err := l.fleet.Ask(ctx, Ask{Look: true}); err != nil {
				log.Debug().Err(err).Msg("the nodes do not hear that somebody looks at the job")
			}
		},
	}).close()
	defer l.fleet.Close()
	defer func() { l.world.close() }()
	if err := l.start(ctx); err != nil {
		err = node.Stopped(err)
		if _, stopped := errors.AsType[errhint.StatusError](err); stopped {
			return l.compat(err)
		}
		return l.refused(job, err)
	}
	return l.finish(ctx, in)
}

// ask has the nodes do what somebody wants of the job. Machines that have left it come back where more nodes are
// wanted: unless others wait to take part, the workers of the rest run until these have come.
func (l *launcher) ask(ctx context.Context, r control.Request) (string, error) {
	if r.What == control.KillRequested {
		r.Node = l.nodeOf(r.Node)
	}
	if r.What != control.ScaleRequested {
		return l.fleet.Ask(ctx, Ask{Request: r})
	}
	before, _ := l.told.now(ctx)
	lacking, waiting := r.Nodes-before.Nodes, len(l.fleet.Running())-before.Nodes
	r.Starts = lacking > 0 && waiting <= 0 && l.fleet.Left() > 0
	text, err := l.fleet.Ask(ctx, Ask{Request: r})
	if err != nil {
		return "", err
	}
	back := l.fleet.Return(lacking, r.Nodes)
	switch {
	case lacking <= 0:
		return text, nil
	case len(back) > 0:
		return text + "; it is started again on " + strings.Join(back, ", "), nil
	}
	return text + "; no other host of --hosts can be started: spare ones have joined", nil
}

// nodeOf is what the node is called that is a replica of the job file with that name; any other name stays.
func (l *launcher) nodeOf(replica string) string {
	names := l.nodeNames()
	if slices.Contains(names, replica) {
		return replica
	}
	for i, n := range l.job.Hosts.Nodes {
		if slices.Contains(n.Replica, replica) {
			return names[i]
		}
	}
	return replica
}

// afterWaiting is a writer for workers' output, which must not come behind what is waited for.
type afterWaiting struct {
	console Console
	to      io.Writer
}

func (w afterWaiting) Write(p []byte) (int, error) {
	w.console.EndWaiting()
	return w.to.Write(p)
}

// say writes to one of our own streams. When it is gone nobody can be told.
func (l *launcher) say(format string, args ...any) {
	_, _ = fmt.Fprintf(l.config.Stderr, format, args...)
}

// compat is node.Compat.
func (l *launcher) compat(err error) error {
	return node.Compat(&l.job, err, l.config.Console.PrintError)
}

// refused is how a job ends that could not be started: its status file says so too.
func (l *launcher) refused(j *job.Job, err error) error {
	report.TellRefused(*j, l.config.Hostname, []*os.File{l.config.Stdout, l.config.Stderr}, l.config.TerminationLog, err)
	return l.compat(err)
}

const launcherMark = "MUSTER_LAUNCHER="

// launcherMarker is a variable by which a guardian knows what descends from this launcher.
func launcherMarker() string { return launcherMark + strings.ToLower(rand.Text()[:12]) }

// openTree begins to look after the launcher's own processes, which have the marker.
func (l *launcher) openTree(marker string) (err error) {
	if l.tree, err = proc.Open(proc.Config{
		Log: l.config.Log, Marker: marker, Guardian: l.config.Guardian, RemoveOnDeath: l.config.RemoveOnDeath,
	}); err != nil {
		return fmt.Errorf("cannot look after processes: %w", err)
	}
	return nil
}

// closeTree ends them, agents on this machine first. err is the launcher's result, which stays what it is unless it was
// a success.
func (l *launcher) closeTree(err *error) {
	l.children.end()
	if closeErr := l.tree.Close(); *err == nil && closeErr != nil {
		*err = errhint.Code(closeErr, errhint.Internal)
	}
}

// linger is how long other nodes may go on after the first has ended: they say good-bye to each other, and the rules
// may leave workers more time.
func linger(j *job.Job) time.Duration {
	if j.Restart.Clean == job.CleanNone {
		return 0 // as long as their workers run
	}
	return j.Stop.Grace + j.Restart.Linger + 10*time.Second
}

// prepare refuses what can be told to be wrong before any machine is reached, and reads the files that the job names.
func (l *launcher) prepare() error {
	j := &l.job
	var err error
	if l.dir, err = os.Getwd(); err != nil {
		return errhint.Usagef("cannot tell the working directory: %w", err)
	}
	l.sameInterpreter()
	if err := l.takeToken(); err != nil {
		return err
	}
	if j.Restart.MaxRestarts > 0 && l.config.Horovod != nil {
		return errhint.With(errhint.Usagef(
			"cannot restart the workers of a Horovod job with --max-restarts or --backoff-limit: its world is made once"),
			"an elastic job (--min-np, --host-discovery-script) survives the loss of workers")
	}
	if err := checkStatusFile(j.StatusFile); err != nil {
		return err
	}
	if err := report.CheckSummary(j.See.Summary, nil); err != nil {
		return err
	}
	l.files = map[string][]byte{}
	for _, path := range jobFiles(j) {
		if *path == "" {
			continue
		}
		data, err := os.ReadFile(*path)
		if err != nil {
			return errhint.Usagef("cannot read a file of the job: %w", err)
		}
		l.files[*path] = data
	}
	if file := j.Meeting.Topology; file != "" {
		if _, err := topology.Load(file); err != nil {
			return errhint.Code(err, errhint.Usage)
		}
	}
	if logs := &j.Logs; logs.PrefixAll && logs.Prefix == "" {
		logs.Prefix = job.HostRankPrefix
	}
	j.Logs.Live = term.IsTerminal(int(l.config.Stdout.Fd())) && term.IsTerminal(int(l.config.Stderr.Fd()))
	if dir := j.Hosts.CollectLogs; dir != "" {
		if j.Logs.Dir == os.DevNull {
			return errhint.Usagef("cannot use --collect-logs with --log-dir /dev/null: there would be no files")
		}
		if j.FileAll(); !j.Logs.Redirect.Any() && !j.Logs.Tee.Any() {
			return errhint.With(errhint.Usagef("cannot use --collect-logs with --tee and --redirects that write nothing to files"),
				"leave them out: all output goes to files then")
		}
		if err := os.MkdirAll(dir, 0o777); err != nil {
			return errhint.Usagef("cannot use --collect-logs %s: %w", dir, err)
		}
	}
	return nil
}

// takeToken takes the job's token from where the user has it, or makes one. Agents get it by the connection, and no
// file has it.
func (l *launcher) takeToken() (err error) {
	m := &l.job.Meeting
	if m.TokenFile == "" {
		l.token = []byte(rand.Text() + rand.Text())
		return nil
	}
	l.token, err = tokenfile.Read(m.TokenFile, l.config.Log)
	m.TokenFile = ""
	return err
}

// openView takes what the job names to be seen by, which is the launcher's matter alone. A token that was made here is
// known to no user.
func (l *launcher) openView(ctx context.Context) (*launch.View, error) {
	var token []byte
	if l.config.Job.Meeting.TokenFile != "" {
		token = l.token
	}
	view, err := launch.OpenView(ctx, l.job.See, token, l.config.Log)
	l.summary = l.job.See.Summary
	l.job.See.HTTP, l.job.See.EventsFile, l.job.See.Summary = "", "", ""
	return view, err
}

// sameInterpreter lets hosts that do not get our PATH run the Python that is first in it here, by its path, where they
// have it.
func (l *launcher) sameInterpreter() {
	j := &l.job
	if j.Env.Mode != job.EnvInherit || j.Command.Kind == job.Program || j.Python != (job.PythonRules{}) {
		return
	}
	for _, name := range j.Command.Interpreters {
		if path, err := proc.LookPath(name, l.dir, l.config.Environ); err == nil && filepath.IsAbs(path) {
			j.Command.Interpreters = append([]string{path}, j.Command.Interpreters...)
			return
		}
	}
}

// start brings every node to where its workers could be started.
func (l *launcher) start(ctx context.Context) error {
	if err := l.fleet.Reach(ctx); err != nil {
		return err
	}
	if err := l.arrange(); err != nil {
		return err
	}
	if h := l.config.Horovod; h != nil {
		var err error
		if l.world, err = serveWorld(ctx, l.own, h.Slots, kv.NewClients(l.job.Meeting.StoreAllow, l.config.Log), l.config.Log); err != nil {
			return err
		}
	}
	answers, err := l.fleet.Prepare(ctx, l.order)
	if err != nil {
		return err
	}
	return l.compare(answers)
}

// compare judges what the machines have, where that was asked for.
func (l *launcher) compare(answers []*Ready) error {
	var names []string
	var all []job.Preflight
	for i, r := range answers {
		if r != nil && r.Preflight != nil {
			names, all = append(names, l.nodeNames()[i]), append(all, *r.Preflight)
		}
	}
	warnings, err := plan.ComparePreflight(names, all)
	for _, w := range warnings {
		l.config.Log.Warn().Msg(w)
	}
	return err
}

// finish lets the workers start, and returns how the job ended.
func (l *launcher) finish(ctx context.Context, in *launch.Interrupts) error {
	running, abandon := context.WithCancel(context.WithoutCancel(ctx))
	defer abandon()
	var wg sync.WaitGroup
	over := make(chan struct{})
	wg.Go(func() { l.passSignals(ctx, in, abandon, over) })
	o := l.fleet.Run(running)
	abandoned := running.Err() != nil
	close(over)
	wg.Wait()
	l.config.Console.Show("")
	l.config.Console.Flush()
	l.say("%s", o.Report)
	stopped, signaled := errors.AsType[*launch.SignalError](context.Cause(ctx))
	if signaled {
		o.Status = errhint.FromSignal(int(stopped.Signal))
	}
	if len(o.Unclean) > 0 && (signaled || abandoned) {
		err := fmt.Errorf("nobody has said that nothing is left on %s: look there", strings.Join(o.Unclean, ", "))
		l.config.Console.PrintError(errhint.Code(err, o.Status))
	}
	if o.Errors != nil {
		l.config.Console.PrintError(errhint.Code(o.Errors, o.Status))
	}
	l.tellEnd(o)
	if o.Status == errhint.OK {
		return nil
	}
	return l.compat(errhint.StatusError(o.Status))
}
