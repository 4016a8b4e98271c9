package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	"github.com/hashicorp/go-multierror"
	"github.com/rs/zerolog"
	"golang.org/x/term"

	"muster/cmd/dialect"
	"muster/internal/errhint"
)

// app is this run of the program: everything that a command may reach of the outside.
type app struct {
	argv                  []string
	environ               []string
	stdin, stdout, stderr *os.File
	version               string
	own                   dialect.Own // muster's own flags in front of a dialect's name
	json                  bool        // errors are printed as JSON too
	log                   logWriter   // where our own log goes
	nodeName              string      // what the launcher calls this node, empty without one
	token                 []byte      // the job's, from the launcher
}

// statusError ends the program with a status about which everything has been said already.
type statusError int

func (e statusError) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// run executes the command line and returns the exit status.
func (a *app) run() int {
	err := a.execute()
	if status, ok := errors.AsType[statusError](err); ok {
		return int(status)
	}
	if help, ok := errors.AsType[*dialect.HelpError](err); ok {
		say(a.stdout, "%s", help.Text)
		return errhint.OK
	}
	a.printError(err)
	return errhint.CodeOf(err)
}

func (a *app) execute() error {
	args := a.argv[1:]
	if name := filepath.Base(a.argv[0]); dialect.Named(name) {
		args = append([]string{name}, args...) // called through a link with a launcher's name
	}
	own, rest, err := dialect.ParseOwn(args)
	if err != nil {
		return err
	}
	switch given := args[:len(args)-len(rest)]; {
	case len(given) > 0 && len(rest) == 0:
		return errhint.With(errhint.Usagef("%s stands in front of nothing", strings.Join(given, " ")), "name a launcher behind it, such as run or torchrun")
	case len(given) > 0 && !dialect.Named(rest[0]):
		return errhint.Usagef("%s stands in front of %q, which is no launcher", strings.Join(given, " "), rest[0])
	}
	a.own = own
	root := newRootCmd(a)
	root.SetArgs(rest)
	return root.ExecuteContext(context.Background())
}

// say writes to one of our own streams. When it is gone nobody can be told.
func say(w io.Writer, format string, args ...any) { _, _ = fmt.Fprintf(w, format, args...) }

// printError writes err and its hint to standard error, every single failure on a line of its own.
func (a *app) printError(err error) {
	if err == nil {
		return
	}
	if a.json {
		// An error about the output is told by the status alone.
		_ = json.NewEncoder(a.stderr).Encode(map[string]any{"error": err.Error(), "hint": errhint.Of(err), "status": errhint.CodeOf(err)})
		return
	}
	failures := []error{err}
	if many, ok := errors.AsType[*multierror.Error](err); ok {
		failures = many.Errors
	}
	for _, f := range failures {
		say(a.stderr, "muster: error: %s\n", strings.TrimSpace(f.Error()))
		if hint := errhint.Of(f); hint != "" {
			say(a.stderr, "muster: hint: %s\n", hint)
		}
	}
}

// lookupEnv returns a variable of the environment the program was started in.
func (a *app) lookupEnv(name string) (string, bool) {
	for _, kv := range a.environ {
		if value, ok := strings.CutPrefix(kv, name+"="); ok {
			return value, true
		}
	}
	return "", false
}

func (a *app) getenv(name string) string {
	value, _ := a.lookupEnv(name)
	return value
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

// logger writes our own log to standard error: lines for people on a terminal, JSON elsewhere.
func (a *app) logger(level zerolog.Level) zerolog.Logger {
	return zerolog.New(a.logOutput()).Level(level).With().Timestamp().Logger()
}

// logOutput takes lines of JSON and writes them to standard error as logger says.
func (a *app) logOutput() io.Writer {
	a.log.to(a.stderr)
	var out io.Writer = &a.log
	if term.IsTerminal(int(a.stderr.Fd())) {
		if kind := a.getenv("TERM"); kind != "" && kind != "dumb" {
			a.log.terminal = a.stderr
		}
		out = zerolog.ConsoleWriter{Out: out, TimeFormat: time.TimeOnly, NoColor: a.getenv("NO_COLOR") != ""}
	}
	return out
}

// colors reports whether what is printed may have colors.
func (a *app) colors() bool {
	kind := a.getenv("TERM")
	return kind != "" && kind != "dumb" && a.getenv("NO_COLOR") == "" && term.IsTerminal(int(a.stdout.Fd())) && term.IsTerminal(int(a.stderr.Fd()))
}

// buildVersion is the linker's version, else what the Go tool recorded of the checkout.
func buildVersion(linked string) string {
	if linked != "" {
		return linked
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" && len(s.Value) >= 12 {
				return "devel-" + s.Value[:12]
			}
		}
	}
	return "devel"
}
