package dialect

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"muster/internal/errhint"
	"muster/launch/job"
)

// Variables that torchrun reads beside those that stand for its flags.
const (
	pythonExec      = "PYTHON_EXEC"
	virtualEnv      = "VIRTUAL_ENV"
	logLevel        = "LOGLEVEL"
	prefixTemplate  = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"
	shutdownTimeout = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
	enableTimer     = "TORCHELASTIC_ENABLE_FILE_TIMER"
	timerFile       = "TORCHELASTIC_TIMER_FILE"
	stuckTimeout    = "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT"
)

// Torchrun reads a command line of torchrun, or of python -m torch.distributed.run, as PyTorch 2.15.0 does.
func Torchrun(inv Invocation) (Request, error) {
	w := new(torchrunWords)
	return torchrun(inv, torchrunParser("torchrun", w), w, nil)
}

func torchrunParser(prog string, w *torchrunWords) *parser {
	p := &parser{
		prog: prog, script: "training_script", options: torchrunOptions(w),
		prefixes: []string{ownPrefix, petPrefix},
	}
	p.help = func() string { return p.helpText(torchrunAbout) }
	p.print = p.completion
	return p
}

// torchrunJob turns torchrun's options into a job and gathers what is wrong on the way.
type torchrunJob struct {
	env    environ
	parser *parser
	in     *parsed
	w      *torchrunWords
	own    Own
	ports  []int // where the workers' store may listen
	// levelFrom is the variable that says what is logged.
	levelFrom string
	// names are what the launcher calls flags of torchrun, where that is something else.
	names map[*value]string
	// last, where there is one, changes what the job has become through torchrun's flags.
	last   func(*job.Job)
	master job.DLRoverMaster // the zero value but in DLRover's launcher
	habits *ownWords         // values that muster's own settings have in a launcher that goes beyond torchrun
	req    Request
	job    *job.Job // of req
	wrong  problems
}

// torchrun reads a command line of torchrun, or of a launcher that adds to its flags. adapt, where there is one, puts
// what that launcher has beyond torchrun into torchrun's terms.
func torchrun(inv Invocation, p *parser, w *torchrunWords, adapt func(*torchrunJob)) (Request, error) {
	env := newEnviron(inv.Environ)
	p.standsBehind(inv, env)
	in, err := p.parse(inv.Args, env)
	if err != nil {
		return Request{JSON: inv.Own.json(env)}, err
	}
	return torchrunOf(inv, p, in, w, adapt)
}

// torchrunOf makes the job of a command line that was read.
func torchrunOf(inv Invocation, p *parser, in *parsed, w *torchrunWords, adapt func(*torchrunJob)) (Request, error) {
	env := newEnviron(inv.Environ)
	t := &torchrunJob{env: env, parser: p, in: in, w: w, own: inv.Own, levelFrom: logLevel, habits: newOwnWords()}
	t.req.Job = job.Job{
		Dialect: p.prog, Restart: defaultRestart(), Stop: job.StopRules{Grace: defaultGrace},
		Warm:         job.WarmRules{Wait: defaultWarmWait},
		See:          job.SeeRules{Keep: defaultKeepRuns},
		InheritStdin: true, VirtualLocalRank: w.virtualLocalRank.on, Environ: inv.Environ,
		Sources: job.Sources{},
	}
	t.job = &t.req.Job
	if adapt != nil {
		adapt(t)
	}
	t.job.Role = w.role.text
	watchdog(t.job, env)
	t.unsupported()
	t.nodes()
	t.backend()
	applyConf(t.job, t.w.rdzvConf, t.habits, &t.wrong)
	t.command(inv.Argv0)
	t.exits()
	t.logs()

	req := &t.req
	req.LogLevel = t.logLevel()
	for i := range p.options {
		o := &p.options[i]
		v := *o.word
		if o.kind == kindHelp || o.kind == kindPrint || o.own || (o.foreign || o.rare) && !v.explicit() {
			continue
		}
		req.Settings = append(req.Settings, Setting{Flag: o.name, Value: v.shown(), Source: v.source})
	}
	t.equivalents()
	words := t.own.apply(req, inv, env, p, t.habits, &t.wrong)
	if hosted(words) {
		t.hosts(inv, words)
	} else {
		t.place()
		if t.last != nil {
			t.last(t.job)
		}
		t.settle(words)
	}
	t.ownVariables(words)
	if err := req.finish(words, &t.wrong); err != nil {
		return req.asked(), err
	}
	return *req, nil
}

