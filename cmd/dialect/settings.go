package dialect

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"muster/internal/lazyregexp"
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

// form is the type of a setting's value, for reading config files and for the help text.
type form int

const (
	formText     form = iota // a string; numbers are taken as they are written
	formSwitch               // true or false
	formNumber               // a whole number
	formFraction             // a number
	formTime                 // a length of time: a string with a unit, or a number of seconds
	formList                 // a string with commas, or a list
	formOptional             // true, false or a string; on the command line true without a word of its own
)

// setting is one of muster's own flags: its help and how it changes a request.
type setting struct {
	flag, short string
	alias       string
	form        form
	// pairs lets the flag take every further word that is a pair of numbers.
	pairs bool
	// separator lets the flag be given again, and stands between its words then. With several, lists in files and lines
	// in variables are such words, too, and words of weaker sources count beside stronger ones; see pieces.
	separator   string
	arg         string
	def         string // what the help text and --dry-run show when it is not given
	help, group string
	// anywhere makes the setting count in every dialect, as a variable or in front of the dialect's name. The others
	// have a flag of their own in the replaced launchers.
	anywhere bool
	// lent makes it count so in front of those dialects that have no flag of its name.
	lent bool
	// use says in which jobs something reads the setting.
	use use
	// insists says that giving the default asks for something, too.
	insists bool
	set     func(r *Request, text string) error
}

// groupMuster is the help text's heading over what concerns muster more than the job.
const groupMuster = "muster itself"

// given is a word for a setting and where it stood.
type given struct {
	text   string
	source job.Source
	// theirs says that it stood among the flags of the replaced launcher, which may be of no use to it either.
	theirs bool
}

// derived ends the source of a value that was made of a platform's variable and is not in it, such as a port that
// follows from a job's number.
const derived = ", derived"

// credentials are what somebody may put in front of a URL's host. They are refused, and must not be shown.
var credentials = lazyregexp.New(`//[^/]*@`)

// written is the word as the user wrote it: --flag word, NAME=word, or file:line: flag: word.
func (g given) written(flag string) string {
	text := credentials().ReplaceAllString(g.text, "//…@")
	if g.source.Kind == job.FromPlatform && strings.HasSuffix(g.source.Name, derived) {
		return fmt.Sprintf("--%s %s (%s)", flag, text, g.source)
	}
	switch g.source.Kind {
	case job.FromVariable, job.FromPlatform:
		return g.source.Name + "=" + text
	case job.FromConfig:
		return fmt.Sprintf("%s (%s: %s)", g.source.Name, flag, text)
	default:
		return strings.TrimSpace("--" + flag + " " + text)
	}
}

// settings are muster's own flags. The order is that of the help text.
func settings() []setting { return slices.Clone(allSettings()) }

// allSettings are made once: parsers ask for them with each of their flags.
var allSettings = sync.OnceValue(func() []setting {
	list := slices.Concat(nodeSettings(), jobFileSettings(), hostSettings(), meetingSettings(), commandSettings(), envSettings(),
		checkSettings(),
		restartSettings(), hangSettings(), logSettings(), checkpointSettings(), ownSettings())
	if err := declared(list); err != nil {
		panic("internal error: " + err.Error())
	}
	return list
})

