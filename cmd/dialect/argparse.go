package dialect

import (
	"fmt"
	"slices"
	"strings"

	"muster/internal/errhint"
	"muster/internal/lazyregexp"
	"muster/launch/job"
)

// parser reads command lines as Python 3.11's argparse does for a program that takes options, then the name of a
// script, then whatever the script takes (nargs=REMAINDER).
//
// One thing is different: argparse looks at all words for abbreviated options before it knows where the script's own
// arguments begin, so that a script cannot have an option of its own that would be ambiguous as one of the launcher's
// (a script's --signal breaks torchrun under Python 3.11; later versions of Python look at words when they reach them,
// as we do). Everything behind the script belongs to the script here.
type parser struct {
	prog, script string
	options      []option
	// beneath are those of the program that prog starts, which it takes by other means: by a flag where through is set.
	beneath []option
	through string
	// prefixes are the prefixes of environment variables that stand for options, strongest first.
	prefixes []string
	// front are muster's flags in front of prog. Those that prog has, too, count as if muster's variable had them, and more;
	// those in the file of --config count less.
	front Own
	// config is what that file says, nil until it was read, with what is wrong in it.
	config  *ownWords
	misread problems
	// exact refuses abbreviated options (allow_abbrev=False).
	exact bool
	// oneSpelling says that the replaced program knows one spelling of each option: an abbreviation of both of ours is
	// none of two options.
	oneSpelling bool
	// dashes is for a program whose options have no second spelling with underscores: they are taken for dashes before
	// anything is compared.
	dashes bool
	// remainder gives all words behind the script to it, a first "--" too.
	remainder bool
	// help and print make the texts of kindHelp and kindPrint.
	help  func() string
	print func(word string) string

	names []name // all spellings of all options in argparse's order, made by parse
}

// name is a spelling and the option it stands for.
type name struct {
	spelling string
	option   *option
}

// parsed is a command line that was understood.
type parsed struct {
	script string
	args   []string
}

// match is one reading of a word as an option.
type match struct {
	option   *option
	spelling string
	word     string // what follows in the same word: --opt=word, -oword
	hasWord  bool
}

var negativeNumber = lazyregexp.New(`^-[0-9]+$|^-[0-9]*\.[0-9]+$`)

// parse reads argv. All that is wrong is reported together.
func (p *parser) parse(argv []string, env environ) (*parsed, error) {
	var wrong problems
	p.names = nil
	for i := range p.options {
		for _, spelling := range p.options[i].spellings() {
			if p.dashes && spelling != plain(spelling) {
				continue
			}
			p.names = append(p.names, name{spelling, &p.options[i]})
		}
	}
	out := &parsed{}
	p.defaults(env, &wrong)
	given := map[*option]value{}
	found := false
	var unknown []string // they stop neither -h nor the search for other mistakes
	for i := 0; i < len(argv); i++ {
		word := argv[i]
		if word == "--" {
			if rest := argv[i+1:]; len(rest) > 0 {
				found, out.script, out.args = true, rest[0], rest[1:]
			}
			break
		}
		matches, isOption := p.readings(word)
		if !isOption {
			found, out.script, out.args = true, word, argv[i+1:]
			// argparse gives a "--" right behind the script to the script's own pattern and then removes it.
			if len(out.args) > 0 && out.args[0] == "--" && !p.remainder {
				out.args = out.args[1:]
			}
			break
		}
		if len(matches) > 1 {
			wrong.add(ambiguous(word, matches))
			continue
		}
		if len(matches) == 0 {
			unknown = append(unknown, word)
			continue
		}
		used, err := p.consume(matches[0], argv[i+1:], given, &wrong)
		if err != nil {
			return nil, err
		}
		i += used
	}
	for _, word := range unknown {
		if wrong.full() {
			break
		}
		wrong.add(p.unknown(word))
	}
	p.settle(given, env, &wrong)
	if !found {
		wrong.add(fmt.Errorf("cannot start without a %s: name it behind the flags", strings.ReplaceAll(p.script, "_", " ")))
	}
	if err := wrong.err(); err != nil {
		return nil, err
	}
	return out, nil
}

