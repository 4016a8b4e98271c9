package dialect

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"muster/internal/errhint"
	"muster/launch/job"
)

// Own are flags of muster itself that stood in front of a dialect's name, as in
//
//	muster --dry-run --status-file job.json torchrun --standalone train.py
//
// The zero value holds none.
type Own struct {
	words map[string]given
}

// ParseOwn takes muster's own flags from the front of args and returns the rest: the dialect's name and its arguments.
// It stops at the first word that is none of these flags, such as --help, and leaves that to the caller; only what
// looks like a misspelt flag is an error, with status 2.
func ParseOwn(args []string) (Own, []string, error) {
	own := Own{words: map[string]given{}}
	var wrong problems
	for len(args) > 0 && strings.HasPrefix(args[0], "--") && args[0] != "--" {
		spelling, text, joined := strings.Cut(args[0], "=")
		name := strings.ReplaceAll(spelling[2:], "_", "-")
		s := anywhere(name)
		if s == nil {
			if near := nearest(spelling, anywhereFlags()); near != "" || onlyOfRun("--"+name) {
				wrong.add(unknownFlag(spelling, anywhereFlags(), "-h"))
			}
			break
		}
		args = args[1:]
		switch {
		case joined:
		case s.withoutWord():
			text = "true"
		case len(args) == 0:
			wrong.add(fmt.Errorf("cannot use %s without a value", spelling))
			continue
		default:
			text, args = args[0], args[1:]
		}
		for s.pairs && len(args) > 0 && pairWord().MatchString(args[0]) {
			text, args = text+" "+args[0], args[1:]
		}
		if before, again := own.words[name]; again && s.separator != "" {
			text = before.text + s.separator + text
		}
		own.words[name] = given{text: text, source: job.Source{Kind: job.FromFlag, Name: "--" + name}}
	}
	return own, args, wrong.err()
}

// json reports whether errors of a command line that could not be read are to be printed as JSON.
func (o Own) json(env environ) bool {
	word, ok := o.words["json"]
	if !ok {
		word.text = env[variable(ownPrefix, "json")]
	}
	return switched(word)
}

// LogFormat is what --log-format says in front of a dialect's name, empty where it does not stand there.
func (o Own) LogFormat() string { return o.words["log-format"].text }

// anywhere returns the setting that may stand in front of a dialect's name, nil for none.
func anywhere(flag string) *setting {
	for _, s := range allSettings() {
		if (s.anywhere || s.lent) && s.flag == flag {
			return &s
		}
	}
	return nil
}

// anywhereFlags are the flags that may stand in front of some dialect's name.
func anywhereFlags() []string {
	var flags []string
	for _, s := range allSettings() {
		if s.anywhere || s.lent {
			flags = append(flags, "--"+s.flag)
		}
	}
	return flags
}

// inFront are the settings that may stand in front of the dialect's name, or as variables: it has none of the lent ones
// itself.
func (p *parser) inFront() []setting {
	list := slices.DeleteFunc(settings(), func(s setting) bool { return !s.anywhere && (!s.lent || p.has(s.flag)) })
	for i := range list {
		if list[i].flag == "warm" {
			list[i].def = warmElsewhere
		}
	}
	return list
}

// apply makes muster's own settings count in a foreign dialect, and returns their words. equivalents are the values
// some of them have there through the dialect's own flags, variables or habits.
func (o Own) apply(r *Request, inv Invocation, env environ, p *parser, equivalents map[string]given, wrong *problems) map[string]given {
	list := p.inFront()
	for i := range list {
		list[i].alias = "" // it may be a flag of the dialect's
	}
	for _, flag := range slices.Sorted(maps.Keys(o.words)) {
		if !namesFlag(list, flag) {
			wrong.add(fmt.Errorf("cannot use --%s in front of %s: it is a flag of that launcher; put it behind its name", flag, p.prog))
		}
	}
	words := resolve(list, o.words, env, []string{ownPrefix}, inv.ReadFile, wrong)
	r.give(list, words, equivalents, wrong)
	if logs := &r.Job.Logs; logs.Prefix == "" && !p.has("tee") &&
		(logs.Tee.Any() || r.Job.Hosts.CollectLogs != "") { // a launcher without it has no prefix of its own for such lines
		logs.Prefix = job.RankPrefix
		if len(r.Job.Hosts.Nodes) > 0 {
			logs.Prefix = job.HostRankPrefix
		}
	}
	flags := make([]string, 0, len(p.options))
	for _, opt := range p.options {
		flags = append(flags, opt.long)
	}
	r.Job.Warnings = append(r.Job.Warnings, misspelt(env, flags)...)
	r.Job.Warnings = append(r.Job.Warnings, p.unreadVariables(r, env, list)...)
	settleEnv(r, inv, words, wrong)
	checkRules(r, words, wrong)
	checkHosted(r, words, wrong)
	return words
}