// ownVariables adds to words those of the launcher's options that a flag in front of its name, a variable of muster or the
// file of --config gives, as who reads them is asked as of every setting; and warns of variables to which the launcher gave
// another value, or that belong to an option that was not given.
func (t *torchrunJob) ownVariables(words *ownWords) {
	for i := range t.parser.options {
		if word := t.parser.ofMuster(&t.parser.options[i]); word != nil {
			*word.option.of(words) = *word
		}
	}
	if !t.env.has(ownPrefix) {
		return
	}
	var idle []string
	for i := range t.parser.options {
		o, name := &t.parser.options[i], variable(ownPrefix, t.parser.options[i].name)
		if t.env[name] == "" || !slices.Contains(t.parser.prefixesOf(o), ownPrefix) {
			continue
		}
		source := o.word.source
		if o.word == &t.w.startMethod && !t.w.runPath.on {
			idle = append(idle, name)
			continue
		}
		if own := settingNamed(o.name); source.Name == name && (own == nil || !own.of(words).given) {
			if own != nil {
				*own.of(words) = value{option: own, text: t.env[name], source: source, given: true, theirs: true}
			}
		} else if source.Name != name && source.Kind != job.FromFlag {
			idle = append(idle, name)
		}
	}
	if len(idle) > 0 {
		t.warn("no effect on this job of %s: %s", t.parser.prog, strings.Join(idle, ", "))
	}
}

// equivalents adds to the habits what muster's own settings are through torchrun's flags, variables and habits.
func (t *torchrunJob) equivalents() {
	all := t.habits
	all.Stdin.say("inherit", job.Source{})
	all.Grace.say(t.job.Stop.Grace.String(), t.w.shutdownTimeout.source)
	if backend := t.job.Meeting.Backend; !all.JoinTimeout.given && (backend == backendStatic || backend == backendEtcd) {
		all.JoinTimeout.say("900s", job.Source{})
	}
	all.RunID.say(t.job.RunID, job.Source{})
	if id := t.w.rdzvID; id.explicit() && id.text == t.job.RunID {
		all.RunID.say(id.text, id.source)
	}
	all.LogLevel.say(t.req.LogLevel, job.Source{})
	if t.env[t.levelFrom] != "" {
		all.LogLevel.source = job.Source{Kind: job.FromVariable, Name: t.levelFrom}
	}
}

// refuse adds a problem with the value of a flag, naming where the value came from.
func (t *torchrunJob) refuse(word *value, err error) {
	if err != nil {
		name := cmp.Or(t.names[word], word.option.name)
		t.wrong.add(fmt.Errorf("cannot use %s: %w", word.writtenAs(name), err))
	}
}

// fill gives an option that is not given otherwise the value of the first of the variables that is set.
func (t *torchrunJob) fill(word *value, variables ...string) {
	for _, name := range variables {
		if word.explicit() || t.env[name] == "" {
			continue
		}
		v, err := word.option.convert(t.env[name], job.Source{Kind: job.FromPlatform, Name: name})
		if err != nil {
			t.wrong.add(fmt.Errorf("cannot use %s=%s for --%s: %w", name, t.env[name], word.option.name, err))
			return
		}
		*word = v
	}
}

func (t *torchrunJob) warn(format string, args ...any) {
	t.job.Warnings = append(t.job.Warnings, fmt.Sprintf(format, args...))
}

