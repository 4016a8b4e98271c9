package diagnose

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"muster/launch/evidence"
)

// Kind is what keeps a rank, or a job.
type Kind string

// The kinds.
const (
	Nothing     Kind = "none"          // no rank is held up by another
	Ended       Kind = "ended"         // its process has ended
	Stopped     Kind = "stopped"       // by a signal, or a debugger
	Blocked     Kind = "blocked"       // in the kernel, where no signal reaches it
	Loader      Kind = "data-loader"   // a process that loads data for it
	FileLock    Kind = "file-lock"     // a lock on a file that another process has
	Deadlock    Kind = "deadlock"      // threads that wait for each other
	Lock        Kind = "lock"          // another thread
	Interpreter Kind = "gil"           // native code that does not give up Python's lock
	Sleeps      Kind = "sleep"         // it sleeps
	Child       Kind = "child-process" // a process that it has started
	Input       Kind = "input"         // a file, a pipe or a connection
	Full        Kind = "no-space"      // a file system without space
	Memory      Kind = "memory"        // memory that is read from a disk again and again
	Starved     Kind = "no-core"       // the machine, or a limit, gives it no core
	Garbage     Kind = "garbage"       // Python collects garbage
	Device      Kind = "device"        // its GPU
	Runs        Kind = "runs"          // it computes, or is in an endless loop
	Collective  Kind = "collective"    // it waits for the others
	Mismatch    Kind = "mismatch"      // other ranks are in another collective
	Link        Kind = "link"          // a connection to another rank
	Unknown     Kind = "unknown"
)

// busy is the share of a core from which on a process is taken to compute; idle the one up to which it is taken to
// wait.
const (
	busy = 0.5
	idle = 0.1
	// thrashes is how many times in a second a process waits for its own memory that hardly does anything else
	// (computing); throttledMuch is the share of the time from which on a limit keeps it.
	thrashes      = 50
	computing     = 0.9
	throttledMuch = 0.6
)

// activity is what one rank does.
type activity struct {
	rank *evidence.Rank
	kind Kind
	// node is where it is, empty where only one node was looked at.
	node string
	// does completes "rank 1 …".
	does string
	// call and at are the collective that it waits in, and where.
	call, at string
	// in is the call of the recorder that it waits in, nil where that is not known.
	in *evidence.Collective
	// holder is the process that has the lock which it waits for.
	holder int
	shows  []string
}

// severity orders what explains most: what no program does by intent comes first.
var severity = []Kind{
	Ended, Stopped, Memory, Blocked, Starved, Full, Loader, Deadlock, FileLock, Interpreter, Link, Mismatch, Garbage, Lock, Child, Sleeps,
	Input, Device, Runs, Unknown,
}

// look says what a rank does.
func look(r *evidence.Rank) activity {
	a := activity{rank: r}
	main := r.Main()
	if r.Ended || main == nil || main.State == "Z" || main.State == "X" {
		a.kind, a.does = Ended, "has ended"
		return a
	}
	a.kind, a.does, a.call, a.at = doing(main)
	if a.kind == Collective {
		a.in = pending(main)
	}
	waitsForDevice(&a, main)
	if a.kind == FileLock {
		a.holder = main.Locks[0].Holder
	}
	a.shows = append(shows(r.Rank, main), standsStill(r)...)
	switch {
	case a.kind == Collective || a.kind == Stopped || a.kind == Starved || a.kind == Memory:
	case loads(main):
		a.kind = Loader
		var more []string
		a.does, more = loader(r, main)
		a.shows = append(a.shows, more...)
	case a.kind == Input || a.kind == Lock || a.kind == Child || a.kind == Blocked:
		if text, more := children(r, main); text != "" {
			a.does += text
			a.shows = append(a.shows, more...)
			if strings.Contains(text, "has died") && pool(main) {
				a.kind = Loader
			}
		}
	}
	return a
}

