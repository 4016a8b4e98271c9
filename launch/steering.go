package launch

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"muster/internal/errhint"
	"muster/launch/accounting"
	"muster/launch/control"
	"muster/launch/job"
	"muster/launch/plan"
	"muster/launch/report"
	"muster/launch/rundir"
	"muster/launch/straggler"
	"muster/rendezvous"
)

// Steering is how a node's part of a job is seen and steered from outside: its run directory, and who answers there. It
// knows what the agent has told it last; what others want reaches the agent as the end of a context, and by a channel
// of its loop. Nothing of the agent waits for it.
type Steering struct {
	plan *plan.Plan
	log  zerolog.Logger
	dir  rundir.Dir
	// server is nil where the directory cannot have a socket: the job runs all the same.
	server *control.Server
	view   *View
	// now is closed when workers are to end without grace.
	now     chan struct{}
	nowOnce sync.Once
	// restarts hands a request to the loop that watches the workers: what it answers is nil, or why it does not do it.
	restarts chan chan error
	// resumes hands a request for the end of a pause to the loop that waits in it. pausing says that there is a wish
	// for a pause; it has room for one.
	resumes chan resumption
	pausing chan struct{}
	// scales hands over a request for another number of nodes. part says that a launcher has started this muster.
	scales chan scaling
	part   bool
	// changed says that there is something to be published; it has room for one.
	changed chan struct{}

	events control.Events
	guests Guests
	// reached are the hosts of the launcher that the command is, nil where it is none.
	reached *reachedHosts

	mu     sync.Mutex
	beside *sidecars // nil: none
	status report.Status
	places []workerPlace // by local rank
	// askedEnd is why the whole job is to end, nil where nobody has asked for that; ends end the contexts of who runs
	// it.
	askedEnd *SignalError
	// orders are those of the round that was met last; mixed says that agents of torchrun take part in it. wish is
	// a pause that somebody has asked for, nil for none.
	orders  rendezvous.Orders
	inRound bool // between take and its end
	rounds  bool // there was one
	mixed   bool
	wish    *pauseWish
	ends    []context.CancelCauseFunc
	board   roundBoard
	// others is what was heard last of the round's other nodes, by group rank.
	others map[int]heardStatus
	// done is how far workers here have come that have ended, savedMost the greatest step on disk that was told here.
	done      doneSteps
	savedMost *int64
	accounts  accounts
	// warned are the sections that took too long, by local rank.
	warned  map[int]time.Time
	closed  chan struct{}
	closing sync.Once
	look    sync.WaitGroup // who looks until it is closed
	// looking has room for one who looks at the workers; nextLook is the number under which the nodes of the round are
	// asked the next time. lives is when workers have shown signs of life, where somebody looks for these, spins for how
	// long some have got nowhere, coresWished when some were seen that waited for a core. lastHang is what was found the
	// last time that they hung.
	looking     chan struct{}
	nextLook    int
	lives       map[*worker]time.Time
	spins       map[*worker]time.Duration
	coresWished time.Time
	lastHang    *report.Hang
	// slow is how slow ranks of the round are, compared with each other.
	slow straggler.Verdict
	// relay is how the musters of other nodes reach this one.
	relay relaying
	// inUse is what the workers used when somebody asked last.
	inUse askedUsage
	// usageNews counts what was found of the workers' use of the machine.
	usageNews uint64
	// devices is what the workers' accelerators are used for. nextWant is the number under which the nodes of the round
	// hear the next time that somebody looks, wantAsked when this one has told it last.
	devices   *deviceWatch
	nextWant  int
	wantAsked time.Time
	// traffic is what the node's network carries, carried what was seen of it last.
	traffic *Traffic
	carried []report.Traffic
	// gather add to what is measured.
	gather []func(*report.Measured)
}

// workerPlace is the place of a worker, in which one process follows another.
type workerPlace struct {
	worker   *worker
	restarts int
	last     *report.RankExit
	ended    bool // that of worker is told in last
	group    int  // of the accounts
	logs     []control.LogFiles
	used     Usage // of worker, when it was looked at last
}

// mostLogs is how many attempts of a worker its log files are told of.
const mostLogs = 32

// roundBoard is where the agents of a round tell each other how they stand: none while there is no round, or nobody to
// tell.
type roundBoard struct {
	rendezvous.Board
	groupRank, nodes int
}

