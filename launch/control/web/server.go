package web

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	stdlog "log"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"muster/internal/admission"
	"muster/internal/errhint"
	"muster/internal/sockowner"
	"muster/launch/control"
	"muster/launch/report"
)

// What clients may cost.
const (
	mostClients    = 1100 // connections
	mostOtherUsers = 32   // of them from other users of this machine
	mostHeader     = 16 << 10
	mostBody       = 64 << 10
	mostMeasuring  = 2                // answers for Prometheus at once
	headerTime     = 5 * time.Second  // for a request to come
	idleTime       = 30 * time.Second // between two of them
	writeTime      = 10 * time.Second // for an answer, or a part of a stream, to be taken
	partTime       = 200 * time.Millisecond
)

// How often the job is looked at: while somebody watches, and else for the history.
const (
	watchedEvery = time.Second
	idleEvery    = 10 * time.Second
)

// Config is what a Server serves.
type Config struct {
	Served control.Served
	Muster control.Muster
	// Token is the job's: who has it may look from anywhere, and steer. Empty: nobody may.
	Token []byte
	// Every is how often the job is looked at while somebody watches; 0: each second.
	Every time.Duration
	Log   zerolog.Logger
}

// Listen takes the address that a user has chosen: HOST:PORT, or a port of this machine alone. tokened says that the
// job has a token that its user knows: without one only loopback may be listened at. Errors carry status 2: nothing was
// started.
func Listen(ctx context.Context, address string, tokened bool) (net.Listener, error) {
	if strings.Trim(address, "0123456789") == "" {
		address = "127.0.0.1:" + address
	}
	const hint = "give HOST:PORT, such as 127.0.0.1:7777, or port 0 for one that is free"
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, errhint.With(errhint.Usagef("cannot serve a page at %q: %w", address, err), hint)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil {
		return nil, errhint.With(errhint.Usagef("cannot serve a page at %q: %q is no port", address, port), hint)
	} else if host == "" {
		host = "0.0.0.0"
		if n == 0 {
			address = "0.0.0.0:0"
		}
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", net.JoinHostPort(host, port))
	if err != nil {
		return nil, errhint.With(errhint.Usagef("cannot serve a page at %s: %w", address, err),
			"is the address another machine's, or the port in use? Port 0 takes one that is free")
	}
	if !isLoopback(l.Addr()) && !tokened {
		return nil, errors.Join(errhint.With(
			errhint.Usagef("cannot serve a page at %s, which other machines reach: the job has no token that could be asked for", address),
			"give --token-file, or listen at 127.0.0.1 and look from elsewhere through ssh -L"), l.Close())
	}
	return l, nil
}

func isLoopback(a net.Addr) bool {
	tcp, is := a.(*net.TCPAddr)
	return is && tcp.IP.IsLoopback()
}

// Server answers at one address.
type Server struct {
	cfg      Config
	listener net.Listener
	door     *door
	http     *http.Server
	loopback bool
	access   access
	picture  *picture
	steer    http.Handler
	// measuring has an item for each look at the job for metrics.
	measuring chan struct{}
	wg        sync.WaitGroup
	closing   context.Context    // ends when the server closes
	leave     context.CancelFunc // ends it
}

// Serve begins to answer at a listener of Listen, and owns it.
func Serve(l net.Listener, cfg Config) *Server {
	if cfg.Every <= 0 {
		cfg.Every = watchedEvery
	}
	cfg.Muster.PID = os.Getpid()
	s := &Server{
		cfg: cfg, listener: l, loopback: isLoopback(l.Addr()), picture: newPicture(cfg),
		measuring: make(chan struct{}, mostMeasuring),
	}
	s.access = newAccess(cfg.Token, cfg.Muster.RunDir, s.loopback)
	s.steer = control.Handler(control.Config{Served: fromAfar{cfg.Served}, Muster: cfg.Muster, Log: cfg.Log})
	s.closing, s.leave = context.WithCancel(context.Background())
	s.http = &http.Server{
		Handler: http.HandlerFunc(s.handle), ReadHeaderTimeout: headerTime, ReadTimeout: headerTime, IdleTimeout: idleTime,
		MaxHeaderBytes: mostHeader, ErrorLog: stdlog.New(discard{}, "", 0), Protocols: new(http.Protocols),
		BaseContext: func(net.Listener) context.Context { return s.closing },
		ConnContext: func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, clientKey{}, c) },
	}
	s.http.Protocols.SetHTTP1(true)
	s.door = &door{Listener: l, loopback: s.loopback}
	if !s.loopback { // there anybody may come
		s.door.Listener = admission.Listener(l, admission.Config{Total: 256, PerAddr: 64, Time: headerTime})
	}
	s.wg.Go(func() { _ = s.http.Serve(s.door) })
	s.wg.Go(func() { s.picture.look(s.closing) })
	return s
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }

