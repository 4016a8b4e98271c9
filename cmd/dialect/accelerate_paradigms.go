package dialect

// accelerateFSDP are the options for fully sharded data parallelism.
func accelerateFSDP(w *accelerateWords) []option {
	return []option{
		{
			name: "fsdp-version", word: &w.fsdpVersion, def: "1", choices: []string{"1", "2"}, group: groupFSDP,
			help: "Version of FSDP.",
		},
		{
			name: "fsdp-offload-params", word: &w.fsdpOffloadParams, def: "false", arg: "BOOL", group: groupFSDP,
			help: "true or false: parameters and gradients lie in CPU memory.",
		},
		{
			name: "fsdp-min-num-params", kind: kindInt, def: "100000000", arg: "N", group: groupFSDP,
			help: "Parameters from which on SIZE_BASED_WRAP wraps a module.",
		},
		{
			name: "fsdp-sharding-strategy", def: "FULL_SHARD", arg: "NAME", group: groupFSDP,
			help: "Version 1: FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD or HYBRID_SHARD_ZERO2.",
		},
		{
			name: "fsdp-reshard-after-forward", word: &w.fsdpReshardAfterForward, def: "true", arg: "WORD", group: groupFSDP,
			help: "true or false with version 2; a sharding strategy with version 1.",
		},
		{
			name: "fsdp-auto-wrap-policy", noDefault: true, arg: "NAME", group: groupFSDP,
			help: "TRANSFORMER_BASED_WRAP, SIZE_BASED_WRAP or NO_WRAP.",
		},
		{
			name: "fsdp-transformer-layer-cls-to-wrap", word: &w.fsdpTransformerLayerClsToWrap, noDefault: true, arg: "NAMES",
			group: groupFSDP,
			help:  "Classes of the layers that TRANSFORMER_BASED_WRAP wraps, with commas between.",
		},
		{
			name: "fsdp-backward-prefetch", noDefault: true, arg: "NAME", group: groupFSDP,
			help: "Version 1: BACKWARD_PRE, BACKWARD_POST or NO_PREFETCH.",
		},
		{
			name: "fsdp-state-dict-type", noDefault: true, arg: "NAME", group: groupFSDP,
			help: "FULL_STATE_DICT, LOCAL_STATE_DICT or SHARDED_STATE_DICT.",
		},
		{
			name: "fsdp-forward-prefetch", word: &w.fsdpForwardPrefetch, def: "false", arg: "BOOL", group: groupFSDP,
			help: "true or false: the next gather begins during the forward pass.",
		},
		{
			name: "fsdp-use-orig-params", word: &w.fsdpUseOrigParams, def: "true", arg: "BOOL", group: groupFSDP,
			help: "true or false: parameters of one unit may differ in requires_grad.",
		},
		{
			name: "fsdp-cpu-ram-efficient-loading", word: &w.fsdpCPURamEfficientLoading, def: "true", arg: "BOOL", group: groupFSDP,
			help: "true or false: only rank 0 reads the weights, and sends them to the others.",
		},
		{
			name: "fsdp-sync-module-states", word: &w.fsdpSyncModuleStates, def: "true", arg: "BOOL", group: groupFSDP,
			help: "true or false: rank 0 sends its parameters to the others at the start.",
		},
		{
			name: "fsdp-activation-checkpointing", word: &w.fsdpActivationCheckpointing, def: "false", arg: "BOOL", group: groupFSDP,
			help: "true or false: activations are computed anew in the backward pass.",
		},
		{
			name: "fsdp-activation-checkpointing-offload", word: &w.fsdpActivationCheckpointingOffload, def: "false", arg: "BOOL",
			group: groupFSDP,
			help:  "true or false: what remains of them lies in pinned CPU memory.",
		},
	}
}

