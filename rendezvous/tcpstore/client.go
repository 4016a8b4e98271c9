package tcpstore

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"muster/internal/errhint"
	"muster/rendezvous"
)

const (
	firstDelay  = 50 * time.Millisecond // between attempts to connect; grows by half each time, give or take a half
	longDelay   = 5 * time.Second
	maxTries    = 8               // of an agent's client to open one more connection, while the server is reset again and again
	cancelGrace = 5 * time.Second // for the answer to CANCEL_WAIT, which a healthy server sends at once
	// Connections that a client keeps for its next calls, the watched one left out: another one takes three round
	// trips.
	keepIdle = 8
	maxReply = 1 << 30   // bytes of one value in an answer; APPEND can make values longer than SET allows
	maxList  = 512 << 20 // bytes that the answer to LIST_KEYS may occupy here; our server sends 512 MiB at most
)

// ClientConfig is what a Client may be told. The zero value is fine.
type ClientConfig struct {
	// Limits are checked before a request is sent, because servers answer a request beyond theirs by closing the
	// connection. Only Key, Value and KeysPerReq matter.
	Limits Limits
	// Private is ServerConfig.Private where this client is an agent's: every connection names it before anything else,
	// so that a Reset of the server spares the client. Empty: the client is a worker's. Other servers do not mind.
	Private string
	// Log gets a line at debug level per failed attempt to connect.
	Log zerolog.Logger
}

// Client speaks to one store, ours or PyTorch's from release 1.9 on. Keys travel as they are: PyTorch's own clients put
// a "/" in front of every key, so their "k" is "/k" here.
//
// Methods are safe for concurrent use and do not hold each other up: a call that finds every connection busy, with a
// Wait for instance, opens another one. A call that returned nil has taken effect at the server. When the server closes
// a connection the whole client is closed and every call returns rendezvous.ErrStoreClosed; it does not reconnect,
// because the store behind the address may be the next round's. One connection serves for nothing but to notice that.
type Client struct {
	*wires
	keep int     // connections that are kept idle
	idle []*link // guarded by wires.mu
}

// wires are the connections of a client, and of what it has reserved.
type wires struct {
	addr  string
	cfg   ClientConfig
	peer  dialect // fixed by Dial
	watch *watch
	life  context.Context // ends when the client is closed
	end   context.CancelFunc
	wg    sync.WaitGroup // goroutines; one is added only with mu held and err nil

	mu    sync.Mutex
	links map[*link]struct{} // all of them
	err   error              // why the client is closed; nil while it is open
}

// watch is the connection that a client keeps from Dial to Close and uses for no call, so that nothing but the end of
// the store ends it. A store that still answers on it after another connection was made is the one that took that
// connection.
type watch struct {
	*link
	question []byte // has an answer and no effect
	answer   int    // its length in bytes

	mu    sync.Mutex
	asked []chan struct{} // closed when the answer is there; in the order of the questions
}

var _ rendezvous.Reserver = (*Client)(nil)

// Dial connects to addr, "host:port", and finds out which generation of the protocol the server speaks. It tries again,
// with growing delays, until ctx ends.
func Dial(ctx context.Context, addr string, cfg ClientConfig) (*Client, error) {
	cfg.Limits = cfg.Limits.withDefaults()
	if _, _, err := net.SplitHostPort(addr); err != nil {
		return nil, errhint.Usagef("cannot use %q as the address of a store: %w", addr, err)
	}
	c := &Client{wires: &wires{addr: addr, cfg: cfg, links: make(map[*link]struct{})}, keep: keepIdle}
	c.life, c.end = context.WithCancel(context.WithoutCancel(ctx))
	start, delay := time.Now(), firstDelay
	var last error
	for {
		began := time.Now()
		l, peer, err := c.detect(ctx)
		if err == nil {
			c.peer = peer
			c.watch = &watch{link: l}
			c.watch.question, c.watch.answer = peer.question()
			c.links[l] = struct{}{}
			c.wg.Go(c.watchStore)
			return c, nil
		}
		if ctx.Err() == nil {
			cfg.Log.Debug().Err(err).Str("addr", addr).Msg("store not reached yet")
			select {
			case <-ctx.Done():
			case <-time.After(delay/2 + rand.N(delay)):
			}
			delay, last = min(delay*3/2, longDelay), err
		} else {
			err = telling(last, err, time.Since(began))
		}
		if ctx.Err() != nil {
			c.end()
			err = &dialError{addr, time.Since(start).Round(100 * time.Millisecond), err, context.Cause(ctx)}
			hint := "does the node that hosts the store run, and can its port be reached from here?"
			if isClosed(err) {
				hint = "something there closes the connection: is it a store, and is this machine in a network that it serves?"
			}
			return nil, errhint.With(err, hint)
		}
	}
}

