package dialect

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"muster/internal/errhint"
	"muster/internal/platform"
	"muster/launch/job"
)

// asksForJSON reports whether --json stands among flags that could not be read to their end.
func asksForJSON(args []string) bool {
	if i := slices.Index(args, "--"); i >= 0 {
		args = args[:i]
	}
	return slices.Contains(args, "--json") || slices.Contains(args, "--json=true")
}

// askedFormat is what --log-format says among flags that could not be read to their end, empty for nothing.
func askedFormat(args []string) (format string) {
	for i, word := range args {
		name, text, joined := strings.Cut(word, "=")
		switch {
		case word == "--":
			return format
		case plain(name) != "--log-format":
		case joined:
			format = text
		case i+1 < len(args):
			format = args[i+1]
		}
	}
	return format
}

// Native reads a command line of muster's own run command. A flag's value comes from the command line, else from
// MUSTER_<FLAG>, else from PET_<FLAG>, else from the file of --config, else from the platform, else it is the default.
//
// What follows the flags is the command. It is run as it is typed, with two exceptions: a first word that ends in .py,
// and a module named by -m, are run by Python with unbuffered output.
func Native(inv Invocation) (Request, error) {
	list := settings()
	flags := nativeFlags(list)
	var wrong problems
	env := newEnviron(inv.Environ)
	rest, err := parseFlags(flags, inv.Args)
	if err == nil && isNP(flags, inv.Args[:len(inv.Args)-len(rest)]) {
		err = errhint.With(errors.New("unknown flag -np"), workersHint)
		wrong.add(err)
		return Request{JSON: inv.Own.json(env) || asksForJSON(inv.Args)}, wrong.err()
	}
	if err != nil {
		if errors.Is(err, pflag.ErrHelp) {
			return Request{}, printed(nativeHelp(false))
		}
		wrong.add(flagProblem(err, list))
		return Request{JSON: inv.Own.json(env) || asksForJSON(inv.Args)}, wrong.err()
	}
	if all, _ := flags.GetBool(helpAllFlag); all {
		return Request{}, printed(nativeHelp(true))
	}
	command := *inv.Own.given()
	flags.Visit(func(f *pflag.Flag) {
		if w, ok := f.Value.(*flagWord); ok { // else it is --help-all=false, which asks for nothing
			w.option.of(&command).say(w.text, job.Source{Kind: job.FromFlag, Name: "--" + f.Name})
		}
	})
	words := resolve(list, &command, env, []string{ownPrefix, petPrefix}, func(file string) (*ownWords, problems) {
		return readConfig(file, list, inv.ReadFile)
	}, &wrong)
	file := readJobFile(inv, words, rest, &wrong)
	if file.words(words, &wrong); wrong.list != nil && file.named {
		return Request{JSON: words.JSON.switched()}, wrong.err() // what follows would be about nothing
	}
	standalone(words, &wrong)
	facts, warnings := askPlatform(inv, env, words, &wrong)
	r := Request{LogLevel: "info", Job: job.Job{
		Dialect: "run", Nodes: job.Range{Min: 1, Max: 1}, Procs: "1", Role: "default",
		Meeting: defaultMeeting(backendOf(words)), Restart: defaultRestart(),
		Warm: job.WarmRules{Auto: true, Restarts: true, Wait: defaultWarmWait}, // warmDefault
		Stop: job.StopRules{Grace: defaultGrace}, Logs: job.LogRules{PrefixAll: true}, EventLog: "null",
		See:     job.SeeRules{Keep: defaultKeepRuns},
		Environ: inv.Environ, Warnings: append(misspelt(env, nil), warnings...),
	}}
	if facts != nil {
		r.Platform, r.Job.Platform = facts, facts.Name
	}
	if r.Job.Stop.Handled, warnings, err = parseSignals(defaultSignals); err != nil || len(warnings) > 0 {
		panic("internal error: the default signals are wrong")
	}
	watchdog(&r.Job, env)
	equivalents := newOwnWords()
	applyConf(&r.Job, words.RdzvConf, equivalents, &wrong)
	r.Job.Meeting.Backend = backendStandalone // until a setting says otherwise
	r.give(list, words, equivalents, &wrong)
	settleSimulation(&r, words, &wrong)
	file.launcherHosts(&r, inv, words, &wrong)
	if hosted(words) {
		nativeHosts(&r, inv, words, &wrong)
	} else {
		nativeMeeting(&r, words, &wrong)
	}
	if file.named {
		file.place(&r, inv, words, env, &wrong)
	} else {
		nativeCommand(&r, inv, rest, words, env, &wrong)
	}
	settleEnv(&r, inv, words, &wrong)
	file.mustBeHere(&r, inv, &wrong)
	checkRules(&r, words, &wrong)
	checkPolicy(&r, words, &wrong)
	if err := r.finish(words, &wrong); err != nil {
		return r.asked(), err
	}
	if dir := r.Job.Logs.Dir; dir != "" && dir != os.DevNull {
		r.Job.FileAll()
	}
	return r, nil
}

