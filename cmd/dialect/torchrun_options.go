package dialect

import "sync"

// Groups of torchrun's options in the help text.
const (
	groupNodes   = "Nodes and workers"
	groupRdzv    = "Rendezvous"
	groupCommand = "What every worker runs"
	groupExits   = "Restarts and stopping"
	groupLogs    = "Output of the workers"
	groupOther   = "Other"
)

// torchrunWords are the values of torchrun's options, and of torch.distributed.launch's last one.
type torchrunWords struct {
	nnodes, nprocPerNode, nodeRank, standalone, rdzvBackend, rdzvEndpoint, rdzvID, rdzvConf, masterAddr,
	masterPort, localAddr, module, noPython, runPath, startMethod, role, virtualLocalRank, numaBinding,
	maxRestarts, monitorInterval, signalsToHandle, shutdownTimeout, logDir, redirects, tee,
	logLinePrefixTemplate, localRanksFilter, duplicateStdoutFilters, duplicateStderrFilters, logsSpecs,
	eventLogHandler, useEnv value
}

// torchrunRows are torchrun's options for who asks which there are.
var torchrunRows = sync.OnceValue(func() []option { return torchrunOptions(new(torchrunWords)) })

// torchrunOptions are the options of torchrun, as PyTorch 2.15.0 declares them in torch/distributed/run.py: names,
// defaults, choices and which of them have a PET_ variable. "since" is the PyTorch release that brought an option;
// where it is a range, the exact release is not known.
func torchrunOptions(w *torchrunWords) []option {
	return []option{
		{
			name: "nnodes", word: &w.nnodes, def: "1:1", variables: true, arg: "N|MIN:MAX", group: groupNodes,
			help: "Number of nodes, or the least and the most of them: then nodes may come and go while the job runs.",
		},
		{
			name: "nproc-per-node", word: &w.nprocPerNode, def: "1", variables: true, arg: "N|auto|cpu|gpu", group: groupNodes,
			help: "Workers on each node: a number, one per accelerator (gpu), one per CPU (cpu), or one per accelerator where there is " +
				"one and else per CPU (auto).",
		},
		{
			name: "node-rank", word: &w.nodeRank, kind: kindInt, def: "0", variables: true, arg: "N", group: groupNodes,
			help: "Rank of this node with the static rendezvous, from 0; the store is on node 0. Elsewhere the node has it unless " +
				"others have or ask for it, or fewer nodes are there, and says so otherwise.",
		},
		{
			name: "standalone", word: &w.standalone, kind: kindFlag, variables: true, group: groupRdzv,
			moot: "one node without a meeting place is alone already",
			help: "One node with a store of its own on a free port; --rdzv-backend, --rdzv-endpoint and --rdzv-id are ignored. This is " +
				"also what happens on one node when neither an endpoint nor --master-port is given.",
		},
		{
			name: "rdzv-backend", word: &w.rdzvBackend, def: "static", variables: true, suggested: meetingBackends(), arg: "NAME",
			group: groupRdzv,
			help: "How agents meet: static (fixed node ranks), c10d (through a store on one of the nodes, which agents of torchrun may " +
				"share), muster (such a store for muster only), etcd (v3; etcd-v2 and etcd-v3 mean the same, and agents of torchrun " +
				"speak something else there). Backends from Python packages cannot be loaded.",
		},
		{
			name: "rdzv-endpoint", word: &w.rdzvEndpoint, variables: true, arg: "HOST[:PORT],...", group: groupRdzv,
			help: "Where the nodes meet, the same on all of them: port 29400 with c10d and muster, 2379 with etcd; static needs the " +
				"port. Several with commas between are etcd's members, or hosts that take over when the first one dies (not known to " +
				"torchrun).",
		},
		{
			name: "rdzv-id", word: &w.rdzvID, def: "none", variables: true, arg: "ID", group: groupRdzv,
			help: "Name of the job, the same on all its nodes, seen by workers as TORCHELASTIC_RUN_ID.",
		},
		{
			name: "rdzv-conf", word: &w.rdzvConf, variables: true, arg: "KEY=VALUE,...", group: groupRdzv,
			help: "Settings of the rendezvous, such as join_timeout=600 (seconds).",
		},
		{
			name: "master-addr", word: &w.masterAddr, def: "127.0.0.1", variables: true, arg: "HOST", group: groupRdzv,
			help: "With the static rendezvous: address of node 0, where the store listens; on one node only with --master-port. IPv6 in " +
				"brackets.",
		},
		{
			name: "master-port", word: &w.masterPort, kind: kindInt, noDefault: true, variables: true, arg: "PORT", group: groupRdzv,
			help: "With the static rendezvous: the store's port. Default: a free one on one node, 29500 for several.",
		},
		{
			name: "local-addr", word: &w.localAddr, noDefault: true, variables: true, arg: "HOST", since: "2.0", group: groupRdzv,
			help: "Address by which the other nodes reach this one, on one node what workers see as MASTER_ADDR. Default: the one from " +
				"which the meeting place is reached; 127.0.0.1 on one node.",
		},
		{
			name: "module", word: &w.module, short: "m", kind: kindFlag, variables: true, group: groupCommand,
			help: "The script is the name of a Python module, as in python -m.",
		},
		{
			name: "no-python", word: &w.noPython, kind: kindFlag, variables: true, group: groupCommand,
			help: "The script is a program of its own and is run without Python.",
		},
		{
			name: "run-path", word: &w.runPath, kind: kindFlag, variables: true, group: groupCommand,
			help: "Run the script with Python's runpy.run_path in a child that multiprocessing prepared. Wins over --no-python.",
		},
		{
			name: "start-method", word: &w.startMethod, def: "spawn", choices: []string{"spawn", "fork", "forkserver"}, variables: true,
			arg:   "METHOD",
			group: groupCommand,
			moot:  "torchrun, too, reads it with --run-path only",
			help:  "With --run-path: multiprocessing's start method.",
		},
		{
			name: "role", word: &w.role, def: "default", variables: true, arg: "NAME", group: groupCommand,
			help: "Name of the workers' role, seen by them as ROLE_NAME.",
		},
		{
			name: "virtual-local-rank", word: &w.virtualLocalRank, kind: kindFlag, variables: true, since: "2.10 to 2.14",
			group: groupCommand,
			help:  "LOCAL_RANK is 0 for every worker, and CUDA_VISIBLE_DEVICES has only the worker's own device.",
		},
		{
			name: "numa-binding", word: &w.numaBinding, noDefault: true, choices: bindModes(), ownVariable: true, arg: "MODE",
			since: "2.8 or 2.9",
			group: groupCommand,
			help:  bindHelp,
		},
		{
			name: "max-restarts", word: &w.maxRestarts, kind: kindInt, def: "0", variables: true, arg: "N", group: groupExits,
			help: "How often the workers are started anew after a failure.",
		},
		{
			name: "monitor-interval", word: &w.monitorInterval, kind: kindFloat, def: "0.1", variables: true, arg: "SECONDS",
			group: groupExits,
			moot:  "exits are seen at once, and so within every interval",
			help:  "How often torchrun looks at its workers. muster sees exits at once and only checks the number.",
		},
		{
			name: "signals-to-handle", word: &w.signalsToHandle, def: "SIGTERM,SIGINT,SIGHUP,SIGQUIT", variables: true, arg: "LIST",
			since: "2.8 or 2.9",
			group: groupExits,
			help:  "Signals that end the job: they are forwarded to the workers, and what is left after the shutdown timeout is killed.",
		},
		{
			name: "shutdown-timeout", word: &w.shutdownTimeout, kind: kindInt, noDefault: true, variables: true, arg: "SECONDS",
			since: "2.11 to 2.14",
			group: groupExits,
			help:  "Time between the first signal to the workers and SIGKILL. Default: TORCH_ELASTIC_SHUTDOWN_TIMEOUT, else 30.",
		},
		{
			name: "log-dir", word: &w.logDir, noDefault: true, variables: true, arg: "DIR", group: groupLogs,
			help: "Where the directory of this run is made. Default: a temporary one; /dev/null for none.",
		},
		{
			name: "redirects", word: &w.redirects, short: "r", def: "0", variables: true, arg: "SPEC", group: groupLogs,
			help: "Streams that go to files and not to the console: 0 none, 1 stdout, 2 stderr, 3 both, or by local rank, as in 0:3,1:2.",
		},
		{
			name: "tee", word: &w.tee, short: "t", def: "0", variables: true, arg: "SPEC", group: groupLogs,
			help: "Streams that go to files and to the console; SPEC as for --redirects.",
		},
		{
			name: "log-line-prefix-template", word: &w.logLinePrefixTemplate, variables: true, arg: "TEXT", since: "2.10 to 2.14",
			group: groupLogs,
			moot:  "torchrun, too, puts it in front of lines of --tee only",
			help: "What stands in front of each line of --tee; ${role_name}, ${local_rank}, ${rank} and ${hostname} are replaced. " +
				"Default: TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE, else '[${role_name}${local_rank}]:'.",
		},
		{
			name: "local-ranks-filter", word: &w.localRanksFilter, variables: true, arg: "RANKS", since: "2.3", group: groupLogs,
			help: "Local ranks whose output is shown on the console, as in 0,1. Default: all.",
		},
		{
			name: "duplicate-stdout-filters", word: &w.duplicateStdoutFilters, kind: kindList, variables: true, arg: "WORDS",
			since: "2.10", group: groupLogs,
			help: "Lines of --tee with one of these words also go to filtered_stdout.log; two commas stand for one in a word.",
		},
		{
			name: "duplicate-stderr-filters", word: &w.duplicateStderrFilters, kind: kindList, variables: true, arg: "WORDS",
			since: "2.10", group: groupLogs,
			help: "Lines of --tee with one of these words also go to filtered_stderr.log; two commas stand for one in a word.",
		},
		{
			name: "logs-specs", word: &w.logsSpecs, noDefault: true, arg: "NAME", since: "2.3", group: groupLogs,
			help: "A Python class that arranges logs. Not supported: muster loads no Python.",
		},
		{
			name: "event-log-handler", word: &w.eventLogHandler, def: "null", variables: true, arg: "null|console", since: "2.7 to 2.9",
			group: groupOther,
			help:  "Where torchelastic's event records go: nowhere, or to standard error as JSON.",
		},
		{
			name: "print-completion", kind: kindPrint, noDefault: true, choices: completionShells(), arg: "SHELL", since: "2.14",
			group: groupOther,
			help:  "Print a completion script and exit.",
		},
		{name: "help", short: "h", kind: kindHelp, noDefault: true, group: groupOther, help: "Print this text and exit."},
	}
}
