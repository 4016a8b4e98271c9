package tcpstore

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"muster/internal/sockowner"
)

const (
	readChunk   = 16 << 10 // bytes read at once; more only means that more of a big value is copied twice
	readRounds  = 16       // reads of one connection before the others get their turn
	acceptBurst = 512      // connections accepted before the others get their turn
	acceptPause = 100 * time.Millisecond
	maxEvents   = 512
	wakeSlot    = -1 // of the eventfd; listener i has slot -2-i
)

// loop is a thread that serves its share of the connections. It blocks in epoll_wait only; the other system calls do
// not block, and so skip the bookkeeping that Go's scheduler does around one that may.
//
// Readiness is edge-triggered: the kernel then does not look at every connection a second time after it was served.
type loop struct {
	srv       *Server
	epfd      int
	evfd      int
	listeners []int
	done      chan struct{} // closed when run has returned

	conns   []*conn // by slot
	free    []int32 // slots without connection
	serial  int32
	taken   int
	buf     []byte
	out     reply
	peer    peer               // of the connection accepted last, where that matters
	again   []*conn            // not read to the end
	listed  bool               // all keys were listed in this turn, which takes long
	stalled map[*conn]struct{} // with a full reply buffer
	woken   []*conn
	dues    []int
	mutes   []mute    // connections that have said nothing valid, the one that must speak first in front
	backlog bool      // listeners may have more
	retry   time.Time // when to accept again after running out of descriptors; zero: now
	stopped bool

	box struct {
		mu     sync.Mutex
		fds    []arrival
		woken  []*conn
		calls  []func()
		posted bool // the eventfd has been written since the last look
	}
}

func newLoop(s *Server) (*loop, error) {
	l := &loop{srv: s, done: make(chan struct{}), buf: make([]byte, readChunk), stalled: make(map[*conn]struct{})}
	var err error
	if l.epfd, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, fmt.Errorf("cannot create an epoll descriptor: %w", err)
	}
	if l.evfd, err = unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC); err != nil {
		_ = unix.Close(l.epfd)
		return nil, fmt.Errorf("cannot create an event descriptor: %w", err)
	}
	if err := l.watch(unix.EPOLL_CTL_ADD, l.evfd, unix.EPOLLIN, wakeSlot, 0); err != nil {
		l.release()
		return nil, fmt.Errorf("cannot watch an event descriptor: %w", err)
	}
	return l, nil
}

// listen makes the loop the owner of fds, also when it returns an error.
func (l *loop) listen(fds []int) error {
	l.listeners = fds
	for i, fd := range fds {
		if err := l.watch(unix.EPOLL_CTL_ADD, fd, unix.EPOLLIN, int32(-2-i), 0); err != nil {
			return fmt.Errorf("cannot watch a listening socket: %w", err)
		}
	}
	return nil
}

// release closes the loop's own descriptors. No other loop may be running.
func (l *loop) release() {
	closeAll(l.listeners)
	l.listeners = nil
	_ = unix.Close(l.evfd)
	_ = unix.Close(l.epfd)
}

func (l *loop) watch(how, fd int, events uint32, slot, serial int32) error {
	ev := unix.EpollEvent{Events: events | unix.EPOLLET, Fd: slot, Pad: serial}
	_, _, e := unix.RawSyscall6(unix.SYS_EPOLL_CTL, uintptr(l.epfd), uintptr(how), uintptr(fd), uintptr(unsafe.Pointer(&ev)), 0, 0)
	if e != 0 {
		return e
	}
	return nil
}

// post has the loop call f; from any goroutine.
func (l *loop) post(f func()) {
	l.box.mu.Lock()
	l.box.calls = append(l.box.calls, f)
	l.ringLocked()
}

// ringLocked releases the box and makes sure that the loop looks into it.
func (l *loop) ringLocked() {
	ring := !l.box.posted
	l.box.posted = true
	l.box.mu.Unlock()
	if ring {
		one := [8]byte{1}
		_, _, _ = unix.RawSyscall(unix.SYS_WRITE, uintptr(l.evfd), uintptr(unsafe.Pointer(&one)), 8)
	}
}

