package netprobe

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"muster/internal/admission"
	"muster/internal/errhint"
	"muster/internal/peertls"
)

// Server offers this node to its peers' probes. Connections wait in the kernel until Serve is called.
type Server struct {
	cfg      Config
	ln       *admission.Gate
	id       peertls.Identity
	acceptor *peertls.Acceptor
	// slots holds one item per connection, runSlots one per run.
	slots, runSlots chan struct{}
	now             func() time.Time // the wall clock

	mu   sync.Mutex
	runs map[string]*run
}

// Listen opens the server's port. The caller calls Serve, which closes it.
func Listen(ctx context.Context, cfg Config) (*Server, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", cfg.Listen)
	if err != nil {
		return nil,
			errhint.With(fmt.Errorf("cannot offer probes at %s: %w", cfg.Listen, err), "is the port in use? port 0 takes a free one")
	}
	host := cfg.Host
	if host == "" {
		host = addrPort(ln.Addr()).Addr().String()
	}
	id := peertls.NewIdentity(net.JoinHostPort(host, strconv.Itoa(int(addrPort(ln.Addr()).Port()))))
	return &Server{
		cfg: cfg, id: id, acceptor: cfg.domain().Acceptor(id),
		ln:    admission.Listener(ln, admission.Config{Time: peertls.Time, Refuse: peertls.Refuse}),
		slots: make(chan struct{}, cfg.MaxConns), runSlots: make(chan struct{}, cfg.MaxRuns),
		now: func() time.Time { return cfg.Medium.wall(time.Now()) }, runs: map[string]*run{},
	}, nil
}

// Identity is what the server is announced as to the other nodes, for Pair: "host:port/nonce". It is another one in
// each process.
func (s *Server) Identity() string { return string(s.id) }

// Serve answers probes until ctx ends, and returns when nothing of it is left. Whatever a client does ends its own
// connection only.
func (s *Server) Serve(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = s.ln.Close() })
	defer stop()
	for {
		conn, err := s.ln.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("cannot accept connections for probes: %w", err)
		}
		if len(s.slots) == cap(s.slots) { // those that have proven themselves
			peertls.Refuse(conn)
			_ = conn.Close()
			continue
		}
		wg.Go(func() { s.handle(ctx, conn) })
	}
}

// Times that bound a session of a client.
const (
	idleTime    = 2 * maxRun       // between two requests: a run, or sizes, lie between
	requestTime = 10 * time.Second // to send a request to its end, or to take an answer
	sessionTime = maxBudget
)

// handle serves one connection.
func (s *Server) handle(ctx context.Context, raw net.Conn) {
	defer func() { _ = raw.Close() }()
	ctx, cancel := context.WithTimeout(ctx, sessionTime)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = raw.Close() })
	defer stop()
	conn, err := s.acceptor.Server(ctx, raw)
	if err != nil || !admission.Proven(raw) {
		return // a peer without the token, of which there is nothing to say
	}
	key, err := conn.Key(datagrams)
	if err != nil {
		return
	}
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	default: // others were faster
		_ = writeMessage(conn, answer{Error: peertls.ErrBusy.Error(), Busy: true})
		return
	}
	se := &session{server: s, conn: conn, key: key, local: addrPort(conn.LocalAddr()), peer: addrPort(conn.RemoteAddr())}
	defer se.end()
	for err == nil { // whatever it is, the client is told or gone
		err = se.next(ctx)
	}
}

// takeRunSlot waits a moment where all runs are taken, so that those who ask again and again cost little.
func (s *Server) takeRunSlot(ctx context.Context) bool {
	wait, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	select {
	case s.runSlots <- struct{}{}:
		return true
	case <-wait.Done():
		return false
	}
}

func (s *Server) addRun(r *run) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.runs[r.id] = r
}

func (s *Server) dropRun(r *run) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.runs, r.id)
}

func (s *Server) run(id string) *run {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.runs[id]
}

// addrPort returns the address of a TCP or UDP socket as it is known elsewhere.
func addrPort(a net.Addr) netip.AddrPort {
	var ap netip.AddrPort
	switch a := a.(type) {
	case *net.TCPAddr:
		ap = a.AddrPort()
	case *net.UDPAddr:
		ap = a.AddrPort()
	}
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}
