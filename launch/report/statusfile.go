package report

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/rs/zerolog"

	"muster/internal/durable"
	"muster/internal/errhint"
	"muster/internal/printable"
	"muster/internal/proc"
	"muster/launch/job"
	"muster/rendezvous"
)

// StatusConfig says what a StatusFile writes about, and where.
type StatusConfig struct {
	// Path of the status file; empty: none.
	Path string
	// TerminationLog is /dev/termination-log in a Kubernetes container, else empty. It is written at the end, and only
	// where it exists already.
	TerminationLog string
	// RunID and Name name the job, Node this node.
	RunID, Name, Node string
	// Workers is the number of workers here.
	Workers int
	// Tasks are those of the hosts of a driven job, nil where this node's alone is told. What has no phase is in that
	// of the job.
	Tasks []Task
	// Outputs are files that must not be replaced by the status file: muster's own output.
	Outputs []*os.File
	// Ranks are the workers here at this moment; nil: they are not told one by one.
	Ranks func() []Rank
	// Sidecars are the processes beside them at this moment; nil: there are none.
	Sidecars func() []Sidecar
	// Accounting is what time went to until this moment; nil: it is not told.
	Accounting func() *Accounting
	// Lines takes each state as a line of JSON behind Mark, in one Write, where that is not empty.
	Mark  string
	Lines io.Writer
	// Changed is told each state, and keeps it. It must not wait for anybody. nil: nobody is told.
	Changed func(Status)
	Log     zerolog.Logger
	// Now is time.Now, except in tests.
	Now func() time.Time
}

// StatusFile keeps the job's state in a file. Each method is a transition and returns when the file is durable. Not
// safe for concurrent use.
type StatusFile struct {
	cfg    StatusConfig
	doc    Status
	first  int // rank of the first worker here
	warned bool
}

// OpenStatus writes the first state, Pending. A path that cannot be written is an error with status 2: the job must not
// start. Later writes never fail the job: the first that does is logged.
func OpenStatus(cfg StatusConfig) (*StatusFile, error) {
	s := &StatusFile{cfg: cfg, doc: Status{Version: 1, RunID: cfg.RunID, Name: cfg.Name, Conditions: []Condition{}}}
	s.enter(PhasePending)
	if cfg.Path != "" {
		path, err := replaceable(cfg.Path, cfg.Outputs)
		if err == nil {
			s.cfg.Path = path
			err = durable.Replace(path, s.encode(), 0o644)
		}
		if err != nil {
			err = errhint.Code(fmt.Errorf("cannot write the status file %q: %w", cfg.Path, err), errhint.Usage)
			hint := "give a regular file in a directory that exists and is writable"
			if errhint.Full(err) {
				hint = errhint.MakeRoom(printable.Output(path), "--status-file")
			}
			return nil, errhint.With(err, hint)
		}
	}
	s.tell()
	return s, nil
}

// TellRefused writes into a job's status file, and for Kubernetes into its termination log, that the job was refused
// before anything was started. outputs are muster's own. That the file cannot be written changes nothing: the error is
// told in any case.
func TellRefused(asked job.Job, node string, outputs []*os.File, terminationLog string, err error) {
	s, openErr := OpenStatus(StatusConfig{
		Path: asked.StatusFile, TerminationLog: terminationLog, RunID: asked.RunID, Name: asked.Command.ShownTitle(asked.Vars()),
		Node: node, Outputs: outputs, Now: time.Now,
	})
	if openErr == nil {
		s.Finished(OutcomeOf(err, job.ReasonRefused))
	}
}

// OutcomeOf is how a job ends that err has kept from running: because of why, unless the nodes did not meet.
func OutcomeOf(err error, why job.Reason) Outcome {
	o := Outcome{Status: errhint.CodeOf(err), Reason: why, Message: err.Error(), Hint: errhint.Of(err)}
	if o.Status == errhint.TryAgain {
		o.Reason = job.ReasonNotMet
	}
	return o
}

// Checking says that the nodes of a round are being examined.
func (s *StatusFile) Checking(r rendezvous.Round) {
	s.doc.Generation, s.doc.Nodes, s.doc.GroupRank, s.doc.WorldSize, s.first = r.Number, r.GroupWorldSize, r.GroupRank,
		r.WorldSize, r.BaseRank
	s.enter(PhaseChecking)
	s.write()
}

