package console

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-multierror"
	"github.com/rs/zerolog"

	"muster/internal/errhint"
	"muster/internal/logtext"
	"muster/internal/testutil"
)

// onTerminal is the console of a program on a terminal without colors.
func onTerminal(program *os.File) *Console {
	environ := map[string]string{"NO_COLOR": "1", "TERM": "linux"}
	return &Console{Stdout: program, Stderr: program, Getenv: func(name string) string { return environ[name] }}
}

// TestErrors: several failures have a line each and their hints, and programs have them as JSON.
func TestErrors(t *testing.T) {
	t.Parallel()
	both := multierror.Append(errhint.With(errhint.Usagef("one\n"), "try this"), errors.New("two"))
	for want, c := range map[string]*Console{
		"muster: error: one\nmuster: hint: try this\nmuster: error: two\n": {},
		`{"level":"error","agent":"n1","hint":"try this","status":2,"message":"one"}` + "\n" +
			`{"level":"error","agent":"n1","status":2,"message":"two"}` + "\n": {Format: logtext.JSON, Node: "n1"},
	} {
		out, err := os.Create(filepath.Join(t.TempDir(), "out"))
		if err != nil {
			t.Fatal(err)
		}
		c.Stdout, c.Stderr, c.Getenv = out, out, func(string) string { return "" }
		c.PrintError(nil)
		c.PrintError(errhint.Code(both, errhint.Usage))
		text, err := os.ReadFile(out.Name())
		got := regexp.MustCompile(`"time":"[^"]*",`).ReplaceAllString(string(text), "")
		if err != nil || got != want {
			t.Errorf("%q, want %q", got, want)
		}
		_ = out.Close()
	}
}

// TestProgressOnATerminal: one line changes below the log, is never longer than the terminal is wide, and goes in the
// end.
func TestProgressOnATerminal(t *testing.T) {
	t.Parallel()
	program, screen := testutil.OpenTerminal(t)
	c := onTerminal(program)
	log := c.Logger(zerolog.InfoLevel)
	p := c.Progress(log, "check of the nodes")
	p.Next("check of the nodes: testing this node", 240*time.Second)
	p.Detail("matrix\x1b[2J product")
	log.Warn().Msg("hello")
	p.Next("check of the nodes: testing the link to the node with group rank 2", time.Minute)
	p.End()
	log.Info().Msg("that was it")
	var shown bytes.Buffer
	buf := make([]byte, 4096)
	for !strings.Contains(shown.String(), "that was it\r\n") {
		n, err := screen.Read(buf)
		if err != nil {
			t.Fatalf("%v after %q", err, shown.String())
		}
		shown.Write(buf[:n])
	}
	const erase = "\r\x1b[K"
	var lines, states []string
	for part := range strings.SplitSeq(shown.String(), erase) {
		state, rest, logged := strings.Cut(part, "\r\n")
		if !logged {
			states = append(states, state)
		} else if lines = append(lines, state); rest != "" {
			t.Errorf("%q follows a line of the log", rest)
		}
	}
	for _, s := range states {
		if len(s) > 39 || strings.ContainsRune(s, '\x1b') {
			t.Errorf("status %q", s)
		}
	}
	if len(lines) != 2 || !strings.Contains(lines[0], "hello") || !strings.Contains(lines[1], "that was it") {
		t.Errorf("log lines %q of %q", lines, shown.String())
	}
	for _, want := range []string{
		"check of the nodes", "check of the nodes: testing this node, ",
		"check of the nodes: testing the link to",
	} {
		if !slices.ContainsFunc(states, func(s string) bool { return strings.HasPrefix(s, want) }) {
			t.Errorf("%q is not among the states %q", want, states)
		}
	}
}

// TestWaitingOnATerminal: what is waited for stands in one line that changes, with how long it has been; no line of it
// stays, and no other line is torn.
func TestWaitingOnATerminal(t *testing.T) {
	t.Parallel()
	program, screen := testutil.OpenTerminal(t)
	shown, read := testutil.ReadScreen(screen)
	c := onTerminal(program)
	log := c.Logger(zerolog.InfoLevel)
	wait := func(seconds int) {
		log.Warn().Str("nodes", "1 of 2 are there").Dur("dur_ms", time.Duration(seconds)*time.Second).Msg("waiting for nodes")
	}
	wait(5)
	wait(10)
	log.Warn().Msg("hello")
	wait(15)
	c.LogTo(nil) // workers begin
	if _, err := program.WriteString("step 1\n"); err != nil {
		t.Fatal(err)
	}
	log.Info().Dur("dur_ms", time.Second).Msg("waiting for nodes") // beside workers, whose output would come behind it
	wait(5)
	c.Flush()
	c.PrintError(errors.New("the end"))
	_ = program.Close()
	<-read
	lines, states := testutil.ScreenLines(shown.String())
	for i, line := range lines {
		lines[i] = strings.TrimSpace(regexp.MustCompile(`^\d\d:\d\d:\d\d `).ReplaceAllString(line, ""))
	}
	if want := []string{"warn  hello", "step 1", "info  waiting for nodes: for 1 s", "muster: error: the end"}; !slices.Equal(lines, want) {
		t.Errorf("lines that stay: %q, want %q", lines, want)
	}
	var want []string
	for _, s := range []string{"5 s", "10 s", "15 s", "5 s"} {
		want = append(want, ("waiting for nodes, " + s + ": 1 of 2 are there")[:39])
	}
	if !slices.Equal(states, want) {
		t.Errorf("states %q, want %q", states, want)
	}
}
