package proc

import (
	"os"
	"slices"
	"time"
)

// Usage is what a process and all that has descended from it use.
type Usage struct {
	// CPU is the time on processors so far, that of descendants included that have ended and were waited for.
	CPU time.Duration
	// Own is that of the process alone.
	Own time.Duration
	// Resident is memory in bytes; what several of them share is counted for each.
	Resident int64
}

// Tick is a clock tick as /proc counts them: 1/100 s wherever Linux runs Go.
const Tick = 10 * time.Millisecond

// UsageOf reads what processes use, by one look at all processes. Those that are gone are missing in the answer.
func UsageOf(pids []int) (map[int]Usage, error) {
	if len(pids) == 0 {
		return map[int]Usage{}, nil
	}
	s, err := readSnapshot()
	if err != nil {
		return nil, err
	}
	members, used, page := s.sessions(), map[int]Usage{}, int64(os.Getpagesize())
	for _, pid := range pids {
		family := s.family(pid, members)
		if len(family) == 0 {
			continue
		}
		u := Usage{Own: time.Duration(family[0].own) * Tick}
		for _, p := range family {
			u.CPU += time.Duration(p.ticks) * Tick
			u.Resident += p.pages * page
		}
		used[pid] = u
	}
	return used, nil
}

// sessions are the members of each session, by its leader.
func (s *snapshot) sessions() map[int][]*procInfo {
	members := map[int][]*procInfo{}
	for _, p := range s.procs {
		members[p.sid] = append(members[p.sid], p)
	}
	return members
}

// family is a process with the members of its session, where orphans stay, and all that has descended from these; none
// where it is gone.
func (s *snapshot) family(pid int, members map[int][]*procInfo) (family []*procInfo) {
	if s.procs[pid] == nil {
		return nil
	}
	seen := map[int]bool{}
	next := append([]*procInfo{s.procs[pid]}, members[pid]...)
	for len(next) > 0 {
		p := next[0]
		next = next[1:]
		if seen[p.PID] {
			continue
		}
		seen[p.PID] = true
		family = append(family, p)
		next = append(next, s.kids[p.PID]...)
	}
	return family
}

// Owners tells of processes which of some others each is, or has descended from, in the answer by process id. Those of
// neither are missing.
func Owners(pids, of []int) map[int]int {
	owners := map[int]int{}
	for _, pid := range pids {
		for at, up := pid, 0; at > 1 && up < mostGenerations; up++ {
			if slices.Contains(of, at) {
				owners[pid] = at
				break
			}
			p, err := statOf(at)
			if err != nil {
				break
			}
			if slices.Contains(of, p.sid) { // orphans stay in its session
				owners[pid] = p.sid
				break
			}
			at = p.ppid
		}
	}
	return owners
}

// mostGenerations is how far back a process is followed.
const mostGenerations = 64
