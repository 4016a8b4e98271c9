package launch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"muster/internal/errhint"
	"muster/internal/preempt"
	"muster/internal/proc"
	"muster/internal/python"
	"muster/launch/job"
	"muster/launch/output"
	"muster/launch/plan"
	"muster/launch/policy"
	"muster/launch/rankmonitor"
	"muster/launch/report"
	"muster/launch/warm"
	"muster/rendezvous"
)

// SignalError is the cause of a context that a signal to muster ended.
type SignalError struct {
	Signal syscall.Signal
	// Asked says who has asked for the end of the whole job, as by a signal to all its nodes; empty for a signal.
	Asked string
}

func (e *SignalError) Error() string {
	if e.Asked != "" {
		return "was told that " + e.Asked
	}
	return "received " + proc.SignalName(e.Signal)
}

// TellStopped says that the wait for other nodes, which the job needs, has ended by err where that is a SignalError.
func TellStopped(j *job.Job, err error, log *zerolog.Logger) {
	if s, ok := errors.AsType[*SignalError](err); ok && !j.Alone() {
		log.Warn().Str("reason", s.Error()).Msg("muster was asked to stop while it waited for other nodes")
	}
}

// Agent runs a Plan on this node; there is one per node and job. The agents of several nodes decide together: each has
// a policy of its own for its own workers, and what that decides is proposed to all through the Handler. Fill the
// exported fields, then call Run once.
type Agent struct {
	Plan *plan.Plan
	// Handler gives the agent its rounds. Run closes it.
	Handler rendezvous.Handler
	// Addr is the address by which the other nodes reach this one, and by itself where there are none.
	Addr string
	// Stdin is given to the workers where the job says so; Stdout and Stderr are where their output is shown.
	Stdin, Stdout, Stderr *os.File
	// Log is our own log. While workers' output is shown too, its lines must go to the writer that LogTo is told, so
	// that they tear none of the workers'; LogTo(nil) says that this is over. It is told the
	// writer again when the agent does not wait for other nodes any more.
	Log   zerolog.Logger
	LogTo func(io.Writer)
	// LogJSON says that the log's lines are of JSON for whoever reads them, and so is the report.
	LogJSON bool
	// Hurry, once closed, ends the grace of workers that are being stopped. Forward delivers signals for the workers.
	Hurry   <-chan struct{}
	Forward <-chan syscall.Signal
	// Steering is how this part of the job is seen and steered from outside; nil: Run opens it. Run closes it.
	Steering *Steering
	// WholeJob reports whether the signal that ends this node's part has gone to all nodes of the job; nil: to this one alone.
	WholeJob func() bool
	// StopTold says that people hear from somebody else that workers are being stopped.
	StopTold bool
	// Checker examines the nodes before workers start; nil: nothing is examined.
	Checker Checker
	// Examiner returns what examines the nodes after a hang for which no cause was found; nil: nothing does, or Checker
	// examines them as thoroughly.
	Examiner func(ctx context.Context) Checker
	// OpenCheckpoints opens what keeps checkpoints, reached by workers at a socket; nil: nothing does.
	OpenCheckpoints func(ctx context.Context, socket string, told CheckpointEvents) (Checkpoints, error)
	// Notices are where the agent hears from that this machine will be taken away.
	Notices []*preempt.Source
	// Guardian is the command of the guardian process.
	Guardian []string
	// RemoveOnDeath is what the guardian removes, besides what the agent itself has made.
	RemoveOnDeath []string
	// Salvager is the command by which the guardian saves the checkpoints that a killed agent has left in memory: their
	// label and how long that may take are its last arguments.
	Salvager []string
	// ErrorFile is the TORCHELASTIC_ERROR_FILE that muster itself was given, TerminationLog the file from which
	// Kubernetes reads why a container ended; empty for none.
	ErrorFile, TerminationLog string
	// LogsGo says where a launcher takes the workers' log files when the job has ended; empty: they stay where they
	// are.
	LogsGo string

	tree     *proc.Tree
	logs     *output.Logs
	policy   *policy.Policy
	status   *report.StatusFile
	events   *report.Events
	watchdog *watchdog
	monitor  *rankmonitor.Server // nil: nobody listens to clients of NVRx
	overdues overdues
	places   *plan.Places // where workers listen for each other in this round; nil: nobody tells them
	beside   *sidecars    // nil: none
	stdin    *os.File
	warm     *warm.Warmer // nil: workers start as usual
	begun    time.Time    // what the deadline counts from: the first start of workers, or of waiting for their template
	meeting  *meeting     // the round that the agent has, or had last; nil before the first
	groupMu  sync.Mutex   // held while workers are started, so that whoever looks for one finds all
	group    *WorkerGroup
	oomKills int64 // the kernel's count before it
	suspect  bool  // workers failed here since the last check
	// pausedAt is when the pause began that lasts, pauseText why; command is the Pause.Command that workers run.
	pausedAt           time.Time
	pauseText, command string
	// debugDirs hold the workers' environments in debug mode.
	debugDirs []string
	told      []NodeFault
	// unfit is how this node leaves that a check has found unfit, while another one leaves before it; nil for none.
	unfit     *policy.Decision
	siteAsked time.Time // when the site has said last that this node is fit, or nothing of use
	// atDoor is how this node leaves that was found unfit while it waited to join; nil: it was not.
	atDoor *policy.Decision

	slow        slowNodes   // the nodes that hold up the training
	loop        crashLoop   // whether restarts bring the job further
	learner     learner     // of how long the workers here may be silent
	hangDir     string      // of the evidence of hangs, where there are no log files; empty before the first
	checkpoints Checkpoints // nil: none are kept
	drained     bool        // nobody waits for the last one any more
	stopNotices func()      // nil: nobody looks for them
	stopPushing func()      // nil: nobody is told
	stopSteps   func()      // the same
}

