package report

import (
	"slices"
	"strconv"
	"strings"
	"syscall"

	"muster/internal/errhint"
	"muster/internal/printable"
)

// symptoms are what a hint is found by.
type symptoms struct {
	exit   *Exit
	lines  []string // what the worker said at last: its output, then its error file
	kernel Evidence
}

// maxSaid is how much of a line is looked at, in bytes. Messages stand at its beginning.
const maxSaid = 4096

// said reports whether a line holds one of patterns, and what its star stands for. A pattern is a text, or two texts
// that follow each other in a line with a star between them; a star at the end stands for the rest of the line.
// (Regular expressions took 25 ms a worker on a busy machine.)
func (s symptoms) said(patterns ...string) (captured string, found bool) {
	for _, line := range s.lines {
		line = line[:min(len(line), maxSaid)]
		for _, pattern := range patterns {
			first, second, _ := strings.Cut(pattern, "*")
			_, rest, ok := strings.Cut(line, first)
			captured := rest
			if ok && second != "" {
				captured, _, ok = strings.Cut(rest, second)
			}
			if ok {
				return captured, true
			}
		}
	}
	return "", false
}

// cause is one rule of the table of hints.
type cause struct {
	name string
	// hint returns the sentence that says what to try, "" where the rule does not fit.
	hint func(s symptoms) string
}

// causeConnectionLost is the name of the rule that marks failures as consequences of another one.
const causeConnectionLost = "connection-lost"

// causeTimeout is the name of the rule for workers that have waited in vain for another one: who complains is not who
// did not come.
const causeTimeout = "collective-timeout"

// causeDiskFull is the name of the rules for a full file system: a worker says so, or it is that of the worker's output,
// which then has no reason in it.
const causeDiskFull = "disk-full"

// causeException and causeExit are the names of the rules that fit most failures: they say what can be seen anyway.
const (
	causeException = "exception"
	causeExit      = "exit-status"
)

// pythonUnflushed is Python's exit status where it could not write what its standard output still held.
const pythonUnflushed = 120

// causeWatchdog is the name of the rule for workers whose own timer has run out.
const causeWatchdog = "watchdog"

// causeOverdue is that of the rule for workers that took longer than NVRx's time-outs allow.
const causeOverdue = "overdue"

// hintFor returns the name and the sentence of the first rule that fits, "" and "" where none does or nothing failed.
func hintFor(s symptoms) (name, hint string) {
	if s.exit.status() == 0 || s.exit.Stopped {
		return "", ""
	}
	for _, c := range causes {
		if hint := c.hint(s); hint != "" {
			return c.name, hint
		}
	}
	return "", ""
}

// whenSaid is a rule for texts: it fits when a line holds one of patterns.
func whenSaid(name, hint string, patterns ...string) cause {
	return cause{name, func(s symptoms) string {
		if _, ok := s.said(patterns...); ok {
			return hint
		}
		return ""
	}}
}

