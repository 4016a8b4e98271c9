package rankmonitor

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"muster/internal/pickle"
	"muster/internal/unixsocket"
	"muster/launch/job"
)

const (
	// maxMessage is the longest message in bytes. One with a hundred sections has some thousand.
	maxMessage = 64 << 10
	// maxConns is how many clients of one worker are listened to at once.
	maxConns = 16
	// answerTime is how long a client may take to take an answer.
	answerTime = 10 * time.Second
	// unreadTime is enough for reading what lies in a socket.
	unreadTime = 100 * time.Millisecond
	// stoppedFor is by how much a look comes too late from which on it is we who were stopped, and not the worker alone.
	stoppedFor = 5 * time.Second
)

// Overdue is that a worker takes too long.
type Overdue struct {
	LocalRank, Rank int
	// What says with what, such as "has sent no heartbeat", Since when that lasts, and Limit how long it may by the Key
	// of NVRx's configuration.
	What, Key string
	Since     time.Time
	Limit     time.Duration
	// Again says that it was told before.
	Again bool
}

// Server listens to the workers of a node.
type Server struct {
	rules *job.RankMonitor
	log   zerolog.Logger
	tell  func(context.Context, Overdue)
	ctx   context.Context
	stop  context.CancelFunc
	ranks []*rank
	wg    sync.WaitGroup
}

// rank is a worker's place.
type rank struct {
	local    int
	listener *net.UnixListener
	room     chan struct{}

	mu     sync.Mutex
	limits limits
}

// Open listens for the n workers of a node, each at the path for its local rank, and has tell called when one takes too
// long, and again after the rules' Every while it does. tell may take its time; of one worker it is called once at a
// time. Close ends it.
func Open(path func(localRank int) string, n int, rules *job.RankMonitor, log zerolog.Logger,
	tell func(context.Context, Overdue),
) (*Server, error) {
	s := &Server{rules: rules, log: log, tell: tell}
	s.ctx, s.stop = context.WithCancel(context.Background())
	for i := range n {
		l, err := unixsocket.Listen(path(i))
		if err != nil {
			s.Close()
			return nil, fmt.Errorf("cannot listen to the RankMonitorClient of local rank %d: %w", i, err)
		}
		r := &rank{local: i, listener: l, room: make(chan struct{}, maxConns), limits: newLimits(rules)}
		s.ranks = append(s.ranks, r)
		s.wg.Go(func() { s.accept(r) })
	}
	return s, nil
}

// Close ends all connections and waits for who is told just now.
func (s *Server) Close() {
	s.stop()
	for _, r := range s.ranks {
		_ = r.listener.Close()
	}
	s.wg.Wait()
}

func (s *Server) accept(r *rank) {
	for {
		conn, err := r.listener.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			s.log.Warn().Err(err).Int("local_rank", r.local).Msg("a RankMonitorClient could not connect")
			time.Sleep(100 * time.Millisecond) // such as for want of descriptors
			continue
		}
		select {
		case r.room <- struct{}{}:
			s.wg.Go(func() {
				defer func() { <-r.room }()
				s.serve(r, conn)
			})
		default:
			s.log.Warn().Int("local_rank", r.local).Msg("a worker has too many connections of RankMonitorClient; one is refused")
			_ = conn.Close()
		}
	}
}

// serve listens to one client until it closes the connection, or says what cannot be understood.
func (s *Server) serve(r *rank, conn *net.UnixConn) {
	defer context.AfterFunc(s.ctx, func() { _ = conn.Close() })()
	defer func() { _ = conn.Close() }()
	c := &client{server: s, rank: r, conn: conn, in: bufio.NewReaderSize(conn, 4+maxMessage)}
	if err := c.listen(); s.ctx.Err() == nil && !errors.Is(err, io.EOF) {
		s.log.Warn().Err(err).Int("local_rank", r.local).
			Msg("a RankMonitorClient is not listened to any more: the time-outs of ft_launcher do not count for it")
	}
}

// client is one connection.
type client struct {
	server *Server
	rank   *rank
	conn   *net.UnixConn
	in     *bufio.Reader
	watch  *watch    // nil: it has not said yet who it is
	told   time.Time // when was told last that it takes too long; zero: it does not
}

