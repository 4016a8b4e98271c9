package dialect

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"muster/internal/lazyregexp"
	"muster/launch/job"
)

// value is what an option has, and where that stood: on the command line, in a variable, in a file, or nowhere.
type value struct {
	// option is the row of the table whose value this is.
	option *option
	// text is the word as it was typed. The next four are what it says, and only that of the option's kind is set; muster's
	// own settings read theirs themselves.
	text string
	n    int
	f    float64
	on   bool
	list []string
	// none is Python's None.
	none bool
	// given says that somebody gave one of muster's own settings.
	given  bool
	source job.Source
	// theirs says that it stood among the flags of the replaced launcher, which may be of no use to it either.
	theirs bool
	// secret says that the text of a Secret of a job file is in it.
	secret bool
	// weaker is the word of a weaker source, of a setting to which that counts beside a stronger one.
	weaker *value
}

// explicit reports whether the value came from anywhere.
func (v value) explicit() bool { return v.source.Kind != job.FromDefault }

// fromFlag reports whether it was typed on the command line.
func (v value) fromFlag() bool { return v.source.Kind == job.FromFlag }

// derived ends the source of a value that was made of a platform's variable and is not in it, such as a port that
// follows from a job's number.
const derived = ", derived"

// credentials are what somebody may put in front of a URL's host. They are refused, and must not be shown.
var credentials = lazyregexp.New(`//[^/]*@`)

// written is the word as the user wrote it: --flag word, NAME=word, or file:line: flag: word.
func (v value) written() string { return v.writtenAs(v.option.name) }

// writtenAs is written for an option that the user knows by another name.
func (v value) writtenAs(flag string) string {
	text := credentials().ReplaceAllString(v.text, "//…@")
	if v.secret {
		text = job.Var{Value: text, Secret: true}.Shown()
	}
	if v.source.Kind == job.FromPlatform && strings.HasSuffix(v.source.Name, derived) {
		return fmt.Sprintf("--%s %s (%s)", flag, text, v.source)
	}
	switch v.source.Kind {
	case job.FromVariable, job.FromPlatform:
		return v.source.Name + "=" + text
	case job.FromConfig:
		return fmt.Sprintf("%s (%s: %s)", v.source.Name, flag, text)
	default:
		return strings.TrimSpace("--" + flag + " " + text)
	}
}

// typed is written for an option that may be a switch.
func (v value) typed() string {
	if v.source.Kind == job.FromFlag && v.text == "true" {
		return "--" + v.option.name
	}
	return v.written()
}

// ours reports whether the word stands in a variable of muster.
func (v value) ours() bool {
	return v.source.Kind == job.FromVariable && strings.HasPrefix(v.source.Name, ownPrefix)
}

// place is where a word of a variable or a file stands, for people who look for it there.
func (v value) place() string {
	if v.source.Kind == job.FromConfig {
		return fmt.Sprintf("%s: %s", v.source.Name, v.option.name)
	}
	return v.source.Name
}

// switched reports whether the word is a yes.
func (v value) switched() bool {
	on, err := parseSwitch(v.text)
	return on && err == nil
}

// become gives an option another value, whatever it had before.
func (v *value) become(other value) {
	other.option = v.option
	*v = other
}

// shown is the value as --dry-run shows it.
func (v value) shown() string {
	if v.option.kind == kindFlag {
		return strconv.FormatBool(v.on)
	}
	return v.text
}

// say gives the setting a word, whatever it had before.
func (v *value) say(text string, source job.Source) {
	v.text, v.source, v.given, v.theirs, v.secret = text, source, true, false, false
}

// forget takes its strongest word from the setting.
func (v *value) forget() { *v = value{option: v.option} }

// over gives the setting a stronger word than it has.
func (v *value) over(stronger value) {
	stronger.option, stronger.given = v.option, true
	if before := *v; before.given && v.option.separator == several {
		stronger.weaker = &before
	}
	*v = stronger
}

