package dialect

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"muster/internal/errhint"
	"muster/internal/hosts"
	"muster/internal/lazyregexp"
	"muster/launch/job"
)

// MPIRun reads a command line of Open MPI's mpirun, as far as it can be done without MPI. The number of workers on each
// host follows from the command line alone, and so do their ranks.
func MPIRun(inv Invocation) (Request, error) {
	m := &mpiJob{inv: inv, env: newEnviron(inv.Environ)}
	m.parser = mpiParser(&m.w)
	command, help := m.read()
	if help {
		if err := m.wrong.err(); err != nil {
			return Request{}, err
		}
		return Request{}, printed(mpirunHelp())
	}
	m.req = Request{LogLevel: "warn", Job: job.Job{
		Dialect: mpirun, Nodes: job.Range{Min: 1, Max: 1}, Procs: "1", Role: "default", Meeting: defaultMeeting(backendStandalone),
		Restart: defaultRestart(), Warm: job.WarmRules{Wait: defaultWarmWait}, See: job.SeeRules{Keep: defaultKeepRuns},
		Stop: job.StopRules{Grace: defaultGrace}, EventLog: "null",
		Environ: inv.Environ,
	}}
	m.job = &m.req.Job
	handled, _, err := parseSignals(defaultSignals)
	if err != nil {
		panic("internal error: the default signals are wrong")
	}
	m.job.Stop.Handled = handled
	watchdog(m.job, m.env)
	m.command(command)
	m.variables()
	m.parameters()
	m.output()
	m.binding()
	m.nodes()
	for i := range m.parser.options {
		o := &m.parser.options[i]
		if o.refused != "" {
			continue
		}
		for _, word := range append(o.word.weaker.all(), *o.word) {
			word.on = word.given
			m.req.Settings = append(m.req.Settings, Setting{Flag: o.name, Value: word.shown(), Source: word.source})
		}
	}
	words := m.inv.Own.apply(&m.req, inv, m.env, m.parser, m.equivalents(), &m.wrong)
	settleMeeting(&m.req, withNodes(words, m.job), &m.wrong)
	if err := m.req.finish(words, &m.wrong); err != nil {
		return m.req.asked(), err
	}
	return m.req, nil
}

// mpiJob turns mpirun's options into a job and gathers what is wrong on the way.
type mpiJob struct {
	inv    Invocation
	env    environ
	w      mpiWords
	parser *parser
	req    Request
	job    *job.Job // of req
	wrong  problems
}

// read takes the options from the front of the arguments and returns the command behind them, and whether help was
// asked for.
func (m *mpiJob) read() (command []string, help bool) {
	args := m.inv.Args
	for len(args) > 0 && strings.HasPrefix(args[0], "-") && args[0] != "-" {
		spelling, text, joined := strings.Cut(args[0], "=")
		args = args[1:]
		name := strings.ReplaceAll(strings.TrimPrefix(strings.TrimPrefix(spelling, "-"), "-"), "_", "-")
		if spelling == "--" {
			break
		}
		if name == "help" || spelling == "-h" {
			return nil, true
		}
		o := m.option(name)
		switch {
		case o == nil:
			m.unknown(spelling, name)
			continue
		case o.refused != "":
			m.wrong.add(errhint.With(fmt.Errorf("cannot use %s: %s", spelling, o.refused), o.hint))
			if len(args) > 0 && !joined && !strings.HasPrefix(args[0], "-") {
				return nil, false // whether the next word is its value or the program is not known
			}
			continue
		case !o.kind.takesWord() && joined:
			m.wrong.add(fmt.Errorf("cannot use %s with the value %q: it takes none", spelling, text))
			continue
		}
		words, takes := []string{}, map[kind]int{kindText: 1, kindTwo: 2}[o.kind]
		if joined {
			words = append(words, text)
		}
		for len(words) < takes && len(args) > 0 {
			words, args = append(words, args[0]), args[1:]
		}
		if len(words) < takes {
			m.wrong.add(fmt.Errorf("cannot use %s without %s", spelling, o.arg))
			continue
		}
		word := value{
			option: o, text: strings.Join(words, " "), given: true, source: job.Source{Kind: job.FromFlag, Name: mpiSpelling(o.name)},
		}
		if o.word.given {
			word.weaker = new(*o.word)
		}
		*o.word = word
	}
	return args, false
}