// heardStatus is what another node has said, and when by its own clock.
type heardStatus struct {
	Status report.Status `json:"status"`
	At     time.Time     `json:"at"`
	// Reach is how its muster is reached, nil where it cannot be.
	Reach *reachNote `json:"reach,omitempty"`
}

// OpenSteering makes the run directory of a plan, and answers there. part says that a launcher has started the node:
// what the job asks for beside that is the launcher's matter, and pass takes the node's events for its file, nil where it
// has none. token is the job's, nil where it has none that its user knows. Errors mean that nothing was started.
func OpenSteering(
	ctx context.Context, p *plan.Plan, part bool, pass func(line []byte), token []byte, log zerolog.Logger,
) (*Steering, error) {
	rules := p.Job.See
	if part {
		rules.HTTP, rules.EventsFile = "", ""
	}
	view, err := OpenView(ctx, rules, token, log)
	if err != nil {
		return nil, err
	}
	view.pass = pass
	dir, err := p.OpenRunDir(log)
	if err != nil {
		view.Close() //nolint:contextcheck // it bounds itself
		return nil, err
	}
	p.RunDir = dir.Path
	s := &Steering{
		plan: p, log: log, dir: dir, view: view, now: make(chan struct{}), restarts: make(chan chan error),
		part: part, scales: make(chan scaling), resumes: make(chan resumption), pausing: make(chan struct{}, 1),
		changed: make(chan struct{}, 1),
		closed:  make(chan struct{}), looking: make(chan struct{}, 1),
		others: map[int]heardStatus{},
		status: report.Status{
			Version: 1, RunID: p.RunID, Name: p.Title(), Phase: report.PhasePending, Conditions: []report.Condition{},
			Tasks: []report.Task{},
		},
	}
	s.traffic = &Traffic{}
	s.guests = Guests{Node: p.Hostname, Vars: p.Job.Vars(), Log: log, Tell: s.happened}
	s.reached = newReachedHosts(p.Job.Reached, dir.Path, log)
	s.devices = newDeviceWatch(p, s.workersRunning, log)
	s.accounts.ledger.Enter(accounting.Start, time.Now())
	muster := control.Muster{
		Role: control.Agent, Part: part, PID: os.Getpid(), RunDir: dir.Path, Meets: meets(&p.Job), Within: job.RunDirIn(p.Job.Environ),
	}
	s.server, err = control.Serve(control.Config{Dir: dir.Path, Served: served{s}, Log: log, Muster: muster})
	s.openSpans() //nolint:contextcheck // Close ends it
	s.look.Go(s.traffic.Start)
	s.look.Go(s.watchSections)
	s.look.Go(func() { s.reached.watch(s.closed) })
	s.look.Go(func() { s.devices.run(s.closed) }) //nolint:contextcheck // Close ends it
	if part || !p.Job.Alone() {
		s.look.Go(func() { WatchUsage(s.closed, s.unseenWorker, s.noteUsage) })
	}
	if err != nil {
		log.Warn().Err(err).Str("path", dir.Path).Msg("the job runs, but muster status, stop and the like cannot reach it")
	}
	s.view.Show(served{s}, muster, s.Status) //nolint:contextcheck // what it starts ends with Close
	return s, nil
}

// meets is where the nodes of a job meet, as all of them were told; empty where nobody was told, and for a node alone.
func meets(j *job.Job) string {
	if j.Alone() || len(j.Meeting.Endpoints) == 0 {
		return ""
	}
	at := []string{j.Meeting.Backend}
	for _, e := range j.Meeting.Endpoints {
		at = append(at, e.String())
	}
	return strings.Join(at, " ")
}

// Refused takes in that this node takes no part in the job because of err, where there is no status file that says so.
func (s *Steering) Refused(err error) {
	o := report.OutcomeOf(err, job.ReasonRefused)
	if stopped, ok := errors.AsType[*SignalError](err); ok {
		o.Status, o.Reason = errhint.FromSignal(int(stopped.Signal)), job.ReasonStopped
	}
	o.Status = s.plan.Job.CompatStatus(o.Status)
	d := s.Status()
	s.tell(d.Ended(o, moment(time.Now())))
}

