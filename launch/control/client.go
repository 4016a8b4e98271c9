package control

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"muster/internal/durable"
	"muster/internal/errhint"
	"muster/internal/unixsocket"
)

// patience is how long an answer is waited for.
const patience = 5 * time.Second

// mostAnswer bounds what is read of an answer, in bytes: some hundred for each rank of the world.
const mostAnswer = 64 << 20

// Client asks at the socket of one run directory, or at the page of a job.
type Client struct {
	// dir is the run directory, of a page its address.
	dir string
	// page is nil for a client of a run directory.
	page *page
	// pid is the process that listens there, once it was reached.
	pid int
}

// Dial returns a client of a run directory. Nothing is asked yet.
func Dial(dir string) *Client { return &Client{dir: dir} }

var (
	// errDead is why a run directory has nobody who answers: its muster has ended without removing it.
	errDead = errors.New("its muster is dead")
	// errMute is the same where a muster lives that has no socket.
	errMute = errors.New("its muster has no control socket: it is of an older version, has just begun, or is about to end")
	// errSilent is the same where it takes no time to answer.
	errSilent = fmt.Errorf("its muster does not answer within %v", patience)
)

// Status asks how the job stands.
func (c *Client) Status(ctx context.Context, scope Scope) (a Answer, err error) {
	return a, c.ask(ctx, http.MethodGet, pathStatus+"?scope="+string(scope), nil, &a)
}

// Rank asks for a worker.
func (c *Client) Rank(ctx context.Context, rank int) (r Rank, err error) {
	return r, c.ask(ctx, http.MethodGet, pathRank+strconv.Itoa(rank), nil, &r)
}

// watchEvery is how often Watch asks.
const watchEvery = time.Second

// Watch asks again and again how a job stands, of all its nodes, until the job has ended or show fails. show is told
// what was answered, or why there was no answer this time.
func (c *Client) Watch(ctx context.Context, show func(a Answer, err error) error) error {
	for first := true; ; first = false {
		a, err := c.Status(ctx, World)
		if err != nil && !first && errhint.CodeOf(err) == errhint.Usage {
			return nil
		}
		if err != nil && (first || errhint.CodeOf(err) != errhint.TryAgain) {
			return err
		}
		if err := show(a, err); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(watchEvery):
		}
	}
}

// Events asks for the events behind the one with a number, the oldest of them first; with wait it may take a moment
// until there is one, and none is an answer, too.
func (c *Client) Events(ctx context.Context, after uint64, wait bool) ([]Event, error) {
	path := pathEvents + "?after=" + strconv.FormatUint(after, 10)
	if wait {
		path += "&wait=1"
	}
	var h happened
	err := c.ask(ctx, http.MethodGet, path, nil, &h)
	return h.Events, err
}

// Metrics asks for the job's metrics, as Prometheus reads them.
func (c *Client) Metrics(ctx context.Context, scope Scope) (text []byte, err error) {
	return text, c.ask(ctx, http.MethodGet, pathMetrics+"?scope="+string(scope), nil, &text)
}

// Evidence asks what the processes of the workers do, with native by py-spy, too.
func (c *Client) Evidence(ctx context.Context, scope Scope, native bool) (l Looked, err error) {
	return l, c.ask(ctx, http.MethodGet, evidencePath(scope, native), nil, &l)
}

// Do asks for a change; who asks is known to who answers. It returns a sentence about what follows.
func (c *Client) Do(ctx context.Context, r Request) (string, error) {
	var s said
	err := c.ask(ctx, http.MethodPost, requestPaths[r.What], r.Wanted, &s)
	return s.Message, err
}

