package dialect

import (
	"reflect"
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
	p := launchParser(new(torchrunWords))
	out := make([]Option, len(p.options))
	for i := range p.options {
		o := &p.options[i]
		out[i] = Option{Dest: o.dest(), Spellings: o.spellings(), TakesWord: o.kind.takesWord()}
		if o.variables {
			out[i].Variable = variable(petPrefix, o.name)
		}
	}
	return out
}

// DLRoverOptions are the options of dlrover-run, and whether each has muster's variable as well as PET_.
func DLRoverOptions() (options []Option, own, foreign map[string]bool) {
	own, foreign = map[string]bool{}, map[string]bool{}
	for _, o := range dlroverOptions(new(dlroverWords)) {
		options = append(options, Option{Dest: o.dest(), Spellings: o.spellings(), TakesWord: o.kind.takesWord()})
		own[o.name], foreign[o.name] = o.own, o.foreign
	}
	return options, own, foreign
}

// SettingFlags are the names of muster's own settings, and whether each counts in every dialect.
func SettingFlags() map[string]bool {
	flags := map[string]bool{}
	for _, s := range settings() {
		flags[s.name] = s.anywhere
	}
	return flags
}

// ParseTorchrun returns the values of a torchrun command line as argparse would name them.
func ParseTorchrun(program string, args, env []string) (values map[string]any, script string, rest []string, err error) {
	w := new(torchrunWords)
	p := torchrunParser("torchrun", w)
	if program == "torch.distributed.launch" {
		p = launchParser(w)
	}
	in, err := p.parse(args, newEnviron(env))
	if err != nil {
		return nil, "", nil, err
	}
	values = map[string]any{}
	for i := range p.options {
		o := &p.options[i]
		v := *o.word
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
	AccelerateBools, AccelerateTruths = accelerateTruths()
)

func accelerateTruths() (bools, others []string) {
	w := new(accelerateWords)
	if _, err := accelerateParser(w).parse([]string{"script"}, nil); err != nil {
		panic(err)
	}
	for _, v := range w.bools() {
		bools = append(bools, v.option.dest())
	}
	for _, v := range slices.Concat(w.numbers(), w.truths()) {
		others = append(others, v.option.dest())
	}
	return bools, others
}

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
	for _, o := range accelerateOptions(new(accelerateWords)) {
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
	for name, options := range map[string][]option{
		deepSpeed: deepSpeedOptions(new(deepSpeedWords)), colossalAI: colossalOptions(new(colossalWords)),
	} {
		for _, o := range options {
			all[name] = append(all[name], Option{Dest: o.dest(), Spellings: o.spellings(), TakesWord: o.kind.takesWord()})
		}
	}
	return all
}

// HorovodrunOptions are the options of horovodrun.
func HorovodrunOptions() []Option {
	var options []Option
	for _, o := range horovodOptions(new(horovodWords)) {
		options = append(options, Option{Dest: o.dest(), Spellings: o.spellings(), TakesWord: o.kind.takesWord()})
	}
	return options
}

// DialectOptions are the options of every launcher that is replaced, by the dialect's name, with a legal word for each
// that takes one where the table has it: one of its choices that is not the default.
func DialectOptions() map[string][]DialectOption {
	parsers := map[string]*parser{
		"torchrun":                 torchrunParser("torchrun", new(torchrunWords)),
		"torch.distributed.launch": launchParser(new(torchrunWords)),
		dlroverRun:                 dlroverParser(new(dlroverWords)),
		accelerateLaunch:           accelerateParser(new(accelerateWords)),
		deepSpeed:                  deepSpeedParser(new(deepSpeedWords)),
		colossalRun:                colossalParser(new(colossalWords)),
		horovodRun:                 horovodParser(new(horovodWords)),
	}
	all := map[string][]DialectOption{}
	for name, p := range parsers {
		for i := range p.options {
			o := &p.options[i]
			if o.kind == kindHelp || o.kind == kindPrint {
				continue
			}
			d := DialectOption{
				Flag: o.name, Moot: o.moot != "", Spelling: "--" + o.name,
				Words: map[kind]int{kindFlag: 0, kindTwo: 2}[o.kind], Number: o.kind == kindInt || o.kind == kindFloat, Default: o.def,
			}
			if o.kind != kindFlag && o.kind != kindTwo {
				d.Words = 1
			}
			for _, prefix := range p.prefixesOf(o) {
				d.Variables = append(d.Variables, variable(prefix, o.name))
			}
			for _, c := range o.choices {
				if c != o.def {
					d.Choice = c
				}
			}
			all[name] = append(all[name], d)
		}
	}
	for _, o := range mpiOptions(new(mpiWords)) {
		if o.refused == "" {
			all[mpirun] = append(all[mpirun],
				DialectOption{
					Flag: o.name, Moot: o.moot != "", Spelling: mpiSpelling(o.name), Words: map[kind]int{kindText: 1, kindTwo: 2}[o.kind],
				})
		}
	}
	return all
}

// DialectOption is one of them.
type DialectOption struct {
	Flag, Spelling  string
	Words           int
	Number          bool
	Default, Choice string
	// Variables are those that stand for it.
	Variables []string
	// Moot says that nobody misses an effect where it changes nothing.
	Moot bool
}

// SettingRow is one of muster's own settings.
type SettingRow struct {
	Flag, Arg, Default string
	Switch             bool
	// Kind is time, number, fraction or nothing.
	Kind string
}

// SettingRows are all of them, in the order of the help text.
func SettingRows() []SettingRow {
	var rows []SettingRow
	for _, s := range settings() {
		rows = append(rows, SettingRow{
			s.name, s.arg, s.def, s.kind == kindFlag,
			map[kind]string{kindTime: "time", kindInt: "number", kindFloat: "fraction"}[s.kind],
		})
	}
	return rows
}

// InFront are the flags of muster that may stand in front of a dialect's name.
func InFront(name string) []string {
	p := map[string]*parser{
		"torchrun":                 torchrunParser("torchrun", new(torchrunWords)),
		"torch.distributed.launch": torchrunParser("torchrun", new(torchrunWords)),
		ftLauncher:                 torchrunParser(ftLauncher, new(torchrunWords)),
		dlroverRun:                 dlroverParser(new(dlroverWords)),
		accelerateLaunch:           accelerateParser(new(accelerateWords)),
		deepSpeed:                  deepSpeedParser(new(deepSpeedWords)),
		colossalRun:                torchrunParser("torchrun", new(torchrunWords)),
		horovodRun:                 horovodParser(new(horovodWords)),
		mpirun:                     mpiParser(new(mpiWords)),
	}[name]
	var flags []string
	for _, s := range p.inFront() {
		flags = append(flags, s.name)
	}
	return flags
}

// Undeclared is the error for a row of settings that does not say in which jobs it is read.
func Undeclared() error {
	w := new(ownWords)
	return declared([]option{{name: "new", word: &w.NNodes}}, w)
}

// WordFields are the fields of the words of each dialect, with the options whose values they are.
func WordFields() map[string]map[string][]string {
	torchrun, launch, dlrover := new(torchrunWords), new(torchrunWords), new(dlroverWords)
	accelerate, deepspeed, colossal := new(accelerateWords), new(deepSpeedWords), new(colossalWords)
	horovodrun, mpi := new(horovodWords), new(mpiWords)
	all := map[string]map[string][]string{"muster": fieldsOf(&ownRows().blank, ownRows().rows)}
	for _, d := range []struct {
		name  string
		words any
		p     *parser
	}{
		{"torchrun", torchrun, torchrunParser("torchrun", torchrun)},
		{"torch.distributed.launch", launch, launchParser(launch)},
		{dlroverRun, dlrover, dlroverParser(dlrover)},
		{accelerateLaunch, accelerate, accelerateParser(accelerate)},
		{deepSpeed, deepspeed, deepSpeedParser(deepspeed)},
		{colossalRun, colossal, colossalParser(colossal)},
		{horovodRun, horovodrun, horovodParser(horovodrun)},
		{mpirun, mpi, mpiParser(mpi)},
	} {
		all[d.name] = fieldsOf(d.words, d.p.options)
	}
	for _, name := range []string{"torchrun", dlroverRun} { // to which torch.distributed.launch adds it
		delete(all[name], "useEnv")
	}
	for field := range all["torchrun"] { // whose parser fills in what accelerate has no options for
		if len(all[accelerateLaunch][field]) == 0 {
			delete(all[accelerateLaunch], field)
		}
	}
	delete(all[accelerateLaunch], "useEnv")
	return all
}

// fieldsOf finds the options of each field of words, which is a pointer to them.
func fieldsOf(words any, options []option) map[string][]string {
	found := map[string][]string{}
	var look func(v reflect.Value)
	look = func(v reflect.Value) {
		for i := range v.NumField() {
			if v.Field(i).Type() != reflect.TypeFor[value]() {
				look(v.Field(i))
				continue
			}
			name := v.Type().Field(i).Name
			found[name] = nil
			for _, o := range options {
				if reflect.ValueOf(o.word).Pointer() == v.Field(i).Addr().Pointer() {
					found[name] = append(found[name], o.name)
				}
			}
		}
	}
	look(reflect.ValueOf(words).Elem())
	return found
}