// causes is the table of hints, and the only place that knows how other programs word their errors. The first rule that
// fits wins, so the order matters: what the kernel counted comes before what a program says; texts that name one
// resource come before those that could be any resource's (a full /dev/shm says "no space left on device" too); a lost
// connection comes after all of them, because whatever else a worker says is more likely to be why it failed.
//
// The texts are those of PyTorch 2.15.0 and 1.13.1 and NCCL 2.30.7 (observed, or read in their libraries), CPython
// 3.11, dash and bash 5.2; testdata/hints has samples with their origin.
var causes = [...]cause{
	{causeWatchdog, func(s symptoms) string {
		if s.exit.Watchdog == "" {
			return ""
		}
		return "the worker did not release its timer " + strconv.Quote(printable.Output(s.exit.Watchdog)) +
			" in time, and muster's watchdog ended it: " +
			"see in its last lines what it was doing, and give what it guards (torch.distributed.elastic.timer.expires) more time if it " +
			"is only slow"
	}},
	{causeOverdue, func(s symptoms) string {
		if s.exit.Overdue == "" {
			return ""
		}
		return "a worker took longer than the time-outs of ft_launcher allow, and muster ended it: the sentence above says what the " +
			"workers were doing; give more time (--ft-rank-heartbeat-timeout, --ft-rank-section-timeouts) if they are only slow"
	}},
	{"oom-killer", func(s symptoms) string {
		_, loader := s.said("DataLoader worker (pid*killed by signal: Killed")
		if s.kernel.OOMKills > 0 && (s.exit.Signal == syscall.SIGKILL || loader) {
			return "main memory ran out: raise the memory limit of the container or job, or use less " +
				"(fewer DataLoader workers, smaller batches or prefetch, fewer workers on this node)"
		}
		return ""
	}},
	whenSaid("shared-memory", sharedMemoryHint,
		"insufficient shared memory", "out of shared memory", "unable to *shared memory",
		"/dev/shm*No space left on device", "No space left on device*/dev/shm"),
	{"shared-memory", func(s symptoms) string {
		if s.exit.Signal == syscall.SIGBUS && s.kernel.shmScarce() {
			return sharedMemoryHint
		}
		return ""
	}},
	whenSaid("accelerator-memory",
		"the accelerator's memory ran out: use smaller batches, activation checkpointing or sharding; see with "+
			"nvidia-smi whether a process left over from another job holds memory; against fragmentation try "+
			"PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
		"CUDA out of memory", "HIP out of memory", "XPU out of memory", "NPU out of memory",
		"CUDA error: out of memory", "CUDA ran out of memory", "CUBLAS_STATUS_ALLOC_FAILED"),
	whenSaid("accelerator-fault",
		"a kernel on the accelerator failed, and what is reported is mostly a later call: run once with CUDA_LAUNCH_BLOCKING=1 to "+
			"see which one it was; an index out of range in an embedding or a loss is the usual reason of an assert; where the same "+
			"device fails with other programs too, take it out of service (muster check)",
		"device-side assert triggered", "an illegal memory access was encountered", "unspecified launch failure",
		"uncorrectable ECC error", "uncorrectable NVLink error", "CUDA error: misaligned address", "illegal instruction was encountered"),
	whenSaid("no-accelerator",
		"the program asks for an accelerator that it does not see: compare nvidia-smi and CUDA_VISIBLE_DEVICES on this node, the "+
			"driver's version, the build of PyTorch (torch.version.cuda), and --nproc-per-node (muster devices)",
		"No CUDA GPUs are available", "not compiled with CUDA enabled", "NVIDIA driver on your system is too old",
		"Found no NVIDIA driver", "invalid device ordinal", "no CUDA-capable device is detected", "CUDA driver version is insufficient",
		"Attempting to deserialize object on a CUDA device but"),
	whenSaid("memory",
		"memory that the program asked for was refused: use smaller batches or fewer DataLoader workers, raise the limit of "+
			"address space (ulimit -v) or of the container, and see whether a size was computed wrongly",
		"MemoryError", "can't allocate memory: you tried to allocate", "std::bad_alloc", "Cannot allocate memory"),
	whenSaid(causeDiskFull,
		"a file could not be written because its file system or quota is full: look with df -h and df -i at where "+
			"checkpoints, logs and temporary files go",
		"No space left on device", "ENOSPC", "Disk quota exceeded",
		// torch.save reports a short write by the position in its archive and drops the reason.
		"inline_container.cc*unexpected pos", "inline_container.cc*file write failed"),
	whenSaid("too-many-files",
		"the limit of open files was reached: raise it (ulimit -n, LimitNOFILE= in a systemd unit, --ulimit nofile= of "+
			"the container), or call torch.multiprocessing.set_sharing_strategy('file_system') for DataLoaders",
		"Too many open files", "EMFILE",
		"received 0 items of ancdata"), // a tensor's descriptor that did not fit into the receiver's table
	whenSaid("too-many-processes",
		"no more processes or threads may be started: raise the limit (ulimit -u, pids.max of the container), or start fewer "+
			"(OMP_NUM_THREADS, DataLoader workers)",
		"can't start new thread", "fork: retry: Resource temporarily unavailable", "BlockingIOError: [Errno 11]",
		"Cannot fork", "pthread_create failed: Resource temporarily unavailable"),
	whenSaid("file-system",
		"a file system does not answer as it should: see dmesg and mount for the one that holds the file, and whether other "+
			"nodes can read it; a read-only one may have been remounted after an error",
		"Read-only file system", "Input/output error", "Stale file handle", "Transport endpoint is not connected"),
	whenSaid("port-in-use",
		"a port is taken, perhaps by an earlier run that still lives: see ss -ltnp, end that process or choose another "+
			"port (0 lets the kernel choose)",
		"ddress already in use", "EADDRINUSE"),
	whenSaid("hostname",
		"a host name does not resolve on this node: check the spelling, /etc/hosts and the name server (getent hosts "+
			"NAME), or use an address",
		"gai error", "gaierror", "Name or service not known", "Temporary failure in name resolution",
		"No address associated with hostname"),
	{"module-missing", func(s symptoms) string {
		// With -m there are no quotes around the name, and a bracket or a semicolon may follow.
		name, ok := s.said("No module named *")
		if !ok {
			return ""
		}
		name, rest, _ := strings.Cut(name, " ")
		switch top, below, _ := strings.Cut(strings.Trim(name, `'");`), "."); {
		case top == "muster" && (below != "" || strings.Contains(rest, "is not a package")):
			return "the Python package muster that was found is another project's, which has the same name: " +
				"python -m pip uninstall muster, and look for a muster.py beside the script"
		case top == "muster":
			return "the Python package muster is not on the workers' path: give --ckpt on (or MUSTER_CKPT=on), which puts it there, " +
				"or python -m pip install muster-launch (muster alone is another project's)"
		}
		return "Python does not find the module " + printable.Output(strings.Trim(name, `'");`)) + ": is it installed for the " +
			"interpreter that runs the workers (python -m pip list), is the right virtual environment active, does " +
			"PYTHONPATH lead to it?"
	}},
	whenSaid("library-missing",
		"a shared library is not found or does not fit: see with ldd which one the named file lacks, and whether "+
			"LD_LIBRARY_PATH and the versions of PyTorch, CUDA and the extension belong together (rebuild extensions after an update)",
		"cannot open shared object file", "undefined symbol:", "version `*' not found", "invalid ELF header"),
	whenSaid("import-failed",
		"the module is there, but not what is imported from it: it may be of another version, a file beside the script may have "+
			"its name, or two modules import each other",
		"ImportError: cannot import name", "partially initialized module"),
	{"syntax", func(s symptoms) string {
		kind, ok := s.said("SyntaxError: *")
		if !ok {
			if kind, ok = s.said("IndentationError: *", "TabError: *"); !ok {
				return ""
			}
		}
		return "Python cannot read the program (" + printable.Line(kind, 80) + "): correct the line that is named above, and see " +
			"whether the interpreter is as new as the program wants (python --version)"
	}},
	{"command", func(s symptoms) string {
		script, missing := s.said("can't open file '*': [Errno 2]", "can't find '__main__' module in '*'")
		switch {
		case missing:
			return "the script " + printable.Output(script) + " is not there: the path counts from the workers' working directory"
		case s.exit.Signal != 0:
		case s.exit.Code == errhint.NotExecuted:
			return "the command cannot be executed: does it have execute permission (chmod +x), is it built for this " +
				"machine, is its file system mounted noexec?"
		case s.exit.Code == errhint.NotFound:
			return "a command was not found: check its spelling, PATH, and the interpreter in the script's first line"
		}
		return ""
	}},
	whenSaid("not-initialized",
		"torch.distributed is used before it is set up, or without what it is set up by: call init_process_group first, and start "+
			"the program by muster run or torchrun, which set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT",
		"Default process group has not been initialized", "environment variable * expected, but not set"),
	whenSaid("nccl-usage",
		"NCCL was called in a way that it refuses: two ranks may use one device (call torch.cuda.set_device(LOCAL_RANK)), or ranks "+
			"disagree about the group; NCCL_DEBUG=WARN says more",
		"Duplicate GPU detected", "ncclInvalidUsage", "ncclInvalidArgument"),
	whenSaid("nccl-system",
		"a call of NCCL to the system, the driver or the network failed: run with NCCL_DEBUG=INFO to see which one; look at the "+
			"interface (NCCL_SOCKET_IFNAME), /dev/shm, locked memory (ulimit -l) and the device (muster check)",
		"unhandled system error (run with NCCL_DEBUG", "unhandled cuda error (run with NCCL_DEBUG", "ncclSystemError",
		"ncclUnhandledCudaError", "No usable listening interface found"),
	whenSaid(causeTimeout,
		"this worker has waited in vain for another one, and is not to blame: look at the rank that did not come, at whether all "+
			"ranks call the same collectives in the same order, and at the network between them (muster diagnose, --hang-timeout)",
		// NCCL's watchdog, gloo, the store: torch/csrc/distributed/c10d, gloo/transport/tcp
		"Watchdog caught collective operation timeout", "Some NCCL operations have failed or timed out",
		"timed out in blocking wait", "Timed out waiting *ms for ", "Application timeout caused pair closure",
		"failed to pass monitoredBarrier", "Connect timeout [", "wait timeout after *ms, keys:", "barrier timeout after *ms, key:",
		"Timed out after *seconds waiting for clients", "Gloo connectFullMesh failed", "DistStoreError: Socket Timeout",
		"DistNetworkError: Socket Timeout", "client socket has timed out after"),
	whenSaid(causeConnectionLost,
		"another worker went away while this one was talking to it: look for what became of it; if it ended well, it "+
			"left before the others were done (do all ranks run the same number of steps?)",
		// gloo: transport/tcp/pair.cc
		"Connection closed by peer [", "Read error [*Connection reset by peer", "Socket closed [",
		"writev [*Connection reset by peer", "writev [*Broken pipe",
		// PyTorch's store: torch/csrc/distributed/c10d/Utils.hpp; before 2.x its errors had no class of their own
		"Connection was likely closed. Did the remote server", "recv*failed on SocketImpl", "send*failed on SocketImpl",
		"DistNetworkError: Connection reset by peer", "DistNetworkError: Broken pipe",
		"RuntimeError: Connection reset by peer", "RuntimeError: Broken pipe",
		// NCCL, and PyTorch's words for its results
		"remote process exited or there was a network error", "ncclRemoteError", "Connection closed by remote peer",
		"Call to recv *Connection reset by peer", "Call to send *Connection reset by peer", "Call to send *Broken pipe",
		"NCCL communicator was aborted"),
	{"killed", func(s symptoms) string {
		if s.exit.Signal == syscall.SIGKILL {
			return "something outside the job killed the worker: if it was nobody on purpose, see dmesg for the kernel's " +
				"OOM killer and the log of the container run-time or batch system for its limits"
		}
		return ""
	}},
	{"data-loader", func(s symptoms) string {
		if _, ended := s.said("DataLoader worker (pid*killed by signal: ", "DataLoader worker (pid*exited unexpectedly"); !ended {
			return ""
		}
		return "a process of the data loader ended: see what it has written above, try num_workers=0 to have its exception in the " +
			"main process, and see dmesg for memory (fewer workers, less prefetch)"
	}},
	whenSaid("child-failed",
		"a process that the program has started failed: its own words stand above, and its status in the message",
		"subprocess.CalledProcessError", "ProcessExitedException: process", "ProcessRaisedException",
		"concurrent.futures.process.BrokenProcessPool",
		"A process in the process pool was terminated abruptly", "ChildFailedError"),
	whenSaid("broken-checkpoint",
		"a file that is loaded is not whole, or of another model: load an earlier checkpoint, and compare the names and shapes "+
			"that the message tells",
		"PytorchStreamReader failed", "Error(s) in loading state_dict", "EOFError: Ran out of input", "UnpicklingError: ",
		"Weights only load failed"),
	whenSaid("file-missing",
		"a file is not there: relative paths count from the workers' working directory, which --dry-run shows, and a node may lack a "+
			"mount that others have",
		"FileNotFoundError: ", "No such file or directory"),
	whenSaid("permission",
		"the user that the workers run as may not do that: see ls -l (and the directories above it), id, and how the volume is mounted",
		"PermissionError: ", "Permission denied", "Operation not permitted"),
	{"arguments", func(s symptoms) string {
		_, usage := s.said("usage: ")
		said, wrong := s.said(": error: *")
		if !usage || !wrong || s.exit.status() != errhint.Usage {
			return ""
		}
		return "the program does not take its arguments (" + printable.Line(strings.TrimSpace(said), 120) + "): what stands behind the " +
			"script's name is the program's, what stands before it is muster's"
	}},
	{"interrupted", func(s symptoms) string {
		if _, said := s.said("KeyboardInterrupt"); said || s.exit.Signal == syscall.SIGINT {
			return "the worker got SIGINT from outside the job, as Ctrl-C or a batch system sends it"
		}
		return ""
	}},
	{"ended-from-outside", func(s symptoms) string {
		if s.exit.Signal != syscall.SIGTERM && s.exit.Signal != syscall.SIGHUP {
			return ""
		}
		return "somebody outside muster has ended the worker: see the log of the batch system or container run-time (time limit, " +
			"preemption), and whether the program itself kills its process group"
	}},
	{"limit", func(s symptoms) string {
		switch s.exit.Signal {
		case 0:
			if _, large := s.said("File too large"); !large {
				return ""
			}
			fallthrough
		case syscall.SIGXFSZ:
			return "the limit of the size of a file was reached (ulimit -f): raise it, or write smaller files"
		case syscall.SIGXCPU:
			return "the limit of CPU time was reached (ulimit -t): raise it for training"
		default:
		}
		return ""
	}},
	{"crash", func(s symptoms) string {
		if _, raised := thenAborted(s.exit, s.lines); raised {
			return ""
		}
		at := ""
		if where, said := s.said("Fatal Python error: *"); said {
			at = " (" + printable.Line(where, 80) + ")"
		}
		what := map[syscall.Signal]string{
			syscall.SIGSEGV: "native code used memory that is not its own",
			syscall.SIGBUS:  "native code used memory that has nothing behind it, such as a mapped file that was cut",
			syscall.SIGILL:  "a library was built for another kind of processor (compare lscpu of the nodes)",
			syscall.SIGFPE:  "native code divided an integer by zero",
			syscall.SIGABRT: "native code gave up: its reason is in the lines above, such as an assertion or an exception of C++",
			syscall.SIGTRAP: "native code met a trap, as a debugger sets it",
			syscall.SIGSYS:  "a system call is forbidden here (seccomp of the container)",
			syscall.SIGPIPE: "the worker wrote to a pipe or a connection that nobody reads any more",
		}[s.exit.Signal]
		if what == "" {
			return ""
		}
		return what + at + ": PYTHONFAULTHANDLER=1 shows the Python stack, ulimit -c unlimited keeps a core; suspect extensions " +
			"that were built for other versions"
	}},
	{causeDiskFull, func(s symptoms) string {
		if _, found := raised(s.lines); found || s.kernel.FullLogs == "" || s.exit.Signal != 0 {
			return ""
		}
		return "there is no room for the output of the worker, so that what it said at last may be lost: " +
			errhint.MakeRoom(printable.Output(s.kernel.FullLogs), "--log-dir")
	}},
	{"output-lost", func(s symptoms) string {
		if s.exit.Signal != 0 || s.exit.Code != pythonUnflushed {
			return ""
		}
		return "Python could not write the rest of its standard output when the program ended (status 120): something has closed it, " +
			"or its disk is full; the training itself may be whole"
	}},
	{causeException, func(s symptoms) string {
		r, found := raised(s.lines)
		_, aborted := thenAborted(s.exit, s.lines)
		if !found || s.exit.Signal != 0 && !aborted {
			return ""
		}
		text := "the program raised " + printable.Line(r.exception, 80)
		if r.thread != "" {
			text = "the thread " + printable.Line(r.thread, 60) + " of the program ended by " + printable.Line(r.exception, 80)
		}
		if r.at != "" {
			text += " at " + printable.Line(r.at, 80)
		}
		if aborted {
			text += ", and the process then aborted"
		}
		if r.exits {
			return text + ", in a handler of atexit, which runs when the program ends: what it did before may be whole"
		}
		return text + ": its message and the stack above say why; a restart meets it again where code or data are the reason"
	}},
	{causeExit, func(s symptoms) string {
		if s.exit.Signal != 0 || slices.ContainsFunc(s.lines, func(l string) bool { return looksRaised().MatchString(l) }) {
			return ""
		}
		return "the program ended itself with status " + strconv.Itoa(s.exit.Code) +
			" and without an exception: see what it has written, " +
			"and look for sys.exit and os._exit, also in handlers of atexit"
	}},
}

const sharedMemoryHint = "/dev/shm is too small for what DataLoader workers pass to each other: give the container more " +
	"(--shm-size or --ipc=host in Docker, an emptyDir of medium Memory in Kubernetes), or use fewer workers"
