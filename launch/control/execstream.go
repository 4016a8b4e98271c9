package control

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"muster/internal/errhint"
	"muster/internal/proc"
	"muster/launch/control/relay"
)

var wireOrder = binary.BigEndian

// decodeStrict reads JSON that has no field which is not known.
func decodeStrict(text []byte, to any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	return d.Decode(to)
}

// drainTime is how long it is waited for more output of a command that has ended, mostAfter how much of it is taken: what
// it has left behind may write for ever.
const (
	drainTime = 300 * time.Millisecond
	mostAfter = 1 << 20
)

// passable are the signals that somebody may have a command get.
var passable = map[syscall.Signal]bool{
	syscall.SIGHUP: true, syscall.SIGINT: true, syscall.SIGQUIT: true, syscall.SIGTERM: true, syscall.SIGUSR1: true,
	syscall.SIGUSR2: true, syscall.SIGCONT: true, syscall.SIGKILL: true,
}

// ends are our ends of the standard streams of a command. With a terminal in and out are one file, and there is no err
// where errors are shown on the terminal, too.
type ends struct {
	in, out, err *os.File
	terminal     *proc.Terminal // nil: none
}

// openEnds opens the standard streams of a command: theirs are for it. settle is to be called when the command was
// started, or with the error why it could not be.
func openEnds(wanted *Terminal) (ours ends, theirs [3]*os.File, settle func(error), err error) {
	if wanted == nil {
		pipes, err := proc.NewPipes(proc.In, proc.Out, proc.Out)
		if err != nil {
			return ends{}, theirs, nil, err
		}
		return ends{in: pipes.Ours[0], out: pipes.Ours[1], err: pipes.Ours[2]}, [3]*os.File(pipes.Theirs), pipes.Settle, nil
	}
	t, err := proc.OpenTerminal(wanted.TerminalSize)
	if err != nil {
		return ends{}, theirs, nil, err
	}
	ours, theirs, settle = ends{in: t.Ours, out: t.Ours, terminal: t}, [3]*os.File{t.Theirs, t.Theirs, t.Theirs}, t.Settle
	if wanted.ErrorsApart {
		pipes, err := proc.NewPipes(proc.Out)
		if err != nil {
			t.Settle(err)
			return ends{}, theirs, nil, err
		}
		ours.err, theirs[2] = pipes.Ours[0], pipes.Theirs[0]
		settle = func(err error) {
			t.Settle(err)
			pipes.Settle(err)
		}
	}
	return ours, theirs, settle, nil
}

// told are the streams by which a command tells something, with the kind of their frames.
func (e *ends) told() map[relay.Kind]*os.File {
	told := map[relay.Kind]*os.File{relay.Stdout: e.out}
	if e.err != nil {
		told[relay.Stderr] = e.err
	}
	return told
}

// heard has a command get what a frame of its caller says. An error ends the command.
func (e *ends) heard(k relay.Kind, payload []byte, in *input, p Command) error {
	switch {
	case k == relay.Stdin:
		return in.add(payload)
	case k == relay.StdinEnd && e.terminal != nil:
		return io.EOF // the terminal of who has asked is gone, and so is that of the command
	case k == relay.StdinEnd:
		in.end()
	case k == relay.Signal && len(payload) == 1 && passable[syscall.Signal(payload[0])]:
		_ = p.SignalGroup(syscall.Signal(payload[0])) // it may have ended
	case k == relay.Resize && len(payload) == 4 && e.terminal != nil:
		return e.terminal.Resize(proc.TerminalSize{Rows: wireOrder.Uint16(payload), Cols: wireOrder.Uint16(payload[2:])})
	}
	return nil
}

