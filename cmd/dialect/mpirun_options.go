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

// mpiOption is an option of mpirun. All its names may be written with one dash or two.
type mpiOption struct {
	names []string // without dashes, the one that messages use first
	// words are how many words it takes: 0 to 2.
	words            int
	arg, help, group string
	// moot says why nobody misses an effect of the option where it changes nothing in the job, empty where one would be
	// missed.
	moot string
	// refused says why it is not taken, hint what to do instead.
	refused, hint string
}

// mpiOptions are those of Open MPI that can be done without MPI, MPICH's words for the same, and those that are often
// seen and are refused.
func mpiOptions() []mpiOption {
	return []mpiOption{
		{
			names: []string{"np", "n", "c"}, words: 1, arg: "N", group: groupNodes,
			help: "Number of workers in all. Default: one for each slot.",
		},
		{
			names: []string{"host", "H", "hosts"}, words: 1, arg: "HOST[:SLOTS],...", group: groupNodes,
			help: "Hosts with their slots; one without a number has one, and one that comes again has more. Default: this machine, or what the platform says.",
		},
		{
			names: []string{"hostfile", "machinefile", "default-hostfile", "f"}, words: 1, arg: "FILE", group: groupNodes,
			help: "The same with a host on each line: HOST slots=N, or HOST:N.",
		},
		{
			names: []string{"npernode", "N", "ppn", "perhost"}, words: 1, arg: "N", group: groupNodes,
			help: "Workers on each host, whatever its slots.",
		},
		{names: []string{"pernode"}, moot: "one worker of one host is one on each", group: groupNodes, help: "One worker on each host."},
		{
			names: []string{"map-by"}, words: 1, arg: "slot|ppr:N:node", group: groupNodes,
			help: "Fill each host before the next one (slot), or N workers on each host. node only where each host has one worker.",
		},
		{names: []string{"rank-by"}, words: 1, arg: "slot", group: groupNodes, help: "Ranks go from host to host; there is nothing else."},
		{names: []string{"byslot"}, moot: "there is no other order", group: groupNodes, help: "The same as --map-by slot."},
		{
			names: []string{"oversubscribe"}, moot: "there are enough slots", group: groupNodes,
			help: "Start more workers than there are slots.",
		},
		{
			names: []string{"nooversubscribe"}, moot: "this is so already", group: groupNodes,
			help: "Do not. This is so unless --oversubscribe is given.",
		},
		{
			names: []string{"x"}, words: 1, arg: "NAME[=VALUE]", group: groupCommand,
			help: "A variable for the workers: its value here, or VALUE; NAME* for all that begin so. May be given again. Workers on other hosts get no other variables from here.",
		},
		{
			names: []string{"wdir", "wd"}, words: 1, arg: "DIR", group: groupCommand,
			help: "Working directory on all hosts, from the root. Default: this one.",
		},
		{
			names: []string{"bind-to"}, words: 1, arg: "none|numa|socket|l3cache", group: groupCommand,
			help: "Bind each worker to CPUs near the accelerator of its local rank; none is the default.",
		},
		{names: []string{"bind-to-none"}, moot: "this is so already", group: groupCommand, help: "The same as --bind-to none."},
		{names: []string{"tag-output", "prepend-rank", "l"}, group: groupLogs, help: "Put [1,RANK]: in front of each line of a worker."},
		{names: []string{"quiet", "q"}, group: groupOther, help: "Say only what is wrong."},
		{names: []string{"verbose", "v"}, group: groupOther, help: "Say more."},
		{names: []string{"allow-run-as-root"}, moot: "root may start muster", group: groupOther, help: "No effect: root may start muster."},
		{
			names: []string{"mca", "gmca"}, words: 2, arg: "NAME VALUE", group: groupOther,
			help: "A parameter of Open MPI: passed on to the workers as OMPI_MCA_NAME, and plm_rsh_args and plm_rsh_agent say how hosts are reached.",
		},

		{names: []string{"bynode"}, refused: whyByNode, hint: hintByNode},
		{names: []string{
			"bind-to-core", "bind-to-socket", "bycore", "bysocket", "cpus-per-proc", "cpus-per-rank", "use-hwthread-cpus",
			"rankfile", "rf", "cpu-set", "cpu-list",
		}, refused: "workers are bound as --bind-to says, or not at all"},
		{
			names: []string{"report-bindings", "display-map", "display-allocation", "display"}, refused: "muster shows it before a start",
			hint: "muster --dry-run mpirun … shows ranks, hosts and bindings",
		},
		{names: []string{"timeout"}, refused: "muster has its own word for it", hint: "give --active-deadline TIME in front of mpirun"},
		{
			names:   []string{"output-filename", "output", "timestamp-output", "xterm", "merge-stderr-to-stdout", "xml"},
			refused: "muster keeps the workers' output its own way",
			hint:    "muster --log-dir DIR --tee 3 mpirun … writes the output of each worker to a file",
		},
		{
			names: []string{"stdin"}, refused: "workers read nothing",
			hint: "start the one worker that is to read something with muster run --stdin inherit",
		},
		{
			names:   []string{"genv", "env", "genvlist", "envlist", "genvall", "genvnone", "envall", "envnone"},
			refused: "variables are given Open MPI's way", hint: "give -x NAME=VALUE",
		},
		{names: []string{"app", "configfile"}, refused: "one job runs one program"},
		{names: []string{"am", "tune"}, refused: "files of Open MPI's parameters are not read", hint: "give what is in it by -x and --mca"},
		{
			names:   []string{"prefix", "path", "preload-binary", "preload-files", "s"},
			refused: "muster brings nothing but itself to the hosts", hint: "install the program on all of them",
		},
		{names: []string{"version", "V"}, refused: "this is muster and no MPI", hint: "muster --version tells its version"},
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
	for _, o := range mpiOptions() {
		if o.refused != "" {
			continue
		}
		names := make([]string, len(o.names))
		for i, name := range o.names {
			names[i] = mpiSpelling(name)
		}
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
	b.WriteString(mpiParser().ownHelp())
	b.WriteString("\n" + ExitStatusHelp)
	return b.String()
}

// mpiParser knows the names of the options, for what all dialects do with those.
func mpiParser() *parser {
	p := &parser{prog: mpirun}
	for _, o := range mpiOptions() {
		p.options = append(p.options, option{name: o.names[0]})
	}
	return p
}

// mpirunFlags are the options for man pages and completion.
func mpirunFlags(prog string) *pflag.FlagSet {
	flags := pflag.NewFlagSet(prog, pflag.ContinueOnError)
	flags.SortFlags = false
	for _, o := range mpiOptions() {
		if o.refused != "" {
			continue
		}
		w := &flagWord{arg: o.arg, isSwitch: o.words == 0, choices: func() []string { return wordsOf(o.arg) }}
		f := &pflag.Flag{Name: o.names[0], Usage: o.help, Value: w}
		for _, name := range o.names {
			w.spellings = append(w.spellings, "-"+name, "--"+name)
			if len(name) == 1 && f.Shorthand == "" {
				f.Shorthand = name
			}
		}
		if o.words == 0 {
			f.NoOptDefVal = "true"
		}
		flags.AddFlag(f)
	}
	return flags
}
