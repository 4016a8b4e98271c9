package job

import (
	"time"

	"muster/internal/hosts"
)

// Hosts are the machines on which muster itself starts the job's nodes, and how it reaches them. The zero value has
// none: this process is a node, and somebody else starts the others.
type Hosts struct {
	// Nodes are the nodes in the order of their ranks. Those behind the first Job.Nodes.Max of them are spares.
	Nodes []Node
	// SSH says how machines other than this one are reached.
	SSH SSHRules
	// StartTimeout is how long machines that are not up yet are waited for.
	StartTimeout time.Duration
	// Dir is the working directory on every machine; empty: ours.
	Dir string
	// CollectLogs is the directory into which the workers' log files of all nodes are brought; empty: they stay there.
	CollectLogs string
	// CollectLimit is how many bytes of log files are brought there, of all nodes together; 0: a GiB.
	CollectLimit int64
	// Preflight compares what the machines have, such as their Python, before workers start.
	Preflight bool
}

// Node is one node of a job that muster starts on a machine.
type Node struct {
	hosts.Host
	// Procs is the number of its workers, as Job.Procs has it; empty: Job.Procs.
	Procs string
	// Env are variables of all its workers, WorkerEnv those of single ones by local rank. They win over EnvRules,
	// and are Job.NodeEnv and Job.WorkerEnv of the copy of the job that goes to the node.
	Env       []Var
	WorkerEnv [][]Var
	// Replica are the names of the replica of a job file that the node is, such as train-worker-1 and worker-1; nil for none.
	Replica []string
}

// SSHRules say how machines are reached by ssh.
type SSHRules struct {
	// Program is a program that takes ssh's arguments and is used in its place, with arguments of its own, such as
	// {"ssh", "-q"}; empty: muster speaks the protocol itself.
	Program []string
	// User, Port and Identity (the path of a private key) hold for machines that say nothing else; empty and 0 leave
	// them to ssh's configuration.
	User     string
	Port     int
	Identity string
	// HostKeys is what becomes of machines whose key is not known: "accept-new" (the default), "strict" or "off".
	HostKeys string
	// Options are further options as ssh's -o takes them, "Name=value".
	Options []string
	// Parallel bounds how many machines are reached at once. Default 64.
	Parallel int
}

// EnvMode says what workers on other machines inherit.
type EnvMode string

// The modes.
const (
	EnvLauncher EnvMode = "launcher" // the machine's own environment, over it that of the launcher less EnvRules.Deny
	EnvInherit  EnvMode = "inherit"  // the machine's own, over it what EnvRules.Pass names of the launcher's
	EnvClean    EnvMode = "clean"    // HOME, LANG, LOGNAME, PATH, SHELL, TERM, TZ and USER of the machine, and what Pass names
)

// EnvRules say what is different in the workers' environment from what muster was started in. They hold on every node.
type EnvRules struct {
	// Mode is what nodes on other machines begin with; empty: EnvLauncher. On this machine it is the own environment,
	// or the named part of it with EnvClean.
	Mode EnvMode
	// Pass and Deny are patterns of variables' names, as path.Match has them. Deny keeps variables of the launcher from
	// other machines; so do HostNames, which Pass wins over. With EnvClean, Pass also names what workers here inherit.
	Pass, Deny []string
	// Set are variables that the workers get over what they inherit, later ones over earlier. Those by which
	// torchelastic tells ranks win over them. A value with Expand may name variables set before it, and inherited ones,
	// of its node.
	Set []Var
	// Unset are patterns of the names of variables that the workers do not get from anywhere, torchelastic's among
	// them.
	Unset []string
	// NoDefaults leaves out what torchrun sets where nobody else has: OMP_NUM_THREADS and
	// TORCH_NCCL_ASYNC_ERROR_HANDLING.
	NoDefaults bool
	// Cross tells workers of their node as DeepSpeed does: LOCAL_SIZE, CROSS_RANK and CROSS_SIZE.
	Cross bool
	// Profile has workers told of each other in the variables of another framework, too.
	Profile EnvProfile
}

// DeviceRules say which accelerators all workers of a node are told of, in the variable by which they see them, such as
// CUDA_VISIBLE_DEVICES. The zero value leaves what they inherit.
type DeviceRules struct {
	// List makes the variable list devices by their numbers: Only; or all but Except; or, unless it is set already, as
	// many as there are workers.
	List         bool
	Only, Except []int
	// Variable is the variable's name; empty: that of the accelerators which are found.
	Variable string
}

// PythonRules choose the workers' Python on every node: an interpreter, a virtual environment or a conda environment.
// At most one of them is set.
type PythonRules struct {
	Path string
	// Venv is the directory of a virtual environment, or "auto" for .venv, venv or env in the working directory, or
	// else the one in VIRTUAL_ENV.
	Venv string
	// Conda is the name or the directory of a conda environment.
	Conda string
}

// DebugRules replace the command by one that a person works beside: everything else is prepared as for the job.
type DebugRules struct {
	// On asks for it.
	On bool
	// Command runs in place of the job's, by a shell; empty: sleep until the job is stopped.
	Command string
}