func (l *loop) run() {
	defer close(l.done)
	events := make([]unix.EpollEvent, maxEvents)
	for !l.stopped {
		l.listed = false
		n, err := unix.EpollWait(l.epfd, events, l.timeout())
		if err != nil && !errors.Is(err, unix.EINTR) {
			// Only a broken descriptor or pointer of ours can cause this; going on would spin.
			l.srv.cfg.Log.Error().Err(err).Msg("store loop ended")
			break
		}
		for i := range max(n, 0) {
			ev := &events[i]
			switch {
			case ev.Fd == wakeSlot:
				l.openBox()
			case ev.Fd < 0:
				l.backlog = true
			default:
				// An event may be of a connection that an earlier one of the same batch has closed.
				if int(ev.Fd) < len(l.conns) {
					if c := l.conns[ev.Fd]; c != nil && c.serial == ev.Pad {
						l.handle(c, ev.Events)
					}
				}
			}
		}
		if l.backlog && (l.retry.IsZero() || !time.Now().Before(l.retry)) {
			l.accept()
		}
		if len(l.again) > 0 {
			l.goOn()
		}
		if len(l.woken) > 0 {
			l.deliver()
		}
		if len(l.stalled) > 0 {
			l.closeStalled()
		}
		if len(l.mutes) > 0 {
			if now := time.Now(); !now.Before(l.mutes[0].till) {
				l.closeSilent(now)
			}
		}
	}
	l.hangUp(false)
	closeAll(l.listeners)
	l.listeners = nil
}

// timeout returns how long epoll_wait may block, in milliseconds.
func (l *loop) timeout() int {
	switch {
	case len(l.again) > 0 || len(l.woken) > 0 || l.backlog && l.retry.IsZero():
		return 0
	case l.backlog:
		return int(acceptPause / time.Millisecond)
	case len(l.stalled) > 0:
		return int(min(time.Second, l.srv.cfg.StallTimeout/4+time.Millisecond) / time.Millisecond)
	case len(l.mutes) > 0:
		return int(min(max(time.Until(l.mutes[0].till), 0)+time.Millisecond, time.Minute) / time.Millisecond)
	}
	return -1
}

// openBox does what others asked for.
func (l *loop) openBox() {
	l.box.mu.Lock()
	fds, woken, calls := l.box.fds, l.box.woken, l.box.calls
	l.box.fds, l.box.woken, l.box.calls, l.box.posted = nil, nil, nil, false
	l.box.mu.Unlock()
	for _, a := range fds {
		l.adopt(a)
	}
	l.woken = append(l.woken, woken...)
	for _, f := range calls {
		f()
	}
}

// accept takes what stands in the backlog and shares it out among the loops in turn.
func (l *loop) accept() {
	starved := !l.retry.IsZero()
	l.backlog, l.retry = false, time.Time{}
	loops := l.srv.loops
	shares := make([][]arrival, len(loops))
	taken := 0
	for _, listener := range l.listeners {
		for {
			if taken == acceptBurst {
				l.backlog = true
				break
			}
			fd, err := accept(listener, &l.peer)
			if err == 0 {
				taken++
				from := l.admit(fd)
				if from == nil {
					_ = unix.Close(fd)
					continue
				}
				l.taken++
				shares[l.taken%len(loops)] = append(shares[l.taken%len(loops)], arrival{fd, from})
				continue
			}
			if ofOneClient(err) {
				continue
			}
			if err != unix.EAGAIN {
				// Out of descriptors or memory: those who wait stay in the backlog until some come free.
				if !starved {
					l.srv.cfg.Log.Warn().Err(err).Msg("cannot accept store clients for now")
				}
				l.backlog, l.retry = true, time.Now().Add(acceptPause)
			}
			break
		}
	}
	for i, fds := range shares {
		if len(fds) == 0 {
			continue
		}
		if o := loops[i]; o != l {
			o.box.mu.Lock()
			o.box.fds = append(o.box.fds, fds...)
			o.ringLocked()
			continue
		}
		for _, a := range fds {
			l.adopt(a)
		}
	}
}