// Result is how a job ended.
type Result struct {
	// Status is muster's exit status.
	Status int
	// Left says that this node has left a job that goes on without it, as somebody wanted fewer nodes.
	Left bool
	// Over says that one node too many was lost, or one worker too many has failed: the job has ended for all of its nodes.
	Over bool
	// Report says why for people, or with LogJSON in a line of JSON; empty after a success.
	Report string
	// LogDir is the directory with the workers' log files, empty where none are written.
	LogDir string
}

// Run starts the workers and looks after them until the job is decided and nothing of it is left. An error means that
// the job could not be run or not be ended; how the workers fared is in the Result.
func (a *Agent) Run(ctx context.Context) (res Result, err error) {
	hurry := a.Hurry
	defer func() { err = errors.Join(err, a.leave(hurry)) }()
	defer func() { err = errors.Join(err, a.close(ctx, err == nil && res.Status == errhint.OK)) }()
	if a.Steering == nil {
		if a.Steering, err = OpenSteering(ctx, a.Plan, false, nil, nil, a.Log); err != nil {
			return res, err
		}
	}
	ctx = a.Steering.Until(ctx)
	if c, counts := a.Handler.(rendezvous.Counter); counts {
		a.Steering.gathers(func(m *report.Measured) {
			n := c.Counts()
			m.StoreOperations, m.LostNodes = n.StoreOperations, n.LostNodes
		})
	}
	var ended func()
	a.Hurry, ended = either(a.Hurry, a.Steering.now)
	defer ended()
	if err = a.open(ctx); err == nil {
		res, err = a.rounds(ctx)
		res.LogDir = a.logs.RunDir()
	}
	switch {
	case err == nil:
	case a.status == nil:
		a.Steering.Refused(err)
	default:
		a.beside.end()
		why := job.ReasonInternal
		if (a.meeting == nil || !a.status.Ran() && errhint.Full(err)) && errhint.CodeOf(err) == errhint.Usage { // it has never begun
			why = job.ReasonRefused
		}
		o := report.OutcomeOf(err, why)
		if a.status.Ran() && errhint.Full(err) { // whatever the status says, the nodes have met
			o.Reason = why
		}
		o.Status = a.Plan.Job.CompatStatus(o.Status)
		if g := a.group; g != nil && g.finished && len(g.running()) == 0 {
			o.Exits = g.exits()
		}
		a.status.Finished(o)
	}
	return res, err
}

// leave closes the handler, which waits for nobody once hurry is closed.
func (a *Agent) leave(hurry <-chan struct{}) error {
	if h, may := a.Handler.(rendezvous.Hurrier); may {
		done, over := make(chan struct{}), make(chan struct{})
		defer func() { close(done); <-over }()
		go func() {
			defer close(over)
			select {
			case <-hurry:
				h.Hurry()
			case <-done:
			}
		}()
	}
	return a.Handler.Close()
}

// stateLines is where the states of the job go as lines of standard error, behind what a worker has left unfinished there.
type stateLines struct{ a *Agent }

func (s stateLines) Write(p []byte) (int, error) {
	if s.a.logs == nil {
		return s.a.Stderr.Write(p)
	}
	return s.a.logs.Message().Write(p)
}