func commandSettings() []setting {
	return []setting{
		{
			flag: "module", short: "m", form: formSwitch, def: "false", group: groupCommand, use: always,
			help: "The first word of the command is the name of a Python module, as in python -m.",
			set:  checkSwitch,
		},
		{
			flag: "no-python", form: formSwitch, def: "false", group: groupCommand, use: always,
			help: "Run the command as it is, even when its first word ends in .py.",
			set:  checkSwitch,
		},
		{
			flag: "role", arg: "NAME", def: "default", group: groupCommand, use: always,
			help: "Name of the workers' role, seen by them as ROLE_NAME.",
			set:  func(r *Request, text string) error { r.Job.Role = text; return nil },
		},
		{
			flag: "run-id", alias: "rdzv-id", arg: "ID", group: groupCommand, anywhere: true, use: use{byAgents},
			help: "Name of the job, seen by workers as TORCHELASTIC_RUN_ID, and the same on all its nodes. Default: a random one; several nodes need one unless they meet by --node-rank.",
			set:  func(r *Request, text string) error { r.Job.RunID = text; return nil },
		},
		{
			flag: "warm", form: formList, arg: "off|restarts|auto|[auto,]MODULES", def: warmDefault, group: groupCommand, anywhere: true,
			use:  use{warmable},
			help: "Import Python modules once and fork the workers from there: none, those that the script itself begins with and that are installed, and those that its workers were seen to import later (auto), the same for restarts alone, beside the training (restarts), MODULES such as torch,transformers, or both. Where that would not be safe the workers start as usual, and muster says why. Under other launchers' names the default is off.",
			set:  setWarm,
		},
		{
			flag: "warm-wait", form: formTime, arg: "TIME", def: "60s", group: groupCommand, anywhere: true, use: use{warmed},
			help: "How long a start waits for the imports of --warm; then the workers start as usual, beside them, and restarts find them done.",
			set:  func(r *Request, text string) error { return setTime(&r.Job.Warm.Wait, text) },
		},
		{
			flag: "numa-binding", arg: strings.Join(bindModes(), "|"), group: groupCommand, lent: true, use: use{byAgents},
			help: bindHelp,
			set: func(r *Request, text string) error {
				r.Job.Bind.Mode = text
				return oneOf(text, bindModes()...)
			},
		},
		{
			flag: "numa-fallback", form: formSwitch, def: "false", group: groupCommand, anywhere: true, use: use{byAgents, bound},
			help: "Start the workers unbound where --numa-binding cannot be done; otherwise the job is refused there.",
			set:  func(r *Request, text string) error { return setSwitch(&r.Job.Bind.Fallback, text) },
		},
		{
			flag: "isolate-devices", form: formSwitch, def: "false", group: groupCommand, anywhere: true, use: use{byAgents},
			help: "Show each worker the accelerator of its local rank and no other, so that a script uses device 0 whatever LOCAL_RANK says. Refused where a node has more or fewer workers than visible accelerators.",
			set:  func(r *Request, text string) error { return setSwitch(&r.Job.Isolate, text) },
		},
		{
			flag: "stdin", arg: "auto|null|inherit", def: "auto", group: groupCommand, anywhere: true, use: use{byAgents, withoutHosts},
			help: "What workers read: nothing (null), or muster's own standard input. auto: a job's only worker has the terminal, for breakpoint() and the like; others read nothing. torchrun's workers inherit.",
			set: func(r *Request, text string) error {
				r.Job.InheritStdin, r.Job.NoStdin = text == "inherit", text == "null"
				return oneOf(text, "auto", "null", "inherit")
			},
		},
	}
}

// bindModes are the words of --numa-binding, in torchrun's order.
func bindModes() []string { return []string{"node", "socket", "exclusive", "core-complex"} }

const bindHelp = "Bind each worker to CPUs near the accelerator of its local rank. node: all of its NUMA node; socket: all of its socket; exclusive: a share of the node's cores that no other worker has; core-complex: those behind one of the node's largest caches."

