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

// accelerateWords are the values of those of accelerate launch's options that are read by name. Those that torchrun has,
// too, are torchrun's.
type accelerateWords struct {
	torchrunWords
	configFile, quiet, debug, cpu, multiGPU, tpu, mixedPrecision, numProcesses, numMachines,
	numCPUThreadsPerProcess, enableCPUAffinity, dynamoBackend, dynamoMode, dynamoUseFullgraph, dynamoUseDynamic,
	dynamoUseRegionalCompilation, useDeepspeed, useFSDP, useParallelismConfig, useMegatronLM, gpuIDs,
	sameNetwork, machineRank, mainProcessIP, mainProcessPort, mpirunHostfile, tpuCluster, awsAccessKeyID,
	awsSecretAccessKey, deepspeedConfigFile, zeroStage, offloadOptimizerDevice, offloadParamDevice,
	offloadOptimizerNvmePath, offloadParamNvmePath, gradientAccumulationSteps, gradientClipping, zero3InitFlag,
	zero3Save16bitModel, deepspeedHostfile, deepspeedExclusionFilter, deepspeedInclusionFilter,
	deepspeedMultinodeLauncher, deepspeedMoeLayerClsNames, fsdpVersion, fsdpOffloadParams,
	fsdpReshardAfterForward, fsdpTransformerLayerClsToWrap, fsdpForwardPrefetch, fsdpUseOrigParams,
	fsdpCPURamEfficientLoading, fsdpSyncModuleStates, fsdpActivationCheckpointing,
	fsdpActivationCheckpointingOffload, fp8OverrideLinearPrecision, fp8EnableFSDPFloat8AllGather, fp8PadInnerDim,
	parallelismConfigCpSize, parallelismConfigCpCommStrategy, parallelismConfigSpSize,
	parallelismConfigSpSeqLength, parallelismConfigSpSeqLengthIsVariable, parallelismConfigSpAttnImplementation,
	megatronLMUseCustomFSDP, megatronLMNoLoadOptim, megatronLMEodMaskLoss, megatronLMOverlapCPUOptimizerD2hH2d,
	megatronLMNoSaveOptim, megatronLMOptimizerCPUOffload, megatronLMUsePrecisionAwareOptimizer,
	megatronLMSequenceParallelism, megatronLMRecomputeActivations, megatronLMUseDistributedOptimizer,
	megatronLMAttentionBackend, megatronLMAttentionSoftmaxInFp32, megatronLMCalculatePerTokenLoss,
	megatronLMUseRotaryPositionEmbeddings value
}

// accelerateOptions are the options of accelerate launch, as version 1.15.0 declares them in commands/launch.py: names,
// types, defaults and choices.
func accelerateOptions(w *accelerateWords) []option {
	options := slices.Concat(accelerateBase(w), accelerateDeepSpeed(w), accelerateFSDP(w), accelerateMegatron(w), accelerateFP8(w),
		accelerateParallelism(w), []option{
			{name: "help", short: "h", kind: kindHelp, noDefault: true, group: groupOther, help: "Print this text and exit."},
		})
	own := settings()
	for i := range options {
		o := &options[i]
		o.rare = slices.Contains([]string{groupTPU, groupAWS, groupDeepSpeed, groupFSDP, groupMegatron, groupFP8, groupParallelism},
			o.group)
		if o.rare && o.group != groupTPU {
			o.moot = "accelerate, too, reads it with its way of training only"
		}
		if o.word == &w.monitorInterval {
			o.moot = "exits are seen at once, and so within every interval"
		}
		o.ownVariable = o.group != groupTPU && o.group != groupAWS &&
			!slices.ContainsFunc(own, func(s *option) bool { return s.anywhere && s.name == o.name })
	}
	return options
}

