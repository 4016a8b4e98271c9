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
	// Resident is memory in bytes; what several of them share is counted for each.
	Resident int64
}

// userTick is a clock tick as /proc counts them: 1/100 s wherever Linux runs Go.
const userTick = 10 * time.Millisecond

// UsageOf reads what processes use, by one look at all processes. Those that are gone are missing in the answer.
func UsageOf(pids []int) (map[int]Usage, error) {
	s, err := readSnapshot()
	if err != nil {
		return nil, err
	}
	members := map[int][]*procInfo{} // of a session, by its leader
	for _, p := range s.procs {
		members[p.sid] = append(members[p.sid], p)
	}
	used, page := map[int]Usage{}, int64(os.Getpagesize())
	for _, pid := range pids {
		if s.procs[pid] == nil {
			continue
		}
		var u Usage
		seen := map[int]bool{}
		next := append([]*procInfo{s.procs[pid]}, members[pid]...) // orphans stay in its session
		for len(next) > 0 {
			p := next[0]
			next = next[1:]
			if seen[p.PID] {
				continue
			}
			seen[p.PID] = true
			u.CPU += time.Duration(p.ticks) * userTick
			u.Resident += p.pages * page
			next = append(next, s.kids[p.PID]...)
		}
		used[pid] = u
	}
	return used, nil
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
