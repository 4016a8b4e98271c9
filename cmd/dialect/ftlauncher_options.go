package dialect

import (
	"slices"
	"strings"
)

const ftAbout = `Starts the workers of a PyTorch job on this node, as ft_launcher of NVIDIA's resiliency extension (NVRx) does, and
watches over them. A training script that uses its RankMonitorClient finds what it talks to: a worker that sends no heartbeat
in time, or is in a section for too long, is looked at, explained, and ended.

Flags come before the training script; everything behind it belongs to the script. Dashes and underscores in names are
the same; names cannot be abbreviated. Torchrun's flags, and --ft-cfg-path, can be set by a variable, MUSTER_<FLAG> or
PET_<FLAG> (1 and 0 for flags without a value); the command line wins, then MUSTER_. What the file of --ft-cfg-path says
counts where no flag says it. Flags of muster itself stand in front of the launcher's name.
`

// groupFT is the heading of the options of NVRx in the help text.
const groupFT = "Heartbeats and sections (NVRx)"

// ftKey is one of NVRx's settings: a key of its configuration, or a flag.
type ftKey struct {
	key, arg, help string
	// idle says why it has no effect here, which is told; empty: it has one, or nobody misses it.
	idle string
	// flagOnly and fileOnly say where it can stand, where that is not both; variables that a variable stands for it.
	flagOnly, fileOnly, variables bool
}

// Keys that the code reads.
const (
	ftCfgPath    = "cfg_path"
	ftEvery      = "workload_check_interval"
	ftFirst      = "initial_rank_heartbeat_timeout"
	ftHeartbeat  = "rank_heartbeat_timeout"
	ftSections   = "rank_section_timeouts"
	ftOutside    = "rank_out_of_section_timeout"
	ftFactor     = "safety_factor"
	ftSignal     = "rank_termination_signal"
	ftLogLevel   = "log_level"
	ftNoAnswers  = "skip_section_response"
	ftHook       = "install_exception_hook"
	ftWarmup     = "num_warmup_iterations"
	ftCycles     = "max_no_progress_cycles"
	ftCheckpoint = "checkpoint_iteration_file"
	ftHealth     = "node_health_check_endpoint"
	ftStatus     = "no_restart_exit_code"
	ftSegment    = "segment"
)

const (
	ftNoNIC         = "muster does not watch links of InfiniBand; --network-check in front of the launcher measures them before the start"
	ftNoStorage     = "--health-command in front of the launcher asks a command of the site before each round"
	ftNoAttribution = "no service is asked why a job failed: muster explains hangs and failures itself"
	ftNoFunnel      = "--log-dir, --redirects and --tee arrange the workers' output"
	ftNoMemory      = "the next workers start when all processes of the last ones have ended, and the driver has freed their memory"
)

