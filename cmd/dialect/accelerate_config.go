package dialect

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"syscall"

	"go.yaml.in/yaml/v3"

	"muster/internal/errhint"
	"muster/launch/job"
)

// accelerateFile is what a configuration file says beside the values of flags. Without one the name is empty.
type accelerateFile struct {
	name string
	// kind is distributed_type.
	kind     string
	kindFrom job.Source
	useCPU   bool
	// parallelism is true where parallelism_config says anything.
	parallelism bool
	// precision is true where mixed_precision is there, deepspeed are the keys of deepspeed_config: DeepSpeed's
	// configuration must agree with those, and workers are told which they are.
	precision bool
	deepspeed []string
	// fp8 are keys of fp8_config that are no flags, by their names with the prefix.
	fp8 []job.Var
	// ignoredModules is fsdp_config's fsdp_ignored_modules, which has no flag.
	ignoredModules value
}

// accelerateTypes are the words for distributed_type.
var accelerateTypes = append([]string{"NO", "MULTI_CPU", "DEEPSPEED", "FSDP", "MEGATRON_LM", "XLA"}, accelerateGPUs...)

// accelerateGroups are the keys that hold a map, and what its keys begin with where accelerate adds that.
var accelerateGroups = map[string]string{
	"deepspeed_config": "", "fsdp_config": "fsdp_", "fp8_config": "fp8_", "dynamo_config": "dynamo_", "megatron_lm_config": "",
	"parallelism_config": "",
	"mpirun_config":      "",
}

// accelerateKeys are the keys at the top that hold a value of a flag.
var accelerateKeys = []string{
	"num_processes", "machine_rank", "num_machines", "gpu_ids", "main_process_ip", "main_process_port", "rdzv_backend", "same_network",
	"main_training_function", "enable_cpu_affinity", "downcast_bf16", "debug", "mixed_precision",
}

// accelerateTPUKeys are keys for TPUs, which mean nothing elsewhere.
var accelerateTPUKeys = []string{
	"tpu_name", "tpu_zone", "tpu_use_cluster", "tpu_use_sudo", "command_file", "commands", "tpu_vm", "tpu_env", "main_training_function",
	"downcast_bf16",
}

// renamedKeys are what accelerate config and older releases write for keys that are read by other names.
var renamedKeys = map[string]string{
	"fp8_amax_compute_algorithm": "fp8_amax_compute_algo", "fp8_amax_history_length": "fp8_amax_history_len",
	"fp8_optimization_level":        "fp8_opt_level",
	"fsdp_backward_prefetch_policy": "fsdp_backward_prefetch",
}

// defaultConfig is the file that accelerate config writes, empty where there is no home to look in.
func (a *accelerateJob) defaultConfig() string {
	home, ok := a.env["HF_HOME"]
	if !ok {
		cache, ok := a.env["XDG_CACHE_HOME"]
		if !ok {
			cache = "~/.cache"
		}
		home = path.Join(cache, "huggingface")
	}
	if rest, tilde := strings.CutPrefix(home, "~"); tilde && (rest == "" || rest[0] == '/') {
		if a.env["HOME"] == "" {
			return ""
		}
		home = path.Join(a.env["HOME"], rest)
	}
	return path.Join(home, "accelerate", "default_config.yaml")
}

// readConfig reads --config-file, or the default file where it is there and --cpu is not given, into the values.
func (a *accelerateJob) readConfig() {
	name := a.w.configFile.text
	asked := !a.w.configFile.none
	if !asked {
		if name = a.defaultConfig(); name == "" || a.w.cpu.on || a.inv.ReadFile == nil {
			return
		}
	}
	if a.inv.ReadFile == nil {
		a.refuse(&a.w.configFile, errors.New("no files can be read here"))
		return
	}
	content, err := a.inv.ReadFile(name)
	switch {
	case err != nil && !asked && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.EISDIR) || errors.Is(err, syscall.ENOTDIR)):
		return
	case err != nil:
		a.wrong.add(errhint.With(fmt.Errorf("cannot read the configuration of accelerate: %w", err),
			"accelerate config writes one; without --config-file the default one is read where it is there"))
		return
	}
	if strings.HasSuffix(name, ".json") && !json.Valid(content) {
		a.wrong.add(fmt.Errorf("cannot read %s: it is not JSON", name))
		return
	}
	top, err := yamlMap(name, content, "keys and values, such as distributed_type: MULTI_GPU")
	if err != nil {
		a.wrong.add(err)
		return
	}
	a.file.name = name
	if top != nil {
		a.keys(top)
	}
	if a.file.kind == "" {
		a.wrong.add(fmt.Errorf("cannot use %s: it has no distributed_type, which is one of %s", name, strings.Join(accelerateTypes, ", ")))
	}
}

// keys reads the map at the top of the file.
func (a *accelerateJob) keys(top *yaml.Node) {
	var seen []string
	for i := 0; i+1 < len(top.Content); i += 2 {
		key, node := top.Content[i], top.Content[i+1]
		at := fmt.Sprintf("%s:%d", a.file.name, key.Line)
		if slices.Contains(seen, key.Value) {
			a.wrong.add(fmt.Errorf("%s: %s is there twice", at, key.Value))
		} else if err := a.key(key.Value, node, job.Source{Kind: job.FromConfig, Name: at}); err != nil {
			a.wrong.add(fmt.Errorf("%s: %w", at, err))
		}
		seen = append(seen, key.Value)
	}
}