// ask sends a request and reads the answer into to: JSON, but for bytes, which are the answer itself. An error has the
// exit status that muster ends with: errhint.TryAgain where nobody has answered in time.
func (c *Client) ask(ctx context.Context, method, path string, body, to any) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, errSilent)
	defer cancel()
	var content io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return err
		}
		content = bytes.NewReader(text)
	}
	req, err := c.request(ctx, method, path, content)
	if err != nil {
		return err
	}
	transport := &http.Transport{DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: mostHeader}
	if c.page == nil {
		transport.DialContext = c.dial
	}
	defer transport.CloseIdleConnections()
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return c.explain(ctx, err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(resp.Body, mostAnswer))
	if err != nil {
		return c.explain(ctx, err)
	}
	if resp.StatusCode != http.StatusOK {
		if c.page != nil {
			var f failure
			_ = json.Unmarshal(text, &f) // it says what can be said without
			return c.page.refused(resp, f)
		}
		return told(text, resp.Status)
	}
	if raw, is := to.(*[]byte); is {
		*raw = text
		return nil
	}
	if err := json.Unmarshal(text, to); err != nil {
		return fmt.Errorf("cannot read the answer of the muster of %s: %w", c.dir, err)
	}
	return nil
}

// request is a request for a path of the control socket.
func (c *Client) request(ctx context.Context, method, path string, content io.Reader) (*http.Request, error) {
	if c.page == nil {
		return http.NewRequestWithContext(ctx, method, "http://muster"+path, content)
	}
	address, err := c.page.address(path)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, method, address, content)
	if err == nil {
		c.page.show(req)
	}
	return req, err
}

// explain says why there is no answer.
func (c *Client) explain(ctx context.Context, err error) error {
	if c.page != nil {
		return c.page.silent(ctx, err)
	}
	who := c.dir
	if c.pid > 0 {
		who += " (pid " + strconv.Itoa(c.pid) + ")"
	}
	status := errhint.TryAgain
	hint := ""
	switch {
	case errors.Is(err, errDead):
		status, hint = errhint.Usage, "the next job of yours that starts here removes its directory"
	case errors.Is(err, errMute), errors.Is(err, errOtherUser):
		status = errhint.Usage
	case errors.Is(context.Cause(ctx), errSilent), errors.Is(err, unix.EAGAIN):
		err, hint = errSilent, "is it stopped (SIGSTOP), or the machine overloaded?"
	case ctx.Err() != nil:
		return context.Cause(ctx)
	default:
		err = fmt.Errorf("%w: %w", errEnded, err)
	}
	return errhint.Code(errhint.With(fmt.Errorf("nobody answers for the job in %s: %w", who, err), hint), status)
}

// errOtherUser is why a directory is not looked into.
var errOtherUser = errors.New("its run directory is not one that only you can write to")

// dial connects to the socket. The directory has to be ours: what is answered there may be executed.
func (c *Client) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	d, err := durable.OpenOwn(c.dir)
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil, errDead
		}
		return nil, fmt.Errorf("%w: %w", errOtherUser, err)
	}
	defer func() { _ = d.Close() }()
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", unixsocket.Through(d, socketName))
	switch {
	case err == nil:
	case errors.Is(err, unix.ECONNREFUSED), errors.Is(err, unix.ENOENT):
		if unix.Flock(int(d.Fd()), unix.LOCK_SH|unix.LOCK_NB) == nil {
			return nil, errDead
		}
		return nil, errMute
	default:
		return nil, err
	}
	if u, is := conn.(*net.UnixConn); is {
		peer, err := peerOf(u)
		if err == nil && peer.UID != os.Geteuid() {
			_ = conn.Close()
			return nil, fmt.Errorf("%w: user %d answers there", errOtherUser, peer.UID)
		}
		c.pid = peer.PID
	}
	return conn, nil
}

// Unreachable reports whether err says that a muster which has answered before is there no more, and not that it takes
// its time.
func Unreachable(err error) bool {
	return errors.Is(err, errDead) || errors.Is(err, errEnded) || errors.Is(err, errMute) || errors.Is(err, errNoPage)
}

// errEnded is why a muster that was there has not answered.
var errEnded = errors.New("its muster has ended while it was asked")