// accelerateBase are the options that say where and how workers start.
func accelerateBase(w *accelerateWords) []option {
	return []option{
		{
			name: "config-file", word: &w.configFile, noDefault: true, arg: "FILE", group: groupOther,
			help: "Settings to take where no flag says otherwise, as YAML or JSON. Default: accelerate/default_config.yaml in HF_HOME, " +
				"else in XDG_CACHE_HOME/huggingface, else in ~/.cache/huggingface.",
		},
		{
			name: "quiet", word: &w.quiet, short: "q", kind: kindFlag, group: groupOther,
			help: "muster itself tells errors only.",
		},
		{
			name: "module", word: &w.module, short: "m", kind: kindFlag, group: groupCommand,
			help: "The script is the name of a Python module, as in python -m.",
		},
		{
			name: "no-python", word: &w.noPython, kind: kindFlag, group: groupCommand,
			help: "The script is a program of its own and is run without Python.",
		},
		{
			name: "debug", word: &w.debug, kind: kindFlag, group: groupOther,
			help: "Workers check what they hand to collectives (ACCELERATE_DEBUG_MODE).",
		},
		{
			name: "cpu", word: &w.cpu, kind: kindFlag, group: groupHardware,
			help: "Train on CPUs: the default configuration file is not read, and --num-processes workers start.",
		},
		{
			name: "multi-gpu", word: &w.multiGPU, kind: kindFlag, group: groupHardware,
			help: "One worker per accelerator, that meet as torchrun's do. Follows from more than one process, machine or accelerator.",
		},
		{
			name: "tpu", word: &w.tpu, kind: kindFlag, group: groupHardware,
			help: "Train on TPUs. Refused: torch_xla starts those processes inside of Python.",
		},
		{
			name: "mixed-precision", word: &w.mixedPrecision, noDefault: true, choices: []string{"no", "fp16", "bf16", "fp8"},
			group: groupResources,
			help:  "Precision of training, ACCELERATE_MIXED_PRECISION of the workers. Default: no.",
		},
		{
			name: "num-processes", word: &w.numProcesses, kind: kindInt, noDefault: true, arg: "N", group: groupResources,
			help: "Workers of all machines together. Default: one per accelerator of each machine, one where there is none.",
		},
		{
			name: "num-machines", word: &w.numMachines, kind: kindInt, noDefault: true, arg: "N", group: groupResources,
			help: "Machines that take part, each of which runs this command. Default: 1.",
		},
		{
			name: "num-cpu-threads-per-process", word: &w.numCPUThreadsPerProcess, kind: kindInt, noDefault: true, arg: "N",
			group: groupResources,
			help:  "OMP_NUM_THREADS of the workers. Default: the variable as it is, else 1; with --cpu a worker's share of the cores.",
		},
		{
			name: "enable-cpu-affinity", word: &w.enableCPUAffinity, kind: kindFlag, group: groupResources,
			help: "Workers bind themselves to CPUs near their GPU (ACCELERATE_CPU_AFFINITY).",
		},
		{
			name: "dynamo-backend", word: &w.dynamoBackend, noDefault: true,
			choices: []string{
				"no", "eager", "aot_eager", "inductor", "aot_ts_nvfuser", "nvprims_nvfuser", "cudagraphs", "ofi", "fx2trt",
				"onnxrt", "tensorrt", "aot_torchxla_trace_once", "torhchxla_trace_once", "tvm",
			}, group: groupResources,
			help: "Compiler behind torch.compile, ACCELERATE_DYNAMO_BACKEND of the workers. Default: no.",
		},
		{
			name: "dynamo-mode", word: &w.dynamoMode, def: "default", choices: []string{"default", "reduce-overhead", "max-autotune"},
			group: groupResources,
			help:  "What torch.compile optimizes for.",
		},
		{
			name: "dynamo-use-fullgraph", word: &w.dynamoUseFullgraph, kind: kindFlag, group: groupResources,
			help: "torch.compile refuses models that are not one graph.",
		},
		{
			name: "dynamo-use-dynamic", word: &w.dynamoUseDynamic, kind: kindFlag, group: groupResources,
			help: "torch.compile expects shapes that vary.",
		},
		{
			name: "dynamo-use-regional-compilation", word: &w.dynamoUseRegionalCompilation, kind: kindFlag, group: groupResources,
			help: "torch.compile works on repeated blocks of the model, not on all of it at once.",
		},
		{
			name: "use-deepspeed", word: &w.useDeepspeed, kind: kindFlag, group: groupParadigm,
			help: "Train with DeepSpeed.",
		},
		{
			name: "use-fsdp", word: &w.useFSDP, kind: kindFlag, group: groupParadigm,
			help: "Train with fully sharded data parallelism.",
		},
		{
			name: "use-parallelism-config", word: &w.useParallelismConfig, kind: kindFlag, group: groupParadigm,
			help: "Arrange the workers by the sizes of --parallelism-config-…; needs --use-fsdp with version 2, or DeepSpeed.",
		},
		{
			name: "use-megatron-lm", word: &w.useMegatronLM, kind: kindFlag, group: groupParadigm,
			help: "Train with Megatron-LM.",
		},
		{
			name: "gpu-ids", word: &w.gpuIDs, noDefault: true, arg: "LIST", group: groupMachines,
			help: "Accelerators of this machine to use, as in 0,1, or all. Default: all.",
		},
		{
			name: "same-network", word: &w.sameNetwork, kind: kindFlag, group: groupMachines,
			help: "The machines share a network. Makes no difference here: they meet at the address of the main process either way.",
		},
		{
			name: "machine-rank", word: &w.machineRank, kind: kindInt, noDefault: true, arg: "N", group: groupMachines,
			help: "Rank of this machine with the static rendezvous, from 0. Default: 0 on one machine.",
		},
		{
			name: "main-process-ip", word: &w.mainProcessIP, noDefault: true, arg: "HOST", group: groupMachines,
			help: "Name or address of the machine with rank 0, the same on all of them.",
		},
		{
			name: "main-process-port", word: &w.mainProcessPort, kind: kindInt, noDefault: true, arg: "PORT", group: groupMachines,
			help: "Port on that machine; on one machine another one is taken where it is in use, and 0 is any free one. Default: 29500.",
		},
		{
			name: "tee", word: &w.tee, short: "t", def: "0", arg: "SPEC", group: groupLogs,
			help: "Streams that go to files and to the console: 0 none, 1 stdout, 2 stderr, 3 both, or by local rank, as in 0:3,1:2.",
		},
		{
			name: "log-dir", word: &w.logDir, noDefault: true, arg: "DIR", group: groupLogs,
			help: "Where the directory of this run is made. Default: a temporary one; /dev/null for none.",
		},
		{
			name: "role", word: &w.role, def: "default", arg: "NAME", group: groupCommand,
			help: "Name of the workers' role, seen by them as ROLE_NAME.",
		},
		{
			name: "rdzv-backend", word: &w.rdzvBackend, def: "static", suggested: meetingBackends(), arg: "NAME", group: groupMachines,
			help: "How machines meet: static (fixed ranks), c10d, muster or etcd, as in muster torchrun --help.",
		},
		{
			name: "rdzv-conf", word: &w.rdzvConf, arg: "KEY=VALUE,...", group: groupMachines,
			help: "Settings of the rendezvous, such as join_timeout=600 (seconds).",
		},
		{
			name: "max-restarts", word: &w.maxRestarts, kind: kindInt, def: "0", arg: "N", group: groupExits,
			help: "How often the workers are started anew after a failure.",
		},
		{
			name: "monitor-interval", word: &w.monitorInterval, kind: kindFloat, def: "0.1", arg: "SECONDS", group: groupExits,
			help: "How often torchrun looks at its workers. muster sees exits at once and only checks the number.",
		},
		{
			name: "mpirun-hostfile", word: &w.mpirunHostfile, noDefault: true, arg: "FILE", group: groupMachines,
			help: "Hostfile of MPI: muster itself starts the workers of a CPU job on those machines, without mpirun.",
		},
		{
			name: "tpu-cluster", word: &w.tpuCluster, kind: kindFlag, group: groupTPU,
			help: "A pod of TPUs. No effect without --tpu.",
		},
		{
			name: "no-tpu-cluster", kind: kindFlag, group: groupTPU,
			help: "The opposite. No effect without --tpu.",
		},
		{
			name: "tpu-use-sudo", kind: kindFlag, group: groupTPU,
			help: "No effect without --tpu.",
		},
		{
			name: "vm", noDefault: true, arg: "NAME", group: groupTPU,
			help: "No effect without --tpu.",
		},
		{
			name: "env", noDefault: true, arg: "NAME=VALUE", group: groupTPU,
			help: "No effect without --tpu.",
		},
		{
			name: "main-training-function", noDefault: true, arg: "NAME", group: groupTPU,
			help: "No effect without --tpu.",
		},
		{
			name: "downcast-bf16", kind: kindFlag, group: groupTPU,
			help: "No effect without --tpu.",
		},
		{
			name: "aws-access-key-id", word: &w.awsAccessKeyID, noDefault: true, arg: "KEY", group: groupAWS,
			help: "Refused: muster starts no jobs of SageMaker.",
		},
		{
			name: "aws-secret-access-key", word: &w.awsSecretAccessKey, noDefault: true, arg: "KEY", group: groupAWS,
			help: "Refused: muster starts no jobs of SageMaker.",
		},
	}
}

