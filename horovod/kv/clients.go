package kv

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"muster/internal/sockowner"
)

// Clients are the machines whose workers a server answers. What Horovod's workers say carries no proof of who they are,
// so their addresses are what there is to go by, and whose processes connect by them, as each machine's kernel knows
// it. Its methods may be called by several goroutines at once.
type Clients struct {
	networks []netip.Prefix
	log      zerolog.Logger

	mu      sync.Mutex
	hosts   map[string]host
	unknown notices   // of addresses that are no host's
	wrong   notices   // of addresses from where something was said for another host's worker, or that made no sense
	others  time.Time // when the last line about another user of this machine was written
	owner   sockowner.Asker
}

// Whose says whether a connection, whose end at from is on another machine, belongs to the job's user or to root there.
type Whose func(ctx context.Context, from, to netip.AddrPort) (ours bool, err error)

// host is a machine of the job.
type host struct {
	addrs []netip.Addr
	whose Whose
}

// notices are when the last line of the log about an address was written.
type notices map[netip.Addr]time.Time

// due reports whether a line about an address is to be written, and notes it: one a minute, of a bounded number of
// addresses.
func (n notices) due(addr netip.Addr, now time.Time) bool {
	if last, ok := n[addr]; ok && now.Sub(last) < refusalPause {
		return false
	}
	if len(n) >= refusalNames {
		for a, last := range n {
			if now.Sub(last) >= refusalPause {
				delete(n, a)
			}
		}
	}
	if len(n) >= refusalNames {
		return false
	}
	n[addr] = now
	return true
}

const (
	refusalPause = time.Minute // between two lines of the log about one address
	refusalNames = 1024        // addresses that are remembered for that
	maxLocalRank = 4096
	whosePause   = 5 * time.Second // that a machine has to say whose a connection is
)

// NewClients returns clients without hosts. networks are those whose clients are answered besides: where addresses are
// translated on their way, nobody knows a host's.
func NewClients(networks []netip.Prefix, log zerolog.Logger) *Clients {
	return &Clients{networks: networks, log: log, hosts: map[string]host{}, unknown: notices{}, wrong: notices{}}
}

// Set says which addresses a host of the job has, as its workers' connections come from them, and who tells whose
// process there has such a connection: nil for this machine, whose kernel was asked already.
func (c *Clients) Set(name string, addrs []netip.Addr, whose Whose) {
	plain := make([]netip.Addr, 0, len(addrs))
	for _, a := range addrs {
		plain = append(plain, bare(a))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hosts[name] = host{plain, whose}
}

// Drop forgets a host, which is not of the job any more.
func (c *Clients) Drop(host string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.hosts, host)
}

// bare is an address as it is compared: IPv4 as such, without a zone, and any of loopback as 127.0.0.1.
func bare(a netip.Addr) netip.Addr {
	a = a.Unmap().WithZone("")
	if a.IsLoopback() {
		return netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	return a
}

func (c *Clients) inNetworks(addr netip.Addr) bool {
	return slices.ContainsFunc(c.networks, func(p netip.Prefix) bool { return p.Contains(addr.Unmap().WithZone("")) })
}

// admits reports whether an address is one of the job's hosts, and writes down if not.
func (c *Clients) admits(addr netip.Addr, now time.Time) bool {
	if c.inNetworks(addr) {
		return true
	}
	addr = bare(addr)
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, h := range c.hosts {
		if slices.Contains(h.addrs, addr) {
			return true
		}
	}
	if c.unknown.due(addr, now) {
		c.log.Warn().Stringer("addr",
			addr).Msg("the rendezvous of Horovod's workers refuses a client: it is none of the job's hosts; --store-allow names networks " +
			"whose clients are let in besides")
	}
	return false
}

// words reports whether it is to be told that something was refused that came from an address.
func (c *Clients) words(addr netip.Addr, now time.Time) bool {
	if c == nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.wrong.due(bare(addr), now)
}

// is reports whether an address may be that of a host.
func (c *Clients) is(host string, addr netip.Addr) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if slices.Contains(c.hosts[host].addrs, bare(addr)) {
		return true
	}
	if !c.inNetworks(addr) {
		return false
	}
	for _, h := range c.hosts { // it may come by a translated address, but not by another host's
		if slices.Contains(h.addrs, bare(addr)) {
			return false
		}
	}
	return true
}

// owns reports whether a client may speak for a worker: it comes from the worker's host.
func (c *Clients) owns(slot string, r *http.Request) bool {
	if c == nil {
		return true
	}
	at := strings.LastIndexByte(slot, ':')
	if at < 0 {
		return false
	}
	if rank, err := strconv.Atoi(slot[at+1:]); err != nil || rank < 0 || rank >= maxLocalRank {
		return false
	}
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	return err == nil && c.is(slot[:at], from.Addr())
}

// speaks reports whether a client may change anything: its process is the job's user's, or root's, on its host. That is
// not asked where the networks have its address.
func (c *Clients) speaks(r *http.Request) bool {
	if c == nil {
		return true
	}
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	to, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	if err != nil || !ok {
		return false
	}
	if c.inNetworks(from.Addr()) {
		return true
	}
	c.mu.Lock()
	var asked []Whose
	for _, h := range c.hosts { // a machine may have several names
		if slices.Contains(h.addrs, bare(from.Addr())) {
			asked = append(asked, h.whose)
		}
	}
	c.mu.Unlock()
	at := to.AddrPort()
	ctx, cancel := context.WithTimeout(r.Context(), whosePause)
	defer cancel()
	for _, whose := range asked {
		if whose == nil {
			return true
		}
		if ours, err := whose(ctx, from, netip.AddrPortFrom(at.Addr().Unmap(), at.Port())); err == nil && ours {
			return true
		}
	}
	return false
}

// ours reports whether a connection is from another machine, or from a process of this user or of root: all users of
// this machine reach its addresses. Whose it is is not asked where the networks have its address, and told where it is
// another's.
func (c *Clients) ours(remote, local netip.AddrPort, now time.Time) bool {
	if c.inNetworks(remote.Addr()) {
		return true
	}
	ours, uid, err := c.owner.Ours(remote, local)
	if ours || err != nil {
		return ours
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if now.Sub(c.others) >= refusalPause {
		c.others = now
		c.log.Warn().Uint32("uid", uid).Stringer("addr", remote).Str("hint",
			"--store-allow "+bare(remote.Addr()).String()+" lets those in").
			Msg("the rendezvous of Horovod's workers refuses a client: its process is another user's")
	}
	return false
}

// known is a listener that closes connections from elsewhere than the job's hosts.
type known struct {
	net.Listener
	clients *Clients
}

// Close implements net.Listener.
func (k known) Close() error {
	k.clients.owner.Close()
	return k.Listener.Close()
}

// Accept implements net.Listener.
func (k known) Accept() (net.Conn, error) {
	for {
		conn, err := k.Listener.Accept()
		if err != nil {
			return nil, err
		}
		from, remote := conn.RemoteAddr().(*net.TCPAddr)
		to, local := conn.LocalAddr().(*net.TCPAddr)
		now := time.Now()
		if remote && local && k.clients.admits(from.AddrPort().Addr(), now) && k.clients.ours(from.AddrPort(), to.AddrPort(), now) {
			return conn, nil
		}
		_ = conn.Close()
	}
}
