package dialect

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"muster/internal/errhint"
	"muster/launch/job"
)

// set gives the workers a variable.
func (a *accelerateJob) set(name, text string, source job.Source) {
	a.vars = append(a.vars, job.Var{Name: name, Value: text, Source: source})
}

// by is the source of a variable that follows from an option, wherever that has its value from.
func (a *accelerateJob) by(word *value) job.Source {
	source := word.source
	if source.Kind == job.FromDefault {
		source.Name = "--" + word.option.name
	}
	return source
}

// python is str() of the option's value in accelerate.
func (v value) python() string {
	if v.source.Kind == job.FromConfig {
		return v.text
	}
	switch v.option.kind {
	case kindFlag:
		return pythonBool(v.on)
	case kindInt:
		return strconv.Itoa(v.n)
	case kindFloat:
		return pythonFloat(v.f)
	default:
		return v.text
	}
}

// tell sets a variable to the option's value, unless that is None.
func (a *accelerateJob) tell(name string, word *value) {
	if !word.none {
		a.set(name, word.python(), a.by(word))
	}
}

// tellLower is tell in lower case.
func (a *accelerateJob) tellLower(name string, word *value) {
	if !word.none {
		a.set(name, strings.ToLower(word.python()), a.by(word))
	}
}

// bools are words that accelerate hands to Python's bool, which takes any word for true.
func (w *accelerateWords) bools() []*value {
	return []*value{
		&w.megatronLMUseCustomFSDP, &w.megatronLMNoLoadOptim, &w.megatronLMEodMaskLoss,
		&w.megatronLMOverlapCPUOptimizerD2hH2d, &w.megatronLMNoSaveOptim, &w.megatronLMOptimizerCPUOffload,
		&w.megatronLMUsePrecisionAwareOptimizer, &w.parallelismConfigSpSeqLengthIsVariable,
	}
}

// numbers are words that accelerate hands to its str_to_bool.
func (w *accelerateWords) numbers() []*value {
	return []*value{
		&w.fp8EnableFSDPFloat8AllGather, &w.fp8PadInnerDim,
	}
}

// truths are words for truth values that accelerate hands on as they are.
func (w *accelerateWords) truths() []*value {
	return []*value{
		&w.fsdpOffloadParams, &w.fsdpForwardPrefetch, &w.fsdpUseOrigParams, &w.fsdpCPURamEfficientLoading,
		&w.fsdpSyncModuleStates, &w.fsdpActivationCheckpointing, &w.fsdpActivationCheckpointingOffload, &w.zero3InitFlag,
		&w.zero3Save16bitModel, &w.megatronLMSequenceParallelism, &w.megatronLMRecomputeActivations,
		&w.megatronLMUseDistributedOptimizer, &w.megatronLMAttentionBackend, &w.megatronLMAttentionSoftmaxInFp32,
		&w.megatronLMCalculatePerTokenLoss, &w.megatronLMUseRotaryPositionEmbeddings,
	}
}

// words checks what workers would stumble over, and writes truth values as accelerate does.
func (a *accelerateJob) words() {
	bools, numbers := a.w.bools(), a.w.numbers()
	for _, v := range slices.Concat(bools, numbers, a.w.truths()) {
		if v.none {
			continue
		}
		on, err := pythonTruth(v.text)
		switch {
		case err != nil:
			a.refuse(v, err)
		case slices.Contains(bools, v):
			v.text = pythonBool(on)
		case slices.Contains(numbers, v) && v.source.Kind != job.FromConfig:
			v.text = map[bool]string{true: "1", false: "0"}[on]
		}
	}
	a.word(&a.w.mixedPrecision, "no", "fp16", "bf16", "fp8")
	a.word(&a.w.dynamoBackend, "no", "eager", "aot_eager", "inductor", "aot_ts_nvfuser", "nvprims_nvfuser", "cudagraphs", "ofi",
		"fx2trt", "onnxrt",
		"tensorrt", "aot_torchxla_trace_once", "torhchxla_trace_once", "torchxla_trace_once", "tvm", "hpu_backend", "neuron")
	a.word(&a.w.dynamoMode, "default", "reduce-overhead", "max-autotune")
	a.word(&a.w.fsdpVersion, "1", "2")
	if stage := a.w.zeroStage; !stage.none && (stage.n < 0 || stage.n > 3) {
		a.refuse(&a.w.zeroStage, errors.New("give a number from 0 to 3"))
	}
}

