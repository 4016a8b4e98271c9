package launch

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/rs/zerolog"

	"muster/internal/durable"
	"muster/internal/errhint"
	"muster/internal/printable"
	"muster/internal/proc"
	"muster/launch/job"
	"muster/launch/policy"
	"muster/rendezvous"
)

// phase is where a job stands, in the status file's words.
type phase string

const (
	phasePending     phase = "Pending"     // nothing has been started
	phaseChecking    phase = "Checking"    // the nodes of a round are being examined
	phaseCreating    phase = "Creating"    // the workers of a round are being started
	phaseRunning     phase = "Running"     // every worker of the round was started
	phaseRestarting  phase = "Restarting"  // the group is being stopped, or pauses, and will start again
	phaseTerminating phase = "Terminating" // the job is decided, its workers are being stopped
	phaseSucceeded   phase = "Succeeded"
	phaseFailed      phase = "Failed"
	phaseTimeout     phase = "Timeout" // failed because the deadline was reached

	// Of tasks alone.
	phaseStopped phase = "Stopped" // muster has ended workers of the node, and none of them had failed
	phaseUnknown phase = "Unknown" // nobody has said how the node's workers ended
)

// jobStatus is the status file. docs/status-file.md describes it for its readers: fields are added, never renamed.
type jobStatus struct {
	Version      int               `json:"version"`
	RunID        string            `json:"runId"`
	Name         string            `json:"name"`
	Phase        phase             `json:"phase"`
	Reason       job.Reason        `json:"reason,omitempty"`
	Message      string            `json:"message,omitempty"`
	ExitStatus   *int              `json:"exitStatus"`
	Hint         string            `json:"hint,omitempty"`
	StartTime    *time.Time        `json:"startTime"`
	EndTime      *time.Time        `json:"endTime"`
	Generation   int               `json:"generation"`
	RestartCount int               `json:"restartCount"`
	Replacements int               `json:"replacements"`
	Nodes        int               `json:"nodes"`
	GroupRank    int               `json:"groupRank"`
	WorldSize    int               `json:"worldSize"`
	StoreAddress string            `json:"storeAddress,omitempty"`
	Counts       statusCounts      `json:"counts"`
	Tasks        []statusTask      `json:"tasks"`
	Conditions   []statusCondition `json:"conditions"`
	RootCause    *statusCause      `json:"rootCause,omitempty"`
}

// statusCounts says how many workers are in which state: those of this node, in a launcher's file those of all nodes.
type statusCounts struct {
	Pending     int `json:"pending"`
	Creating    int `json:"creating"`
	Running     int `json:"running"`
	Terminating int `json:"terminating"`
	Succeeded   int `json:"succeeded"`
	Failed      int `json:"failed"`
	Stopped     int `json:"stopped"`
	Unknown     int `json:"unknown"` // of nodes that were lost
}

func (c *statusCounts) add(more statusCounts) {
	c.Pending += more.Pending
	c.Creating += more.Creating
	c.Running += more.Running
	c.Terminating += more.Terminating
	c.Succeeded += more.Succeeded
	c.Failed += more.Failed
	c.Stopped += more.Stopped
	c.Unknown += more.Unknown
}

func (c *statusCounts) sum() int {
	return c.Pending + c.Creating + c.Running + c.Terminating + c.Succeeded + c.Failed + c.Stopped + c.Unknown
}

// statusTask is the worker group of one node.
type statusTask struct {
	Node         string `json:"node"`
	Ranks        string `json:"ranks"`
	RestartCount int    `json:"restartCount"`
	Phase        phase  `json:"phase"`
	// ExitCode is that of the worker that failed first here, 0 where all have succeeded; nil where neither is so.
	ExitCode *int `json:"exitCode"`
}

// conditionType names a condition. Their meaning is that of Kubernetes' conditions: several can hold at once.
type conditionType string

const (
	conditionInitialized    conditionType = "Initialized"    // the workers have been started once
	conditionRunning        conditionType = "Running"        // they run now
	conditionReplicaFailure conditionType = "ReplicaFailure" // a worker of the last round failed
	conditionCompleted      conditionType = "Completed"      // the job has succeeded
	conditionFailed         conditionType = "Failed"         // the job has failed
)

type statusCondition struct {
	Type               conditionType `json:"type"`
	Status             string        `json:"status"` // True or False
	Reason             job.Reason    `json:"reason,omitempty"`
	Message            string        `json:"message,omitempty"`
	LastTransitionTime time.Time     `json:"lastTransitionTime"`
}

