package launch

import (
	"os"
	"time"

	"github.com/rs/zerolog"
)

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
	// Limit says that --backoff-limit allowed no further world.
	Limit bool
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
	o := outcome{Status: end.Status, Reason: d.reasonOf(end), Message: end.Message, Hint: end.Hint}
	counts := statusCounts{Failed: end.Failed, Stopped: max(0, end.Size-end.Failed)}
	if o.Reason == reasonSucceeded {
		counts = statusCounts{Failed: end.Failed, Succeeded: max(0, end.Size-end.Failed)}
	}
	d.status.doc.Counts = counts
	d.status.finished(o)
}