// Addr is where the server answers, URL the same for people.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// URL is the address of the page.
func (s *Server) URL() string { return "http://" + s.listener.Addr().String() + "/" }

// Close ends the server, and gives answers that are on their way a moment.
func (s *Server) Close() error {
	if s == nil {
		return nil
	}
	s.leave() // streams end
	ctx, cancel := context.WithTimeout(context.Background(), partTime)
	defer cancel()
	err := s.http.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = s.http.Close()
	}
	s.wg.Wait()
	s.door.owners.Close()
	return err
}

type clientKey struct{}

// client is a connection, and what is known of who is at its other end.
type client struct {
	net.Conn
	// uid is the user on this machine, -1 where that is not known.
	uid int
	// otherUser says that it is another user of this machine.
	otherUser bool
	once      sync.Once
	leave     func()
}

func (c *client) Close() error {
	c.once.Do(c.leave)
	return c.Conn.Close()
}

// door is the listener: who is one too many is closed at once.
type door struct {
	net.Listener
	loopback   bool
	owners     sockowner.Asker
	clients    atomic.Int64
	otherUsers atomic.Int64
}

func (d *door) Accept() (net.Conn, error) {
	for {
		raw, err := d.Listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil, err
		}
		if err != nil { // such as for want of descriptors
			time.Sleep(50 * time.Millisecond)
			continue
		}
		if d.clients.Add(1) > mostClients {
			d.clients.Add(-1)
			_ = raw.Close()
			continue
		}
		c := &client{Conn: raw, uid: -1}
		if d.loopback {
			c.uid, c.otherUser = d.owner(raw)
		}
		if c.otherUser && d.otherUsers.Add(1) > mostOtherUsers {
			d.otherUsers.Add(-1)
			d.clients.Add(-1)
			_ = raw.Close()
			continue
		}
		c.leave = func() {
			d.clients.Add(-1)
			if c.otherUser {
				d.otherUsers.Add(-1)
			}
		}
		return c, nil
	}
}

// owner asks the kernel whose process is at the other end of a connection within this machine.
func (d *door) owner(c net.Conn) (uid int, otherUser bool) {
	remote, isTCP := c.RemoteAddr().(*net.TCPAddr)
	local, alsoTCP := c.LocalAddr().(*net.TCPAddr)
	if !isTCP || !alsoTCP {
		return -1, true
	}
	ours, owner, err := d.owners.Ours(remote.AddrPort(), local.AddrPort())
	if err != nil {
		return -1, !ours
	}
	return int(owner), !ours
}

