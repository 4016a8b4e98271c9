package dialect

import "slices"

// Groups of accelerate launch's options in the help text, beside torchrun's.
const (
	groupHardware    = "Hardware"
	groupResources   = "Workers and what they compute with"
	groupParadigm    = "Ways to train"
	groupMachines    = "Machines"
	groupTPU         = "TPU"
	groupDeepSpeed   = "DeepSpeed"
	groupFSDP        = "FSDP"
	groupMegatron    = "Megatron-LM"
	groupFP8         = "FP8 (with --mixed-precision fp8)"
	groupParallelism = "Parallelism in several dimensions"
	groupAWS         = "SageMaker"
)

// accelerateOptions are the options of accelerate launch, as version 1.15.0 declares them in commands/launch.py: names,
// types, defaults and choices.
func accelerateOptions() []option {
	options := slices.Concat(accelerateBase(), accelerateDeepSpeed(), accelerateFSDP(), accelerateMegatron(), accelerateFP8(),
		accelerateParallelism(), []option{
			{long: "help", short: "h", kind: kindHelp, noDefault: true, group: groupOther, help: "Print this text and exit."},
		})
	own := settings()
	for i := range options {
		o := &options[i]
		o.rare = slices.Contains([]string{groupTPU, groupAWS, groupDeepSpeed, groupFSDP, groupMegatron, groupFP8, groupParallelism},
			o.group)
		if o.rare && o.group != groupTPU {
			o.moot = "accelerate, too, reads it with its way of training only"
		}
		if o.long == "monitor-interval" {
			o.moot = "exits are seen at once, and so within every interval"
		}
		o.ownVariable = o.group != groupTPU && o.group != groupAWS &&
			!slices.ContainsFunc(own, func(s setting) bool { return s.anywhere && s.flag == o.long })
	}
	return options
}