// under gives the setting a weaker word than it has.
func (v *value) under(weaker value) {
	weaker.option, weaker.given = v.option, true
	if !v.given {
		*v = weaker
		return
	}
	if v.option.separator == several {
		for v.weaker != nil {
			v = v.weaker
		}
		v.weaker = &weaker
	}
}

// all are the words of an option that was given in several places, weakest first.
func (v *value) all() []value {
	if v == nil || !v.given {
		return nil
	}
	return append(v.weaker.all(), *v)
}

// pieces are the words of a setting that counts each of them, weakest first.
func (v *value) pieces() []value {
	var list []value
	for _, word := range v.all() {
		for text := range strings.SplitSeq(word.text, several) {
			if text != "" {
				list = append(list, value{option: v.option, text: text, source: word.source})
			}
		}
	}
	return list
}

// ownWords are the words of muster's own settings. Each row of allSettings names its field, by which everybody reads
// it. The fields are exported for option.of.
type ownWords struct {
	// Nodes and workers.
	NNodes, Standalone, NProcPerNode, NodeRank, MasterAddr, MasterPort, Platform, Spares, NodeUnit, TopologyFile,
	Accelerator, SimulateNodes, FakeOnReal value

	// Job files.
	JobFile, Kind, Name, Set, Secrets, Lenient value

	// Hosts that muster starts the nodes on.
	Hosts, Hostfile, Include, Exclude, RemoteDir, CollectLogs, CollectLogsLimit, StartTimeout, Preflight, SSHUser,
	SSHPort, SSHIdentity, SSHHostKeyPolicy, SSHOption, SSHProgram, SSHParallel value

	// How nodes meet.
	Rdzv, RdzvConf, LocalAddr, Iface, ExportIface, JoinTimeout, LastCall, KeepAlive, TokenFile, StoreAllow,
	StoreLimit, EtcdUser, EtcdPasswordFile, EtcdCACert, EtcdCert, EtcdKey value

	// What every worker runs.
	Module, NoPython, Role, RunID, Warm, WarmWait, NUMABinding, NUMAFallback, IsolateDevices, Stdin value

	// Environment and Python of the workers.
	Env, EnvFile, EnvExpand, EnvUnset, EnvProfile, EnvMode, EnvPass, EnvDeny, Python, Venv, Conda, DebugMode value

	// Tests before the workers start.
	NetworkCheck, NetworkCheckFull, NetworkCheckTimeout, StragglerFactor, StragglerRule, ExcludeStraggler,
	CommPerfTest, MinNetBandwidth, SwitchboxCheck, BoxPairs, MinBandwidth, MinChannels, OnNodeFault, Quarantine,
	HealthEndpoint, HealthCommand, Report value

	// Restarts and stopping.
	MaxRestarts, RestartPolicy, RestartScope, RetryableExitCodes, FatalExitCodes, BackoffLimit, CrashLoop,
	RestartLimit, RestartWindow, RestartDelay, RestartBackoff, ActiveDeadline, Grace, SuccessPolicy, FailPolicy,
	CleanPolicy, Linger, ExitCodeCompat value

	// Hangs.
	HangTimeout, OnHang, HangDir, Stacks value

	// Output of the workers.
	LogDir, Redirects, Tee, LocalRanksFilter, LogLinePrefixTemplate value

	// Checkpoints.
	Ckpt, CkptDir, CkptKeep, CkptRate, CkptReplicas, CkptShim, CkptSlots, CkptSignal, CkptOnFile, CkptOnCommand,
	CkptNotices, CkptSalvage value

	// muster itself.
	EventLogHandler, StatusFile, Summary, HTTP, Sidecar, Events, KeepRuns, Config, DryRun, ShowValues, All, JSON,
	LogLevel, LogFormat value
}

// of is the setting's word among w.
func (o *option) of(w *ownWords) *value {
	return reflect.ValueOf(w).Elem().Field(o.field).Addr().Interface().(*value)
}

// newOwnWords are those of settings that nobody gave.
func newOwnWords() *ownWords {
	words := ownRows().blank
	return &words
}