// word holds the option against its words, in any case.
func (a *accelerateJob) word(v *value, words ...string) {
	if !v.none && !slices.Contains(words, strings.ToLower(v.text)) {
		a.refuse(v, fmt.Errorf("choose one of %s", strings.Join(words, ", ")))
	}
}

// rows are the options of a group.
func (a *accelerateJob) rows(group string) []*option {
	var rows []*option
	for i := range a.parser.options {
		if o := &a.parser.options[i]; o.group == group {
			rows = append(rows, o)
		}
	}
	return rows
}

// variables are those that workers get, in addition to torchelastic's.
func (a *accelerateJob) variables() {
	if a.launcher == simpleLauncher {
		source := a.by(&a.w.cpu)
		if !a.w.cpu.on && a.file.name != "" {
			source = job.Source{Kind: job.FromConfig, Name: a.file.name}
		}
		a.set("ACCELERATE_USE_CPU", pythonBool(a.cpu), source)
		if a.cpu {
			a.set("KMP_AFFINITY", "granularity=fine,compact,1,0", source)
			a.set("KMP_BLOCKTIME", "1", source)
		}
	}
	if a.outer {
		a.passMPI()
	}
	if a.w.debug.on {
		a.set("ACCELERATE_DEBUG_MODE", "true", a.by(&a.w.debug))
	}
	a.devices()
	a.precision()
	if a.launcher != deepspeedLauncher || a.w.dynamoBackend.explicit() {
		a.dynamo()
	}
	switch a.launcher {
	case torchLauncher:
		a.fsdp()
		a.megatron()
	case deepspeedLauncher:
		a.deepspeed()
	case simpleLauncher:
	}
	if a.launcher != deepspeedLauncher || a.w.numCPUThreadsPerProcess.explicit() {
		a.threads()
	}
	if a.w.enableCPUAffinity.on {
		a.set("ACCELERATE_CPU_AFFINITY", "1", a.by(&a.w.enableCPUAffinity))
	}
	if a.launcher != simpleLauncher && a.w.useParallelismConfig.on {
		a.parallelism()
	}
	a.idleVariables()
}

// idleVariables warns of muster's variables for options of ways to train that this job does not take, and of a meeting
// place. accelerate has no such variables, and makes nothing of the options, either.
func (a *accelerateJob) idleVariables() {
	taken := map[string]bool{
		groupDeepSpeed: a.w.useDeepspeed.on, groupFSDP: a.w.useFSDP.on, groupMegatron: a.w.useMegatronLM.on,
		groupFP8: a.w.mixedPrecision.text == "fp8", groupParallelism: a.w.useParallelismConfig.on,
	}
	var idle []string
	here := a.machines <= 1 && len(a.nodes) == 0 && !a.outer // where nobody is met
	for word, unread := range map[*value]bool{&a.w.mainProcessIP: here, &a.w.mainProcessPort: here && a.single} {
		if source := word.source; unread && source.Kind == job.FromVariable {
			idle = append(idle, source.Name)
		}
	}
	slices.Sort(idle)
	for i := range a.parser.options {
		o := &a.parser.options[i]
		if is, way := taken[o.group]; way && !is && o.word.source.Name == variable(ownPrefix, o.name) {
			idle = append(idle, variable(ownPrefix, o.name))
		}
	}
	if len(idle) > 0 {
		a.warn("no effect on this job, which meets no machines, or does not train in the way that they are for: %s",
			strings.Join(idle, ", "))
	}
}

// deviceMasks are the variables by which processes see some of their accelerators, by PyTorch's names for these.
var deviceMasks = map[string]string{
	"xpu": "ZE_AFFINITY_MASK", "mlu": "MLU_VISIBLE_DEVICES", "sdaa": "SDAA_VISIBLE_DEVICES", "musa": "MUSA_VISIBLE_DEVICES",
	"npu": "ASCEND_RT_VISIBLE_DEVICES", "hpu": "HABANA_VISIBLE_MODULES", "neuron": "NEURON_RT_VISIBLE_CORES",
}

// devices hides the accelerators that --gpu-ids does not name. Their kind is what distributed_type says, or what is
// found.
func (a *accelerateJob) devices() {
	ids := a.gpuIDs()
	if ids == nil {
		return
	}
	backend := strings.ToLower(strings.TrimPrefix(a.file.kind, "MULTI_"))
	if deviceMasks[backend] == "" {
		backend, _ = a.accelerators()
	}
	name := deviceMasks[backend]
	if name == "" {
		name = "CUDA_VISIBLE_DEVICES"
	}
	a.set(name, strings.Join(ids, ","), a.by(&a.w.gpuIDs))
}

