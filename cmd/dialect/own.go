package dialect

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"muster/internal/errhint"
	"muster/launch/job"
)

// Own are flags of muster itself that stood in front of a dialect's name, as in
//
//	muster --dry-run --status-file job.json torchrun --standalone train.py
//
// The zero value holds none.
type Own struct {
	words *ownWords // nil for none
}

// given are the words of the flags. Nobody changes them.
func (o Own) given() *ownWords {
	if o.words == nil {
		return &ownRows().blank
	}
	return o.words
}

// ParseOwn takes muster's own flags from the front of args and returns the rest: the dialect's name and its arguments.
// It stops at the first word that is none of these flags, such as --help, and leaves that to the caller; only what
// looks like a misspelt flag is an error, with status 2.
func ParseOwn(args []string) (Own, []string, error) {
	own := Own{words: newOwnWords()}
	var wrong problems
	for len(args) > 0 && strings.HasPrefix(args[0], "--") && args[0] != "--" {
		spelling, text, joined := strings.Cut(args[0], "=")
		name := strings.ReplaceAll(spelling[2:], "_", "-")
		s := anywhere(name)
		if s == nil {
			wrong.add(unknownInFront(spelling, "--"+name, args[1:]))
			break
		}
		args = args[1:]
		switch {
		case joined:
		case !s.kind.takesWord():
			text = "true"
		case len(args) == 0:
			wrong.add(fmt.Errorf("cannot use %s without a value", spelling))
			continue
		default:
			text, args = args[0], args[1:]
		}
		for s.kind == kindPairs && len(args) > 0 && pairWord().MatchString(args[0]) {
			text, args = text+" "+args[0], args[1:]
		}
		word := s.of(own.words)
		if word.given && s.separator != "" {
			text = word.text + s.separator + text
		}
		word.say(text, job.Source{Kind: job.FromFlag, Name: "--" + name})
	}
	if len(args) > 0 {
		wrong.add(shortInFront(args[0], args[1:]))
	}
	return own, args, wrong.err()
}

// shortInFront is the error for a flag such as -np that is one of the launcher's behind it, nil for all else. Flags of one
// letter may be those of muster run.
func shortInFront(word string, behind []string) error {
	spelling, _, _ := strings.Cut(word, "=")
	if len(spelling) < 3 || spelling[0] != '-' || spelling[1] == '-' {
		return nil
	}
	i := slices.IndexFunc(behind, Named)
	if i < 0 || !slices.Contains(flagsOf(behind[i]), spelling) {
		return nil
	}
	return misplaced(spelling, behind[i], spelling)
}

// misplaced is the error for a launcher's flag in front of its name; theirs is how the launcher writes it.
func misplaced(spelling, launcher, theirs string) error {
	return errhint.With(fmt.Errorf("cannot use %s in front of a launcher's name", spelling),
		"it is a flag of the launcher: put it behind the name, as in muster "+launcher+" "+theirs+" …")
}

// unknownInFront is the error for a flag that is none of muster's own, and nil where it may be one of a command that is no
// launcher. Behind it stands what else was given.
func unknownInFront(spelling, flag string, behind []string) error {
	known, i := anywhereFlags(), slices.IndexFunc(behind, Named)
	launcher, theirs := "torchrun", ""
	if i >= 0 {
		launcher = behind[i]
		theirs = nearestFlag(launcher, spelling)
	} else if optionNamed(torchrunRows(), flag[2:]) != nil {
		theirs = spelling
	}
	shown := launcher
	switch launcher {
	case accelerateProg, colossalAI: // their flags are those of a command
		shown = accelerateParser(new(accelerateWords)).prog
		if launcher == colossalAI {
			shown = colossalParser(new(colossalWords)).prog
		}
	}
	switch {
	case flag == "--help" || flag == "--version":
		return nil
	case theirs != "" && plain(theirs) == flag:
		return misplaced(spelling, shown, theirs)
	case nearest(spelling, known) != "" || onlyOfRun(flag):
		return unknownFlag(spelling, known, "-h")
	case i < 0:
		return nil
	case theirs == "":
		return errhint.With(fmt.Errorf("unknown flag %s in front of %s", spelling, shown),
			fmt.Sprintf("muster --help lists those that may stand there; %s's own, which muster %[1]s --help lists, stand behind its name",
				shown))
	default:
		return fmt.Errorf("unknown flag %s in front of %s: did you mean its %s? Put that behind its name", spelling, shown, theirs)
	}
}

// nearestFlag is the flag of a launcher that was probably meant, as it is written, "" for none.
func nearestFlag(launcher, spelling string) string {
	flags := slices.DeleteFunc(flagsOf(launcher), func(s string) bool { return !strings.HasPrefix(s, "--") })
	if slices.Contains(flags, spelling) {
		return spelling
	}
	return nearest(spelling, flags)
}

