package launch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"muster/internal/errhint"
	"muster/internal/proc"
	"muster/rendezvous"
)

// SignalError is the cause of a context that a signal to muster ended.
type SignalError struct{ Signal syscall.Signal }

func (e *SignalError) Error() string { return "received " + proc.SignalName(e.Signal) }

// Agent runs a Plan on this node; there is one per node and job. Fill the exported fields, then call Run once.
type Agent struct {
	Plan *Plan
	// Handler gives the agent its rounds. Run closes it.
	Handler rendezvous.Handler
	// Stdin is given to the workers where the job says so; Stdout and Stderr are where their output is shown.
	Stdin, Stdout, Stderr *os.File
	// Log is our own log. While workers' output is shown too, its lines must go to the writer that LogTo is told, so
	// that they tear none of the workers'; LogTo(nil) says that this is over.
	Log   zerolog.Logger
	LogTo func(io.Writer)
	// Hurry, once closed, ends the grace of workers that are being stopped. Forward delivers signals for the workers.
	Hurry   <-chan struct{}
	Forward <-chan syscall.Signal
	// Guardian is the command of the guardian process.
	Guardian []string
	// ErrorFile is the TORCHELASTIC_ERROR_FILE that muster itself was given, TerminationLog the file from which
	// Kubernetes reads why a container ended; empty for none.
	ErrorFile, TerminationLog string

	tree     *proc.Tree
	logs     *logs
	policy   *policy
	status   *statusWriter
	events   *eventLog
	watchdog *watchdog
	stdin    *os.File
	warm     *warmer // nil: workers start as usual
	dir      jobDir
	begun    time.Time  // the first start of workers, or of waiting for their template
	groupMu  sync.Mutex // held while a group is started, so that whoever looks for a worker finds all
	group    *WorkerGroup
	oomKills int64 // the kernel's count before it
}

// The reasons of a job that muster refused to start, and of one that it could not run or not end.
const (
	reasonRefused  reason = "Refused"
	reasonInternal reason = "InternalError"
)

// Result is how a job ended.
type Result struct {
	// Status is muster's exit status.
	Status int
	// Report says why for people, empty after a success.
	Report string
}

// Run starts the workers and looks after them until the job is decided and nothing of it is left. An error means that
// the job could not be run or not be ended; how the workers fared is in the Result.
func (a *Agent) Run(ctx context.Context) (res Result, err error) {
	defer func() { err = errors.Join(err, a.Handler.Close()) }()
	defer func() { err = errors.Join(err, a.close(err == nil && res.Status == errhint.OK)) }()
	if err = a.open(ctx); err == nil {
		res, err = a.rounds(ctx)
	}
	if err != nil && a.status != nil {
		a.status.finished(outcome{Status: errhint.CodeOf(err), Reason: reasonInternal, Message: err.Error(), Hint: errhint.Of(err)})
	}
	return res, err
}

// open makes what lives as long as the job: its directory, its logs, its status file, the process tree with its guardian.
func (a *Agent) open(ctx context.Context) (err error) {
	if a.dir, err = makeJobDir(a.Plan.RunDir); err != nil {
		return err
	}
	a.Plan.RunDir = a.dir.path
	job := &a.Plan.Job
	if a.status, err = openStatus(statusConfig{
		Path: job.StatusFile, TerminationLog: a.TerminationLog, RunID: a.Plan.RunID, Name: a.Plan.entry.name,
		Node: a.Plan.Hostname, Workers: a.Plan.Procs, Outputs: []*os.File{a.Stdout, a.Stderr}, Log: a.Log, Now: time.Now,
	}); err != nil {
		return err
	}
	// The guardian comes before everything that it would have to clean up.
	a.tree, err = proc.Open(proc.Config{
		Log: a.Log, Marker: "MUSTER_AGENT=" + a.Plan.agentID, Guardian: a.Guardian, Cgroup: true, RemoveOnDeath: []string{a.Plan.RunDir},
	})
	if err != nil {
		return fmt.Errorf("cannot look after processes: %w", err)
	}
	if a.logs, err = openLogs(logSetup{
		Rules: job.Logs, RunID: a.Plan.RunID, TempDir: a.Plan.TempDir, Stdout: a.Stdout, Stderr: a.Stderr, Log: a.Log,
	}); err != nil {
		return err
	}
	a.LogTo(a.logs.message())
	if err := a.tree.RemoveOnDeath(a.logs.disposable()...); err != nil {
		return err
	}
	if dir := a.logs.keeps(); dir != "" {
		a.Log.Warn().Str("path", dir).Msg("output goes to a temporary directory (--log-dir chooses another one)")
	}
	a.stdin = a.Stdin
	if !job.InheritStdin {
		if a.stdin, err = os.Open(os.DevNull); err != nil {
			return fmt.Errorf("cannot give the workers an empty standard input: %w", err)
		}
	}
	if a.warm, err = newWarmer(a.Plan, a.tree, a.stdin, a.Log); err != nil {
		return err
	}
	a.warm.begin(ctx)
	if job.Watchdog {
		if a.watchdog, err = openWatchdog(a.Plan.watchdogFile(), a.Log, a.signalWorker); err != nil {
			return err
		}
		if err := a.tree.RemoveOnDeath(a.watchdog.path); err != nil {
			return err
		}
	}
	if job.EventLog == "console" {
		a.events = &eventLog{out: a.logs.message(), plan: a.Plan, begun: time.Now()}
	}
	a.policy = newPolicy(job.Restart, a.Plan.Procs, rand.Float64)
	return nil
}