// ftKeys are the settings of nvidia-resiliency-ext 0.7.0, in the order of its own: launcher.py, cli_args.py, config.py.
var ftKeys = []ftKey{
	{key: ftCfgPath, arg: "FILE", flagOnly: true, variables: true, help: "A YAML file with a map fault_tolerance at any depth, " +
		"whose keys are those of the flags below without ft."},
	{key: ftFirst, arg: "SECONDS|none", help: "Time from RankMonitorClient.init_workload_monitoring to the first heartbeat."},
	{key: ftHeartbeat, arg: "SECONDS|none", help: "Time between two heartbeats."},
	{key: ftSections, arg: "NAME:SECONDS,...", help: "How long each section may last. Clients tell of those that are named here alone. A " +
		"section warmup stands for the first steps."},
	{key: ftOutside, arg: "SECONDS|none", help: "How long a worker may be in no section."},
	{key: ftFactor, arg: "X", help: "By how much a client multiplies the longest time that it has seen, when it calculates time-outs. " +
		"Default: 5."},
	{key: ftSignal, arg: "SIGNAL", help: "What a worker gets that takes longer. Default: SIGKILL."},
	{key: ftEvery, arg: "SECONDS", help: "After how long it gets it again. muster sees at once when a time-out is over. Default: 5."},
	{key: ftNoAnswers, arg: "true|false", help: "Clients wait for no answer to heartbeats and sections. Default: true."},
	{key: ftHook, arg: "true|false", help: "Clients end their process with os._exit after an exception. Default: false."},
	{key: ftWarmup, fileOnly: true},
	{key: ftLogLevel, arg: "LEVEL", help: "How much muster says: DEBUG, INFO, WARNING, ERROR. Default: LOGLEVEL, else WARNING."},
	{key: ftCycles, arg: "N", help: "muster's --crash-loop N-1: that many restarts in a row may bring the job no further. 0: any number."},
	{key: ftHealth, arg: "PATH", flagOnly: true, help: "muster's --health-endpoint: a health service of the site is asked before each " +
		"round."},
	{key: ftCheckpoint, arg: "FILE", idle: "muster sees steps that programs tell (muster.progress), and checkpoints that are saved " +
		"through it"},
	{key: "min_progress_iterations", arg: "N", idle: "every step that is greater than all before is progress"},
	{key: ftStatus, arg: "N", flagOnly: true, idle: "the status is 93"},
	{key: ftSegment, arg: "N", idle: "ranks follow the switches of --topology-file, in front of the launcher"},
	{key: "restart_policy", arg: "any-failed", flagOnly: true},
	{key: "rdzv_impl", arg: "barrier", flagOnly: true},
	{key: "ignore_missing_cfg", flagOnly: true},
	{key: "restart_check_interval", arg: "SECONDS"},
	{key: "check_remaining_processes", arg: "true|false"},
	{key: "node_health_check_interval", arg: "SECONDS", idle: "muster sees failures of GPUs as their driver tells " +
		"them, and checks a node before a round"},
	{key: "enable_nic_monitor", arg: "true|false", idle: ftNoNIC},
	{key: "enable_nic_healthcheck", arg: "true|false", idle: ftNoNIC},
	{key: "pci_topo_file", arg: "FILE", idle: ftNoNIC},
	{key: "link_down_path_template", arg: "PATH", idle: ftNoNIC},
	{key: "link_state_path_template", arg: "PATH", idle: ftNoNIC},
	{key: "enable_dist_storage_healthcheck", arg: "true|false", idle: ftNoStorage},
	{key: "storage_health_check_path", arg: "PATH,...", flagOnly: true, idle: ftNoStorage},
	{key: "storage_healthcheck_path", fileOnly: true, idle: ftNoStorage},
	{key: "segment_health_check_dir", arg: "DIR", idle: ftNoStorage},
	{key: "numa_bind_strict", arg: "true|false", idle: "--numa-binding binds workers"},
	{key: "gpu_memory_reclaim_timeout", arg: "SECONDS", idle: ftNoMemory},
	{key: "gpu_memory_tolerance_mb", arg: "MB", idle: ftNoMemory},
	{key: "gpu_memory_poll_interval", arg: "SECONDS", idle: ftNoMemory},
	{key: "attribution_endpoint", arg: "URL", idle: ftNoAttribution},
	{key: "attribution_startup_timeout", arg: "SECONDS", flagOnly: true, idle: ftNoAttribution},
	{key: "attribution_llm_api_key_file", arg: "FILE", flagOnly: true, idle: ftNoAttribution},
	{key: "attribution_llm_base_url", arg: "URL", flagOnly: true, idle: ftNoAttribution},
	{key: "attribution_llm_model", arg: "NAME", flagOnly: true, idle: ftNoAttribution},
	{key: "attribution_analysis_backend", arg: "NAME", flagOnly: true, idle: ftNoAttribution},
	{key: "attribution_stop_action", arg: "ACTION", idle: ftNoAttribution},
	{key: "attribution_log_level", arg: "LEVEL", flagOnly: true, idle: ftNoAttribution},
	{key: "attribution_export_url", arg: "URL", idle: ftNoAttribution},
	{key: "cycle_info_dir", arg: "DIR", idle: "--status-file and --events in front of the launcher tell of rounds, and " +
		"NVRX_CURRENT_CYCLE_INFO is not set"},
	{key: "per_cycle_applog_prefix", arg: "PATH", flagOnly: true, variables: true, idle: ftNoFunnel},
	{key: "nvrx_logfile", arg: "FILE", flagOnly: true, variables: true, idle: ftNoFunnel},
	{key: "enable_log_server", arg: "true|false", flagOnly: true, variables: true, idle: ftNoFunnel},
	{key: "log_server_port", arg: "PORT", flagOnly: true, variables: true, idle: ftNoFunnel},
	{key: "log_aggregator_count", arg: "N", flagOnly: true, variables: true, idle: ftNoFunnel},
	{key: "log_leaf_max_queue_chunks", arg: "N", flagOnly: true, variables: true, idle: ftNoFunnel},
	{key: "log_server_log_prefix", arg: "PATH", flagOnly: true, variables: true, idle: ftNoFunnel},
	{key: "log_server_graceful_shutdown_timeout", arg: "SECONDS", flagOnly: true, variables: true, idle: ftNoFunnel},
}

// ftWords are the values of ft_launcher's options; ft are those of NVRx's settings, by their keys.
type ftWords struct {
	torchrunWords
	termTimeout, stopTimeout value
	ft                       map[string]*value
}

// ftOptions are torchrun's options, with other defaults for some, and what NVRx adds.
func ftOptions(w *ftWords) []option {
	options := torchrunOptions(&w.torchrunWords)
	for i := range options {
		switch o := &options[i]; o.word {
		case &w.nnodes:
			o.help = "Number of nodes, or MIN:MAX: MIN nodes train, and up to MAX-MIN more are held ready to take a lost one's place."
		case &w.rdzvBackend:
			o.def = backendC10d
		case &w.rdzvEndpoint:
			o.help += " Default: --master-addr and --master-port."
		case &w.masterAddr, &w.masterPort:
			o.help = "Where the nodes meet, if --rdzv-endpoint does not say it."
		}
	}
	other := slices.IndexFunc(options, func(o option) bool { return o.group == groupOther })
	more := []option{
		{
			name: "term-timeout", word: &w.termTimeout, kind: kindFloat, noDefault: true, variables: true, arg: "SECONDS",
			group: groupExits,
			help:  "Another name of --shutdown-timeout.",
		},
		{
			name: "workers-stop-timeout", word: &w.stopTimeout, kind: kindFloat, noDefault: true, variables: true, arg: "SECONDS",
			group: groupExits,
			help:  "Another name of --shutdown-timeout. Of two the longer one counts.",
		},
	}
	w.ft = map[string]*value{}
	for _, k := range ftKeys {
		if k.fileOnly {
			continue
		}
		w.ft[k.key] = new(value)
		o := option{
			name: "ft-" + strings.ReplaceAll(k.key, "_", "-"), word: w.ft[k.key], noDefault: true, variables: k.variables, arg: k.arg,
			group: groupFT, help: k.help, rare: true,
		}
		switch {
		case k.arg == "":
			o.kind = kindFlag
		case k.key == "restart_policy" || k.key == "rdzv_impl":
			o.choices = []string{k.arg}
		}
		switch {
		case o.help != "":
		case k.idle != "":
			o.help = "No effect: " + k.idle + "."
		default:
			o.help, o.moot = "Nothing else is done here.", "nothing else is done here"
		}
		more = append(more, o)
	}
	return slices.Concat(options[:other], more, options[other:])
}
