package dialect

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"muster/internal/logtext"
	"muster/launch/job"
)

// Defaults that the help text tells and the dialects share.
const (
	defaultGrace      = 30 * time.Second
	defaultDelay      = time.Second
	defaultDelayMax   = time.Minute
	defaultFactor     = 2.0
	defaultWarmWait   = time.Minute
	defaultKeepRuns   = 24 * time.Hour
	defaultRetryable  = "130,137,138,143"
	kubeflowRetryable = ">=128"
)

// defaultRestart are the restart rules where nothing else is asked for: as torchrun's, with a pause that grows from the
// second restart on.
func defaultRestart() job.RestartRules {
	retryable, err := job.ParseExitCodes(defaultRetryable)
	if err != nil {
		panic("internal error: " + err.Error())
	}
	return job.RestartRules{
		Policy: job.RestartOnFailure, Scope: job.ScopeWorld, ReplaceLimit: -1, BackoffLimit: -1, Delay: defaultDelay,
		DelayFactor: defaultFactor, DelayMax: defaultDelayMax,
		Retryable: retryable, Success: job.QuorumAll, Fail: job.QuorumAny, Clean: job.CleanAll,
	}
}

// groupMuster is the help text's heading over what concerns muster more than the job.
const groupMuster = "muster itself"

// ownTable are muster's own settings.
type ownTable struct {
	rows  []option
	list  []*option // the rows, in the order of the help text
	blank ownWords  // of settings that nobody gave
}

// ownRows are made once: parsers ask for them with each of their flags.
var ownRows = sync.OnceValue(func() *ownTable {
	t := &ownTable{}
	w := &t.blank
	t.rows = slices.Concat(nodeSettings(w), jobFileSettings(w), hostSettings(w), meetingSettings(w), commandSettings(w),
		envSettings(w), checkSettings(w), restartSettings(w), hangSettings(w), logSettings(w), checkpointSettings(w), ownSettings(w))
	for i := range t.rows {
		t.list = append(t.list, &t.rows[i])
	}
	if err := declared(t.rows, w); err != nil {
		panic("internal error: " + err.Error())
	}
	return t
})

// settings are muster's own settings in the order of the help text. Nobody changes them.
func settings() []*option { return ownRows().list }

// settingNamed is the setting with a name, nil for none.
func settingNamed(name string) *option {
	return optionNamed(ownRows().rows, name)
}

// declared finds each row's field among the words, and refuses rows without one and those that do not say who reads the
// setting. Both are mistakes in this package.
func declared(rows []option, words *ownWords) error {
	fields := map[*value]int{}
	all := reflect.ValueOf(words).Elem()
	for i := range all.NumField() {
		fields[all.Field(i).Addr().Interface().(*value)] = i
	}
	for i := range rows {
		o := &rows[i]
		field, ok := fields[o.word]
		switch {
		case !ok:
			return errors.New("the setting --" + o.name + " has no field among the words, or shares one")
		case o.use == nil:
			return errors.New("the setting --" + o.name + " does not say in which jobs it is read")
		}
		o.field, o.word.option = field, o
		delete(fields, o.word)
	}
	if len(fields) > 0 {
		return errors.New("words have no setting")
	}
	return nil
}