// accelerateFP8 are the options for 8-bit training.
func accelerateFP8(w *accelerateWords) []option {
	return []option{
		{
			name: "fp8-backend", noDefault: true, choices: []string{"ao", "te", "msamp"}, group: groupFP8,
			help: "Library for FP8: ao (torchao), te (Transformer Engine) or msamp (MS-AMP).",
		},
		{
			name: "fp8-use-autocast-during-eval", kind: kindFlag, group: groupFP8,
			help: "te: FP8 is used in evaluation, too.",
		},
		{
			name: "fp8-margin", kind: kindInt, def: "0", arg: "N", group: groupFP8,
			help: "te: margin of the scaling factor.",
		},
		{
			name: "fp8-interval", kind: kindInt, def: "1", arg: "N", group: groupFP8,
			help: "te: steps between two scaling factors.",
		},
		{
			name: "fp8-format", def: "HYBRID", choices: []string{"HYBRID", "E4M3", "E5M2"}, group: groupFP8,
			help: "te: format of the recipe.",
		},
		{
			name: "fp8-amax-history-len", kind: kindInt, def: "1024", arg: "N", group: groupFP8,
			help: "te: how many steps the scaling factor looks back.",
		},
		{
			name: "fp8-amax-compute-algo", def: "most_recent", choices: []string{"max", "most_recent"}, group: groupFP8,
			help: "te: how it is made of them.",
		},
		{
			name: "fp8-override-linear-precision", word: &w.fp8OverrideLinearPrecision, def: "False,False,False", arg: "BOOL",
			hideDefault: true, group: groupFP8,
			help: "te: three of true or false with commas between, for fprop, dgrad and wgrad in higher precision. Default: " +
				"false,false,false.",
		},
		{
			name: "fp8-opt-level", def: "O2", choices: []string{"O1", "O2"}, group: groupFP8,
			help: "msamp: optimization level.",
		},
		{
			name: "fp8-enable-fsdp-float8-all-gather", word: &w.fp8EnableFSDPFloat8AllGather, def: "true", arg: "BOOL", group: groupFP8,
			help: "ao: true or false, FSDP2 gathers in FP8.",
		},
		{
			name: "fp8-pad-inner-dim", word: &w.fp8PadInnerDim, def: "true", arg: "BOOL", group: groupFP8,
			help: "ao: true or false, the inner dimension is padded.",
		},
	}
}

// accelerateParallelism are the sizes of parallelism in several dimensions.
func accelerateParallelism(w *accelerateWords) []option {
	return []option{
		{
			name: "parallelism-config-dp-replicate-size", kind: kindInt, def: "1", arg: "N", group: groupParallelism,
			help: "Size of data parallelism by replicas.",
		},
		{
			name: "parallelism-config-dp-shard-size", kind: kindInt, def: "1", arg: "N", group: groupParallelism,
			help: "Size of data parallelism by shards.",
		},
		{
			name: "parallelism-config-tp-size", kind: kindInt, def: "1", arg: "N", group: groupParallelism,
			help: "Size of tensor parallelism.",
		},
		{
			name: "parallelism-config-cp-size", word: &w.parallelismConfigCpSize, kind: kindInt, def: "1", arg: "N",
			group: groupParallelism,
			help:  "Size of context parallelism.",
		},
		{
			name: "parallelism-config-cp-backend", def: "torch", choices: []string{"torch"}, group: groupParallelism,
			help: "What context parallelism is made by.",
		},
		{
			name: "parallelism-config-cp-comm-strategy", word: &w.parallelismConfigCpCommStrategy, def: "allgather", arg: "WORD",
			group: groupParallelism,
			help:  "allgather or alltoall.",
		},
		{
			name: "parallelism-config-sp-size", word: &w.parallelismConfigSpSize, kind: kindInt, def: "1", arg: "N",
			group: groupParallelism,
			help:  "Size of sequence parallelism.",
		},
		{
			name: "parallelism-config-sp-backend", def: "deepspeed", choices: []string{"deepspeed"}, group: groupParallelism,
			help: "What sequence parallelism is made by.",
		},
		{
			name: "parallelism-config-sp-seq-length", word: &w.parallelismConfigSpSeqLength, noDefault: true, arg: "WORD",
			group: groupParallelism,
			help:  "Length of all sequences where they are alike.",
		},
		{
			name: "parallelism-config-sp-seq-length-is-variable", word: &w.parallelismConfigSpSeqLengthIsVariable, def: "true",
			arg: "BOOL", group: groupParallelism,
			help: "true or false: sequences differ in length.",
		},
		{
			name: "parallelism-config-sp-attn-implementation", word: &w.parallelismConfigSpAttnImplementation, def: "sdpa", arg: "WORD",
			group: groupParallelism,
			help:  "Implementation of attention, such as sdpa or flash_attention_2.",
		},
	}
}