func restartSettings() []setting {
	return []setting{
		{
			flag: "max-restarts", form: formNumber, arg: "N", def: "0", group: groupExits, lent: true, use: use{remade, counted},
			help: "How often the workers are started anew because one of this node's failed.",
			set: func(r *Request, text string) error {
				return setCount(&r.Job.Restart.MaxRestarts, text)
			},
		},
		{
			flag: "restart-policy", arg: "POLICY", def: "on-failure", group: groupExits, anywhere: true,
			use: use{remade, othersFail, acting}, insists: true,
			help: "Which exits of workers start them anew: never, on-failure (any but 0), always (0 too; needs --active-deadline), exit-code (those of --retryable-exit-codes), on-node-fail (none, only the loss of a node), on-node-fail-or-exit-code.",
			set: func(r *Request, text string) error {
				r.Job.Restart.Policy = job.RestartPolicy(text)
				return oneOf(text, string(job.RestartNever), string(job.RestartOnFailure), string(job.RestartAlways),
					string(job.RestartExitCode),
					string(job.RestartOnNodeFail), string(job.RestartOnNodeFailOrExitCode))
			},
		},
		{
			flag: "restart-scope", arg: "SCOPE", def: "world", group: groupExits, anywhere: true,
			use:  use{remade, retries, restarts, bounded},
			help: "Who starts anew after a worker failed: world (the workers of all nodes, in a new round), node (those of its node), process (that worker alone). The last two are for programs that let workers join a running job.",
			set: func(r *Request, text string) error {
				r.Job.Restart.Scope = job.RestartScope(text)
				return oneOf(text, string(job.ScopeWorld), string(job.ScopeNode), string(job.ScopeProcess))
			},
		},
		{
			flag: "retryable-exit-codes", form: formList, arg: "CODES", def: defaultRetryable, group: groupExits, anywhere: true,
			use:  use{remade, byExitCode, restarts},
			help: "Exit codes that --restart-policy exit-code retries: numbers, ranges such as 1-100, bounds such as >=128, or kubeflow, which is >=128. A signal n counts as 128+n.",
			set: func(r *Request, text string) (err error) {
				if text == "kubeflow" {
					text = kubeflowRetryable
				}
				r.Job.Restart.Retryable, err = job.ParseExitCodes(text)
				return err
			},
		},
		{
			flag: "fatal-exit-codes", form: formList, arg: "CODES", group: groupExits, anywhere: true, use: use{remade, retries, restarts},
			help: "Exit codes that are never retried, whatever the policy.",
			set: func(r *Request, text string) (err error) {
				r.Job.Restart.Fatal, err = job.ParseExitCodes(text)
				return err
			},
		},
		{
			flag: "backoff-limit", form: formNumber, arg: "N|none", def: "none", group: groupExits, anywhere: true,
			use:  use{remade, rounds},
			help: "Restarts of the whole job, over all nodes, lost nodes among them.",
			set:  func(r *Request, text string) error { return setLimit(&r.Job.Restart.BackoffLimit, text) },
		},
		{
			flag: "crash-loop", form: formNumber, arg: "K", def: "0", group: groupExits, anywhere: true,
			use:  use{byAgents, remade, restarts, loops},
			help: "The job fails with status 93, which says that it is not to be started again, when K restarts in a row have not brought it further: no step that is greater than all before, as far as its programs tell them (muster.progress), and no newer checkpoint on disk. Where neither is known, a group that ran for 10 minutes has come further. What the failures have in common is told. 0: nobody looks.",
			set:  func(r *Request, text string) error { return setCount(&r.Job.Restart.CrashLoop, text) },
		},
		{
			flag: "restart-limit", form: formNumber, arg: "N|N/rank|none", def: "none", group: groupExits, anywhere: true,
			use:  use{remade, losable, nodesReturn, ranksLast},
			help: "How often the loss of a node may lead to a new round, over the whole job; with /rank how often the node of each group rank may be replaced, where going on with fewer nodes replaces nobody.",
			set:  func(r *Request, text string) error { return setReplacements(&r.Job.Restart, text) },
		},
		{
			flag: "restart-window", form: formTime, arg: "TIME", def: "0s", group: groupExits, anywhere: true,
			use:  use{remade, rounds, windowed},
			help: "Limits count only the restarts within this time, and workers that ran this long start with no delay again. 0: limits count all restarts.",
			set:  func(r *Request, text string) error { return setTime(&r.Job.Restart.Window, text) },
		},
		{
			flag: "restart-delay", form: formTime, arg: "TIME", def: "1s", group: groupExits, anywhere: true,
			use:  use{remade, rounds, paused},
			help: "Pause before the second restart; the first has none, nor has one of workers that ran ten times as long as the pause that is due: pauses then grow anew.",
			set:  func(r *Request, text string) error { return setTime(&r.Job.Restart.Delay, text) },
		},
		{
			flag: "restart-backoff", arg: "FACTOR[:MAX]", def: "2:60s", group: groupExits, anywhere: true, use: use{remade, rounds, paused},
			help: "By what the pause grows from restart to restart, and its upper bound.",
			set:  setBackoff,
		},
		{
			flag: "active-deadline", form: formTime, arg: "TIME", def: "0s", group: groupExits, anywhere: true, use: always,
			help: "Time the job may take from its first start; then it is stopped with status 124. 0: no deadline.",
			set:  func(r *Request, text string) error { return setTime(&r.Job.Restart.Deadline, text) },
		},
		{
			flag: "grace", form: formTime, arg: "TIME", def: "30s", group: groupExits, anywhere: true, use: always,
			help: "Time between the first signal to the workers and SIGKILL.",
			set:  func(r *Request, text string) error { return setTime(&r.Job.Stop.Grace, text) },
		},
		{
			flag: "success-policy", arg: "POLICY", def: "all", group: groupExits, anywhere: true, use: always,
			help: "When the job has succeeded: all workers did, any, rank0, or none (when all have ended).",
			set:  func(r *Request, text string) error { return setQuorum(&r.Job.Restart.Success, text) },
		},
		{
			flag: "fail-policy", arg: "POLICY", def: "any", group: groupExits, anywhere: true, use: always,
			help: "When failures of workers end the job or use up a restart: any, all, rank0, none.",
			set:  func(r *Request, text string) error { return setQuorum(&r.Job.Restart.Fail, text) },
		},
		{
			flag: "clean-policy", arg: "POLICY", def: "all", group: groupExits, anywhere: true, use: always,
			help: "What is ended with the job: all (workers and whatever they left behind), unfinished (workers still running), none (muster waits for them).",
			set: func(r *Request, text string) error {
				r.Job.Restart.Clean = job.CleanPolicy(text)
				return oneOf(text, string(job.CleanAll), string(job.CleanUnfinished), string(job.CleanNone))
			},
		},
		{
			flag: "linger", form: formTime, arg: "TIME", def: "0s", group: groupExits, anywhere: true, use: use{early},
			help: "How long the other workers may go on after --success-policy any or rank0 was met.",
			set:  func(r *Request, text string) error { return setTime(&r.Job.Restart.Linger, text) },
		},
		{
			flag: "exit-code-compat", form: formSwitch, def: "false", group: groupExits, anywhere: true, use: always,
			help: "Status 1 for every failure of the job, as the replaced launchers do.",
			set:  func(r *Request, text string) error { return setSwitch(&r.Job.CompatExit, text) },
		},
	}
}