// Close ends the answers and removes the run directory. A nil Steering is none.
func (s *Steering) Close() error {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	for _, end := range s.ends {
		end(nil)
	}
	s.ends = nil
	s.mu.Unlock()
	s.closing.Do(func() { close(s.closed) })
	s.look.Wait()
	s.guests.Close()
	s.accounts.spans.exporter.Close()
	s.view.Close()
	return errors.Join(s.closeRelay(), s.server.Close(), s.dir.Remove())
}

// Until returns a context that also ends when somebody has asked for the end of the job, with a SignalError as its
// cause, and with Close.
func (s *Steering) Until(ctx context.Context) context.Context {
	ctx, cancel := context.WithCancelCause(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ends = append(s.ends, cancel)
	if s.askedEnd != nil {
		cancel(s.askedEnd)
	}
	return ctx
}

// Status is how this node stands, as its status file has it, and what its workers used when they were looked at last.
func (s *Steering) Status() report.Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.statusLocked()
	s.usedLocked(d.Ranks)
	d.Tasks = withTraffic(d.Tasks, s.carried)
	s.devices.tell(d.Ranks)
	return d
}

// statusLocked is how this node stands, without what its workers use.
func (s *Steering) statusLocked() report.Status {
	d := s.status
	d.Ranks, d.Sidecars, d.Accounting, d.Hang = s.ranksLocked(), s.beside.told(), s.accountingLocked(), s.lastHang
	return d
}

// tell takes a state of the status file.
func (s *Steering) tell(d report.Status) {
	s.mu.Lock()
	s.accountLocked(&d)
	s.status = d
	s.mu.Unlock()
	s.events.Moved(s.plan.Hostname, d)
	s.publishSoon()
}

func (s *Steering) publishSoon() {
	select {
	case s.changed <- struct{}{}:
	default: // it is going to be
	}
}

// endingPhases are those in which workers that run are being stopped.
var endingPhases = []report.Phase{report.PhaseTerminating, report.PhaseRestarting, report.PhasePausing}

// ranks are the workers here, without what has to be looked up.
func (s *Steering) ranks() []report.Rank {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ranksLocked()
}

func (s *Steering) ranksLocked() []report.Rank {
	var ranks []report.Rank
	for i := range s.places {
		p := &s.places[i]
		if p.worker == nil {
			continue
		}
		started := moment(p.worker.proc.Began())
		r := report.Rank{
			Node: s.plan.Hostname, Rank: p.worker.Rank, LocalRank: p.worker.LocalRank, PID: p.worker.proc.PID(), Restarts: p.restarts,
			StartTime: &started, LastExit: p.last, Phase: report.PhaseRunning, Progress: progressOf(p.worker.progress),
		}
		if !p.ended {
			tellSlow(&r, &s.slow)
		}
		switch {
		case !p.ended && slices.Contains(endingPhases, s.status.Phase):
			r.Phase = report.PhaseTerminating
		case !p.ended:
		case p.last.Stopped:
			r.Phase = report.PhaseStopped
		case p.last.ExitCode == 0:
			r.Phase = report.PhaseSucceeded
		default:
			r.Phase = report.PhaseFailed
		}
		ranks = append(ranks, r)
	}
	return ranks
}

// lookedUp is Status with what is read when it is asked for: processors, memory, output.
func (s *Steering) lookedUp() report.Status {
	s.mu.Lock()
	d := s.statusLocked()
	workers := make([]*worker, 0, len(s.places))
	var pids []int
	for _, p := range s.places {
		if p.worker != nil {
			workers = append(workers, p.worker)
			if !p.ended {
				pids = append(pids, p.worker.proc.PID())
			}
		}
	}
	s.mu.Unlock()
	used, at, err := s.inUse.of(pids, time.Now())
	if err != nil {
		s.log.Debug().Err(err).Msg("what the workers use cannot be told")
	}
	at = moment(at)
	for i := range d.Ranks {
		r := &d.Ranks[i]
		if u, is := used[r.PID]; is && workers[i].runs() {
			cpu := u.CPU.Seconds()
			r.CPUSeconds, r.ResidentBytes, r.UsageTime = &cpu, &u.Resident, &at
		}
		if last := workers[i].logs.LastOutput(); !last.IsZero() {
			last = moment(last)
			r.LastOutput = &last
		}
	}
	d.Tasks = withTraffic(d.Tasks, s.traffic.Read())
	s.devices.tell(d.Ranks)
	return d
}