func commandSettings(w *ownWords) []option {
	return []option{
		{
			name: "module", word: &w.Module, frequent: true, short: "m", kind: kindFlag, def: "false", group: groupCommand, use: always,
			help: "The first word of the command is the name of a Python module, as in python -m.",
			set:  checkSwitch,
		},
		{
			name: "no-python", word: &w.NoPython, kind: kindFlag, def: "false", group: groupCommand, use: always,
			help: "Run the command as it is, even when its first word ends in .py.",
			set:  checkSwitch,
		},
		{
			name: "role", word: &w.Role, arg: "NAME", def: "default", group: groupCommand, use: always,
			help: "Name of the workers' role, seen by them as ROLE_NAME.",
			set:  func(r *Request, text string) error { r.Job.Role = text; return nil },
		},
		{
			name: "run-id", word: &w.RunID, frequent: true, inside: insideMeeting, aliases: []string{"--rdzv-id"}, arg: "ID",
			group: groupCommand, anywhere: true, use: use{byAgents},
			help: "Name of the job, seen by workers as TORCHELASTIC_RUN_ID, and the same on all its nodes. Default: a random one; " +
				"several nodes need one unless they meet by --node-rank.",
			set: func(r *Request, text string) error { r.Job.RunID = text; return nil },
		},
		{
			name: "warm", word: &w.Warm, frequent: true, kind: kindList, arg: "off|restarts|auto|[auto,]MODULES", def: warmDefault,
			elsewhere: warmElsewhere, group: groupCommand, anywhere: true,
			use: use{warmable},
			help: "Import Python modules once and fork the workers from there: none, those that the script itself begins with and that " +
				"are installed, and those that its workers were seen to import later (auto), the same for restarts alone, beside the " +
				"training (restarts), MODULES such as torch,transformers, or both. Where that would not be safe the workers start " +
				"as usual, and muster says why. Under other launchers' names the default is off.",
			set: setWarm,
		},
		{
			name: "warm-wait", word: &w.WarmWait, kind: kindTime, arg: "TIME", def: "60s", group: groupCommand, anywhere: true,
			use: use{warmed},
			help: "How long a start waits for the imports of --warm; then the workers start as usual, beside them, and restarts find " +
				"them done.",
			set: func(r *Request, text string) error { return setTime(&r.Job.Warm.Wait, text) },
		},
		{
			name: "numa-binding", word: &w.NUMABinding, arg: strings.Join(bindModes(), "|"), group: groupCommand, lent: true,
			use:  use{byAgents},
			help: bindHelp,
			set: func(r *Request, text string) error {
				r.Job.Bind.Mode = text
				return oneOf(text, bindModes()...)
			},
		},
		{
			name: "numa-fallback", word: &w.NUMAFallback, kind: kindFlag, def: "false", group: groupCommand, anywhere: true,
			use:  use{byAgents, bound},
			help: "Start the workers unbound where --numa-binding cannot be done; otherwise the job is refused there.",
			set:  func(r *Request, text string) error { return setSwitch(&r.Job.Bind.Fallback, text) },
		},
		{
			name: "isolate-devices", word: &w.IsolateDevices, kind: kindFlag, def: "false", group: groupCommand, anywhere: true,
			use: use{byAgents},
			help: "Show each worker the accelerator of its local rank and no other, so that a script uses device 0 whatever LOCAL_RANK " +
				"says. Refused where a node has more or fewer workers than visible accelerators.",
			set: func(r *Request, text string) error { return setSwitch(&r.Job.Isolate, text) },
		},
		{
			name: "stdin", word: &w.Stdin, arg: "auto|null|inherit", def: "auto", group: groupCommand, anywhere: true,
			use: use{byAgents, withoutHosts},
			help: "What workers read: nothing (null), or muster's own standard input. auto: a job's only worker has the terminal, for " +
				"breakpoint() and the like; others read nothing. torchrun's workers inherit.",
			set: func(r *Request, text string) error {
				r.Job.InheritStdin, r.Job.NoStdin = text == "inherit", text == "null"
				return oneOf(text, "auto", "null", "inherit")
			},
		},
	}
}

// bindModes are the words of --numa-binding, in torchrun's order.
func bindModes() []string { return []string{"node", "socket", "exclusive", "core-complex"} }

const bindHelp = "Bind each worker to CPUs near the accelerator of its local rank. node: all of its NUMA node; socket: all of its " +
	"socket; exclusive: a share of the node's cores that no other worker has; core-complex: those behind one of the node's largest caches."

