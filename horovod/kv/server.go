// Package kv is the key-value store over HTTP by which Horovod's workers find each other: gloo's HTTP store, as
// horovodrun serves it (horovod 0.28.1, horovod/runner/http/http_server.py; the client is
// horovod/common/gloo/http_store.cc). Of an elastic job it also hands the workers' questions to the driver.
//
// What workers expect, and die of otherwise: no status but 200 and 404, a Content-Length header with every answer, and
// an answer at once to a GET of a value that is not there yet, which they ask for again every 10 ms.
package kv

import (
	"context"
	"errors"
	"fmt"
	"io"
	stdlog "log"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"muster/internal/admission"
	"muster/internal/printable"
)

// Scopes that are not stored but belong to the driver of an elastic job.
const (
	addressScope = "worker_addresses" // PUT: where a worker listens for notifications
	placeScope   = "rank_and_size"    // GET: a worker's place in the next world
)

// Limits of what clients may send.
const (
	MaxBody  = 64 << 20  // bytes of one value
	MaxTotal = 512 << 20 // bytes of all values, keys and bodies under way
	maxPath  = 4 << 10
	// maxRegistration is more than a worker with 200 interfaces sends.
	maxRegistration = 64 << 10
)

// How long a client may keep silent within a request, and take to send a whole one.
const (
	readPause   = 3 * time.Second
	readRequest = time.Minute
)

// Driver answers what workers of an elastic job ask. Its methods are called by several goroutines at once.
type Driver interface {
	// Register takes the body of a worker's registration. It does not wait for the worker.
	Register(slot string, body []byte) error
	// Place returns a worker's place in the next world, as horovod.Slot.Place writes it, when that world is decided.
	// The end of ctx means that the worker has hung up. An error means that nobody waits for the answer any more. How
	// many wait at the same time is the driver's to bound: the server bounds their connections alone.
	Place(ctx context.Context, slot string) (string, error)
	// Seen is told that the worker with this rank has begun to look for the others of its world.
	Seen(rank int)
}

// Server is the store and its HTTP handler. Its methods may be called by several goroutines at once.
type Server struct {
	store   *store
	driver  Driver
	clients *Clients // nil: everybody
	log     zerolog.Logger
	full    sync.Once // that the store is full was told
	most    int       // connections of one address
}

// New returns a server without keys. driver is nil for a job that is not elastic.
func New(driver Driver) *Server {
	return &Server{store: newStore(MaxTotal), driver: driver, log: zerolog.Nop(), most: mostConns()}
}

// Only has the server answer these clients and nobody else, and say in the log what it refuses. A worker's registration
// and its question for its place are taken from its own host only. Call it before Serve.
func (s *Server) Only(c *Clients) { s.clients, s.log = c, c.log }

// Begin forgets all values and begins a world whose scopes have these numbers of members, see horovod.Scopes.
func (s *Server) Begin(scopes map[string]int) { s.store.begin(scopes) }

// Listen opens the port on all addresses of both families, or on the one of host. Port 0 takes a free one. Workers
// connect by IPv4 only.
func Listen(ctx context.Context, host string, port int) (net.Listener, error) {
	return listen(ctx, host, port, nil)
}

// listen is Listen with what is done to the socket before.
func listen(ctx context.Context, host string, port int, control func(network, address string, c syscall.RawConn) error) (net.Listener,
	error,
) {
	config := net.ListenConfig{KeepAlive: 15 * time.Second, Control: control}
	l, err := config.Listen(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		return nil, fmt.Errorf("cannot serve the rendezvous of Horovod's workers: %w", err)
	}
	return l, nil
}

// What connections may cost that have not sent a whole request yet: 200 workers of a host that ask every 10 ms have
// fewer.
const (
	unproven      = 4096
	unprovenOfOne = 1024
	unprovenTime  = 10 * time.Second
)

// connKey finds a request's connection in its context.
type connKey struct{}