func logSettings() []setting {
	return []setting{
		{
			flag: "log-dir", arg: "DIR", group: groupLogs, lent: true, use: use{byAgents},
			help: "Where the directory of this run is made. muster run writes all output of workers there, unless --tee or --redirects is given. Default: a temporary one; /dev/null for none.",
			set:  func(r *Request, text string) error { r.Job.Logs.Dir = logDir(text); return nil },
		},
		{
			flag: "redirects", short: "r", arg: "SPEC", def: "0", group: groupLogs, lent: true, use: use{byAgents, shown},
			help: "Streams that go to files and not to the console: 0 none, 1 stdout, 2 stderr, 3 both, or by local rank, as in 0:3,1:2.",
			set: func(r *Request, text string) (err error) {
				r.Job.Logs.Redirect, err = parseStreams(text)
				return err
			},
		},
		{
			flag: "tee", short: "t", arg: "SPEC", def: "0", group: groupLogs, lent: true, use: use{byAgents, divided},
			help: "Streams that go to files and to the console; SPEC as for --redirects.",
			set: func(r *Request, text string) (err error) {
				r.Job.Logs.Tee, err = parseStreams(text)
				return err
			},
		},
		{
			flag: "local-ranks-filter", form: formList, arg: "RANKS", group: groupLogs, lent: true, use: use{byAgents, shown},
			help: "Local ranks whose output is shown on the console, as in 0,1. Default: all.",
			set: func(r *Request, text string) (err error) {
				r.Job.Logs.Ranks, err = parseRanks(text)
				return err
			},
		},
		{
			flag: "log-line-prefix-template", arg: "TEXT", group: groupLogs, lent: true, use: use{shown, prefixed},
			help: "What stands in front of each line of a worker; ${role_name}, ${local_rank}, ${rank} and ${hostname} are replaced. Default: '[${rank}] ', with hosts '[${hostname} ${rank}] '.",
			set:  func(r *Request, text string) error { r.Job.Logs.Prefix = text; return nil },
		},
	}
}