// accelerateBase are the options that say where and how workers start.
func accelerateBase() []option {
	return []option{
		{
			long: "config-file", noDefault: true, arg: "FILE", group: groupOther,
			help: "Settings to take where no flag says otherwise, as YAML or JSON. Default: accelerate/default_config.yaml in HF_HOME, else in XDG_CACHE_HOME/huggingface, else in ~/.cache/huggingface.",
		},
		{
			long: "quiet", short: "q", kind: kindFlag, group: groupOther,
			help: "muster itself tells errors only.",
		},
		{
			long: "module", short: "m", kind: kindFlag, group: groupCommand,
			help: "The script is the name of a Python module, as in python -m.",
		},
		{
			long: "no-python", kind: kindFlag, group: groupCommand,
			help: "The script is a program of its own and is run without Python.",
		},
		{
			long: "debug", kind: kindFlag, group: groupOther,
			help: "Workers check what they hand to collectives (ACCELERATE_DEBUG_MODE).",
		},
		{
			long: "cpu", kind: kindFlag, group: groupHardware,
			help: "Train on CPUs: the default configuration file is not read, and --num-processes workers start.",
		},
		{
			long: "multi-gpu", kind: kindFlag, group: groupHardware,
			help: "One worker per accelerator, that meet as torchrun's do. Follows from more than one process, machine or accelerator.",
		},
		{
			long: "tpu", kind: kindFlag, group: groupHardware,
			help: "Train on TPUs. Refused: torch_xla starts those processes inside of Python.",
		},
		{
			long: "mixed-precision", noDefault: true, choices: []string{"no", "fp16", "bf16", "fp8"}, group: groupResources,
			help: "Precision of training, ACCELERATE_MIXED_PRECISION of the workers. Default: no.",
		},
		{
			long: "num-processes", kind: kindInt, noDefault: true, arg: "N", group: groupResources,
			help: "Workers of all machines together. Default: one per accelerator of each machine, one where there is none.",
		},
		{
			long: "num-machines", kind: kindInt, noDefault: true, arg: "N", group: groupResources,
			help: "Machines that take part, each of which runs this command. Default: 1.",
		},
		{
			long: "num-cpu-threads-per-process", kind: kindInt, noDefault: true, arg: "N", group: groupResources,
			help: "OMP_NUM_THREADS of the workers. Default: the variable as it is, else 1; with --cpu a worker's share of the cores.",
		},
		{
			long: "enable-cpu-affinity", kind: kindFlag, group: groupResources,
			help: "Workers bind themselves to CPUs near their GPU (ACCELERATE_CPU_AFFINITY).",
		},
		{
			long: "dynamo-backend", noDefault: true,
			choices: []string{
				"no", "eager", "aot_eager", "inductor", "aot_ts_nvfuser", "nvprims_nvfuser", "cudagraphs", "ofi", "fx2trt",
				"onnxrt", "tensorrt", "aot_torchxla_trace_once", "torhchxla_trace_once", "tvm",
			}, group: groupResources,
			help: "Compiler behind torch.compile, ACCELERATE_DYNAMO_BACKEND of the workers. Default: no.",
		},
		{
			long: "dynamo-mode", def: "default", choices: []string{"default", "reduce-overhead", "max-autotune"}, group: groupResources,
			help: "What torch.compile optimizes for.",
		},
		{
			long: "dynamo-use-fullgraph", kind: kindFlag, group: groupResources,
			help: "torch.compile refuses models that are not one graph.",
		},
		{
			long: "dynamo-use-dynamic", kind: kindFlag, group: groupResources,
			help: "torch.compile expects shapes that vary.",
		},
		{
			long: "dynamo-use-regional-compilation", kind: kindFlag, group: groupResources,
			help: "torch.compile works on repeated blocks of the model, not on all of it at once.",
		},
		{
			long: "use-deepspeed", kind: kindFlag, group: groupParadigm,
			help: "Train with DeepSpeed.",
		},
		{
			long: "use-fsdp", kind: kindFlag, group: groupParadigm,
			help: "Train with fully sharded data parallelism.",
		},
		{
			long: "use-parallelism-config", kind: kindFlag, group: groupParadigm,
			help: "Arrange the workers by the sizes of --parallelism-config-…; needs --use-fsdp with version 2, or DeepSpeed.",
		},
		{
			long: "use-megatron-lm", kind: kindFlag, group: groupParadigm,
			help: "Train with Megatron-LM.",
		},
		{
			long: "gpu-ids", noDefault: true, arg: "LIST", group: groupMachines,
			help: "Accelerators of this machine to use, as in 0,1, or all. Default: all.",
		},
		{
			long: "same-network", kind: kindFlag, group: groupMachines,
			help: "The machines share a network. Makes no difference here: they meet at the address of the main process either way.",
		},
		{
			long: "machine-rank", kind: kindInt, noDefault: true, arg: "N", group: groupMachines,
			help: "Rank of this machine with the static rendezvous, from 0. Default: 0 on one machine.",
		},
		{
			long: "main-process-ip", noDefault: true, arg: "HOST", group: groupMachines,
			help: "Name or address of the machine with rank 0, the same on all of them.",
		},
		{
			long: "main-process-port", kind: kindInt, noDefault: true, arg: "PORT", group: groupMachines,
			help: "Port on that machine; on one machine another one is taken where it is in use, and 0 is any free one. Default: 29500.",
		},
		{
			long: "tee", short: "t", def: "0", arg: "SPEC", group: groupLogs,
			help: "Streams that go to files and to the console: 0 none, 1 stdout, 2 stderr, 3 both, or by local rank, as in 0:3,1:2.",
		},
		{
			long: "log-dir", noDefault: true, arg: "DIR", group: groupLogs,
			help: "Where the directory of this run is made. Default: a temporary one; /dev/null for none.",
		},
		{
			long: "role", def: "default", arg: "NAME", group: groupCommand,
			help: "Name of the workers' role, seen by them as ROLE_NAME.",
		},
		{
			long: "rdzv-backend", def: "static", suggested: meetingBackends(), arg: "NAME", group: groupMachines,
			help: "How machines meet: static (fixed ranks), c10d, muster or etcd, as in muster torchrun --help.",
		},
		{
			long: "rdzv-conf", arg: "KEY=VALUE,...", group: groupMachines,
			help: "Settings of the rendezvous, such as join_timeout=600 (seconds).",
		},
		{
			long: "max-restarts", kind: kindInt, def: "0", arg: "N", group: groupExits,
			help: "How often the workers are started anew after a failure.",
		},
		{
			long: "monitor-interval", kind: kindFloat, def: "0.1", arg: "SECONDS", group: groupExits,
			help: "How often torchrun looks at its workers. muster sees exits at once and only checks the number.",
		},
		{
			long: "mpirun-hostfile", noDefault: true, arg: "FILE", group: groupMachines,
			help: "Hostfile of MPI: muster itself starts the workers of a CPU job on those machines, without mpirun.",
		},
		{
			long: "tpu-cluster", kind: kindFlag, group: groupTPU,
			help: "A pod of TPUs. No effect without --tpu.",
		},
		{
			long: "no-tpu-cluster", kind: kindFlag, group: groupTPU,
			help: "The opposite. No effect without --tpu.",
		},
		{
			long: "tpu-use-sudo", kind: kindFlag, group: groupTPU,
			help: "No effect without --tpu.",
		},
		{
			long: "vm", noDefault: true, arg: "NAME", group: groupTPU,
			help: "No effect without --tpu.",
		},
		{
			long: "env", noDefault: true, arg: "NAME=VALUE", group: groupTPU,
			help: "No effect without --tpu.",
		},
		{
			long: "main-training-function", noDefault: true, arg: "NAME", group: groupTPU,
			help: "No effect without --tpu.",
		},
		{
			long: "downcast-bf16", kind: kindFlag, group: groupTPU,
			help: "No effect without --tpu.",
		},
		{
			long: "aws-access-key-id", noDefault: true, arg: "KEY", group: groupAWS,
			help: "Refused: muster starts no jobs of SageMaker.",
		},
		{
			long: "aws-secret-access-key", noDefault: true, arg: "KEY", group: groupAWS,
			help: "Refused: muster starts no jobs of SageMaker.",
		},
	}
}