// flagsOf are all spellings of a launcher's flags.
func flagsOf(launcher string) (flags []string) {
	Flags(launcher).VisitAll(func(f *pflag.Flag) {
		flags = append(flags, "--"+f.Name)
		if w, ok := f.Value.(*flagWord); ok {
			flags = append(flags, w.spellings...)
		}
	})
	return flags
}

// json reports whether errors of a command line that could not be read are to be printed as JSON.
func (o Own) json(env environ) bool {
	word := o.given().JSON
	if !word.given {
		word.text = env[variable(ownPrefix, word.option.name)]
	}
	return word.switched()
}

// JSON reports whether --json stands in front of a dialect's name.
func (o Own) JSON() bool { return o.json(nil) }

// LogFormat is what --log-format says in front of a dialect's name, empty where it does not stand there.
func (o Own) LogFormat() string { return o.given().LogFormat.text }

// anywhere returns the setting that may stand in front of a dialect's name, nil for none.
func anywhere(flag string) *option {
	for _, s := range settings() {
		if (s.anywhere || s.lent) && s.name == flag {
			return s
		}
	}
	return nil
}

// anywhereFlags are the flags that may stand in front of some dialect's name.
func anywhereFlags() []string {
	var flags []string
	for _, s := range settings() {
		if s.anywhere || s.lent {
			flags = append(flags, "--"+s.name)
		}
	}
	return flags
}

// inFront are the settings that may stand in front of the dialect's name, or as variables, without those that are its own
// flags, too: the parser has read these. Their aliases may be flags of the dialect's.
func (p *parser) inFront() []*option {
	var list []*option
	for _, s := range settings() {
		if !s.anywhere && (!s.lent || p.has(s.name)) {
			continue
		}
		if s.aliases != nil || s.elsewhere != "" {
			s = new(*s)
			s.aliases, s.def = nil, cmp.Or(s.elsewhere, s.def)
		}
		list = append(list, s)
	}
	return list
}

// apply makes muster's own settings count in a foreign dialect, and returns their words. equivalents are the values
// some of them have there through the dialect's own flags, variables or habits.
func (o Own) apply(r *Request, inv Invocation, env environ, p *parser, equivalents *ownWords, wrong *problems) *ownWords {
	list := p.inFront()
	words := resolve(list, o.given(), env, []string{ownPrefix}, func(file string) (*ownWords, problems) {
		return p.settingsFile(file, inv.ReadFile)
	}, wrong)
	r.give(list, words, equivalents, wrong)
	if words.LogDir.given && !words.Tee.given && !words.Redirects.given {
		r.fillLogDir()
	}
	if logs := &r.Job.Logs; logs.Prefix == "" && !p.has(words.Tee.option.name) &&
		(logs.Tee.Any() || r.Job.Hosts.CollectLogs != "") { // a launcher without it has no prefix of its own for such lines
		logs.Prefix = job.RankPrefix
		if len(r.Job.Hosts.Nodes) > 0 {
			logs.Prefix = job.HostRankPrefix
		}
	}
	flags := make([]string, 0, len(p.options))
	for _, opt := range p.options {
		flags = append(flags, opt.name)
	}
	r.Job.Warnings = append(r.Job.Warnings, misspelt(env, flags)...)
	r.Job.Warnings = append(r.Job.Warnings, p.unreadVariables(r, env, list)...)
	settleEnv(r, inv, words, wrong)
	checkRules(r, words, wrong)
	checkHosted(r, words, wrong)
	return words
}

// fillLogDir has all output of the workers written to the directory that muster was told of, and shown. Nobody has said
// what goes there.
func (r *Request) fillLogDir() {
	logs := &r.Job.Logs
	if logs.Dir != "" && logs.Dir != os.DevNull && logs.RankDir == "" && logs.RankFiles == "" && !r.driven() {
		logs.Tee = job.StreamMap{Default: job.Both}
	}
}

// give sets all settings of the list to their words. Where a setting also has a value through something else, its
// equivalent, the stronger source wins, and of two flags that disagree neither does.
func (r *Request) give(list []*option, words, equivalents *ownWords, wrong *problems) {
	for _, s := range list {
		word, other := s.of(words), s.of(equivalents)
		if other.given && (!word.given || other.source.Kind > word.source.Kind) {
			r.Settings = append(r.Settings, Setting{Flag: s.name, Value: other.text, Source: other.source})
			continue
		}
		if other.given && word.source.Kind == job.FromFlag && other.source.Kind == job.FromFlag {
			wrong.add(fmt.Errorf("cannot use %s and %s together: give one of them", word.source.Name, other.source.Name))
			continue
		}
		s.give(r, word, wrong)
	}
}

// give sets s to its word, or leaves it at its default, and notes which.
func (o *option) give(r *Request, word *value, wrong *problems) {
	if !word.given {
		r.Settings = append(r.Settings, Setting{Flag: o.name, Value: o.def})
		return
	}
	r.Settings = append(r.Settings, Setting{Flag: o.name, Value: word.text, Source: word.source, secret: word.secret})
	if err := o.set(r, word.text); err != nil {
		wrong.add(fmt.Errorf("cannot use %s: %w", word.written(), err))
	}
}