// consume takes the option of m, any further one-letter options in the same word, and the word that the last of them
// needs from rest. It returns how many words of rest were used.
func (p *parser) consume(m match, rest []string, given map[*option]value, wrong *problems) (int, error) {
	for {
		o := m.option
		if o.kind.takesWord() {
			word, used := m.word, 0
			if !m.hasWord {
				if len(rest) == 0 || rest[0] == "--" {
					wrong.add(fmt.Errorf("cannot use %s without a value", m.spelling))
					return 0, nil
				}
				if _, isOption := p.readings(rest[0]); isOption {
					wrong.add(fmt.Errorf("cannot use %s without a value: %q is an option; write %s for a value like that",
						m.spelling, rest[0], joined(m.spelling, rest[0])))
					return 0, nil
				}
				word, used = rest[0], 1
			}
			if o.kind == kindTwo {
				if m.hasWord || len(rest) < 2 || negativeNumber().MatchString(rest[1]) || strings.HasPrefix(rest[1], "--") {
					wrong.add(fmt.Errorf("cannot use %s without two numbers, as in %s 10 300", m.spelling, m.spelling))
					return used, nil
				}
				word += " " + rest[1]
				used++
			}
			for o.kind == kindPairs && used < len(rest) && pairWord().MatchString(rest[used]) {
				word += " " + rest[used]
				used++
			}
			return used, p.take(o, m.spelling, word, given, wrong)
		}
		short := !strings.HasPrefix(m.spelling, "--")
		if !m.hasWord {
			return 0, p.take(o, m.spelling, "", given, wrong)
		}
		next := match{spelling: "-"}
		if short && m.word != "" {
			next.spelling += m.word[:1]
			next.option = p.spelled(next.spelling)
			next.word, next.hasWord = m.word[1:], len(m.word) > 1
		}
		if next.option == nil {
			wrong.add(fmt.Errorf("cannot use %s with the value %q: it takes none", m.spelling, m.word))
			return 0, nil
		}
		if err := p.take(o, m.spelling, "", given, wrong); err != nil {
			return 0, err
		}
		m = next
	}
}

func joined(spelling, word string) string {
	if strings.HasPrefix(spelling, "--") {
		return spelling + "=" + word
	}
	return spelling + word
}

// take gives o the value word. The error is a *HelpError: the command line asks for a text, and nothing before was
// wrong.
func (p *parser) take(o *option, spelling, word string, given map[*option]value, wrong *problems) error {
	source := job.Source{Kind: job.FromFlag, Name: "--" + o.name}
	v, err := o.convert(word, source)
	if err != nil {
		wrong.add(fmt.Errorf("cannot use %s %s: %w", spelling, word, err))
		return nil
	}
	if o.kind == kindHelp || o.kind == kindPrint {
		if err := wrong.err(); err != nil {
			return err
		}
		if o.text != nil {
			return printed(o.text())
		}
		if o.kind == kindHelp {
			return printed(p.help())
		}
		return printed(p.print(word))
	}
	if before, again := given[o]; again && o.kind == kindPairs {
		v.text = before.text + " " + v.text
	}
	if before, again := given[o]; again && o.separator != "" {
		v.text = before.text + o.separator + v.text
	}
	given[o] = v
	return nil
}

// convert makes the value of a word and checks it against the choices.
func (o *option) convert(word string, source job.Source) (value, error) {
	v, err := value{option: o, text: word, source: source}, error(nil)
	switch o.kind {
	case kindInt:
		v.n, err = pyInt(word)
	case kindFloat:
		v.f, err = pyFloat(word)
	case kindList:
		v.list = commaList(word)
	case kindFlag:
		v.on = true
	case kindTwo:
		first, second, _ := strings.Cut(word, " ")
		if _, err = pyInt(first); err == nil {
			_, err = pyInt(second)
		}
	case kindText, kindPairs, kindHelp, kindPrint:
	case kindTime, kindOptional: // no launcher of Python has one
	}
	if err == nil && len(o.choices) > 0 && !slices.Contains(o.choices, word) {
		err = fmt.Errorf("choose one of %s", strings.Join(o.choices, ", "))
	}
	return v, err
}

