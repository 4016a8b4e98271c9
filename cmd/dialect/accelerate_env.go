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
func (a *accelerateJob) by(dest string) job.Source {
	source := a.v[dest].source
	if source.Kind == job.FromDefault {
		source.Name = "--" + strings.ReplaceAll(dest, "_", "-")
	}
	return source
}

// python is str() of the option's value in accelerate.
func (a *accelerateJob) python(dest string) string {
	v := a.v[dest]
	if v.source.Kind == job.FromConfig {
		return v.text
	}
	switch a.option(dest).kind {
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
func (a *accelerateJob) tell(name, dest string) {
	if !a.v[dest].none {
		a.set(name, a.python(dest), a.by(dest))
	}
}

// tellLower is tell in lower case.
func (a *accelerateJob) tellLower(name, dest string) {
	if !a.v[dest].none {
		a.set(name, strings.ToLower(a.python(dest)), a.by(dest))
	}
}

// Words that are truth values: those that accelerate hands to Python's bool, which takes any word for true, those of
// its str_to_bool, and those that it hands on as they are.
var (
	accelerateBools = []string{
		"megatron_lm_use_custom_fsdp", "megatron_lm_no_load_optim", "megatron_lm_eod_mask_loss",
		"megatron_lm_overlap_cpu_optimizer_d2h_h2d",
		"megatron_lm_no_save_optim", "megatron_lm_optimizer_cpu_offload", "megatron_lm_use_precision_aware_optimizer",
		"parallelism_config_sp_seq_length_is_variable",
	}
	accelerateNumbers = []string{"fp8_enable_fsdp_float8_all_gather", "fp8_pad_inner_dim"}
	accelerateWords   = []string{
		"fsdp_offload_params", "fsdp_forward_prefetch", "fsdp_use_orig_params", "fsdp_cpu_ram_efficient_loading", "fsdp_sync_module_states",
		"fsdp_activation_checkpointing", "fsdp_activation_checkpointing_offload", "zero3_init_flag", "zero3_save_16bit_model",
		"megatron_lm_sequence_parallelism", "megatron_lm_recompute_activations", "megatron_lm_use_distributed_optimizer",
		"megatron_lm_attention_backend",
		"megatron_lm_attention_softmax_in_fp32", "megatron_lm_calculate_per_token_loss", "megatron_lm_use_rotary_position_embeddings",
	}
)

// words checks what workers would stumble over, and writes truth values as accelerate does.
func (a *accelerateJob) words() {
	for _, dest := range slices.Concat(accelerateBools, accelerateNumbers, accelerateWords) {
		v := a.v[dest]
		if v.none {
			continue
		}
		on, err := pythonTruth(v.text)
		if err != nil {
			a.refuse(dest, err)
			continue
		}
		switch {
		case slices.Contains(accelerateBools, dest):
			v.text = pythonBool(on)
		case slices.Contains(accelerateNumbers, dest) && v.source.Kind != job.FromConfig:
			v.text = map[bool]string{true: "1", false: "0"}[on]
		}
		a.v[dest] = v
	}
	a.word("mixed_precision", "no", "fp16", "bf16", "fp8")
	a.word("dynamo_backend", "no", "eager", "aot_eager", "inductor", "aot_ts_nvfuser", "nvprims_nvfuser", "cudagraphs", "ofi",
		"fx2trt", "onnxrt",
		"tensorrt", "aot_torchxla_trace_once", "torhchxla_trace_once", "torchxla_trace_once", "tvm", "hpu_backend", "neuron")
	a.word("dynamo_mode", "default", "reduce-overhead", "max-autotune")
	a.word("fsdp_version", "1", "2")
	if stage := a.v["zero_stage"]; !stage.none && (stage.n < 0 || stage.n > 3) {
		a.refuse("zero_stage", errors.New("give a number from 0 to 3"))
	}
}

// word holds the option against its words, in any case.
func (a *accelerateJob) word(dest string, words ...string) {
	if v := a.v[dest]; !v.none && !slices.Contains(words, strings.ToLower(v.text)) {
		a.refuse(dest, fmt.Errorf("choose one of %s", strings.Join(words, ", ")))
	}
}

// variables are those that workers get, in addition to torchelastic's.
func (a *accelerateJob) variables() {
	if a.launcher == simpleLauncher {
		source := a.by("cpu")
		if !a.on("cpu") && a.file.name != "" {
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
	if a.on("debug") {
		a.set("ACCELERATE_DEBUG_MODE", "true", a.by("debug"))
	}
	a.devices()
	a.precision()
	if a.launcher != deepspeedLauncher || a.v["dynamo_backend"].explicit() {
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
	if a.launcher != deepspeedLauncher || a.v["num_cpu_threads_per_process"].explicit() {
		a.threads()
	}
	if a.on("enable_cpu_affinity") {
		a.set("ACCELERATE_CPU_AFFINITY", "1", a.by("enable_cpu_affinity"))
	}
	if a.launcher != simpleLauncher && a.on("use_parallelism_config") {
		a.parallelism()
	}
	a.idleVariables()
}

// idleVariables warns of muster's variables for options of ways to train that this job does not take, and of a meeting
// place. accelerate has no such variables, and makes nothing of the options, either.
func (a *accelerateJob) idleVariables() {
	taken := map[string]bool{
		groupDeepSpeed: a.on("use_deepspeed"), groupFSDP: a.on("use_fsdp"), groupMegatron: a.on("use_megatron_lm"),
		groupFP8: a.v["mixed_precision"].text == "fp8", groupParallelism: a.on("use_parallelism_config"),
	}
	var idle []string
	here := a.machines <= 1 && len(a.nodes) == 0 && !a.outer // where nobody is met
	for dest, unread := range map[string]bool{"main_process_ip": here, "main_process_port": here && a.single} {
		if source := a.v[dest].source; unread && source.Kind == job.FromVariable {
			idle = append(idle, source.Name)
		}
	}
	slices.Sort(idle)
	for i := range a.parser.options {
		o := &a.parser.options[i]
		if is, way := taken[o.group]; way && !is && a.v[o.dest()].source.Name == variable(ownPrefix, o.name) {
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
	a.set(name, strings.Join(ids, ","), a.by("gpu_ids"))
}

func (a *accelerateJob) precision() {
	text := strings.ToLower(a.v["mixed_precision"].text)
	if a.v["mixed_precision"].none {
		text = "no"
	}
	a.set("ACCELERATE_MIXED_PRECISION", text, a.by("mixed_precision"))
	if text != "fp8" {
		return
	}
	const prefix = "ACCELERATE_"
	for _, o := range accelerateFP8() {
		if dest := o.dest(); dest != "fp8_override_linear_precision" {
			a.tell(prefix+strings.ToUpper(dest), dest)
			continue
		}
		v := a.v[o.dest()]
		words := strings.Split(v.text, ",")
		if len(words) != 3 {
			a.refuse(o.dest(), errors.New("give three of true or false with commas between: for fprop, dgrad and wgrad"))
			continue
		}
		for i, name := range []string{"FPROP", "DGRAD", "WGRAD"} {
			on, err := pythonTruth(strings.TrimSpace(words[i]))
			a.refuse(o.dest(), err)
			text := pythonBool(on)
			if v.explicit() && v.source.Kind != job.FromConfig {
				text = map[bool]string{true: "1", false: "0"}[on]
			}
			a.set(prefix+"FP8_OVERRIDE_"+name, text, a.by(o.dest()))
		}
	}
	for _, v := range a.file.fp8 {
		a.set(prefix+strings.ToUpper(v.Name), v.Value, v.Source)
	}
}

func (a *accelerateJob) dynamo() {
	backend := strings.ToUpper(a.v["dynamo_backend"].text)
	if a.v["dynamo_backend"].none {
		backend = "NO"
	}
	if backend == "TORHCHXLA_TRACE_ONCE" { // accelerate's flag has a typing error, which its library does not
		backend = "TORCHXLA_TRACE_ONCE"
	}
	a.set("ACCELERATE_DYNAMO_BACKEND", backend, a.by("dynamo_backend"))
	for _, dest := range []string{"dynamo_mode", "dynamo_use_fullgraph", "dynamo_use_dynamic", "dynamo_use_regional_compilation"} {
		a.tell("ACCELERATE_"+strings.ToUpper(dest), dest)
	}
}

func (a *accelerateJob) fsdp() {
	if !a.on("use_fsdp") {
		return
	}
	if sync := a.v["fsdp_sync_module_states"]; sync.text == "False" && a.v["fsdp_cpu_ram_efficient_loading"].text != "False" {
		a.refuse("fsdp_sync_module_states",
			errhint.With(errors.New("with fsdp_cpu_ram_efficient_loading only rank 0 has the weights, and must send them"),
				"write true, or fsdp_cpu_ram_efficient_loading: false"))
	}
	a.set("ACCELERATE_USE_FSDP", "true", a.by("use_fsdp"))
	for _, o := range accelerateFSDP() {
		dest := o.dest()
		switch {
		case dest == "fsdp_transformer_layer_cls_to_wrap":
			a.tell("FSDP_TRANSFORMER_CLS_TO_WRAP", dest)
		case slices.Contains(accelerateWords, dest), dest == "fsdp_reshard_after_forward":
			a.tellLower(strings.ToUpper(dest), dest)
		default:
			a.tell(strings.ToUpper(dest), dest)
		}
	}
	if modules := a.file.ignoredModules; modules.text != "" {
		a.set("FSDP_IGNORED_MODULES", modules.text, modules.source)
	}
}

func (a *accelerateJob) megatron() {
	if !a.on("use_megatron_lm") {
		return
	}
	a.set("ACCELERATE_USE_MEGATRON_LM", "true", a.by("use_megatron_lm"))
	for _, o := range accelerateMegatron() {
		a.tell(strings.ToUpper(o.dest()), o.dest())
	}
}

func (a *accelerateJob) parallelism() {
	a.set("ACCELERATE_USE_PARALLELISM_CONFIG", "true", a.by("use_parallelism_config"))
	const prefix = "parallelism_config_"
	for _, o := range accelerateParallelism() {
		dest := o.dest()
		switch name := strings.TrimPrefix(dest, prefix); name {
		case "cp_comm_strategy":
			if a.v[prefix+"cp_size"].n > 1 {
				a.tell(strings.ToUpper(dest), dest)
			}
		case "sp_seq_length", "sp_seq_length_is_variable", "sp_attn_implementation":
			if a.v[prefix+"sp_size"].n <= 1 {
				continue
			}
			if a.v[dest].none {
				a.set(strings.ToUpper(dest), "None", a.by(dest))
			}
			a.tell(strings.ToUpper(dest), dest)
		default:
			a.tell(strings.ToUpper(dest), dest)
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
	a.set("ACCELERATE_USE_DEEPSPEED", "true", a.by("use_deepspeed"))
	a.tell("ACCELERATE_DEEPSPEED_ZERO_STAGE", "zero_stage")
	a.tell("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "gradient_accumulation_steps")
	a.tellLower("ACCELERATE_GRADIENT_CLIPPING", "gradient_clipping")
	a.tellLower("ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE", "offload_optimizer_device")
	a.tellLower("ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE", "offload_param_device")
	a.tell("ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_NVME_PATH", "offload_optimizer_nvme_path")
	a.tell("ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_NVME_PATH", "offload_param_nvme_path")
	a.tellLower("ACCELERATE_DEEPSPEED_ZERO3_INIT", "zero3_init_flag")
	a.tellLower("ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL", "zero3_save_16bit_model")
	a.tell("ACCELERATE_DEEPSPEED_CONFIG_FILE", "deepspeed_config_file")
	a.tell("ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES", "deepspeed_moe_layer_cls_names")
}

// threads is OMP_NUM_THREADS: the flag, else the variable as it is, else a worker's share of the cores where it
// computes on them, else 1.
func (a *accelerateJob) threads() {
	const name = "OMP_NUM_THREADS"
	if v := a.v["num_cpu_threads_per_process"]; !v.none {
		if v.n < 1 {
			a.refuse("num_cpu_threads_per_process", errors.New("a worker needs at least 1 thread"))
		}
		a.tell(name, "num_cpu_threads_per_process")
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
