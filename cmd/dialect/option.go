package dialect

import "strings"

// kind says what an option takes and what its value is.
type kind int

const (
	kindText     kind = iota // one word
	kindInt                  // one word, a whole number
	kindFloat                // one word, a number
	kindTime                 // one word, a length of time: a number with a unit, or of seconds
	kindList                 // one word, a comma-separated list
	kindTwo                  // two words, joined by a blank; with argparse whole numbers
	kindPairs                // one word, every further one that is a pair of numbers, and again: joined by blanks
	kindOptional             // a word that is joined to the option, or none, which is a yes
	kindFlag                 // no word: on when given
	kindHelp                 // no word: ends parsing with the help text, or the option's own
	kindPrint                // one word: ends parsing with the text the parser's print function makes of it
)

// takesWord reports whether a word of its own follows the option.
func (k kind) takesWord() bool { return k != kindFlag && k != kindHelp && k != kindOptional }

// option declares one option of a launcher that muster replaces, or one of muster's own settings: its names, what it
// takes, its help, and what muster does with it.
type option struct {
	// name is the option's name without its two dashes, written with dashes; in argparse a name of several words has a
	// second spelling with underscores. short is a one-letter name, or empty.
	name, short string
	// aliases are further names, as they are typed, with their dashes.
	aliases []string
	kind    kind
	// word is where the value is put: a field of the words of its dialect.
	word *value
	// field is the number of that field among ownWords.
	field int
	// separator lets the option be given again, and stands between its words then; otherwise the last one counts. With
	// several, lists in files and lines in variables are such words, too, and words of weaker sources count beside
	// stronger ones; see value.pieces.
	separator string
	// once says what helps where the option cannot be given again, empty where the last one counts.
	once string
	// def is the default as if it had been typed; noDefault makes it Python's None.
	def       string
	noDefault bool
	// hideDefault keeps def out of the help text, which says in words what the default is.
	hideDefault bool
	// choices are the accepted words, empty for any.
	choices []string
	// suggested are words that completion offers where others are accepted, too, or refused later.
	suggested []string
	// arg names the word in the help text; help says what the option does; since is the first release of the replaced
	// program that knew it, where that was not always; group is the help text's heading.
	arg, help, since, group string
	// text makes what kindHelp prints; nil: the help text.
	text func() string

	// variables makes environment variables stand for the option, see parser.prefixes.
	variables bool
	// ownVariable makes muster's own variable stand for the option, where the replaced program has none.
	ownVariable bool
	// own marks an option that is muster's own setting of that name, which reads its word. foreign marks one that is
	// not, so that muster's variable is not its.
	own, foreign bool
	// rare keeps the option out of what --dry-run shows unless it is given: it is one of many for one way to train.
	rare bool
	// moot says why nobody misses an effect of the option where it changes nothing in the job, empty where one would be
	// missed: then there is a warning.
	moot string

	// refused says why the option is not taken, hint what to do instead.
	refused, hint string
	// tuning says how one of horovodrun's becomes a variable of the workers, nil where it does not.
	tuning *tuning

	// set is how one of muster's own settings changes a request.
	set func(r *Request, text string) error
	// anywhere makes the setting count in every dialect, as a variable or in front of the dialect's name. The others
	// have a flag of their own in the replaced launchers.
	anywhere bool
	// lent makes it count so, too: where the dialect has a flag of its name it is that flag.
	lent bool
	// elsewhere is the setting's default under other launchers' names, empty where it is the same.
	elsewhere string
	// driven is its default where a driver starts the workers one by one, empty where it is the same.
	driven string
	// inside says what becomes of it in a muster run of a job file's pod, where it does not count here.
	inside string
	// dlrover says that it is a flag of dlrover-run's own command line, too; switchbox-check and what belongs to it only in
	// MetaX's guide.
	dlrover bool
	// frequent has the short help text show it, too.
	frequent bool
	// use says in which jobs something reads the setting.
	use use
	// insists says that giving the default asks for something, too.
	insists bool
}

// optionNamed is the option with a name, nil for none.
func optionNamed(options []option, name string) *option {
	for i := range options {
		if o := &options[i]; o.name == name {
			return o
		}
	}
	return nil
}

// dest is the name of the option's value, as in argparse.
func (o *option) dest() string { return strings.ReplaceAll(o.name, "-", "_") }

// spellings are the option's names as they are typed, in argparse's order.
func (o *option) spellings() []string {
	var names []string
	if o.short != "" {
		names = append(names, "-"+o.short)
	}
	names = append(names, "--"+o.name)
	if strings.Contains(o.name, "-") {
		names = append(names, "--"+o.dest())
	}
	for _, alias := range o.aliases {
		if names = append(names, alias); alias != plain(alias) {
			names = append(names, plain(alias))
		}
	}
	return names
}

// names are the option's names of more than a letter without their dashes.
func (o *option) names() []string {
	names := []string{o.name}
	for _, alias := range o.aliases {
		names = append(names, strings.TrimLeft(alias, "-"))
	}
	return names
}
