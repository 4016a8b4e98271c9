package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"muster/cmd/console"
	"muster/cmd/dialect"
	"muster/cmd/here"
	"muster/internal/errhint"
)

// app is this run of the program: everything that a command may reach of the outside.
type app struct {
	argv                  []string
	stdin, stdout, stderr *os.File
	here                  *here.Here // the same streams, the environment, and this machine
	version               string
	own                   dialect.Own      // muster's own flags in front of a dialect's name
	console               *console.Console // where our own words go
}

// newApp is the app of a process with these streams and this environment.
func newApp(environ []string, stdin, stdout, stderr *os.File) *app {
	h := &here.Here{Environ: environ, Stdin: stdin, Stdout: stdout, Stderr: stderr}
	h.Console = &console.Console{Stdout: stdout, Stderr: stderr, Getenv: h.Getenv}
	return &app{stdin: stdin, stdout: stdout, stderr: stderr, here: h, console: h.Console}
}

// run executes the command line and returns the exit status.
func (a *app) run() int {
	err := a.execute()
	a.console.Flush()
	if status, ok := errors.AsType[errhint.StatusError](err); ok {
		return int(status)
	}
	if help, ok := errors.AsType[*dialect.HelpError](err); ok {
		say(a.stdout, "%s", help.Text)
		return errhint.OK
	}
	a.console.PrintError(err)
	return errhint.CodeOf(err)
}

func (a *app) execute() error {
	args := a.argv[1:]
	if name := filepath.Base(a.argv[0]); namesLauncher(name) {
		args = append([]string{name}, args...) // called through a link with a launcher's name
	}
	own, rest, err := dialect.ParseOwn(args)
	a.console.Format, a.console.ErrorsJSON = own.LogFormat(), own.JSON()
	if err != nil {
		return err
	}
	given := strings.Join(args[:len(args)-len(rest)], " ")
	switch {
	case given != "" && len(rest) == 0:
		return errhint.With(errhint.Usagef("%s stands in front of nothing", given), "name a launcher behind it, such as run or torchrun")
	case given != "" && rest[0] != timerLaunch && !dialect.Named(rest[0]):
		return errhint.Usagef("%s stands in front of %q, which is no launcher", given, rest[0])
	}
	if len(rest) > 0 && rest[0] == timerLaunch {
		if rest, err = a.timerLaunch(given, rest[1:]); err != nil {
			return err
		}
	}
	a.own = own
	root := rootCmdFor(a, rest)
	root.SetArgs(completing(root, rest))
	return root.ExecuteContext(context.Background())
}

// say writes to one of our own streams. When it is gone nobody can be told.
func say(w io.Writer, format string, args ...any) { _, _ = fmt.Fprintf(w, format, args...) }

// writeJSON writes v for programs, and so that people can read it: commands hold < and & as they are.
func writeJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// show writes d to standard output, for programs or for people.
func (a *app) show(d interface{ Write(w io.Writer) error }, asJSON bool) error {
	if asJSON {
		return writeJSON(a.stdout, d)
	}
	return d.Write(a.stdout)
}

// maxRead bounds what is read of a file that a command line names: all who read such files refuse less than that.
const maxRead = 16 << 20

// readFile reads a file named on the command line.
func (a *app) readFile(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return io.ReadAll(io.LimitReader(f, maxRead))
}