// helpAllFlag asks for the help text with all flags. It is no setting: nothing but the command line asks for it.
const helpAllFlag = "help-all"

// nativeFlags are the flags of muster run.
func nativeFlags(list []*option) *pflag.FlagSet {
	flags := flagSet("run", list)
	flags.Bool(helpAllFlag, false, "Print the help text with all flags and exit.")
	return flags
}

// standalone makes of --standalone what it says: this node alone, whatever a platform says of others.
func standalone(words *ownWords, wrong *problems) {
	word := words.Standalone
	if !word.switched() {
		return
	}
	others := []value{words.Hosts, words.Hostfile, words.Rdzv, words.NodeRank, words.Spares, words.SimulateNodes}
	if nodes := words.NNodes; nodes.text != "1" && nodes.text != "1:1" {
		others = append(others, nodes)
	}
	for _, other := range others {
		if other.given && other.text != "" && other.text != "0" {
			wrong.add(fmt.Errorf("cannot use %s with %s: --standalone is one node by itself; leave one of them out",
				word.written(), other.written()))
		}
	}
	words.Platform.say(platform.None, word.source)
}

// isLauncher reports whether a program is a launcher, which has flags of such names itself.
func isLauncher(program string) bool {
	name := path.Base(program)
	return name == "muster" || name == "srun" || name != nativeRun && Named(name)
}

// behindScript warns of rules for the job that stand behind the command, where they are the script's.
func behindScript(args []string) (warnings []string) {
	for _, a := range args {
		name, _, _ := strings.Cut(a, "=")
		switch plain(name) {
		case "--max-restarts", "--nproc-per-node", "--nnodes":
			warnings = append(warnings,
				name+" stands behind the script's name, so that the script gets it and muster does not: put it in front")
		}
	}
	return warnings
}

// defaultSignals end a job when they reach muster; they are torchrun's.
const defaultSignals = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"

func nativeCommand(r *Request, inv Invocation, args []string, words *ownWords, env environ, wrong *problems) {
	if len(args) == 0 || args[0] == "" {
		wrong.add(errors.New("cannot start without a command: name it behind the flags, as in muster run -n 2 -- python train.py"))
		return
	}
	if !isLauncher(args[0]) {
		r.Job.Warnings = append(r.Job.Warnings, behindScript(args[1:])...)
	}
	module, plain := words.Module.switched(), words.NoPython.switched()
	c := job.Command{Kind: job.Program, Name: args[0], Args: args[1:]}
	switch {
	case module && plain:
		wrong.add(errors.New("cannot use --no-python and --module together: a module needs Python; leave one of them out"))
	case module:
		c.Kind = job.Module
	case !plain && strings.HasSuffix(args[0], ".py"):
		c.Kind = job.Script
	}
	if c.Kind != job.Program {
		c.Interpreters = interpreters(inv.Argv0, env)
	}
	r.Job.Command = c
}