// Ran reports whether workers have run.
func (s *StatusFile) Ran() bool { return s.doc.StartTime != nil }

// Creating says that the workers of a round are being started, who meet at storeAddress and know of that many restarts.
func (s *StatusFile) Creating(r rendezvous.Round, restarts int, storeAddress string) {
	s.doc.Generation, s.doc.RestartCount, s.doc.Replacements, s.doc.StoreAddress = r.Number, restarts, r.Replacements, storeAddress
	s.doc.Nodes, s.doc.GroupRank, s.doc.WorldSize, s.first = r.GroupWorldSize, r.GroupRank, r.WorldSize, r.BaseRank
	s.enter(PhaseCreating)
	s.write()
}

// Running says that every worker of the round was started.
func (s *StatusFile) Running() {
	now := s.now()
	if s.doc.StartTime == nil {
		s.doc.StartTime = &now
	}
	s.doc.Reason, s.doc.Message = "", ""
	s.enter(PhaseRunning)
	s.condition(conditionInitialized, true, "", "")
	s.condition(conditionRunning, true, "", "")
	s.condition(conditionReplicaFailure, false, "", "")
	s.write()
}

// Why says why a job's state changes.
type Why struct {
	Reason job.Reason
	// Message is a sentence for people.
	Message string
	// Failed says that a worker failed.
	Failed bool
}

// Restarting says that the group is being stopped and will be started again, which will then have been done that often.
func (s *StatusFile) Restarting(restarts int, why Why) {
	s.doc.RestartCount = restarts
	s.doc.Reason, s.doc.Message = why.Reason, why.Message
	s.enter(PhaseRestarting)
	s.condition(conditionRunning, false, why.Reason, why.Message)
	if why.Failed {
		s.condition(conditionReplicaFailure, true, why.Reason, why.Message)
	}
	s.write()
}

// Pausing says that the group is being stopped and will not be started before somebody asks for it.
func (s *StatusFile) Pausing(why Why) {
	s.doc.Reason, s.doc.Message = why.Reason, why.Message
	s.enter(PhasePausing)
	s.condition(conditionRunning, false, why.Reason, why.Message)
	s.write()
}

// Paused says that no worker runs, and that the nodes of a round wait until somebody asks for a start.
func (s *StatusFile) Paused(r rendezvous.Round, why Why) {
	s.doc.Generation, s.doc.Nodes, s.doc.GroupRank, s.doc.WorldSize, s.first = r.Number, r.GroupWorldSize, r.GroupRank,
		r.WorldSize, r.BaseRank
	s.doc.Reason, s.doc.Message = why.Reason, why.Message
	s.enter(PhasePaused)
	s.pause(true, why)
	s.write()
}

// Resuming says that somebody has asked for a start of the workers.
func (s *StatusFile) Resuming(why Why) {
	s.doc.Reason, s.doc.Message = why.Reason, why.Message
	s.enter(PhaseResuming)
	s.pause(false, why)
	s.write()
}

// pause sets the conditions that say whether the job is paused.
func (s *StatusFile) pause(on bool, why Why) {
	s.condition(conditionPaused, on, why.Reason, why.Message)
	s.condition(conditionSuspended, on, why.Reason, why.Message)
}

// Writes says where the workers' output goes from now on.
func (s *StatusFile) Writes(where string) { s.doc.Logs = where }

// Renamed says that the workers run another program from now on.
func (s *StatusFile) Renamed(name string) { s.doc.Name = name }

// RestartingWorker says that a worker failed that will be started again while the others go on.
func (s *StatusFile) RestartingWorker(restarts int, why Why) {
	s.doc.RestartCount = restarts
	s.doc.Reason, s.doc.Message = why.Reason, why.Message
	s.enter(PhaseRunning)
	s.condition(conditionReplicaFailure, true, why.Reason, why.Message)
	s.write()
}

// Terminating says that the job is decided and what is left of its workers is being stopped.
func (s *StatusFile) Terminating(why Why) {
	s.doc.Reason, s.doc.Message = why.Reason, why.Message
	s.enter(PhaseTerminating)
	s.condition(conditionRunning, false, why.Reason, why.Message)
	if why.Failed {
		s.condition(conditionReplicaFailure, true, why.Reason, why.Message)
	}
	s.write()
}

