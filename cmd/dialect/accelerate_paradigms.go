package dialect

// accelerateFSDP are the options for fully sharded data parallelism.
func accelerateFSDP() []option {
	return []option{
		{
			long: "fsdp-version", def: "1", choices: []string{"1", "2"}, group: groupFSDP,
			help: "Version of FSDP.",
		},
		{
			long: "fsdp-offload-params", def: "false", arg: "BOOL", group: groupFSDP,
			help: "true or false: parameters and gradients lie in CPU memory.",
		},
		{
			long: "fsdp-min-num-params", kind: kindInt, def: "100000000", arg: "N", group: groupFSDP,
			help: "Parameters from which on SIZE_BASED_WRAP wraps a module.",
		},
		{
			long: "fsdp-sharding-strategy", def: "FULL_SHARD", arg: "NAME", group: groupFSDP,
			help: "Version 1: FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD or HYBRID_SHARD_ZERO2.",
		},
		{
			long: "fsdp-reshard-after-forward", def: "true", arg: "WORD", group: groupFSDP,
			help: "true or false with version 2; a sharding strategy with version 1.",
		},
		{
			long: "fsdp-auto-wrap-policy", noDefault: true, arg: "NAME", group: groupFSDP,
			help: "TRANSFORMER_BASED_WRAP, SIZE_BASED_WRAP or NO_WRAP.",
		},
		{
			long: "fsdp-transformer-layer-cls-to-wrap", noDefault: true, arg: "NAMES", group: groupFSDP,
			help: "Classes of the layers that TRANSFORMER_BASED_WRAP wraps, with commas between.",
		},
		{
			long: "fsdp-backward-prefetch", noDefault: true, arg: "NAME", group: groupFSDP,
			help: "Version 1: BACKWARD_PRE, BACKWARD_POST or NO_PREFETCH.",
		},
		{
			long: "fsdp-state-dict-type", noDefault: true, arg: "NAME", group: groupFSDP,
			help: "FULL_STATE_DICT, LOCAL_STATE_DICT or SHARDED_STATE_DICT.",
		},
		{
			long: "fsdp-forward-prefetch", def: "false", arg: "BOOL", group: groupFSDP,
			help: "true or false: the next gather begins during the forward pass.",
		},
		{
			long: "fsdp-use-orig-params", def: "true", arg: "BOOL", group: groupFSDP,
			help: "true or false: parameters of one unit may differ in requires_grad.",
		},
		{
			long: "fsdp-cpu-ram-efficient-loading", def: "true", arg: "BOOL", group: groupFSDP,
			help: "true or false: only rank 0 reads the weights, and sends them to the others.",
		},
		{
			long: "fsdp-sync-module-states", def: "true", arg: "BOOL", group: groupFSDP,
			help: "true or false: rank 0 sends its parameters to the others at the start.",
		},
		{
			long: "fsdp-activation-checkpointing", def: "false", arg: "BOOL", group: groupFSDP,
			help: "true or false: activations are computed anew in the backward pass.",
		},
		{
			long: "fsdp-activation-checkpointing-offload", def: "false", arg: "BOOL", group: groupFSDP,
			help: "true or false: what remains of them lies in pinned CPU memory.",
		},
	}
}

