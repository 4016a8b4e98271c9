// Package peertls connects the agents of a job: both ends prove that they have the job's token, and that they are the
// two who were meant, and all that follows is encrypted.
//
// It is TLS 1.3 of the standard library. There is no authority: each end has an ed25519 key that follows from the
// token, what connections are for, the run, and the server that is addressed (see Identity), and so knows the only key
// that the other end can have. A relay that passes bytes on learns nothing and can change nothing; one that leads
// elsewhere meets another key. Certificates are only the form in which TLS carries keys: they have no names, no times
// that count, and nobody signs them.
//
// The client proves first. What it says before TLS has keys (ALPN) follows from the token, too, and a server answers
// nothing else: who only knocks at the port is shown nothing that a token could be guessed from.
package peertls

import (
	"bufio"
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"
)

// Time bounds what proves a connection, at the server.
const Time = 5 * time.Second

// MinToken is the length of the shortest token that is taken, in bytes.
const MinToken = 16

// What is wrong with the other end.
var (
	ErrToken  = errors.New("it does not have this job's token")
	ErrOther  = errors.New("it is not the agent that is meant: another one answers at its address, or it has started again")
	ErrBusy   = errors.New("it is busy with others")
	ErrNotUs  = errors.New("what listens there is something else")
	ErrSilent = errors.New("it accepts connections and says nothing")
)

// Domain is what the two ends of a connection have in common. Ends whose domains differ do not let each other in.
type Domain struct {
	// Token is the job's secret, at least MinToken bytes.
	Token []byte
	// Purpose is what connections are for, such as "checkpoints", and RunID the job's.
	Purpose, RunID string
}

// config is what both ends have in common: the other one's key is to be theirs.
func config(cert tls.Certificate, theirs ed25519.PublicKey, protos []string) *tls.Config {
	return &tls.Config{
		Certificates: []tls.Certificate{cert}, NextProtos: protos,
		MinVersion: tls.VersionTLS13, SessionTicketsDisabled: true, DynamicRecordSizingDisabled: true,
		// The only exchange of keys whose messages fit into one packet each: probes go over paths that lose large ones.
		CurvePreferences:   []tls.CurveID{tls.X25519},
		InsecureSkipVerify: true, // VerifyConnection does more: there is one key that is taken
		VerifyConnection: func(cs tls.ConnectionState) error {
			if len(cs.PeerCertificates) == 0 {
				return ErrNotUs
			}
			cert := cs.PeerCertificates[0]
			if key, ok := cert.PublicKey.(ed25519.PublicKey); ok && key.Equal(theirs) {
				return nil
			}
			if cert.Subject.CommonName == commonName {
				return ErrToken
			}
			return ErrNotUs
		},
	}
}

// Client proves, over a connection that it dialed to id.Addr(), that this end has the token, and that the other end is
// id. The caller sets a deadline or bounds ctx, and closes conn where there is an error.
func (d Domain) Client(ctx context.Context, conn net.Conn, id Identity) (*Conn, error) {
	cert, err := certificate(d.key(roleClient, id))
	if err != nil {
		return nil, err
	}
	// The second name only tells a server why: it has the token, and is not who is meant.
	theirs := d.key(roleServer, id).Public().(ed25519.PublicKey)
	below := &corked{Conn: conn}
	c := &Conn{Conn: tls.Client(below, config(cert, theirs, []string{d.knock(id), d.knock("")})), below: below}
	if err := c.HandshakeContext(ctx); err != nil {
		return nil, explained(err)
	}
	return c, nil
}

// Acceptor is the server's part.
type Acceptor struct{ config func() (*tls.Config, error) }

// Acceptor returns the server's part for the server that was announced as self. Its keys are made for the first
// connection: most agents have none, and keys cost more than all else that a server does to begin.
func (d Domain) Acceptor(self Identity) *Acceptor {
	return &Acceptor{sync.OnceValues(func() (*tls.Config, error) { return d.accepting(self) })}
}

func (d Domain) accepting(self Identity) (*tls.Config, error) {
	cert, err := certificate(d.key(roleServer, self))
	if err != nil {
		return nil, err
	}
	knock, anybody := d.knock(self), d.knock("")
	c := config(cert, d.key(roleClient, self).Public().(ed25519.PublicKey), []string{knock})
	c.ClientAuth = tls.RequireAnyClientCert
	c.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		switch {
		case slices.Contains(hello.SupportedProtos, knock):
			return nil, nil // this one
		case slices.Contains(hello.SupportedProtos, anybody):
			return nil, ErrOther // which is told as errAlertOther
		}
		return refusing, nil
	}
	return c, nil
}

// refusing has TLS answer that none of the names that a client gave is known; of one that gave none it knows no
// version.
var refusing = &tls.Config{
	NextProtos: []string{"muster"}, MinVersion: tls.VersionTLS13,
	GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return nil, ErrToken },
}

// Server proves, over a connection that was accepted, that this end is the server that was announced, and that the
// other end has the token. It takes no longer than Time. The caller closes conn where there is an error.
func (a *Acceptor) Server(ctx context.Context, conn net.Conn) (*Conn, error) {
	config, err := a.config()
	if err != nil {
		return nil, err
	}
	below := &corked{Conn: conn}
	c := &Conn{Conn: tls.Server(below, config), below: below}
	_ = conn.SetDeadline(time.Now().Add(Time))
	if err := c.HandshakeContext(ctx); err != nil {
		return nil, err
	}
	_ = conn.SetDeadline(time.Time{})
	return c, nil
}

