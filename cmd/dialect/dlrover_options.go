package dialect

import "slices"

const dlroverAbout = "Starts the workers of a PyTorch job on this node, as DLRover's dlrover-run does, and watches over them. " +
	"Several nodes meet\n" +
	`at what DLROVER_MASTER_ADDR names: DLRover's own master, as in a pod of an ElasticJob; or a store, which --rdzv-endpoint
can name, too: that of "muster store" in the master's container, or of the node that has this address.

Flags come before the training script; everything behind it belongs to the script. Dashes and underscores in names are
the same; names cannot be abbreviated. Most flags can be set by a variable, MUSTER_<FLAG> or PET_<FLAG> (1 and 0 for
flags without a value); the command line wins, then MUSTER_. Flags of muster itself stand in front of the launcher's name.
`

// dlroverWords are the values of dlrover-run's options.
type dlroverWords struct {
	torchrunWords
	autoConfig, accelerator, precheck, numaAffinity, membindPolicy, trainingPort, saveAtBreakpoint, autoTunning,
	ucpDeviceType value
}

// dlroverOptions are torchrun's options, with other defaults for some, and what DLRover adds.
func dlroverOptions(w *dlroverWords) []option {
	options := torchrunOptions(&w.torchrunWords)
	for i := range options {
		switch o := &options[i]; o.word {
		case &w.nodeRank:
			o.help = "Rank of this node with --rdzv-backend static, from 0. Default: NODE_RANK, WORKER_RANK or RANK. Otherwise the node " +
				"has it unless others have or ask for it, or fewer nodes are there, and says so."
			o.hideDefault = true
		case &w.rdzvBackend:
			o.def = dlroverMaster
			o.help = "How agents meet: by muster's own protocol, which is the default under DLRover's name, or by muster, c10d, static " +
				"or etcd, as in muster torchrun --help."
		case &w.rdzvEndpoint:
			o.help = "Where the nodes meet, the same on all of them: port 29400 unless given. Several with commas between are hosts " +
				"that take over when the first one dies, or etcd's members. Default: DLROVER_MASTER_ADDR, else --master-addr."
		case &w.rdzvID:
			o.help = "Name of the job, the same on all its nodes, seen by workers as TORCHELASTIC_RUN_ID. Default: ELASTIC_JOB_NAME, " +
				"else none."
			o.hideDefault = true
		case &w.rdzvConf:
			o.help = "Settings of the rendezvous: join_timeout=600, lastcall_timeout=3 (seconds), node_unit=1, and torchrun's."
		case &w.standalone:
			o.help = "One node with a store of its own on a free port; needs no master."
		case &w.masterAddr, &w.masterPort:
			o.help = "Where the nodes meet, if neither --rdzv-endpoint nor DLROVER_MASTER_ADDR says it; on one node and with the static " +
				"rendezvous, where workers find the store."
		case &w.localAddr:
			o.help = "Address by which the other nodes reach this one. Default: POD_IP, NODE_IP, else the one from which the meeting " +
				"place is reached; 127.0.0.1 on one node."
		case &w.role:
			o.def = "dlrover-trainer"
		}
	}
	other := slices.IndexFunc(options, func(o option) bool { return o.group == groupOther })
	return slices.Concat(options[:other], []option{
		{
			name: "auto-config", word: &w.autoConfig, kind: kindFlag, variables: true, group: groupNodes,
			help: "As many nodes as NODE_NUM (or WORKER_NUM, WORLD_SIZE) says, --nproc-per-node auto, and from 4 nodes on " +
				"--network-check. What is given by flags stays.",
		},
		{
			name: "accelerator", word: &w.accelerator, def: "nvidia.com/gpu",
			choices:   []string{"nvidia.com/gpu", "ascend-npu", "mthreads.com/gpu", "metax-tech.com/gpu"},
			variables: true, foreign: true, arg: "NAME", group: groupNodes,
			help: "The kind of accelerator. muster sees for itself which it is, as DLRover does, and only checks the name.",
		},
		{
			name: "precheck", word: &w.precheck, kind: kindInt, def: "0", choices: []string{"0", "1", "2"}, variables: true, arg: "LEVEL",
			group: groupCheck,
			help:  "1 is --network-check, 2 is --network-check --comm-perf-test, 0 adds nothing.",
		},
	}, dlroverOwnOptions(), []option{
		{
			name: "numa-affinity", word: &w.numaAffinity, kind: kindFlag, variables: true, group: groupCommand,
			help: "Bind each worker to the CPUs of its accelerator's NUMA node: --numa-binding node, but unbound where that cannot be " +
				"done.",
		},
		{
			name: "membind-policy", word: &w.membindPolicy, def: "preferred", variables: true, arg: "bind|preferred|none",
			group: groupCommand,
			help: "With --numa-affinity: memory comes from the same NUMA node while there is some, whatever is given here. bind is not " +
				"stronger.",
		},
		{
			name: "training-port", word: &w.trainingPort, kind: kindInt, def: "60000", variables: true, arg: "PORT", group: groupCommand,
			help: "First port of Ascend's HCCL: HCCL_IF_BASE_PORT of the workers, if it is not set.",
		},
		{
			name: "save-at-breakpoint", word: &w.saveAtBreakpoint, kind: kindFlag, variables: true, group: groupExits,
			help: "Write the checkpoint in memory to disk when workers fail. muster does that in any case.",
		},
		{
			name: "auto-tunning", word: &w.autoTunning, kind: kindFlag, variables: true, group: groupOther,
			help: "Tune data loaders and optimizers. No effect: there is no master that does it.",
		},
		{
			name: "ucp-device-type", word: &w.ucpDeviceType, def: "cpu", variables: true, arg: "DEVICE", group: groupOther,
			help: "Where DeepSpeed's universal checkpoints are converted. No effect: muster converts none.",
		},
	}, options[other:])
}

// dlroverOwnOptions makes options of muster's own settings, whose words the settings read.
func dlroverOwnOptions() []option {
	var options []option
	for _, s := range settings() {
		if !s.dlrover {
			continue
		}
		o := option{name: s.name, def: s.def, variables: true, own: true, arg: s.arg, help: s.help, group: s.group}
		if s.kind == kindPairs || s.kind == kindFlag {
			o.kind = s.kind
		}
		if s.kind == kindFlag {
			o.def = ""
		}
		options = append(options, o)
	}
	return options
}
