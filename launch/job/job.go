package job

import (
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"
)

// Job is what the user asked for: one command, how many copies of it, and the rules they live under. A dialect makes it
// from argv and environment alone; nothing in it was looked up on the machine (Plan does that). A Job is not changed
// after Validate.
type Job struct {
	// Dialect is the command line the job was written in, such as "torchrun" or "run". --dry-run names it.
	Dialect string
	// RunID names the job towards workers (TORCHELASTIC_RUN_ID) and in directories. Empty: a random one is made.
	RunID string
	// Command is what every worker runs.
	Command Command
	// Nodes is how many nodes take part.
	Nodes Range
	// Procs is the number of workers on this node as the user wrote it: a number, auto, cpu, or the accelerators to
	// count.
	Procs string
	// Platform names the platform that started this process and whose variables were taken into account, empty for
	// none. Workers then inherit none of the variables by which launchers tell processes apart.
	Platform string
	// Role is the role name of the workers (ROLE_NAME), "default" unless given.
	Role string
	// Meeting says where the workers' store listens.
	Meeting Meeting
	// Hosts are the machines on which muster itself starts the nodes.
	Hosts Hosts
	// Reached are hosts that a launcher in Command reaches and that come and go; nil for none.
	Reached *ReachedHosts
	// Env says what is different in the workers' environment, Python which one they run, Debug what runs in their
	// place.
	Env    EnvRules
	Python PythonRules
	Debug  DebugRules
	// NodeEnv are variables of all workers of this node, WorkerEnv those of each of them by local rank; nil: none. They
	// are what Hosts.Nodes has for the node that this copy of the job is for, and win over Env.Set and over
	// torchelastic's.
	NodeEnv   []Var
	WorkerEnv [][]Var
	// Restart are the rules for worker exits.
	Restart RestartRules
	// Warm says how workers come to their imports.
	Warm WarmRules
	// Bind says which CPUs workers are bound to.
	Bind BindRules
	// Check says what is tested before workers start.
	Check CheckRules
	// Checkpoint says how workers keep checkpoints through muster.
	Checkpoint CheckpointRules
	// Stop are the rules for ending workers, Hang those for such as show no sign of life.
	Stop StopRules
	Hang HangRules
	// Health says whom of the site is asked whether a node is fit.
	Health HealthRules
	// Logs says where the workers' output goes.
	Logs LogRules
	// Sidecars are commands, each as its words, that run beside the workers on the node with group rank 0.
	Sidecars [][]string
	// InheritStdin gives the workers our standard input, as torchrun does; otherwise they read /dev/null, unless a
	// job's only worker is on a terminal: it reads from there where NoStdin does not forbid it.
	InheritStdin, NoStdin bool
	// Isolate shows each worker the accelerator of its local rank alone.
	Isolate bool
	// Devices says which accelerators all workers of a node are told of.
	Devices DeviceRules
	// VirtualLocalRank gives every worker LOCAL_RANK=0 and one entry of CUDA_VISIBLE_DEVICES.
	VirtualLocalRank bool
	// Fake is the path of a fake accelerator's spec, empty for the real machine. FakeOnReal allows it on a machine that
	// has a real accelerator.
	Fake       string
	FakeOnReal bool
	// EventLog is "console" to print torchelastic's event records as JSON lines on standard error, or "null".
	EventLog string
	// Watchdog offers the workers torchelastic's file timer, at WatchdogFile or, where that is empty, in the run
	// directory.
	Watchdog     bool
	WatchdogFile string
	// StatusFile is the path where the job's state is kept as JSON, empty for none.
	StatusFile string
	// StatusMark stands in front of each state of the job, as a line of JSON on standard error; empty: none is written there.
	StatusMark string
	// See says where the job can be seen, beside the commands that can always see it.
	See SeeRules
	// CompatExit gives status 1 for every failure of the job, as the replaced launchers do.
	CompatExit bool
	// Environ is the environment the job was asked in, as "NAME=VALUE"; workers inherit it.
	Environ []string
	// Warnings are what the dialect noticed and passed over, such as a flag that has no effect beside another, one
	// sentence each.
	Warnings []string
	// Sources says where each flag's value came from, by the flag's name with dashes. A name that is missing here has
	// its default.
	Sources Sources
}

