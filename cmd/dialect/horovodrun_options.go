package dialect

import "strings"

const horovodAbout = `Starts the workers of a Horovod job on this and other hosts, as horovodrun does with the gloo controller, and watches over
them. With --host-discovery-script or --min-np the job is elastic: hosts come and go, and the workers that stay keep
their processes.

Flags come before the command; everything behind it belongs to the command. Dashes and underscores in names are the
same, and names may be abbreviated as long as they are unique. Flags of muster itself stand in front of the launcher's
name.
`

// horovodVersion is the release of Horovod whose command line is read.
const horovodVersion = "0.28.1"

const horovodBuild = `muster in place of horovodrun v` + horovodVersion + `:

Available Frameworks:
    all: workers are started as they are, with the Horovod of their own environment
    (what that was built with: python -c "import horovod.torch as h; print(h.gloo_built(), h.nccl_built())")

Available Controllers:
    [ ] MPI
    [X] Gloo

Available Tensor Operations:
    those of the workers' Horovod that need no MPI: NCCL, oneCCL, Gloo
`

// Groups of the help text.
const (
	groupHorovodHosts = "hosts"
	groupElastic      = "elastic jobs"
	groupTuning       = "tuning"
	groupController   = "controller"
)

// envFlag is an option that becomes a variable of the workers.
type envFlag struct {
	flag     string
	variable string
	form     envForm
	// section and key are where a config file has it, inverted where it says the opposite there.
	section, key string
	inverted     bool
	// off is the option that says the opposite, "" for none.
	off string
	arg string
	// help says what it does.
	help string
	// bounded is for numbers that must not be negative.
	bounded bool
}

// envForm says how an option's value becomes that of its variable.
type envForm int

// The forms. The first is the zero value: the text itself.
const (
	envText   envForm = iota
	envInt            // a whole number
	envFloat          // a number, as Python writes it
	envMiB            // a whole number of MiB, written in bytes
	envSwitch         // 1 or 0
)