// option is the one with a name, nil for none.
func (m *mpiJob) option(name string) *option {
	for i := range m.parser.options {
		if o := &m.parser.options[i]; slices.Contains(o.names(), name) {
			return o
		}
	}
	return nil
}

func (m *mpiJob) unknown(spelling, name string) {
	var known []string
	for _, o := range m.parser.options {
		known = append(append(known, mpiSpelling(o.name)), o.aliases...)
	}
	if anywhere(name) != nil {
		m.wrong.add(errhint.With(fmt.Errorf("unknown flag %s", spelling),
			fmt.Sprintf("it is muster's own: put it in front of the launcher's name, as in muster --%s … mpirun …", name)))
		return
	}
	m.wrong.add(unknownFlag(spelling, known, "-h"))
}

func (m *mpiJob) warn(format string, args ...any) {
	m.job.Warnings = append(m.job.Warnings, fmt.Sprintf(format, args...))
}

// refuse adds a problem with an option's word.
func (m *mpiJob) refuse(word value, err error) {
	m.wrong.add(fmt.Errorf("cannot use %s %s: %w", word.source.Name, word.text, err))
}

// count is the number that an option gives, 0 where it is not given.
func (m *mpiJob) count(word value) int {
	if !word.given {
		return 0
	}
	n, err := pyInt(word.text)
	if err != nil || n < 1 || n > maxRanks {
		m.refuse(word, fmt.Errorf("give a number from 1 to %d", maxRanks))
		return 0
	}
	return n
}

// maxRanks bounds the workers of a job: each has a few hundred bytes of variables of its own.
const maxRanks = 1 << 20

func (m *mpiJob) command(words []string) {
	if m.wrong.list != nil && len(words) == 0 {
		return
	}
	if len(words) == 0 || words[0] == "" {
		m.wrong.add(errors.New("cannot start without a program: name it behind the options, as in mpirun -np 2 python train.py"))
		return
	}
	if slices.Contains(words, ":") {
		m.wrong.add(errors.New("cannot start several programs in one job, with : between them: muster starts one"))
	}
	m.job.Command = job.Command{Name: words[0], Args: words[1:]}
}

// mpiVariable is what -x takes: a name with a value, or a name or the beginning of one without.
var mpiVariable = lazyregexp.New(`(?s)^[A-Za-z_][A-Za-z0-9_]*(=.*|\*)?$`)

// variables are those of -x. Workers on other hosts inherit what these have, as under mpirun.
func (m *mpiJob) variables() {
	rules := &m.job.Env
	rules.Mode = job.EnvInherit
	for _, word := range m.w.x.all() {
		name, value, set := strings.Cut(word.text, "=")
		switch {
		case !mpiVariable().MatchString(word.text):
			m.refuse(word, errors.New("give NAME=VALUE, NAME or NAME*"))
		case set:
			rules.Set = append(rules.Set, job.Var{Name: name, Value: value, Source: word.source})
		default:
			if _, here := m.env[name]; !here && !strings.HasSuffix(name, "*") {
				m.warn("-x %s has no effect: there is no such variable here", name)
				continue
			}
			rules.Pass = append(rules.Pass, name)
		}
	}
}