// doing says what a process does, by its main thread.
func doing(p *evidence.Process) (kind Kind, does, call, at string) {
	switch p.State {
	case "T":
		return Stopped, fmt.Sprintf("is stopped by a signal (process %d, state T)", p.PID), "", ""
	case "t":
		return Stopped, fmt.Sprintf("is stopped by a debugger (process %d, state t)", p.PID), "", ""
	}
	main := mainThread(p)
	where, own := "", (*evidence.Frame)(nil)
	if len(p.Stacks) > 0 {
		if own = p.Stacks[0].Own(); own != nil {
			where = place(own)
		}
	}
	in := ""
	if where != "" {
		in = " " + where
	}
	if p.Faults >= thrashes && p.CPU < computing && collective(p) == "" {
		return Memory, fmt.Sprintf(
			"waits for pages of its memory, which are read from a disk (%.0f in a second)%s: the machine swaps, a limit "+
				"of memory is too low, or it reads a file that it has mapped", p.Faults, in), "", ""
	}
	if p.Steady && p.State == "D" {
		what := ""
		if main.Wchan != "" {
			what = ", " + main.Wchan
		}
		return Blocked, fmt.Sprintf("waits in the kernel, where no signal reaches it (process %d, state D%s%s)", p.PID, what, inCall(main)),
			"", ""
	}
	if call := collective(p); call != "" {
		return Collective, "waits in " + call + in, call, where
	}
	if len(p.Locks) > 0 {
		return FileLock, "waits for a lock on the file " + p.Locks[0].File + in, "", ""
	}
	kind, does = acts(p, main, own, in)
	if len(p.Full) > 0 && kind != Interpreter && kind != Garbage {
		kind, does = Full, does+"; the file system of "+p.Full[0]+", which it uses, has no space left"
	}
	return kind, does, "", ""
}

// acts says what a process does that is neither stopped nor in a collective.
func acts(p *evidence.Process, main evidence.Thread, own *evidence.Frame, in string) (kind Kind, does string) {
	switch {
	case p.Throttled >= throttledMuch && p.CPU < busy:
		return Starved, fmt.Sprintf("is throttled: a limit of its control group kept it from every core for %.0f %% of the time%s",
			100*p.Throttled, wouldBe(in))
	case main.Starved():
		return Starved, fmt.Sprintf("gets no core (%.0f %% of one): the machine has too much to do, or it has a low priority%s",
			100*main.CPU, wouldBe(in))
	case len(p.Stacks) > 0 && slices.ContainsFunc(p.Stacks, func(s evidence.Stack) bool { return s.Collecting }):
		return Garbage, "collects Python's garbage" + in
	case main.Wants >= busy && starved(p):
		return Interpreter, "runs native code" + called(in) +
			", which does not give up Python's lock: its other Python threads wait for that"
	case main.Wants >= busy || p.Wants >= busy && own == nil:
		return Runs, "computes" + in
	case sleeps(main, own) && own != nil && own.Loop != "":
		return Sleeps, "sleeps" + in + ", again and again (" + own.Loop + ")"
	case sleeps(main, own):
		return Sleeps, "sleeps" + in
	case main.Syscall == "futex" && own != nil && locked(p):
		return Deadlock, "waits for a lock" + in + ", and another thread of it waits for one, too" + other(p)
	case main.Syscall == "futex" && own != nil:
		return Lock, "waits for a lock or for another thread" + in
	case main.Syscall == "wait4" || main.Syscall == "waitid":
		return Child, "waits for a process that it has started" + in
	case strings.HasPrefix(main.Syscall, "read") || strings.HasPrefix(main.Syscall, "recv") || strings.Contains(main.Syscall, "poll") ||
		strings.Contains(main.Syscall, "select"):
		return Input, "waits for input" + in + inCall(main)
	case strings.HasPrefix(main.Syscall, "open") && p.CPU <= idle:
		return Input, "waits for a file to be opened" + in + inCall(main)
	case own != nil:
		return Unknown, "is" + in + inCall(main)
	}
	return Unknown, fmt.Sprintf("waits somewhere that cannot be seen (process %d%s; %s)", p.PID, inCall(main), p.NoStacks)
}

