package gather

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"muster/internal/proc"
	"muster/internal/python"
	"muster/launch/evidence"
)

// look is one process while it is looked at.
type look struct {
	proc.Seen
	to *evidence.Process
	// memory is what its Python writes stacks to, nil where it does not; asked says that it was asked to.
	memory *os.File
	asked  bool
	// recorder is what it writes its last collectives to, pipe the number of the descriptor by which it is asked for
	// them; told says that it was asked.
	recorder *os.File
	pipe     string
	told     bool
	// files are the descriptors of its files, pipes the names of its pipes by their descriptors.
	files []string
	pipes map[string]string
	// inodes are those of its sockets.
	inodes []uint64
	// threads are what they had done when they were seen first, at the moment at.
	at      time.Time
	threads map[int]counted
	// faults and throttled are counters at that moment.
	faults    uint64
	throttled nanoseconds
}

type counted struct {
	state string
	// used is the time on a core, queued that of waiting for one.
	used, queued nanoseconds
	waits        uint64
}

// wanted is the share of the time since before in which a thread was on a core or in line for one. The kernel counts
// the time in line when that is over: one that could run before and now, and has not slept in between, was in line
// whenever it was on no core.
func (c counted) wanted(before counted, since float64) float64 {
	used := c.used.less(before.used) / since
	if c.state == "R" && before.state == "R" && c.waits == before.waits {
		return max(used, 1)
	}
	return used + c.queued.less(before.queued)/since
}

func (l *look) path(name string) string { return "/proc/" + strconv.Itoa(l.PID) + "/" + name }

// prepare finds out what files the process has, and whether its Python writes stacks.
func (l *look) prepare() {
	dir, err := os.Open(l.path("fd"))
	if err != nil {
		l.to.NoStacks = "its files cannot be seen"
		return
	}
	defer func() { _ = dir.Close() }()
	names, _ := dir.Readdirnames(mostFiles)
	pid := l.ownPID()
	memory, own := "", python.StacksFile+pid+" (deleted)"
	recorder := ""
	l.pipes = map[string]string{}
	for _, name := range names {
		link, err := os.Readlink(l.path("fd/" + name))
		if err != nil {
			continue
		}
		if inode, is := socketInode(link); is {
			l.inodes = append(l.inodes, inode)
		} else if link == own {
			memory = name
		} else if after, is := strings.CutPrefix(link, python.FlightFile+pid+"-"); is {
			recorder, l.pipe = name, strings.TrimSuffix(after, " (deleted)")
		} else if strings.HasPrefix(link, "pipe:[") {
			l.pipes[name] = link
		} else if strings.HasPrefix(link, "/") && !strings.HasPrefix(link, "/memfd:") && !strings.HasPrefix(link, "/dev/") {
			l.files = append(l.files, name)
		} else if isDevice(link) {
			l.to.Device = true
		}
	}
	if _, err := strconv.Atoi(l.pipe); recorder != "" && err == nil {
		l.recorder, _ = os.OpenFile(l.path("fd/"+recorder), os.O_RDWR, 0) // without it nobody is asked
	}
	switch {
	case l.State == 'T' || l.State == 't':
		l.to.NoStacks = "it is stopped"
	case l.State == 'D':
		l.to.NoStacks = "it waits in the kernel and takes no signal"
	case l.State == 'Z' || l.State == 'X':
		l.to.NoStacks = "it has ended"
	case memory == "":
		l.to.NoStacks = noPython
	case !proc.Catches(l.PID, python.StacksSignal):
		l.to.NoStacks = "its Python takes no signal, or has not answered to the last one"
	default:
		if l.memory, err = os.OpenFile(l.path("fd/"+memory), os.O_RDWR, 0); err != nil {
			l.to.NoStacks = "what its Python writes cannot be read"
		}
	}
}

// isDevice reports whether a path is one by which programs reach the driver of an accelerator.
func isDevice(path string) bool {
	for _, name := range []string{"nvidia", "kfd", "dri/renderD", "davinci", "accel/", "cambricon_dev", "mtgpu"} {
		if strings.HasPrefix(path, "/dev/"+name) {
			return true
		}
	}
	return false
}

// ownPID is the id that the process has in its own namespace.
func (l *look) ownPID() string {
	text, _ := os.ReadFile(l.path("status"))
	_, rest, _ := strings.Cut(string(text), "\nNSpid:")
	line, _, _ := strings.Cut(rest, "\n")
	if ids := strings.Fields(line); len(ids) > 0 {
		return ids[len(ids)-1]
	}
	return strconv.Itoa(l.PID)
}

// ask has the process write its stacks and its last collectives.
func (l *look) ask() {
	l.askRecorder()
	if l.memory == nil || l.memory.Truncate(0) != nil {
		return
	}
	// Once more, as it may have become another program meanwhile.
	if proc.Catches(l.PID, python.StacksSignal) && l.Signal(python.StacksSignal) == nil {
		l.asked = true
	}
}