// accelerateMegatron are the options for Megatron-LM.
func accelerateMegatron(w *accelerateWords) []option {
	return []option{
		{
			name: "megatron-lm-tp-degree", kind: kindInt, def: "1", arg: "N", group: groupMegatron,
			help: "Degree of tensor parallelism.",
		},
		{
			name: "megatron-lm-use-custom-fsdp", word: &w.megatronLMUseCustomFSDP, def: "false", arg: "BOOL", group: groupMegatron,
			help: "true or false: Megatron-LM's own FSDP.",
		},
		{
			name: "megatron-lm-no-load-optim", word: &w.megatronLMNoLoadOptim, def: "false", arg: "BOOL", group: groupMegatron,
			help: "true or false: the optimizer is not loaded.",
		},
		{
			name: "megatron-lm-eod-mask-loss", word: &w.megatronLMEodMaskLoss, def: "false", arg: "BOOL", group: groupMegatron,
			help: "true or false: the loss skips ends of documents.",
		},
		{
			name: "megatron-lm-overlap-cpu-optimizer-d2h-h2d", word: &w.megatronLMOverlapCPUOptimizerD2hH2d, def: "false", arg: "BOOL",
			group: groupMegatron,
			help:  "true or false: copies overlap with the optimizer on the CPU.",
		},
		{
			name: "megatron-lm-no-save-optim", word: &w.megatronLMNoSaveOptim, def: "false", arg: "BOOL", group: groupMegatron,
			help: "true or false: the optimizer is not saved.",
		},
		{
			name: "megatron-lm-optimizer-cpu-offload", word: &w.megatronLMOptimizerCPUOffload, def: "false", arg: "BOOL",
			group: groupMegatron,
			help:  "true or false: the optimizer runs on the CPU.",
		},
		{
			name: "megatron-lm-use-precision-aware-optimizer", word: &w.megatronLMUsePrecisionAwareOptimizer, def: "false", arg: "BOOL",
			group: groupMegatron,
			help:  "true or false: the optimizer may keep its states in other precisions.",
		},
		{
			name: "megatron-lm-decoder-last-pipeline-num-layers", kind: kindInt, noDefault: true, arg: "N", group: groupMegatron,
			help: "Layers of the last pipeline stage. Default: an even share.",
		},
		{
			name: "megatron-lm-pp-degree", kind: kindInt, def: "1", arg: "N", group: groupMegatron,
			help: "Degree of pipeline parallelism.",
		},
		{
			name: "megatron-lm-num-micro-batches", kind: kindInt, noDefault: true, arg: "N", group: groupMegatron,
			help: "Micro-batches of a pipeline.",
		},
		{
			name: "megatron-lm-sequence-parallelism", word: &w.megatronLMSequenceParallelism, noDefault: true, arg: "BOOL",
			group: groupMegatron,
			help:  "true or false: sequence parallelism beside tensor parallelism.",
		},
		{
			name: "megatron-lm-recompute-activations", word: &w.megatronLMRecomputeActivations, noDefault: true, arg: "BOOL",
			group: groupMegatron,
			help:  "true or false: selective recomputation of activations.",
		},
		{
			name: "megatron-lm-use-distributed-optimizer", word: &w.megatronLMUseDistributedOptimizer, noDefault: true, arg: "BOOL",
			group: groupMegatron,
			help:  "true or false: data parallel ranks share out the optimizer.",
		},
		{
			name: "megatron-lm-gradient-clipping", kind: kindFloat, def: "1.0", arg: "X", group: groupMegatron,
			help: "Norm to which gradients are clipped, 0 for none.",
		},
		{
			name: "megatron-lm-recompute-granularity", noDefault: true, arg: "WORD", group: groupMegatron,
			help: "full or selective.",
		},
		{
			name: "megatron-lm-recompute-method", noDefault: true, arg: "WORD", group: groupMegatron,
			help: "uniform or block.",
		},
		{
			name: "megatron-lm-recompute-num-layers", kind: kindInt, noDefault: true, arg: "N", group: groupMegatron,
			help: "Layers to recompute.",
		},
		{
			name: "megatron-lm-attention-backend", word: &w.megatronLMAttentionBackend, noDefault: true, arg: "BOOL", group: groupMegatron,
			help: "true or false: an attention backend.",
		},
		{
			name: "megatron-lm-expert-model-parallel-size", kind: kindInt, noDefault: true, arg: "N", group: groupMegatron,
			help: "Size of expert parallelism.",
		},
		{
			name: "megatron-lm-context-parallel-size", kind: kindInt, noDefault: true, arg: "N", group: groupMegatron,
			help: "Size of context parallelism.",
		},
		{
			name: "megatron-lm-attention-dropout", kind: kindFloat, noDefault: true, arg: "X", group: groupMegatron,
			help: "Dropout of attention.",
		},
		{
			name: "megatron-lm-hidden-dropout", kind: kindFloat, noDefault: true, arg: "X", group: groupMegatron,
			help: "Dropout of hidden layers.",
		},
		{
			name: "megatron-lm-attention-softmax-in-fp32", word: &w.megatronLMAttentionSoftmaxInFp32, noDefault: true, arg: "BOOL",
			group: groupMegatron,
			help:  "true or false: softmax of attention in 32 bits.",
		},
		{
			name: "megatron-lm-expert-tensor-parallel-size", kind: kindInt, noDefault: true, arg: "N", group: groupMegatron,
			help: "Size of tensor parallelism among experts.",
		},
		{
			name: "megatron-lm-calculate-per-token-loss", word: &w.megatronLMCalculatePerTokenLoss, noDefault: true, arg: "BOOL",
			group: groupMegatron,
			help:  "true or false: the loss is by token.",
		},
		{
			name: "megatron-lm-use-rotary-position-embeddings", word: &w.megatronLMUseRotaryPositionEmbeddings, noDefault: true,
			arg: "BOOL", group: groupMegatron,
			help: "true or false: rotary position embeddings.",
		},
	}
}
