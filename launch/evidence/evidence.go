package evidence

import (
	"time"

	"muster/internal/python"
)

// Node is what was seen on one node.
type Node struct {
	Node string `json:"node"`
	// GroupRank is its rank among the nodes that were looked at together.
	GroupRank int       `json:"groupRank,omitempty"`
	At        time.Time `json:"at"`
	// Seconds is how long looking took.
	Seconds float64 `json:"seconds"`
	Ranks   []Rank  `json:"ranks"`
	// Notes say what could not be looked at.
	Notes []string `json:"notes,omitempty"`
}

// Rank is a worker with all that has descended from it.
type Rank struct {
	Node string `json:"node,omitempty"`
	Rank int    `json:"rank"`
	PID  int    `json:"pid"`
	// Ended says that the worker was there no more.
	Ended bool `json:"ended,omitempty"`
	// Silent is for how many seconds it has shown no sign of life, -1 where that is not known. Step is the last step
	// that its program has told, nil for none.
	Silent float64 `json:"silentSeconds"`
	Step   *int64  `json:"step,omitempty"`
	// Spins is for how many seconds it has begun no collective, taken no memory of its device, and stood at the same place,
	// though it uses a processor; 0 where that is not so, or not known.
	Spins float64 `json:"spinsSeconds,omitempty"`
	// Processes has the worker itself first.
	Processes []Process `json:"processes,omitempty"`
}

// Process is one process of a rank.
type Process struct {
	PID  int    `json:"pid"`
	PPID int    `json:"ppid"`
	Name string `json:"name"`
	// State is the letter of /proc/PID/stat, that of the main thread.
	State string `json:"state"`
	// Steady says that it was in this state at the beginning of the look, too.
	Steady bool `json:"steady"`
	// CPU is the share of a core that it used while it was looked at, Wants the one that it would have used on a
	// machine without load.
	CPU     float64  `json:"cpu"`
	Wants   float64  `json:"wants"`
	Threads []Thread `json:"threads,omitempty"`
	// Device says that it has the driver of a GPU or the like open.
	Device bool `json:"device,omitempty"`
	// Stacks are those of its Python threads, the main one first; NoStacks says why there are none.
	Stacks   []Stack  `json:"stacks,omitempty"`
	NoStacks string   `json:"noStacks,omitempty"`
	Sockets  []Socket `json:"sockets,omitempty"`
	// Native are stacks of its threads with their native frames, as py-spy sees them.
	Native []Stack `json:"native,omitempty"`
	// Calls are its last collectives, as PyTorch's Flight Recorder has them, in their order.
	Calls []Collective `json:"calls,omitempty"`
	// Faults is how often in a second it waited for memory that had to be read from a disk. Throttled is the share of
	// the time for which a limit of its control group kept it from every core.
	Faults    float64 `json:"faults,omitempty"`
	Throttled float64 `json:"throttled,omitempty"`
	// Full are files that it has open to write, and directories that it uses, on file systems without space.
	Full []string `json:"full,omitempty"`
	// Locks are locks on files that it waits for.
	Locks []FileLock `json:"locks,omitempty"`
}

// Thread is a thread as the kernel sees it.
type Thread struct {
	TID     int    `json:"tid"`
	Name    string `json:"name"`
	State   string `json:"state"`
	Wchan   string `json:"wchan,omitempty"`
	Syscall string `json:"syscall,omitempty"`
	// Target is what the system call is about, where that could be told: a file, a pipe, a process.
	Target string  `json:"target,omitempty"`
	CPU    float64 `json:"cpu"`
	Wants  float64 `json:"wants"`
	// Waits is how often in a second it began to wait.
	Waits float64 `json:"waits"`
	// Kernel is its stack in the kernel, the innermost function first.
	Kernel []string `json:"kernel,omitempty"`
}

// Stack is that of a Python thread, the innermost frame last.
type Stack struct {
	Thread string `json:"thread"`
	// GIL says that the thread holds the interpreter's lock, where that is known.
	GIL bool `json:"gil,omitempty"`
	// Collecting says that the interpreter collects garbage in the thread.
	Collecting bool    `json:"collecting,omitempty"`
	Frames     []Frame `json:"frames"`
}

// Frame is a call. Text is the line of the source, where it could be read; where that sleeps, Loop is the head of the
// loop around it.
type Frame struct {
	Func string `json:"func"`
	File string `json:"file"`
	Line int    `json:"line"`
	Text string `json:"text,omitempty"`
	Loop string `json:"loop,omitempty"`
}

// Socket is a TCP connection. Send and Receive are bytes in its queues; Retransmits counts attempts to send the oldest
// of them again.
type Socket struct {
	Local       string `json:"local"`
	Peer        string `json:"peer"`
	State       string `json:"state"`
	Send        int64  `json:"send"`
	Receive     int64  `json:"receive"`
	Retransmits int    `json:"retransmits,omitempty"`
}

// FileLock is a lock on a file that somebody else has. Holder is that one's process, 0 where it cannot be seen.
type FileLock struct {
	File   string `json:"file"`
	Holder int    `json:"holder,omitempty"`
}

// Starved reports whether a thread that would compute gets as good as no core.
func (t *Thread) Starved() bool {
	const computes, nothing = 0.5, 0.03 // of a core, and of what it wants
	return t.Wants >= computes && t.CPU < t.Wants*nothing
}

// Main is the worker itself, nil where it has ended.
func (r *Rank) Main() *Process {
	if len(r.Processes) == 0 {
		return nil
	}
	return &r.Processes[0]
}

// Library reports whether a frame is of Python's library or of an installed package, and not of the user's program.
func (f Frame) Library() bool { return python.IsLibrary(f.File) }

// Own is the innermost frame of the user's program, or the innermost of all where there is none such; nil for an empty
// stack.
func (s *Stack) Own() *Frame {
	for i := len(s.Frames) - 1; i >= 0; i-- {
		if !s.Frames[i].Library() {
			return &s.Frames[i]
		}
	}
	if len(s.Frames) == 0 {
		return nil
	}
	return &s.Frames[len(s.Frames)-1]
}