// envFlags are in the order in which horovodrun writes their variables (horovod/runner/common/util/config_parser.py).
func envFlags() []envFlag {
	return []envFlag{
		{
			flag: "fusion-threshold-mb", variable: "HOROVOD_FUSION_THRESHOLD", form: envMiB, section: "params", key: "fusion_threshold_mb",
			bounded: true, arg: "MB", help: "Size of the fusion buffer in MiB; 0 turns fusion off. Horovod's default is 128.",
		},
		{
			flag: "cycle-time-ms", variable: "HOROVOD_CYCLE_TIME", form: envFloat, section: "params", key: "cycle_time_ms", bounded: true,
			arg: "MS", help: "Pause between two cycles of fusion, in ms. Horovod's default is 1.",
		},
		{
			flag: "cache-capacity", variable: "HOROVOD_CACHE_CAPACITY", form: envInt, section: "params", key: "cache_capacity", bounded: true,
			arg: "N", help: "How many tensors' names are remembered. Horovod's default is 1024.",
		},
		{
			flag: "hierarchical-allreduce", off: "no-hierarchical-allreduce", variable: "HOROVOD_HIERARCHICAL_ALLREDUCE", form: envSwitch,
			section: "params", key: "hierarchical_allreduce", help: "All-reduce within hosts first, then between them.",
		},
		{
			flag: "hierarchical-allgather", off: "no-hierarchical-allgather", variable: "HOROVOD_HIERARCHICAL_ALLGATHER", form: envSwitch,
			section: "params", key: "hierarchical_allgather", help: "All-gather within hosts first, then between them.",
		},
		{
			flag: "torus-allreduce", off: "no-torus-allreduce", variable: "HOROVOD_TORUS_ALLREDUCE", form: envSwitch, section: "params",
			key: "torus_allreduce", help: "All-reduce as a two-dimensional torus of NCCL.",
		},

		{
			flag: autotune, off: "no-autotune", variable: "HOROVOD_AUTOTUNE", form: envSwitch, section: "autotune", key: "enabled",
			help: "Let Horovod try values of these parameters and keep the best.",
		},
		{
			flag: "autotune-log-file", variable: "HOROVOD_AUTOTUNE_LOG", section: "autotune", key: "log_file", arg: "FILE",
			help: "Where the trials are written, with --autotune.",
		},
		{
			flag: "autotune-warmup-samples", variable: "HOROVOD_AUTOTUNE_WARMUP_SAMPLES", form: envInt, section: "autotune",
			key: "warmup_samples", bounded: true, arg: "N", help: "Samples that are dropped at first, with --autotune.",
		},
		{
			flag: "autotune-steps-per-sample", variable: "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE", form: envInt, section: "autotune",
			key: "steps_per_sample", bounded: true, arg: "N", help: "Steps of a sample, with --autotune.",
		},
		{
			flag: "autotune-bayes-opt-max-samples", variable: "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES", form: envInt, section: "autotune",
			key: "bayes_opt_max_samples", bounded: true, arg: "N", help: "Most samples of each optimization, with --autotune.",
		},
		{
			flag: "autotune-gaussian-process-noise", variable: "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE", form: envFloat, section: "autotune",
			key: "gaussian_process_noise", arg: "X", help: "Noise of the samples, from 0 to 1, with --autotune.",
		},

		{
			flag: timelineFile, variable: "HOROVOD_TIMELINE", section: "timeline", key: "filename", arg: "FILE",
			help: "Where the timeline of Horovod's events is written, as JSON.",
		},
		{
			flag: "timeline-mark-cycles", off: "no-timeline-mark-cycles", variable: "HOROVOD_TIMELINE_MARK_CYCLES", form: envSwitch,
			section: "timeline", key: "mark_cycles", help: "Mark the cycles there, with --timeline-filename.",
		},

		{
			flag: "no-stall-check", off: "stall-check", variable: "HOROVOD_STALL_CHECK_DISABLE", form: envSwitch, section: "stall_check",
			key: "enabled", inverted: true, help: "Do not warn of workers that others wait for.",
		},
		{
			flag: "stall-check-warning-time-seconds", variable: "HOROVOD_STALL_CHECK_TIME_SECONDS", form: envInt, section: "stall_check",
			key: "warning_time_seconds", bounded: true, arg: "S", help: "After how long of waiting Horovod warns. Its default is 60.",
		},
		{
			flag: "stall-check-shutdown-time-seconds", variable: "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", form: envInt, section: "stall_check",
			key: "shutdown_time_seconds", bounded: true, arg: "S", help: "After how long of waiting it ends the job; 0: never.",
		},

		{
			flag: "mpi-threads-disable", off: "no-mpi-threads-disable", variable: "HOROVOD_MPI_THREADS_DISABLE", form: envSwitch,
			section: "library_options", key: "mpi_threads_disable", help: "Only of use with MPI: no support of threads there.",
		},
		{
			flag: "num-nccl-streams", variable: "HOROVOD_NUM_NCCL_STREAMS", form: envInt, section: "library_options", key: "num_nccl_streams",
			bounded: true, arg: "N", help: "Streams of NCCL.",
		},
		{flag: "tcp", variable: "NCCL_IB_DISABLE", form: envSwitch, help: "Use TCP only: NCCL_IB_DISABLE=1."},
		{
			flag: "thread-affinity", variable: "HOROVOD_THREAD_AFFINITY", form: envInt, section: "library_options", key: "thread_affinity",
			bounded: true, arg: "N", help: "CPU of Horovod's background thread.",
		},
		{
			flag: "gloo-timeout-seconds", variable: "HOROVOD_GLOO_TIMEOUT_SECONDS", form: envInt, section: "library_options",
			key: "gloo_timeout_seconds", bounded: true, arg: "S", help: "How long gloo waits for a worker. Horovod's default is 30.",
		},

		{
			flag: "log-level", variable: "HOROVOD_LOG_LEVEL", section: "logging", key: "level", arg: "LEVEL",
			help: "What Horovod itself says.",
		},
		{
			flag: "log-without-timestamp", off: "log-with-timestamp", variable: "HOROVOD_LOG_HIDE_TIME", form: envSwitch, section: "logging",
			key: "with_timestamp", inverted: true, help: "Leave the time out of what Horovod itself says.",
		},
	}
}