// runCommand runs a command whose standard streams are those of a stream. It ends with the stream.
func runCommand(ctx context.Context, st *relay.Stream, wanted *Terminal, start func(files [3]*os.File) (Command, error)) streamEnd {
	ours, theirs, settle, err := openEnds(wanted)
	if err != nil {
		return endOf(err, 0)
	}
	p, err := start(theirs)
	settle(err)
	if err != nil {
		return endOf(err, 0)
	}
	defer func() {
		_ = ours.in.Close()
		for _, f := range ours.told() {
			_ = f.Close()
		}
	}()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var hearing, telling sync.WaitGroup
	in := newInput(ours.in, st)
	defer func() {
		st.Hush()
		in.end()
		_ = ours.in.SetWriteDeadline(time.Now()) // what the command has left behind may not read it
		hearing.Wait()
	}()
	hearing.Go(func() {
		in.pump()
		if ours.terminal == nil { // else there may be more to be shown
			_ = ours.in.Close()
		}
	})
	hearing.Go(func() {
		defer in.end()
		for {
			k, payload, err := st.Receive()
			if err == nil {
				err = ours.heard(k, payload, in, p)
			}
			if err != nil {
				cancel() // who has asked is gone
				return
			}
		}
	})
	for k, f := range ours.told() {
		telling.Go(func() {
			if pumpOutput(f, st.Writer(k), p.Done()) != nil {
				cancel()
			}
		})
	}
	select {
	case <-p.Done():
	case <-ctx.Done():
	}
	err = p.End(execGrace)
	for _, f := range ours.told() {
		_ = f.SetReadDeadline(time.Now().Add(drainTime))
	}
	telling.Wait()
	return endOf(errhint.Code(err, errhint.Internal), p.Exit().Status())
}

// pumpOutput passes on what a command writes until it and all that has its output are gone, or for drainTime after its
// end.
func pumpOutput(from *os.File, to io.Writer, done <-chan struct{}) error {
	buf := make([]byte, 32<<10)
	after, idle := 0, false
	for {
		n, err := from.Read(buf)
		if n > 0 {
			idle = false
			if _, err := to.Write(buf[:n]); err != nil {
				return err
			}
		}
		select {
		case <-done:
			after += n
		default:
		}
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded) && !idle && after < mostAfter: // what was there already is read
			idle = true
			_ = from.SetReadDeadline(time.Now().Add(drainTime))
		case err != nil || after >= mostAfter:
			return nil //nolint:nilerr // there is no more of it
		}
	}
}

// input is standard input on its way to a command: no more of it waits than relay.Window.
type input struct {
	to *os.File
	st *relay.Stream

	mu    sync.Mutex
	more  *sync.Cond
	queue [][]byte
	bytes int
	ended bool
}

func newInput(to *os.File, st *relay.Stream) *input {
	in := &input{to: to, st: st}
	in.more = sync.NewCond(&in.mu)
	return in
}

// add takes a part, and refuses what was not to be sent yet.
func (in *input) add(part []byte) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.bytes += len(part); in.bytes > relay.Window {
		return relay.ErrFrame
	}
	if !in.ended {
		in.queue = append(in.queue, part)
		in.more.Signal()
	}
	return nil
}

// end says that there is no more.
func (in *input) end() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.ended = true
	in.more.Signal()
}

// pump writes what was taken until there is no more.
func (in *input) pump() {
	for {
		in.mu.Lock()
		for len(in.queue) == 0 && !in.ended {
			in.more.Wait()
		}
		if len(in.queue) == 0 {
			in.mu.Unlock()
			return
		}
		part := in.queue[0]
		in.queue = in.queue[1:]
		in.mu.Unlock()
		if _, err := in.to.Write(part); err != nil { // the command does not read it
			in.end()
		}
		in.mu.Lock()
		in.bytes -= len(part)
		in.mu.Unlock()
		_ = in.st.Send(relay.Taken, wireOrder.AppendUint32(nil, uint32(len(part)))) // who receives finds out why
	}
}

// mostNoted is how many bytes of a command line are told that somebody becomes.
const mostNoted = 1 << 10