// accelerateFP8 are the options for 8-bit training.
func accelerateFP8() []option {
	return []option{
		{
			long: "fp8-backend", noDefault: true, choices: []string{"ao", "te", "msamp"}, group: groupFP8,
			help: "Library for FP8: ao (torchao), te (Transformer Engine) or msamp (MS-AMP).",
		},
		{
			long: "fp8-use-autocast-during-eval", kind: kindFlag, group: groupFP8,
			help: "te: FP8 is used in evaluation, too.",
		},
		{
			long: "fp8-margin", kind: kindInt, def: "0", arg: "N", group: groupFP8,
			help: "te: margin of the scaling factor.",
		},
		{
			long: "fp8-interval", kind: kindInt, def: "1", arg: "N", group: groupFP8,
			help: "te: steps between two scaling factors.",
		},
		{
			long: "fp8-format", def: "HYBRID", choices: []string{"HYBRID", "E4M3", "E5M2"}, group: groupFP8,
			help: "te: format of the recipe.",
		},
		{
			long: "fp8-amax-history-len", kind: kindInt, def: "1024", arg: "N", group: groupFP8,
			help: "te: how many steps the scaling factor looks back.",
		},
		{
			long: "fp8-amax-compute-algo", def: "most_recent", choices: []string{"max", "most_recent"}, group: groupFP8,
			help: "te: how it is made of them.",
		},
		{
			long: "fp8-override-linear-precision", def: "False,False,False", arg: "BOOL", hideDefault: true, group: groupFP8,
			help: "te: three of true or false with commas between, for fprop, dgrad and wgrad in higher precision. Default: false,false,false.",
		},
		{
			long: "fp8-opt-level", def: "O2", choices: []string{"O1", "O2"}, group: groupFP8,
			help: "msamp: optimization level.",
		},
		{
			long: "fp8-enable-fsdp-float8-all-gather", def: "true", arg: "BOOL", group: groupFP8,
			help: "ao: true or false, FSDP2 gathers in FP8.",
		},
		{
			long: "fp8-pad-inner-dim", def: "true", arg: "BOOL", group: groupFP8,
			help: "ao: true or false, the inner dimension is padded.",
		},
	}
}

// accelerateParallelism are the sizes of parallelism in several dimensions.
func accelerateParallelism() []option {
	return []option{
		{
			long: "parallelism-config-dp-replicate-size", kind: kindInt, def: "1", arg: "N", group: groupParallelism,
			help: "Size of data parallelism by replicas.",
		},
		{
			long: "parallelism-config-dp-shard-size", kind: kindInt, def: "1", arg: "N", group: groupParallelism,
			help: "Size of data parallelism by shards.",
		},
		{
			long: "parallelism-config-tp-size", kind: kindInt, def: "1", arg: "N", group: groupParallelism,
			help: "Size of tensor parallelism.",
		},
		{
			long: "parallelism-config-cp-size", kind: kindInt, def: "1", arg: "N", group: groupParallelism,
			help: "Size of context parallelism.",
		},
		{
			long: "parallelism-config-cp-backend", def: "torch", choices: []string{"torch"}, group: groupParallelism,
			help: "What context parallelism is made by.",
		},
		{
			long: "parallelism-config-cp-comm-strategy", def: "allgather", arg: "WORD", group: groupParallelism,
			help: "allgather or alltoall.",
		},
		{
			long: "parallelism-config-sp-size", kind: kindInt, def: "1", arg: "N", group: groupParallelism,
			help: "Size of sequence parallelism.",
		},
		{
			long: "parallelism-config-sp-backend", def: "deepspeed", choices: []string{"deepspeed"}, group: groupParallelism,
			help: "What sequence parallelism is made by.",
		},
		{
			long: "parallelism-config-sp-seq-length", noDefault: true, arg: "WORD", group: groupParallelism,
			help: "Length of all sequences where they are alike.",
		},
		{
			long: "parallelism-config-sp-seq-length-is-variable", def: "true", arg: "BOOL", group: groupParallelism,
			help: "true or false: sequences differ in length.",
		},
		{
			long: "parallelism-config-sp-attn-implementation", def: "sdpa", arg: "WORD", group: groupParallelism,
			help: "Implementation of attention, such as sdpa or flash_attention_2.",
		},
	}
}

