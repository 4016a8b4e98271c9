package proc

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// ordinaryPriority gives the threads of a process that was killed no lower priority than others have: one that gets no
// core on a busy machine cannot die. Where this is not allowed it has to wait for its turn.
func ordinaryPriority(pid int) {
	threads, err := os.ReadDir("/proc/" + strconv.Itoa(pid) + "/task")
	if err != nil {
		return // it is gone
	}
	for _, d := range threads {
		tid, _ := strconv.Atoi(d.Name())
		a, err := unix.SchedGetAttr(tid, 0)
		if err != nil || a.Policy != unix.SCHED_IDLE && a.Nice <= 0 {
			continue
		}
		_ = unix.SchedSetAttr(tid, &unix.SchedAttr{Size: a.Size, Policy: unix.SCHED_NORMAL}, 0)
	}
}