// accelerateDeepSpeed are the options for DeepSpeed.
func accelerateDeepSpeed() []option {
	return []option{
		{
			long: "deepspeed-config-file", noDefault: true, arg: "FILE", group: groupDeepSpeed,
			help: "DeepSpeed's own configuration file, read by the workers.",
		},
		{
			long: "zero-stage", kind: kindInt, noDefault: true, arg: "N", group: groupDeepSpeed,
			help: "ZeRO stage, 0 to 3.",
		},
		{
			long: "offload-optimizer-device", noDefault: true, arg: "DEVICE", group: groupDeepSpeed,
			help: "Where optimizer states lie: none, cpu or nvme.",
		},
		{
			long: "offload-param-device", noDefault: true, arg: "DEVICE", group: groupDeepSpeed,
			help: "Where parameters lie: none, cpu or nvme.",
		},
		{
			long: "offload-optimizer-nvme-path", noDefault: true, arg: "DIR", group: groupDeepSpeed,
			help: "Directory for optimizer states on NVMe.",
		},
		{
			long: "offload-param-nvme-path", noDefault: true, arg: "DIR", group: groupDeepSpeed,
			help: "Directory for parameters on NVMe.",
		},
		{
			long: "gradient-accumulation-steps", kind: kindInt, noDefault: true, arg: "N", group: groupDeepSpeed,
			help: "Batches whose gradients are added up before a step.",
		},
		{
			long: "gradient-clipping", kind: kindFloat, noDefault: true, arg: "NORM", group: groupDeepSpeed,
			help: "Norm to which gradients are clipped.",
		},
		{
			long: "zero3-init-flag", noDefault: true, arg: "BOOL", group: groupDeepSpeed,
			help: "true or false: stage 3 builds the model in shards.",
		},
		{
			long: "zero3-save-16bit-model", noDefault: true, arg: "BOOL", group: groupDeepSpeed,
			help: "true or false: stage 3 saves 16-bit weights.",
		},
		{
			long: "deepspeed-hostfile", noDefault: true, arg: "FILE", group: groupDeepSpeed,
			help: "DeepSpeed's hostfile with lines HOST slots=N: muster itself starts the job on those machines.",
		},
		{
			long: "deepspeed-exclusion-filter", noDefault: true, arg: "FILTER", group: groupDeepSpeed,
			help: "Machines or slots of the hostfile to leave out, as in worker-1:0@worker-2.",
		},
		{
			long: "deepspeed-inclusion-filter", noDefault: true, arg: "FILTER", group: groupDeepSpeed,
			help: "Machines or slots of the hostfile to use, and no others.",
		},
		{
			long: "deepspeed-multinode-launcher", noDefault: true, suggested: []string{
				"standard", "nossh", "pdsh", "openmpi", "mvapich",
				"mpich", "slurm",
			}, arg: "NAME", group: groupDeepSpeed,
			help: "How several machines are reached: standard (this command runs on each of them, as with torchrun), nossh (the same, with the hostfile's slots), or pdsh, openmpi, mvapich, mpich, slurm, for all of which muster starts the machines of the hostfile itself. Default: pdsh.",
		},
		{
			long: "deepspeed-moe-layer-cls-names", noDefault: true, arg: "NAMES", group: groupDeepSpeed,
			help: "Classes of the model's mixture-of-experts layers, with commas between.",
		},
	}
}
