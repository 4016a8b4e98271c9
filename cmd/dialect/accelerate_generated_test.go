package dialect_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"muster/cmd/dialect"
)

// generatedAccelerate are command lines and configuration files with values for many options each, some given by a
// flag, some by the file, some by both.
func generatedAccelerate(n int) []*accelerateCase {
	random := rand.New(rand.NewPCG(7, 1)) // the same in every run
	var cases []*accelerateCase
	for i := range n {
		cases = append(cases, generateAccelerate(random, i))
	}
	return cases
}

// accelerateWays are flags that choose a way to train, the distributed_type that does, and prefixes of the options that
// matter there.
var accelerateWays = []struct {
	flags, kind string
	prefixes    []string
}{
	{"--multi_gpu", "MULTI_GPU", nil},
	{"--use_fsdp", "FSDP", []string{"fsdp_"}},
	{"--use_megatron_lm", "MEGATRON_LM", []string{"megatron_lm_"}},
	{"--use_deepspeed", "DEEPSPEED", []string{"zero", "offload_", "gradient_", "deepspeed_config_file", "deepspeed_moe"}},
	{"--use_fsdp --fsdp_version 2 --use_parallelism_config", "FSDP", []string{"fsdp_", "parallelism_config_"}},
}

func generateAccelerate(random *rand.Rand, i int) *accelerateCase {
	way := accelerateWays[random.IntN(len(accelerateWays))]
	args := []string{fmt.Sprintf("--num_processes %d", 2+random.IntN(3))}
	file, groups := "", map[string][]string{}
	byFile := random.IntN(2) == 0 && !strings.Contains(way.flags, "parallelism")
	if byFile {
		args = append(args, "--config_file c.yaml")
		file = "distributed_type: " + way.kind + "\nnum_processes: 8\n"
		if random.IntN(2) == 0 {
			file += "mixed_precision: fp8\n"
		}
	} else {
		args = append(args, way.flags)
	}
	prefixes := append([]string{"dynamo_", "fp8_", "max_restarts", "num_cpu", "main_process_port", "mixed_precision", "role", "debug"},
		way.prefixes...)
	for _, o := range dialect.AccelerateOptions() {
		if random.IntN(2) == 0 || o.Dest == "fsdp_version" && !byFile ||
			!slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(o.Dest, p) }) {
			continue
		}
		flag, scalar := accelerateValue(random, o)
		group := accelerateGroup(o.Dest)
		inFile := byFile && group != "" && random.IntN(3) > 0
		if inFile {
			groups[group] = append(groups[group], "  "+o.Dest+": "+scalar+"\n")
		}
		if !inFile || random.IntN(4) == 0 {
			args = append(args, strings.TrimSpace("--"+o.Dest+" "+flag))
		}
	}
	for _, group := range []string{"deepspeed_config", "fsdp_config", "megatron_lm_config", "fp8_config", "dynamo_config"} {
		if lines := groups[group]; lines != nil {
			file += group + ":\n" + strings.Join(lines, "")
		}
	}
	c := &accelerateCase{
		name: fmt.Sprintf("generated-%d", i), cmd: strings.Join(args, " ") + " train.py --lr 1",
		files: map[string]string{}, generated: true,
	}
	if byFile {
		c.files["c.yaml"] = file
	}
	return c
}

// accelerateGroup is where a configuration file has an option, "" for nowhere, or at the top.
func accelerateGroup(dest string) string {
	for prefix, group := range map[string]string{
		"fsdp_": "fsdp_config", "megatron_lm_": "megatron_lm_config", "fp8_": "fp8_config", "dynamo_": "dynamo_config",
		"zero":     "deepspeed_config",
		"offload_": "deepspeed_config", "gradient_": "deepspeed_config", "deepspeed_": "deepspeed_config",
	} {
		if strings.HasPrefix(dest, prefix) {
			return group
		}
	}
	return ""
}

// accelerateValue is a value for an option as a flag and as YAML have it.
func accelerateValue(random *rand.Rand, o dialect.AccelerateOption) (flag, scalar string) {
	one := func(words ...string) string { return words[random.IntN(len(words))] }
	switch {
	case !o.TakesWord:
		return "", one("true", "false", "yes")
	case len(o.Choices) > 0:
		word := one(o.Choices...)
		switch word {
		case "no":
			return word, "'no'"
		case "torhchxla_trace_once": // misspelt, and refused by accelerate in the end
			word = "tvm"
		}
		return word, word
	case o.Dest == "main_process_port":
		return "23456", "23456"
	case o.Dest == "fp8_override_linear_precision":
		return one("true,false,true", "0,1,no"), one("[true, false, true]", "[false, no, yes]")
	case slices.Contains(dialect.AccelerateBools, o.Dest): // a flag's false is true to accelerate
		return "true", one("true", "false")
	case o.Type == "int":
		word := one("1", "2", "3")
		return word, word
	case o.Type == "float":
		return one("1", "0.5", "1e-5", "2.50"), one("1.0", "0.5", "1.0e-5", "2")
	case slices.Contains(dialect.AccelerateTruths, o.Dest):
		return one("true", "false", "True", "0"), one("true", "off")
	}
	word := one("Word", "A,B", "/a/path")
	return word, word
}

// meant reports whether a difference of a generated case is one of those that the cases in files explain.
func (c *accelerateCase) meant(key string) bool {
	if !c.generated {
		_, ok := c.differences[key]
		return ok
	}
	deepspeed := strings.Contains(c.cmd, "--use_deepspeed") || strings.Contains(c.files["c.yaml"], "DEEPSPEED")
	return deepspeed &&
		(strings.HasSuffix(key, "_NVME_PATH") || strings.HasPrefix(key, "env ACCELERATE_DYNAMO_") || key == "env OMP_NUM_THREADS")
}