// defaults gives every option its value of when it is not mentioned on the command line, from the environment where a
// variable stands for the option. Words from variables stay unread until settle, as a word on the command line makes
// them void; only flags are read at once, as torchrun reads them when it declares its options.
func (p *parser) defaults(env environ, wrong *problems) {
	for i := range p.options {
		o := &p.options[i]
		if o.word == nil { // nobody reads it by its name
			o.word = new(value)
		}
		v := value{option: o, none: o.noDefault, text: o.def}
		if word := p.lent(o, p.config); word != nil {
			v = value{option: o, text: word.text, source: word.source}
		}
		for _, prefix := range slices.Backward(p.prefixesOf(o)) {
			name := variable(prefix, o.name)
			text, ok := env[name]
			if !ok || (text == "" && prefix == ownPrefix) {
				continue
			}
			v = value{option: o, text: text, source: job.Source{Kind: job.FromVariable, Name: name}}
			if o.kind != kindFlag {
				continue
			}
			on, err := flagVariable(prefix, text)
			if err != nil {
				wrong.add(fmt.Errorf("cannot use %s=%s for --%s: %w", name, text, o.name, err))
			}
			v.on = on
		}
		if word := p.inFrontOf(o); word != nil {
			v = value{option: o, text: word.text, source: word.source}
		}
		*o.word = v
	}
}

// inFrontOf is the word that a flag of muster in front of prog has for one of prog's options, nil for none.
func (p *parser) inFrontOf(o *option) *value { return p.lent(o, p.front.words) }

// lent is the word of words for one of prog's options that is a flag of muster, too, nil for none.
func (p *parser) lent(o *option, words *ownWords) *value {
	if words == nil || !slices.Contains(p.prefixesOf(o), ownPrefix) {
		return nil
	}
	s := settingNamed(o.name)
	if s == nil || !s.lent || !s.of(words).given {
		return nil
	}
	return s.of(words)
}

// ofMuster is the word that counts for one of prog's options where muster's own flag or file of settings has said it, nil
// for none.
func (p *parser) ofMuster(o *option) *value {
	for _, words := range []*ownWords{p.front.words, p.config} {
		if word := p.lent(o, words); word != nil && word.source == o.word.source {
			return word
		}
	}
	return nil
}

// standsBehind tells p of muster's flags in front of prog, and of the file of settings that they name.
func (p *parser) standsBehind(inv Invocation, env environ) {
	p.front = inv.Own
	file := inv.Own.given().Config
	if !file.given {
		file.text = env[variable(ownPrefix, file.option.name)]
	}
	if file.text != "" {
		p.settingsFile(file.text, inv.ReadFile)
	}
}

// settingsFile reads the file of settings once: it may be a pipe.
func (p *parser) settingsFile(file string, readFile func(string) ([]byte, error)) (*ownWords, problems) {
	if p.config == nil {
		list := p.inFront()
		for i := range p.options {
			if s := settingNamed(p.options[i].name); s != nil && s.lent && slices.Contains(p.prefixesOf(&p.options[i]), ownPrefix) {
				list = append(list, s)
			}
		}
		p.config, p.misread = readConfig(file, list, readFile)
	}
	return p.config, p.misread
}

func (p *parser) prefixesOf(o *option) []string {
	switch {
	case o.foreign:
		return []string{petPrefix}
	case o.variables:
		return p.prefixes
	case o.ownVariable:
		return []string{ownPrefix}
	}
	return nil
}

// flagVariable reads the variable of a flag: torchrun takes whole numbers only, 0 being off; our own variables also
// take the usual words.
func flagVariable(prefix, text string) (bool, error) {
	if prefix == ownPrefix {
		return parseSwitch(text)
	}
	n, err := pyInt(text)
	if err != nil {
		return false, fmt.Errorf("%w: give 1 for on, 0 for off", err)
	}
	return n != 0, nil
}

// settle reads the words that are still unread and puts the command line's values over them. Unlike argparse it holds
// words from variables against the choices too.
func (p *parser) settle(given map[*option]value, env environ, wrong *problems) {
	for i := range p.options {
		o := &p.options[i]
		if v, ok := given[o]; ok {
			if p.inFrontOf(o) != nil {
				wrong.add(twice(o.name, p.prog))
			}
			*o.word = v
			continue
		}
		v := *o.word
		if v.none || o.kind == kindFlag || o.kind == kindHelp || o.kind == kindPrint {
			continue
		}
		if v.source.Kind == job.FromDefault && o.kind == kindList && v.text == "" {
			continue // an empty default list has no items, an empty word has one
		}
		read, err := o.convert(v.text, v.source)
		if err != nil {
			if v.source.Kind != job.FromVariable {
				wrong.add(fmt.Errorf("cannot use %s: %w", v.written(), err))
				continue
			}
			wrong.add(fmt.Errorf("cannot use %s=%s for --%s: %w", v.source.Name, env[v.source.Name], o.name, err))
			continue
		}
		*o.word = read
	}
}