// SeeRules say where a job can be seen.
type SeeRules struct {
	// HTTP is the address of its page, EventsFile the file to which its events are appended; empty for none.
	HTTP, EventsFile string
	// Summary is the file to which a summary is written when it has ended, empty for none.
	Summary string
	// Keep is how long after the end of the job its events and its last status are kept.
	Keep time.Duration
}

// MaxSidecars is the most that a job has.
const MaxSidecars = 16

// MaxProcs is the largest number of workers on one node that is taken for meant.
const MaxProcs = 4096

// Alone reports whether this node is the whole job: its agent meets nobody, and the workers' store listens at the host
// and port of Meeting. All other jobs meet at its endpoints: those of several nodes or with spares, those on etcd, and
// one node that was told to use somebody else's store.
func (j *Job) Alone() bool {
	m := &j.Meeting
	switch {
	case m.Backend == "standalone":
		return true
	case j.Nodes.Max > 1, m.Spares > 0, m.Backend == "etcd", m.DLRover.Certain():
		return false
	}
	return m.IsHost == nil || *m.IsHost
}

// CanSpareNodes reports whether the job may go on with fewer nodes than it can have, or has others ready for them.
func (j *Job) CanSpareNodes() bool { return j.Nodes.Min < j.Nodes.Max || j.Meeting.Spares > 0 }

// Range is an inclusive range of node counts, Min ≤ Max.
type Range struct{ Min, Max int }

// CommandKind says how Command.Name becomes an argv.
type CommandKind int

// The kinds of command.
const (
	Program CommandKind = iota // Name is executed itself
	Script                     // python -u NAME
	Module                     // python -u -m NAME
	RunPath                    // python -u -c <runpy.run_path of NAME>, torchrun's --run-path
)

// Command is the training command.
type Command struct {
	Kind CommandKind
	// Name is the program, the script's path or the module's name; Args is what follows it.
	Name string
	Args []string
	// Interpreters are the candidates for the Python that runs Script, Module and RunPath, best first: paths or names
	// looked up in the worker's PATH. The first that exists is taken.
	Interpreters []string
	// StartMethod is what multiprocessing's start method is set to for RunPath: spawn, fork or forkserver.
	StartMethod string
	// LocalRankFlag is put before Args with "=<local rank>" behind it, such as "--local-rank"; empty for none.
	LocalRankFlag string
	// Substitute replaces ${local_rank} in Args as torchrun does.
	Substitute bool
	// Title is what reports call the command, where Name is a shell around it, or the command has secrets in it; empty:
	// Name, or its script.
	Title string
	// Links are names under which muster lies in the directory PodDir of the run directory, for the command to put that
	// into its PATH.
	Links []string
}

// PodDir is the directory in the run directory with Command.Links.
const PodDir = "pod"