// ownSettings say what muster itself tells and does.
func ownSettings() []setting {
	return []setting{
		{
			flag: "event-log-handler", arg: "null|console", def: "null", group: groupMuster, lent: true, use: use{byAgents},
			help: "Where torchelastic's event records go: nowhere, or to standard error as JSON.",
			set: func(r *Request, text string) error {
				r.Job.EventLog = text
				return oneOf(text, "null", "console")
			},
		},
		{
			flag: "status-file", arg: "FILE", group: groupMuster, anywhere: true, use: use{notSimulated},
			help: "Keep the job's state in FILE as JSON.",
			set:  func(r *Request, text string) error { r.Job.StatusFile = text; return nil },
		},
		{
			flag: "summary", arg: "FILE", group: groupMuster, anywhere: true, use: use{notSimulated, byAgents},
			help: "Write to FILE, as JSON, what the time of the job went to, when it has ended: good, restarts, repeated steps and so on, its rounds and its slowest ranks.",
			set:  func(r *Request, text string) error { r.Job.See.Summary = text; return nil },
		},
		{
			flag: "http", arg: "ADDR", group: groupMuster, anywhere: true, use: always,
			help: "Serve a page of the job at ADDR, HOST:PORT or a port of this machine alone; port 0 takes one that is free and says which. On loopback your own processes may look; elsewhere the job's token is asked for.",
			set:  func(r *Request, text string) error { r.Job.See.HTTP = text; return nil },
		},
		{
			flag: "sidecar", separator: several, arg: "COMMAND", group: groupMuster, anywhere: true, use: use{byAgents},
			help: "Run COMMAND, in words as for a shell, beside the workers on the first node, as in 'tensorboard --logdir runs --port 6006'. It starts again when it ends, and ends with the job. May be given again; in a variable, one on each line.",
			set:  checkSidecars,
		},
		{
			flag: "events", arg: "FILE", group: groupMuster, anywhere: true, use: always,
			help: "Append what happens to the job to FILE, a line of JSON for each event.",
			set:  func(r *Request, text string) error { r.Job.See.EventsFile = text; return nil },
		},
		{
			flag: "keep-runs", form: formTime, arg: "TIME", def: "24h", group: groupMuster, anywhere: true, use: always,
			help: "How long after its end muster events, status and ps -a know the job; 0 for not at all.",
			set:  func(r *Request, text string) error { return setTime(&r.Job.See.Keep, text) },
		},
		{
			flag: "config", arg: "FILE", group: groupMuster, anywhere: true, use: always,
			help: "Read settings from FILE, a YAML map of flags without their dashes. The command line and variables win over it.",
			set:  func(*Request, string) error { return nil },
		},
		{
			flag: "dry-run", form: formSwitch, def: "false", group: groupMuster, anywhere: true, use: always,
			help: "Show ranks, environment and where each value came from; start nothing.",
			set:  func(r *Request, text string) error { return setSwitch(&r.DryRun, text) },
		},
		{
			flag: "show-values", form: formSwitch, def: "false", group: groupMuster, anywhere: true, use: use{dry},
			help: "With --dry-run: show all values that were given, secrets too. Else those of variables that are not known to be harmless, and what looks like a secret in a command line, are left out.",
			set:  func(r *Request, text string) error { return setSwitch(&r.ShowValues, text) },
		},
		{
			flag: "all", form: formSwitch, def: "false", group: groupMuster, anywhere: true, use: use{dry},
			help: "With --dry-run, show the flags that have their defaults, too.",
			set:  func(r *Request, text string) error { return setSwitch(&r.All, text) },
		},
		{
			flag: "json", form: formSwitch, def: "false", group: groupMuster, anywhere: true, use: always,
			help: "Write --dry-run and what muster refuses as JSON.",
			set:  func(r *Request, text string) error { return setSwitch(&r.JSON, text) },
		},
		{
			flag: "log-level", arg: "LEVEL", def: "info", group: groupMuster, anywhere: true, use: always,
			help: "What muster says on standard error: debug, info, warn or error. torchrun's default is warn, or what LOGLEVEL says.",
			set: func(r *Request, text string) error {
				r.LogLevel = text
				return oneOf(text, "debug", "info", "warn", "error")
			},
		},
		{
			flag: "log-format", arg: "auto|text|json", def: logtext.Auto, group: groupMuster, anywhere: true, use: always,
			help: "How muster says it, on every node: lines of text for people (auto, text), or of JSON for programs, with exact durations.",
			set: func(r *Request, text string) error {
				r.LogFormat = text
				return oneOf(text, logtext.Formats()...)
			},
		},
	}
}

// withoutWord reports whether the flag stands for itself on the command line.
func (s *setting) withoutWord() bool { return s.form == formSwitch || s.form == formOptional }