// first notes what the threads of the process have done so far.
func (l *look) first() {
	l.at, l.threads = time.Now(), map[int]counted{}
	l.faults, l.throttled = l.majorFaults(), l.throttledFor()
	for _, tid := range l.tids() {
		l.threads[tid] = count(l.path("task/" + strconv.Itoa(tid)))
	}
}

func (l *look) tids() (tids []int) {
	names, _ := filepath.Glob(l.path("task/[0-9]*"))
	for _, name := range names[:min(len(names), mostThreads)] {
		if tid, err := strconv.Atoi(filepath.Base(name)); err == nil {
			tids = append(tids, tid)
		}
	}
	return tids
}

// last reads what the threads are doing, and what they have done since they were seen first.
func (l *look) last() {
	since := time.Since(l.at).Seconds()
	if stat, err := os.ReadFile(l.path("stat")); err == nil {
		if s := stateOf(stat); s != "" {
			l.to.State = s
		}
	}
	l.to.Steady = l.to.State == string(l.State)
	l.to.Faults = float64(max(l.majorFaults(), l.faults)-l.faults) / since
	l.to.Throttled = min(l.throttledFor().less(l.throttled)/since, 1)
	l.to.CPU, l.to.Wants, l.to.Threads = 0, 0, nil
	for _, tid := range l.tids() {
		dir := l.path("task/" + strconv.Itoa(tid))
		t := evidence.Thread{
			TID: tid, Wchan: line(dir + "/wchan"), Name: line(dir + "/comm"), Syscall: syscallName(line(dir + "/syscall")),
		}
		if t.Wchan == "0" {
			t.Wchan = ""
		}
		for k := range strings.Lines(line64k(dir + "/stack")) {
			_, name, _ := strings.Cut(k, "] ") // "[<0>] futex_wait+0x12/0x34"
			name, _, _ = strings.Cut(strings.TrimSpace(name), "+")
			if name != "" {
				t.Kernel = append(t.Kernel, name)
			}
		}
		now := count(dir)
		t.State = now.state
		if before, known := l.threads[tid]; known && t.State != "" && since > 0 {
			t.CPU = now.used.less(before.used) / since
			t.Wants = now.wanted(before, since)
			t.Waits = float64(now.waits-min(before.waits, now.waits)) / since
		}
		l.to.CPU += t.CPU
		l.to.Wants += t.Wants
		l.to.Threads = append(l.to.Threads, t)
	}
}

// starved reports whether the main thread got as good as no core, and would compute.
func (l *look) starved() bool {
	return slices.ContainsFunc(l.to.Threads, func(t evidence.Thread) bool { return t.TID == l.PID && t.Starved() })
}

// nanoseconds are a counter of the kernel's.
type nanoseconds uint64

// less is the difference in seconds, 0 where the counter went back.
func (n nanoseconds) less(before nanoseconds) float64 { return float64(n-min(before, n)) / 1e9 }

// count reads a thread's state and counters.
func count(dir string) (c counted) {
	stat, err := os.ReadFile(dir + "/stat")
	if err != nil {
		return c
	}
	c.state = stateOf(stat)
	if f := strings.Fields(line(dir + "/schedstat")); len(f) > 1 { // on a core, and waiting for one
		used, _ := strconv.ParseUint(f[0], 10, 64) // what is no number counts as 0
		queued, _ := strconv.ParseUint(f[1], 10, 64)
		c.used, c.queued = nanoseconds(used), nanoseconds(queued)
	} else if f := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:]); len(f) > 12 {
		for _, at := range []int{11, 12} {
			n, _ := strconv.ParseUint(string(f[at]), 10, 64)
			c.used += nanoseconds(n) * 1e7 // ticks of 10 ms
		}
	}
	status, _ := os.ReadFile(dir + "/status")
	_, rest, _ := strings.Cut(string(status), "\nvoluntary_ctxt_switches:")
	text, _, _ := strings.Cut(rest, "\n")
	c.waits, _ = strconv.ParseUint(strings.TrimSpace(text), 10, 64)
	return c
}

// stateOf is the letter in the text of /proc/PID/stat.
func stateOf(stat []byte) string {
	if f := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:]); len(f) > 0 && len(f[0]) == 1 {
		return string(f[0])
	}
	return ""
}

// line is the first line of a file, empty where it cannot be read.
func line(path string) string {
	text, _, _ := strings.Cut(line64k(path), "\n")
	return text
}

func line64k(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return string(text[:min(len(text), 1<<16)])
}

func (l *look) close() {
	if l.recorder != nil {
		_ = l.recorder.Truncate(0)
		_ = l.recorder.Close()
	}
	if l.memory != nil {
		_ = l.memory.Truncate(0) // the next look begins with that
		_ = l.memory.Close()
	}
}
