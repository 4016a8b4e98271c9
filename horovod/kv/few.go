package kv

import (
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"
)

// mostOfOne is how many connections an address may have: a worker has one for each request, and one that waits for its
// place.
const mostOfOne = 4096

// mostConns is that, or less where it would take most of the process's descriptors.
func mostConns() int {
	var files unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &files) == nil && files.Cur/4 < mostOfOne {
		return max(int(files.Cur/4), 64)
	}
	return mostOfOne
}

// few is a listener on which each address has few connections at the same time, whatever is said on them: any request
// is valid that an HTTP client sends, and one that is answered may be followed by others. What is above the limit is
// closed.
type few struct {
	net.Listener
	most int
	log  zerolog.Logger

	mu   sync.Mutex
	open map[netip.Addr]int
	told notices
}

func newFew(l net.Listener, most int, log zerolog.Logger) *few {
	return &few{Listener: l, most: most, log: log, open: map[netip.Addr]int{}, told: notices{}}
}

// fewConn leaves its place when it is closed.
type fewConn struct {
	net.Conn
	leave func()
}

// Close implements net.Conn.
func (c fewConn) Close() error {
	c.leave()
	return c.Conn.Close()
}

// Accept implements net.Listener.
func (f *few) Accept() (net.Conn, error) {
	for {
		conn, err := f.Listener.Accept()
		if err != nil {
			return nil, err
		}
		var addr netip.Addr
		if from, ok := conn.RemoteAddr().(*net.TCPAddr); ok {
			addr = from.AddrPort().Addr().Unmap().WithZone("")
		}
		if f.enter(addr) {
			return fewConn{conn, sync.OnceFunc(func() { f.leave(addr) })}, nil
		}
		_ = conn.Close()
	}
}

func (f *few) enter(addr netip.Addr) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.open[addr] < f.most {
		f.open[addr]++
		return true
	}
	if f.told.due(addr, time.Now()) {
		f.log.Warn().Stringer("addr", addr).Int("limit", f.most).
			Msg("the rendezvous of Horovod's workers refuses a client: too many connections come from its address")
	}
	return false
}

func (f *few) leave(addr netip.Addr) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.open[addr]--; f.open[addr] == 0 {
		delete(f.open, addr)
	}
}