// Serve answers clients of l until ctx ends. It closes l and returns when all its goroutines have ended.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	l = newFew(l, s.most, s.log)
	if s.clients != nil {
		l = known{l, s.clients}
	}
	l = admission.Listener(l, admission.Config{Total: unproven, PerAddr: unprovenOfOne, Time: unprovenTime})
	// No WriteTimeout: a worker may wait for its place as long as an elastic job waits for hosts.
	server := &http.Server{
		Handler: s, ReadHeaderTimeout: unprovenTime, IdleTimeout: unprovenTime, MaxHeaderBytes: 16 << 10,
		ErrorLog:    stdlog.New(io.Discard, "", 0), // what clients do wrong is not worth a line each
		BaseContext: func(net.Listener) context.Context { return ctx },
		ConnContext: func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) },
	}
	var g errgroup.Group
	stop := context.AfterFunc(ctx, func() {
		g.Go(func() error {
			end, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			if err := server.Shutdown(end); err != nil {
				return server.Close()
			}
			return nil
		})
	})
	defer stop()
	err := server.Serve(l)
	if errors.Is(err, http.ErrServerClosed) {
		return g.Wait()
	}
	return fmt.Errorf("cannot serve the rendezvous of Horovod's workers: %w", errors.Join(err, server.Close()))
}

// ServeHTTP answers one request. The path is taken as it was sent: it is names, no URL.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	scope, key, ok := split(r.RequestURI)
	if !ok {
		answer(w, http.StatusBadRequest, nil)
		return
	}
	if conn, ok := r.Context().Value(connKey{}).(net.Conn); ok {
		admission.Proven(conn)
	}
	if s.driver != nil && (scope == addressScope || scope == placeScope) && !s.clients.owns(key, r) {
		s.refused(r, key, "it is not on that worker's host")
		w.Header().Set("Connection", "close")
		answer(w, http.StatusForbidden, nil)
		return
	}
	if reads := r.Method == http.MethodGet && (s.driver == nil || scope != placeScope); !reads && !s.clients.speaks(r) {
		s.refused(r, key,
			"its process is not known to be one of the job's user on that host; --store-allow names networks where that is not asked")
		w.Header().Set("Connection", "close")
		answer(w, http.StatusForbidden, nil)
		return
	}
	switch r.Method {
	case http.MethodGet:
		s.get(w, r, scope, key)
	case http.MethodPut:
		s.put(w, r, scope, key)
	case http.MethodDelete:
		s.store.finish(scope, key)
		answer(w, http.StatusOK, nil)
	default:
		w.Header().Set("Allow", "GET, PUT, DELETE")
		answer(w, http.StatusMethodNotAllowed, nil)
	}
}

// split takes /scope/key apart.
func split(path string) (scope, key string, ok bool) {
	path, rooted := strings.CutPrefix(path, "/")
	scope, key, two := strings.Cut(path, "/")
	return scope, key, rooted && two && scope != "" && key != "" && !strings.Contains(key, "/") && len(path) <= maxPath
}

func (s *Server) get(w http.ResponseWriter, r *http.Request, scope, key string) {
	if scope == placeScope && s.driver != nil {
		place, err := s.driver.Place(r.Context(), key)
		if err != nil {
			panic(http.ErrAbortHandler) // nobody waits for the answer any more
		}
		answer(w, http.StatusOK, []byte(place))
		return
	}
	value, ok := s.store.get(scope, key)
	if !ok {
		answer(w, http.StatusNotFound, nil)
		return
	}
	answer(w, http.StatusOK, value)
}

