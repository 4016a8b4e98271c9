package tcpstore

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"muster/internal/sockowner"
)

// Server serves a store until Close. Its methods are safe for concurrent use.
type Server struct {
	cfg   ServerConfig
	space *space
	gate  *gate // nil: open to all
	owner sockowner.Asker
	pool  blobPool
	hoard hoard
	crowd crowd
	notices
	addrs []netip.AddrPort
	loops []*loop

	mu     sync.Mutex // held over Reset and Close
	spare  int        // a descriptor to give up when no other is left and the backlog must be emptied; -1: none
	closed bool
}

// defaultLoops is how many threads a Server serves with when its configuration does not say: one per two cores, at most
// four. Clients on the same machine need the other half; with one loop per core both figures get worse (docs/adr/0002).
func defaultLoops() int { return min(max(runtime.GOMAXPROCS(0)/2, 1), 4) }

// Listen binds every address of cfg and starts to serve. It returns an error that satisfies
// errors.Is(err, syscall.EADDRINUSE) when the port is taken.
func Listen(cfg ServerConfig) (*Server, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	fds, addrs, err := bind(cfg)
	if err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg, addrs: addrs, crowd: newCrowd()}
	s.space = newSpace(cfg.Limits, cfg.Private, &s.pool)
	s.cfg.Limits = s.space.lim
	if len(cfg.Allow) > 0 {
		s.gate = newGate(cfg)
	}
	n := cfg.Loops
	if n <= 0 {
		n = defaultLoops()
	}
	for range n {
		l, err := newLoop(s)
		if err != nil {
			for _, l := range s.loops {
				l.release()
			}
			closeAll(fds)
			return nil, err
		}
		s.loops = append(s.loops, l)
	}
	if err := s.loops[0].listen(fds); err != nil {
		for _, l := range s.loops {
			l.release()
		}
		return nil, err
	}
	s.reserve()
	for _, l := range s.loops {
		go l.run()
	}
	return s, nil
}

// Addrs returns the addresses that the server listens on, in the order of its configuration.
func (s *Server) Addrs() []netip.AddrPort { return slices.Clone(s.addrs) }

// Port returns the port, which is the same on every address.
func (s *Server) Port() int { return int(s.addrs[0].Port()) }

// Operations is how many requests it has carried out.
func (s *Server) Operations() uint64 {
	s.space.mu.Lock()
	defer s.space.mu.Unlock()
	return s.space.asked
}

// Reset begins a new round: every connection is closed, also those that still stand in the backlog, and all keys,
// queues and waiters are gone when it returns, except for what belongs to the agents (ServerConfig.Private). The
// listeners stay.
func (s *Server) Reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	empty, resume := make(chan struct{}), make(chan struct{})
	for _, l := range s.loops { // the first one accepts: once it has stopped, no other gets new connections
		l.post(func() {
			l.hangUp(true)
			empty <- struct{}{}
			<-resume
		})
		<-empty
	}
	// Only now are the descriptors of the old connections free, which accepting takes. The loops stand still.
	s.emptyBacklog()
	s.space.mu.Lock()
	s.space.beginLocked()
	for _, l := range s.loops {
		s.space.unclaimLocked(l.conns)
	}
	s.space.mu.Unlock()
	close(resume)
}

// Forget deletes those keys of the agents that begin with prefix. Who waits for one of them goes on waiting.
func (s *Server) Forget(prefix string) {
	s.space.mu.Lock()
	defer s.space.mu.Unlock()
	for key := range s.space.agents.keys {
		if strings.HasPrefix(key, prefix) {
			s.space.agents.deleteLocked([]byte(key))
		}
	}
}

// emptyBacklog closes the connections that were not accepted yet.
func (s *Server) emptyBacklog() {
	if s.spare < 0 {
		s.reserve()
	}
	for _, listener := range s.loops[0].listeners {
		for {
			err := s.acceptAndClose(listener)
			if err == unix.EAGAIN {
				break
			}
			if err != 0 && !ofOneClient(err) {
				s.cfg.Log.Error().Err(err).Msg("cannot close store clients of the last round")
				break
			}
		}
	}
}

// acceptAndClose takes one connection from the backlog and closes it, with the spare descriptor if no other is left.
func (s *Server) acceptAndClose(listener int) unix.Errno {
	fd, err := accept(listener, nil)
	if (err == unix.EMFILE || err == unix.ENFILE) && s.spare >= 0 {
		_ = unix.Close(s.spare)
		defer s.reserve()
		fd, err = accept(listener, nil)
	}
	if err == 0 {
		_ = unix.Close(fd)
	}
	return err
}

