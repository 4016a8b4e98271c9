package report

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"muster/internal/errhint"
	"muster/internal/proc"
	"muster/launch/job"
)

// LastLinesKept is how many last lines of a worker a failure keeps, for hints and the status file; lastLinesShown of
// them stand in the summary.
const (
	LastLinesKept  = 50
	lastLinesShown = 20
)

// Exit is how one worker of a group ended.
type Exit struct {
	Rank, LocalRank, PID int
	// Code is the exit code where Signal is 0.
	Code       int
	Signal     syscall.Signal
	CoreDumped bool
	At         time.Time
	// Stopped says that muster had signalled the worker before it ended: no failure, whatever its status.
	Stopped bool
	// LastLines are the last lines of its output, oldest first; LastLinesKept of them are of use.
	LastLines []string
	// ErrorFile is the path it was given for its error file, empty for none.
	ErrorFile string
	// Watchdog says which timer the worker had set and let run out (torchelastic's file timer): muster's watchdog has
	// sent the signal that the timer asks for. Empty for none.
	Watchdog string
	// Overdue says what took too long by the time-outs of NVRx's client, for which muster has sent the signal. Empty for
	// nothing.
	Overdue string
}

// status returns 0 to 255, with 128+n for signal n.
func (e *Exit) status() int {
	if e.Signal != 0 {
		return errhint.FromSignal(int(e.Signal))
	}
	return e.Code
}

// Ending says in one word how the worker ended: a signal's name, or "exit 1".
func (e *Exit) Ending() string {
	if e.Signal != 0 {
		return proc.SignalName(e.Signal)
	}
	return "exit " + strconv.Itoa(e.Code)
}

// Evidence is what the kernel says about the node a group failed on.
type Evidence struct {
	// OOMKills is how many processes the kernel killed for want of memory in the cgroup OOMGroup while the group ran.
	OOMKills int64
	OOMGroup string
	// ShmSize and ShmFree are the bytes of /dev/shm; both 0 where it could not be looked at.
	ShmSize, ShmFree uint64
	// FullLogs is the directory of the workers' output where its file system has no room left, else empty.
	FullLogs string
}

// littleLogs is how many bytes of a file system of logs are as good as none: what could not be written there is lost.
const littleLogs = 64 << 10

// GatherEvidence looks at the node. oomBefore and oomAfter are readings of the OOM kill counter of the cgroup oomGroup,
// from before the group started and now; logs is the directory of the workers' output, empty for none; statfs is
// unix.Statfs.
func GatherEvidence(oomBefore, oomAfter int64, oomGroup, logs string, statfs func(string, *unix.Statfs_t) error) Evidence {
	e := Evidence{OOMKills: max(oomAfter-oomBefore, 0), OOMGroup: oomGroup}
	var fs unix.Statfs_t
	if err := statfs("/dev/shm", &fs); err == nil && fs.Bsize > 0 {
		e.ShmSize, e.ShmFree = fs.Blocks*uint64(fs.Bsize), fs.Bavail*uint64(fs.Bsize)
	}
	if logs == "" {
		return e
	}
	if err := statfs(logs, &fs); err == nil && noRoom(&fs, os.Geteuid() == 0) {
		e.FullLogs = logs
	}
	return e
}

// noRoom reports whether a file system has no room for another line. What is kept for root counts for root. One that has
// no size, such as tmpfs without a limit, has no end either.
func noRoom(fs *unix.Statfs_t, root bool) bool {
	free := fs.Bavail
	if root {
		free = fs.Bfree
	}
	return fs.Bsize > 0 && fs.Blocks > 0 && free*uint64(fs.Bsize) < littleLogs || fs.Files > 0 && fs.Ffree == 0
}

// shmFull reports whether next to nothing is free in /dev/shm. Once the process is dead that filled it, it mostly is
// not full any more.
func (e Evidence) shmFull() bool { return e.ShmSize > 0 && e.ShmFree <= e.ShmSize/100 }

// shmScarce reports whether want of /dev/shm explains a bus error.
func (e Evidence) shmScarce() bool {
	return e.shmFull() || e.ShmSize > 0 && e.ShmSize <= job.SmallSharedMemory
}