// twice is the error for a flag that stands in front of a launcher's name and behind it.
func twice(flag, prog string) error {
	return fmt.Errorf("cannot use --%s in front of %s and behind it: give it once", flag, prog)
}

// spelled returns the option with exactly this spelling, or nil.
func (p *parser) spelled(spelling string) *option {
	for _, n := range p.names {
		if n.spelling == spelling {
			return n.option
		}
	}
	return nil
}

// readings returns the ways to read a word as an option, and false when it is no option at all. An option that does not
// exist has no readings; more than one makes the word ambiguous.
func (p *parser) readings(word string) ([]match, bool) {
	if word == "" || word[0] != '-' || word == "-" {
		return nil, false
	}
	if p.dashes && strings.HasPrefix(word, "--") {
		typed, rest, joined := strings.Cut(word, "=")
		if word = plain(typed); joined {
			word += "=" + rest
		}
	}
	if o := p.spelled(word); o != nil {
		return []match{{option: o, spelling: word}}, true
	}
	prefix, explicit, hasExplicit := strings.Cut(word, "=")
	if hasExplicit {
		if o := p.spelled(prefix); o != nil {
			return []match{{o, prefix, explicit, true}}, true
		}
	}
	if matches := p.abbreviated(word, prefix, explicit, hasExplicit); len(matches) > 0 {
		return matches, true
	}
	// A word that looks like a negative number, or that has a space in it, was meant to be a value.
	if negativeNumber().MatchString(word) || strings.Contains(word, " ") {
		return nil, false
	}
	return nil, true
}

func (p *parser) abbreviated(word, prefix, explicit string, hasExplicit bool) []match {
	var matches []match
	for _, n := range p.names {
		switch {
		case strings.HasPrefix(word, "--"):
			// The double spelling makes a name that is cut before its first dash ambiguous: --nproc could be
			// --nproc-per-node or --nproc_per_node.
			again := p.oneSpelling && slices.ContainsFunc(matches, func(m match) bool { return m.option == n.option })
			if !p.exact && strings.HasPrefix(n.spelling, prefix) && !again {
				matches = append(matches, match{n.option, n.spelling, explicit, hasExplicit})
			}
		case len(n.spelling) == 2 && strings.HasPrefix(word, n.spelling):
			matches = append(matches, match{n.option, n.spelling, word[2:], true})
		case strings.HasPrefix(n.spelling, word): // names such as horovodrun's -np
			matches = append(matches, match{n.option, n.spelling, "", false})
		}
	}
	return matches
}

func ambiguous(word string, matches []match) error {
	names := make([]string, len(matches))
	for i, m := range matches {
		names[i] = m.spelling
	}
	return fmt.Errorf("cannot tell what %s means: it could be %s; write the name out", word, strings.Join(names, ", "))
}

func (p *parser) unknown(word string) error {
	typed, _, _ := strings.Cut(word, "=")
	known := make([]string, len(p.names))
	for i, n := range p.names {
		known[i] = n.spelling
	}
	own := strings.TrimPrefix(plain(typed), "--")
	switch {
	case p.through != "" && optionNamed(p.beneath, own) != nil:
		return errhint.With(fmt.Errorf("unknown flag %s", typed), fmt.Sprintf("it is a flag of torchrun: give %s %s=…", p.through,
			strings.ReplaceAll(own, "-", "_")))
	case anywhere(own) != nil:
		return errhint.With(fmt.Errorf("unknown flag %s", typed),
			fmt.Sprintf("it is muster's own: put it in front of the launcher's name, as in muster --%s … %s …; where a link has that "+
				"name, set %s", own, p.prog, ownPrefix+strings.ToUpper(strings.ReplaceAll(own, "-", "_"))))
	}
	return unknownFlag(typed, known, "-h")
}