// open makes what lives as long as the job: its directory, its logs, its status file, the process tree with its
// guardian.
func (a *Agent) open(ctx context.Context) (err error) {
	job := &a.Plan.Job
	if err := report.CheckSummary(job.See.Summary, []*os.File{a.Stdout, a.Stderr}); err != nil {
		return err
	}
	if a.status, err = report.OpenStatus(report.StatusConfig{
		Path: job.StatusFile, Mark: job.StatusMark, Lines: stateLines{a},
		TerminationLog: a.TerminationLog, RunID: a.Plan.RunID, Name: a.Plan.Title(),
		Node: a.Plan.Hostname, Workers: a.Plan.Procs, Outputs: []*os.File{a.Stdout, a.Stderr}, Log: a.Log, Now: time.Now,
		Ranks: a.Steering.ranks, Sidecars: a.Steering.sidecars, Accounting: a.Steering.accounting, Changed: a.Steering.tell,
	}); err != nil {
		return err
	}
	// The guardian comes before everything that it would have to clean up.
	remove := append([]string{a.Plan.RunDir}, a.RemoveOnDeath...)
	if a.Plan.Scratch != "" {
		remove = append(remove, a.Plan.Scratch)
	}
	a.tree, err = proc.Open(proc.Config{
		Log: a.Log, Marker: a.Plan.Mark(), Guardian: a.Guardian, Cgroup: true, RemoveOnDeath: remove,
		GuardianOutput: a.lastWords(),
	})
	if err != nil {
		return fmt.Errorf("cannot look after processes: %w", err)
	}
	a.Steering.useTree(a.tree)
	if a.logs, err = output.Open(output.Setup{
		Rules: job.Logs, RunID: a.Plan.RunID, TempDir: a.Plan.TempDir, Stdout: a.Stdout, Stderr: a.Stderr, Log: a.Log,
	}); err != nil {
		return err
	}
	a.LogTo(a.logs.Message())
	if err := a.openCheckpoints(ctx); err != nil {
		return err
	}
	if a.Plan.Job.Hang.Answers() {
		if err := python.InstallStacks(a.Plan.StacksDir()); err != nil {
			return err
		}
	}
	if err := a.linkNames(); err != nil {
		return err
	}
	a.stopNotices = a.watchNotices(ctx)
	a.stopPushing = a.tellTrainJob() //nolint:contextcheck // the end of the job is told, too
	a.stopSteps = a.tellSteps(ctx)
	if err := a.tree.RemoveOnDeath(a.logs.Disposable()...); err != nil {
		return err
	}
	if dir := a.logs.Keeps(); dir != "" {
		a.Log.Warn().Str("path", dir).Msg("output goes to a temporary directory (--log-dir chooses another one)")
	}
	a.stdin = a.Stdin
	if !job.InheritStdin && !a.hasTerminal() {
		if a.stdin, err = os.Open(os.DevNull); err != nil {
			return fmt.Errorf("cannot give the workers an empty standard input: %w", err)
		}
	}
	a.openSidecars()
	if err := a.openWarm(ctx); err != nil {
		return err
	}
	if job.Watchdog {
		if a.watchdog, err = openWatchdog(a.Plan.WatchdogFile(), a.Log, a.signalWorker); err != nil {
			return err
		}
		if err := a.tree.RemoveOnDeath(a.watchdog.path); err != nil {
			return err
		}
	}
	if m := job.Hang.Monitor; m != nil {
		if a.monitor, err = rankmonitor.Open(a.Plan.RankMonitorSocket, a.Plan.Procs, m, a.Log, a.overdue); err != nil {
			return err
		}
	}
	if job.EventLog == "console" {
		a.events = &report.Events{
			Out: a.logs.Message(), RunID: a.Plan.RunID, Role: job.Role, Backend: job.Meeting.Backend, EntryPoint: a.Plan.Title(),
			Hostname: a.Plan.Hostname, Begun: time.Now(),
		}
	}
	a.policy = policy.New(job.Restart, a.Plan.Procs, rand.Float64)
	return nil
}

// openWarm begins to make a template of the command.
// linkNames puts muster under the names that the command asks for into the run directory. A shell that did it would start
// a program for each of them, on each of the nodes that are rehearsed.
func (a *Agent) linkNames() error {
	names := a.Plan.Job.Command.Links
	if len(names) == 0 {
		return nil
	}
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("cannot find the program that launchers' names are to be links to: %w", err)
	}
	dir := filepath.Join(a.Plan.RunDir, job.PodDir)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return fmt.Errorf("cannot make links to muster: %w", err)
	}
	for _, name := range names {
		if err := os.Symlink(exe, filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("cannot make links to muster: %w", err)
		}
	}
	return nil
}

