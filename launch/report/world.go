package report

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"muster/internal/errhint"
	"muster/launch/job"
)

// WorldStatus puts the status files of a job's nodes together into one of the whole world, for a launcher that started
// them: the tasks and counts of every node, and all else as the node says it that has decided how the job ended, else the
// first one that takes part. Not safe for concurrent use.
type WorldStatus struct {
	names []string
	docs  []*Status // nil: the node has said nothing
	lost  map[int]bool
	away  map[int]bool // nodes that were lost while the job runs, or have left it, and do not take part again yet
	// began is the earliest start that a node has told, nil before: who has come later has not seen it.
	began *time.Time
	// decided is the node whose word counts at the end, -1 before.
	decided int
	// status is the exit status of the launcher, message what it says where no node has decided; nil before the end.
	status  *int
	message string
	ended   time.Time
}

// NewWorldStatus returns the status of a job on the named nodes, none of which has said anything.
func NewWorldStatus(names []string) *WorldStatus {
	return &WorldStatus{names: names, docs: make([]*Status, len(names)), lost: map[int]bool{}, away: map[int]bool{}, decided: -1}
}

// Take takes what a node has in its status file.
func (w *WorldStatus) Take(node int, data []byte) error {
	var d Status
	if err := json.Unmarshal(data, &d); err != nil {
		return fmt.Errorf("cannot read the status of node %s: %w", w.names[node], err)
	}
	w.TakeStatus(node, d)
	return nil
}

// Steady is what a node has said, without what changes all the time.
func (w *WorldStatus) Steady(node int) []byte {
	d := w.docs[node]
	if d == nil {
		return nil
	}
	text, err := json.Marshal(d.Steady())
	if err != nil {
		panic(fmt.Sprintf("internal error: cannot encode a status: %v", err)) // it was decoded
	}
	return text
}

// TakeStatus takes what a node has said of itself.
func (w *WorldStatus) TakeStatus(node int, d Status) {
	w.docs[node] = &d
	starts := slices.Contains([]Phase{PhasePending, PhaseChecking, PhaseCreating}, d.Phase)
	w.away[node] = d.Reason == job.ReasonSurplus || w.away[node] && starts
	if at := d.StartTime; at != nil && (w.began == nil || at.Before(*w.began)) {
		w.began = at
	}
}

// Lose says that a node's muster has gone without a word. What it says of itself counts again once it says something, and
// what it says of the job once it takes part again.
func (w *WorldStatus) Lose(node int) {
	w.away[node] = true
	if d := w.docs[node]; d != nil {
		lost := d.Lost(func(string) bool { return true })
		w.docs[node] = &lost
	}
}

// NodeOf is the node that runs a rank, by what it has said; false where none has said so.
func (w *WorldStatus) NodeOf(rank int) (int, bool) {
	for i, d := range w.docs {
		if d != nil && !w.lost[i] && slices.ContainsFunc(d.Ranks, func(r Rank) bool { return r.Rank == rank }) {
			return i, true
		}
	}
	return 0, false
}

// By has all that is not of single nodes told as one of them says it.
func (w *WorldStatus) By(node int) { w.decided = node }

// Status returns the status of the world, false while no node has said anything.
func (w *WorldStatus) Status() (Status, bool) {
	d := w.merged()
	if d == nil {
		return Status{}, false
	}
	return d.clone(), true
}

// End says how the job ended: with which exit status of the launcher, by which node's word (-1: nobody's), and of which
// nodes nobody knows how they ended. message says why where no node has decided.
func (w *WorldStatus) End(status, decided int, lost []int, message string) {
	w.status, w.decided, w.message, w.ended = &status, decided, message, time.Now().UTC().Round(time.Millisecond)
	for _, node := range lost {
		w.lost[node] = true
	}
}

// Encode returns the file, nil while no node has said anything.
func (w *WorldStatus) Encode() []byte {
	d := w.merged()
	if d == nil {
		return nil
	}
	s := StatusFile{doc: *d}
	return s.encode()
}

// leads is what the node has said that speaks for the job, nil while no node has said anything.
func (w *WorldStatus) leads() (d *Status) {
	if w.decided >= 0 && w.docs[w.decided] != nil {
		return w.docs[w.decided]
	}
	for i, doc := range w.docs {
		if doc != nil && !w.away[i] {
			return doc
		}
		d = cmp.Or(d, doc)
	}
	return d
}

func (w *WorldStatus) merged() *Status {
	base := w.leads()
	if base == nil {
		return nil
	}
	d := *base
	d.StartTime = w.began
	d.Tasks, d.Ranks, d.Sidecars, d.Counts = nil, nil, w.sidecars(), Counts{}
	for i, doc := range w.docs {
		if doc != nil && doc.Hang != nil && (d.Hang == nil || doc.Hang.Time.After(d.Hang.Time)) {
			d.Hang = doc.Hang // one node finds it out for all
		}
		switch {
		case doc == nil && w.lost[i]:
			d.Tasks = append(d.Tasks, Task{Node: w.names[i], Phase: PhaseUnknown})
		case doc == nil:
			d.Tasks = append(d.Tasks, Task{Node: w.names[i], Phase: PhasePending})
		case w.lost[i]:
			d.Counts.Unknown += doc.Counts.sum()
			for _, t := range doc.Tasks {
				t.Phase, t.ExitCode = PhaseUnknown, nil
				d.Tasks = append(d.Tasks, t)
			}
			for _, r := range doc.Ranks {
				r.Phase, r.LastExit = PhaseUnknown, nil
				d.Ranks = append(d.Ranks, r)
			}
		default:
			d.Counts.add(doc.Counts)
			d.Tasks, d.Ranks = append(d.Tasks, doc.Tasks...), append(d.Ranks, doc.Ranks...)
		}
	}
	if w.status != nil {
		w.end(&d)
	}
	return &d
}

// end makes d that of a job that has ended, also where the node it is taken from did not live to see that, and where
// nodes have not said how their workers ended.
func (w *WorldStatus) end(d *Status) {
	d.ExitStatus = w.status
	d.settle(PhaseUnknown)
	if d.EndTime != nil {
		return
	}
	d.EndTime, d.Message, d.Hint = &w.ended, w.message, ""
	switch *w.status {
	case errhint.OK:
		d.Phase, d.Reason = PhaseSucceeded, job.ReasonSucceeded
	case errhint.Deadline:
		d.Phase, d.Reason = PhaseTimeout, job.ReasonDeadline
	case errhint.TryAgain:
		d.Phase, d.Reason = PhaseFailed, job.ReasonNotMet
	default:
		d.Phase, d.Reason = PhaseFailed, job.ReasonInternal
		if *w.status > errhint.FromSignal(0) {
			d.Reason = job.ReasonStopped
		}
	}
}