// Meeting says how the job's nodes meet, and where the store listens that workers reach as MASTER_ADDR:MASTER_PORT.
type Meeting struct {
	// Backend is "standalone" (this node alone), "static" (fixed node ranks), "c10d" (a store that agents of torchrun
	// may share), "muster" (such a store for our agents only) or "etcd" (v3).
	Backend string
	// Host and Port are, for a standalone job, where the workers' store listens. Empty: 127.0.0.1; 0: a free port. Of a
	// node of several, Port is the one at which that store listens and no other; 0: WorkerPorts.
	Host string
	Port int
	// Endpoints are where the store of several nodes listens, or etcd's members. The first of several is the store's
	// host, the others are where it goes when that one dies.
	Endpoints []Endpoint
	// NodeRank is the group rank that this node is to have in a static job, else -1.
	NodeRank int
	// Prefers is one more than the group rank that this node would like to have where ranks are given when the nodes
	// meet; 0: any.
	Prefers int
	// Wants is how many nodes the job is to have, where its launcher has started this one for that; 0 else.
	Wants int
	// WorkerPorts are where the store of this node's workers may listen unless Port or Endpoints say it, best first;
	// where there are none, or none is free, it has any free port.
	WorkerPorts []int
	// LocalAddr is the address by which the other nodes reach this one, Iface the network interface that has it. Both
	// empty: the address from which the store is reached.
	LocalAddr, Iface string
	// ExportIface tells workers to use the interface that has that address.
	ExportIface bool
	// Host or client of the first endpoint is decided by whether its address is ours, unless IsHost says it.
	IsHost *bool
	// JoinTimeout bounds a meeting (600 s), CloseTimeout the good-byes (30 s), ReadTimeout what torchrun's agents may
	// take to answer within a meeting (60 s), HeartbeatTimeout the write of one heartbeat (5 s). LastCall is how long a
	// round that has enough nodes waits for more after the last one came; 0 leaves it to the protocol.
	JoinTimeout, CloseTimeout, ReadTimeout, HeartbeatTimeout, LastCall time.Duration
	// KeepAlive is the time between two heartbeats of a node, which is lost after KeepAliveAttempts of them; 0 leaves
	// it to the protocol.
	KeepAlive         time.Duration
	KeepAliveAttempts int
	// Spares is how many nodes are held ready to take a lost one's place, NodeUnit what the number of nodes in a round
	// is a multiple of; 0 and 1 for none.
	Spares, NodeUnit int
	// Topology is the path of a file that names the switches, TokenFile of one that holds the job's token; empty for
	// none.
	Topology, TokenFile string
	// StoreAllow are the networks whose clients the stores serve; none: all. On one node see AllowsLoopback.
	StoreAllow []netip.Prefix
	// StoreLimit is how many bytes each of the stores holds at most; 0 for their default.
	StoreLimit int64
	// Etcd says how etcd is spoken to.
	Etcd EtcdAccess
	// DLRover says who this node is to a master of DLRover, if there is one.
	DLRover DLRoverMaster
	// Conf are the settings of --rdzv-conf as they were given, for --dry-run.
	Conf map[string]string
}

// AllowsLoopback reports whether StoreAllow names loopback. On one node the store serves processes of this user and of
// root, which the kernel tells apart, and those of all users where that is so.
func (m *Meeting) AllowsLoopback() bool {
	return slices.ContainsFunc(m.StoreAllow, func(p netip.Prefix) bool { return p.Addr().IsLoopback() })
}

// Endpoint is where something listens: a name or an address, and a port.
type Endpoint struct {
	Host string
	Port int
}

// String returns host:port, an IPv6 address in brackets.
func (e Endpoint) String() string { return net.JoinHostPort(e.Host, strconv.Itoa(e.Port)) }

// EtcdAccess says how etcd is spoken to. Paths are empty for none.
type EtcdAccess struct {
	// TLS is on where any of the files is given, or asked for by itself.
	TLS                   bool
	CACert, Cert, CertKey string
	// User authenticates with the password in PasswordFile.
	User, PasswordFile string
	// Prefix stands in front of every key, "/muster/" by default.
	Prefix string
}

// StopRules say how workers are ended.
type StopRules struct {
	// Grace is the time between the first signal and SIGKILL. Default 30 s.
	Grace time.Duration
	// Handled are the signals that end the job when muster receives them: they are forwarded to the workers, and after
	// Grace the rest is killed. Other signals that can be forwarded (SIGUSR1, SIGUSR2) go to the workers and end
	// nothing.
	Handled []syscall.Signal
}

// Streams is a set of a worker's output streams.
type Streams uint8

// The streams, with the numbers torchrun's --redirects and --tee use for them.
const (
	NoStream Streams = 0
	Stdout   Streams = 1
	Stderr   Streams = 2
	Both     Streams = 3
)

// StreamMap gives the streams of each local rank: ByRank where the rank is named there, else Default.
type StreamMap struct {
	Default Streams
	ByRank  map[int]Streams
}

// For returns the streams of one local rank.
func (m StreamMap) For(localRank int) Streams {
	if s, ok := m.ByRank[localRank]; ok {
		return s
	}
	if m.ByRank != nil {
		return NoStream // a map names every rank it means
	}
	return m.Default
}

