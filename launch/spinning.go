package launch

import (
	"time"

	"muster/internal/proc"
	"muster/launch/evidence/gather"
)

const (
	// marksEvery is how often a worker is asked for its marks at the most, and looked at whether it has any. Whether one of
	// its descendants has some is looked at after intervals that double up to marksRarely.
	marksEvery  = time.Second
	marksRarely = time.Minute
	// marksWarm is how many times the counts of a worker must have been seen to move before it means something that they
	// stand still, and for marksTimes the longest time between two such moments they may.
	marksWarm, marksTimes = 5, 5
)

// spin tells of a worker that uses processors whether it gets anywhere. One that waits for a GPU, or for the GPUs of
// other ranks, looks again and again whether it is ready, and keeps a processor busy with it.
type spin struct {
	marked *gather.Marked
	// asked is when it was looked for or asked last; sought when its descendants were looked at, and interval for how long
	// they are not looked at again.
	asked, sought time.Time
	interval      time.Duration
	marks         gather.Marks
	answered      time.Time
	// moved is when any of the marks was seen to have changed last, counted the same of what it counts; moves is how often that was.
	moved, counted time.Time
	moves          int
	longest        time.Duration // between two of them
	own            time.Duration // CPU time of the process that has the marks
}

// look asks the worker for its marks, and takes in what it has told since it was asked last.
func (s *spin) look(worker int, now time.Time) {
	if now.Sub(s.asked) < marksEvery {
		return
	}
	s.asked = now
	if s.marked == nil {
		deep := now.Sub(s.sought) >= s.interval
		if deep {
			s.sought, s.interval = now, min(max(2*s.interval, marksEvery), marksRarely)
		}
		if s.marked = gather.FindMarked(worker, deep); s.marked == nil {
			return
		}
	}
	if m, told := s.marked.Read(); told && m.Answers != s.marks.Answers {
		s.take(m, now)
	}
	if !s.marked.Ask() {
		s.close()
		*s = spin{asked: s.asked} // another one may come in its place
	}
}

// anew has the time before now count no more: nobody was looked at.
func (s *spin) anew(now time.Time) { s.moved, s.counted = now, now }

// take takes in marks.
func (s *spin) take(m gather.Marks, now time.Time) {
	before := s.marks
	s.marks, s.answered = m, now
	if before.Answers == 0 {
		s.moved, s.counted = now, now
		return
	}
	if m.Allocations != before.Allocations || m.Collectives != before.Collectives {
		s.longest = max(s.longest, now.Sub(s.counted))
		s.moved, s.counted = now, now
		s.moves++
	} else if m.Place != before.Place {
		s.moved = now
	}
}

// used is how much CPU time the process that has the marks has used since this was called last, by what was read of it now.
func (s *spin) used(read map[int]proc.Usage) time.Duration {
	if s.marked == nil {
		return 0
	}
	u, is := read[s.marked.PID]
	if !is { // it was found, or ended, after that
		return 0
	}
	used := u.Own - s.own
	s.own = u.Own
	return used
}

// idle reports whether the worker gets nowhere, though it may use processors: since when.
func (s *spin) idle(now time.Time) (since time.Time, is bool) {
	still := marksTimes * s.longest
	return s.moved, s.marks.Device && s.moves >= marksWarm && now.Sub(s.moved) > still && now.Sub(s.answered) < still
}

// close lets go of the worker's process.
func (s *spin) close() {
	if s.marked != nil {
		s.marked.Close()
		s.marked = nil
	}
}
