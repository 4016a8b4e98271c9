package python

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
)

// Command is a command line of the interpreter, taken apart as Python 3 does it.
type Command struct {
	// Options is what stands in front of what is run.
	Options []string
	// Script, Module or Code is what is run; one of them is given.
	Script, Module, Code string
	// Args is what the program finds behind its own name in sys.argv.
	Args []string
}

// Isolation returns the option that keeps Python from reading PYTHONPATH or importing site, "" for none.
func (c Command) Isolation() string {
	for _, word := range c.Options {
		if !strings.HasPrefix(word, "-") || strings.HasPrefix(word, "--") {
			continue // the value of one
		}
		letters := word[1:]
		if at := strings.IndexAny(letters, withValue); at >= 0 {
			letters = letters[:at]
		}
		if at := strings.IndexAny(letters, "EIS"); at >= 0 {
			return letters[at : at+1]
		}
	}
	return ""
}

// The short options with a value, and those that end the interpreter at once.
const (
	withValue = "WX"
	telling   = "hV?"
)

// ErrNoCode is the error of a command that ends with -c.
var ErrNoCode = errors.New("-c has no value")

// ParseCommand reads the arguments of an interpreter, without its own name. Errors say why such a command runs no
// program of its own: it reads one from standard input, or only tells something. The program that it names all the same
// is returned beside the error.
func ParseCommand(args []string) (c Command, err error) {
	for i := 0; i < len(args); i++ {
		word := args[i]
		rest := args[i+1:]
		switch {
		case word == "--":
			c.Options = append(c.Options, word)
			if len(rest) == 0 {
				return c, cmp.Or(err, errors.New("it names no program"))
			}
			c.Script, c.Args = rest[0], rest[1:]
			return c, err
		case word == "-":
			return c, cmp.Or(err, errStandardInput)
		case strings.HasPrefix(word, "--"):
			name, _, joined := strings.Cut(word, "=")
			if name != "--check-hash-based-pycs" {
				err = cmp.Or(err, fmt.Errorf("%s runs no program", word))
				continue
			}
			c.Options = append(c.Options, word)
			if !joined && len(rest) > 0 {
				c.Options = append(c.Options, rest[0])
				i++
			}
			continue
		case !strings.HasPrefix(word, "-"):
			c.Script, c.Args = word, rest
			return c, err
		}
		done, took, shortErr := c.short(word, rest)
		if err = cmp.Or(err, shortErr); done {
			return c, err
		}
		i += took
	}
	return c, cmp.Or(err, errStandardInput)
}

var errStandardInput = errors.New("it reads its program from standard input")

// short reads a word of short options and returns whether nothing behind it is an option of Python's, and how many words
// behind it were values.
func (c *Command) short(word string, rest []string) (done bool, took int, err error) {
	for j, letter := range word[1:] {
		value := word[1+j+1:]
		switch {
		case letter == 'c' || letter == 'm':
			if j > 0 {
				c.Options = append(c.Options, word[:1+j])
			}
			if value == "" {
				switch {
				case len(rest) == 0 && letter == 'c':
					return true, 0, ErrNoCode
				case len(rest) == 0:
					return true, 0, fmt.Errorf("-%c has no value", letter)
				}
				value, rest = rest[0], rest[1:]
			}
			if letter == 'c' {
				c.Code = value
			} else {
				c.Module = value
			}
			c.Args = rest
			return true, 0, err
		case strings.ContainsRune(withValue, letter):
			c.Options = append(c.Options, word)
			if value == "" && len(rest) > 0 {
				c.Options = append(c.Options, rest[0])
				return false, 1, err
			}
			return false, 0, err
		case strings.ContainsRune(telling, letter):
			err = cmp.Or(err, fmt.Errorf("-%c runs no program", letter))
		}
	}
	c.Options = append(c.Options, word)
	return false, 0, err
}
