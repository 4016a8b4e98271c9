package launch

import (
	"slices"
	"sync"
	"time"

	"muster/internal/proc"
	"muster/launch/report"
)

// How often what workers use is read, to be told to other nodes and to a launcher.
const (
	usageEvery = 5 * time.Second
	// usageShare is for how many times the processor time of a look no other follows: a look goes through all processes
	// of the machine. The time by the clock would not do: a look that waits for a processor for half a second would be
	// the last one for minutes, and busy machines are those where it matters what is seen.
	usageShare = 500
	// usageLook is how often it is seen whether a look is due, and how old a worker is that is looked at first.
	usageLook = time.Second
	// What changes by less is no news.
	usageCPU    = 50 * time.Millisecond
	usageMemory = 1 << 20
)

// Usage is what a worker used when it was looked at last.
type Usage struct {
	PID int
	proc.Usage
	Output time.Time // when it wrote last
	At     time.Time
	// still says that it had used nothing since the look before.
	still bool
}

// same reports whether two looks at a process have found the same, as far as others are told.
func (u *Usage) same(v *Usage) bool {
	return u.PID == v.PID && (u.CPU-v.CPU).Abs() < usageCPU &&
		max(u.Resident-v.Resident, v.Resident-u.Resident) < usageMemory && u.Output.Equal(v.Output)
}

// Take takes what a look has found, and reports whether others are to be told. They hear once that nothing was used, too.
func (u *Usage) Take(seen Usage) bool {
	if seen.still = seen.same(u); seen.still && u.still {
		return false
	}
	*u = seen
	return true
}

// WatchUsage has look read what the workers of a node use, until closed is: every few seconds, less often where a look
// takes long, and soon where unseen says that a worker runs that was not looked at.
func WatchUsage(closed <-chan struct{}, unseen func(now time.Time) bool, look func(now time.Time)) {
	tick := time.NewTicker(usageLook)
	defer tick.Stop()
	var last time.Time
	every := usageEvery
	for {
		select {
		case <-closed:
			return
		case <-tick.C:
		}
		now := time.Now()
		if now.Sub(last) < every && (every > usageEvery || !unseen(now)) {
			continue
		}
		effort := proc.Effort(func() { look(now) })
		last, every = now, max(usageEvery, usageShare*effort)
	}
}

// usageKept is for how long what was read for one who asks is an answer to others: one muster status asks twice. It is less
// than the second after which muster top and an open page ask again.
const usageKept = 900 * time.Millisecond

// askedUsage is what workers used when somebody asked last.
type askedUsage struct {
	mu   sync.Mutex // held while it is read: who asks meanwhile gets the same
	at   time.Time
	used map[int]proc.Usage
}

// of is what processes use, and when that was read: now, or a moment ago where all of them ran then.
func (a *askedUsage) of(pids []int, now time.Time) (map[int]proc.Usage, time.Time, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	unknown := func(pid int) bool { _, is := a.used[pid]; return !is }
	if now.Sub(a.at) < usageKept && !slices.ContainsFunc(pids, unknown) {
		return a.used, a.at, nil
	}
	used, err := proc.UsageOf(pids)
	if err == nil {
		a.used, a.at = used, now
	}
	return used, now, err
}

// Unseen reports whether a process that began at a time was not looked at, and has had time to begin.
func (u *Usage) Unseen(pid int, began, now time.Time) bool {
	return u.PID != pid && now.Sub(began) >= usageLook
}

// unseenWorker reports whether a worker runs that was not looked at.
func (s *Steering) unseenWorker(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.places {
		p := &s.places[i]
		if p.worker != nil && !p.ended && p.used.Unseen(p.worker.proc.PID(), p.worker.proc.Began(), now) {
			return true
		}
	}
	return false
}

// noteUsage reads what the workers here use.
func (s *Steering) noteUsage(now time.Time) {
	s.mu.Lock()
	places := make(map[int]int, len(s.places)) // by process id
	pids := make([]int, 0, len(s.places))
	for i := range s.places {
		if p := &s.places[i]; p.worker != nil && !p.ended {
			pid := p.worker.proc.PID()
			places[pid], pids = i, append(pids, pid)
		}
	}
	s.mu.Unlock()
	if len(pids) == 0 {
		return
	}
	used, err := proc.UsageOf(pids)
	if err != nil {
		s.log.Debug().Err(err).Msg("what the workers use cannot be told to other nodes")
		return
	}
	carried := s.traffic.Read()
	s.mu.Lock()
	defer s.mu.Unlock()
	if MoreTraffic(s.carried, carried) {
		s.carried = carried
		s.usageNews++
	}
	for pid, u := range used {
		p := &s.places[places[pid]]
		if p.worker.proc.PID() != pid {
			continue // another one has come in its place
		}
		if p.used.Take(Usage{PID: pid, Usage: u, Output: p.worker.logs.LastOutput(), At: now}) {
			s.usageNews++
		}
	}
}

// Tell says in a rank of the status what it used.
func (u *Usage) Tell(r *report.Rank) {
	cpu, resident, at := u.CPU.Seconds(), u.Resident, moment(u.At)
	r.CPUSeconds, r.ResidentBytes, r.UsageTime = &cpu, &resident, &at
	if !u.Output.IsZero() {
		output := moment(u.Output)
		r.LastOutput = &output
	}
}

// usedLocked adds to the ranks of ranksLocked what they used when they were looked at last.
func (s *Steering) usedLocked(ranks []report.Rank) {
	next := 0
	for i := range s.places {
		p := &s.places[i]
		if p.worker == nil {
			continue
		}
		if r := &ranks[next]; !p.ended && p.used.PID == r.PID {
			p.used.Tell(r)
		}
		next++
	}
}