// about returns what the kernel says about one worker's end beside its status, a sentence each.
func (e Evidence) about(w *Exit) []string {
	var facts []string
	if w.Watchdog != "" {
		facts = append(facts, "muster's watchdog has sent the signal: the worker's timer "+strconv.Quote(w.Watchdog)+
			" had run out (TORCHELASTIC_ENABLE_FILE_TIMER)")
	}
	if w.Overdue != "" {
		facts = append(facts, "muster has sent the signal: "+w.Overdue)
	}
	if w.CoreDumped {
		facts = append(facts, "core dumped")
	}
	if e.OOMKills > 0 {
		facts = append(facts, fmt.Sprintf("processes killed by the kernel for want of memory in cgroup %s while the group ran: %d",
			e.OOMGroup, e.OOMKills))
	}
	if e.shmFull() || e.shmScarce() && w.Signal == syscall.SIGBUS {
		facts = append(facts, fmt.Sprintf("/dev/shm has %.1f MiB free of %.1f MiB", mebibytes(e.ShmFree), mebibytes(e.ShmSize)))
	}
	if e.FullLogs != "" {
		facts = append(facts, "the file system of "+e.FullLogs+" is full, where the workers' output is written")
	}
	switch {
	case w.Signal != 0:
	case w.Code == errhint.NotExecuted:
		facts = append(facts, "status 126 is a shell's word for: found, but cannot be executed")
	case w.Code == errhint.NotFound:
		facts = append(facts, "status 127 is a shell's word for: command not found")
	}
	return facts
}

func mebibytes(n uint64) float64 { return float64(n) / (1 << 20) }

// Failure is a worker that failed by itself, and what is known about why.
type Failure struct {
	Exit
	// Host is the name of its node, GroupRank that node's rank among the agents. Elsewhere says that it is not this
	// node: At is then a time of our clock all the same, and files are not to be read.
	Host      string
	GroupRank int
	Elsewhere bool
	// Error is what its error file says; nil where there is none.
	Error *workerError
	// Evidence are the kernel's facts, a sentence each.
	Evidence []string
	// Cause names the hint's rule, empty where none fits; Hint says what to try.
	Cause, Hint string
	// Secondary says that the worker failed because its connection to a worker broke that had failed itself: VictimOf.
	Secondary bool
	VictimOf  int
	// HeldUp is for whom it has waited in vain, nil where that is not known.
	HeldUp *HeldUp
}

// HeldUp is a rank that did not come to what another one had waited for, until that one gave up.
type HeldUp struct {
	Rank int    `json:"rank"`
	Node string `json:"node,omitempty"`
	// Sentence says what it did instead, and how that is known.
	Sentence string `json:"sentence"`
}

// Report says why a group failed: one root cause, and everybody else.
type Report struct {
	// Title is the name of what ran.
	Title string
	// Host is the name of this node, Nodes how many took part.
	Host  string
	Nodes int
	Root  Failure
	// Others are the other failures, by time; Stopped the workers that muster ended on this node, by rank.
	Others  []Failure
	Stopped []Exit
	// HeldUp is the rank to blame where all that failed had waited for it in vain; nil where that is not so, or nobody
	// knows.
	HeldUp *HeldUp
	// Restarts says how many restarts were used and why there is no more, Logs where the workers' output is. Empty
	// where the report is not about the end of a job.
	Restarts, Logs string
}

// Input is what a report is made of.
type Input struct {
	// Title is the name of what ran, Host of this node; GroupRank is the node's rank among Nodes.
	Title, Host      string
	GroupRank, Nodes int
	// Exits are those of the whole group, in any order.
	Exits  []Exit
	Kernel Evidence
	// Elsewhere are the failures on other nodes.
	Elsewhere []Failure
	// Blamed is the rank whose fatal exit code ended the job: it is the root cause whatever happened before. -1: none.
	Blamed int
	// HeldUp is the rank that workers here have waited for in vain, nil for none that is known.
	HeldUp *HeldUp
	// Waited is how long other failures were waited for after a connection had broken.
	Waited time.Duration
}

// Failures are those among the group's workers that failed by themselves, by time.
func (in *Input) Failures() []Failure {
	var failures []Failure
	for _, e := range in.Exits {
		if e.Stopped || e.status() == 0 {
			continue
		}
		f := NewFailure(e, in.Kernel)
		f.Host, f.GroupRank = in.Host, in.GroupRank
		if f.Cause == causeTimeout {
			f.HeldUp = in.HeldUp
		}
		failures = append(failures, f)
	}
	sortFailures(failures)
	return failures
}

