package control

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	stdlog "log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"muster/internal/errhint"
	"muster/internal/unixsocket"
	"muster/launch/report"
)

// socketName is the socket's name in the run directory.
const socketName = "control"

// What one client may cost.
const (
	mostAtOnce  = 64              // requests
	mostHeader  = 4 << 10         // bytes
	mostBody    = 64 << 10        // bytes
	readTime    = 2 * time.Second // for a request to come
	writeTime   = 5 * time.Second // for it to be answered, and the answer to be taken
	acceptPause = 50 * time.Millisecond
	partTime    = 200 * time.Millisecond // for answers on their way when the server closes
)

// Config is what a Server serves, and where.
type Config struct {
	// Dir is the run directory.
	Dir    string
	Muster Muster
	Served Served
	Log    zerolog.Logger
	// Peer returns who is at the other end of a connection; nil asks the kernel.
	Peer func(conn *net.UnixConn) (Peer, error)
}

// Server answers at the socket of a run directory.
type Server struct {
	cfg      Config
	listener *net.UnixListener
	http     *http.Server
	room     chan struct{} // an item for each connection
	refusals chan struct{} // an item for each that is being turned away
	streams  chan struct{} // an item for each stream
	far      chan net.Conn // connections of other musters
	farHTTP  *http.Server  // answers these
	wg       sync.WaitGroup
	closing  context.Context    // ends when the server closes
	leave    context.CancelFunc // ends it
}

// Serve begins to answer. The caller closes the server, and removes the directory behind it.
func Serve(cfg Config) (*Server, error) {
	cfg.Muster.PID, cfg.Muster.RunDir = os.Getpid(), cfg.Dir
	if cfg.Peer == nil {
		cfg.Peer = peerOf
	}
	s := &Server{
		cfg: cfg, room: make(chan struct{}, mostAtOnce), refusals: make(chan struct{}, mostAtOnce),
		streams: make(chan struct{}, mostStreams), far: make(chan net.Conn, mostFar),
	}
	var err error
	if s.listener, err = unixsocket.Listen(filepath.Join(cfg.Dir, socketName)); err != nil {
		return nil, fmt.Errorf("cannot listen for muster status, stop and the like: %w", err)
	}
	s.closing, s.leave = context.WithCancel(context.Background())
	s.http, s.farHTTP = newHTTP(s.handleLocal), newHTTP(s.handleFar)
	s.http.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		return context.WithValue(ctx, peerKey{}, c.(*conn).peer)
	}
	s.wg.Go(func() { _ = s.http.Serve(door{s}) })
	s.wg.Go(func() { _ = s.farHTTP.Serve(farDoor{s}) })
	return s, nil
}

// newHTTP is a server whose clients are bounded.
func newHTTP(handle http.HandlerFunc) *http.Server {
	h := &http.Server{
		Handler: handle, ReadTimeout: readTime, WriteTimeout: writeTime, IdleTimeout: readTime, MaxHeaderBytes: mostHeader,
		ErrorLog: stdlog.New(discard{}, "", 0), Protocols: new(http.Protocols),
	}
	h.Protocols.SetHTTP1(true)
	h.SetKeepAlivesEnabled(false) // who holds a connection holds a place
	return h
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }

// Close ends the server, and gives answers that are on their way a moment.
func (s *Server) Close() error {
	if s == nil {
		return nil
	}
	s.leave() // who waits for an event is answered
	ctx, cancel := context.WithTimeout(context.Background(), partTime)
	defer cancel()
	var errs []error
	for _, h := range []*http.Server{s.http, s.farHTTP} {
		err := h.Shutdown(ctx)
		if errors.Is(err, context.DeadlineExceeded) {
			err = h.Close()
		}
		errs = append(errs, err)
	}
	s.wg.Wait()
	for len(s.far) > 0 {
		_ = (<-s.far).Close()
	}
	late := time.NewTimer(endTime)
	defer late.Stop()
	for range mostStreams { // they end by themselves
		select {
		case s.streams <- struct{}{}:
		case <-late.C:
			return errors.Join(append(errs, errors.New("a command that somebody has started in a rank's place does not end"))...)
		}
	}
	return errors.Join(errs...)
}