// mainThread is the thread that a process began with.
func mainThread(p *evidence.Process) evidence.Thread {
	for _, t := range p.Threads {
		if t.TID == p.PID {
			return t
		}
	}
	return evidence.Thread{State: p.State}
}

func inCall(t evidence.Thread) string {
	switch {
	case t.Syscall != "" && t.Target != "":
		return ", in " + t.Syscall + " of " + t.Target
	case t.Syscall != "":
		return ", in " + t.Syscall
	case t.Wchan != "":
		return ", in " + t.Wchan
	}
	return ""
}

func called(in string) string {
	if in == "" {
		return ""
	}
	return ", called" + in
}

// place is a frame as people look for it.
func place(f *evidence.Frame) string {
	text := fmt.Sprintf("at %s:%d in %s", path.Base(f.File), f.Line, f.Func)
	if f.Text != "" {
		text += " (" + f.Text + ")"
	}
	return text
}

// collective is the call of a process that waits for other ranks, empty where it does not.
func collective(p *evidence.Process) string {
	if len(p.Stacks) == 0 {
		return ""
	}
	frames := p.Stacks[0].Frames
	first := ""
	for _, f := range frames {
		switch {
		case strings.HasSuffix(f.File, "/torch/distributed/distributed_c10d.py"):
			return f.Func
		case strings.HasSuffix(f.File, "/horovod/torch/mpi_ops.py"):
			return "Horovod's " + f.Func
		case strings.Contains(f.File, "/torch/distributed/") && !strings.Contains(f.File, "/distributed/elastic/") &&
			!strings.HasSuffix(f.File, "/c10d_logger.py") && first == "":
			first = f.Func
		}
	}
	if first != "" || len(frames) == 0 || !rests(p) {
		return first
	}
	last := frames[len(frames)-1]
	switch {
	case last.Func == "_engine_run_backward" && strings.HasSuffix(last.File, "/torch/autograd/graph.py"):
		return "the exchange of gradients in backward()"
	case !last.Library() && strings.Contains(last.Text, ".wait(") && mainThread(p).Syscall == "futex":
		return "wait() for a collective" // of an event or a process it would be in Python's library
	}
	return ""
}

// starved reports whether threads of a process wait for Python's lock while the main one computes: they look for it
// every 5 ms, less often on a machine with too much to do, and do nothing.
func starved(p *evidence.Process) bool {
	main := mainThread(p)
	if others := p.CPU - main.CPU; others > idle || others > main.CPU/2 {
		return false
	}
	// A thread that waits for something else for a short time does as much: its frame says so.
	if len(p.Stacks) < 2 || !slices.ContainsFunc(p.Stacks[1:], func(s evidence.Stack) bool {
		at := len(s.Frames) - 1
		return at >= 0 && !awaits(&s.Frames[at])
	}) {
		return false
	}
	least, loaded := 50.0, main.Wants > 1.5*main.CPU
	if loaded {
		least = max(least*main.CPU/main.Wants, 3)
	}
	return slices.ContainsFunc(p.Threads, func(t evidence.Thread) bool {
		return t.TID != p.PID && (t.Syscall == "futex" || loaded && t.State == "R") && t.Waits >= least && t.Waits <= 400 && t.CPU <= idle
	})
}

// awaits reports whether a frame is where Python's library waits for something that is not its lock.
func awaits(f *evidence.Frame) bool {
	switch path.Base(f.File) {
	case "threading.py":
		return slices.Contains([]string{"wait", "wait_for", "join", "acquire", "_wait_for_tstate_lock"}, f.Func)
	case "queue.py", "selectors.py", "socket.py":
		return true
	}
	return false
}

