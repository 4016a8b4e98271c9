package job

import (
	"errors"
	"path"
	"strings"

	"muster/internal/python"
)

// TitleOf is what reports call a command line, without what may be secret in code: the script of "python train.py",
// "-m pkg.train" of a module, "python -c" of code, else the program.
func TitleOf(argv []string) string {
	program := argv[0]
	if !strings.HasPrefix(path.Base(program), "python") {
		return program
	}
	c, err := python.ParseCommand(argv[1:])
	switch {
	case c.Script != "":
		return c.Script
	case c.Module != "":
		return "-m " + c.Module
	case c.Code != "", err == nil, errors.Is(err, python.ErrNoCode):
		return program + " -c"
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
