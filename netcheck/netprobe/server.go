package netprobe

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"muster/internal/errhint"
	"muster/internal/handshake"
)

// banner is what a client of probes says first.
const banner = "muster-probe 1\r\n"

// Server offers this node to its peers' probes. Connections wait in the kernel until Serve is called.
type Server struct {
	cfg Config
	ln  net.Listener
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
		return nil, errhint.With(fmt.Errorf("cannot offer probes at %s: %w", cfg.Listen, err), "is the port in use? port 0 takes a free one")
	}
	return &Server{
		cfg: cfg, ln: ln, slots: make(chan struct{}, cfg.MaxConns), runSlots: make(chan struct{}, cfg.MaxRuns), now: func() time.Time { return cfg.Medium.wall(time.Now()) }, runs: map[string]*run{},
	}, nil
}

// Addr returns where the server listens, with the real port.
func (s *Server) Addr() netip.AddrPort { return addrPort(s.ln.Addr()) }

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
			var soft net.Error
			if errors.As(err, &soft) && soft.Timeout() || isExhausted(err) {
				// Out of descriptors: connections end by themselves, and the client tries again.
				select {
				case <-ctx.Done():
				case <-time.After(50 * time.Millisecond):
				}
				continue
			}
			return fmt.Errorf("cannot accept connections for probes: %w", err)
		}
		select {
		case s.slots <- struct{}{}:
			wg.Go(func() {
				defer func() { <-s.slots }()
				s.handle(ctx, conn)
			})
		default:
			handshake.Refuse(conn)
			_ = conn.Close()
		}
	}
}

// Times that bound a session of a client.
const (
	idleTime    = 2 * maxRun       // between two requests: a run, or sizes, lie between
	requestTime = 10 * time.Second // to send a request to its end, or to take an answer
	sessionTime = maxBudget
)

// handle serves one connection.
func (s *Server) handle(ctx context.Context, conn net.Conn) {
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(ctx, sessionTime)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	_ = conn.SetDeadline(time.Now().Add(handshake.Time))
	key, err := handshake.Admit(conn, banner, s.cfg.Token)
	if err != nil {
		return // a stranger, of whom there is nothing to say
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