// The alerts of TLS by which a server says why it lets a client not in. RFC 8446, 6.
const (
	errAlertOther   tls.AlertError = 80  // internal_error: what Go sends for an error of GetConfigForClient
	errAlertBusy    tls.AlertError = 90  // user_canceled, sent as fatal by Refuse
	errAlertUnknown tls.AlertError = 120 // no_application_protocol
)

// Refuse tells a client, ahead of everything else, that there is no room for it. It proves nothing: whoever sits
// between the two can say so, too, or say nothing.
func Refuse(conn net.Conn) {
	_ = conn.SetWriteDeadline(time.Now().Add(time.Second))
	_, _ = conn.Write([]byte{21, 3, 3, 0, 2, 2, byte(errAlertBusy)}) // a fatal alert
}

// explained returns what a client's error says of the other end.
func explained(err error) error {
	var header tls.RecordHeaderError
	var timeout net.Error
	for _, known := range []error{ErrToken, ErrNotUs} {
		if errors.Is(err, known) {
			return known
		}
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "remote error" {
		for alert, why := range map[tls.AlertError]error{errAlertOther: ErrOther, errAlertBusy: ErrBusy, errAlertUnknown: ErrToken} {
			if op.Err.Error() == alert.Error() { // its type is not exported
				return why
			}
		}
		return fmt.Errorf("%w (%w)", ErrNotUs, err)
	}
	switch {
	case errors.As(err, &header):
		return ErrNotUs
	case errors.As(err, &timeout) && timeout.Timeout(), errors.Is(err, context.DeadlineExceeded):
		return ErrSilent
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return ErrNotUs
	case errors.Is(err, syscall.ECONNRESET): // it may have been busy, too: that message is lost where the reset overtakes it
		return fmt.Errorf("%w (%w)", ErrNotUs, syscall.ECONNRESET)
	}
	return err
}

// Conn is a connection whose ends are proven. Reads and writes of much at once cost few calls of the kernel.
type Conn struct {
	*tls.Conn
	below   *corked
	writing sync.Mutex
}

// NetConn returns the connection below TLS. What goes over it is neither secret nor proven.
func (c *Conn) NetConn() net.Conn { return c.below.Conn }

// Close closes the connection at once. The other end is not told by TLS that this is the end: whoever reads knows by
// what it reads whether that was all.
func (c *Conn) Close() error { return c.below.Close() }

// Key returns 32 bytes that only the two ends of this connection know, for what is named.
func (c *Conn) Key(label string) ([]byte, error) {
	cs := c.ConnectionState()
	return cs.ExportKeyingMaterial("EXPORTER muster "+label, nil, 32)
}

// bulk is from how many bytes on a read or a write is one of much at once.
const bulk = 64 << 10

// Write writes records of TLS, several with one call where b is large.
func (c *Conn) Write(b []byte) (int, error) {
	if len(b) < bulk {
		return c.Conn.Write(b)
	}
	c.writing.Lock()
	defer c.writing.Unlock()
	c.below.cork()
	n, err := c.Conn.Write(b)
	return n, errors.Join(err, c.below.uncork())
}

// Read reads at most one record of TLS.
func (c *Conn) Read(b []byte) (int, error) {
	if len(b) >= bulk {
		c.below.readAhead()
	}
	return c.Conn.Read(b)
}

// corked is a connection whose writes are gathered while it is corked, and that reads ahead once it was asked to.
type corked struct {
	net.Conn

	reading sync.Mutex
	ahead   *bufio.Reader

	mu   sync.Mutex
	on   bool
	full []byte // what is gathered
}

// gather is how much is written and read with one call.
const gather = 128 << 10

func (c *corked) cork() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.on = true
	if c.full == nil {
		c.full = make([]byte, 0, gather)
	}
}

func (c *corked) uncork() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.on = false
	return c.flushLocked()
}

func (c *corked) flushLocked() error {
	if len(c.full) == 0 {
		return nil
	}
	_, err := c.Conn.Write(c.full)
	c.full = c.full[:0]
	return err
}

// Write is called by TLS, a record at a time.
func (c *corked) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.on {
		return c.Conn.Write(b)
	}
	if len(c.full)+len(b) > cap(c.full) {
		if err := c.flushLocked(); err != nil {
			return 0, err
		}
	}
	if len(b) > cap(c.full) {
		return c.Conn.Write(b)
	}
	c.full = append(c.full, b...)
	return len(b), nil
}

func (c *corked) readAhead() {
	c.reading.Lock()
	defer c.reading.Unlock()
	if c.ahead == nil {
		c.ahead = bufio.NewReaderSize(c.Conn, gather)
	}
}

// Read is called by TLS, by one goroutine at a time.
func (c *corked) Read(b []byte) (int, error) {
	c.reading.Lock()
	ahead := c.ahead
	c.reading.Unlock()
	if ahead == nil {
		return c.Conn.Read(b)
	}
	return ahead.Read(b)
}