func restartSettings(w *ownWords) []option {
	return []option{
		{
			name: "max-restarts", word: &w.MaxRestarts, frequent: true, kind: kindInt, arg: "N", def: "0", group: groupExits, lent: true,
			use:  use{remade, counted},
			help: "How often the workers are started anew because one of this node's failed.",
			set: func(r *Request, text string) error {
				return setCount(&r.Job.Restart.MaxRestarts, text)
			},
		},
		{
			name: "restart-policy", word: &w.RestartPolicy, frequent: true, arg: "POLICY", def: "on-failure", group: groupExits,
			anywhere: true,
			use:      use{remade, othersFail, acting}, insists: true,
			help: "Which exits of workers start them anew: never, on-failure (any but 0), always (0 too; needs --active-deadline), " +
				"exit-code (those of --retryable-exit-codes), on-node-fail (none, only the loss of a node), on-node-fail-or-exit-code.",
			set: func(r *Request, text string) error {
				r.Job.Restart.Policy = job.RestartPolicy(text)
				return oneOf(text, string(job.RestartNever), string(job.RestartOnFailure), string(job.RestartAlways),
					string(job.RestartExitCode),
					string(job.RestartOnNodeFail), string(job.RestartOnNodeFailOrExitCode))
			},
		},
		{
			name: "restart-scope", word: &w.RestartScope, arg: "SCOPE", def: "world", driven: string(job.ScopeNode), group: groupExits,
			anywhere: true,
			use:      use{remade, retries, restarts, bounded},
			help: "Who starts anew after a worker failed: world (the workers of all nodes, in a new round), node (those of its node), " +
				"process (that worker alone). The last two are for programs that let workers join a running job.",
			set: func(r *Request, text string) error {
				r.Job.Restart.Scope = job.RestartScope(text)
				return oneOf(text, string(job.ScopeWorld), string(job.ScopeNode), string(job.ScopeProcess))
			},
		},
		{
			name: "retryable-exit-codes", word: &w.RetryableExitCodes, kind: kindList, arg: "CODES", def: defaultRetryable,
			group: groupExits, anywhere: true,
			use: use{remade, byExitCode, restarts},
			help: "Exit codes that --restart-policy exit-code retries: numbers, ranges such as 1-100, bounds such as >=128, or " +
				"kubeflow, which is >=128. A signal n counts as 128+n.",
			set: func(r *Request, text string) (err error) {
				if text == "kubeflow" {
					text = kubeflowRetryable
				}
				r.Job.Restart.Retryable, err = job.ParseExitCodes(text)
				return err
			},
		},
		{
			name: "fatal-exit-codes", word: &w.FatalExitCodes, kind: kindList, arg: "CODES", group: groupExits, anywhere: true,
			use:  use{remade, retries, restarts},
			help: "Exit codes that are never retried, whatever the policy.",
			set: func(r *Request, text string) (err error) {
				r.Job.Restart.Fatal, err = job.ParseExitCodes(text)
				return err
			},
		},
		{
			name: "backoff-limit", word: &w.BackoffLimit, kind: kindInt, arg: "N|none", def: "none", group: groupExits, anywhere: true,
			use:  use{remade, rounds},
			help: "Restarts of the whole job, over all nodes, lost nodes among them.",
			set:  func(r *Request, text string) error { return setLimit(&r.Job.Restart.BackoffLimit, text) },
		},
		{
			name: "crash-loop", word: &w.CrashLoop, kind: kindInt, arg: "K", def: "0", group: groupExits, anywhere: true,
			use: use{byAgents, remade, restarts, loops},
			help: "The job fails with status 93, which says that it is not to be started again, when K restarts in a row have not " +
				"brought it further: no step that is greater than all before, as far as its programs tell them (muster.progress), and " +
				"no newer checkpoint on disk. Where neither is known, a group that ran for 10 minutes has come further. What the " +
				"failures have in common is told. 0: nobody looks.",
			set: func(r *Request, text string) error { return setCount(&r.Job.Restart.CrashLoop, text) },
		},
		{
			name: "restart-limit", word: &w.RestartLimit, kind: kindInt, arg: "N|N/rank|none", def: "none", group: groupExits,
			anywhere: true,
			use:      use{remade, losable, nodesReturn, ranksLast},
			help: "How often the loss of a node may lead to a new round, over the whole job; with /rank how often the node of each " +
				"group rank may be replaced, where going on with fewer nodes replaces nobody.",
			set: func(r *Request, text string) error { return setReplacements(&r.Job.Restart, text) },
		},
		{
			name: "restart-window", word: &w.RestartWindow, kind: kindTime, arg: "TIME", def: "0s", group: groupExits, anywhere: true,
			use: use{remade, rounds, windowed},
			help: "Limits count only the restarts within this time, and workers that ran this long start with no delay again. 0: limits " +
				"count all restarts.",
			set: func(r *Request, text string) error { return setTime(&r.Job.Restart.Window, text) },
		},
		{
			name: "restart-delay", word: &w.RestartDelay, kind: kindTime, arg: "TIME", def: "1s", group: groupExits, anywhere: true,
			use: use{remade, rounds, paused},
			help: "Pause before the second restart; the first has none, nor has one of workers that ran ten times as long as the pause " +
				"that is due: pauses then grow anew.",
			set: func(r *Request, text string) error { return setTime(&r.Job.Restart.Delay, text) },
		},
		{
			name: "restart-backoff", word: &w.RestartBackoff, arg: "FACTOR[:MAX]", def: "2:60s", group: groupExits, anywhere: true,
			use:  use{remade, rounds, paused},
			help: "By what the pause grows from restart to restart, and its upper bound.",
			set:  setBackoff,
		},
		{
			name: "active-deadline", word: &w.ActiveDeadline, frequent: true, kind: kindTime, arg: "TIME", def: "0s", group: groupExits,
			anywhere: true, use: always,
			help: "Time the job may take from its first start; then it is stopped with status 124. 0: no deadline.",
			set:  func(r *Request, text string) error { return setTime(&r.Job.Restart.Deadline, text) },
		},
		{
			name: "grace", word: &w.Grace, frequent: true, kind: kindTime, arg: "TIME", def: "30s", group: groupExits, anywhere: true,
			use:  always,
			help: "Time between the first signal to the workers and SIGKILL.",
			set:  func(r *Request, text string) error { return setTime(&r.Job.Stop.Grace, text) },
		},
		{
			name: "success-policy", word: &w.SuccessPolicy, arg: "POLICY", def: "all", group: groupExits, anywhere: true, use: always,
			help: "When the job has succeeded: all workers did, any, rank0, or none (when all have ended).",
			set:  func(r *Request, text string) error { return setQuorum(&r.Job.Restart.Success, text) },
		},
		{
			name: "fail-policy", word: &w.FailPolicy, arg: "POLICY", def: "any", group: groupExits, anywhere: true, use: always,
			help: "When failures of workers end the job or use up a restart: any, all, rank0, none.",
			set:  func(r *Request, text string) error { return setQuorum(&r.Job.Restart.Fail, text) },
		},
		{
			name: "clean-policy", word: &w.CleanPolicy, arg: "POLICY", def: "all", group: groupExits, anywhere: true, use: always,
			help: "What is ended with the job: all (workers and whatever they left behind), unfinished (workers still running), none " +
				"(muster waits for them).",
			set: func(r *Request, text string) error {
				r.Job.Restart.Clean = job.CleanPolicy(text)
				return oneOf(text, string(job.CleanAll), string(job.CleanUnfinished), string(job.CleanNone))
			},
		},
		{
			name: "linger", word: &w.Linger, kind: kindTime, arg: "TIME", def: "0s", group: groupExits, anywhere: true, use: use{early},
			help: "How long the other workers may go on after --success-policy any or rank0 was met.",
			set:  func(r *Request, text string) error { return setTime(&r.Job.Restart.Linger, text) },
		},
		{
			name: "exit-code-compat", word: &w.ExitCodeCompat, kind: kindFlag, def: "false", group: groupExits, anywhere: true, use: always,
			help: "Status 1 for every failure of the job, as the replaced launchers do.",
			set:  func(r *Request, text string) error { return setSwitch(&r.Job.CompatExit, text) },
		},
	}
}

