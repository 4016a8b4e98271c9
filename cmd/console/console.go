// Package console is where muster's own words go: its log, errors, and the reports of how jobs have ended. People have them
// as text, with colors and a line of status on a terminal, and programs as lines of JSON; the logs of a job's nodes become
// one. It decides nothing of a job.
package console

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/go-multierror"
	"github.com/rs/zerolog"
	"golang.org/x/term"

	"muster/internal/errhint"
	"muster/internal/logtext"
	"muster/launch/hosts"
)

// Console is one program's standard error. Its fields are set before it is used; PrintError, Flush and EndWaiting are not
// for several goroutines, its logs are.
type Console struct {
	Stdout, Stderr *os.File
	Getenv         func(name string) string
	Format         string // one of logtext.Formats, as --log-format says; empty: nobody has said
	ErrorsJSON     bool   // errors are printed as JSON, too
	Node           string // what the launcher calls this node, empty without one

	log    logWriter         // where our own log goes
	merged *logtext.Merger   // of the nodes' logs; nil: there are none
	texts  []*logtext.Writer // our log as text
}

// PrintError writes err and its hint to standard error, every single failure on a line of its own, and as JSON where
// the log is.
func (c *Console) PrintError(err error) {
	if err == nil {
		return
	}
	if c.ErrorsJSON {
		// An error about the output is told by the status alone.
		_ = json.NewEncoder(c.Stderr).Encode(map[string]any{"error": err.Error(), "hint": errhint.Of(err), "status": errhint.CodeOf(err)})
		return
	}
	failures := []error{err}
	if many, ok := errors.AsType[*multierror.Error](err); ok {
		failures = many.Errors
	}
	for _, f := range failures {
		if c.LogsJSON() {
			c.Report(c.errorLine(f, errhint.CodeOf(err)))
			continue
		}
		tell(c.Stderr, "muster: error: %s\n", strings.TrimSpace(f.Error()))
		if hint := errhint.Of(f); hint != "" {
			tell(c.Stderr, "muster: hint: %s\n", hint)
		}
	}
}

// errorLine is an error as a line of the log.
func (c *Console) errorLine(err error, status int) string {
	var line bytes.Buffer
	log := zerolog.New(&line).With().Timestamp().Logger()
	if c.Node != "" {
		log = log.With().Str(logtext.NodeKey, c.Node).Logger()
	}
	if hint := errhint.Of(err); hint != "" {
		log = log.With().Str("hint", hint).Logger()
	}
	log.Error().Int("status", status).Msg(strings.TrimSpace(err.Error()))
	return line.String()
}

// Report writes why a job has ended: text for people, or a line of the log.
func (c *Console) Report(report string) {
	switch {
	case report == "" || !c.simulated():
	case c.LogsJSON():
		report = hosts.LogMark + report
	default:
		report = hosts.ReportMark + strconv.Quote(report) + "\n"
	}
	tell(c.Stderr, "%s", report)
}

// LogsJSON reports whether our own log is JSON for whoever reads it.
func (c *Console) LogsJSON() bool {
	return cmp.Or(c.Format, c.Getenv(FormatVariable)) == logtext.JSON
}

// FormatVariable says what --log-format says.
const FormatVariable = "MUSTER_LOG_FORMAT"

// CheckFormat refuses a format that a command without --log-format would not know.
func (c *Console) CheckFormat() error {
	format := c.Getenv(FormatVariable)
	if format != "" && !slices.Contains(logtext.Formats(), format) {
		return errhint.Usagef("cannot use %s=%s: choose one of %s", FormatVariable, format, strings.Join(logtext.Formats(), ", "))
	}
	return nil
}

// Logger writes our own log to standard error, in the format of --log-format.
func (c *Console) Logger(level zerolog.Level) zerolog.Logger {
	return zerolog.New(c.HostsLog()).Level(level).With().Timestamp().Logger()
}

// HostsLog takes lines of JSON and writes them to standard error as Logger says.
func (c *Console) HostsLog() io.Writer {
	c.log.to(c.Stderr)
	if c.simulated() {
		return marked{&c.log}
	}
	if text := c.logText(); text != nil {
		return &logtext.Repeats{Out: text, Live: text.Status != nil}
	}
	return &logtext.Repeats{Out: &c.log}
}

// Progress shows the steps of a long work where our log goes.
func (c *Console) Progress(log zerolog.Logger, step string) *logtext.Progress {
	return logtext.NewProgress(c.log.show, log, step)
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
func (c *Console) logText() *logtext.Writer {
	kind := c.Getenv("TERM")
	terminal := term.IsTerminal(int(c.Stderr.Fd())) && kind != "" && kind != "dumb"
	if c.LogsJSON() {
		return nil
	}
	if terminal {
		c.log.terminal = c.Stderr
	}
	text := &logtext.Writer{Out: &c.log, Color: terminal && c.Getenv("NO_COLOR") == ""}
	if terminal {
		text.Status = c.log.show
	}
	c.texts = append(c.texts, text)
	return text
}

// NodesLog takes the lines of the logs of a job's nodes, and shows them as Logger says: as text, what several say at
// once is shown once. Flush shows what is left of them.
func (c *Console) NodesLog(nodes int) io.Writer {
	text := c.logText()
	if text == nil {
		return c.HostsLog()
	}
	c.log.to(c.Stderr)
	c.merged = logtext.NewMerger(text, nodes)
	return &logtext.Repeats{Out: c.merged, Live: text.Status != nil}
}

// Flush shows what is left of the logs.
func (c *Console) Flush() {
	if c.merged != nil {
		c.merged.Flush()
	}
	c.EndWaiting()
}

// EndWaiting takes the line away that says on a terminal what is waited for.
func (c *Console) EndWaiting() {
	for _, text := range c.texts {
		text.EndStatus()
	}
}

// Colors reports whether what is printed may have colors.
func (c *Console) Colors() bool {
	kind := c.Getenv("TERM")
	return kind != "" && kind != "dumb" && c.Getenv("NO_COLOR") == "" && term.IsTerminal(int(c.Stdout.Fd())) &&
		term.IsTerminal(int(c.Stderr.Fd()))
}

// Show replaces the terminal's line of status, "" for none. It reports whether there is a terminal to show it on.
func (c *Console) Show(status string) bool { return c.log.show(status) }

// LogTo sends our own log to out, or back to standard error for nil.
func (c *Console) LogTo(out io.Writer) {
	if out == nil {
		out = c.Stderr
	}
	c.log.to(out)
	c.EndWaiting()
}

// Tables takes texts of several lines for people, and never tears a line of status.
func (c *Console) Tables() io.Writer { return &c.log }

// simulated reports whether this is one of the nodes of a simulation, whose lines are marked for whoever simulates.
func (c *Console) simulated() bool { return c.Getenv(hosts.SimulatedVariable) != "" }

// tell writes to one of our own streams. When it is gone nobody can be told.
func tell(w io.Writer, format string, args ...any) { _, _ = fmt.Fprintf(w, format, args...) }