// unsupported refuses what this version of muster cannot do and would otherwise have to ignore.
func (t *torchrunJob) unsupported() {
	v := t.w
	if !v.logsSpecs.none {
		t.refuse(&t.w.logsSpecs, errhint.With(errors.New("it names a Python class, and muster loads no Python"),
			"--log-dir, --redirects, --tee and --local-ranks-filter arrange the workers' output"))
	}
	switch handler := v.eventLogHandler.text; handler {
	case "null", "console":
		t.job.EventLog = handler
	case "dynamic_rendezvous": // PyTorch registers it as a handler that drops everything
		t.job.EventLog = "null"
	default:
		t.refuse(&t.w.eventLogHandler, errors.New("choose null or console: handlers registered in Python cannot be loaded by muster"))
	}
	t.refuse(&t.w.monitorInterval, positive(v.monitorInterval.f))
	if t.env[stuckTimeout] != "" {
		t.warn("%s is not supported yet and has no effect", stuckTimeout)
	}
}

// watchdog asks for torchelastic's file timer where the environment does.
func watchdog(job *job.Job, env environ) {
	if env[enableTimer] != "1" {
		return
	}
	job.Watchdog, job.WatchdogFile = true, env[timerFile]
}

func (t *torchrunJob) command(argv0 string) {
	v := t.w
	t.job.Warnings = append(t.job.Warnings, behindScript(t.in.args)...)
	c := job.Command{
		Kind: job.Script, Name: t.in.script, Args: t.in.args, Interpreters: interpreters(argv0, t.env), Substitute: true,
	}
	switch {
	case v.runPath.on:
		c.Kind, c.StartMethod = job.RunPath, v.startMethod.text
		t.ignored("--run-path", v.noPython, v.module)
	case v.noPython.on:
		if v.module.on {
			t.wrong.add(errors.New("cannot use --no-python and --module together: a module needs Python; leave one of them out"))
		}
		c.Kind, c.Interpreters = job.Program, nil
	case v.module.on:
		c.Kind = job.Module
	}
	if v.useEnv.option != nil && !v.useEnv.on {
		if v.noPython.on {
			t.wrong.add(errors.New("cannot use --no-python without --use-env: a program that is not Python gets its local rank as " +
				"LOCAL_RANK"))
		}
		c.LocalRankFlag = "--local-rank"
	}
	if c.Name == "" {
		t.wrong.add(errors.New("cannot start without a training script: its name is empty"))
	}
	t.job.Command = c
	t.job.Bind.Mode = v.numaBinding.text
}

// interpreters returns the candidates for the workers' Python, best first.
func interpreters(argv0 string, env environ) []string {
	if exec := env[pythonExec]; exec != "" {
		return []string{exec}
	}
	var names []string
	// venv/bin/torchrun as a link to muster: torchrun itself would run the Python that lies beside it. Called as muster
	// it is not a stand-in for a Python program, and what lies beside it means nothing.
	if dir, base := filepath.Split(argv0); dir != "" && Named(base) {
		names = append(names, dir+"python") // Join would make a name for PATH of ./python
	}
	if venv := env[virtualEnv]; venv != "" {
		names = append(names, filepath.Join(venv, "bin", "python"))
	}
	return append(names, "python", "python3")
}

func (t *torchrunJob) exits() {
	v := t.w
	if v.maxRestarts.n < 0 {
		t.refuse(&t.w.maxRestarts, errors.New("give a number from 0"))
	}
	t.job.Restart.MaxRestarts = v.maxRestarts.n

	signals, warnings, err := parseSignals(v.signalsToHandle.text)
	t.refuse(&t.w.signalsToHandle, err)
	t.job.Stop.Handled = signals
	t.job.Warnings = append(t.job.Warnings, warnings...)

	grace := v.shutdownTimeout
	if text, ok := t.env[shutdownTimeout]; ok && grace.none {
		n, err := pyInt(text)
		if err != nil || n < 0 || n > maxSeconds {
			t.wrong.add(fmt.Errorf("cannot use %s=%s: give seconds from 0", shutdownTimeout, text))
		}
		grace = value{option: grace.option, text: text, n: n, source: job.Source{Kind: job.FromVariable, Name: shutdownTimeout}}
		t.w.shutdownTimeout = grace
	} else if grace.n < 0 || grace.n > maxSeconds {
		t.refuse(&t.w.shutdownTimeout, errors.New("give seconds from 0"))
	}
	if !grace.none {
		t.job.Stop.Grace = time.Duration(min(max(grace.n, 0), maxSeconds)) * time.Second
	}
}