// checkPolicy refuses a restart policy that was asked for and cannot act, and one that forbids what was asked for.
func checkPolicy(r *Request, words *ownWords, wrong *problems) {
	policy, restarts := r.Job.Restart.Policy, words.MaxRestarts
	if !restarts.given {
		restarts = words.BackoffLimit
	}
	asked := words.RestartPolicy.fromFlag()
	// What --set says of a job file is the file's, which has limits for the losses of nodes, too.
	typed := restarts.fromFlag() && !strings.HasPrefix(restarts.source.Name, "--set ")
	refuse := func(why string) {
		wrong.add(fmt.Errorf("cannot use %s with %s: %sleave one of them out", words.RestartPolicy.written(), restarts.written(), why))
	}
	switch some := r.Job.Restart.MaxRestarts > 0; {
	case policy == job.RestartNever && some && (asked || typed):
		refuse("")
	case policy == job.RestartOnNodeFail && some && typed:
		refuse("no exit restarts the workers then; ")
	}
	if policy == job.RestartOnNodeFail && asked && r.Job.Restart.ReplaceLimit == 0 {
		wrong.add(fmt.Errorf("cannot use --restart-policy on-node-fail with %s: nothing would be restarted",
			words.RestartLimit.written()))
	}
}

// backendOf is the backend whose settings --rdzv-conf has.
func backendOf(words *ownWords) string {
	var m job.Meeting
	if words.Rdzv.given {
		if parseRdzv(&m, words.Rdzv.text) != nil {
			return backendC10d // the word is refused later
		}
		return m.Backend
	}
	switch {
	case hosted(words) && (words.Spares.given || strings.Contains(words.NNodes.text, ":")):
		return backendMuster
	case words.MasterPort.given || words.NodeRank.given || hosted(words):
		return backendStatic
	}
	return backendStandalone
}

// workersHint is for who says by another launcher's word how many workers there are.
const workersHint = "-n N is the number of workers on each node; how many nodes there are is said by --nnodes, or --hosts with the " +
	"workers of each"

// isNP reports whether -np stands among flags, as in mpirun: it is read as -n with the word p.
func isNP(flags *pflag.FlagSet, typed []string) bool {
	return strings.HasPrefix(flags.Lookup(ownRows().blank.NProcPerNode.option.name).Value.String(), "p") &&
		slices.ContainsFunc(typed, func(word string) bool { return strings.HasPrefix(word, "-np") })
}

// flagWord is the value of a flag as it was typed; the setting reads it later, together with words from other sources.
type flagWord struct {
	option    *option
	text, arg string
	isSwitch  bool
	separator string // between several words, where each counts and not only the last
	choices   func() []string
	spellings []string // further ones, with their dashes
}

// againError is a flag that was given again and cannot be.
type againError struct {
	option       *option
	first, again string
}

func (e *againError) Error() string {
	return fmt.Sprintf("cannot use --%[1]s %[2]s and --%[1]s %[3]s together", e.option.name, e.first, e.again)
}

func (w *flagWord) String() string { return w.text }

func (w *flagWord) Set(text string) error {
	if w.option != nil && w.option.once != "" && w.text != "" && w.text != text {
		return &againError{w.option, w.text, text}
	}
	if w.separator != "" && w.text != "" {
		text = w.text + w.separator + text
	}
	w.text = text
	return nil
}

// Type is what pflag's and cobra's own texts show behind the flag.
func (w *flagWord) Type() string {
	if w.isSwitch {
		return "bool"
	}
	return w.arg
}

func normal(name string) pflag.NormalizedName {
	return pflag.NormalizedName(strings.ReplaceAll(name, "_", "-"))
}