// Any reports whether a stream of any rank is named.
func (m StreamMap) Any() bool {
	for _, s := range m.ByRank {
		if s != NoStream {
			return true
		}
	}
	return m.ByRank == nil && m.Default != NoStream
}

// LogRules say where the workers' output goes.
type LogRules struct {
	// Dir is where run directories are made: empty for a temporary one, os.DevNull for none at all.
	Dir string
	// Node is in the names of run directories, where those of several nodes lie beside each other; empty for nothing.
	Node string
	// Redirect streams go to files only, Tee streams to files and the console, with Prefix.
	Redirect, Tee StreamMap
	// Ranks are the local ranks whose output is shown; nil shows all. A stream that is neither shown nor written to a
	// file goes to /dev/null.
	Ranks []int
	// Prefix is the template in front of each line shown: ${role_name}, ${local_rank}, ${rank}, ${hostname},
	// ${stream}. Empty means "[${rank}] " with PrefixAll, else torchrun's "[${role_name}${local_rank}]:".
	Prefix string
	// PrefixAll prefixes what is shown without Tee as well. The native command does, torchrun does not.
	PrefixAll bool
	// Live says that what is shown reaches a terminal, though it goes there through a pipe: progress bars move there.
	Live bool
	// Color gives each rank's prefix a color.
	Color bool
	// RankDir is a directory in which each worker has one file for both of its streams, as DeepSpeed names it, and
	// nothing of it is shown; empty for none. Tee and Redirect count for nothing then.
	RankDir string
	// Stamp puts the time in front of the prefix.
	Stamp bool
	// RankFiles is a directory in which the files of a worker are rank.<rank>/stdout and stderr, its rank with
	// RankDigits digits, in place of those in the directory of the run. What stands there already is overwritten.
	// Empty: none.
	RankFiles  string
	RankDigits int
	// KeepStdout and KeepStderr are the lists of --duplicate-stdout-filters and --duplicate-stderr-filters: tee'd lines
	// that contain one of the strings also go to filtered_stdout.log and filtered_stderr.log.
	KeepStdout, KeepStderr []string
}

// FileAll has all output of the workers written to files, and shown, unless somebody has said by --tee or --redirects
// what goes to files: nothing (0) is an answer, too. It is for a job with a directory that only files make sense of.
// The sources of the job are known.
func (j *Job) FileAll() {
	if j.Sources["tee"].Kind == FromDefault && j.Sources["redirects"].Kind == FromDefault {
		j.Logs.Tee = StreamMap{Default: Both}
	}
}

// RankFilesOf is the directory of a rank's files in RankFiles.
func (r *LogRules) RankFilesOf(rank int) string {
	return filepath.Join(r.RankFiles, fmt.Sprintf("rank.%0*d", r.RankDigits, rank))
}

// RankPrefix is muster's own, and that of LogRules.PrefixAll; HostRankPrefix tells nodes apart, too.
const (
	RankPrefix     = "[${rank}] "
	HostRankPrefix = "[${hostname} ${rank}] "
)

// WarmRules say whether workers are forked from a process that has imported their modules, the template. The zero value
// starts every worker by itself.
type WarmRules struct {
	// Auto imports what the script begins with, as far as it is installed. Modules are imported after that.
	Auto    bool
	Modules []string
	// Doubted are those of Modules whose names may be a slip of the pen from another word of --warm, each with that
	// word: where no worker could import it, the job is refused.
	Doubted map[string]string
	// Restarts leaves the first start as it is, and makes the template beside the training. No start waits for it.
	Restarts bool
	// Wait bounds how long a start waits for the template; then the workers start by themselves.
	Wait time.Duration
}

// Wanted reports whether anything is to be imported ahead.
func (w WarmRules) Wanted() bool { return w.Auto || len(w.Modules) > 0 }

// BindRules say whether each worker is bound to the CPUs near its accelerator. The zero value binds none.
type BindRules struct {
	// Mode is torchrun's --numa-binding: node, socket, exclusive or core-complex; or BindCores; empty for none.
	Mode string
	// CPUs are those that BindCores divides, as in 0,2-5; empty: one of each core that muster may use.
	CPUs string
	// Fallback lets all workers of a node run unbound where one of them cannot be bound; otherwise the job is refused
	// there.
	Fallback bool
}

