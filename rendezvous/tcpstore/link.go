package tcpstore

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"
)

// link is one connection.
type link struct {
	net.Conn
	r *bufio.Reader
}

// dialError says that no store was reached.
type dialError struct {
	addr       string
	after      time.Duration
	last, ends error // of the last attempt, and why no other follows
}

func (e *dialError) Error() string {
	why := e.last.Error()
	if op, ok := errors.AsType[*net.OpError](e.last); ok { // its own text has the address, which we have said
		switch errno, is := errors.AsType[syscall.Errno](op); {
		case is && !op.Timeout():
			why = errno.Error()
		case op.Op == "dial" && op.Timeout():
			why = "no answer"
		case op.Timeout():
			why = "it takes connections, and does not answer"
		}
	}
	if isClosed(e.last) {
		why = "it closes the connection"
	}
	return fmt.Sprintf("no store at %s within %v: %s", e.addr, e.after, why)
}

func (e *dialError) Unwrap() []error { return []error{e.last, e.ends} }

// detect connects and speaks the newest dialect that the server understands. What a server does not understand it
// answers by closing the connection.
func (c *Client) detect(ctx context.Context) (*link, dialect, error) {
	dialects := []dialect{{G2, true}, {G2, false}, {G1, false}, {G0, false}}
	l, n, err := c.connectFirst(ctx, dialects)
	if err != nil || n == 0 {
		return l, dialects[n], err
	}
	// A server that starts anew closes connections too, and ours understands every dialect. So the newer ones get
	// another chance, and that they are refused counts if the same server is there before and afterwards.
	newer, m, err := c.connectFirst(ctx, dialects[:n])
	if err == nil {
		_ = l.Close()
		return newer, dialects[m], nil
	}
	if isClosed(err) {
		err = l.ask(ctx, dialects[n])
	}
	if err != nil {
		_ = l.Close()
		return nil, dialect{}, err
	}
	return l, dialects[n], nil
}

// connectFirst connects with the first of dialects that is not refused, and returns its index.
func (c *Client) connectFirst(ctx context.Context, dialects []dialect) (l *link, n int, err error) {
	for i, peer := range dialects {
		if l, err = c.connect(ctx, peer); err == nil {
			return l, i, nil
		}
		if !isClosed(err) {
			break // nobody there, or ctx has ended
		}
	}
	return nil, 0, err
}

// ask returns nil if the server still answers on l.
func (l *link) ask(ctx context.Context, peer dialect) error {
	defer l.bind(ctx)()
	question, answer := peer.question()
	if _, err := l.Write(question); err != nil {
		return err
	}
	_, err := io.ReadFull(l.r, make([]byte, answer))
	return err
}

// isClosed says whether err is how it looks when the peer closes an established connection.
func isClosed(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) ||
		errors.Is(err, syscall.EPIPE)
}

// connect opens a connection and makes sure that the server speaks peer.
func (c *Client) connect(ctx context.Context, peer dialect) (*link, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", c.addr)
	if err != nil {
		return nil, err
	}
	l := &link{conn, bufio.NewReaderSize(conn, 512)}
	release := l.bind(ctx)
	probe, want := peer.probe(c.cfg.Private)
	got := make([]byte, want)
	if _, err = conn.Write(probe); err == nil {
		_, err = io.ReadFull(l.r, got)
	}
	if err == nil && peer.ping && binary.LittleEndian.Uint32(got) != nonce {
		err = fmt.Errorf("%s is not a store: it echoes %x for %x", c.addr, got[:4], binary.LittleEndian.AppendUint32(nil, nonce))
	}
	if err == nil && peer.gen == G1 {
		// Only 2.1 knows CANCEL_WAIT under this number, and nothing is pending.
		if _, err = conn.Write([]byte{11}); err == nil {
			_, err = io.ReadFull(l.r, got[:1])
		}
	}
	release()
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return l, nil
}

// bind makes the end of ctx interrupt reads and writes of l until release is called.
func (l *link) bind(ctx context.Context) (release func()) {
	fired := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = l.SetDeadline(time.Unix(1, 0))
		close(fired)
	})
	return func() {
		if !stop() {
			<-fired
			_ = l.SetDeadline(time.Time{})
		}
	}
}