// resolve finds the word for each setting: on the command line, in a variable (prefixes, strongest first), or in the
// file of --config.
func resolve(list []*option, command *ownWords, env environ, prefixes []string,
	readConfig func(file string) (*ownWords, problems), wrong *problems,
) *ownWords {
	words := newOwnWords()
	for _, prefix := range slices.Backward(prefixes) {
		if !env.has(prefix) { // as of most jobs
			continue
		}
		for _, s := range list {
			name := variable(prefix, s.name)
			for _, alias := range s.names() {
				if env[name] == "" {
					name = variable(prefix, alias)
				}
			}
			if text := env[name]; text != "" {
				if s.separator == several {
					text = strings.ReplaceAll(text, "\n", several)
				}
				s.of(words).over(value{text: text, source: job.Source{Kind: job.FromVariable, Name: name}})
			} else if text := env[fakeVariable]; text != "" && prefix == ownPrefix && s.word == &ownRows().blank.Accelerator {
				words.Accelerator.say("fake:"+text, job.Source{Kind: job.FromVariable, Name: fakeVariable})
			}
		}
	}
	for _, s := range list {
		if word := s.of(command); word.given {
			s.of(words).over(*word)
		}
	}
	if !words.Config.given {
		return words
	}
	fromFile, err := readConfig(words.Config.text)
	wrong.merge(err)
	for _, s := range list {
		if word := s.of(fromFile); word.given {
			s.of(words).under(*word)
		}
	}
	return words
}

// fakeVariable is the short way to ask for a fake accelerator in every dialect.
const fakeVariable = "MUSTER_FAKE"

// misspelt warns of variables that look like a setting's with a typing error, as they would otherwise be silent. flags
// are those of the dialect.
func misspelt(env environ, flags []string) []string {
	if !env.has(ownPrefix) {
		return nil
	}
	// Names that other parts of muster read, or that muster gives its workers and a muster inside a worker inherits.
	known := []string{
		"FAKE", "FAKE_NODE", "SIMULATED", "SIMULATION", "RUN_DIR", "ROUND", "SOCKET", "CKPT_MEMORY", "REPLICA",
		"SIDECAR_INDEX",
	}
	for _, s := range settings() {
		for _, name := range s.names() {
			known = append(known, variable("", name))
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
func (p *parser) unreadVariables(r *Request, env environ, list []*option) []string {
	if !env.has(ownPrefix) {
		return nil
	}
	read := map[string]bool{fakeVariable: true}
	for i := range p.options {
		if o := &p.options[i]; slices.Contains(p.prefixesOf(o), ownPrefix) {
			read[variable(ownPrefix, o.name)] = true
		}
	}
	for _, s := range list {
		read[variable(ownPrefix, s.name)] = true
	}
	var idle []string
	for _, s := range settings() {
		for _, flag := range s.names() {
			name := variable(ownPrefix, flag)
			if text := env[name]; text != "" && !read[name] && !r.asksNothing(s, text) {
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

// sourceOf says where the value of a flag comes from.
func (r *Request) sourceOf(flag string) job.Source {
	for _, s := range r.Settings {
		if s.Flag == flag {
			return s.Source
		}
	}
	return job.Source{}
}

// tell corrects what Settings and Sources say of a flag whose value follows from another one.
func (r *Request) tell(of *value, text string, source job.Source) {
	for i := range r.Settings {
		if r.Settings[i].Flag == of.option.name {
			r.Settings[i].Value, r.Settings[i].Source = text, source
		}
	}
}

// checkRules refuses rules that contradict each other, wherever they came from.
func checkRules(r *Request, words *ownWords, wrong *problems) {
	rules := &r.Job.Restart
	// Who bounds restarts wants some, unless somebody who counts as much wants none.
	if rules.BackoffLimit > 0 && rules.MaxRestarts == 0 && rules.Policy != job.RestartOnNodeFail &&
		words.BackoffLimit.source.Kind > r.sourceOf(words.MaxRestarts.option.name).Kind {
		rules.MaxRestarts = rules.BackoffLimit
		r.tell(&words.MaxRestarts, strconv.Itoa(rules.MaxRestarts), words.BackoffLimit.source)
	}
	if rules.Policy == job.RestartAlways && rules.Deadline == 0 {
		wrong.add(errhint.With(fmt.Errorf("cannot use %s without --active-deadline: the job would never end",
			words.RestartPolicy.written()), "give the time after which the job ends, such as --active-deadline 8h"))
	}
	if rules.Delay > rules.DelayMax {
		if strings.Contains(words.RestartBackoff.text, ":") {
			wrong.add(fmt.Errorf("cannot use %s with %s: the first pause is longer than the longest",
				words.RestartDelay.written(), words.RestartBackoff.written()))
		}
		rules.DelayMax = rules.Delay
	}
	settleSidecars(r, words, wrong)
	settleCheckpoint(r, words, wrong)
}