// close undoes open, whatever of it was done.
func (a *Agent) close(succeeded bool) error {
	var errs []error
	errs = append(errs, a.warm.Close())
	if a.watchdog != nil {
		errs = append(errs, a.watchdog.Close())
	}
	if a.logs != nil {
		a.LogTo(nil)
		errs = append(errs, a.logs.Close(succeeded))
	}
	if a.stdin != nil && a.stdin != a.Stdin {
		errs = append(errs, a.stdin.Close())
	}
	errs = append(errs, a.dir.remove())
	if a.tree != nil {
		errs = append(errs, a.tree.Close()) // last: until then the guardian would remove what we did not
	}
	return errors.Join(errs...)
}

// rounds runs one round after the other until the job is decided.
func (a *Agent) rounds(ctx context.Context) (Result, error) {
	var before *rendezvous.Round
	for restarts := 0; ; {
		began := time.Now()
		round, err := a.Handler.Next(ctx, rendezvous.Member{Role: a.Plan.Job.Role, LocalWorldSize: a.Plan.Procs})
		if err != nil {
			return Result{}, fmt.Errorf("cannot take part in a round: %w", err)
		}
		a.events.joined(before, restarts, time.Since(began))
		before = &round
		a.status.creating(round.Number, net.JoinHostPort(round.MasterAddr, strconv.Itoa(round.MasterPort)))
		if a.begun.IsZero() {
			a.begun = time.Now()
		}
		starting, started := a.untilDeadline(ctx)
		template := a.warm.take(starting)
		oomKills, _, _ := proc.OOMKills() // without a count there is no evidence, and the job runs all the same
		a.groupMu.Lock()
		g, err := a.startGroup(starting, round, restarts, template)
		a.group = g
		a.groupMu.Unlock()
		started()
		if err != nil {
			return Result{}, err
		}
		a.oomKills = oomKills
		for _, w := range g.workers {
			a.events.started(w, &round, restarts)
		}
		a.status.running()
		rules := a.Plan.Job.Restart
		a.warm.prepare(a.Plan.Procs, restarts < rules.MaxRestarts || rules.MaxRestarts > 0 && rules.Window > 0)
		d := a.watch(ctx, g)
		if d.Verdict == restart {
			if d, err = a.endRound(ctx, g, d); err != nil {
				return Result{}, err
			}
		}
		if d.Verdict != restart {
			return a.conclude(ctx, g, restarts, d)
		}
		restarts = d.Restarts
	}
}

// watch follows a running group until the policy wants something done about it.
func (a *Agent) watch(ctx context.Context, g *WorkerGroup) decision {
	deadline, stopDeadline := deadlineTimer(a.begun, a.Plan.Job.Restart.Deadline)
	defer stopDeadline()
	var linger <-chan time.Time
	var lingering decision
	a.policy.step(event{Kind: groupStarted, At: time.Now()})
	for {
		var d decision
		select {
		case w := <-g.exited:
			d = a.stepExit(w)
		case <-ctx.Done():
			d = a.policy.step(event{Kind: stopWasRequested, At: time.Now()})
		case <-deadline:
			d = a.policy.step(event{Kind: deadlineReached, At: time.Now()})
		case <-linger:
			return lingering
		case s := <-a.Forward:
			g.forward(s)
			continue
		}
		if linger != nil && d.Verdict == carryOn && len(g.running()) == 0 {
			return lingering
		}
		if d.Verdict == succeed && d.Linger > 0 && linger == nil && len(g.running()) > 0 {
			linger, lingering = time.After(d.Linger), d
			continue
		}
		if d.Verdict != carryOn {
			return d
		}
	}
}