// BindCores is the mode of BindRules that gives the workers of a node equal shares of its CPUs, in the order of their
// ranks and whatever accelerators they have, and tells them in OMP_NUM_THREADS how many they got.
const BindCores = "cores"

// RestartPolicy says which worker exits start the group anew.
type RestartPolicy string

// The restart policies.
const (
	RestartNever     RestartPolicy = "never"
	RestartOnFailure RestartPolicy = "on-failure" // any exit but 0
	RestartAlways    RestartPolicy = "always"     // exit 0 too; needs a deadline
	RestartExitCode  RestartPolicy = "exit-code"  // the codes of Retryable

	// A lost node leads to a new round under every policy but never; under these, exits do not, or those of Retryable
	// only.
	RestartOnNodeFail           RestartPolicy = "on-node-fail"
	RestartOnNodeFailOrExitCode RestartPolicy = "on-node-fail-or-exit-code"
)

// RestartScope says who starts anew after a worker failed.
type RestartScope string

// The restart scopes.
const (
	ScopeWorld   RestartScope = "world"   // every node, in a new round
	ScopeNode    RestartScope = "node"    // the workers of the same node, in the same round
	ScopeProcess RestartScope = "process" // that worker alone, in the same round
)

// Quorum says whose exits decide, in success and fail policies.
type Quorum string

// The quorums.
const (
	QuorumAll   Quorum = "all"
	QuorumAny   Quorum = "any"
	QuorumRank0 Quorum = "rank0"
	QuorumNone  Quorum = "none"
)

// CleanPolicy says what is ended when the job is decided.
type CleanPolicy string

// The clean policies.
const (
	CleanAll        CleanPolicy = "all"        // every worker and everything a worker left behind
	CleanUnfinished CleanPolicy = "unfinished" // workers still running and what descends from them
	CleanNone       CleanPolicy = "none"       // nothing: muster waits until the workers end by themselves
)

// Unlimited is the number of restarts of a job file without a limit: nobody reaches it.
const Unlimited = 1_000_000_000

// RestartRules are the rules for worker exits and lost nodes.
type RestartRules struct {
	Policy RestartPolicy
	Scope  RestartScope
	// MaxRestarts is torchrun's --max-restarts: restarts because of a failure on this node, TORCHELASTIC_MAX_RESTARTS.
	// ≥ 0.
	MaxRestarts int
	// ReplaceLimit bounds how often a lost node leads to a new round, BackoffLimit restarts and losses of the whole job
	// together; negative: no limit of its own.
	ReplaceLimit, BackoffLimit int
	// LossLimit is how many restarts and lost nodes together the job may have had when a node is lost; 0: no limit of
	// its own.
	LossLimit int
	// RankLimit bounds how often the node of each group rank may be replaced; 0: no limit of its own. A job that goes
	// on with fewer nodes has replaced nobody.
	RankLimit int
	// Window makes the limits count only restarts within the last Window, and a group that ran healthy for that long
	// starts with no delay again. 0: limits count all restarts, and delays are never reset.
	Window time.Duration
	// Delay is the pause before the second restart; the first has none. It is multiplied by DelayFactor from restart to
	// restart up to DelayMax, with jitter. A group that ran ten times as long as the pause that is due starts at once,
	// and pauses grow anew.
	Delay       time.Duration
	DelayFactor float64
	DelayMax    time.Duration
	// CrashLoop is how many restarts in a row may bring the job no further; 0: any number.
	CrashLoop int
	// Retryable are the exit codes that RestartExitCode retries; Fatal codes are never retried under any policy. A
	// signal n counts as 128+n.
	Retryable, Fatal ExitCodes
	// Success decides when the job has succeeded, Fail when a failure ends it (or uses up a restart).
	Success, Fail Quorum
	// Linger is how long the others may go on after Success was decided early.
	Linger time.Duration
	// Clean says what is ended when the job is decided.
	Clean CleanPolicy
	// Deadline bounds the job from its first start; 0: none.
	Deadline time.Duration
}