// cutShort is how long an attempt to connect lasts at least that says more than the one before it, where ctx ends it.
const cutShort = 200 * time.Millisecond

// telling is the error of the attempt that says what is wrong: the one that ended by itself, nil for none, or the one
// after it, which ctx has ended after that time.
func telling(last, cut error, after time.Duration) error {
	if last != nil && after < cutShort {
		return last
	}
	return cut
}

// watchStore reads what comes on the watched connection until that ends, and the client with it.
func (c *Client) watchStore() {
	w := c.watch
	answer := make([]byte, w.answer)
	for {
		if _, err := io.ReadFull(w.r, answer); err != nil {
			c.fail(err)
			return
		}
		w.mu.Lock()
		if len(w.asked) == 0 {
			w.mu.Unlock()
			c.fail(fmt.Errorf("%w: %x to no question", errAnswer, answer))
			return
		}
		close(w.asked[0])
		w.asked = w.asked[1:]
		w.mu.Unlock()
	}
}

// sameStore returns nil once the store that Dial reached has answered a question asked after the call began.
func (c *Client) sameStore(ctx context.Context) error {
	w, answered := c.watch, make(chan struct{})
	w.mu.Lock()
	w.asked = append(w.asked, answered)
	_ = w.SetWriteDeadline(time.Now().Add(cancelGrace))
	_, err := w.Write(w.question)
	w.mu.Unlock()
	if err != nil {
		c.fail(err)
	}
	select {
	case <-answered:
		return nil
	case <-c.life.Done():
		return c.closedError()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Close closes the client's connections. Calls in progress return rendezvous.ErrStoreClosed. It may be called again.
func (c *Client) Close() error {
	c.fail(errors.New("closed here"))
	c.wg.Wait()
	return nil
}

// Reserve implements rendezvous.Reserver. A call through it while another one is made opens a connection for that time.
func (c *Client) Reserve() rendezvous.Store { return &Client{wires: c.wires, keep: 1} }

func (c *Client) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = err
		c.end()
	}
	for l := range c.links {
		_ = l.Close()
	}
	clear(c.links)
}

func (c *Client) closedError() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return fmt.Errorf("%w: %s: %w", rendezvous.ErrStoreClosed, c.addr, c.err)
}

// acquire returns a connection to the store that Dial reached, and that nobody else uses.
func (c *Client) acquire(ctx context.Context) (*link, error) {
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return nil, c.closedError()
	}
	if n := len(c.idle); n > 0 {
		l := c.idle[n-1]
		c.idle = c.idle[:n-1]
		c.mu.Unlock()
		return l, nil
	}
	c.mu.Unlock()
	l, err := c.open(ctx)
	// A Reset closes connections that are too young to be known as an agent's, and spares the client.
	young := func() bool { return c.cfg.Private != "" && isClosed(err) && c.life.Err() == nil }
	for tries, delay := 1, firstDelay; young() && tries < maxTries; tries, delay = tries+1, 2*delay {
		select {
		case <-time.After(delay):
		case <-ctx.Done():
		case <-c.life.Done():
		}
		l, err = c.open(ctx)
	}
	if err != nil {
		if c.cfg.Private != "" && ctx.Err() == nil &&
			!errors.Is(err, rendezvous.ErrStoreClosed) { // an agent reaches it anew, or another one
			c.fail(err)
			return nil, c.closedError()
		}
		return nil, err
	}
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		_ = l.Close()
		return nil, c.closedError()
	}
	c.links[l] = struct{}{}
	c.mu.Unlock()
	return l, nil
}

// open opens a connection to the store that Dial reached.
func (c *Client) open(ctx context.Context) (*link, error) {
	dialing, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.life, cancel)() //nolint:contextcheck // the end of the client, beside that of the call
	l, err := c.connect(dialing, c.peer)
	if ctx.Err() != nil {
		if err == nil {
			_ = l.Close()
		}
		return nil, context.Cause(ctx)
	}
	// Who answered may be the next round's store, and who did not may have been closed, which is what to report then.
	if same := c.sameStore(ctx); same != nil {
		if err == nil {
			_ = l.Close()
		}
		return nil, same
	}
	return l, err
}

// release gives l back; a connection that is out of step is closed.
func (c *Client) release(l *link, inStep bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if inStep && c.err == nil && len(c.idle) < c.keep {
		c.idle = append(c.idle, l)
		return
	}
	delete(c.links, l)
	_ = l.Close()
}

// step is a request and how to read its answer.
type step struct {
	request []byte
	read    func(*bufio.Reader) error
	waits   bool // WAIT or BARRIER: the answer may take long, and can be cancelled
}

