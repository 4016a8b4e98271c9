package output

import (
	"errors"
	"io"
	"reflect"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"muster/internal/errhint"
)

// ownMessageWait is how long a message of our own waits for a console that nobody reads before it is dropped: an agent
// that hangs in its log no longer looks after its workers.
const ownMessageWait = 5 * time.Second

// console is one of our own output streams (standard output or error, or both where they are the same file), shared by
// every worker's stream that is shown on it. Whoever writes has the turn; a turn writes whole lines, so that lines of
// different workers never mix. What stands unfinished at the end of the output belongs to one pump; everybody else
// starts a new line first.
type console struct {
	name     string
	out      sink
	terminal bool
	// live says that what is shown comes to a terminal, which shows progress bars moving.
	live bool
	log  zerolog.Logger

	// turn holds a token while somebody writes. A channel rather than a mutex: those who wait can be called off, and
	// are served in the order they came.
	turn chan struct{}
	// openLine is the pump whose unfinished line ends the output, nil at the start of a line. It changes only during a
	// turn.
	openLine atomic.Pointer[pump]
	// lost is set when nobody can read the output any more; from then on it is dropped.
	lost atomic.Bool
	// stuck is set when a message of our own was dropped, until one gets through: the next need not wait as long.
	stuck atomic.Bool
	// failure (turn) is an error that is still to be logged, and noted that one which may pass was.
	failure error
	noted   bool
	// compose (turn) is where prefixed lines are put together.
	compose []byte
}

// foreign stands for an unfinished line that no pump will continue.
var foreign = &pump{}

func newConsole(name string, w io.Writer, log zerolog.Logger) *console {
	out, terminal := newSink(w)
	return &console{
		name: name, out: out, terminal: terminal, live: terminal, log: log.With().Str("stream", name).Logger(),
		turn: make(chan struct{}, 1),
	}
}

// newConsoles returns the consoles of our two output streams: the same one twice where both are one file, because two
// writers that know nothing of each other would tear each other's lines.
func newConsoles(stdout, stderr io.Writer, log zerolog.Logger) (out, err *console) {
	out = newConsole("stdout", stdout, log)
	if sameOutput(stdout, stderr) {
		return out, out
	}
	return out, newConsole("stderr", stderr, log)
}

func sameOutput(a, b io.Writer) bool {
	x, okA := fileDescriptor(a)
	y, okB := fileDescriptor(b)
	if okA && okB {
		var s, t unix.Stat_t
		return unix.Fstat(x, &s) == nil && unix.Fstat(y, &t) == nil && s.Dev == t.Dev && s.Ino == t.Ino
	}
	return !okA && !okB && reflect.TypeOf(a).Comparable() && a == b
}

// take waits for the turn; it returns false when done was closed first.
func (c *console) take(done <-chan struct{}) bool {
	select {
	case <-done:
		return false
	default:
	}
	select {
	case c.turn <- struct{}{}:
		return true
	case <-done:
		return false
	}
}

// release gives the turn back. Errors are logged only then, because the log may write to this console.
func (c *console) release() {
	err := c.failure
	c.failure = nil
	<-c.turn
	if err != nil {
		c.log.Warn().Err(err).Bool("given_up", c.lost.Load()).Msg("cannot show output")
	}
}

// write puts p out; the caller has the turn and says what stands at the end now: a pump, or nil for the start of a
// line. Errors end here: a console that nobody reads (| head) must not end a job. After one, the end is unknown.
func (c *console) write(p []byte, openLine *pump, done <-chan struct{}) {
	if c.lost.Load() {
		return
	}
	err := c.out.write(p, done)
	if err == nil {
		c.openLine.Store(openLine)
		return
	}
	c.openLine.Store(foreign)
	switch {
	case errors.Is(err, errCalledOff):
	case errhint.Full(err): // space may come back: what follows is tried again
		if !c.noted {
			c.noted, c.failure = true, err
		}
	default:
		c.lost.Store(true)
		c.failure = err
	}
}

// Write shows a message of our own on lines of its own. It always reports success: the callers are loggers, who have
// nowhere else to say it.
func (c *console) Write(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	wait := ownMessageWait
	if c.stuck.Load() {
		wait = promptWait
	}
	giveUp := make(chan struct{})
	timer := time.AfterFunc(wait, func() { close(giveUp) })
	defer timer.Stop()
	if !c.take(giveUp) {
		c.stuck.Store(true)
		return len(p), nil
	}
	message := p
	if c.openLine.Load() != nil {
		message = append([]byte{'\n'}, p...)
	}
	openLine := foreign
	if p[len(p)-1] == '\n' {
		openLine = nil
	}
	c.write(message, openLine, giveUp)
	c.stuck.Store(!timer.Stop())
	<-c.turn // not release: a logger that locks may be what called us
	return len(p), nil
}

// close gives back what newConsole opened; the stream itself stays open.
func (c *console) close() error { return c.out.close() }