// door is the listener: another user, or one too many, is turned away before anything is read.
type door struct{ s *Server }

func (d door) Close() error   { return d.s.listener.Close() }
func (d door) Addr() net.Addr { return d.s.listener.Addr() }

// conn is a connection that has been let in.
type conn struct {
	*net.UnixConn
	peer  Peer
	leave func()
}

func (c *conn) Close() error {
	c.leave()
	return c.UnixConn.Close()
}

func (d door) Accept() (net.Conn, error) {
	for {
		raw, err := d.s.listener.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return nil, err
		}
		if err != nil { // such as for want of descriptors
			time.Sleep(acceptPause)
			continue
		}
		peer, err := d.s.cfg.Peer(raw)
		if err != nil || peer.UID != os.Geteuid() && peer.UID != 0 {
			d.s.cfg.Log.Debug().Err(err).Int("uid", peer.UID).Int("pid", peer.PID).Msg("a process of another user was not answered")
			d.s.turnAway(raw, http.StatusForbidden, failure{Error: "this job belongs to another user", Status: errhint.Usage})
			continue
		}
		select {
		case d.s.room <- struct{}{}:
			var once sync.Once
			return &conn{raw, peer, func() { once.Do(func() { <-d.s.room }) }}, nil
		default:
			d.s.turnAway(raw, http.StatusServiceUnavailable, failure{
				Error: fmt.Sprintf("muster answers %d requests at once, and no more", mostAtOnce), Hint: "try again",
				Status: errhint.TryAgain,
			})
		}
	}
}

// turnAway says why a connection is closed, to who reads it. Nobody waits for that, and where many are to be told
// something at once the others are told nothing.
func (s *Server) turnAway(c *net.UnixConn, status int, why failure) {
	select {
	case s.refusals <- struct{}{}:
	default:
		_ = c.Close()
		return
	}
	s.wg.Go(func() {
		defer func() { <-s.refusals }()
		defer func() { _ = c.Close() }()
		body, _ := json.Marshal(why) // texts and numbers
		_ = c.SetDeadline(time.Now().Add(readTime))
		defer context.AfterFunc(s.closing, func() { _ = c.SetDeadline(time.Now()) })() // the end of a job waits for nobody
		if _, err := c.Read(make([]byte, mostHeader)); err != nil {                    // an answer that comes before its request is none
			return
		}
		_, _ = fmt.Fprintf(c, "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s",
			status, http.StatusText(status), len(body), body)
		_ = c.CloseWrite()
		_, _ = io.CopyN(io.Discard, c, mostBody) // who still writes would not read it
	})
}

type peerKey struct{}

// AsPeer says for Handler who asks.
func AsPeer(ctx context.Context, p Peer) context.Context { return context.WithValue(ctx, peerKey{}, p) }

// Handler answers the requests of the socket for who lets clients in elsewhere. Each comes with a context of AsPeer.
func Handler(cfg Config) http.Handler {
	s := &Server{cfg: cfg, closing: context.Background()}
	return http.HandlerFunc(s.handle)
}

// peerOf asks the kernel who is at the other end of a connection.
func peerOf(c *net.UnixConn) (Peer, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return Peer{UID: -1}, err
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil || credErr != nil {
		return Peer{UID: -1}, errors.Join(err, credErr)
	}
	return Peer{UID: int(cred.Uid), PID: int(cred.Pid)}, nil
}

// scopeOf is how much of a job a request asks for.
func scopeOf(r *http.Request, unless Scope) (Scope, error) {
	scope := cmp.Or(Scope(r.URL.Query().Get("scope")), unless)
	if scope != World && scope != Node {
		return "", wrong(http.StatusBadRequest, "the scope %q is neither %s nor %s", scope, World, Node)
	}
	return scope, nil
}

// handle answers one request.
func (s *Server) handle(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == pathMetrics && r.Method == http.MethodGet {
		Metrics(s.cfg.Served).ServeHTTP(w, r)
		return
	}
	answer, err := s.answer(w, r)
	if err != nil {
		s.refuse(w, err)
		return
	}
	say(w, http.StatusOK, answer)
}