func logSettings(w *ownWords) []option {
	return []option{
		{
			name: "log-dir", word: &w.LogDir, frequent: true, arg: "DIR", group: groupLogs, lent: true, use: use{byAgents},
			help: "Where the directory of this run is made. muster writes all output of workers there, unless --tee or --redirects " +
				"is given. Default: a temporary one; /dev/null for none.",
			set: func(r *Request, text string) error { r.Job.Logs.Dir = logDir(text); return nil },
		},
		{
			name: "redirects", word: &w.Redirects, short: "r", arg: "SPEC", def: "0", group: groupLogs, lent: true,
			use:  use{byAgents, shown},
			help: "Streams that go to files and not to the console: 0 none, 1 stdout, 2 stderr, 3 both, or by local rank, as in 0:3,1:2.",
			set: func(r *Request, text string) (err error) {
				r.Job.Logs.Redirect, err = parseStreams(text)
				return err
			},
		},
		{
			name: "tee", word: &w.Tee, frequent: true, short: "t", arg: "SPEC", def: "0", group: groupLogs, lent: true,
			use:  use{byAgents, divided},
			help: "Streams that go to files and to the console; SPEC as for --redirects.",
			set: func(r *Request, text string) (err error) {
				r.Job.Logs.Tee, err = parseStreams(text)
				return err
			},
		},
		{
			name: "local-ranks-filter", word: &w.LocalRanksFilter, kind: kindList, arg: "RANKS", group: groupLogs, lent: true,
			use:  use{byAgents, shown},
			help: "Local ranks whose output is shown on the console, as in 0,1. Default: all.",
			set: func(r *Request, text string) (err error) {
				r.Job.Logs.Ranks, err = parseRanks(text)
				return err
			},
		},
		{
			name: "log-line-prefix-template", word: &w.LogLinePrefixTemplate, arg: "TEXT", group: groupLogs, lent: true,
			use: use{shown, prefixed},
			help: "What stands in front of each line of a worker; ${role_name}, ${local_rank}, ${rank} and ${hostname} are replaced. " +
				"Default: '[${rank}] ', with hosts '[${hostname} ${rank}] '.",
			set: func(r *Request, text string) error { r.Job.Logs.Prefix = text; return nil },
		},
	}
}

