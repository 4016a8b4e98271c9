package control

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"muster/launch/job"
	"muster/launch/report"
)

// EventType says what has happened. docs/events.md describes each.
type EventType string

// The types.
const (
	PhaseChanged     EventType = "PhaseChanged"     // the job, or a node's part of it, stands in another way
	WorkerStarted    EventType = "WorkerStarted"    // a process of a rank runs
	WorkerExited     EventType = "WorkerExited"     // it has ended
	StopRequested    EventType = "StopRequested"    // somebody has asked for the end of the job
	RestartRequested EventType = "RestartRequested" // somebody has asked for a restart of all workers
	PauseRequested   EventType = "PauseRequested"   // somebody has asked that the job pause
	WorkersHang      EventType = "WorkersHang"      // no worker has shown a sign of life for --hang-timeout
	RankSlow         EventType = "RankSlow"         // a rank holds up the steps of the others
	ResumeRequested  EventType = "ResumeRequested"  // somebody has asked for the end of a pause
	ScaleRequested   EventType = "ScaleRequested"   // somebody has asked for another number of nodes
	KillRequested    EventType = "KillRequested"    // somebody has asked for the loss of a node
	RequestRefused   EventType = "RequestRefused"   // what was asked for last was not done
	// CheckPassed and CheckFailed are how the check of a round's nodes has ended for the node.
	CheckPassed EventType = "CheckPassed"
	CheckFailed EventType = "CheckFailed"
	// RendezvousCompleted says that the nodes of a round have met.
	RendezvousCompleted EventType = "RendezvousCompleted"
	// NodeJoined, NodeLost and NodeExcluded say of another node, or of this one, that it takes part or does not any
	// more.
	NodeJoined   EventType = "NodeJoined"
	NodeLost     EventType = "NodeLost"
	NodeExcluded EventType = "NodeExcluded"
	// SidecarStarted and SidecarExited are of a process that runs beside the workers.
	SidecarStarted EventType = "SidecarStarted"
	SidecarExited  EventType = "SidecarExited"
	// CheckpointSaved says that all ranks have saved a step to memory.
	CheckpointSaved EventType = "CheckpointSaved"
	// ExecStarted and ExecEnded are of a command that somebody runs in the place of a rank, LogsRead says that somebody on
	// another node reads what ranks have written.
	ExecStarted EventType = "ExecStarted"
	ExecEnded   EventType = "ExecEnded"
	LogsRead    EventType = "LogsRead"
	// CheckpointCommitted says that a step is on disk under its name.
	CheckpointCommitted EventType = "CheckpointCommitted"
)

// Event is something that has happened to a job, as one muster saw it. docs/events.md describes it for its readers:
// fields are added, never renamed.
type Event struct {
	Version int       `json:"version"`
	Seq     uint64    `json:"seq"` // counts the events of one muster from 1
	Time    time.Time `json:"time"`
	Type    EventType `json:"type"`
	RunID   string    `json:"runId"`
	// Node is the node whose muster has seen it, empty for a launcher.
	Node string `json:"node,omitempty"`
	// Generation is the number of the round, RestartCount how many restarts the job has had.
	Generation   int          `json:"generation"`
	RestartCount int          `json:"restartCount"`
	Phase        report.Phase `json:"phase,omitempty"`
	Reason       job.Reason   `json:"reason,omitempty"`
	Message      string       `json:"message,omitempty"`
	// Rank and PID are of a worker; ExitCode is 128+n for a signal, which is named; Stopped says that muster has ended
	// it.
	Rank     *int   `json:"rank,omitempty"`
	PID      int    `json:"pid,omitempty"`
	ExitCode *int   `json:"exitCode,omitempty"`
	Signal   string `json:"signal,omitempty"`
	Stopped  bool   `json:"stopped,omitempty"`
	// Step is that of a checkpoint.
	Step *int64 `json:"step,omitempty"`
	// Subject is the node that something has happened to, where that is another one than Node.
	Subject string `json:"subject,omitempty"`
	// Seconds is how long it took.
	Seconds float64 `json:"seconds,omitempty"`
	// By is who has asked for something.
	By *Peer `json:"by,omitempty"`
}

// mostEvents is how many events are kept: the newest. mostAnswered is how many of them one answer has.
const (
	mostEvents   = 4096
	mostAnswered = 512
)

// Events are those of one muster, the newest mostEvents of them. The zero value has none.
type Events struct {
	mu   sync.Mutex
	list []Event
	last uint64
	// state is how the job stood at the last PhaseChanged.
	state report.Status
	news  chan struct{} // closed with the next event; nil while nobody waits
}

// Add appends an event, with a number and a time where it has none.
func (e *Events) Add(event Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.add(event)
}

func (e *Events) add(event Event) {
	e.last++
	event.Version, event.Seq = 1, e.last
	if event.Time.IsZero() {
		event.Time = time.Now()
	}
	event.Time = event.Time.UTC().Round(time.Millisecond)
	if len(e.list) == mostEvents {
		e.forget()
	}
	e.list = append(e.list, event)
	if e.news != nil {
		close(e.news)
		e.news = nil
	}
}

// frequent reports whether many events of a kind may come in a short time: those of single workers, and steps that are
// saved again and again.
func (e *Event) frequent() bool { return e.Rank != nil || e.Type == CheckpointSaved }

// forget makes room for a quarter of the list, not with each event. Frequent ones go first: a restart of many workers
// would take away all that is known of the job.
func (e *Events) forget() {
	var frequent, gone int
	for i := range e.list {
		if e.list[i].frequent() {
			frequent++
		}
	}
	e.list = slices.DeleteFunc(e.list, func(event Event) bool {
		drop := gone < mostEvents/4 && (event.frequent() || frequent < mostEvents/4)
		if drop {
			gone++
		}
		return drop
	})
}

// Behind returns the events behind the one with a number, the oldest first and no more than fit an answer.
func (e *Events) Behind(seq uint64) []Event {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.behind(seq)
}

func (e *Events) behind(seq uint64) []Event {
	i, found := slices.BinarySearchFunc(e.list, seq, func(event Event, seq uint64) int { return cmp.Compare(event.Seq, seq) })
	if found {
		i++
	}
	return slices.Clone(e.list[i:min(len(e.list), i+mostAnswered)])
}

// Moved adds a PhaseChanged where a status says something else than the one before.
func (e *Events) Moved(node string, now report.Status) {
	e.mu.Lock()
	defer e.mu.Unlock()
	before := e.state
	e.state = now
	if now.Phase == before.Phase && now.Reason == before.Reason && now.Generation == before.Generation && now.Nodes == before.Nodes &&
		now.RestartCount == before.RestartCount {
		return
	}
	event := Event{
		Type: PhaseChanged, RunID: now.RunID, Node: node, Generation: now.Generation, RestartCount: now.RestartCount,
		Phase: now.Phase, Reason: now.Reason, Message: now.Message,
	}
	if now.ExitStatus != nil {
		status := *now.ExitStatus
		event.ExitCode = &status
	}
	e.add(event)
}

// After returns the events behind the one with a number, the oldest first and no more than fit an answer. Where there
// are none it waits for the next one until ctx ends.
func (e *Events) After(ctx context.Context, seq uint64) []Event {
	for {
		e.mu.Lock()
		if found := e.behind(seq); len(found) > 0 {
			e.mu.Unlock()
			return found
		}
		if e.news == nil {
			e.news = make(chan struct{})
		}
		news := e.news
		e.mu.Unlock()
		select {
		case <-news:
		case <-ctx.Done():
			return nil
		}
	}
}