// give sets all settings of the list to their words. Where a setting also has a value through something else, its
// equivalent, the stronger source wins, and of two flags that disagree neither does.
func (r *Request) give(list []setting, words, equivalents map[string]given, wrong *problems) {
	for _, s := range list {
		word, ok := words[s.flag]
		other, both := equivalents[s.flag]
		if both && (!ok || other.source.Kind > word.source.Kind) {
			r.Settings = append(r.Settings, Setting{Flag: s.flag, Value: other.text, Source: other.source})
			continue
		}
		if both && word.source.Kind == job.FromFlag && other.source.Kind == job.FromFlag {
			wrong.add(fmt.Errorf("cannot use %s and %s together: give one of them", word.source.Name, other.source.Name))
			continue
		}
		s.give(r, word, ok, wrong)
	}
}

// give sets s to a word that was found, or leaves it at its default, and notes which.
func (s *setting) give(r *Request, word given, found bool, wrong *problems) {
	if !found {
		r.Settings = append(r.Settings, Setting{Flag: s.flag, Value: s.def})
		return
	}
	r.Settings = append(r.Settings, Setting{Flag: s.flag, Value: word.text, Source: word.source})
	if err := s.set(r, word.text); err != nil {
		wrong.add(fmt.Errorf("cannot use %s: %w", word.written(s.flag), err))
	}
}

// resolve finds the word for each setting: on the command line, in a variable (prefixes, strongest first), or in the
// file of --config. Settings that nobody gave are missing from the result.
func resolve(list []setting, command map[string]given, env environ, prefixes []string,
	readFile func(string) ([]byte, error), wrong *problems,
) map[string]given {
	words := map[string]given{}
	for _, prefix := range slices.Backward(prefixes) {
		for _, s := range list {
			name := variable(prefix, s.flag)
			if s.alias != "" && env[name] == "" {
				name = variable(prefix, s.alias)
			}
			if text := env[name]; text != "" {
				if s.separator == several {
					text = strings.ReplaceAll(text, "\n", several)
				}
				s.over(words, given{text: text, source: job.Source{Kind: job.FromVariable, Name: name}})
			} else if text := env[fakeVariable]; text != "" && prefix == ownPrefix && s.flag == "accelerator" {
				words[s.flag] = given{text: "fake:" + text, source: job.Source{Kind: job.FromVariable, Name: fakeVariable}}
			}
		}
	}
	for _, s := range list {
		if word, ok := command[s.flag]; ok {
			s.over(words, word)
		}
	}
	file, ok := words["config"]
	if !ok {
		return words
	}
	fromFile, err := readConfig(file.text, list, readFile)
	wrong.merge(err)
	for _, s := range list {
		if word, ok := fromFile[s.flag]; ok {
			s.under(words, word)
		}
	}
	return words
}

// below is where the word of a weaker source stands, of a setting to which that counts beside a stronger one.
func below(flag string) string { return flag + several }

// over sets the setting's word to a stronger one.
func (s *setting) over(words map[string]given, word given) {
	if s.separator == several {
		for flag := s.flag; ; flag = below(flag) {
			before, taken := words[flag]
			words[flag] = word
			if !taken {
				return
			}
			word = before
		}
	}
	words[s.flag] = word
}

// under gives the setting a weaker word than it has.
func (s *setting) under(words map[string]given, word given) {
	flag := s.flag
	for _, taken := words[flag]; taken && s.separator == several; _, taken = words[flag] {
		flag = below(flag)
	}
	if _, taken := words[flag]; !taken {
		words[flag] = word
	}
}

