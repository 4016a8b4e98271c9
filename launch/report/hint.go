package report

import (
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

// causeWatchdog is the name of the rule for workers whose own timer has run out.
const causeWatchdog = "watchdog"

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
			"see in its last lines what it was doing, and give what it guards (torch.distributed.elastic.timer.expires) more time if it is only slow"
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
	whenSaid("disk-full",
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
}

const sharedMemoryHint = "/dev/shm is too small for what DataLoader workers pass to each other: give the container more " +
	"(--shm-size or --ipc=host in Docker, an emptyDir of medium Memory in Kubernetes), or use fewer workers"
