// Package relay is what the musters of one job say to each other about single ranks: streams of frames, as logs and
// commands in a rank's place need them, and the connections between agents that these go over. It knows no job.
//
// A broken observer never harms the job: frames are bounded, what has not been taken waits in no memory of ours, and
// who is silent is left.
package relay

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Kind says what a frame of a stream holds. The numbers are the wire's.
type Kind byte

// The kinds.
const (
	// From who runs the rank.
	Stdout Kind = 1 // bytes of standard output
	Stderr Kind = 2
	End    Kind = 3 // JSON: how it has ended; the last frame
	Taken  Kind = 4 // four bytes: so many bytes of standard input were taken

	// From who has asked.
	Stdin    Kind = 16
	StdinEnd Kind = 17
	Signal   Kind = 18 // one byte: the number of a signal for the command
	Resize   Kind = 19 // four bytes: how many rows and columns its terminal has now

	// Both ways.
	Beat Kind = 32 // nothing: whoever sends it lives
)

// The bounds of a stream.
const (
	// MostFrame is how many bytes a frame has at the most.
	MostFrame = 64<<10 + 256
	// Window is how many bytes of standard input may be on their way that the command has not taken.
	Window = 256 << 10
	// BeatEvery is how often each end says that it lives, Patience how long the other waits for a word.
	BeatEvery = 3 * time.Second
	Patience  = 15 * time.Second
)

const headerBytes = 5

// ErrSilent is why a stream ends whose other end says nothing.
var ErrSilent = fmt.Errorf("nothing came for %v", Patience)

// ErrFrame is why one ends whose other end sends what is no frame.
var ErrFrame = errors.New("what came is no frame of muster's")

// errHushed is why nothing is received any more after Hush.
var errHushed = errors.New("nobody listens any more")

// Stream is one end of a connection that carries frames. One goroutine receives, any may send.
type Stream struct {
	conn   net.Conn
	r      io.Reader
	hushed atomic.Bool
	closed chan struct{}
	once   sync.Once
	beats  sync.WaitGroup

	mu sync.Mutex // a frame is written whole
}

// NewStream returns an end of a connection, what is read of it comes from r.
func NewStream(conn net.Conn, r io.Reader) *Stream {
	return &Stream{conn: conn, r: r, closed: make(chan struct{})}
}

// Send writes bytes in as few frames as they fit into. It waits for as long as the other end lives and takes nothing.
func (s *Stream) Send(k Kind, payload []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		n := min(len(payload), MostFrame)
		frame := make([]byte, headerBytes, headerBytes+n)
		frame[0] = byte(k)
		binary.BigEndian.PutUint32(frame[1:], uint32(n))
		if _, err := s.conn.Write(append(frame, payload[:n]...)); err != nil {
			return err
		}
		if payload = payload[n:]; len(payload) == 0 {
			return nil
		}
	}
}

// Receive reads one frame, and waits no longer than Patience for it.
func (s *Stream) Receive() (Kind, []byte, error) {
	if err := s.conn.SetReadDeadline(time.Now().Add(Patience)); err != nil {
		return 0, nil, err
	}
	if s.hushed.Load() {
		return 0, nil, errHushed
	}
	var header [headerBytes]byte
	if _, err := io.ReadFull(s.r, header[:]); err != nil {
		return 0, nil, explain(err)
	}
	size := binary.BigEndian.Uint32(header[1:])
	if size > MostFrame {
		return 0, nil, fmt.Errorf("%w: it begins with %q", ErrFrame, header[:])
	}
	payload := make([]byte, size)
	if _, err := io.ReadFull(s.r, payload); err != nil {
		return 0, nil, explain(err)
	}
	return Kind(header[0]), payload, nil
}

// explain tells a silence from an end.
func explain(err error) error {
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		return ErrSilent
	}
	return err
}

// Hush ends the waiting of who receives, and lets none begin. What is sent is still taken.
func (s *Stream) Hush() {
	s.hushed.Store(true)
	_ = s.conn.SetReadDeadline(time.Now())
}

// Live begins to say again and again that this end lives, until Close. It is called once.
func (s *Stream) Live() {
	s.beats.Go(func() {
		tick := time.NewTicker(BeatEvery)
		defer tick.Stop()
		for {
			select {
			case <-s.closed:
				return
			case <-tick.C:
				if s.Send(Beat, nil) != nil {
					return // who receives finds out why
				}
			}
		}
	})
}

// Writer is a writer of frames of one kind.
func (s *Stream) Writer(k Kind) io.Writer { return writer{s, k} }

type writer struct {
	s *Stream
	k Kind
}

func (w writer) Write(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if err := w.s.Send(w.k, p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Close ends the connection.
func (s *Stream) Close() error {
	s.once.Do(func() { close(s.closed) })
	err := s.conn.Close()
	s.beats.Wait()
	return err
}
