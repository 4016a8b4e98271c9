package launch

import (
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

// usage is what a worker used when it was looked at last.
type usage struct {
	pid      int
	cpu      time.Duration
	resident int64
	output   time.Time // when it wrote last
	at       time.Time
	// still says that it had used nothing since the look before.
	still bool
}

// same reports whether two looks at a process have found the same, as far as others are told.
func (u *usage) same(v *usage) bool {
	return u.pid == v.pid && (u.cpu-v.cpu).Abs() < usageCPU && max(u.resident-v.resident, v.resident-u.resident) < usageMemory &&
		u.output.Equal(v.output)
}

// watchUsage reads what the workers here use, until it is closed: a status that is asked for at another node has it,
// too.
func (s *Steering) watchUsage() {
	tick := time.NewTicker(usageLook)
	defer tick.Stop()
	var last time.Time
	every := usageEvery
	for {
		select {
		case <-s.closed:
			return
		case <-tick.C:
		}
		now := time.Now()
		if now.Sub(last) < every && (every > usageEvery || !s.unseenWorker(now)) {
			continue
		}
		effort := proc.Effort(func() { s.noteUsage(now) })
		last, every = now, max(usageEvery, usageShare*effort)
	}
}

// unseenWorker reports whether a worker runs that has not been looked at, and has had time to begin.
func (s *Steering) unseenWorker(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.places {
		p := &s.places[i]
		if p.worker != nil && !p.ended && p.used.pid != p.worker.proc.PID() && now.Sub(p.worker.proc.Began()) >= usageLook {
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
	carried := s.traffic.read()
	s.mu.Lock()
	defer s.mu.Unlock()
	if moreTraffic(s.carried, carried) {
		s.carried = carried
		s.usageNews++
	}
	for pid, u := range used {
		p := &s.places[places[pid]]
		if p.worker.proc.PID() != pid {
			continue // another one has come in its place
		}
		seen := usage{pid: pid, cpu: u.CPU, resident: u.Resident, output: p.worker.logs.LastOutput(), at: now}
		if seen.still = seen.same(&p.used); seen.still && p.used.still {
			continue
		}
		p.used = seen
		s.usageNews++
	}
}

// tell says in a rank of the status what it used.
func (u *usage) tell(r *report.Rank) {
	cpu, resident, at := u.cpu.Seconds(), u.resident, moment(u.at)
	r.CPUSeconds, r.ResidentBytes, r.UsageTime = &cpu, &resident, &at
	if !u.output.IsZero() {
		output := moment(u.output)
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
		if r := &ranks[next]; !p.ended && p.used.pid == r.PID {
			p.used.tell(r)
		}
		next++
	}
}