// ownSettings say what muster itself tells and does.
func ownSettings(w *ownWords) []option {
	return []option{
		{
			name: "event-log-handler", word: &w.EventLogHandler, arg: "null|console", def: "null", group: groupMuster, lent: true,
			use:  use{byAgents},
			help: "Where torchelastic's event records go: nowhere, or to standard error as JSON.",
			set: func(r *Request, text string) error {
				r.Job.EventLog = text
				return oneOf(text, "null", "console")
			},
		},
		{
			name: "status-file", word: &w.StatusFile, frequent: true, inside: insidePod, arg: "FILE", group: groupMuster, anywhere: true,
			use:  use{noStatusOfEach},
			help: "Keep the job's state in FILE as JSON.",
			set:  func(r *Request, text string) error { r.Job.StatusFile = text; return nil },
		},
		{
			name: "summary", word: &w.Summary, arg: "FILE", group: groupMuster, anywhere: true, use: use{notSimulated, byAgents},
			help: "Write to FILE, as JSON, what the time of the job went to, when it has ended: good, restarts, repeated steps and so " +
				"on, its rounds and its slowest ranks.",
			set: func(r *Request, text string) error { r.Job.See.Summary = text; return nil },
		},
		{
			name: "http", word: &w.HTTP, inside: insidePod, arg: "ADDR", group: groupMuster, anywhere: true, use: always,
			help: "Serve a page of the job at ADDR, HOST:PORT or a port of this machine alone; port 0 takes one that is free and says " +
				"which. On loopback your own processes may look; elsewhere the job's token is asked for.",
			set: func(r *Request, text string) error { r.Job.See.HTTP = text; return nil },
		},
		{
			name: "sidecar", word: &w.Sidecar, separator: several, arg: "COMMAND", group: groupMuster, anywhere: true, use: use{byAgents},
			help: "Run COMMAND, in words as for a shell, beside the workers on the first node, as in 'tensorboard --logdir runs --port " +
				"6006'. It starts again when it ends, and ends with the job. May be given again; in a variable, one on each line.",
			set: checkSidecars,
		},
		{
			name: "events", word: &w.Events, arg: "FILE", group: groupMuster, anywhere: true, use: always,
			help: "Append what happens to the job to FILE, a line of JSON for each event.",
			set:  func(r *Request, text string) error { r.Job.See.EventsFile = text; return nil },
		},
		{
			name: "keep-runs", word: &w.KeepRuns, kind: kindTime, arg: "TIME", def: "24h", group: groupMuster, anywhere: true, use: always,
			help: "How long after its end muster events, status and ps -a know the job; 0 for not at all.",
			set:  func(r *Request, text string) error { return setTime(&r.Job.See.Keep, text) },
		},
		{
			name: "config", word: &w.Config, frequent: true, inside: insideRefused, arg: "FILE", group: groupMuster, anywhere: true,
			use:  always,
			help: "Read settings from FILE, a YAML map of flags without their dashes. The command line and variables win over it.",
			set:  func(*Request, string) error { return nil },
		},
		{
			name: "dry-run", word: &w.DryRun, frequent: true, inside: insideRefused, kind: kindFlag, def: "false", group: groupMuster,
			anywhere: true, use: always,
			help: "Show ranks, environment and where each value came from; start nothing.",
			set:  func(r *Request, text string) error { return setSwitch(&r.DryRun, text) },
		},
		{
			name: "show-values", word: &w.ShowValues, kind: kindFlag, def: "false", group: groupMuster, anywhere: true, use: use{dry},
			help: "With --dry-run: show all values that were given, secrets too. Else those of variables that are not known to be " +
				"harmless, and what looks like a secret in a command line, are left out.",
			set: func(r *Request, text string) error { return setSwitch(&r.ShowValues, text) },
		},
		{
			name: "all", word: &w.All, kind: kindFlag, def: "false", group: groupMuster, anywhere: true, use: use{dry},
			help: "With --dry-run, show the flags that have their defaults, too.",
			set:  func(r *Request, text string) error { return setSwitch(&r.All, text) },
		},
		{
			name: "json", word: &w.JSON, inside: insidePod, kind: kindFlag, def: "false", group: groupMuster, anywhere: true, use: always,
			help: "Write --dry-run and what muster refuses as JSON.",
			set:  func(r *Request, text string) error { return setSwitch(&r.JSON, text) },
		},
		{
			name: "log-level", word: &w.LogLevel, inside: insidePod, arg: "LEVEL", def: "info", group: groupMuster, anywhere: true,
			use:  always,
			help: "What muster says on standard error: debug, info, warn or error. torchrun's default is warn, or what LOGLEVEL says.",
			set: func(r *Request, text string) error {
				r.LogLevel = text
				return oneOf(text, "debug", "info", "warn", "error")
			},
		},
		{
			name: "log-format", word: &w.LogFormat, inside: insidePod, arg: "auto|text|json", def: logtext.Auto, group: groupMuster,
			anywhere: true, use: always,
			help: "How muster says it, on every node: lines of text for people (auto, text), or of JSON for programs, with exact " +
				"durations.",
			set: func(r *Request, text string) error {
				r.LogFormat = text
				return oneOf(text, logtext.Formats()...)
			},
		},
	}
}