// statusCause is the worker that is to blame.
type statusCause struct {
	Host       string    `json:"host"`
	Rank       int       `json:"rank"`
	LocalRank  int       `json:"localRank"`
	PID        int       `json:"pid"`
	Time       time.Time `json:"time"`
	ExitCode   int       `json:"exitCode"` // 128+n for a signal
	Signal     string    `json:"signal,omitempty"`
	CoreDumped bool      `json:"coreDumped"`
	ErrorFile  string    `json:"errorFile,omitempty"`
	Error      string    `json:"error,omitempty"`
	Traceback  string    `json:"traceback,omitempty"`
	Evidence   []string  `json:"evidence,omitempty"`
	Cause      string    `json:"cause,omitempty"`
	LastLines  []string  `json:"lastLines"`
}

// statusConfig says what a statusWriter writes about, and where.
type statusConfig struct {
	// Path of the status file; empty: none.
	Path string
	// TerminationLog is /dev/termination-log in a Kubernetes container, else empty. It is written at the end, and only
	// where it exists already.
	TerminationLog string
	// RunID and Name name the job, Node this node.
	RunID, Name, Node string
	// Workers is the number of workers here.
	Workers int
	// Tasks are those of the hosts of a driven job, nil where this node's alone is told. What has no phase is in that of the job.
	Tasks []statusTask
	// Outputs are files that must not be replaced by the status file: muster's own output.
	Outputs []*os.File
	Log     zerolog.Logger
	// Now is time.Now, except in tests.
	Now func() time.Time
}

// statusWriter keeps the job's state in a file. Each method is a transition and returns when the file is durable. Not
// safe for concurrent use.
type statusWriter struct {
	cfg    statusConfig
	doc    jobStatus
	first  int // rank of the first worker here
	warned bool
}

// openStatus writes the first state, Pending. A path that cannot be written is an error with status 2: the job must not
// start. Later writes never fail the job: the first that does is logged.
func openStatus(cfg statusConfig) (*statusWriter, error) {
	s := &statusWriter{cfg: cfg, doc: jobStatus{Version: 1, RunID: cfg.RunID, Name: cfg.Name, Conditions: []statusCondition{}}}
	if cfg.Path != "" {
		path, err := replaceable(cfg.Path, cfg.Outputs)
		if err == nil {
			s.cfg.Path = path
			s.enter(phasePending)
			err = durable.Replace(path, s.encode(), 0o644)
		}
		if err != nil {
			err = errhint.Code(fmt.Errorf("cannot write the status file %q: %w", cfg.Path, err), errhint.Usage)
			return nil, errhint.With(err, "give a regular file in a directory that exists and is writable")
		}
	}
	return s, nil
}

// TellRefused writes into a job's status file, and for Kubernetes into its termination log, that the job was refused
// before anything was started. outputs are muster's own. That the file cannot be written changes nothing: the error is
// told in any case.
func TellRefused(asked job.Job, node string, outputs []*os.File, terminationLog string, err error) {
	s, openErr := openStatus(statusConfig{
		Path: asked.StatusFile, TerminationLog: terminationLog, RunID: asked.RunID, Name: asked.Command.Name, Node: node, Outputs: outputs, Now: time.Now,
	})
	if openErr == nil {
		s.finished(outcomeOf(err, job.ReasonRefused))
	}
}

// outcomeOf is how a job ends that err has kept from running: because of why, unless the nodes did not meet.
func outcomeOf(err error, why job.Reason) outcome {
	o := outcome{Status: errhint.CodeOf(err), Reason: why, Message: err.Error(), Hint: errhint.Of(err)}
	if o.Status == errhint.TryAgain {
		o.Reason = job.ReasonNotMet
	}
	return o
}

// checking says that the nodes of a round are being examined.
func (s *statusWriter) checking(r rendezvous.Round) {
	s.doc.Generation, s.doc.Nodes, s.doc.GroupRank, s.doc.WorldSize, s.first = r.Number, r.GroupWorldSize, r.GroupRank, r.WorldSize, r.BaseRank
	s.enter(phaseChecking)
	s.write()
}

// creating says that the workers of a round are being started, who meet at storeAddress and know of that many restarts.
func (s *statusWriter) creating(r rendezvous.Round, restarts int, storeAddress string) {
	s.doc.Generation, s.doc.RestartCount, s.doc.Replacements, s.doc.StoreAddress = r.Number, restarts, r.Replacements, storeAddress
	s.doc.Nodes, s.doc.GroupRank, s.doc.WorldSize, s.first = r.GroupWorldSize, r.GroupRank, r.WorldSize, r.BaseRank
	s.enter(phaseCreating)
	s.write()
}

