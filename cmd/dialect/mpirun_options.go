package dialect

import (
	"strings"

	"github.com/spf13/pflag"
)

// Names of the launcher of MPI programs.
const (
	mpirun  = "mpirun"
	mpiexec = "mpiexec"
)

// mpiWords are the values of mpirun's options. All words of one that is given several times count; those before the last
// one are the weaker ones.
type mpiWords struct {
	np, host, hostfile, npernode, pernode, mapBy, rankBy, byslot, oversubscribe, nooversubscribe, x, wdir,
	bindTo, bindToNone, tagOutput, quiet, verbose, allowRunAsRoot, mca value
}

// mpiOptions are those of Open MPI that can be done without MPI, MPICH's words for the same, and those that are often
// seen and are refused.
//
// All their names may be written with one dash or two.
func mpiOptions(w *mpiWords) []option {
	return []option{
		{
			name: "np", word: &w.np, aliases: []string{"-n", "-c"}, arg: "N", group: groupNodes,
			help: "Number of workers in all. Default: one for each slot.",
		},
		{
			name: "host", word: &w.host, aliases: []string{"-H", "--hosts"}, arg: "HOST[:SLOTS],...", group: groupNodes,
			help: "Hosts with their slots; one without a number has one, and one that comes again has more. Default: this machine, or " +
				"what the platform says.",
		},
		{
			name: "hostfile", word: &w.hostfile, aliases: []string{"--machinefile", "--default-hostfile", "-f"}, arg: "FILE",
			group: groupNodes,
			help:  "The same with a host on each line: HOST slots=N, or HOST:N.",
		},
		{
			name: "npernode", word: &w.npernode, aliases: []string{"-N", "--ppn", "--perhost"}, arg: "N", group: groupNodes,
			help: "Workers on each host, whatever its slots.",
		},
		{
			name: "pernode", word: &w.pernode, kind: kindFlag, moot: "one worker of one host is one on each", group: groupNodes,
			help: "One worker on each host.",
		},
		{
			name: "map-by", word: &w.mapBy, arg: "slot|ppr:N:node", group: groupNodes,
			help: "Fill each host before the next one (slot), or N workers on each host. node only where each host has one worker.",
		},
		{name: "rank-by", word: &w.rankBy, arg: "slot", group: groupNodes, help: "Ranks go from host to host; there is nothing else."},
		{
			name: "byslot", word: &w.byslot, kind: kindFlag, moot: "there is no other order", group: groupNodes,
			help: "The same as --map-by slot.",
		},
		{
			name: "oversubscribe", word: &w.oversubscribe, kind: kindFlag, moot: "there are enough slots", group: groupNodes,
			help: "Start more workers than there are slots.",
		},
		{
			name: "nooversubscribe", word: &w.nooversubscribe, kind: kindFlag, moot: "this is so already", group: groupNodes,
			help: "Do not. This is so unless --oversubscribe is given.",
		},
		{
			name: "x", word: &w.x, arg: "NAME[=VALUE]", group: groupCommand,
			help: "A variable for the workers: its value here, or VALUE; NAME* for all that begin so. May be given again. Workers on " +
				"other hosts get no other variables from here.",
		},
		{
			name: "wdir", word: &w.wdir, aliases: []string{"-wd"}, arg: "DIR", group: groupCommand,
			help: "Working directory on all hosts, from the root. Default: this one.",
		},
		{
			name: "bind-to", word: &w.bindTo, arg: "none|numa|socket|l3cache", group: groupCommand,
			help: "Bind each worker to CPUs near the accelerator of its local rank; none is the default.",
		},
		{
			name: "bind-to-none", word: &w.bindToNone, kind: kindFlag, moot: "this is so already", group: groupCommand,
			help: "The same as --bind-to none.",
		},
		{
			name: "tag-output", word: &w.tagOutput, aliases: []string{"--prepend-rank", "-l"}, kind: kindFlag, group: groupLogs,
			help: "Put [1,RANK]: in front of each line of a worker.",
		},
		{name: "quiet", word: &w.quiet, aliases: []string{"-q"}, kind: kindFlag, group: groupOther, help: "Say only what is wrong."},
		{name: "verbose", word: &w.verbose, aliases: []string{"-v"}, kind: kindFlag, group: groupOther, help: "Say more."},
		{
			name: "allow-run-as-root", word: &w.allowRunAsRoot, kind: kindFlag, moot: "root may start muster", group: groupOther,
			help: "No effect: root may start muster.",
		},
		{
			name: "mca", word: &w.mca, aliases: []string{"--gmca"}, kind: kindTwo, arg: "NAME VALUE", group: groupOther,
			help: "A parameter of Open MPI: passed on to the workers as OMPI_MCA_NAME, and plm_rsh_args and plm_rsh_agent say how hosts " +
				"are reached.",
		},

		{name: "bynode", refused: whyByNode, hint: hintByNode},
		{name: "bind-to-core", aliases: []string{
			"--bind-to-socket", "--bycore", "--bysocket", "--cpus-per-proc", "--cpus-per-rank",
			"--use-hwthread-cpus", "--rankfile", "-rf", "--cpu-set", "--cpu-list",
		}, refused: "workers are bound as --bind-to says, or " +
			"not at all"},
		{
			name: "report-bindings", aliases: []string{"--display-map", "--display-allocation", "--display"},
			refused: "muster shows it before a start",
			hint:    "muster --dry-run mpirun … shows ranks, hosts and bindings",
		},
		{name: "timeout", refused: "muster has its own word for it", hint: "give --active-deadline TIME in front of mpirun"},
		{
			name: "output-filename", aliases: []string{"--output", "--timestamp-output", "--xterm", "--merge-stderr-to-stdout", "--xml"},
			refused: "muster keeps the workers' output its own way",
			hint:    "muster --log-dir DIR --tee 3 mpirun … writes the output of each worker to a file",
		},
		{
			name: "stdin", refused: "workers read nothing",
			hint: "start the one worker that is to read something with muster run --stdin inherit",
		},
		{
			name: "genv", aliases: []string{"--env", "--genvlist", "--envlist", "--genvall", "--genvnone", "--envall", "--envnone"},
			refused: "variables are given Open MPI's way", hint: "give -x NAME=VALUE",
		},
		{name: "app", aliases: []string{"--configfile"}, refused: "one job runs one program"},
		{name: "am", aliases: []string{"--tune"}, refused: "files of Open MPI's parameters are not read", hint: "give what is in it by " +
			"-x and --mca"},
		{
			name: "prefix", aliases: []string{"--path", "--preload-binary", "--preload-files", "-s"},
			refused: "muster brings nothing but itself to the hosts", hint: "install the program on all of them",
		},
		{name: "version", aliases: []string{"-V"}, refused: "this is muster and no MPI", hint: "muster --version tells its version"},
	}
}