// fakeVariable is the short way to ask for a fake accelerator in every dialect.
const fakeVariable = "MUSTER_FAKE"

// misspelt warns of variables that look like a setting's with a typing error, as they would otherwise be silent. flags
// are those of the dialect.
func misspelt(env environ, flags []string) []string {
	// Names that other parts of muster read, or that muster gives its workers and a muster inside a worker inherits.
	known := []string{"FAKE", "FAKE_NODE", "SIMULATED", "SIMULATION", "RUN_DIR", "ROUND", "SOCKET", "CKPT_MEMORY", "REPLICA", "SIDECAR_INDEX"}
	for _, s := range settings() {
		known = append(known, variable("", s.flag))
		if s.alias != "" {
			known = append(known, variable("", s.alias))
		}
	}
	for _, flag := range flags {
		known = append(known, variable("", flag))
	}
	var warnings []string
	for _, name := range slices.Sorted(maps.Keys(env)) {
		short, ours := strings.CutPrefix(name, ownPrefix)
		if !ours || slices.Contains(known, short) {
			continue
		}
		if near := nearest(short, known); near != "" {
			warnings = append(warnings, fmt.Sprintf("the variable %s is unknown and ignored; did you mean %s%s?", name, ownPrefix, near))
		}
	}
	return warnings
}

// unreadVariables warns in one line of the variables of settings that count for other launchers and not for this one,
// which reads those of the list and of its own options.
func (p *parser) unreadVariables(r *Request, env environ, list []setting) []string {
	read := map[string]bool{fakeVariable: true}
	for i := range p.options {
		if o := &p.options[i]; slices.Contains(p.prefixesOf(o), ownPrefix) {
			read[variable(ownPrefix, o.long)] = true
		}
	}
	for _, s := range list {
		read[variable(ownPrefix, s.flag)] = true
	}
	var idle []string
	for _, s := range allSettings() {
		for _, flag := range []string{s.flag, s.alias} {
			name := variable(ownPrefix, flag)
			if text := env[name]; flag != "" && text != "" && !read[name] && !r.asksNothing(&s, text) {
				idle = append(idle, name)
			}
		}
	}
	if len(idle) == 0 {
		return nil
	}
	return []string{fmt.Sprintf("no effect in front of %s, which has flags of its own for what it takes: %s", p.prog,
		strings.Join(idle, ", "))}
}

// tell corrects what Settings and Sources say of a flag whose value follows from another one.
func (r *Request) tell(flag, value string, source job.Source) {
	for i := range r.Settings {
		if r.Settings[i].Flag == flag {
			r.Settings[i].Value, r.Settings[i].Source = value, source
		}
	}
}

// checkRules refuses rules that contradict each other, wherever they came from.
func checkRules(r *Request, words map[string]given, wrong *problems) {
	rules := &r.Job.Restart
	if rules.BackoffLimit > 0 && rules.MaxRestarts == 0 && rules.Policy != job.RestartOnNodeFail { // who bounds restarts wants some
		rules.MaxRestarts = rules.BackoffLimit
		r.tell("max-restarts", strconv.Itoa(rules.MaxRestarts), words["backoff-limit"].source)
	}
	if rules.Policy == job.RestartAlways && rules.Deadline == 0 {
		wrong.add(errhint.With(fmt.Errorf("cannot use %s without --active-deadline: the job would never end",
			words["restart-policy"].written("restart-policy")), "give the time after which the job ends, such as --active-deadline 8h"))
	}
	_, bounded := words["restart-backoff"]
	if rules.Delay > rules.DelayMax {
		if bounded && strings.Contains(words["restart-backoff"].text, ":") {
			wrong.add(fmt.Errorf("cannot use %s with %s: the first pause is longer than the longest",
				words["restart-delay"].written("restart-delay"), words["restart-backoff"].written("restart-backoff")))
		}
		rules.DelayMax = rules.Delay
	}
	settleCheck(r, words, wrong)
	settleSidecars(r, words, wrong)
	settleCheckpoint(r, words, wrong)
}