func (a *accelerateJob) precision() {
	text := strings.ToLower(a.w.mixedPrecision.text)
	if a.w.mixedPrecision.none {
		text = "no"
	}
	a.set("ACCELERATE_MIXED_PRECISION", text, a.by(&a.w.mixedPrecision))
	if text != "fp8" {
		return
	}
	const prefix = "ACCELERATE_"
	for _, o := range a.rows(groupFP8) {
		v := o.word
		if v != &a.w.fp8OverrideLinearPrecision {
			a.tell(variable(prefix, o.name), v)
			continue
		}
		words := strings.Split(v.text, ",")
		if len(words) != 3 {
			a.refuse(v, errors.New("give three of true or false with commas between: for fprop, dgrad and wgrad"))
			continue
		}
		for i, name := range []string{"FPROP", "DGRAD", "WGRAD"} {
			on, err := pythonTruth(strings.TrimSpace(words[i]))
			a.refuse(v, err)
			text := pythonBool(on)
			if v.explicit() && v.source.Kind != job.FromConfig {
				text = map[bool]string{true: "1", false: "0"}[on]
			}
			a.set(prefix+"FP8_OVERRIDE_"+name, text, a.by(v))
		}
	}
	for _, v := range a.file.fp8 {
		a.set(prefix+strings.ToUpper(v.Name), v.Value, v.Source)
	}
}

func (a *accelerateJob) dynamo() {
	backend := strings.ToUpper(a.w.dynamoBackend.text)
	if a.w.dynamoBackend.none {
		backend = "NO"
	}
	if backend == "TORHCHXLA_TRACE_ONCE" { // accelerate's flag has a typing error, which its library does not
		backend = "TORCHXLA_TRACE_ONCE"
	}
	a.set("ACCELERATE_DYNAMO_BACKEND", backend, a.by(&a.w.dynamoBackend))
	for _, v := range []*value{
		&a.w.dynamoMode, &a.w.dynamoUseFullgraph, &a.w.dynamoUseDynamic, &a.w.dynamoUseRegionalCompilation,
	} {
		a.tell(variable("ACCELERATE_", v.option.name), v)
	}
}

func (a *accelerateJob) fsdp() {
	if !a.w.useFSDP.on {
		return
	}
	if sync := a.w.fsdpSyncModuleStates; sync.text == "False" && a.w.fsdpCPURamEfficientLoading.text != "False" {
		a.refuse(&a.w.fsdpSyncModuleStates,
			errhint.With(errors.New("with fsdp_cpu_ram_efficient_loading only rank 0 has the weights, and must send them"),
				"write true, or fsdp_cpu_ram_efficient_loading: false"))
	}
	a.set("ACCELERATE_USE_FSDP", "true", a.by(&a.w.useFSDP))
	truths := a.w.truths()
	for _, o := range a.rows(groupFSDP) {
		switch v := o.word; {
		case v == &a.w.fsdpTransformerLayerClsToWrap:
			a.tell("FSDP_TRANSFORMER_CLS_TO_WRAP", v)
		case slices.Contains(truths, v), v == &a.w.fsdpReshardAfterForward:
			a.tellLower(variable("", o.name), v)
		default:
			a.tell(variable("", o.name), v)
		}
	}
	if modules := a.file.ignoredModules; modules.text != "" {
		a.set("FSDP_IGNORED_MODULES", modules.text, modules.source)
	}
}

func (a *accelerateJob) megatron() {
	if !a.w.useMegatronLM.on {
		return
	}
	a.set("ACCELERATE_USE_MEGATRON_LM", "true", a.by(&a.w.useMegatronLM))
	for _, o := range a.rows(groupMegatron) {
		a.tell(variable("", o.name), o.word)
	}
}

func (a *accelerateJob) parallelism() {
	a.set("ACCELERATE_USE_PARALLELISM_CONFIG", "true", a.by(&a.w.useParallelismConfig))
	w := a.w
	for _, o := range a.rows(groupParallelism) {
		name, v := variable("", o.name), o.word
		switch v {
		case &w.parallelismConfigCpCommStrategy:
			if w.parallelismConfigCpSize.n > 1 {
				a.tell(name, v)
			}
		case &w.parallelismConfigSpSeqLength, &w.parallelismConfigSpSeqLengthIsVariable, &w.parallelismConfigSpAttnImplementation:
			if w.parallelismConfigSpSize.n <= 1 {
				continue
			}
			if v.none {
				a.set(name, "None", a.by(v))
			}
			a.tell(name, v)
		default:
			a.tell(name, v)
		}
	}
}

