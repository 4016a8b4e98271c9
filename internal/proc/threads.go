package proc

import (
	"bytes"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Thread is a thread, and what it has done so far.
type Thread struct {
	PID, TID int
	// Ran is the time on a processor, Queued that in which it waited for one, Disk for a disk, where the kernel counts
	// that.
	Ran, Queued, Disk time.Duration
}

// ThreadsOf reads the threads of processes and of all that has descended from them, by one look at all processes. Those
// that are gone are missing in the answer.
func ThreadsOf(pids []int) (map[int][]Thread, error) {
	s, err := readSnapshot()
	if err != nil {
		return nil, err
	}
	members, all := s.sessions(), map[int][]Thread{}
	for _, pid := range pids {
		for _, p := range s.family(pid, members) {
			all[pid] = append(all[pid], threadsOf(p.PID)...)
		}
	}
	return all, nil
}

// threadsOf reads the threads of one process.
func threadsOf(pid int) []Thread {
	root := "/proc/" + strconv.Itoa(pid) + "/task"
	dir, err := os.Open(root)
	if err != nil {
		return nil // it has ended
	}
	defer func() { _ = dir.Close() }()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil
	}
	threads := make([]Thread, 0, len(names))
	for _, name := range names {
		t := Thread{PID: pid}
		if t.TID, err = strconv.Atoi(name); err != nil {
			continue
		}
		text, err := os.ReadFile(root + "/" + name + "/schedstat")
		f := strings.Fields(string(text))
		if err != nil || len(f) < 2 {
			continue // it has ended, or the kernel does not count it
		}
		ran, _ := strconv.ParseInt(f[0], 10, 64) // what is no number counts as 0
		queued, _ := strconv.ParseInt(f[1], 10, 64)
		t.Ran, t.Queued = time.Duration(ran), time.Duration(queued)
		if t.TID == pid && countsDelays() {
			t.Disk = diskDelay(root + "/" + name + "/stat")
		}
		threads = append(threads, t)
	}
	return threads
}

// countsDelays reports whether the kernel counts how long threads wait for disks (kernel.task_delayacct, delayacct).
var countsDelays = sync.OnceValue(func() bool {
	text, err := os.ReadFile("/proc/sys/kernel/task_delayacct")
	return err == nil && strings.TrimSpace(string(text)) == "1"
})

// diskDelay reads field 42 of a stat file, proc_pid_stat(5).
func diskDelay(path string) time.Duration {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	const at = 42 - 3 // the first behind the name is field 3
	f := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	if len(f) <= at {
		return 0
	}
	ticks, _ := strconv.ParseInt(string(f[at]), 10, 64) // what is no number counts as 0
	return time.Duration(ticks) * Tick
}