const (
	whyByNode  = "ranks would be dealt to the hosts in turn, and muster gives those of a host in a row"
	hintByNode = "leave it out, or give one worker to each host"
)

const mpirunAbout = `Starts the workers of a job on hosts, as mpirun does in simple cases, and watches over them. Workers get torchelastic's
variables and those of OMPI_COMM_WORLD_…; there is no MPI beneath them, so that a program that calls MPI_Init would find
itself alone.

Names of options may be written with one dash or two. The first word that is no option is the program; it is run as it is
typed. What is not listed is refused.
`

func mpiEntries() []entry {
	var entries []entry
	for _, o := range mpiOptions(new(mpiWords)) {
		if o.refused != "" {
			continue
		}
		names := append([]string{mpiSpelling(o.name)}, o.aliases...)
		entries = append(entries, entry{o.group, strings.TrimSpace(strings.Join(names, ", ") + " " + o.arg), o.help})
	}
	return append(entries, entry{groupOther, "-h, --help", "Print this text and exit."})
}

// mpiSpelling is how an option is usually written: mpirun's short names have one dash.
func mpiSpelling(name string) string {
	if len(name) <= 2 {
		return "-" + name
	}
	return "--" + name
}

func mpirunHelp() string {
	var b strings.Builder
	b.WriteString("Usage: muster [muster's flags] mpirun [options] program [arguments]\n\n" + mpirunAbout + "\n")
	writeEntries(&b, mpiEntries())
	b.WriteString("Flags of muster itself, in front of the word mpirun, or as variables MUSTER_<FLAG>:\n")
	b.WriteString(mpiParser(new(mpiWords)).ownHelp())
	b.WriteString("\n" + ExitStatusHelp)
	return b.String()
}

// mpiParser knows the options, for what all dialects do with those.
func mpiParser(w *mpiWords) *parser {
	p := &parser{prog: mpirun, options: mpiOptions(w)}
	for i := range p.options {
		if o := &p.options[i]; o.word != nil { // else it is refused
			o.word.option = o
		}
	}
	return p
}

// mpirunFlags are the options for man pages and completion.
func mpirunFlags(prog string) *pflag.FlagSet {
	flags := pflag.NewFlagSet(prog, pflag.ContinueOnError)
	flags.SortFlags = false
	for _, o := range mpiOptions(new(mpiWords)) {
		if o.refused != "" {
			continue
		}
		w := &flagWord{arg: o.arg, isSwitch: !o.kind.takesWord(), choices: func() []string { return wordsOf(o.arg) }}
		f := &pflag.Flag{Name: o.name, Usage: o.help, Value: w}
		for _, name := range o.names() {
			w.spellings = append(w.spellings, "-"+name, "--"+name)
			if len(name) == 1 && f.Shorthand == "" {
				f.Shorthand = name
			}
		}
		if !o.kind.takesWord() {
			f.NoOptDefVal = "true"
		}
		flags.AddFlag(f)
	}
	return flags
}
