package dialect

// Groups of options in the help texts of launchers that reach other hosts.
const (
	groupNamed = "Hosts"
	groupReach = "How hosts are reached"
)

// deepSpeedWords are the values of deepspeed's options.
type deepSpeedWords struct {
	hostfile, include, exclude, numNodes, numGPUs, elasticTraining, minElasticNodes, maxElasticNodes, masterPort,
	masterAddr, forceMulti, noSSH, nodeRank, noSSHCheck, sshPort, launcher, launcherArgs, module, noPython,
	noLocalRank, venvScript, bindCoresToRank, bindCoreList, autotuning, enableEachRankLog, savePID, logLevel,
	quiet value
}

// deepSpeedOptions are those of deepspeed 0.19.8 (deepspeed/launcher/runner.py), and the ones for elastic training of
// earlier versions, 0.9 to 0.17 among them.
func deepSpeedOptions(w *deepSpeedWords) []option {
	return []option{
		{
			name: "hostfile", word: &w.hostfile, short: "H", def: "/job/hostfile", arg: "FILE", group: groupNamed,
			help: "File with a line HOST slots=N for each host. Where there is none, the job runs on this machine alone.",
		},
		{
			name: "include", word: &w.include, short: "i", arg: "HOST[:SLOT,...]@...", group: groupNamed,
			help: "Take these hosts, and of those with slots these accelerators only; localhost where there is no hostfile.",
		},
		{
			name: "exclude", word: &w.exclude, short: "e", arg: "HOST[:SLOT,...]@...", group: groupNamed,
			help: "Take all but these hosts, or all but these accelerators of them.",
		},
		{
			name: "num-nodes", word: &w.numNodes, kind: kindInt, def: "-1", hideDefault: true, arg: "N", group: groupNamed,
			help: "Take the first N hosts of the hostfile. Default: all.",
		},
		{
			name: "num-gpus", word: &w.numGPUs, aliases: []string{"--num_accelerators"}, kind: kindInt, def: "-1", hideDefault: true,
			arg: "N", group: groupNamed,
			help: "Workers on each host, with the accelerators from 0 to N-1. Default: one for each slot; without a hostfile one for " +
				"each accelerator, or for each NUMA node where there is none.",
		},
		{
			name: "elastic-training", word: &w.elasticTraining, kind: kindFlag, group: groupNamed,
			help: "Go on with fewer hosts when some are lost. Needs --master_addr.",
		},
		{
			name: "min-elastic-nodes", word: &w.minElasticNodes, kind: kindInt, def: "-1", hideDefault: true, arg: "N", group: groupNamed,
			help: "With --elastic_training: the least number of hosts. Default: 1.",
		},
		{
			name: "max-elastic-nodes", word: &w.maxElasticNodes, kind: kindInt, def: "-1", hideDefault: true, arg: "N", group: groupNamed,
			help: "With --elastic_training: the largest number of hosts. Default: all.",
		},
		{
			name: "master-port", word: &w.masterPort, kind: kindInt, def: "29500", arg: "PORT", group: groupRdzv,
			help: "Port of the workers' store on the first host.",
		},
		{
			name: "master-addr", word: &w.masterAddr, arg: "HOST", group: groupRdzv,
			help: "Address of the first host, by which the others reach it. Default: the one by which they do; 127.0.0.1 on one node.",
		},
		{
			name: "force-multi", word: &w.forceMulti, kind: kindFlag, group: groupReach,
			help: "Reach the host by ssh even where there is only one.",
		},
		{
			name: "no-ssh", word: &w.noSSH, kind: kindFlag, group: groupReach,
			help: "Start the workers of this node only: deepspeed is started on each host, with --node_rank and --master_addr.",
		},
		{
			name: "node-rank", word: &w.nodeRank, kind: kindInt, def: "-1", hideDefault: true, arg: "N", group: groupReach,
			moot: "deepspeed, too, reads it with --no_ssh only", help: "With --no_ssh: which host of the hostfile this is, from 0.",
		},
		{
			name: "no-ssh-check", word: &w.noSSHCheck, kind: kindFlag, group: groupReach,
			help: "Do not try ssh first. No effect: muster has no separate try.",
		},
		{
			name: "ssh-port", word: &w.sshPort, kind: kindInt, noDefault: true, arg: "PORT", group: groupReach,
			help: "Port of sshd on the hosts. Default: what ssh's configuration says, else 22.",
		},
		{
			name: "launcher", word: &w.launcher, def: "pdsh", suggested: []string{"pdsh", "openmpi", "mpich", "impi", "mvapich", "slurm"},
			arg:   "NAME",
			group: groupReach,
			help: "pdsh, openmpi, mpich, impi, mvapich or slurm. muster starts the workers itself, by ssh; they get the variables that " +
				"the named one gives.",
		},
		{
			name: "launcher-args", word: &w.launcherArgs, arg: "TEXT", group: groupReach,
			help: "Arguments for the launcher: -l, -f and -t of pdsh have a meaning here.",
		},
		{
			name: "module", word: &w.module, kind: kindFlag, group: groupCommand,
			help: "The script is the name of a Python module, as in python -m.",
		},
		{
			name: "no-python", word: &w.noPython, kind: kindFlag, group: groupCommand,
			help: "The script is a program of its own and is run without Python.",
		},
		{
			name: "no-local-rank", word: &w.noLocalRank, kind: kindFlag, group: groupCommand,
			help: "Do not put --local_rank=N in front of the script's arguments.",
		},
		{
			name: "venv-script", word: &w.venvScript, noDefault: true, arg: "FILE", group: groupCommand,
			help: "bin/activate of a virtual environment on the hosts, whose Python is taken.",
		},
		{
			name: "bind-cores-to-rank", word: &w.bindCoresToRank, kind: kindFlag, group: groupCommand,
			help: "Give each worker of a node an equal share of its cores, and tell it in OMP_NUM_THREADS how many.",
		},
		{
			name: "bind-core-list", word: &w.bindCoreList, noDefault: true, arg: "LIST", group: groupCommand,
			help: "With --bind_cores_to_rank: the CPUs to share out, as in 0,4-7. Default: one of each core.",
		},
		{
			name: "autotuning", word: &w.autotuning, noDefault: true, choices: []string{"tune", "run"}, arg: "tune|run",
			group: groupCommand,
			help:  "Look for the best DeepSpeed configuration. Not supported.",
		},
		{
			name: "enable-each-rank-log", word: &w.enableEachRankLog, def: "None", hideDefault: true, arg: "DIR", group: groupLogs,
			help: "Write the output of each worker to DIR/<time>_rank<N>.log, and nothing of it to the console.",
		},
		{
			name: "save-pid", word: &w.savePID, kind: kindFlag, group: groupOther,
			help: "Write muster's process id to /tmp/<process id>.deepspeed while the job runs.",
		},
		{
			name: "log-level", word: &w.logLevel, def: "info", choices: []string{"debug", "info", "warning", "error", "critical"},
			arg:   "LEVEL",
			group: groupOther,
			help:  "What muster says on standard error.",
		},
		{name: "quiet", word: &w.quiet, short: "q", kind: kindFlag, group: groupOther, help: "--log_level error."},
		{name: "help", short: "h", kind: kindHelp, noDefault: true, group: groupOther, help: "Print this text and exit."},
	}
}