// Outcome is how a job ended.
type Outcome struct {
	// Status is muster's exit status, Reason why it is that one.
	Status int
	Reason job.Reason
	// Message is a sentence for people, Hint what to try when there is no Report or it has none.
	Message, Hint string
	// Exits are those of the last round's workers, nil where none was started. Report is nil unless a worker failed.
	Exits  []Exit
	Report *Report
	// Unsaved is why the last checkpoint of workers that succeeded is not on disk, nil where it is.
	Unsaved error
}

// Finished writes the last state, also to the termination log.
func (s *StatusFile) Finished(o Outcome) {
	now := s.now()
	s.doc.EndTime, s.doc.ExitStatus = &now, &o.Status
	s.doc.Reason, s.doc.Message, s.doc.Hint = o.Reason, o.Message, o.Hint
	if o.Report != nil {
		s.doc.RootCause = newCause(&o.Report.Root)
		if o.Report.Root.Hint != "" {
			s.doc.Hint = o.Report.Root.Hint
		}
	}
	switch o.Reason {
	case job.ReasonSucceeded, job.ReasonSurplus:
		s.enter(PhaseSucceeded)
	case job.ReasonDeadline:
		s.enter(PhaseTimeout)
	default:
		s.enter(PhaseFailed)
	}
	if s.cfg.Tasks == nil {
		s.doc.Tasks[0].ExitCode = &o.Status
	}
	if o.Exits != nil {
		s.doc.Counts = countExits(o.Exits)
		never := 0 // workers that were not started: the job had ended before
		if o.Reason != job.ReasonSucceeded && o.Reason != job.ReasonSurplus {
			never = max(0, s.cfg.Workers-len(o.Exits))
		}
		s.doc.Counts.Stopped += never
		s.doc.Tasks[0].Phase, s.doc.Tasks[0].ExitCode = taskEnd(&o, never > 0)
	} else {
		n := &s.doc.Counts
		n.Stopped, n.Pending = n.Stopped+n.Pending, 0 // they were not started: the job had ended before
		n.settle(PhaseUnknown)
	}
	s.condition(conditionRunning, false, o.Reason, o.Message)
	if o.Reason == job.ReasonSucceeded || o.Reason == job.ReasonSurplus {
		s.condition(conditionCompleted, true, o.Reason, o.Message)
	} else {
		s.condition(conditionFailed, true, o.Reason, o.Message)
	}
	s.write()
	s.writeTerminationLog()
}

// taskEnd says how the workers of this node ended, whatever became of the job; stopped, that some were not started.
func taskEnd(o *Outcome, stopped bool) (Phase, *int) {
	code := 0
	var first *Exit
	for i := range o.Exits {
		switch e := &o.Exits[i]; {
		case e.Stopped:
			stopped = true
		case e.status() != 0 && (first == nil || e.At.Before(first.At)):
			first = e
		}
	}
	switch {
	case first != nil:
		if code = first.status(); o.Report != nil && !o.Report.Root.Elsewhere {
			code = o.Report.Status() // its connections' echoes may have been seen before it
		}
		return PhaseFailed, &code
	case stopped:
		return PhaseStopped, nil
	}
	return PhaseSucceeded, &code
}

func countExits(exits []Exit) Counts {
	var c Counts
	for i := range exits {
		switch {
		case exits[i].Stopped:
			c.Stopped++
		case exits[i].status() == 0:
			c.Succeeded++
		default:
			c.Failed++
		}
	}
	return c
}

func (s *StatusFile) now() time.Time { return s.cfg.Now().UTC().Round(time.Millisecond) }