// running says that every worker of the round was started.
func (s *statusWriter) running() {
	now := s.now()
	if s.doc.StartTime == nil {
		s.doc.StartTime = &now
	}
	s.doc.Reason, s.doc.Message = "", ""
	s.enter(phaseRunning)
	s.condition(conditionInitialized, true, "", "")
	s.condition(conditionRunning, true, "", "")
	s.condition(conditionReplicaFailure, false, "", "")
	s.write()
}

// restarting says that the group is being stopped and will be started again, as the policy decided.
func (s *statusWriter) restarting(d policy.Decision) {
	s.doc.RestartCount = d.Restarts
	s.doc.Reason, s.doc.Message = d.Reason, d.Message()
	s.enter(phaseRestarting)
	s.condition(conditionRunning, false, d.Reason, s.doc.Message)
	if d.Rank >= 0 {
		s.condition(conditionReplicaFailure, true, d.Reason, s.doc.Message)
	}
	s.write()
}

// restartingWorker says that a worker failed that will be started again while the others go on.
func (s *statusWriter) restartingWorker(d policy.Decision) {
	s.doc.RestartCount = d.Restarts
	s.doc.Reason, s.doc.Message = d.Reason, d.Message()
	s.enter(phaseRunning)
	s.condition(conditionReplicaFailure, true, d.Reason, s.doc.Message)
	s.write()
}

// terminating says that the job is decided and what is left of its workers is being stopped.
func (s *statusWriter) terminating(d policy.Decision) {
	s.doc.Reason, s.doc.Message = d.Reason, d.Message()
	s.enter(phaseTerminating)
	s.condition(conditionRunning, false, d.Reason, s.doc.Message)
	if d.Rank >= 0 {
		s.condition(conditionReplicaFailure, true, d.Reason, s.doc.Message)
	}
	s.write()
}

// outcome is how a job ended.
type outcome struct {
	// Status is muster's exit status, Reason why it is that one.
	Status int
	Reason job.Reason
	// Message is a sentence for people, Hint what to try when there is no Report or it has none.
	Message, Hint string
	// Exits are those of the last round's workers, nil where none was started. Report is nil unless a worker failed.
	Exits  []workerExit
	Report *failureReport
	// Unsaved is why the last checkpoint of workers that succeeded is not on disk, nil where it is.
	Unsaved error
}

// finished writes the last state, also to the termination log.
func (s *statusWriter) finished(o outcome) {
	now := s.now()
	s.doc.EndTime, s.doc.ExitStatus = &now, &o.Status
	s.doc.Reason, s.doc.Message, s.doc.Hint = o.Reason, o.Message, o.Hint
	if o.Report != nil {
		s.doc.RootCause = newStatusCause(o.Report)
		if o.Report.Root.Hint != "" {
			s.doc.Hint = o.Report.Root.Hint
		}
	}
	switch o.Reason {
	case job.ReasonSucceeded:
		s.enter(phaseSucceeded)
	case job.ReasonDeadline:
		s.enter(phaseTimeout)
	default:
		s.enter(phaseFailed)
	}
	if s.cfg.Tasks == nil {
		s.doc.Tasks[0].ExitCode = &o.Status
	}
	if o.Exits != nil {
		s.doc.Counts = countExits(o.Exits)
		s.doc.Tasks[0].Phase, s.doc.Tasks[0].ExitCode = taskEnd(&o)
	}
	s.condition(conditionRunning, false, o.Reason, o.Message)
	if o.Reason == job.ReasonSucceeded {
		s.condition(conditionCompleted, true, o.Reason, o.Message)
	} else {
		s.condition(conditionFailed, true, o.Reason, o.Message)
	}
	s.write()
	s.writeTerminationLog()
}

// taskEnd says how the workers of this node ended, whatever became of the job.
func taskEnd(o *outcome) (phase, *int) {
	code, stopped := 0, false
	var first *workerExit
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
			code = o.Report.status() // its connections' echoes may have been seen before it
		}
		return phaseFailed, &code
	case stopped:
		return phaseStopped, nil
	}
	return phaseSucceeded, &code
}