// call performs steps one after the other on one connection. what and key are for the error.
func (c *Client) call(ctx context.Context, what op, key string, steps ...step) error {
	wrap := func(err error) error {
		return fmt.Errorf("cannot %v %q: %w", what, key, err)
	}
	if ctx.Err() != nil {
		return wrap(context.Cause(ctx))
	}
	l, err := c.acquire(ctx)
	if err != nil {
		return wrap(err)
	}
	for _, s := range steps {
		unbind := l.bind(ctx)
		_, err := l.Write(s.request)
		sent := err == nil
		if sent && s.read != nil {
			err = s.read(l.r)
		}
		unbind()
		switch {
		case err == nil:
		case errors.Is(err, errAnswer) && (c.cfg.Private == "" || what == opListKeys):
			c.release(l, false)
			return wrap(err)
		case ctx.Err() != nil && isTimeout(err):
			if sent && s.waits {
				c.takeBack(l)
			} else {
				c.release(l, false)
			}
			return wrap(context.Cause(ctx))
		default: // an agent whose store gives such answers is better off with another connection, or store
			c.fail(err)
			return wrap(c.closedError())
		}
	}
	c.release(l, true)
	return nil
}

func isTimeout(err error) bool {
	ne, ok := errors.AsType[net.Error](err)
	return ok && ne.Timeout()
}

// takeBack cancels what l waits for and releases l, behind the caller's back: the server may not answer.
func (c *Client) takeBack(l *link) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil { // else l is closed
		c.wg.Go(func() { c.release(l, c.cancelWait(l)) })
	}
}

// cancelWait takes back the WAIT or BARRIER that l has pending, and says whether l is in step afterwards.
func (c *Client) cancelWait(l *link) bool {
	code, ok := c.peer.gen.code(opCancelWait)
	if !ok {
		return false
	}
	_ = l.SetDeadline(time.Now().Add(cancelGrace))
	if _, err := l.Write([]byte{code}); err != nil {
		return false
	}
	for {
		b, err := l.r.ReadByte()
		if err != nil {
			return false
		}
		if b == replyCancelled { // after an answer to the wait itself, if that was under way
			return l.SetDeadline(time.Time{}) == nil
		}
	}
}

// errAnswer marks an answer that no store gives.
var errAnswer = errors.New("malformed answer")

func readByte(into *byte) func(*bufio.Reader) error {
	return func(r *bufio.Reader) (err error) {
		*into, err = r.ReadByte()
		return err
	}
}

func readInt(into *int64) func(*bufio.Reader) error {
	return func(r *bufio.Reader) error {
		var b [8]byte
		_, err := io.ReadFull(r, b[:])
		*into = int64(binary.LittleEndian.Uint64(b[:]))
		return err
	}
}

// readValue reads the value of a key. A key of the agents has no longer one than SET takes, unless a stranger has
// appended to it: what is beyond is dropped, all but a byte by which it can be told.
func (c *Client) readValue(key string, into *[]byte) func(*bufio.Reader) error {
	most := int64(c.cfg.Limits.Value)
	if c.cfg.Private == "" || !strings.HasPrefix(key, c.cfg.Private) || most >= maxReply {
		return readBytes(into, maxReply)
	}
	return func(r *bufio.Reader) error {
		var n int64
		if err := readInt(&n)(r); err != nil {
			return err
		}
		if n < 0 || n > maxReply {
			return fmt.Errorf("%w: %d bytes where at most %d can be", errAnswer, uint64(n), maxReply)
		}
		if err := readSized(into, min(n, most+1), r); err != nil {
			return err
		}
		_, err := io.CopyN(io.Discard, r, max(0, n-most-1))
		return err
	}
}

// readBytes reads a length, of at most limit, and as many bytes, and allocates as they come.
func readBytes(into *[]byte, limit int64) func(*bufio.Reader) error {
	return func(r *bufio.Reader) error {
		var n int64
		if err := readInt(&n)(r); err != nil {
			return err
		}
		if n < 0 || n > limit {
			return fmt.Errorf("%w: %d bytes where at most %d can be", errAnswer, uint64(n), limit)
		}
		return readSized(into, n, r)
	}
}

// readSized reads n bytes, and allocates as they come.
func readSized(into *[]byte, n int64, r *bufio.Reader) error {
	if n <= 64<<10 {
		*into = make([]byte, n)
		_, err := io.ReadFull(r, *into)
		return err
	}
	var buf bytes.Buffer
	if _, err := io.CopyN(&buf, r, n); err != nil {
		return err
	}
	*into = buf.Bytes()
	return nil
}