const (
	autotune     = "autotune"
	timelineFile = "timeline-filename"
)

// exclusive are groups of options of which at most one may be given, beside those that say the opposite of each other.
func exclusive() [][]string {
	return [][]string{
		{"hosts", "hostfile", "host-discovery-script", "discovery-hostfile", "discovery-dns"},
		{"gloo", "mpi", "jsrun"},
		{"log-with-timestamp", "log-without-timestamp", "prefix-output-with-timestamp", "log-hide-timestamp", "no-log-hide-timestamp"},
	}
}

func horovodParser() *parser {
	p := &parser{
		prog: horovodRun, script: "command", options: horovodOptions(), dashes: true, remainder: true, prefixes: []string{horovodPrefix},
	}
	p.help = func() string { return p.helpText(horovodAbout) }
	return p
}

func horovodOptions() []option {
	options := []option{
		{
			name: "num-proc", extra: []string{"-np"}, kind: kindInt, noDefault: true, arg: "N", group: groupHorovodHosts,
			help: "Number of workers; of an elastic job, slots that there must be before it begins. Needed.",
		},
		{
			name: "hosts", short: "H", noDefault: true, arg: "HOST:SLOTS,...", group: groupHorovodHosts,
			help: "Hosts and how many workers each takes. Default: localhost with all workers.",
		},
		{
			name: "hostfile", extra: []string{"-hostfile"}, noDefault: true, arg: "FILE", group: groupHorovodHosts,
			help: "File of hosts, one a line: HOST slots=N, HOST:N or HOST.",
		},
		{
			name: "ssh-port", short: "p", kind: kindInt, noDefault: true, arg: "N", group: groupHorovodHosts,
			help: "Port of sshd on all hosts.",
		},
		{name: "ssh-identity-file", short: "i", noDefault: true, arg: "FILE", group: groupHorovodHosts, help: "Private key for ssh."},
		{
			name: "start-timeout", kind: kindInt, def: "30", variables: true, arg: "S", group: groupHorovodHosts,
			help: "How long hosts that are not up yet are waited for, in seconds.",
		},
		{
			name: "network-interfaces", noDefault: true, separator: ",", arg: "A,B", group: groupHorovodHosts,
			help: "Network interfaces for the workers; the first is gloo's. Default: on each host the one by which the others are reached.",
		},
		{name: "network-interface", noDefault: true, separator: ",", arg: "A", group: groupHorovodHosts, help: "The same, one at a time."},
		{
			name: "disable-cache", kind: kindFlag, group: groupHorovodHosts,
			help: "No effect: muster keeps no results of checks from one job to the next.",
		},

		{
			name: "min-np", extra: []string{"--min-num-proc"}, kind: kindInt, noDefault: true, arg: "N", group: groupElastic,
			help: "Fewest workers: with fewer slots the job waits. Makes the job elastic. Default: -np.",
		},
		{
			name: "max-np", extra: []string{"--max-num-proc"}, kind: kindInt, noDefault: true, arg: "N", group: groupElastic,
			help: "Most workers. Default: as many as there are slots.",
		},
		{
			name: "host-discovery-script", noDefault: true, arg: "COMMAND", group: groupElastic,
			help: "Command that prints the hosts there are now, one a line: HOST:SLOTS, or HOST with --slots-per-host. Makes the job elastic.",
		},
		{
			name: "discovery-hostfile", noDefault: true, arg: "FILE", group: groupElastic,
			help: "Hostfile that is read again and again in place of a script. muster's own.",
		},
		{
			name: "discovery-dns", noDefault: true, arg: "NAME", group: groupElastic,
			help: "Name whose addresses are the hosts, such as a headless service, in place of a script. muster's own.",
		},
		{
			name: "slots-per-host", kind: kindInt, noDefault: true, arg: "N", group: groupElastic,
			help: "Slots of hosts for which the discovery says none.",
		},
		{
			name: "elastic-timeout", kind: kindInt, def: "600", variables: true, arg: "S", group: groupElastic,
			help: "How long the job waits for enough slots, in seconds.",
		},
		{
			name: "reset-limit", kind: kindInt, noDefault: true, arg: "N", group: groupElastic,
			help: "How often the set of workers may change. Default: any number.",
		},
		{
			name: "blacklist-cooldown-range", kind: kindTwo, noDefault: true, arg: "MIN MAX", group: groupElastic,
			help: "How long a host is not used after a worker failed there, in seconds: MIN at first, doubled each time up to MAX. 0 0: for ever, which is horovodrun's default; muster's is 10 300.",
		},
	}
	for _, e := range envFlags() {
		o := option{name: e.flag, noDefault: true, arg: e.arg, help: e.help, group: groupTuning}
		switch e.form {
		case envInt, envMiB:
			o.kind = kindInt
		case envFloat:
			o.kind = kindFloat
		case envSwitch:
			o.kind, o.noDefault = kindFlag, false
		case envText:
		}
		if strings.HasPrefix(e.flag, autotune+"-") || strings.HasPrefix(e.flag, "timeline-mark") {
			o.moot = "horovodrun, too, reads it with --autotune or --timeline-filename only"
		}
		if e.flag == "log-level" {
			o.choices = []string{"TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "FATAL"}
		}
		options = append(options, o)
		if e.off != "" {
			options = append(options, option{
				name: e.off, kind: kindFlag, group: groupTuning,
				moot: "it is off where nothing is said, or the opposite is told to the workers", help: "The opposite of --" + e.flag + ".",
			})
		}
	}
	return append(options, []option{
		{name: "log-hide-timestamp", kind: kindFlag, group: groupTuning, help: "Old name of --log-without-timestamp."},
		{name: "no-log-hide-timestamp", kind: kindFlag, group: groupTuning, help: "Old name of --log-with-timestamp."},
		{
			name: "config-file", noDefault: true, arg: "FILE", group: groupTuning,
			help: "YAML file with these values in sections. Flags win over it.",
		},

		{
			name: "gloo", kind: kindFlag, group: groupController, moot: "this is so already",
			help: "Workers find each other by gloo, which is the default of muster.",
		},
		{
			name: "mpi", kind: kindFlag, group: groupController,
			help: "Refused: start the job by mpirun instead, with muster run in front of the program.",
		},
		{name: "jsrun", kind: kindFlag, group: groupController, help: "Refused, as --mpi."},
		{name: "mpi-args", noDefault: true, arg: "ARGS", group: groupController, help: "No effect: there is no mpirun."},
		{name: "binding-args", noDefault: true, arg: "ARGS", group: groupController, help: "No effect: there is no mpirun."},

		{
			name: "output-filename", noDefault: true, arg: "DIR", group: groupLogs,
			help: "Write each worker's output to DIR/rank.N/stdout and stderr as well.",
		},
		{
			name: "prefix-output-with-timestamp", extra: []string{"-prefix-timestamp"}, kind: kindFlag, group: groupLogs,
			help: "Begin each line of the workers with the time.",
		},
		{name: "verbose", kind: kindFlag, group: groupOther, help: "Say more of what is done."},
		{
			name: "check-build", extra: []string{"-cb"}, kind: kindHelp, group: groupOther, text: func() string { return horovodBuild },
			help: "Print what can be run and exit.",
		},
		{
			name: "version", short: "v", kind: kindHelp, group: groupOther, text: func() string { return horovodVersion + "\n" },
			help: "Print the version of horovodrun that is replaced and exit.",
		},
		{name: "help", short: "h", kind: kindHelp, group: groupOther, help: "Print this text and exit."},
	}...)
}