func (t *torchrunJob) logs() {
	v := t.w
	logs := job.LogRules{Dir: logDir(v.logDir.text), Prefix: v.logLinePrefixTemplate.text}
	if text := t.env[prefixTemplate]; logs.Prefix == "" && text != "" {
		logs.Prefix = text
		t.w.logLinePrefixTemplate = value{
			option: t.w.logLinePrefixTemplate.option,
			text:   text, source: job.Source{Kind: job.FromVariable, Name: prefixTemplate},
		}
	}
	var err error
	logs.Redirect, err = parseStreams(v.redirects.text)
	t.refuse(&t.w.redirects, err)
	logs.Tee, err = parseStreams(v.tee.text)
	t.refuse(&t.w.tee, err)
	logs.Ranks, err = parseRanks(v.localRanksFilter.text)
	t.refuse(&t.w.localRanksFilter, err)
	logs.KeepStdout, logs.KeepStderr = v.duplicateStdoutFilters.list, v.duplicateStderrFilters.list
	if len(logs.KeepStdout) > 0 && !shows(logs.Tee, job.Stdout) {
		t.warn("--duplicate-stdout-filters has no effect without --tee of stdout")
	}
	if len(logs.KeepStderr) > 0 && !shows(logs.Tee, job.Stderr) {
		t.warn("--duplicate-stderr-filters has no effect without --tee of stderr")
	}
	// --log-dir and PET_LOG_DIR alone keep nothing, as with torchrun; what muster itself was told asks for files.
	own := t.parser.ofMuster(v.logDir.option) != nil || v.logDir.source.Name == variable(ownPrefix, v.logDir.option.name)
	unsaid := v.tee.source.Kind == job.FromDefault && v.redirects.source.Kind == job.FromDefault
	if own && logs.Dir != os.DevNull && unsaid {
		logs.Tee = job.StreamMap{Default: job.Both}
	}
	t.job.Logs = logs
}

// shows reports whether the map names the stream for any rank.
func shows(m job.StreamMap, stream job.Streams) bool {
	for _, s := range m.ByRank {
		if s&stream != 0 {
			return true
		}
	}
	return m.Default&stream != 0
}

// logDir returns dir in the spelling that job.LogRules has for "none at all".
func logDir(dir string) string {
	if dir != "" && filepath.Clean(dir) == os.DevNull {
		return os.DevNull
	}
	return dir
}

// logLevel translates LOGLEVEL or what stands for it, a name or number of Python's logging module, into one of ours.
// torchrun's default is WARNING.
func (t *torchrunJob) logLevel() string {
	text := strings.ToUpper(strings.TrimSpace(t.env[t.levelFrom]))
	n, err := pyInt(text)
	if err != nil {
		names := map[string]int{
			"": 30, "NOTSET": 10, "DEBUG": 10, "INFO": 20, "WARN": 30, "WARNING": 30, "ERROR": 40, "CRITICAL": 50,
			"FATAL": 50,
		}
		level, known := names[text]
		if !known {
			t.warn("%s=%s is no level of Python's logging and is ignored", t.levelFrom, t.env[t.levelFrom])
			level = names[""]
		}
		n = level
	}
	switch {
	case n <= 10:
		return "debug"
	case n <= 20:
		return "info"
	case n <= 30:
		return "warn"
	}
	return "error"
}