// key reads one of them.
func (a *accelerateJob) key(key string, node *yaml.Node, source job.Source) error {
	prefix, group := accelerateGroups[key]
	if group {
		return a.group(key, prefix, node)
	}
	text, none, err := pythonText(node)
	if err != nil && !slices.Contains(accelerateTPUKeys, key) {
		return fmt.Errorf("%s: %w", key, err)
	}
	switch key {
	case "compute_environment":
		if !none && text != "LOCAL_MACHINE" {
			return errhint.With(fmt.Errorf("compute_environment: %s: muster starts jobs on the machines that it runs on", text),
				"write LOCAL_MACHINE")
		}
	case "distributed_type":
		if node.Kind == yaml.ScalarNode && text == "False" { // NO without quotes is false in YAML 1.1, and accelerate takes it for NO
			text = "NO"
		}
		if !slices.Contains(accelerateTypes, text) {
			return fmt.Errorf("distributed_type: %s: choose one of %s", text, strings.Join(accelerateTypes, ", "))
		}
		a.file.kind, a.file.kindFrom = text, source
	case "use_cpu":
		if !none {
			a.file.useCPU, err = pythonTruth(text)
		}
	case "fp16": // before mixed_precision
		if on, bad := pythonTruth(text); bad == nil && on && a.w.mixedPrecision.none {
			return a.fromFile(&a.w.mixedPrecision, "fp16", false, source)
		}
	case "dynamo_backend": // before dynamo_config
		return a.fromFile(&a.w.dynamoBackend, text, none, source)
	case "mixed_precision":
		if node.Kind == yaml.ScalarNode && text == "False" { // no without quotes is false in YAML 1.1
			text = "no"
		}
		a.file.precision = !none && !a.w.mixedPrecision.explicit()
		return a.fromFile(&a.w.mixedPrecision, text, none, source)
	default:
		switch {
		case slices.Contains(accelerateKeys, key):
			return a.fromFile(a.option(key).word, text, none, source)
		case slices.Contains(accelerateTPUKeys, key):
			return nil
		}
		return a.unknownKey(key)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	return nil
}

func (a *accelerateJob) unknownKey(key string) error {
	known := slices.Concat([]string{"compute_environment", "distributed_type", "use_cpu"}, accelerateKeys, accelerateTPUKeys)
	for name := range accelerateGroups {
		known = append(known, name)
	}
	slices.Sort(known)
	if near := nearest(key, known); near != "" {
		return fmt.Errorf("unknown key %q: did you mean %s?", key, near)
	}
	return errhint.With(fmt.Errorf("unknown key %q", key), "accelerate config writes files with the keys that there are")
}

// group reads a map below one of the keys at the top.
func (a *accelerateJob) group(group, prefix string, node *yaml.Node) error {
	if node.Kind == yaml.AliasNode {
		node = node.Alias
	}
	if node.Kind == yaml.ScalarNode && node.Tag == "!!null" {
		return nil
	}
	if node.Kind != yaml.MappingNode {
		return fmt.Errorf("%s: give a map of keys and values", group)
	}
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, line := node.Content[i].Value, node.Content[i].Line
		at := fmt.Sprintf("%s:%d", a.file.name, line)
		if err := a.groupKey(group, prefix, key, node.Content[i+1], job.Source{Kind: job.FromConfig, Name: at}); err != nil {
			a.wrong.add(fmt.Errorf("%s: %w", at, err))
		}
	}
	return nil
}

func (a *accelerateJob) groupKey(group, prefix, key string, node *yaml.Node, source job.Source) error {
	if group == "deepspeed_config" {
		a.file.deepspeed = append(a.file.deepspeed, key)
	}
	a.file.parallelism = a.file.parallelism || group == "parallelism_config"
	dest := key
	if !strings.HasPrefix(key, strings.TrimSuffix(prefix, "_")) {
		dest = prefix + key
	}
	if now, ok := renamedKeys[dest]; ok {
		dest = now
	}
	text, none, err := pythonText(node)
	if err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	switch o := a.option(dest); {
	case o != nil && o.kind != kindHelp && o.group != groupAWS:
		return a.fromFile(o.word, text, none, source)
	case none:
	case dest == "fsdp_ignored_modules":
		a.file.ignoredModules = value{text: text, source: source}
	case group == "fp8_config":
		a.file.fp8 = append(a.file.fp8, job.Var{Name: dest, Value: text, Source: source})
	default:
		names := []string{"fsdp_ignored_modules"}
		for i := range a.parser.options {
			names = append(names, a.parser.options[i].dest())
		}
		hint := ""
		if near := nearest(dest, names); near != "" {
			hint = "; did you mean " + near + "?"
		}
		a.warn("%s: %s: the key %q is unknown and has no effect%s", source.Name, group, key, hint)
	}
	return nil
}

// fromFile gives an option the file's value unless it was given otherwise. None is as if the key were not there. Words
// are not held against the flag's choices: files spell some of them otherwise.
func (a *accelerateJob) fromFile(word *value, text string, none bool, source job.Source) error {
	if none || word.explicit() && word.source.Kind != job.FromConfig {
		return nil
	}
	o := *word.option
	o.choices = nil
	v, err := value{text: text, source: source}, error(nil)
	switch {
	case o.kind == kindFlag:
		v.on, err = pythonTruth(text)
	case text == "auto" && o.group == groupDeepSpeed: // DeepSpeed's configuration decides
	default:
		v, err = o.convert(text, source)
	}
	if err != nil {
		return fmt.Errorf("%s: %s: %w", o.dest(), text, err)
	}
	word.become(v)
	return nil
}
