package report

import (
	"encoding/json"
	"fmt"
	"time"

	"muster/internal/printable"
	"muster/launch/job"
)

// said is what a report says as a line of the log, for programs. Fields are added, never renamed; those of a worker are
// those of the status file's rootCause.
type said struct {
	Level   string    `json:"level"`
	Time    time.Time `json:"time"`
	Message string    `json:"message"`
	// Hint is what to try, Status the exit status of muster.
	Hint   string     `json:"hint,omitempty"`
	Status int        `json:"status"`
	Reason job.Reason `json:"reason,omitempty"`
	// Command is the name of what ran.
	Command   string  `json:"command,omitempty"`
	RootCause *Cause  `json:"rootCause,omitempty"`
	Failures  []other `json:"failures,omitempty"` // beside it, by time
	Stopped   []ended `json:"stopped,omitempty"`  // whom muster has ended on this node
	Restarts  string  `json:"restarts,omitempty"`
	Logs      string  `json:"logs,omitempty"`
}

// other is a worker that failed beside the root cause.
type other struct {
	Cause
	Hint string `json:"hint,omitempty"`
}

// ended is a worker that muster has ended.
type ended struct {
	Rank   int    `json:"rank"`
	Ending string `json:"ending"` // a signal's name, or "exit 1"
}

// Line returns what is said of an outcome as one line of JSON.
func (o *Outcome) Line(now time.Time) string {
	s := said{
		Level: "error", Time: now.UTC().Round(time.Millisecond), Message: printable.Output(o.Message), Hint: o.Hint, Status: o.Status,
		Reason: o.Reason,
	}
	if r := o.Report; r != nil {
		s.Command, s.Restarts, s.Logs = printable.Output(r.Title), r.Restarts, r.Logs
		s.RootCause = newCause(&r.Root)
		if r.Root.Hint != "" {
			s.Hint = r.Root.Hint
		}
		for i := range r.Others {
			s.Failures = append(s.Failures, other{*newCause(&r.Others[i]), r.Others[i].Hint})
		}
		for i := range r.Stopped {
			s.Stopped = append(s.Stopped, ended{r.Stopped[i].Rank, r.Stopped[i].Ending()})
		}
	}
	text, err := json.Marshal(&s)
	if err != nil {
		panic(fmt.Sprintf("internal error: cannot encode a report: %v", err)) // strings, numbers and times only
	}
	return string(text) + "\n"
}