// refuse answers with an error.
func (s *Server) refuse(w http.ResponseWriter, err error) {
	f := failure{Error: err.Error(), Hint: errhint.Of(err), Status: errhint.CodeOf(err)}
	status := http.StatusInternalServerError
	switch f.Status {
	case errhint.Usage:
		status = http.StatusNotFound
	case errhint.TryAgain:
		status = http.StatusConflict
	}
	if wrong, is := errors.AsType[*wrongError](err); is {
		status = wrong.status
	}
	say(w, status, f)
}

// say writes an answer.
func say(w http.ResponseWriter, status int, answer any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(answer) // who does not take it is gone
}

// wrongError is a request that this server does not know.
type wrongError struct {
	error
	status int
}

func wrong(status int, format string, args ...any) error {
	return errhint.Code(&wrongError{fmt.Errorf(format, args...), status}, errhint.Usage)
}

func (s *Server) answer(w http.ResponseWriter, r *http.Request) (any, error) {
	peer, _ := r.Context().Value(peerKey{}).(Peer)
	path, method := r.URL.Path, http.MethodGet
	what, changes := requestAt(path)
	if changes {
		method = http.MethodPost
	}
	number, ofRank := strings.CutPrefix(path, pathRank)
	switch {
	case path != pathStatus && path != pathEvents && path != pathMetrics && path != pathEvidence && !changes && !ofRank:
		return nil, wrong(http.StatusNotFound, "there is no %q", path)
	case r.Method != method:
		return nil, wrong(http.StatusMethodNotAllowed, "%s is asked by %s", path, method)
	case path == pathStatus:
		scope, err := scopeOf(r, World)
		if err != nil {
			return nil, err
		}
		status, err := s.cfg.Served.Status(r.Context(), scope)
		if scope == Node && s.cfg.Muster.Role != Agent { // who looks for jobs needs no 4,096 ranks of each launcher
			status.Ranks, status.Tasks = nil, []report.Task{}
		}
		return Answer{Status: status, Muster: s.cfg.Muster}, err
	case path == pathEvents:
		return s.events(r)
	case path == pathEvidence:
		return s.evidence(r)
	case ofRank:
		rank, err := strconv.ParseUint(number, 10, 31)
		if err != nil {
			return nil, wrong(http.StatusBadRequest, "%q is no rank", number)
		}
		return s.cfg.Served.Rank(r.Context(), int(rank))
	}
	var asked Wanted
	body := json.NewDecoder(http.MaxBytesReader(w, r.Body, mostBody))
	body.DisallowUnknownFields()
	if err := body.Decode(&asked); err != nil {
		return nil, wrong(http.StatusBadRequest, "the request cannot be read: %w", err)
	}
	request := Request{what, peer, asked}
	s.cfg.Served.Asked(request)
	sentence, err := s.cfg.Served.Do(r.Context(), request)
	if err != nil {
		s.cfg.Served.Refused(request, err)
	}
	return said{sentence}, err
}

// eventsWait is how long a client that asks for it waits for an event that has not happened.
const eventsWait = 2 * time.Second

// events answers with the events behind the one that the client has, and waits for one where that is asked for.
func (s *Server) events(r *http.Request) (any, error) {
	query := r.URL.Query()
	after, err := strconv.ParseUint(cmp.Or(query.Get("after"), "0"), 10, 64)
	if err != nil {
		return nil, wrong(http.StatusBadRequest, "%q is no number of an event", query.Get("after"))
	}
	wait := time.Duration(0)
	if query.Get("wait") == "1" {
		wait = eventsWait
	}
	ctx, cancel := context.WithTimeout(r.Context(), wait)
	defer cancel()
	defer context.AfterFunc(s.closing, cancel)() //nolint:contextcheck // the end of the server ends the waiting, too
	return happened{s.cfg.Served.Events().After(ctx, after)}, nil
}

// happened is the answer to a request for events.
type happened struct {
	Events []Event `json:"events"`
}