func sleeps(main evidence.Thread, own *evidence.Frame) bool {
	if own != nil && own.Loop != "" && main.CPU <= idle { // between two sleeps it may be in line for a core
		return true
	}
	return strings.HasSuffix(main.Syscall, "nanosleep") ||
		own != nil && strings.Contains(own.Text, "sleep(") && (main.Syscall == "select" || main.Syscall == "pselect6")
}

// locked reports whether another Python thread of a process waits in the user's program, as its main thread does, and
// none runs.
func locked(p *evidence.Process) bool { return rests(p) && other(p) != "" }

// rests reports whether no thread of a process computes. On a machine with too much to do those that wake up for a
// moment, as PyTorch's do, are in line for a core for much longer.
func rests(p *evidence.Process) bool {
	return p.CPU <= idle && !slices.ContainsFunc(p.Threads, func(t evidence.Thread) bool { return t.Wants >= busy })
}

// other is where such a thread waits.
func other(p *evidence.Process) string {
	waits := 0
	for _, t := range p.Threads {
		if t.Syscall == "futex" && t.Waits < 5 {
			waits++
		}
	}
	for i := 1; i < len(p.Stacks) && waits > 1; i++ {
		if frames := p.Stacks[i].Frames; len(frames) > 0 && !frames[len(frames)-1].Library() {
			return " " + place(&frames[len(frames)-1])
		}
	}
	return ""
}

// shows are the lines of evidence of a process.
func shows(rank int, p *evidence.Process) []string {
	t := mainThread(p)
	text := fmt.Sprintf("rank %d: process %d (%s): state %s, %.0f %% of a core", rank, p.PID, p.Name, p.State, 100*p.CPU)
	if p.Wants-p.CPU > idle {
		text += fmt.Sprintf(" and %.0f %% more in line for one", 100*(p.Wants-p.CPU))
	}
	if t.Syscall != "" {
		text += ", syscall " + t.Syscall
	}
	if t.Target != "" {
		text += " of " + t.Target
	}
	if t.Wchan != "" {
		text += ", wchan " + t.Wchan
	}
	lines := []string{text}
	for i := range p.Stacks {
		if own := p.Stacks[i].Own(); own != nil {
			lines = append(lines, fmt.Sprintf("rank %d: process %d: thread %s is %s", rank, p.PID, p.Stacks[i].Thread, place(own)))
		}
		if i == 3 {
			break
		}
	}
	if len(p.Stacks) == 0 && p.NoStacks != "" {
		lines = append(lines, fmt.Sprintf("rank %d: process %d: no Python stacks: %s", rank, p.PID, p.NoStacks))
	}
	if c := pending(p); c != nil {
		lines = append(lines, fmt.Sprintf("rank %d: process %d: by the Flight Recorder it is in %s", rank, p.PID, c))
	}
	for _, name := range p.Full {
		lines = append(lines, fmt.Sprintf("rank %d: process %d: no space is left on the file system of %s", rank, p.PID, name))
	}
	if p.Throttled > 0 || p.Faults > 1 {
		lines = append(lines, fmt.Sprintf("rank %d: process %d: throttled for %.0f %% of the time, %.0f major page faults in a second",
			rank, p.PID, 100*p.Throttled, p.Faults))
	}
	for _, l := range p.Locks {
		text := fmt.Sprintf("rank %d: process %d: waits for the lock on %s", rank, p.PID, l.File)
		if l.Holder > 0 {
			text += fmt.Sprintf(", which process %d has", l.Holder)
		}
		lines = append(lines, text)
	}
	for _, s := range p.Sockets {
		if s.Retransmits > 0 || s.Send > 0 {
			lines = append(lines, fmt.Sprintf("rank %d: process %d: connection %s to %s (%s): %d bytes are not taken, sent again %d times",
				rank, p.PID, s.Local, s.Peer, s.State, s.Send, s.Retransmits))
		}
	}
	return lines
}

// wouldBe is where a process is that gets no core.
func wouldBe(in string) string {
	if in == "" {
		return ""
	}
	return "; it is" + in
}
