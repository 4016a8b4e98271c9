package hosts

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"muster/internal/printable"
)

// Conn is a running agent as a transport has started it.
type Conn interface {
	Stdin() io.WriteCloser
	Stdout() io.Reader
	// Stderr is the end of what it has written to standard error.
	Stderr() string
	// Wait waits for its end. An error says that the connection was lost.
	Wait() (status int, err error)
	// Close ends the connection: the agent ends with it.
	Close() error
}

// session is a launcher's end of the connection to one agent.
type session struct {
	name  string
	conn  Conn
	wire  frames
	hello Hello
	ready chan Ready
	fleet *Fleet
	index int // of its machine

	result  *Result
	ended   chan struct{} // closed when there are no more frames
	why     error         // why, where there is no result
	heard   atomic.Int64  // when a frame came
	pending atomic.Bool   // one is being dealt with: silence is ours
	silent  atomic.Bool   // nothing came for too long
	filed   atomic.Int64  // when a part of a log file came
	closing sync.Once

	questions pending[bool]
	asked     pending[Answer]
	tunnels   tunnels
}

// greet waits for an agent's first words.
func (f *Fleet) greet(ctx context.Context, n *fleetNode, conn Conn) (*session, error) {
	s := &session{
		name: n.Name, conn: conn, wire: frames{r: conn.Stdout(), most: maxAnswer, w: conn.Stdin(), takes: maxFrame},
		ready: make(chan Ready, 1), fleet: f, index: n.index,
		ended: make(chan struct{}),
	}
	s.tunnels.send = func(payload []byte) error { return s.wire.send(kindTunnel, payload) }
	s.heard.Store(time.Now().UnixNano())
	greeted := make(chan error, 1)
	go s.read(greeted)
	select {
	case err := <-greeted:
		if err != nil {
			s.close()
			return nil, err
		}
	case <-ctx.Done():
		s.close()
		return nil, context.Cause(ctx)
	case <-time.After(2 * Patience):
		s.close()
		return nil, fmt.Errorf("the agent that was started there has said nothing for %v", 2*Patience)
	}
	go s.keep()
	return s, nil
}

// read takes frames until there are no more.
func (s *session) read(greeted chan<- error) {
	err := s.receive(greeted)
	s.pending.Store(false)
	s.tunnels.close()
	s.fleet.Output.finish(s.name)
	s.fleet.Logs.close(s.name)
	if s.result == nil {
		s.why = s.explain(err)
	}
	select {
	case greeted <- s.why:
	default: // it was greeted long ago
	}
	close(s.ended)
}

// explain says why an agent is gone that has not said so.
func (s *session) explain(err error) error {
	if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		s.close()
	}
	status, lost := s.conn.Wait()
	said := strings.TrimSpace(s.conn.Stderr())
	if i := strings.LastIndexByte(said, '\n'); i >= 0 {
		said = said[i+1:]
	}
	switch {
	case s.silent.Load():
		err = fmt.Errorf("nothing came from it for %v", Patience)
	case errors.Is(err, errNoise):
	case lost != nil:
		err = fmt.Errorf("the connection was lost: %w", lost)
	default:
		err = fmt.Errorf("its agent has ended with status %d and without a word", status)
	}
	if said != "" {
		err = fmt.Errorf("%w; it said: %s", err, said)
	}
	return err
}

func (s *session) receive(greeted chan<- error) error {
	for {
		s.pending.Store(false)
		k, payload, err := s.wire.receive()
		if err != nil {
			return err
		}
		s.heard.Store(time.Now().UnixNano())
		s.pending.Store(true)
		if greeted != nil && k != kindHello {
			return errNoise
		}
		switch k {
		case kindHello:
			if greeted == nil {
				return errNoise
			}
			if err := decode(payload, &s.hello); err != nil {
				return err
			}
			greeted <- nil
			greeted = nil
		case kindReady:
			var r Ready
			if err := decode(payload, &r); err != nil {
				return err
			}
			if r.Preflight != nil {
				r.Preflight.Received = time.Now()
			}
			select {
			case s.ready <- r:
			default:
				return errNoise
			}
		case kindStdout, kindStderr, kindLog:
			s.fleet.Output.output(k, s.name, payload)
		case kindStatus:
			if s.fleet.Status != nil {
				s.fleet.Status(s.index, payload)
			}
		case kindEvent:
			if s.fleet.Events != nil {
				s.fleet.Events(s.name, payload)
			}
		case kindFile:
			var m fileMessage
			if err := decode(payload, &m); err != nil {
				return err
			}
			s.filed.Store(time.Now().UnixNano())
			s.fleet.Logs.begin(s.name, m)
		case kindData:
			s.filed.Store(time.Now().UnixNano())
			s.fleet.Logs.data(s.name, payload)
		case kindStarted, kindEnded:
			var e ProcessEvent
			if err := decode(payload, &e); err != nil {
				return err
			}
			if e.Ended = k == kindEnded; s.fleet.Process != nil {
				s.fleet.Process(s.index, e)
			}
		case kindOwner:
			var m ownerMessage
			if err := decode(payload, &m); err != nil {
				return err
			}
			s.questions.answer(m.ID, m.Ours)
		case kindAnswer:
			var a Answer
			if err := decode(payload, &a); err != nil {
				return err
			}
			s.asked.answer(a.ID, a)
		case kindResult:
			var r Result
			if err := decode(payload, &r); err != nil {
				return err
			}
			r.Report, r.Error, r.Hint = printable.Text(r.Report), printable.Text(r.Error), printable.Text(r.Hint)
			s.result = &r
			go s.wire.end(s.conn.Stdin()) // it has nothing more to hear; a link that is stuck holds nobody up
		case kindTunnel:
			if err := s.tunnels.take(payload); err != nil {
				return err
			}
		case kindBeat:
		default:
			return fmt.Errorf("%w (kind %d)", errNoise, k)
		}
	}
}

// keep says that the launcher lives, and takes the agent for lost that does not say so itself.
func (s *session) keep() {
	go s.beat()
	tick := time.NewTicker(BeatEvery)
	defer tick.Stop()
	for {
		select {
		case <-s.ended:
			return
		case <-tick.C:
			if time.Since(time.Unix(0, s.heard.Load())) > Patience && !s.pending.Load() {
				s.silent.Store(true)
				s.close()
				return
			}
		}
	}
}

// beat is apart from keep: a connection that takes nothing holds it.
func (s *session) beat() {
	tick := time.NewTicker(BeatEvery)
	defer tick.Stop()
	for {
		select {
		case <-s.ended:
			return
		case <-tick.C:
			if s.wire.send(kindBeat, nil) != nil {
				return // the reader finds out why
			}
		}
	}
}

// brings reports whether the agent's log files are on their way.
func (s *session) brings() bool { return time.Since(time.Unix(0, s.filed.Load())) < Patience }

// signal tells the agent of a signal.
func (s *session) signal(n syscall.Signal) error {
	return s.wire.sendJSON(kindSignal, signalMessage{int(n)})
}

// close ends the connection, and with it the agent.
func (s *session) close() {
	s.closing.Do(func() { _ = s.conn.Close() })
}
