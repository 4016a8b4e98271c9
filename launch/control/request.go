package control

import (
	"fmt"
	"time"

	"github.com/rs/zerolog"

	"muster/internal/printable"
	"muster/internal/wording"
	"muster/launch/job"
)

// Request is a change that somebody wants of a job that runs. What it is called is also the event that tells of it.
type Request struct {
	What EventType `json:"what"` // one of those that end in Requested
	By   Peer      `json:"by"`
	Wanted
}

// Wanted is what goes with a request: each kind reads what is its own.
type Wanted struct {
	// Now says that a job is to stop without grace.
	Now bool `json:"now,omitempty"`
	// Command is a new command of a job that is resumed.
	Command job.Strings `json:"command,omitempty"`
	// Nodes is how many are wanted, Node which one is to be lost: its group rank or its name.
	Nodes int    `json:"nodes,omitempty"`
	Node  string `json:"node,omitempty"`
	// Starts says that whoever asks for more nodes starts them, with job.Meeting.Wants: the round ends for these once they
	// have come.
	Starts bool `json:"starts,omitempty"`
}

// requestPaths are the paths at which changes are asked for.
var requestPaths = map[EventType]string{
	StopRequested: pathStop, RestartRequested: pathRestart, PauseRequested: pathPause, ResumeRequested: pathResume,
	ScaleRequested: pathScale, KillRequested: pathKill,
}

// requestAt is what a path asks for.
func requestAt(path string) (EventType, bool) {
	for what, at := range requestPaths {
		if at == path {
			return what, true
		}
	}
	return "", false
}

// Verb is what is wanted to be done with a job.
func (r *Request) Verb() string {
	switch r.What { //nolint:exhaustive // all others are no request
	case StopRequested:
		return "stop"
	case RestartRequested:
		return "restart"
	case PauseRequested:
		return "pause"
	case ResumeRequested:
		return "resume"
	case ScaleRequested:
		return "scale"
	case KillRequested:
		return "rehearse the loss of a node of"
	}
	return "internal error: " + string(r.What)
}

// String says what was wanted, for a log.
func (r *Request) String() string {
	switch r.What { //nolint:exhaustive // for all others the verb says it
	case StopRequested:
		if r.Now {
			return "stop the job without grace"
		}
	case RestartRequested:
		return "restart the workers"
	case ScaleRequested:
		return "scale the job to " + wording.Plural(r.Nodes, "node")
	case KillRequested:
		return "rehearse the loss of " + wording.Node(printable.Output(r.Node))
	}
	return r.Verb() + " the job"
}

// Event is what tells that it was asked for: a node that is to be lost stands in it as it was named, by its name or its
// group rank.
func (r *Request) Event() Event {
	e := Event{Type: r.What, By: &r.By}
	switch r.What { //nolint:exhaustive // all others say nothing more
	case ScaleRequested:
		e.Message = wording.Plural(r.Nodes, "node")
	case KillRequested:
		e.Subject = wording.Clip(r.Node)
	}
	return e
}

// mostRefusal is how much of why a request was refused is kept, in bytes.
const mostRefusal = 512

// Refusal is what tells that it was not done, and why.
func (r *Request) Refusal(err error) Event {
	return Event{Type: RequestRefused, By: &r.By, Message: printable.Line(r.String()+": "+err.Error(), mostRefusal)}
}

// Log writes that it was asked for, and by whom: a process in another PID namespace has no number here.
func (r *Request) Log(log *zerolog.Logger) {
	e := log.Warn().Int("uid", r.By.UID)
	if outside := r.By.PID == 0 && r.By.Address == "" && r.By.Node == ""; outside {
		e.Str("from", "a process outside of this container")
	} else {
		e.Int("pid", r.By.PID)
	}
	e.Msg("asked to " + r.String())
}

// LogRefusal writes that it is not done, and why.
func (r *Request) LogRefusal(log *zerolog.Logger, err error) {
	log.Warn().Str("error", printable.Line(err.Error(), mostRefusal)).Msg("refused to " + r.String())
}

// Stopping says what follows of a request to stop a job whose workers have a time to end; again says that it was asked
// for before.
func Stopping(now, again bool, grace time.Duration) string {
	switch {
	case now:
		return "the job is being stopped without grace"
	case again:
		return fmt.Sprintf("the job is being stopped already: its workers have %v in all; --now ends them at once", grace)
	}
	return fmt.Sprintf("the job is being stopped: its workers have %v", grace)
}
