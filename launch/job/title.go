package job

import (
	"path"
	"slices"
	"strings"
)

// valueOptions are the letters of Python's options that take a word, and valueWords its long options that do.
const valueOptions = "cmWX"

var valueWords = []string{"--check-hash-based-pycs"}

// TitleOf is what reports call a command line, without what may be secret in code: the script of "python train.py",
// "-m pkg.train" of a module, "python -c" of code, else the program.
func TitleOf(argv []string) string {
	program := argv[0]
	if !strings.HasPrefix(path.Base(program), "python") {
		return program
	}
	for i := 1; i < len(argv); i++ {
		word := argv[i]
		next := ""
		if i+1 < len(argv) {
			next = argv[i+1]
		}
		switch {
		case word == "--":
			if next != "" {
				return next
			}
			return program
		case word == "-":
			return program // which reads code from its standard input
		case slices.Contains(valueWords, word):
			i++
			continue
		case strings.HasPrefix(word, "--"):
			continue
		case !strings.HasPrefix(word, "-"):
			return word
		}
		// Letters may stand together, as in -Bum: the first that takes a word has what is behind it, or the next word.
		at := strings.IndexAny(word, valueOptions)
		if at < 0 {
			continue
		}
		value := word[at+1:]
		if value == "" {
			value, i = next, i+1
		}
		switch {
		case word[at] == 'c':
			return program + " -c"
		case word[at] == 'm' && value != "":
			return "-m " + value
		}
	}
	return program
}

// ShownTitle is what reports call the command, without values of those of the variables that come from Secrets.
func (c *Command) ShownTitle(vars []Var) string {
	title := c.Title
	if title == "" {
		if title = c.Name; c.Kind == Program {
			title = TitleOf(append([]string{c.Name}, c.Args...))
		}
	}
	return ShownArgsBut([]string{title}, vars)[0]
}
