package dialect

const horovodAbout = "Starts the workers of a Horovod job on this and other hosts, as horovodrun does with the gloo controller, and " +
	"watches over\n" + `them. With --host-discovery-script or --min-np the job is elastic: hosts come and go, and the workers that stay keep
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

// tuning says how an option becomes a variable of the workers.
type tuning struct {
	variable string
	// section and key are where a config file has it, inverted where it says the opposite there.
	section, key string
	inverted     bool
	// bounded is for numbers that must not be negative, mib for those of MiB, which the variable has in bytes.
	bounded, mib bool
	// off is the option that says the opposite, "" for none, offWord what was given for it.
	off     string
	offWord *value
	// old and oldOff are the values of former names of both, nil for none.
	old, oldOff *value
	// file is what the config file says.
	file value
}

// autotune is the section of a config file about the trials by which Horovod tunes itself.
const autotune = "autotune"

// tuningOptions are in the order in which horovodrun writes their variables
// (horovod/runner/common/util/config_parser.py).
func tuningOptions(w *horovodWords) []option {
	return []option{
		{
			name: "fusion-threshold-mb", kind: kindInt, arg: "MB",
			help:   "Size of the fusion buffer in MiB; 0 turns fusion off. Horovod's default is 128.",
			tuning: &tuning{variable: "HOROVOD_FUSION_THRESHOLD", section: "params", key: "fusion_threshold_mb", bounded: true, mib: true},
		},
		{
			name: "cycle-time-ms", kind: kindFloat, arg: "MS",
			help:   "Pause between two cycles of fusion, in ms. Horovod's default is 1.",
			tuning: &tuning{variable: "HOROVOD_CYCLE_TIME", section: "params", key: "cycle_time_ms", bounded: true},
		},
		{
			name: "cache-capacity", kind: kindInt, arg: "N",
			help:   "How many tensors' names are remembered. Horovod's default is 1024.",
			tuning: &tuning{variable: "HOROVOD_CACHE_CAPACITY", section: "params", key: "cache_capacity", bounded: true},
		},
		{
			name: "hierarchical-allreduce", kind: kindFlag,
			help: "All-reduce within hosts first, then between them.",
			tuning: &tuning{
				variable: "HOROVOD_HIERARCHICAL_ALLREDUCE", section: "params", key: "hierarchical_allreduce",
				off: "no-hierarchical-allreduce",
			},
		},
		{
			name: "hierarchical-allgather", kind: kindFlag,
			help: "All-gather within hosts first, then between them.",
			tuning: &tuning{
				variable: "HOROVOD_HIERARCHICAL_ALLGATHER", section: "params", key: "hierarchical_allgather",
				off: "no-hierarchical-allgather",
			},
		},
		{
			name: "torus-allreduce", kind: kindFlag,
			help:   "All-reduce as a two-dimensional torus of NCCL.",
			tuning: &tuning{variable: "HOROVOD_TORUS_ALLREDUCE", section: "params", key: "torus_allreduce", off: "no-torus-allreduce"},
		},

		{
			name: "autotune", word: &w.autotune, kind: kindFlag,
			help:   "Let Horovod try values of these parameters and keep the best.",
			tuning: &tuning{variable: "HOROVOD_AUTOTUNE", section: autotune, key: "enabled", off: "no-autotune"},
		},
		{
			name: "autotune-log-file", arg: "FILE",
			help:   "Where the trials are written, with --autotune.",
			tuning: &tuning{variable: "HOROVOD_AUTOTUNE_LOG", section: autotune, key: "log_file"},
		},
		{
			name: "autotune-warmup-samples", kind: kindInt, arg: "N",
			help:   "Samples that are dropped at first, with --autotune.",
			tuning: &tuning{variable: "HOROVOD_AUTOTUNE_WARMUP_SAMPLES", section: autotune, key: "warmup_samples", bounded: true},
		},
		{
			name: "autotune-steps-per-sample", kind: kindInt, arg: "N",
			help:   "Steps of a sample, with --autotune.",
			tuning: &tuning{variable: "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE", section: autotune, key: "steps_per_sample", bounded: true},
		},
		{
			name: "autotune-bayes-opt-max-samples", kind: kindInt, arg: "N",
			help: "Most samples of each optimization, with --autotune.",
			tuning: &tuning{
				variable: "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES", section: autotune, key: "bayes_opt_max_samples",
				bounded: true,
			},
		},
		{
			name: "autotune-gaussian-process-noise", kind: kindFloat, arg: "X",
			help:   "Noise of the samples, from 0 to 1, with --autotune.",
			tuning: &tuning{variable: "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE", section: autotune, key: "gaussian_process_noise"},
		},

		{
			name: "timeline-filename", word: &w.timelineFilename, arg: "FILE",
			help:   "Where the timeline of Horovod's events is written, as JSON.",
			tuning: &tuning{variable: "HOROVOD_TIMELINE", section: "timeline", key: "filename"},
		},
		{
			name: "timeline-mark-cycles", word: &w.timelineMarkCycles, kind: kindFlag,
			help: "Mark the cycles there, with --timeline-filename.",
			tuning: &tuning{
				variable: "HOROVOD_TIMELINE_MARK_CYCLES", section: "timeline", key: "mark_cycles",
				off: "no-timeline-mark-cycles",
			},
		},

		{
			name: "no-stall-check", kind: kindFlag,
			help: "Do not warn of workers that others wait for.",
			tuning: &tuning{
				variable: "HOROVOD_STALL_CHECK_DISABLE", section: "stall_check", key: "enabled", inverted: true,
				off: "stall-check",
			},
		},
		{
			name: "stall-check-warning-time-seconds", kind: kindInt, arg: "S",
			help: "After how long of waiting Horovod warns. Its default is 60.",
			tuning: &tuning{
				variable: "HOROVOD_STALL_CHECK_TIME_SECONDS", section: "stall_check", key: "warning_time_seconds",
				bounded: true,
			},
		},
		{
			name: "stall-check-shutdown-time-seconds", kind: kindInt, arg: "S",
			help: "After how long of waiting it ends the job; 0: never.",
			tuning: &tuning{
				variable: "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", section: "stall_check", key: "shutdown_time_seconds",
				bounded: true,
			},
		},

		{
			name: "mpi-threads-disable", kind: kindFlag,
			help: "Only of use with MPI: no support of threads there.",
			tuning: &tuning{
				variable: "HOROVOD_MPI_THREADS_DISABLE", section: "library_options", key: "mpi_threads_disable",
				off: "no-mpi-threads-disable",
			},
		},
		{
			name: "num-nccl-streams", kind: kindInt, arg: "N",
			help:   "Streams of NCCL.",
			tuning: &tuning{variable: "HOROVOD_NUM_NCCL_STREAMS", section: "library_options", key: "num_nccl_streams", bounded: true},
		},
		{
			name: "tcp", kind: kindFlag,
			help:   "Use TCP only: NCCL_IB_DISABLE=1.",
			tuning: &tuning{variable: "NCCL_IB_DISABLE"},
		},
		{
			name: "thread-affinity", kind: kindInt, arg: "N",
			help:   "CPU of Horovod's background thread.",
			tuning: &tuning{variable: "HOROVOD_THREAD_AFFINITY", section: "library_options", key: "thread_affinity", bounded: true},
		},
		{
			name: "gloo-timeout-seconds", word: &w.glooTimeoutSeconds, kind: kindInt, arg: "S",
			help: "How long gloo waits for a worker. Horovod's default is 30.",
			tuning: &tuning{
				variable: "HOROVOD_GLOO_TIMEOUT_SECONDS", section: "library_options", key: "gloo_timeout_seconds",
				bounded: true,
			},
		},

		{
			name: "log-level", arg: "LEVEL", choices: []string{"TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "FATAL"},
			help:   "What Horovod itself says.",
			tuning: &tuning{variable: "HOROVOD_LOG_LEVEL", section: "logging", key: "level"},
		},
		{
			name: "log-without-timestamp", word: &w.logWithoutTimestamp, kind: kindFlag,
			help: "Leave the time out of what Horovod itself says.",
			tuning: &tuning{
				variable: "HOROVOD_LOG_HIDE_TIME", section: "logging", key: "with_timestamp", inverted: true,
				off: "log-with-timestamp", offWord: &w.logWithTimestamp, old: &w.logHideTimestamp, oldOff: &w.noLogHideTimestamp,
			},
		},
	}
}

// exclusive are groups of options of which at most one may be given, beside those that say the opposite of each other.
func (w *horovodWords) exclusive() [][]value {
	return [][]value{
		{w.hosts, w.hostfile, w.hostDiscoveryScript, w.discoveryHostfile, w.discoveryDNS},
		{w.gloo, w.mpi, w.jsrun},
		{w.logWithTimestamp, w.logWithoutTimestamp, w.prefixOutputWithTimestamp, w.logHideTimestamp, w.noLogHideTimestamp},
	}
}

// horovodWords are the values of those of horovodrun's options that are read by name.
type horovodWords struct {
	numProc, hosts, hostfile, sshPort, sshIdentityFile, startTimeout, networkInterfaces, networkInterface,
	disableCache, minNp, maxNp, hostDiscoveryScript, discoveryHostfile, discoveryDNS, slotsPerHost,
	elasticTimeout, resetLimit, blacklistCooldownRange, logHideTimestamp, noLogHideTimestamp, configFile, gloo,
	mpi, jsrun, mpiArgs, bindingArgs, outputFilename, prefixOutputWithTimestamp, verbose, autotune,
	timelineFilename, timelineMarkCycles, glooTimeoutSeconds, logWithoutTimestamp, logWithTimestamp value
}

func horovodParser(w *horovodWords) *parser {
	p := &parser{
		prog: horovodRun, script: "command", options: horovodOptions(w), dashes: true, remainder: true, prefixes: []string{horovodPrefix},
	}
	p.help = func() string { return p.helpText(horovodAbout) }
	return p
}

// horovodOptions are those of horovodrun, and some of muster's own.
func horovodOptions(w *horovodWords) []option {
	options := []option{
		{
			name: "num-proc", word: &w.numProc, aliases: []string{"-np"}, kind: kindInt, noDefault: true, arg: "N",
			group: groupHorovodHosts,
			help:  "Number of workers; of an elastic job, slots that there must be before it begins. Needed.",
		},
		{
			name: "hosts", word: &w.hosts, short: "H", noDefault: true, arg: "HOST:SLOTS,...", group: groupHorovodHosts,
			help: "Hosts and how many workers each takes. Default: localhost with all workers.",
		},
		{
			name: "hostfile", word: &w.hostfile, aliases: []string{"-hostfile"}, noDefault: true, arg: "FILE", group: groupHorovodHosts,
			help: "File of hosts, one a line: HOST slots=N, HOST:N or HOST.",
		},
		{
			name: "ssh-port", word: &w.sshPort, short: "p", kind: kindInt, noDefault: true, arg: "N", group: groupHorovodHosts,
			help: "Port of sshd on all hosts.",
		},
		{
			name: "ssh-identity-file", word: &w.sshIdentityFile, short: "i", noDefault: true, arg: "FILE", group: groupHorovodHosts,
			help: "Private key for ssh.",
		},
		{
			name: "start-timeout", word: &w.startTimeout, kind: kindInt, def: "30", variables: true, arg: "S", group: groupHorovodHosts,
			help: "How long hosts that are not up yet are waited for, in seconds.",
		},
		{
			name: "network-interfaces", word: &w.networkInterfaces, noDefault: true, separator: ",", arg: "A,B", group: groupHorovodHosts,
			help: "Network interfaces for the workers; the first is gloo's. Default: on each host the one by which the others are reached.",
		},
		{
			name: "network-interface", word: &w.networkInterface, noDefault: true, separator: ",", arg: "A", group: groupHorovodHosts,
			help: "The same, one at a time.",
		},
		{
			name: "disable-cache", word: &w.disableCache, kind: kindFlag, group: groupHorovodHosts,
			help: "No effect: muster keeps no results of checks from one job to the next.",
		},

		{
			name: "min-np", word: &w.minNp, aliases: []string{"--min-num-proc"}, kind: kindInt, noDefault: true, arg: "N",
			group: groupElastic,
			help:  "Fewest workers: with fewer slots the job waits. Makes the job elastic. Default: -np.",
		},
		{
			name: "max-np", word: &w.maxNp, aliases: []string{"--max-num-proc"}, kind: kindInt, noDefault: true, arg: "N",
			group: groupElastic,
			help:  "Most workers. Default: as many as there are slots.",
		},
		{
			name: "host-discovery-script", word: &w.hostDiscoveryScript, noDefault: true, arg: "COMMAND", group: groupElastic,
			help: "Command that prints the hosts there are now, one a line: HOST:SLOTS, or HOST with --slots-per-host. Makes the job " +
				"elastic.",
		},
		{
			name: "discovery-hostfile", word: &w.discoveryHostfile, noDefault: true, arg: "FILE", group: groupElastic,
			help: "Hostfile that is read again and again in place of a script. muster's own.",
		},
		{
			name: "discovery-dns", word: &w.discoveryDNS, noDefault: true, arg: "NAME", group: groupElastic,
			help: "Name whose addresses are the hosts, such as a headless service, in place of a script. muster's own.",
		},
		{
			name: "slots-per-host", word: &w.slotsPerHost, kind: kindInt, noDefault: true, arg: "N", group: groupElastic,
			help: "Slots of hosts for which the discovery says none.",
		},
		{
			name: "elastic-timeout", word: &w.elasticTimeout, kind: kindInt, def: "600", variables: true, arg: "S", group: groupElastic,
			help: "How long the job waits for enough slots, in seconds.",
		},
		{
			name: "reset-limit", word: &w.resetLimit, kind: kindInt, noDefault: true, arg: "N", group: groupElastic,
			help: "How often the set of workers may change. Default: any number.",
		},
		{
			name: "blacklist-cooldown-range", word: &w.blacklistCooldownRange, kind: kindTwo, noDefault: true, arg: "MIN MAX",
			group: groupElastic,
			help: "How long a host is not used after a worker failed there, in seconds: MIN at first, doubled each time up to MAX. 0 0: " +
				"for ever, which is horovodrun's default; muster's is 10 300.",
		},
	}
	for _, o := range tuningOptions(w) {
		t := o.tuning
		o.group, o.noDefault = groupTuning, o.kind != kindFlag
		if t.section == autotune && o.word != &w.autotune || o.word == &w.timelineMarkCycles {
			o.moot = "horovodrun, too, reads it with --autotune or --timeline-filename only"
		}
		options = append(options, o)
		if t.off == "" {
			continue
		}
		if t.offWord == nil {
			t.offWord = new(value)
		}
		options = append(options, option{
			name: t.off, word: t.offWord, kind: kindFlag, group: groupTuning,
			moot: "it is off where nothing is said, or the opposite is told to the workers", help: "The opposite of --" + o.name + ".",
		})
	}
	return append(options, []option{
		{
			name: "log-hide-timestamp", word: &w.logHideTimestamp, kind: kindFlag, group: groupTuning,
			help: "Old name of --log-without-timestamp.",
		},
		{
			name: "no-log-hide-timestamp", word: &w.noLogHideTimestamp, kind: kindFlag, group: groupTuning,
			help: "Old name of --log-with-timestamp.",
		},
		{
			name: "config-file", word: &w.configFile, noDefault: true, arg: "FILE", group: groupTuning,
			help: "YAML file with these values in sections. Flags win over it.",
		},

		{
			name: "gloo", word: &w.gloo, kind: kindFlag, group: groupController, moot: "this is so already",
			help: "Workers find each other by gloo, which is the default of muster.",
		},
		{
			name: "mpi", word: &w.mpi, kind: kindFlag, group: groupController,
			help: "Refused: start the job by mpirun instead, with muster run in front of the program.",
		},
		{name: "jsrun", word: &w.jsrun, kind: kindFlag, group: groupController, help: "Refused, as --mpi."},
		{name: "mpi-args", word: &w.mpiArgs, noDefault: true, arg: "ARGS", group: groupController, help: "No effect: there is no mpirun."},
		{
			name: "binding-args", word: &w.bindingArgs, noDefault: true, arg: "ARGS", group: groupController,
			help: "No effect: there is no mpirun.",
		},

		{
			name: "output-filename", word: &w.outputFilename, noDefault: true, arg: "DIR", group: groupLogs,
			help: "Write each worker's output to DIR/rank.N/stdout and stderr as well.",
		},
		{
			name: "prefix-output-with-timestamp", word: &w.prefixOutputWithTimestamp, aliases: []string{"-prefix-timestamp"},
			kind: kindFlag, group: groupLogs,
			help: "Begin each line of the workers with the time.",
		},
		{name: "verbose", word: &w.verbose, kind: kindFlag, group: groupOther, help: "Say more of what is done."},
		{
			name: "check-build", aliases: []string{"-cb"}, kind: kindHelp, group: groupOther, text: func() string { return horovodBuild },
			help: "Print what can be run and exit.",
		},
		{
			name: "version", short: "v", kind: kindHelp, group: groupOther, text: func() string { return horovodVersion + "\n" },
			help: "Print the version of horovodrun that is replaced and exit.",
		},
		{name: "help", short: "h", kind: kindHelp, group: groupOther, help: "Print this text and exit."},
	}...)
}