func (a *Agent) openWarm(ctx context.Context) (err error) {
	if a.warm, err = warm.New(a.Plan, a.tree, a.stdin, a.Log); err == nil {
		a.warm.Begin(ctx)
	}
	return err
}

// hasTerminal reports whether this node has the job's only worker, which is on a terminal that somebody looks at.
func (a *Agent) hasTerminal() bool {
	job := &a.Plan.Job
	if job.NoStdin || a.Plan.Procs != 1 || !job.Alone() || job.Logs.Redirect.Any() || job.Logs.RankDir != "" {
		return false
	}
	for _, f := range []*os.File{a.Stdin, a.Stdout, a.Stderr} {
		if !output.OnTerminal(f) {
			return false
		}
	}
	return true
}

// close undoes open, whatever of it was done.
func (a *Agent) close(ctx context.Context, succeeded bool) error {
	if a.stopNotices != nil {
		a.stopNotices()
	}
	if a.stopSteps != nil {
		a.stopSteps()
	}
	if a.stopPushing != nil {
		a.stopPushing()
	}
	a.beside.end()
	var errs []error
	errs = append(errs, a.warm.Close(), a.closeCheckpoints(ctx))
	if a.watchdog != nil {
		errs = append(errs, a.watchdog.Close())
	}
	if a.monitor != nil {
		a.monitor.Close()
	}
	errs = append(errs, a.forgetDebug())
	if a.logs != nil {
		a.LogTo(nil)
		errs = append(errs, a.logs.Close(succeeded))
	}
	if a.stdin != nil && a.stdin != a.Stdin {
		errs = append(errs, a.stdin.Close())
	}
	errs = append(errs, a.Steering.Close()) //nolint:contextcheck // it bounds itself, also where ctx has ended
	if a.tree != nil {
		errs = append(errs, a.tree.Close()) // last: until then the guardian would remove what we did not
	}
	return errors.Join(errs...)
}

// evidence asks the kernel what happened to a group. It is asked before the group is stopped: what filled /dev/shm may
// be gone afterwards.
func (a *Agent) evidence() report.Evidence {
	kills, where, err := proc.OOMKills()
	if err != nil {
		kills = a.oomKills
	}
	return report.GatherEvidence(a.oomKills, kills, where, a.logs.FilesDir(), statfs)
}

// statfsLimit is how long the disk of the workers' output is asked how full it is.
const statfsLimit = 2 * time.Second

// statfs is unix.Statfs for a disk that may never answer.
func statfs(path string, fs *unix.Statfs_t) error {
	type answer struct {
		fs  unix.Statfs_t
		err error
	}
	asked := make(chan answer, 1)
	go func() {
		var a answer
		a.err = unix.Statfs(path, &a.fs)
		asked <- a
	}()
	select {
	case a := <-asked:
		*fs = a.fs
		return a.err
	case <-time.After(statfsLimit):
		return fmt.Errorf("%s does not answer within %v", path, statfsLimit)
	}
}

// either returns a channel that is closed when one of two is, until the returned function is called.
func either(a, b <-chan struct{}) (<-chan struct{}, func()) {
	closed, done := make(chan struct{}), make(chan struct{})
	go func() {
		select {
		case <-a:
			close(closed)
		case <-b:
			close(closed)
		case <-done:
		}
	}()
	return closed, func() { close(done) }
}

// onHurry calls f once Hurry is closed, until the returned function is called.
func (a *Agent) onHurry(f func()) (stop func()) {
	done := make(chan struct{})
	go func() {
		select {
		case <-a.Hurry:
			f()
		case <-done:
		}
	}()
	return func() { close(done) }
}

// signalWorker sends a signal to the worker with a process id, whose timer scope has run out, and notes that for the
// report.
func (a *Agent) signalWorker(pid int, s syscall.Signal, scope string) error {
	a.groupMu.Lock()
	defer a.groupMu.Unlock()
	if a.group == nil {
		return errors.New("no worker runs")
	}
	for _, w := range a.group.workers {
		if w.proc.PID() == pid && w.runs() {
			w.expired.Store(&expiredTimer{signal: s, scope: scope}) // first: the worker may end at once
			return w.proc.Signal(s)
		}
	}
	return fmt.Errorf("no worker has the process id %d", pid)
}