// reserve opens the spare descriptor; without one, spare is -1.
func (s *Server) reserve() {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		fd = -1
	}
	s.spare = fd
}

// Close stops serving, closes every connection and returns when nothing of the server is left. It may be called again.
func (s *Server) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	for _, l := range s.loops {
		l.post(func() { l.stopped = true })
		<-l.done
	}
	for _, l := range s.loops {
		l.release()
	}
	if s.spare >= 0 {
		_ = unix.Close(s.spare)
	}
	s.owner.Close()
	return nil
}

func closeAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}

// bind opens a listening socket per address, all with the same port.
func bind(cfg ServerConfig) (fds []int, addrs []netip.AddrPort, err error) {
	hosts, optional := cfg.Hosts, 0
	if len(hosts) == 0 {
		hosts, optional = []string{"127.0.0.1", "::1"}, 1
	}
	var ips []netip.Addr
	v4 := false
	for _, h := range hosts {
		ip, err := netip.ParseAddr(h)
		if err != nil {
			return nil, nil, err
		}
		ips, v4 = append(ips, ip), v4 || ip.Is4()
	}
	// A port that is free on the first address may be taken on the next: with port 0, try others.
	for range 16 {
		fds, addrs, err = bindPort(ips, cfg.Port, len(ips)-optional, v4)
		if cfg.Port != 0 || !errors.Is(err, unix.EADDRINUSE) {
			break
		}
	}
	return fds, addrs, err
}

func bindPort(ips []netip.Addr, port, required int, v4 bool) (fds []int, addrs []netip.AddrPort, err error) {
	for i, ip := range ips {
		fd, got, err := bindOne(netip.AddrPortFrom(ip, uint16(port)), v4)
		if err != nil {
			if i >= required && !errors.Is(err, unix.EADDRINUSE) {
				continue // no IPv6 on this machine
			}
			closeAll(fds)
			return nil, nil, err
		}
		port = int(got.Port())
		fds, addrs = append(fds, fd), append(addrs, got)
	}
	return fds, addrs, nil
}

func bindOne(addr netip.AddrPort, v6only bool) (fd int, got netip.AddrPort, err error) {
	family := unix.AF_INET
	var sa unix.Sockaddr
	if addr.Addr().Is4() {
		sa = &unix.SockaddrInet4{Port: int(addr.Port()), Addr: addr.Addr().As4()}
	} else {
		family = unix.AF_INET6
		sa6 := &unix.SockaddrInet6{Port: int(addr.Port()), Addr: addr.Addr().As16()}
		if zone := addr.Addr().Zone(); zone != "" {
			ifi, err := net.InterfaceByName(zone)
			if err != nil {
				return 0, got, bindError(addr, err, false)
			}
			sa6.ZoneId = uint32(ifi.Index)
		}
		sa = sa6
	}
	fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, got, bindError(addr, err, false)
	}
	set := func(level, name, value int) {
		if err == nil {
			err = unix.SetsockoptInt(fd, level, name, value)
		}
	}
	set(unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	if family == unix.AF_INET6 && v6only {
		set(unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1)
	}
	// Accepted sockets inherit these on Linux, which saves their system calls. The probes find clients whose machine
	// went away: within 60 + 6*10 s.
	set(unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	set(unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1)
	set(unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 60)
	set(unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, 10)
	set(unix.IPPROTO_TCP, unix.TCP_KEEPCNT, 6)
	if err == nil {
		err = unix.Bind(fd, sa)
	}
	if err == nil {
		err = unix.Listen(fd, 1<<20) // the kernel takes net.core.somaxconn instead if that is less
	}
	var name unix.Sockaddr
	if err == nil {
		name, err = unix.Getsockname(fd)
	}
	if err != nil {
		_ = unix.Close(fd)
		return 0, got, bindError(addr, err, errors.Is(err, unix.EADDRINUSE))
	}
	switch n := name.(type) {
	case *unix.SockaddrInet4:
		got = netip.AddrPortFrom(addr.Addr(), uint16(n.Port))
	case *unix.SockaddrInet6:
		got = netip.AddrPortFrom(addr.Addr(), uint16(n.Port))
	default:
		_ = unix.Close(fd)
		return 0, got, fmt.Errorf("cannot listen on %s: socket has an address of type %T", addr, name)
	}
	return fd, got, nil
}