// admit counts the connection that was accepted last. It returns nil where its address may not come in, or has too many
// connections that say nothing, or its process is another user's.
func (l *loop) admit(fd int) *source {
	addr, now := l.peer.addr(), time.Now()
	if l.srv.gate != nil && !l.srv.gate.admit(addr, now) {
		return nil
	}
	if l.srv.cfg.OwnUser && !l.srv.ours(fd, addr, now) {
		return nil
	}
	from := l.srv.crowd.enter(addr)
	if from == nil && l.srv.due(addr, now) {
		l.srv.cfg.Log.Warn().Stringer("addr", addr).Int32("limit",
			l.srv.crowd.limit).Msg("store refuses a client: too many connections from its address send nothing")
	}
	return from
}

// ours reports whether a connection comes from another machine, or from a process of this user or of root.
func (s *Server) ours(fd int, addr netip.Addr, now time.Time) bool {
	remote, local, err := sockowner.Ends(fd)
	if err != nil { // it has been closed by its other end
		return false
	}
	ours, uid, err := s.owner.Ours(remote, local)
	if !ours && err == nil && s.due(addr, now) {
		s.cfg.Log.Warn().Uint32("uid", uid).Str("addr", remote.String()).
			Msg("the store refuses a client: its process is another user's; --store-allow 127.0.0.0/8 lets those in")
	}
	return ours
}

// accept takes one connection, and notes where it comes from unless from is nil.
func accept(fd int, from *peer) (int, unix.Errno) {
	const flags = unix.SOCK_NONBLOCK | unix.SOCK_CLOEXEC
	if from == nil {
		n, _, e := unix.RawSyscall6(unix.SYS_ACCEPT4, uintptr(fd), 0, 0, flags, 0, 0)
		return int(n), e
	}
	from.size = uint32(unsafe.Sizeof(from.sa))
	n, _, e := unix.RawSyscall6(unix.SYS_ACCEPT4, uintptr(fd), uintptr(unsafe.Pointer(&from.sa)), uintptr(unsafe.Pointer(&from.size)),
		flags, 0, 0)
	return int(n), e
}

// ofOneClient says that an error of accept is that of the connection at hand, and the next one may be in order.
func ofOneClient(err unix.Errno) bool {
	return err == unix.EINTR || err == unix.ECONNABORTED || err == unix.EPROTO
}

// adopt makes fd a connection of this loop.
func (l *loop) adopt(a arrival) {
	l.serial++
	fd := a.fd
	c := &conn{loop: l, from: a.from, fd: int32(fd), serial: l.serial, gen: int8(genUnknown)}
	c.conn = c
	if n := len(l.free); n > 0 {
		c.slot, l.free = l.free[n-1], l.free[:n-1]
		l.conns[c.slot] = c
	} else {
		c.slot = int32(len(l.conns))
		l.conns = append(l.conns, c)
	}
	l.mutes = append(l.mutes, mute{c, time.Now().Add(l.srv.cfg.SilentTimeout)})
	if err := l.watch(unix.EPOLL_CTL_ADD, fd, unix.EPOLLIN|unix.EPOLLRDHUP, c.slot, c.serial); err != nil {
		l.close(c, fmt.Errorf("cannot watch a connection: %w", err))
	}
}

// finish closes c as soon as it has got the replies to what came before: its peer may only have closed its own side.
func (l *loop) finish(c *conn, reason error) {
	if c.closed || c.out == nil {
		l.close(c, reason)
		return
	}
	l.explain(c, reason)
	c.ending = true
	if c.fill != nil {
		l.srv.pool.release(c.fill.blob)
	}
	c.in, c.fill = nil, nil
	_ = l.count(c)
	l.stalled[c] = struct{}{}
	l.leave(c)
}