func countExits(exits []workerExit) statusCounts {
	var c statusCounts
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

func newStatusCause(r *failureReport) *statusCause {
	f := &r.Root
	c := &statusCause{
		Host: f.Host, Rank: f.Rank, LocalRank: f.LocalRank, PID: f.PID, Time: f.At.UTC().Round(time.Millisecond),
		ExitCode: f.status(), CoreDumped: f.CoreDumped,
		Evidence: f.Evidence, Cause: f.Cause, LastLines: make([]string, len(f.LastLines)),
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

func (s *statusWriter) now() time.Time { return s.cfg.Now().UTC().Round(time.Millisecond) }

// enter sets the phase and what follows from it.
func (s *statusWriter) enter(p phase) {
	s.doc.Phase = p
	n := s.cfg.Workers
	switch p {
	case phasePending, phaseChecking:
		s.doc.Counts = statusCounts{Pending: n}
	case phaseCreating:
		s.doc.Counts = statusCounts{Creating: n}
	case phaseRunning:
		s.doc.Counts = statusCounts{Running: n}
	case phaseRestarting, phaseTerminating:
		s.doc.Counts = statusCounts{Terminating: n}
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
	s.doc.Tasks = []statusTask{{Node: s.cfg.Node, Ranks: rankList(ranks), RestartCount: s.doc.RestartCount, Phase: p}}
}

// condition sets a condition. Its time is that of the last change of its status.
func (s *statusWriter) condition(t conditionType, holds bool, why job.Reason, message string) {
	c := statusCondition{Type: t, Status: "False", Reason: why, Message: message, LastTransitionTime: s.now()}
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

func (s *statusWriter) encode() []byte {
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false) // people read it too
	if err := enc.Encode(&s.doc); err != nil {
		panic(fmt.Sprintf("internal error: cannot encode the status: %v", err)) // strings, numbers and times only
	}
	return text.Bytes()
}

func (s *statusWriter) write() {
	if s.cfg.Path != "" {
		s.warn(durable.Replace(s.cfg.Path, s.encode(), 0o644), s.cfg.Path)
	}
}

// warn logs the first failure to write: a full disk must not end the job, nor fill the log.
func (s *statusWriter) warn(err error, path string) {
	if err != nil && !s.warned {
		s.warned = true
		s.cfg.Log.Warn().Err(err).Str("path", path).Msg("cannot write status, going on without it")
	}
}

// maxTerminationLog is what the kubelet takes of a termination log, in bytes.
const maxTerminationLog = 4096

// writeTerminationLog writes the state to the termination log. The file is a mount of its own: it is written in place
// and never made.
func (s *statusWriter) writeTerminationLog() {
	if s.cfg.TerminationLog != "" {
		s.warn(s.doc.writeTo(s.cfg.TerminationLog), s.cfg.TerminationLog)
	}
}

func (d jobStatus) writeTo(terminationLog string) error {
	f, err := os.OpenFile(terminationLog, os.O_WRONLY|os.O_TRUNC, 0)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = f.Write(d.shortened(maxTerminationLog))
	return errors.Join(err, f.Close())
}

// TellTermination writes a status, as a status file holds it, to the termination log of Kubernetes.
func TellTermination(terminationLog string, status []byte) error {
	var d jobStatus
	if err := json.Unmarshal(status, &d); err != nil {
		return fmt.Errorf("cannot read the status of the job: %w", err)
	}
	return d.writeTo(terminationLog)
}

// shortened returns the status as JSON of at most limit bytes: the call stack goes first, then the oldest of the last
// lines, then the ends of texts, then what can be read elsewhere.
func (d jobStatus) shortened(limit int) []byte {
	cause := statusCause{}
	if d.RootCause != nil {
		cause = *d.RootCause
		d.RootCause = &cause
	}
	fits := func() ([]byte, bool) {
		text, err := json.Marshal(&d)
		return text, err == nil && len(text) <= limit
	}
	text, ok := fits()
	if ok {
		return text
	}
	cause.Traceback = ""
	for text, ok = fits(); !ok && len(cause.LastLines) > 0; text, ok = fits() {
		cause.LastLines = cause.LastLines[1:]
	}
	for most := 512; !ok && most > 0; most /= 2 {
		for _, part := range []*string{
			&d.Message, &d.Hint, &d.Name, &d.RunID, &d.StoreAddress, &cause.Error, &cause.ErrorFile, &cause.Host,
		} {
			*part = (*part)[:min(len(*part), most)] // half a character becomes U+FFFD
		}
		cause.Evidence, d.Conditions, d.Tasks = nil, []statusCondition{}, []statusTask{}
		text, ok = fits()
	}
	return text
}