// enter sets the phase and what follows from it.
func (s *StatusFile) enter(p Phase) {
	s.doc.Phase = p
	n := s.cfg.Workers
	switch p {
	case PhasePending, PhaseChecking, PhaseResuming:
		s.doc.Counts = Counts{Pending: n}
	case PhaseCreating:
		s.doc.Counts = Counts{Creating: n}
	case PhaseRunning:
		s.doc.Counts = Counts{Running: n}
	case PhaseRestarting, PhaseTerminating, PhasePausing:
		s.doc.Counts = Counts{Terminating: n}
	case PhasePaused:
		s.doc.Counts = Counts{Stopped: n}
	default: // finished counts the exits
	}
	if s.cfg.Tasks != nil {
		s.doc.Tasks = slices.Clone(s.cfg.Tasks)
		for i := range s.doc.Tasks {
			s.doc.Tasks[i].Phase = cmp.Or(s.doc.Tasks[i].Phase, p)
		}
		return
	}
	ranks := make([]int, n)
	for i := range ranks {
		ranks[i] = s.first + i
	}
	s.doc.Tasks = []Task{{Node: s.cfg.Node, Ranks: rankList(ranks), RestartCount: s.doc.RestartCount, Phase: p}}
}

// condition sets a condition. Its time is that of the last change of its status.
func (s *StatusFile) condition(t conditionType, holds bool, why job.Reason, message string) {
	c := Condition{Type: t, Status: "False", Reason: why, Message: message, LastTransitionTime: s.now()}
	if holds {
		c.Status = "True"
	}
	for i, old := range s.doc.Conditions {
		if old.Type == t {
			if old.Status == c.Status {
				c.LastTransitionTime = old.LastTransitionTime
			}
			s.doc.Conditions[i] = c
			return
		}
	}
	s.doc.Conditions = append(s.doc.Conditions, c)
}

func (s *StatusFile) encode() []byte {
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false) // people read it too
	if err := enc.Encode(&s.doc); err != nil {
		panic(fmt.Sprintf("internal error: cannot encode the status: %v", err)) // strings, numbers and times only
	}
	return text.Bytes()
}

// tell tells whoever keeps the state in memory.
func (s *StatusFile) tell() {
	if s.cfg.Changed != nil {
		s.cfg.Changed(s.doc.clone())
	}
}

func (s *StatusFile) write() {
	if s.cfg.Ranks != nil {
		s.doc.Ranks = s.cfg.Ranks()
	}
	if s.cfg.Sidecars != nil {
		s.doc.Sidecars = s.cfg.Sidecars()
	}
	s.tell() // first: a disk may take its time
	if s.cfg.Accounting != nil {
		s.doc.Accounting = s.cfg.Accounting() // with what has just been told
	}
	if s.cfg.Path != "" {
		s.warn(durable.Replace(s.cfg.Path, s.encode(), 0o644), s.cfg.Path)
	}
	if s.cfg.Mark != "" {
		text, err := json.Marshal(&s.doc)
		if err == nil {
			_, err = fmt.Fprintf(s.cfg.Lines, "%s%s\n", s.cfg.Mark, text)
		}
		s.warn(err, "standard error")
	}
}

// warn logs the first failure to write: a full disk must not end the job, nor fill the log.
func (s *StatusFile) warn(err error, path string) {
	if err != nil && !s.warned {
		s.warned = true
		s.cfg.Log.Warn().Err(err).Str("path", path).Msg("cannot write status, going on without it")
	}
}

// writeTerminationLog writes the state to the termination log. The file is a mount of its own: it is written in place
// and never made.
func (s *StatusFile) writeTerminationLog() {
	if s.cfg.TerminationLog != "" {
		s.warn(s.doc.writeTo(s.cfg.TerminationLog), s.cfg.TerminationLog)
	}
}

func newCause(f *Failure) *Cause {
	c := &Cause{
		Host: f.Host, Rank: f.Rank, LocalRank: f.LocalRank, PID: f.PID, Time: f.At.UTC().Round(time.Millisecond),
		ExitCode: f.status(), CoreDumped: f.CoreDumped,
		Evidence: f.Evidence, Cause: f.Cause, HeldUp: f.HeldUp, LastLines: make([]string, len(f.LastLines)),
	}
	if f.Signal != 0 {
		c.Signal = proc.SignalName(f.Signal)
	}
	if f.Error != nil {
		c.ErrorFile, c.Error, c.Traceback = f.Error.Path, f.Error.Message, f.Error.Traceback
	}
	for i, line := range f.LastLines {
		c.LastLines[i] = printable.Output(line)
	}
	return c
}
