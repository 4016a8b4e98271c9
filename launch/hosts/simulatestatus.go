package hosts

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"time"

	"muster/internal/errhint"
	"muster/launch"
	"muster/launch/control"
	"muster/launch/job"
	"muster/launch/report"
)

// How often a simulation asks a node how the job stands, also where nobody wants to know: the last answer is what is
// known of the job once all nodes have ended.
const (
	simulatedLook  = 2 * time.Second
	simulatedStart = 100 * time.Millisecond // before the first answer
)

// simulatedStatus is how a simulated job stands.
type simulatedStatus struct {
	began  time.Time
	events control.Events

	mu    sync.Mutex
	last  *report.Status // nil: no node has answered yet
	at    time.Time      // of last
	ended bool           // last is how the job has ended
	// ending says why all nodes were told to end, empty before. They answer no more once their workers have ended.
	ending    string
	endReason job.Reason
	node      string // the run directory of the node that has answered last, "" where one is to be found
}

// asked is the node that has answered last, "" where one is to be found.
func (s *simulatedStatus) asked() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.node
}

// take takes an answer of a node, and returns how the job stands by it: the node does not know why we have told it to end.
func (s *simulatedStatus) take(dir string, d report.Status) report.Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.node = dir; d.Phase == report.PhasePending || d.EndTime != nil { // others may know more
		s.node = ""
	}
	if s.ending != "" {
		d = d.Ending(s.endReason, s.ending)
	}
	if s.ended {
		return d
	}
	s.last, s.at = &d, time.Now().UTC().Round(time.Millisecond)
	s.events.Moved("", d)
	return d
}

// ends takes in that all nodes are told to end, and why.
func (s *simulatedStatus) ends(reason job.Reason, why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endReason, s.ending = reason, why
}

// isEnding says why all nodes were told to end, empty before.
func (s *simulatedStatus) isEnding() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ending
}

// known is the last answer, false where there is none. While the job runs its tasks say when that was.
func (s *simulatedStatus) known() (report.Status, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last == nil {
		return report.Status{}, false
	}
	d := *s.last
	if !s.ended {
		d.Tasks = slices.Clone(d.Tasks)
		for i := range d.Tasks {
			if d.Tasks[i].LastKnown == nil {
				at := s.at
				d.Tasks[i].LastKnown = &at
			}
		}
		if s.ending != "" {
			d = d.Ending(s.endReason, s.ending)
		}
	}
	return d, true
}

// end makes what the nodes have said last, or without that the last answer, that of a job that has ended.
func (s *simulatedStatus) end(said *report.Status, empty report.Status, o report.Outcome) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := empty
	if s.last != nil {
		d = *s.last
	}
	if said != nil {
		began := d.StartTime
		if d = *said; began != nil && (d.StartTime == nil || began.Before(*d.StartTime)) { // a node that is gone has seen it
			d.StartTime = began
		}
	}
	if d.StartTime == nil {
		d.StartTime = &s.began
	}
	d = d.Ended(o, time.Now().UTC().Round(time.Millisecond))
	s.last, s.ended = &d, true
	s.events.Moved("", d)
}

// status is how the job stands, as one of its nodes knows it; where none answers now, as one knew it last.
func (s *simulation) status(ctx context.Context) (report.Status, bool) {
	for _, find := range []func() string{s.told.asked, func() string { return s.node(ctx) }} { // all nodes are asked to find one
		if dir := find(); dir != "" {
			if a, err := control.Dial(dir).Status(ctx, control.World); err == nil {
				d := s.told.take(dir, a.Status)
				return d.Lost(s.lost), true
			}
		}
	}
	d, known := s.told.known()
	return d.Lost(s.lost), known
}

// lost reports whether the muster of a node was killed, and none has taken its place.
func (s *simulation) lost(node string) (is bool) {
	for _, n := range s.started() {
		if SimulatedName(n.index) == node {
			is = !n.runs() && n.Exit().Signal != 0
		}
	}
	return is
}

// watch follows the nodes to their end, and looks at the job meanwhile.
func (s *simulation) watch(ctx context.Context, in *launch.Interrupts) {
	looking, leave := context.WithCancel(context.WithoutCancel(ctx)) // it is of interest how a job ends that is being stopped
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			pause := simulatedLook
			if _, answered := s.status(looking); !answered {
				pause = simulatedStart
			}
			select {
			case <-looking.Done():
				return
			case <-time.After(pause):
			}
		}
	})
	s.follow(ctx, in)
	leave()
	wg.Wait()
}

// over records how the job has ended: with what its muster ends.
func (s *simulation) over(ctx context.Context, err error) {
	var o report.Outcome
	if status, ok := errors.AsType[errhint.StatusError](err); ok { // the nodes have said why
		o.Status = int(status)
	} else if err != nil {
		o.Status, o.Message, o.Hint = errhint.CodeOf(err), err.Error(), errhint.Of(err)
	}
	switch by := context.Cause(ctx); {
	case o.Status == errhint.OK:
		o.Reason = job.ReasonSucceeded
	case by != nil && (o.Status > errhint.FromSignal(0) || s.config.Job.CompatExit):
		o.Reason, o.Message = job.ReasonStopped, by.Error()
	case s.tooFew:
		o.Reason, o.Message = job.ReasonNotMet, "too few simulated nodes were left for a round, and nobody could join"
	case o.Status == errhint.Deadline:
		o.Reason = job.ReasonDeadline
	case o.Status == errhint.TryAgain || leaves(o.Status):
		o.Reason = job.ReasonNotMet
	case o.Status == errhint.Usage:
		o.Reason = job.ReasonRefused
	case o.Status == errhint.Internal:
		o.Reason = job.ReasonInternal
	default:
		o.Reason = job.ReasonWorkerFailed
	}
	said := s.lastWords(o)
	o.Status = s.config.Job.CompatStatus(o.Status)
	s.told.end(said, report.Status{
		Version: 1, RunID: simulatedID(s.config.Job), Name: s.config.Job.Command.Name, Nodes: s.config.Nodes,
		Tasks: []report.Task{}, Conditions: []report.Condition{},
	}, o)
}

// stateOf is how the job stands as a node has said last, false where it has said nothing.
func (s *simulation) stateOf(n *simulatedNode) (d report.Status, said bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := json.Unmarshal([]byte(n.state), &d)
	return d, err == nil
}

// lastWords are how the job ended as the nodes say that were in its last round, nil where none of them says that it
// ended so.
func (s *simulation) lastWords(o report.Outcome) *report.Status {
	var docs []report.Status
	round := 0
	for _, n := range s.started() {
		d, said := s.stateOf(n)
		if !said || d.Nodes == 0 || n.left {
			continue
		}
		docs, round = append(docs, d), max(round, d.Generation)
	}
	docs = slices.DeleteFunc(docs, func(d report.Status) bool { return d.Generation < round })
	slices.SortStableFunc(docs, func(a, b report.Status) int { return cmp.Compare(a.GroupRank, b.GroupRank) })
	decided := slices.IndexFunc(docs, func(d report.Status) bool { return d.ExitStatus != nil && *d.ExitStatus == o.Status })
	if decided < 0 {
		return nil
	}
	var lost []int
	world := report.NewWorldStatus(make([]string, len(docs)))
	for i, d := range docs {
		world.TakeStatus(i, d)
		if d.EndTime == nil {
			lost = append(lost, i)
		}
	}
	world.End(o.Status, decided, lost, o.Message)
	d, _ := world.Status()
	if o.Reason == job.ReasonStopped {
		d.Reason, d.Message = o.Reason, o.Message // the nodes know of our signal alone
	}
	return &d
}