func (a *accelerateJob) deepspeed() {
	dir := a.inv.Dir
	if dir == "" {
		dir = "."
	}
	var paths []string
	for item := range strings.SplitSeq(a.env["PYTHONPATH"], ":") {
		if item != "" {
			paths = append(paths, item)
		}
	}
	a.set("PYTHONPATH", strings.Join(append(paths, dir), ":"),
		job.Source{Kind: job.FromDefault, Name: "what was set, and the working directory"})
	fields := slices.Clone(a.file.deepspeed)
	source := job.Source{Kind: job.FromDefault, Name: "no configuration file"}
	if a.file.name != "" {
		source = job.Source{Kind: job.FromConfig, Name: a.file.name}
		if a.file.precision {
			fields = append(fields, "mixed_precision")
		}
	}
	a.set("ACCELERATE_CONFIG_DS_FIELDS", strings.ToLower(strings.Join(fields, ",")), source)
	a.set("ACCELERATE_USE_DEEPSPEED", "true", a.by(&a.w.useDeepspeed))
	a.tell("ACCELERATE_DEEPSPEED_ZERO_STAGE", &a.w.zeroStage)
	a.tell("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", &a.w.gradientAccumulationSteps)
	a.tellLower("ACCELERATE_GRADIENT_CLIPPING", &a.w.gradientClipping)
	a.tellLower("ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE", &a.w.offloadOptimizerDevice)
	a.tellLower("ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE", &a.w.offloadParamDevice)
	a.tell("ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_NVME_PATH", &a.w.offloadOptimizerNvmePath)
	a.tell("ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_NVME_PATH", &a.w.offloadParamNvmePath)
	a.tellLower("ACCELERATE_DEEPSPEED_ZERO3_INIT", &a.w.zero3InitFlag)
	a.tellLower("ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL", &a.w.zero3Save16bitModel)
	a.tell("ACCELERATE_DEEPSPEED_CONFIG_FILE", &a.w.deepspeedConfigFile)
	a.tell("ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES", &a.w.deepspeedMoeLayerClsNames)
}

// threads is OMP_NUM_THREADS: the flag, else the variable as it is, else a worker's share of the cores where it
// computes on them, else 1.
func (a *accelerateJob) threads() {
	const name = "OMP_NUM_THREADS"
	if v := a.w.numCPUThreadsPerProcess; !v.none {
		if v.n < 1 {
			a.refuse(&a.w.numCPUThreadsPerProcess, errors.New("a worker needs at least 1 thread"))
		}
		a.tell(name, &a.w.numCPUThreadsPerProcess)
		return
	}
	source := job.Source{Kind: job.FromDefault, Name: "unless set"}
	n := 1
	if text := a.env[name]; text != "" {
		inherited, err := pyInt(text)
		if err != nil {
			a.wrong.add(fmt.Errorf("cannot use %s=%s: %w", name, text, err))
		}
		if inherited >= 0 {
			n, source = inherited, job.Source{Kind: job.FromVariable, Name: name}
		}
	}
	if a.cpu && (a.env[name] == "" || n == 0 || source.Kind == job.FromDefault) {
		local := max(a.procs/max(a.machines, 1), 1)
		for _, size := range []string{"MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE"} {
			if ranks, err := pyInt(a.env[size]); err == nil && ranks > 0 {
				local = ranks
				break
			}
		}
		if share := physicalCores(a.inv.Machine.Files) / local; share > 1 {
			n, source = share, job.Source{Kind: job.FromMuster, Name: "a worker's share of this machine's cores"}
		}
	}
	a.set(name, strconv.Itoa(n), source)
}

// physicalCores counts the cores of the machine, 0 where that cannot be told: each has one list of its hardware threads
// (Linux, Documentation/admin-guide/cputopology.rst).
func physicalCores(files fs.FS) int {
	if files == nil {
		return 0
	}
	const cpus = "sys/devices/system/cpu/cpu[0-9]*/topology/"
	found, err := fs.Glob(files, cpus+"core_cpus_list")
	if err != nil || len(found) == 0 {
		if found, err = fs.Glob(files, cpus+"thread_siblings_list"); err != nil {
			return 0
		}
	}
	cores := map[string]bool{}
	for _, name := range found {
		if list, err := fs.ReadFile(files, name); err == nil {
			cores[string(list)] = true
		}
	}
	return len(cores)
}
