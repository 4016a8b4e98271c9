package launch

import (
	"fmt"
	"os"
	"time"

	"github.com/rs/zerolog"

	"muster/internal/errhint"
)

// Final returns why the exit of a worker with a status other than 0 ends the job, whatever else the rules allow, as the last
// part of a sentence; empty where it does not. Rules that are about groups of workers do not count. It is for drivers that
// start workers one by one.
func (r *RestartRules) Final(status int) string {
	switch {
	case r.Fatal.Has(status):
		return fmt.Sprintf("%d is one of --fatal-exit-codes", status)
	case r.Policy == RestartNever:
		return "--restart-policy never"
	case r.Policy == RestartExitCode && !r.Retryable.Has(status):
		return fmt.Sprintf("%d is none of --retryable-exit-codes", status)
	}
	return ""
}

// Driven is the status file of a job whose workers are started one by one, on hosts that come and go, by a driver in the
// launcher. Its methods belong to one goroutine at a time.
type Driven struct {
	status *statusWriter
	fatal  ExitCodes
}

// DrivenEnd is how such a job ended.
type DrivenEnd struct {
	// Status is muster's exit status; Stopped says that a signal to muster is the reason.
	Status  int
	Stopped bool
	// Message is a sentence for people, Hint what to try.
	Message, Hint string
	// Size is how many workers there were at the end, Failed how many of them have failed.
	Size, Failed int
}

// OpenDriven writes the first state. A path that cannot be written is an error with status 2. node is this machine, where the
// driver runs; outputs are muster's own.
func OpenDriven(job Job, node string, outputs []*os.File, terminationLog string, log zerolog.Logger) (*Driven, error) {
	s, err := openStatus(statusConfig{
		Path: job.StatusFile, TerminationLog: terminationLog, RunID: job.RunID, Name: job.Command.Name, Node: node, Outputs: outputs, Log: log, Now: time.Now,
	})
	if err != nil {
		return nil, err
	}
	return &Driven{status: s, fatal: job.Restart.Fatal}, nil
}

// World says that a world has begun: its number, from 1, its workers, and on how many hosts they are.
func (d *Driven) World(number, workers, hosts int) {
	s := d.status
	s.cfg.Workers, s.doc.Generation, s.doc.RestartCount, s.doc.Nodes, s.doc.WorldSize = workers, number, number-1, hosts, workers
	s.running()
}

// Ended writes the last state.
func (d *Driven) Ended(end DrivenEnd) {
	o := outcome{Status: end.Status, Reason: reasonWorkerFailed, Message: end.Message, Hint: end.Hint}
	counts := statusCounts{Failed: end.Failed, Stopped: max(0, end.Size-end.Failed)}
	switch {
	case end.Stopped:
		o.Reason = reasonStopped
	case end.Status == errhint.OK:
		o.Reason, counts = reasonSucceeded, statusCounts{Failed: end.Failed, Succeeded: max(0, end.Size-end.Failed)}
	case end.Status == errhint.Deadline:
		o.Reason = reasonDeadline
	case end.Failed == 0 && end.Status == errhint.TryAgain:
		o.Reason = reasonNotMet
	case end.Failed == 0 && end.Status == errhint.Usage:
		o.Reason = reasonRefused
	case end.Failed == 0 && end.Status == errhint.Internal:
		o.Reason = reasonInternal
	case d.fatal.Has(end.Status):
		o.Reason = reasonFatal
	}
	d.status.doc.Counts = counts
	d.status.finished(o)
}