// listen takes messages, and looks at the clock in between, until there is an error: io.EOF at the end.
func (c *client) listen() error {
	for {
		data, err := c.next(c.wake())
		if errors.Is(err, os.ErrDeadlineExceeded) { // what was sent in time may not have been read yet
			data, err = c.next(time.Now().Add(unreadTime))
		}
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			c.look()
			continue
		case err != nil:
			return err
		}
		m, err := decode(data)
		if err == nil {
			err = c.take(m)
		}
		if err != nil {
			return err
		}
		if _, err := c.in.Discard(4 + len(data)); err != nil {
			return err
		}
	}
}

// next is the next message, which stays in the buffer, or os.ErrDeadlineExceeded.
func (c *client) next(until time.Time) ([]byte, error) {
	if err := c.conn.SetReadDeadline(until); err != nil {
		return nil, err
	}
	head, err := c.in.Peek(4)
	if err != nil {
		return nil, err
	}
	n := int64(binary.BigEndian.Uint32(head))
	if n > maxMessage {
		return nil, fmt.Errorf("a message of %d bytes exceeds the limit of %d", n, maxMessage)
	}
	data, err := c.in.Peek(4 + int(n))
	if err != nil {
		if errors.Is(err, io.EOF) {
			return nil, io.ErrUnexpectedEOF
		}
		return nil, err
	}
	return data[4:], nil
}

// wake is when it is to be looked at the clock; zero: there is no need.
func (c *client) wake() time.Time {
	if c.watch == nil {
		return time.Time{}
	}
	c.rank.mu.Lock()
	defer c.rank.mu.Unlock()
	at, _ := c.watch.due()
	if again := c.told.Add(c.server.rules.Every); !c.told.IsZero() && !at.IsZero() && at.Before(again) {
		at = again
	}
	return at
}

// look tells of a worker that takes too long.
func (c *client) look() {
	now := time.Now()
	c.rank.mu.Lock()
	at, o := c.watch.due()
	late := now.Sub(at)
	if c.told.IsZero() && late > stoppedFor {
		c.watch.forgive(now)
	}
	c.rank.mu.Unlock()
	if at.IsZero() || late < 0 || c.told.IsZero() && late > stoppedFor {
		return
	}
	o.LocalRank, o.Again = c.rank.local, !c.told.IsZero()
	c.server.tell(c.server.ctx, o)
	c.told = time.Now()
}

// take does what a message says, and answers it.
func (c *client) take(m any) error {
	now, ok := time.Now(), instance{module: dataModule, class: "OkMsg"}
	c.rank.mu.Lock()
	defer c.rank.mu.Unlock()
	answers := c.server.rules.Answers
	if c.watch == nil {
		switch m.(type) {
		case authkeyMsg, initMsg:
		default:
			return fmt.Errorf("the first message is no InitMsg")
		}
	}
	var wrong error
	switch m := m.(type) {
	case authkeyMsg:
		answers = true
	case initMsg:
		c.watch, c.told, answers = newWatch(m, &c.rank.limits, now), time.Time{}, true
		ok.attrs = []pickle.Pair{{Key: "cfg", Value: c.rank.limits.config(c.server.rules)}}
	case heartbeatMsg:
		c.watch.heard = now
	case sectionMsg:
		wrong = c.watch.section(m, now)
	case updateMsg:
		c.rank.limits.update(m)
		answers = true
	}
	if c.watch != nil {
		if at, _ := c.watch.due(); at.IsZero() || now.Before(at) {
			c.told = time.Time{}
		}
	}
	switch {
	case wrong != nil && answers:
		ok = instance{dataModule, "ErrorMsg", []pickle.Pair{{Key: "cause", Value: wrong.Error()}}}
	case wrong != nil: // the client waits for no answer
		c.server.log.Warn().Err(wrong).Int("rank", c.watch.rank).Msg("a RankMonitorClient was called wrongly")
	}
	if !answers {
		return nil
	}
	data := encode(ok)
	if err := c.conn.SetWriteDeadline(now.Add(answerTime)); err != nil {
		return err
	}
	_, err := c.conn.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(data))), data...))
	return err
}