// stepExit tells the policy of a worker's end.
func (a *Agent) stepExit(w *worker) decision {
	exit := w.proc.Exit()
	level := zerolog.DebugLevel
	if !exit.Success() && !w.stopped {
		level = zerolog.ErrorLevel
	}
	a.Log.WithLevel(level).Int("rank", w.Rank).Int("local_rank", w.LocalRank).Int("pid", w.proc.PID()).
		Int("exit_code", exit.Status()).Func(func(e *zerolog.Event) {
		if exit.Signal != 0 {
			e.Str("signal", proc.SignalName(exit.Signal))
		}
	}).Dur("dur_ms", exit.Ended.Sub(exit.Started)).Msg("worker exited")
	return a.policy.step(event{Kind: workerExited, At: exit.Ended, Rank: w.Rank, Status: exit.Status(), Stopped: w.stopped})
}

// endRound stops what is left of a group that is to be restarted, and waits until it may be. It returns d, or what was
// decided meanwhile.
func (a *Agent) endRound(ctx context.Context, g *WorkerGroup, d decision) (decision, error) {
	a.Log.Warn().Str("reason", d.message()).Int("restart_count", d.Restarts).
		Int("max_restarts", a.Plan.Job.Restart.MaxRestarts).Dur("delay_ms", d.Delay).Msg("restarting the workers")
	kernel := a.evidence()
	a.status.restarting(d)
	if d.Delay == 0 {
		a.warm.lookAhead()
	}
	if err := a.stopGroup(context.WithoutCancel(ctx), g, a.ladder(syscall.SIGTERM), restartPatience); err != nil {
		return d, err
	}
	// Workers that failed by themselves before they were stopped may change the verdict: with a fatal code.
	for len(g.exited) > 0 {
		if late := a.stepExit(<-g.exited); late.Verdict != carryOn {
			return late, nil
		}
	}
	if r := a.report(g, kernel, -1); r != nil {
		a.tell(r)
	}
	return a.pause(ctx, d), nil
}

// tell says in the log why a group is restarted; the whole report is for the end.
func (a *Agent) tell(r *failureReport) {
	l := a.Log.Warn().Int("rank", r.Root.Rank).Str("ended", r.Root.ending())
	if r.Root.Hint != "" {
		l = l.Str("hint", r.Root.Hint)
	}
	if lines := r.Root.words(); len(lines) > 0 {
		l = l.Str("last_line", printable(lines[len(lines)-1]))
	}
	l.Msg("root cause of the restart")
}

// pause waits for d.Delay. It returns d, or what was decided meanwhile.
func (a *Agent) pause(ctx context.Context, d decision) decision {
	deadline, stopDeadline := deadlineTimer(a.begun, a.Plan.Job.Restart.Deadline)
	defer stopDeadline()
	timer := time.NewTimer(d.Delay)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return a.policy.step(event{Kind: stopWasRequested, At: time.Now()})
		case <-deadline:
			return a.policy.step(event{Kind: deadlineReached, At: time.Now()})
		case <-a.Forward: // there is nobody to receive it
		case <-timer.C:
			if ctx.Err() != nil { // both were ready
				return a.policy.step(event{Kind: stopWasRequested, At: time.Now()})
			}
			return d
		}
	}
}

// conclude ends what is left of a decided job, as the clean policy says, and tells how it went.
func (a *Agent) conclude(ctx context.Context, g *WorkerGroup, restarts int, d decision) (Result, error) {
	kernel := a.evidence()
	a.status.terminating(d)
	signal := syscall.SIGTERM
	if s, ok := errors.AsType[*SignalError](context.Cause(ctx)); ok && d.Verdict == stopForNow {
		signal = s.Signal
		a.Log.Warn().Str("signal", proc.SignalName(signal)).Dur("grace_ms", a.Plan.Job.Stop.Grace).Msg("stopping the workers")
	}
	err := a.clean(ctx, g, signal, d)
	if err != nil {
		return Result{}, err
	}
	blamed := -1
	if d.Reason == reasonFatal {
		blamed = d.Rank
	}
	exits := g.exits()
	o := outcome{Reason: d.Reason, Message: d.message(), Exits: exits}
	var res Result
	switch {
	case d.Verdict == succeed:
		o.Status = errhint.OK
	case d.Verdict == stopForNow:
		o.Status = errhint.FromSignal(int(signal))
	case d.Reason == reasonDeadline:
		o.Status = errhint.Deadline
		res.Report = fmt.Sprintf("muster: error: deadline of %v reached\n", a.Plan.Job.Restart.Deadline)
	default:
		o.Status = max(d.Status, 1)
		if o.Report = a.report(g, kernel, blamed); o.Report != nil {
			o.Status, res.Report = o.Report.status(), o.Report.text()
			d.Rank, d.Status = o.Report.Root.Rank, o.Status // the policy saw exits only, the report knows who was first
			o.Message = d.message()
			if a.ErrorFile != "" {
				if err := o.Report.copyErrorFile(a.ErrorFile); err != nil {
					a.Log.Warn().Err(err).Msg("error file not handed on")
				}
			}
		}
	}
	for _, w := range g.workers {
		a.events.ended(w, &g.round, restarts)
	}
	a.events.agent("SUCCEEDED", &g.round, restarts, 0)
	if o.Status != errhint.OK && a.Plan.Job.CompatExit {
		o.Status = 1
	}
	a.status.finished(o)
	res.Status = o.Status
	return res, nil
}