// Entered returns how a rank that runs on this machine is entered by who becomes the command.
func (c *Client) Entered(ctx context.Context, w ExecWanted) (r Rank, err error) {
	w.Here = true
	size := 0
	for i, word := range w.Command {
		if size += len(word) + 1; size > mostNoted {
			w.Command = append(slices.Clone(w.Command[:i]), "...")
			break
		}
	}
	return r, c.ask(ctx, http.MethodPost, pathExec, w, &r)
}

// Console is what a command on another node has for its standard streams.
type Console struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// Signals are those that this process gets: they are passed on.
	Signals <-chan os.Signal
	// Size is how much the terminal shows now, asked for with each SIGWINCH. Nil where the command has none.
	Size func() (proc.TerminalSize, error)
}

// Exec runs a command in the place of a rank on another node. It returns the exit status of the command.
func (c *Client) Exec(ctx context.Context, node string, w ExecWanted, with Console) (int, error) {
	st, err := c.open(ctx, pathExec, w)
	if err != nil {
		return 0, err
	}
	defer func() { _ = st.Close() }()
	defer context.AfterFunc(ctx, func() { _ = st.Close() })()
	st.Live()
	done := make(chan struct{})
	defer close(done)
	go with.passSignals(st, done)
	room := newCredit(relay.Window)
	defer room.end()
	go sendInput(st, with.Stdin, room) // ends with the program: nothing wakes who reads a terminal
	end, err := hear(st, with.Stdout, with.Stderr, room.give)
	switch {
	case ctx.Err() != nil:
		return 0, context.Cause(ctx)
	case err != nil:
		return 0, broken(node, []int{w.Rank}, err)
	case end.Error != "":
		return 0, end.err()
	}
	return end.Exit, nil
}

// passSignals passes signals on until done is closed.
func (c *Console) passSignals(st *relay.Stream, done <-chan struct{}) {
	for {
		select {
		case got := <-c.Signals:
			sig, is := got.(syscall.Signal)
			switch {
			case is && passable[sig]:
				_ = st.Send(relay.Signal, []byte{byte(sig)}) // who receives finds out why
			case sig == syscall.SIGWINCH && c.Size != nil:
				if size, err := c.Size(); err == nil {
					_ = st.Send(relay.Resize, wireOrder.AppendUint16(wireOrder.AppendUint16(nil, size.Rows), size.Cols))
				}
			}
		case <-done:
			return
		}
	}
}

// credit is how many bytes may be sent.
type credit struct {
	mu   sync.Mutex
	more *sync.Cond
	n    int
	over bool
}

func newCredit(n int) *credit {
	c := &credit{n: n}
	c.more = sync.NewCond(&c.mu)
	return c
}

func (c *credit) give(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n += n
	c.more.Broadcast()
}

func (c *credit) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	c.more.Broadcast()
}

// await waits for credit of n bytes, and reports whether there is some.
func (c *credit) await(n int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.n < n && !c.over {
		c.more.Wait()
	}
	return !c.over
}

// sendInput sends standard input, no more than the command takes.
func sendInput(st *relay.Stream, stdin io.Reader, room *credit) {
	buf := make([]byte, 16<<10)
	for room.await(len(buf)) {
		n, err := stdin.Read(buf)
		if n > 0 {
			room.give(-n)
			if st.Send(relay.Stdin, buf[:n]) != nil {
				return
			}
		}
		if err != nil {
			_ = st.Send(relay.StdinEnd, nil) // who receives finds out why
			return
		}
	}
}

// EnterEnv is the environment of a command in a rank's place: the rank's, with another attempt where one is given, and
// with the type of the terminal that the command has.
func EnterEnv(env []string, attempt *int, terminal string) []string {
	if attempt != nil {
		env = withVariable(env, "TORCHELASTIC_RESTART_COUNT", strconv.Itoa(*attempt))
	}
	if terminal != "" {
		env = withVariable(env, "TERM", terminal)
	}
	return env
}

func withVariable(env []string, name, value string) []string {
	others := slices.DeleteFunc(slices.Clone(env), func(kv string) bool { return strings.HasPrefix(kv, name+"=") })
	return append(others, name+"="+value)
}
