package main

import (
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// cpuWatch sums the processor time of all processes that run a program, whoever started them. What wait4 tells of a
// process holds that of the children it waited for, here Python's; so each is asked by itself while it runs, often
// enough that little happens after it was asked last.
type cpuWatch struct {
	program string
	stop    chan struct{}
	wg      sync.WaitGroup

	mu   sync.Mutex
	used map[int]time.Duration // of each process
}

const (
	cpuEvery  = 2 * time.Millisecond  // known processes are asked
	findEvery = 10 * time.Millisecond // others are looked for
)

// watchCPU begins to count. The caller calls end.
func watchCPU(program string) *cpuWatch {
	w := &cpuWatch{program: program, stop: make(chan struct{}), used: map[int]time.Duration{}}
	w.wg.Go(func() {
		ask := time.NewTicker(cpuEvery)
		defer ask.Stop()
		find := time.NewTicker(findEvery)
		defer find.Stop()
		var pids []int
		for {
			select {
			case <-w.stop:
				return
			case <-find.C:
				pids = running(w.program)
				w.forgetOthers()
			case <-ask.C:
			}
			w.mu.Lock()
			for _, pid := range pids {
				if used, err := cpuOf(pid); err == nil { // else it has ended
					w.used[pid] = used
				}
			}
			w.mu.Unlock()
		}
	})
	return w
}

// forgetOthers takes back what was counted of a child between its fork and the start of another program.
func (w *cpuWatch) forgetOthers() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for pid := range w.used {
		if path, err := executable(pid); err == nil && path != w.program {
			delete(w.used, pid)
		}
	}
}

// end returns what was used so far, and by how many processes.
func (w *cpuWatch) end() (sum time.Duration, processes int) {
	close(w.stop)
	w.wg.Wait()
	w.forgetOthers()
	for _, used := range w.used {
		sum += used
	}
	return sum, len(w.used)
}

// running returns the processes that run a program.
func running(program string) (pids []int) {
	entries, _ := os.ReadDir("/proc") // what cannot be read is not counted, which the number of processes shows
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if path, err := executable(pid); err == nil && path == program {
			pids = append(pids, pid)
		}
	}
	return pids
}

func executable(pid int) (path string, err error) {
	return os.Readlink(filepath.Join("/proc", strconv.Itoa(pid), "exe"))
}

// cpuOf returns the processor time of all threads of a process, those that have ended included, by the clock that
// clock_getcpuclockid(3) names.
func cpuOf(pid int) (time.Duration, error) {
	const scheduler = 2 // CPUCLOCK_SCHED: in ns, not in ticks
	var t unix.Timespec
	err := unix.ClockGettime(int32(^pid<<3|scheduler), &t)
	return time.Duration(t.Nano()), err
}