// handle answers one request.
func (s *Server) handle(w http.ResponseWriter, r *http.Request) {
	c, _ := r.Context().Value(clientKey{}).(*client)
	h := w.Header()
	h.Set("Content-Security-Policy",
		"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; form-action 'self'; "+
			"base-uri 'none'; frame-ancestors 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTime))
	if !s.access.hostKnown(r.Host) {
		fail(w, http.StatusMisdirectedRequest, "this address is not one that the page is served at",
			"open http://"+s.listener.Addr().String()+"/")
		return
	}
	proven := s.access.proven(r)
	if r.URL.Path == pathLogin || r.URL.Query().Has("token") {
		s.login(w, r)
		return
	}
	if !proven && (!s.loopback || c.otherUser) {
		if !s.loopback && (r.URL.Path == pathHealth || r.URL.Path == pathReady) &&
			(r.Method == http.MethodGet || r.Method == http.MethodHead) {
			s.probed(w, r) // by a kubelet, which has no token
			return
		}
		s.unproven(w, r)
		return
	}
	admission.Proven(c.Conn)
	s.route(w, r, c, proven)
}

// The paths.
const (
	pathPage    = "/"
	pathStyle   = "/page.css"
	pathIcon    = "/icon.svg"
	pathLogin   = "/login"
	pathHealth  = "/healthz"
	pathReady   = "/readyz"
	pathMetrics = "/metrics"
	pathAPI     = "/api/v1/"
)

func (s *Server) route(w http.ResponseWriter, r *http.Request, c *client, proven bool) {
	path := r.URL.Path
	verb, _ := strings.CutPrefix(path, pathAPI)
	if steers(verb) {
		s.change(w, r, c, proven)
		return
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		fail(w, http.StatusMethodNotAllowed, path+" is asked by GET", "")
		return
	}
	switch path {
	case pathHealth:
		text(w, http.StatusOK, "ok\n")
	case pathReady:
		s.ready(w, r)
	case pathMetrics:
		s.metrics(w, r)
	case pathAPI + "status":
		s.status(w, r)
	case pathAPI + "history":
		send(w, http.StatusOK, s.picture.history.read(r.URL.Query().Get("points")))
	case pathAPI + "stream":
		s.stream(w, r, true, proven)
	case pathAPI + "events":
		if r.Header.Get("Accept") == "application/json" { // as muster events --at asks
			s.steer.ServeHTTP(w, r)
			return
		}
		s.stream(w, r, false, proven)
	default:
		if n, is := strings.CutSuffix(verb, "/logs"); is {
			if n, is = strings.CutPrefix(n, "ranks/"); is {
				s.logs(w, r, c, n)
				return
			}
		}
		if !file(w, path) {
			fail(w, http.StatusNotFound, fmt.Sprintf("there is no %q", path), "")
		}
	}
}

// metrics answers for Prometheus, a few at a time: each answer is a look at the job of its own.
func (s *Server) metrics(w http.ResponseWriter, r *http.Request) {
	select {
	case s.measuring <- struct{}{}:
		defer func() { <-s.measuring }()
		control.Metrics(s.cfg.Served).ServeHTTP(w, r)
	case <-r.Context().Done():
	}
}

// steers reports whether a verb changes something.
func steers(verb string) bool {
	switch verb {
	case "stop", "restart", "pause", "resume", "scale", "kill-node":
		return true
	}
	return false
}

// change has the job do something, for who has shown the token and is no other site's script.
func (s *Server) change(w http.ResponseWriter, r *http.Request, c *client, proven bool) {
	switch {
	case r.Method != http.MethodPost:
		w.Header().Set("Allow", "POST")
		fail(w, http.StatusMethodNotAllowed, r.URL.Path+" is asked by POST", "")
	case !proven:
		fail(w, http.StatusForbidden, "only who has shown the job's token may steer it",
			"log in with it, or call muster "+strings.TrimPrefix(r.URL.Path, pathAPI)+" on the job's machine")
	case !s.access.sameOrigin(r):
		fail(w, http.StatusForbidden, "the request does not come from this page", "send it with Authorization: Bearer TOKEN")
	default:
		r.Body = http.MaxBytesReader(w, r.Body, mostBody)
		peer := control.Peer{UID: c.uid, Address: c.RemoteAddr().String()}
		s.steer.ServeHTTP(w, r.WithContext(control.AsPeer(r.Context(), peer)))
	}
}

// fromAfar is a job as it may be steered over a network, from where nothing comes that is executed.
type fromAfar struct{ control.Served }

// Do implements control.Served.
func (j fromAfar) Do(ctx context.Context, r control.Request) (string, error) {
	if len(r.Command) > 0 {
		return "",
			errhint.With(errhint.Usagef("cannot take a new command from the page"), "call muster resume -- COMMAND on a machine of the job")
	}
	return j.Served.Do(ctx, r)
}

// ready says whether workers run.
func (s *Server) ready(w http.ResponseWriter, r *http.Request) {
	a, err := s.picture.answer(r.Context())
	switch {
	case err != nil:
		text(w, http.StatusServiceUnavailable, err.Error()+"\n")
	case a.Phase != report.PhaseRunning:
		text(w, http.StatusServiceUnavailable, string(a.Phase)+"\n")
	default:
		text(w, http.StatusOK, "ok\n")
	}
}

// probed answers who has not shown the token: whether muster lives, and whether workers run, but nothing else.
func (s *Server) probed(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == pathReady {
		if a, err := s.picture.answer(r.Context()); err != nil || a.Phase != report.PhaseRunning {
			text(w, http.StatusServiceUnavailable, "not ready\n")
			return
		}
	}
	text(w, http.StatusOK, "ok\n")
}

// status says how the job stands, as muster status -o json does.
func (s *Server) status(w http.ResponseWriter, r *http.Request) {
	a, err := s.picture.answer(r.Context())
	if err != nil {
		fail(w, http.StatusServiceUnavailable, err.Error(), errhint.Of(err))
		return
	}
	send(w, http.StatusOK, a)
}

// problem is an answer that says why there is no other, in the words of the control socket.
type problem struct {
	Error string `json:"error"`
	Hint  string `json:"hint,omitempty"`
}

func fail(w http.ResponseWriter, status int, why, hint string) { send(w, status, problem{why, hint}) }

func send(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v) // who does not take it is gone
}

func text(w http.ResponseWriter, status int, s string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(s))
}