func sortFailures(failures []Failure) {
	slices.SortFunc(failures, func(a, b Failure) int {
		return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.Rank, b.Rank))
	})
}

// New finds the root cause among a world's exits: the first failure by time that is not the echo of another one. A
// worker whose connection to another rank broke, as gloo, NCCL and PyTorch's store put it, within five seconds of a
// failure of another kind (or Waited before it) is such an echo, also when it was seen first: the death of a process
// closes its connections before anybody can wait for it. Returns nil when no worker failed by itself.
func New(in Input) *Report { return in.Report(in.Failures()) }

// Report is New for failures of this node that are known already.
func (in *Input) Report(here []Failure) *Report {
	failures := slices.Concat(here, in.Elsewhere)
	if len(failures) == 0 {
		return nil
	}
	r := &Report{Title: in.Title, Host: in.Host, Nodes: in.Nodes}
	for _, e := range in.Exits {
		if e.Stopped {
			r.Stopped = append(r.Stopped, e)
		}
	}
	slices.SortFunc(r.Stopped, func(a, b Exit) int { return cmp.Compare(a.Rank, b.Rank) })
	sortFailures(failures)
	findVictims(failures, max(job.RootCauseWindow, in.Waited))
	root := max(slices.IndexFunc(failures, func(f Failure) bool { return !f.Secondary }), 0)
	if blamed := slices.IndexFunc(failures, func(f Failure) bool { return f.Rank == in.Blamed }); blamed >= 0 {
		root = blamed
		failures[root].Secondary = false
	}
	r.Root = failures[root]
	if r.Root.WaitedInVain() {
		for i := range failures {
			if h := failures[i].HeldUp; h != nil && r.HeldUp == nil {
				r.HeldUp, r.Root.HeldUp = h, h
			}
		}
	}
	r.Others = slices.Delete(failures, root, root+1)
	return r
}

// NewFailure is what is known of a worker that failed: what its error file says, what the kernel says, and the hint
// that fits.
func NewFailure(e Exit, kernel Evidence) Failure {
	e.LastLines = e.LastLines[max(len(e.LastLines)-LastLinesKept, 0):]
	f := Failure{Exit: e, Error: readErrorFile(e.ErrorFile), Evidence: kernel.about(&e)}
	f.Cause, f.Hint = hintFor(symptoms{exit: &f.Exit, lines: f.Words(), kernel: kernel})
	return f
}

// Words returns what the worker said about its end, as far as hints look.
func (f *Failure) Words() []string {
	if f.Error == nil {
		return f.LastLines
	}
	lines := f.Error.lines()
	return slices.Concat(f.LastLines, lines[max(len(lines)-LastLinesKept, 0):])
}

// WaitedInVain reports whether a worker failed because another one did not come to what it waited for.
func (f *Failure) WaitedInVain() bool { return f.Cause == causeTimeout && echo(f) == 1 }

// Plain reports whether its hint says no more than how the worker ended and its last words.
func (f *Failure) Plain() bool {
	return f.Cause == causeExit || f.Cause == causeException && f.Signal == 0
}

// findVictims marks the secondary ones among failures, which are sorted by time: those whose cause came no more than
// later after them. A world may have failed on thousands of nodes.
func findVictims(failures []Failure, later time.Duration) {
	var others []*Failure
	for i := range failures {
		if echo(&failures[i]) == 0 {
			others = append(others, &failures[i])
		}
	}
	for i := range failures {
		f := &failures[i]
		if echo(f) == 0 {
			continue
		}
		first, _ := slices.BinarySearchFunc(others, f.At.Add(-job.RootCauseWindow), func(o *Failure, from time.Time) int {
			return o.At.Compare(from)
		})
		if first < len(others) && others[first].At.Sub(f.At) <= later {
			f.Secondary, f.VictimOf = true, others[first].Rank
			f.Hint = "this failure is a consequence: look at rank " + strconv.Itoa(f.VictimOf)
		}
	}
}

// Status returns the exit status of the job: the root cause's own.
func (r *Report) Status() int { return r.Root.status() }