// parameters are those of --mca, and of the variables by which the MPI operator says how hosts are reached.
func (m *mpiJob) parameters() {
	const args, agent, prefix = "plm_rsh_args", "plm_rsh_agent", "OMPI_MCA_"
	if text := m.env[prefix+args]; text != "" {
		m.sshArgs(value{text: text, source: job.Source{Kind: job.FromVariable, Name: prefix + args}})
	}
	if text := m.env[prefix+agent]; text != "" {
		m.warn("%s%s=%s has no effect: give --ssh-program in front of mpirun", prefix, agent, text)
	}
	for _, word := range m.w.mca.all() {
		name, text, _ := strings.Cut(word.text, " ")
		switch name {
		case args, "orte_rsh_args", "pls_rsh_args":
			m.sshArgs(value{text: text, source: job.Source{Kind: job.FromFlag, Name: "--mca " + name}})
		case agent, "orte_rsh_agent", "pls_rsh_agent":
			m.job.Hosts.SSH.Program = strings.Fields(text)
		default:
			if !mpiVariable().MatchString(name) || strings.ContainsAny(name, "=*") {
				m.refuse(word, errors.New("give the name of a parameter and its value"))
				continue
			}
			m.job.Env.Set = append(m.job.Env.Set, job.Var{Name: prefix + name, Value: text, Source: word.source})
		}
	}
}

// sshArgs reads ssh's own options, as far as muster knows them.
func (m *mpiJob) sshArgs(word value) {
	rules, words := &m.job.Hosts.SSH, strings.Fields(word.text)
	for len(words) > 0 {
		letter, value, used := "", "", 1
		if len(words[0]) >= 2 && words[0][0] == '-' {
			if letter, value = words[0][:2], words[0][2:]; value == "" && len(words) > 1 {
				value, used = strings.Trim(words[1], `"'`), 2
			}
		}
		port, err := pyInt(value)
		switch {
		case letter == "-p" && err == nil && port > 0 && port <= 65535:
			rules.Port = port
		case letter == "-l" && hosts.IsUser(value):
			rules.User = value
		case letter == "-i" && value != "":
			rules.Identity = value
		case letter == "-o" && sshOption().MatchString(value):
			rules.Options = append(rules.Options, value)
		default:
			m.refuse(word,
				fmt.Errorf("%q is none of -p PORT, -l USER, -i FILE and -o NAME=VALUE; give muster's own --ssh-… in front of mpirun",
					words[0]))
			return
		}
		words = words[used:]
	}
}

// output is how the workers' output is shown, and what muster says itself.
func (m *mpiJob) output() {
	if m.w.tagOutput.given {
		m.job.Logs.PrefixAll, m.job.Logs.Prefix = true, "[1,${rank}]:"
	}
	switch {
	case m.w.quiet.given && m.w.verbose.given:
		m.wrong.add(errors.New("cannot use --quiet and --verbose together: give one of them"))
	case m.w.quiet.given:
		m.req.LogLevel = "error"
	case m.w.verbose.given:
		m.req.LogLevel = "info"
	}
	if word := m.w.wdir; word.given {
		if !path.IsAbs(word.text) {
			m.refuse(word, errors.New("give a path from the root: it is to be the same on all hosts"))
		}
		m.job.Hosts.Dir = word.text
	}
}

// equivalents are the values that muster's own settings have through mpirun's options and habits.
func (m *mpiJob) equivalents() *ownWords {
	all := newOwnWords()
	all.LogLevel.say(m.req.LogLevel, job.Source{})
	for _, word := range []value{m.w.quiet, m.w.verbose} {
		if word.given {
			all.LogLevel.source = word.source
		}
	}
	if word := m.w.wdir; word.given {
		all.RemoteDir.say(word.text, word.source)
	}
	if word := m.w.bindTo; word.given && m.job.Bind.Mode != "" {
		all.NUMABinding.say(word.text, word.source)
	}
	return all
}

// binding maps --bind-to to muster's own terms, which are about accelerators.
func (m *mpiJob) binding() {
	word := m.w.bindTo
	if !word.given {
		return
	}
	switch text, _, _ := strings.Cut(word.text, ":"); text {
	case "none":
	case "numa":
		m.job.Bind.Mode = "node"
	case "socket", "package":
		m.job.Bind.Mode = "socket"
	case "l3cache":
		m.job.Bind.Mode = "core-complex"
	default:
		m.refuse(word,
			errors.New("choose none, numa, socket or l3cache: muster binds workers to CPUs near their accelerators, and to no single ones"))
	}
}