// accelerateMegatron are the options for Megatron-LM.
func accelerateMegatron() []option {
	return []option{
		{
			long: "megatron-lm-tp-degree", kind: kindInt, def: "1", arg: "N", group: groupMegatron,
			help: "Degree of tensor parallelism.",
		},
		{
			long: "megatron-lm-use-custom-fsdp", def: "false", arg: "BOOL", group: groupMegatron,
			help: "true or false: Megatron-LM's own FSDP.",
		},
		{
			long: "megatron-lm-no-load-optim", def: "false", arg: "BOOL", group: groupMegatron,
			help: "true or false: the optimizer is not loaded.",
		},
		{
			long: "megatron-lm-eod-mask-loss", def: "false", arg: "BOOL", group: groupMegatron,
			help: "true or false: the loss skips ends of documents.",
		},
		{
			long: "megatron-lm-overlap-cpu-optimizer-d2h-h2d", def: "false", arg: "BOOL", group: groupMegatron,
			help: "true or false: copies overlap with the optimizer on the CPU.",
		},
		{
			long: "megatron-lm-no-save-optim", def: "false", arg: "BOOL", group: groupMegatron,
			help: "true or false: the optimizer is not saved.",
		},
		{
			long: "megatron-lm-optimizer-cpu-offload", def: "false", arg: "BOOL", group: groupMegatron,
			help: "true or false: the optimizer runs on the CPU.",
		},
		{
			long: "megatron-lm-use-precision-aware-optimizer", def: "false", arg: "BOOL", group: groupMegatron,
			help: "true or false: the optimizer may keep its states in other precisions.",
		},
		{
			long: "megatron-lm-decoder-last-pipeline-num-layers", kind: kindInt, noDefault: true, arg: "N", group: groupMegatron,
			help: "Layers of the last pipeline stage. Default: an even share.",
		},
		{
			long: "megatron-lm-pp-degree", kind: kindInt, def: "1", arg: "N", group: groupMegatron,
			help: "Degree of pipeline parallelism.",
		},
		{
			long: "megatron-lm-num-micro-batches", kind: kindInt, noDefault: true, arg: "N", group: groupMegatron,
			help: "Micro-batches of a pipeline.",
		},
		{
			long: "megatron-lm-sequence-parallelism", noDefault: true, arg: "BOOL", group: groupMegatron,
			help: "true or false: sequence parallelism beside tensor parallelism.",
		},
		{
			long: "megatron-lm-recompute-activations", noDefault: true, arg: "BOOL", group: groupMegatron,
			help: "true or false: selective recomputation of activations.",
		},
		{
			long: "megatron-lm-use-distributed-optimizer", noDefault: true, arg: "BOOL", group: groupMegatron,
			help: "true or false: data parallel ranks share out the optimizer.",
		},
		{
			long: "megatron-lm-gradient-clipping", kind: kindFloat, def: "1.0", arg: "X", group: groupMegatron,
			help: "Norm to which gradients are clipped, 0 for none.",
		},
		{
			long: "megatron-lm-recompute-granularity", noDefault: true, arg: "WORD", group: groupMegatron,
			help: "full or selective.",
		},
		{
			long: "megatron-lm-recompute-method", noDefault: true, arg: "WORD", group: groupMegatron,
			help: "uniform or block.",
		},
		{
			long: "megatron-lm-recompute-num-layers", kind: kindInt, noDefault: true, arg: "N", group: groupMegatron,
			help: "Layers to recompute.",
		},
		{
			long: "megatron-lm-attention-backend", noDefault: true, arg: "BOOL", group: groupMegatron,
			help: "true or false: an attention backend.",
		},
		{
			long: "megatron-lm-expert-model-parallel-size", kind: kindInt, noDefault: true, arg: "N", group: groupMegatron,
			help: "Size of expert parallelism.",
		},
		{
			long: "megatron-lm-context-parallel-size", kind: kindInt, noDefault: true, arg: "N", group: groupMegatron,
			help: "Size of context parallelism.",
		},
		{
			long: "megatron-lm-attention-dropout", kind: kindFloat, noDefault: true, arg: "X", group: groupMegatron,
			help: "Dropout of attention.",
		},
		{
			long: "megatron-lm-hidden-dropout", kind: kindFloat, noDefault: true, arg: "X", group: groupMegatron,
			help: "Dropout of hidden layers.",
		},
		{
			long: "megatron-lm-attention-softmax-in-fp32", noDefault: true, arg: "BOOL", group: groupMegatron,
			help: "true or false: softmax of attention in 32 bits.",
		},
		{
			long: "megatron-lm-expert-tensor-parallel-size", kind: kindInt, noDefault: true, arg: "N", group: groupMegatron,
			help: "Size of tensor parallelism among experts.",
		},
		{
			long: "megatron-lm-calculate-per-token-loss", noDefault: true, arg: "BOOL", group: groupMegatron,
			help: "true or false: the loss is by token.",
		},
		{
			long: "megatron-lm-use-rotary-position-embeddings", noDefault: true, arg: "BOOL", group: groupMegatron,
			help: "true or false: rotary position embeddings.",
		},
	}
}
