package discovery

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"time"

	"muster/internal/printable"
	"muster/internal/proc"
)

// Shell runs commands by /bin/sh in confinement: whatever a script does, it is gone at its time-out.
type Shell struct {
	// Env is the script's environment, "NAME=VALUE".
	Env []string
	// Stderr takes each line of what the script writes to its standard error; nil drops it.
	Stderr func(line string)
}

const (
	maxOutput = 4 << 20
	maxErrors = 64 << 10
	maxLine   = 1 << 10
)

// statusMark stands behind the status that the shell appends to the script's output. Another owner of this process's
// children may take the exit status itself, see proc.Confine.
const statusMark = "\n\x00muster-status "

// Run implements Runner.
func (s Shell) Run(ctx context.Context, command string) ([]byte, error) {
	deadline := defaultTimeout
	if end, ok := ctx.Deadline(); ok {
		deadline = time.Until(end)
	}
	done, err := proc.Confine(ctx, proc.Confinement{
		Path: "/bin/sh", Args: []string{"/bin/sh", "-c", `/bin/sh -c "$1"; printf '\n\000muster-status %d' $?`, "sh", command}, Env: s.Env,
		Deadline: deadline, Grace: time.Second, MaxStdout: maxOutput, MaxStderr: maxErrors,
	})
	if err != nil {
		return nil, fmt.Errorf("cannot execute /bin/sh: %w", err)
	}
	if s.Stderr != nil {
		for line := range strings.Lines(string(done.Stderr)) {
			s.Stderr(printable.Line(strings.TrimRight(line, "\r\n"), maxLine))
		}
	}
	switch {
	case done.TimedOut, done.Canceled:
		return nil, context.DeadlineExceeded
	case done.Flooded:
		return nil, fmt.Errorf("it printed more than %d bytes", maxOutput)
	}
	i := bytes.LastIndex(done.Stdout, []byte(statusMark))
	if i < 0 {
		return nil, fmt.Errorf("its shell %s", done.Exit)
	}
	if status := string(done.Stdout[i+len(statusMark):]); status != "0" {
		text := ""
		if last := lastLine(done.Stderr); last != "" {
			text = ": " + last
		}
		return nil, fmt.Errorf("it ended with status %s%s", status, text)
	}
	return done.Stdout[:i], nil
}

// lastLine returns the last line of a text that says something.
func lastLine(text []byte) string {
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return printable.Line(strings.TrimSpace(lines[len(lines)-1]), maxShown)
}
