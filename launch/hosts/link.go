package hosts

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"muster/internal/sockowner"
)

// Times of the connection between launcher and agent. Whoever hears nothing for Patience takes the other for lost.
const (
	BeatEvery = time.Second
	Patience  = 10 * time.Second
)

// errLauncherLost is the cause of an agent's end whose launcher has gone: its connection ended, or it was silent.
var errLauncherLost = errors.New("the launcher is gone")

// Link is an agent's end of the connection to its launcher. Open one, say Hello, and read Order; then Go, Signals and
// Processes deliver what comes, until Lost is closed.
type Link struct {
	wire      frames
	orders    chan Order
	goes      chan struct{}
	goOnce    sync.Once
	signals   chan syscall.Signal
	processes chan any
	asks      chan Ask
	owner     sockowner.Asker
	tunnels   tunnels
	lost      chan struct{}
	why       error // why lost was closed
	heard     atomic.Int64
	done      chan struct{} // closed by Close: no more beats
}

// openLink begins to talk to a launcher through r and w. It reads from r until that ends.
func openLink(r io.Reader, w io.Writer) *Link {
	l := &Link{
		wire: frames{r: r, most: maxFrame, w: w, takes: maxAnswer}, orders: make(chan Order, 1), goes: make(chan struct{}),
		signals:   make(chan syscall.Signal, 16),
		processes: make(chan any, 1024), asks: make(chan Ask, 16), lost: make(chan struct{}), done: make(chan struct{}),
	}
	l.tunnels.send = func(payload []byte) error { return l.wire.send(kindTunnel, payload) }
	l.heard.Store(time.Now().UnixNano())
	ended := make(chan error, 1)
	go func() {
		defer l.owner.Close()
		defer l.tunnels.close()
		ended <- l.read()
	}()
	go l.watch(ended)
	go l.beat()
	return l
}

// read takes frames until there are no more.
func (l *Link) read() error {
	for {
		k, payload, err := l.wire.receive()
		if err != nil {
			return err
		}
		l.heard.Store(time.Now().UnixNano())
		switch k {
		case kindOrder:
			var o Order
			if err := decode(payload, &o); err != nil {
				return err
			}
			select {
			case l.orders <- o:
			default:
				return errors.New("there is a second order")
			}
		case kindGo:
			l.goOnce.Do(func() { close(l.goes) })
		case kindSignal:
			var m signalMessage
			if err := decode(payload, &m); err != nil {
				return err
			}
			select {
			case l.signals <- syscall.Signal(m.Signal):
			default: // so many are more than anybody tells apart
			}
		case kindStart:
			var m StartProcess
			if err := decode(payload, &m); err != nil {
				return err
			}
			l.processes <- m
		case kindStop:
			var m StopProcess
			if err := decode(payload, &m); err != nil {
				return err
			}
			l.processes <- m
		case kindRank:
			var m RankProcess
			if err := decode(payload, &m); err != nil {
				return err
			}
			l.processes <- m
		case kindTunnel:
			if err := l.tunnels.take(payload); err != nil {
				return err
			}
		case kindAsk:
			var m Ask
			if err := decode(payload, &m); err != nil {
				return err
			}
			select {
			case l.asks <- m:
			default: // the launcher tells that nobody answers
			}
		case kindWhose:
			var m whoseMessage
			if err := decode(payload, &m); err != nil {
				return err
			}
			ours, _, _ := l.owner.Ours(m.From, m.To) // where the kernel cannot tell, everybody's connections are served, as on the launcher
			if err := l.wire.sendJSON(kindOwner, ownerMessage{m.ID, ours}); err != nil {
				return err
			}
		case kindBeat:
		default:
			return fmt.Errorf("a message of the unknown kind %d: is the launcher of another version?", k)
		}
	}
}

// watch closes lost when there are no more frames, or none for too long.
func (l *Link) watch(ended <-chan error) {
	tick := time.NewTicker(BeatEvery)
	defer tick.Stop()
	for {
		select {
		case err := <-ended:
			l.why = fmt.Errorf("%w: its connection has ended", errLauncherLost)
			if !errors.Is(err, io.EOF) {
				l.why = fmt.Errorf("%w: %w", errLauncherLost, err)
			}
			close(l.lost)
			return
		case <-tick.C:
			// A machine that was suspended, or a process that was stopped, has ticked late: who has not looked has not
			// listened.
			if silent := time.Since(time.Unix(0, l.heard.Load())); silent > Patience {
				l.why = fmt.Errorf("%w: nothing came from it for %v", errLauncherLost, silent.Round(time.Second))
				close(l.lost)
				return
			}
		}
	}
}