// accelerateDeepSpeed are the options for DeepSpeed.
func accelerateDeepSpeed(w *accelerateWords) []option {
	return []option{
		{
			name: "deepspeed-config-file", word: &w.deepspeedConfigFile, noDefault: true, arg: "FILE", group: groupDeepSpeed,
			help: "DeepSpeed's own configuration file, read by the workers.",
		},
		{
			name: "zero-stage", word: &w.zeroStage, kind: kindInt, noDefault: true, arg: "N", group: groupDeepSpeed,
			help: "ZeRO stage, 0 to 3.",
		},
		{
			name: "offload-optimizer-device", word: &w.offloadOptimizerDevice, noDefault: true, arg: "DEVICE", group: groupDeepSpeed,
			help: "Where optimizer states lie: none, cpu or nvme.",
		},
		{
			name: "offload-param-device", word: &w.offloadParamDevice, noDefault: true, arg: "DEVICE", group: groupDeepSpeed,
			help: "Where parameters lie: none, cpu or nvme.",
		},
		{
			name: "offload-optimizer-nvme-path", word: &w.offloadOptimizerNvmePath, noDefault: true, arg: "DIR", group: groupDeepSpeed,
			help: "Directory for optimizer states on NVMe.",
		},
		{
			name: "offload-param-nvme-path", word: &w.offloadParamNvmePath, noDefault: true, arg: "DIR", group: groupDeepSpeed,
			help: "Directory for parameters on NVMe.",
		},
		{
			name: "gradient-accumulation-steps", word: &w.gradientAccumulationSteps, kind: kindInt, noDefault: true, arg: "N",
			group: groupDeepSpeed,
			help:  "Batches whose gradients are added up before a step.",
		},
		{
			name: "gradient-clipping", word: &w.gradientClipping, kind: kindFloat, noDefault: true, arg: "NORM", group: groupDeepSpeed,
			help: "Norm to which gradients are clipped.",
		},
		{
			name: "zero3-init-flag", word: &w.zero3InitFlag, noDefault: true, arg: "BOOL", group: groupDeepSpeed,
			help: "true or false: stage 3 builds the model in shards.",
		},
		{
			name: "zero3-save-16bit-model", word: &w.zero3Save16bitModel, noDefault: true, arg: "BOOL", group: groupDeepSpeed,
			help: "true or false: stage 3 saves 16-bit weights.",
		},
		{
			name: "deepspeed-hostfile", word: &w.deepspeedHostfile, noDefault: true, arg: "FILE", group: groupDeepSpeed,
			help: "DeepSpeed's hostfile with lines HOST slots=N: muster itself starts the job on those machines.",
		},
		{
			name: "deepspeed-exclusion-filter", word: &w.deepspeedExclusionFilter, noDefault: true, arg: "FILTER", group: groupDeepSpeed,
			help: "Machines or slots of the hostfile to leave out, as in worker-1:0@worker-2.",
		},
		{
			name: "deepspeed-inclusion-filter", word: &w.deepspeedInclusionFilter, noDefault: true, arg: "FILTER", group: groupDeepSpeed,
			help: "Machines or slots of the hostfile to use, and no others.",
		},
		{
			name: "deepspeed-multinode-launcher", word: &w.deepspeedMultinodeLauncher, noDefault: true, suggested: []string{
				"standard", "nossh", "pdsh", "openmpi", "mvapich",
				"mpich", "slurm",
			}, arg: "NAME", group: groupDeepSpeed,
			help: "How several machines are reached: standard (this command runs on each of them, as with torchrun), nossh (the same, " +
				"with the hostfile's slots), or pdsh, openmpi, mvapich, mpich, slurm, for all of which muster starts the machines of " +
				"the hostfile itself. Default: pdsh.",
		},
		{
			name: "deepspeed-moe-layer-cls-names", word: &w.deepspeedMoeLayerClsNames, noDefault: true, arg: "NAMES", group: groupDeepSpeed,
			help: "Classes of the model's mixture-of-experts layers, with commas between.",
		},
	}
}