func flagSet(name string, list []*option) *pflag.FlagSet {
	flags := pflag.NewFlagSet(name, pflag.ContinueOnError)
	flags.SetInterspersed(false)
	flags.SortFlags = false
	flags.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName { return normal(name) })
	flags.Usage = func() {}
	for _, s := range list {
		// Of a flag and its alias the last one typed counts.
		shared := &flagWord{option: s, arg: s.arg, isSwitch: !s.kind.takesWord(), separator: s.separator, choices: s.fixed}
		for _, name := range s.names() {
			f := &pflag.Flag{
				Name: name, Usage: s.usage(), Value: shared, Hidden: name != s.name,
			}
			if name == s.name {
				f.Shorthand = s.short
			}
			if !s.kind.takesWord() {
				f.NoOptDefVal = "true"
			}
			flags.AddFlag(f)
		}
	}
	return flags
}

// parseFlags reads flags and returns the command behind them. pflag gives a flag one word; one of pairs takes more.
func parseFlags(flags *pflag.FlagSet, args []string) (command []string, err error) {
	for {
		if err := flags.Parse(args); err != nil {
			return nil, err
		}
		rest := flags.Args()
		pairs, more := lastOfPairs(flags, args[:len(args)-len(rest)]), 0
		for pairs != nil && more < len(rest) && pairWord().MatchString(rest[more]) {
			_ = pairs.Set(rest[more]) // a word takes all
			more++
		}
		if more == 0 {
			return rest, nil
		}
		args = rest[more:]
	}
}

// lastOfPairs is the flag that args end with and its value, if it is one of pairs.
func lastOfPairs(flags *pflag.FlagSet, args []string) *flagWord {
	if len(args) == 0 {
		return nil
	}
	name, _, joined := strings.Cut(args[len(args)-1], "=")
	if !joined && len(args) > 1 {
		name = args[len(args)-2]
	}
	f := flags.Lookup(strings.TrimPrefix(name, "--"))
	if f == nil || !strings.HasPrefix(name, "--") {
		return nil
	}
	if w, ok := f.Value.(*flagWord); ok && w.option != nil && w.option.kind == kindPairs {
		return w
	}
	return nil
}

func flagProblem(err error, list []*option) error {
	if unknown, ok := errors.AsType[*pflag.NotExistError](err); ok {
		names := []string{"--" + helpAllFlag}
		for _, s := range list {
			names = append(append(names, "--"+s.name), s.aliases...)
		}
		switch name := plain(unknown.GetSpecifiedName()); name {
		case "rdzv-backend", "rdzv-endpoint", "master-addr", "master-port":
			return errhint.With(fmt.Errorf("unknown flag --%s", unknown.GetSpecifiedName()),
				"muster run says both at once: --rdzv BACKEND://HOST:PORT, such as --rdzv c10d://node1:29500")
		case "np", "num-proc", "num-gpus", "ngpus", "gpus", "workers", "num-workers", "num-processes":
			return errhint.With(fmt.Errorf("unknown flag --%s", unknown.GetSpecifiedName()), workersHint)
		case "num-nodes", "num-machines", "nodes":
			return errhint.With(fmt.Errorf("unknown flag --%s", unknown.GetSpecifiedName()),
				"--nnodes N is the number of nodes; --hosts names them, and muster starts all from here")
		}
		spelling := "--" + unknown.GetSpecifiedName()
		if unknown.GetSpecifiedShortnames() != "" {
			spelling = "-" + unknown.GetSpecifiedName()
		}
		return unknownFlag(spelling, names, "--"+helpAllFlag)
	}
	if missing, ok := errors.AsType[*pflag.ValueRequiredError](err); ok {
		return fmt.Errorf("cannot use %s without a value", flagSpelling(missing.GetFlag(), missing.GetSpecifiedShortnames()))
	}
	if again, ok := errors.AsType[*againError](err); ok {
		return errhint.With(again, again.option.once)
	}
	return err
}

func flagSpelling(f *pflag.Flag, short string) string {
	if short != "" {
		return "-" + f.Shorthand
	}
	return "--" + f.Name
}