func (l *Link) beat() {
	tick := time.NewTicker(BeatEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if l.wire.send(kindBeat, nil) != nil {
				return // the reader finds out why
			}
		case <-l.lost:
			return
		case <-l.done:
			return
		}
	}
}

// Lost is closed when the launcher is gone; Why says how that was noticed.
func (l *Link) Lost() <-chan struct{} { return l.lost }

// Why is the reason, an errLauncherLost, once Lost is closed.
func (l *Link) Why() error { return l.why }

// Order waits for what is to be done.
func (l *Link) Order(ctx context.Context) (Order, error) {
	select {
	case o := <-l.orders:
		return o, nil
	case <-l.lost:
		return Order{}, l.why
	case <-ctx.Done():
		return Order{}, context.Cause(ctx)
	}
}

// Go waits until workers may be started.
func (l *Link) Go(ctx context.Context) error {
	select {
	case <-l.goes:
		return nil
	case <-l.lost:
		return l.why
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Signals are those that the launcher has received.
func (l *Link) Signals() <-chan syscall.Signal { return l.signals }

// Asks deliver what somebody has asked the launcher for.
func (l *Link) Asks() <-chan Ask { return l.asks }

// Accept says who takes connections that the launcher begins; nil: nobody.
func (l *Link) Accept(take func(net.Conn)) {
	l.tunnels.mu.Lock()
	defer l.tunnels.mu.Unlock()
	l.tunnels.accept = take
}

// Answer answers one of them.
func (l *Link) Answer(a Answer) error { return l.wire.sendJSON(kindAnswer, a) }

// Processes are a StartProcess, a StopProcess or a RankProcess each.
func (l *Link) Processes() <-chan any { return l.processes }

// Process tells what became of one.
func (l *Link) Process(e ProcessEvent) error {
	if e.Ended {
		return l.wire.sendJSON(kindEnded, e)
	}
	return l.wire.sendJSON(kindStarted, e)
}

// Hello says who this agent is.
func (l *Link) Hello(h Hello) error { return l.wire.sendJSON(kindHello, h) }

// Ready says that workers could be started.
func (l *Link) Ready(r Ready) error { return l.wire.sendJSON(kindReady, r) }

// Status sends how the node stands, as a status file has it.
func (l *Link) Status(data []byte) error { return l.wire.send(kindStatus, data) }

// Event sends an event of the node, a line of JSON.
func (l *Link) Event(line []byte) error { return l.wire.send(kindEvent, line) }

// Result says how it ended. Of longer texts than a launcher takes it sends the beginning.
func (l *Link) Result(r Result) error {
	for _, text := range []*string{&r.Report, &r.Error, &r.Hint} {
		if len(*text) > maxText {
			*text = (*text)[:maxText] + "..."
		}
	}
	return l.wire.sendJSON(kindResult, r)
}

// Stdout is a writer to the launcher's standard output.
func (l *Link) Stdout() io.Writer { return stream{l, kindStdout} }

// Stderr is a writer to the launcher's standard error.
func (l *Link) Stderr() io.Writer { return stream{l, kindStderr} }

// Log is a writer to the launcher's log, of whole lines of JSON.
func (l *Link) Log() io.Writer { return stream{l, kindLog} }

// stream is one of the outputs of an agent.
type stream struct {
	link *Link
	kind kind
}

func (s stream) Write(p []byte) (int, error) {
	for begin := 0; begin < len(p); begin += maxOutput {
		if err := s.link.wire.send(s.kind, p[begin:min(begin+maxOutput, len(p))]); err != nil {
			return begin, err
		}
	}
	return len(p), nil
}

// File sends a file of the logs. path counts from their directory.
func (l *Link) File(path string, size int64, r io.Reader) error {
	if err := l.wire.sendJSON(kindFile, fileMessage{path, size}); err != nil {
		return err
	}
	buf := make([]byte, maxOutput)
	for {
		n, err := io.ReadFull(r, buf)
		if n > 0 {
			if err := l.wire.send(kindData, buf[:n]); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return l.wire.send(kindData, nil)
		}
		if err != nil {
			return errors.Join(err, l.wire.send(kindData, nil))
		}
	}
}

// Close says no more. It closes neither of the streams.
func (l *Link) Close() { close(l.done) }