// untilDeadline returns a context that also ends with the job's deadline.
func (a *Agent) untilDeadline(ctx context.Context) (context.Context, context.CancelFunc) {
	if d := a.Plan.Job.Restart.Deadline; d > 0 {
		return context.WithDeadline(ctx, a.begun.Add(d))
	}
	return context.WithCancel(ctx)
}

// deadlineTimer returns a channel that delivers when d has passed since start; never for d = 0.
func deadlineTimer(start time.Time, d time.Duration) (<-chan time.Time, func() bool) {
	if d == 0 {
		return nil, func() bool { return true }
	}
	t := time.NewTimer(time.Until(start.Add(d)))
	return t.C, t.Stop
}

// clean does what the clean policy says, unless the job was stopped from outside: then all must end.
func (a *Agent) clean(ctx context.Context, g *WorkerGroup, signal syscall.Signal, d decision) error {
	stop := context.WithoutCancel(ctx)
	switch policy := a.Plan.Job.Restart.Clean; {
	case d.Verdict == stopForNow || d.Reason == reasonDeadline:
		return a.stopGroup(stop, g, a.ladder(signal), restartPatience) // who stops a job counts the seconds
	case policy == CleanNone && a.awaitEnd(ctx, g):
		return a.finishGroup(stop, g, 0)
	case policy == CleanUnfinished:
		ladder := a.ladder(signal)
		ladder.Spare = true
		return a.stopGroup(stop, g, ladder, 0)
	}
	return a.stopGroup(stop, g, a.ladder(signal), 0)
}

// awaitEnd waits until the workers have ended by themselves, and reports whether they have: a signal to muster and the
// deadline end the waiting.
func (a *Agent) awaitEnd(ctx context.Context, g *WorkerGroup) bool {
	if n := len(g.running()); n > 0 {
		a.Log.Warn().Int("workers", n).Msg("the job is decided; waiting for workers to end by themselves (--clean-policy none)")
	}
	deadline, stopDeadline := deadlineTimer(a.begun, a.Plan.Job.Restart.Deadline)
	defer stopDeadline()
	for _, p := range g.running() {
		select {
		case <-p.Done():
		case <-ctx.Done():
			return false
		case <-deadline:
			return false
		}
	}
	return true
}

// evidence asks the kernel what happened to a group. It is asked before the group is stopped: what filled /dev/shm may
// be gone afterwards.
func (a *Agent) evidence() evidence {
	kills, where, err := proc.OOMKills()
	if err != nil {
		kills = a.oomKills
	}
	return gatherEvidence(a.oomKills, kills, where, unix.Statfs)
}

// report finds out why a group failed, nil where no worker of it did. All workers must have ended.
func (a *Agent) report(g *WorkerGroup, kernel evidence, blamed int) *failureReport {
	return newFailureReport(failureInput{
		Title: a.Plan.entry.name, Host: a.Plan.Hostname, Exits: g.exits(), Blamed: blamed, Kernel: kernel,
	})
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

// signalWorker sends a signal to the worker with a process id, for the watchdog.
func (a *Agent) signalWorker(pid int, s syscall.Signal) error {
	a.groupMu.Lock()
	g := a.group
	a.groupMu.Unlock()
	if g == nil {
		return errors.New("no worker runs")
	}
	for _, p := range g.running() {
		if p.PID() == pid {
			return p.Signal(s)
		}
	}
	return fmt.Errorf("no worker has the process id %d", pid)
}
