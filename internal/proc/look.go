package proc

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// Seen is a process as it was seen once.
type Seen struct {
	id      ident
	PID     int
	PPID    int
	Threads int
	// State is a letter, as in /proc/PID/stat.
	State byte
	Name  string
}

// TreesOf returns for each of the processes pids itself, what has descended from it, and what has stayed in its
// session, by one look at all processes. Those that are gone are missing in the answer.
func TreesOf(pids []int) (map[int][]Seen, error) {
	s, err := readSnapshot()
	if err != nil {
		return nil, err
	}
	trees := map[int][]Seen{}
	for _, pid := range pids {
		for _, p := range s.tree(pid) {
			trees[pid] = append(trees[pid], Seen{p.ident, p.PID, p.ppid, p.threads, p.state, p.comm})
		}
	}
	return trees, nil
}

// tree is a process, itself first, with its descendants and orphans of its session.
func (s *snapshot) tree(pid int) []*procInfo {
	var members []*procInfo
	for _, p := range s.procs {
		if p.sid == pid {
			members = append(members, p)
		}
	}
	return s.family(pid, map[int][]*procInfo{pid: members})
}

// Signal sends sig to the process, and to nothing else that has its number by now.
func (p Seen) Signal(sig syscall.Signal) error { return p.id.signal(sig, false) }

// Catches reports whether a process has a handler for sig now, and no such signal that has not been dealt with.
func Catches(pid int, sig syscall.Signal) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return false
	}
	is := func(set string) bool {
		_, rest, _ := strings.Cut(string(text), "\n"+set+":")
		mask, _, _ := strings.Cut(rest, "\n")
		bits, err := strconv.ParseUint(strings.TrimSpace(mask), 16, 64)
		return err == nil && bits>>(sig-1)&1 != 0
	}
	return is("SigCgt") && !is("ShdPnd") && !is("SigPnd")
}

// DiskOf is how many bytes a process has read from disks and written to them, as the kernel says it; empty where it
// does not.
func DiskOf(pid int) string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
	_, rest, _ := strings.Cut(string(text), "\nread_bytes:")
	return rest
}