func (s *Server) put(w http.ResponseWriter, r *http.Request, scope, key string) {
	registers := scope == addressScope && s.driver != nil
	limit := int64(MaxBody)
	if registers {
		limit = maxRegistration
	}
	if r.ContentLength > limit {
		w.Header().Set("Connection", "close") // the rest is not read
		answer(w, http.StatusRequestEntityTooLarge, nil)
		return
	}
	body, err := s.read(w, r, limit)
	defer s.store.release(int64(cap(body))) // what is stored counts by itself
	switch {
	case errors.Is(err, errFull):
		s.isFull(r, key)
		w.Header().Set("Connection", "close")
		answer(w, http.StatusInsufficientStorage, nil)
		return
	case errors.Is(err, errLarge):
		w.Header().Set("Connection", "close")
		answer(w, http.StatusRequestEntityTooLarge, nil)
		return
	case err != nil:
		w.Header().Set("Connection", "close")
		answer(w, http.StatusRequestTimeout, nil)
		return
	}
	if registers {
		if err := s.driver.Register(key, body); err != nil {
			s.refused(r, key, err.Error())
			answer(w, http.StatusBadRequest, nil)
			return
		}
		answer(w, http.StatusOK, nil)
		return
	}
	if !s.store.put(scope, key, body) {
		s.isFull(r, key)
		answer(w, http.StatusInsufficientStorage, nil)
		return
	}
	if rank, ok := looksForPeers(scope, key); ok && s.driver != nil {
		s.driver.Seen(rank)
	}
	answer(w, http.StatusOK, nil)
}

// refused says why something was refused that a client says for a worker, now and then for each address.
func (s *Server) refused(r *http.Request, worker, why string) {
	if from, err := netip.ParseAddrPort(r.RemoteAddr); err == nil && s.clients.words(from.Addr(), time.Now()) {
		s.log.Warn().Str("addr", r.RemoteAddr).Str("worker", printable.Line(worker, shownMost)).Str("why", printable.Line(why, shownMost)).
			Msg("refused what a client says for a worker; more of that from its address is not told for a minute")
	}
}

// shownMost is how much of a client's text is shown, in bytes.
const shownMost = 100

// isFull says once that the store has no room.
func (s *Server) isFull(r *http.Request, key string) {
	s.full.Do(func() {
		s.log.Error().Str("addr", r.RemoteAddr).Str("key", printable.Line(key, shownMost)).
			Int64("bytes", r.ContentLength).Int64("limit", MaxTotal).
			Msg("the rendezvous of Horovod's workers is full: values are refused")
	})
}

// looksForPeers reports whether a key is the first that the worker with a rank stores in its world.
func looksForPeers(scope, key string) (rank int, ok bool) {
	text, first := strings.CutPrefix(key, "rank_")
	if scope != "global" || !first {
		return 0, false
	}
	rank, err := strconv.Atoi(text)
	return rank, err == nil
}

var errLarge = errors.New("the value is too large")

// read reads a request's body. Its memory grows with what has arrived, whatever length was announced, and is reserved
// in the store's budget; the caller releases the capacity of what comes back.
func (s *Server) read(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	control := http.NewResponseController(w)
	end := time.Now().Add(readRequest)
	var body []byte
	for {
		if len(body) == cap(body) {
			grown := max(512, 2*cap(body))
			if left := r.ContentLength - int64(len(body)); r.ContentLength >= 0 && left < int64(grown-len(body)) {
				grown = len(body) + int(max(left, 0)) + 1 // the end of the body is seen by one byte more
			}
			if !s.store.reserve(int64(grown)) {
				return body, errFull
			}
			bigger := make([]byte, len(body), grown)
			copy(bigger, body)
			s.store.release(int64(cap(body)))
			body = bigger
		}
		pause := time.Now().Add(readPause)
		if pause.After(end) {
			pause = end
		}
		// Where the connection knows no deadlines, as in a test's recorder, there is nothing to wait for either.
		_ = control.SetReadDeadline(pause)
		n, err := r.Body.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		if int64(len(body)) > limit {
			return body, errLarge
		}
		if errors.Is(err, io.EOF) {
			_ = control.SetReadDeadline(time.Time{})
			return body, nil
		}
		if err != nil {
			return body, err
		}
	}
}

func answer(w http.ResponseWriter, status int, body []byte) {
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body) // a client that has gone needs no answer
}
