package dialect

import (
	"slices"

	"go.yaml.in/yaml/v3"
)

// Option is what tests need to know of an option.
type Option struct {
	Dest      string
	Spellings []string
	TakesWord bool
	Variable  string // "" for none
}

// TorchrunOptions are the options of torch.distributed.launch, which has all of torchrun's.
func TorchrunOptions() []Option {
	p := launchParser()
	out := make([]Option, len(p.options))
	for i := range p.options {
		o := &p.options[i]
		out[i] = Option{Dest: o.dest(), Spellings: o.spellings(), TakesWord: o.kind.takesWord()}
		if o.variables {
			out[i].Variable = variable(petPrefix, o.long)
		}
	}
	return out
}

// DLRoverOptions are the options of dlrover-run, and whether each has muster's variable as well as PET_.
func DLRoverOptions() (options []Option, own, foreign map[string]bool) {
	own, foreign = map[string]bool{}, map[string]bool{}
	for _, o := range dlroverOptions() {
		options = append(options, Option{Dest: o.dest(), Spellings: o.spellings(), TakesWord: o.kind.takesWord()})
		own[o.long], foreign[o.long] = o.own, o.foreign
	}
	return options, own, foreign
}

// SettingFlags are the names of muster's own settings, and whether each counts in every dialect.
func SettingFlags() map[string]bool {
	flags := map[string]bool{}
	for _, s := range settings() {
		flags[s.flag] = s.anywhere
	}
	return flags
}

// ParseTorchrun returns the values of a torchrun command line as argparse would name them.
func ParseTorchrun(program string, args, env []string) (values map[string]any, script string, rest []string, err error) {
	p := torchrunParser("torchrun")
	if program == "torch.distributed.launch" {
		p = launchParser()
	}
	in, err := p.parse(args, newEnviron(env))
	if err != nil {
		return nil, "", nil, err
	}
	values = map[string]any{}
	for i := range p.options {
		o := &p.options[i]
		v := in.values[o.dest()]
		switch {
		case o.kind == kindHelp:
		case v.none:
			values[o.dest()] = nil
		case o.kind == kindInt:
			values[o.dest()] = v.n
		case o.kind == kindFloat:
			values[o.dest()] = v.f
		case o.kind == kindFlag:
			values[o.dest()] = v.on
		case o.kind == kindList:
			values[o.dest()] = v.list
		default:
			values[o.dest()] = v.text
		}
	}
	return values, in.script, in.args, nil
}

var (
	PyInt      = pyInt
	ShellWords = shellWords
	PyFloat    = pyFloat
	CommaList  = commaList
	Nearest    = nearest
)

// Options of accelerate whose words are truth values: those that it hands to Python's bool, and the others.
var (
	AccelerateBools  = accelerateBools
	AccelerateTruths = slices.Concat(accelerateNumbers, accelerateWords)
)

// AccelerateOption is an option of accelerate launch.
type AccelerateOption struct {
	Option
	Default *string // nil for Python's None
	Choices []string
	Type    string // int, float or empty
}

// AccelerateOptions are all of them.
func AccelerateOptions() []AccelerateOption {
	var out []AccelerateOption
	for _, o := range accelerateOptions() {
		a := AccelerateOption{Option: Option{Dest: o.dest(), Spellings: o.spellings(), TakesWord: o.kind.takesWord()}, Choices: o.choices}
		if !o.noDefault {
			a.Default = &o.def
		}
		a.Type = map[kind]string{kindInt: "int", kindFloat: "float"}[o.kind]
		out = append(out, a)
	}
	return out
}

// PythonText is str() of a YAML document that is one value, as PyYAML reads it; nil for None.
func PythonText(document string) (*string, error) {
	var node yaml.Node
	if err := yaml.Unmarshal([]byte(document), &node); err != nil || len(node.Content) == 0 {
		return nil, err
	}
	text, none, err := pythonText(node.Content[0])
	if none || err != nil {
		return nil, err
	}
	return &text, nil
}

// LauncherOptions are the options of launchers that reach other hosts, by the names of their pages.
func LauncherOptions() map[string][]Option {
	all := map[string][]Option{}
	for name, options := range map[string][]option{deepSpeed: deepSpeedOptions(), colossalAI: colossalOptions()} {
		for _, o := range options {
			all[name] = append(all[name], Option{Dest: o.dest(), Spellings: o.spellings(), TakesWord: o.kind.takesWord()})
		}
	}
	return all
}

// HorovodrunOptions are the options of horovodrun.
func HorovodrunOptions() []Option {
	var options []Option
	for _, o := range horovodOptions() {
		options = append(options, Option{Dest: o.dest(), Spellings: o.spellings(), TakesWord: o.kind.takesWord()})
	}
	return options
}
