package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/hashicorp/go-multierror"
	"github.com/rs/zerolog"
	"golang.org/x/term"

	"muster/cmd/dialect"
	"muster/internal/errhint"
	"muster/internal/logtext"
	"muster/launch/hosts"
)

// app is this run of the program: everything that a command may reach of the outside.
type app struct {
	argv                  []string
	environ               []string
	stdin, stdout, stderr *os.File
	version               string
	own                   dialect.Own       // muster's own flags in front of a dialect's name
	json                  bool              // errors are printed as JSON too
	log                   logWriter         // where our own log goes
	logFormat             string            // one of logtext.Formats; empty: nobody has said
	merged                *logtext.Merger   // of the nodes' logs; nil: there are none
	shown                 []*logtext.Writer // our log as text
	nodeName              string            // what the launcher calls this node, empty without one
	token                 []byte            // the job's, from the launcher
	logsGo                string            // where the launcher takes log files, empty: they stay
}

// run executes the command line and returns the exit status.
func (a *app) run() int {
	err := a.execute()
	a.Flush()
	if status, ok := errors.AsType[errhint.StatusError](err); ok {
		return int(status)
	}
	if help, ok := errors.AsType[*dialect.HelpError](err); ok {
		say(a.stdout, "%s", help.Text)
		return errhint.OK
	}
	a.PrintError(err)
	return errhint.CodeOf(err)
}

func (a *app) execute() error {
	args := a.argv[1:]
	if name := filepath.Base(a.argv[0]); dialect.Named(name) {
		args = append([]string{name}, args...) // called through a link with a launcher's name
	}
	own, rest, err := dialect.ParseOwn(args)
	a.logFormat = own.LogFormat()
	if err != nil {
		return err
	}
	switch given := args[:len(args)-len(rest)]; {
	case len(given) > 0 && len(rest) == 0:
		return errhint.With(errhint.Usagef("%s stands in front of nothing", strings.Join(given, " ")),
			"name a launcher behind it, such as run or torchrun")
	case len(given) > 0 && !dialect.Named(rest[0]):
		return errhint.Usagef("%s stands in front of %q, which is no launcher", strings.Join(given, " "), rest[0])
	}
	a.own = own
	root := newRootCmd(a)
	root.SetArgs(completing(root, rest))
	return root.ExecuteContext(context.Background())
}

// say writes to one of our own streams. When it is gone nobody can be told.
func say(w io.Writer, format string, args ...any) { _, _ = fmt.Fprintf(w, format, args...) }

// hostname is this node's name, where it is only shown.
func hostname() string {
	host, err := os.Hostname()
	if err != nil {
		return "localhost"
	}
	return host
}

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

// PrintError writes err and its hint to standard error, every single failure on a line of its own, and as JSON where
// the log is.
func (a *app) PrintError(err error) {
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
		if a.logsJSON() {
			a.printReport(a.errorLine(f, errhint.CodeOf(err)))
			continue
		}
		say(a.stderr, "muster: error: %s\n", strings.TrimSpace(f.Error()))
		if hint := errhint.Of(f); hint != "" {
			say(a.stderr, "muster: hint: %s\n", hint)
		}
	}
}

// errorLine is an error as a line of the log.
func (a *app) errorLine(err error, status int) string {
	var line bytes.Buffer
	log := zerolog.New(&line).With().Timestamp().Logger()
	if a.nodeName != "" {
		log = log.With().Str(logtext.NodeKey, a.nodeName).Logger()
	}
	if hint := errhint.Of(err); hint != "" {
		log = log.With().Str("hint", hint).Logger()
	}
	log.Error().Int("status", status).Msg(strings.TrimSpace(err.Error()))
	return line.String()
}

// printReport writes why a job has ended: text for people, or a line of the log.
func (a *app) printReport(report string) {
	if a.simulated() && a.logsJSON() && report != "" {
		report = hosts.LogMark + report
	}
	say(a.stderr, "%s", report)
}

// logsJSON reports whether our own log is JSON for whoever reads it.
func (a *app) logsJSON() bool {
	return cmp.Or(a.logFormat, a.getenv(logFormatVariable)) == logtext.JSON
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

// logFormatVariable says what --log-format says.
const logFormatVariable = "MUSTER_LOG_FORMAT"

// checkLogFormat refuses a format that a command without --log-format would not know.
func (a *app) checkLogFormat() error {
	format := a.getenv(logFormatVariable)
	if format != "" && !slices.Contains(logtext.Formats(), format) {
		return errhint.Usagef("cannot use %s=%s: choose one of %s", logFormatVariable, format, strings.Join(logtext.Formats(), ", "))
	}
	return nil
}

// logger writes our own log to standard error, in the format of --log-format.
func (a *app) logger(level zerolog.Level) zerolog.Logger {
	return zerolog.New(a.logOutput()).Level(level).With().Timestamp().Logger()
}

// logOutput takes lines of JSON and writes them to standard error as logger says.
func (a *app) logOutput() io.Writer {
	a.log.to(a.stderr)
	if a.simulated() {
		return marked{&a.log}
	}
	if text := a.logText(); text != nil {
		return &logtext.Repeats{Out: text, Live: text.Status != nil}
	}
	return &logtext.Repeats{Out: &a.log}
}

// progress shows the steps of a long work where our log goes.
func (a *app) progress(log zerolog.Logger, step string) *logtext.Progress {
	return logtext.NewProgress(a.log.show, log, step)
}

// marked puts hosts.LogMark in front of each line.
type marked struct{ to io.Writer }

func (m marked) Write(line []byte) (int, error) {
	if _, err := m.to.Write(append([]byte(hosts.LogMark), line...)); err != nil {
		return 0, err
	}
	return len(line), nil
}

// logText shows our log as text; nil where it is to be JSON.
func (a *app) logText() *logtext.Writer {
	kind := a.getenv("TERM")
	terminal := term.IsTerminal(int(a.stderr.Fd())) && kind != "" && kind != "dumb"
	if a.logsJSON() {
		return nil
	}
	if terminal {
		a.log.terminal = a.stderr
	}
	text := &logtext.Writer{Out: &a.log, Color: terminal && a.getenv("NO_COLOR") == ""}
	if terminal {
		text.Status = a.log.show
	}
	a.shown = append(a.shown, text)
	return text
}

// NodesLog takes the lines of the logs of a job's nodes, and shows them as logger says: as text, what several say at
// once is shown once. Flush shows what is left of them.
func (a *app) NodesLog(nodes int) io.Writer {
	text := a.logText()
	if text == nil {
		return a.logOutput()
	}
	a.log.to(a.stderr)
	a.merged = logtext.NewMerger(text, nodes)
	return &logtext.Repeats{Out: a.merged, Live: text.Status != nil}
}

// Flush implements hosts.Console.
func (a *app) Flush() {
	if a.merged != nil {
		a.merged.Flush()
	}
	a.EndWaiting()
}

// EndWaiting takes the line away that says on a terminal what is waited for.
func (a *app) EndWaiting() {
	for _, text := range a.shown {
		text.EndStatus()
	}
}

// colors reports whether what is printed may have colors.
func (a *app) colors() bool {
	kind := a.getenv("TERM")
	return kind != "" && kind != "dumb" && a.getenv("NO_COLOR") == "" && term.IsTerminal(int(a.stdout.Fd())) &&
		term.IsTerminal(int(a.stderr.Fd()))
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
