package main

import (
	"bytes"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"muster/internal/logtext"
	"muster/netcheck"
)

// openTerminal returns a pseudo-terminal of 40 columns: what is written to one end, as a program does, can be read from
// the other.
func openTerminal(t *testing.T) (program, screen *os.File) {
	t.Helper()
	screen, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { screen.Close() })
	fd := int(screen.Fd())
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		err = unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 20, Col: 40})
	}
	if err != nil {
		t.Fatal(err)
	}
	if program, err = os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { program.Close() })
	return program, screen
}

// TestProgressOnATerminal: one line changes below the log, is never longer than the terminal is wide, and goes in the
// end.
func TestProgressOnATerminal(t *testing.T) {
	t.Parallel()
	program, screen := openTerminal(t)
	a := &app{stderr: program, environ: []string{"NO_COLOR=1", "TERM=linux"}}
	log := a.logger(zerolog.InfoLevel)
	p := a.newProgress(log, "check of the nodes")
	p.check(netcheck.Step{Doing: netcheck.TestsItself, Limit: 240 * time.Second})
	p.process(3, "matrix\x1b[2J product")
	log.Warn().Msg("hello")
	p.check(netcheck.Step{Doing: netcheck.TestsPair, Peer: 2, Pairs: 1, Limit: time.Minute})
	p.end()
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

// TestProgressInALog: without a terminal a step that takes long is a line of the log, and again, ever more rarely.
func TestProgressInALog(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	a := &app{stderr: w, logFormat: logtext.JSON}
	p := a.newProgress(a.logger(zerolog.InfoLevel), "check of the nodes")
	p.stop()
	p.check(netcheck.Step{Doing: netcheck.Waits})
	p.check(netcheck.Step{Doing: netcheck.TestsPair, Peer: 2, Pairs: 1, Limit: time.Minute})
	p.process(0, "not told by itself")
	for range 24 { // of five seconds each
		p.told = p.told.Add(-5 * time.Second)
		p.tell()
	}
	p.out.show("")
	w.Close()
	got, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"testing the link to the node with group rank 2, round 1 of pairs", `"timeout_ms":60000`} {
		if !strings.Contains(string(got), want) {
			t.Errorf("%q is missing in %s", want, got)
		}
	}
	if n := strings.Count(string(got), "\n"); n != 4 || strings.ContainsAny(string(got), "\r\x1b") {
		t.Errorf("%d lines: %q", n, got)
	}
}