// leave forgets what c waits for.
func (l *loop) leave(c *conn) {
	s := l.srv.space
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropWaitLocked(&c.waiter)
	s.passOnLocked(&c.waiter)
	l.notifyLocked(c)
}

func (l *loop) explain(c *conn, reason error) {
	if e := l.srv.cfg.Log.Debug(); reason != nil && e.Enabled() {
		e.Err(reason).Str("addr", peerName(int(c.fd))).Msg("store client dropped")
	}
}

// close ends c. A nil reason is the ordinary end.
func (l *loop) close(c *conn, reason error) {
	if c.closed {
		return
	}
	l.explain(c, reason)
	c.closed = true
	l.leave(c)
	if c.hoards {
		l.hoards(c, 0)
	}
	if c.fill != nil {
		l.srv.pool.release(c.fill.blob)
	}
	if c.out != nil {
		for _, seg := range c.out.segs {
			if seg.blob != nil {
				l.srv.pool.release(seg.blob)
			}
		}
	}
	c.in, c.fill, c.out = nil, nil, nil
	_ = l.count(c)
	c.gone()
	delete(l.stalled, c)
	l.conns[c.slot] = nil
	l.free = append(l.free, c.slot)
	_ = unix.Close(int(c.fd))
}

func peerName(fd int) string {
	switch sa, _ := unix.Getpeername(fd); sa := sa.(type) {
	case *unix.SockaddrInet4:
		return fmt.Sprintf("%d.%d.%d.%d:%d", sa.Addr[0], sa.Addr[1], sa.Addr[2], sa.Addr[3], sa.Port)
	case *unix.SockaddrInet6:
		return fmt.Sprintf("[%x]:%d", sa.Addr, sa.Port)
	}
	return "gone"
}

// hangUp closes every connection, also those that were not adopted yet, or all but the agents'.
func (l *loop) hangUp(spare bool) {
	l.box.mu.Lock()
	for _, a := range l.box.fds {
		a.hangUp()
	}
	l.box.fds = nil
	l.box.mu.Unlock()
	for _, c := range l.conns {
		if c == nil || spare && c.agent {
			continue
		}
		l.close(c, nil)
	}
	gone := func(c *conn) bool { return c.closed }
	l.again = slices.Clone(slices.DeleteFunc(l.again, gone)) // a clone is as long as what is left
	l.woken = slices.Clone(slices.DeleteFunc(l.woken, gone))
	l.mutes = slices.Clone(slices.DeleteFunc(l.mutes, func(m mute) bool { return m.c.closed }))
	l.trim()
}

// trim gives up the slots behind the last one that is in use.
func (l *loop) trim() {
	n := len(l.conns)
	for n > 0 && l.conns[n-1] == nil {
		n--
	}
	l.conns, l.free = slices.Clone(l.conns[:n]), nil
	for slot := range int32(n) {
		if l.conns[slot] == nil {
			l.free = append(l.free, slot)
		}
	}
}

// handle serves what epoll said of c.
func (l *loop) handle(c *conn, events uint32) {
	if events&(unix.EPOLLHUP|unix.EPOLLERR|unix.EPOLLRDHUP) != 0 {
		c.hungup = true
	}
	if c.ending && events&(unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		l.close(c, nil)
		return
	}
	if events&unix.EPOLLOUT != 0 && c.out != nil {
		l.push(c)
		if c.closed {
			return
		}
	}
	l.read(c)
}

// goOn reads on where read stopped to let others have their turn.
func (l *loop) goOn() {
	list := l.again
	l.again, l.listed = nil, false // who has waited is not behind those who come now
	for _, c := range list {
		if c.closed {
			continue
		}
		c.again = false
		if c.in != nil {
			l.take(c, nil) // requests that were left alone while paused
		}
		l.read(c)
	}
}
