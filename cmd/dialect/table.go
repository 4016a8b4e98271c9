package dialect

import (
	"cmp"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"muster/internal/errhint"
)

// row is one name under which muster reads a command line.
type row struct {
	name string
	// about says in one line what the command does.
	about string
	read  func(Invocation) (Request, error)
	help  func() string
	// entries are the options of the help text: of muster run, all.
	entries func() []entry
	// flags are for man pages and completion.
	flags func(name string) *pflag.FlagSet
}

// table holds all names, sorted as man pages list them.
func table() []row {
	parsed := func(name, about string, read func(Invocation) (Request, error), parser func() *parser) row {
		return row{
			name, about, read, func() string { return parser().help() }, func() []entry { return parser().entries() },
			func(string) *pflag.FlagSet { return parser().flagSet() },
		}
	}
	torchrun := func() *parser { return torchrunParser("torchrun", new(torchrunWords)) }
	launch := func() *parser { return launchParser(new(torchrunWords)) }
	colossal := func() *parser { return colossalParser(new(colossalWords)) }
	deepspeed := func() *parser { return deepSpeedParser(new(deepSpeedWords)) }
	horovodrun := func() *parser { return horovodParser(new(horovodWords)) }
	accelerate := func() *parser { return accelerateParser(new(accelerateWords)) }
	dlrover := func() *parser { return dlroverParser(new(dlroverWords)) }
	ft := func() *parser { return ftParser(new(ftWords)) }
	return []row{
		parsed(dlroverRun, "Launch as DLRover's dlrover-run does", DLRover, dlrover),
		parsed(ftLauncher, "Launch as ft_launcher of NVIDIA's resiliency extension does", FTLauncher, ft),
		parsed(horovodRun, "Launch as Horovod's horovodrun does", Horovodrun, horovodrun),
		{mpiexec, "Launch as mpirun does, under its other name", MPIRun, mpirunHelp, mpiEntries, mpirunFlags},
		{mpirun, "Launch as mpirun does in simple cases", MPIRun, mpirunHelp, mpiEntries, mpirunFlags},
		{
			nativeRun, "Launch a training command (muster's own spelling)", Native, func() string { return nativeHelp(false) },
			func() []entry { return nativeEntries(settings(), true) },
			func(string) *pflag.FlagSet { return nativeFlags(settings()) },
		},
		parsed("torch.distributed.launch", "Launch as python -m torch.distributed.launch does", TorchLaunch, launch),
		parsed("torch.distributed.run", "Launch as python -m torch.distributed.run does", Torchrun, torchrun),
		parsed("torchrun", "Launch as torchrun does", Torchrun, torchrun),
		parsed(accelerateProg, "Launch as accelerate launch does", Accelerate, accelerate),
		parsed(accelerateLaunch, "Launch as accelerate-launch does", AccelerateLaunch, accelerate),
		parsed(accelerateModule, "Launch as python -m accelerate.commands.launch does", AccelerateLaunch, accelerate),
		parsed(colossalAI, "Launch as Colossal-AI's colossalai run does (muster colossalai run …)", ColossalAI, colossal),
		parsed(colossalRun, "Launch as Colossal-AI's colossalai run does", ColossalRun, colossal),
		parsed(deepSpeed, "Launch as DeepSpeed's deepspeed does", DeepSpeed, deepspeed),
	}
}

// nativeRun is the name of muster's own dialect.
const nativeRun = "run"

func find(name string) (row, bool) {
	rows := table()
	i := slices.IndexFunc(rows, func(r row) bool { return r.name == name })
	if i < 0 {
		return row{}, false
	}
	return rows[i], true
}

// Named reports whether name stands for a replaced program, or is muster's own "run": a command name such as
// "torchrun", or a module's name that is otherwise run by python -m, such as "torch.distributed.launch".
func Named(name string) bool { return slices.Contains(Names(), name) }

// Names returns the names that Read takes.
func Names() []string {
	var names []string
	for _, r := range table() {
		names = append(names, r.name)
	}
	return names
}

// About says in one line what the command of a name does, "" for a name that Named refuses.
func About(name string) string {
	r, _ := find(name)
	return r.about
}

// Read reads a command line in the dialect called name. It returns a *HelpError when the user asked for help or a
// completion script instead of a job; other errors carry exit status 2, and of the Request only JSON and LogFormat are set then.
func Read(name string, inv Invocation) (Request, error) {
	r, ok := find(name)
	if !ok {
		return Request{}, errhint.Usagef("unknown dialect %q: choose one of %s", name, strings.Join(Names(), ", "))
	}
	req, err := r.read(inv)
	if err != nil && req.LogFormat == "" { // it was not read so far
		if req.LogFormat = inv.Own.LogFormat(); name == nativeRun {
			req.LogFormat = cmp.Or(askedFormat(inv.Args), req.LogFormat)
		}
	}
	return req, err
}

// asked is what counts of a request that is refused: how to say so.
func (r *Request) asked() Request { return Request{JSON: r.JSON, LogFormat: r.LogFormat} }

// Help returns the help text of a dialect, "" for a name that Named refuses.
func Help(name string) string {
	r, ok := find(name)
	if !ok {
		return ""
	}
	return r.help()
}

// HelpLine is an option in a help text: the heading under which it stands, how it is written, and what it does.
type HelpLine struct{ Group, Names, Text string }

// HelpLines returns all options of a dialect in the order of its help text; a name that Named refuses has none.
func HelpLines(name string) []HelpLine {
	r, ok := find(name)
	if !ok {
		return nil
	}
	var lines []HelpLine
	for _, e := range r.entries() {
		lines = append(lines, HelpLine{headline(e.group), strings.TrimSpace(e.names), e.text})
	}
	return lines
}

// HelpAll returns the help text of a dialect with all flags: of muster run, what --help-all prints.
func HelpAll(name string) string {
	if name == nativeRun {
		return nativeHelp(true)
	}
	return Help(name)
}

// Flags returns the flags of a dialect for man pages and for completion by cobra; they are not meant to be parsed with.
// A name that Named refuses has none.
func Flags(name string) *pflag.FlagSet {
	r, ok := find(name)
	if !ok {
		return pflag.NewFlagSet(name, pflag.ContinueOnError)
	}
	return r.flags(name)
}
