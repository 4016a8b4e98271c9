// Package tcpstore is the key-value store that PyTorch calls TCPStore: a server that every PyTorch release since 1.9
// can use as its own, and a client that speaks to our server and to theirs.
//
// The server keeps its promises to every client whatever another one sends: a length is checked before anything is
// allocated for it, a client that does not read costs a bounded buffer, and no request of one can block another. It
// never looks up a name. The protocol has no authentication; who can reach the port can read and write everything.
//
// launch and muster store run the server, rendezvous uses the client.
package tcpstore

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"muster/internal/errhint"
)

// KeyFull is the name, behind ServerConfig.Private, of a key that says why a client of the agents was closed because
// the store was full: the protocol has no answer that could. It is a hint, that anybody may write.
const KeyFull = "full"

// ServerConfig says where a Server listens and what it allows. The zero value listens on a free port of the loopback
// addresses.
type ServerConfig struct {
	// Hosts are the addresses to bind, as IP literals; names are refused, because resolving them could take minutes.
	// None means 127.0.0.1 and, where the machine has it, ::1.
	Hosts []string
	// Port is bound on every address; 0 takes one that is free on all of them.
	Port int
	// Loops is the number of threads that serve; 0 takes defaultLoops.
	Loops int
	// OldClients is the generation that a client without handshake is taken for. A client taken for PyTorch 1.9-2.0
	// (G0) is known as 2.1 (G1) from its first DELETE_KEY on. Before that, its APPEND is misread as DELETE_KEY of the
	// older ones, and its MULTI_GET, MULTI_SET and CANCEL_WAIT are refused: where clients of 2.1 use those, this must
	// be G1.
	OldClients Generation
	// Limits bound what one client can make the server hold.
	Limits Limits
	// Private begins the keys of the agents, "muster/" for example; empty: they have none. Such keys live beside those
	// of the workers, who neither count nor list them, and Reset spares them, together with every connection that has
	// named one in a request that the server has carried out; it stays what it is, an agent's. What such a connection
	// waits for it goes on waiting for, keys of the workers included. PyTorch's clients begin every key with "/", save
	// "init/", so that none of theirs can be private by accident, which Listen makes sure of.
	Private string
	// Allow are the networks whose clients are served; everybody else's connections are closed as they come, with a
	// warning per address and minute. None: all are served. Loopback has to be named like any other, and an IPv4 client
	// is one in whatever form its address comes: 0.0.0.0/0 and ::/0 are needed for all.
	Allow []netip.Prefix
	// OwnUser has clients from this machine served only where the kernel says that their process is of this user, or of
	// root: every user of a machine reaches all its addresses. Connections of others are closed as they come, with a
	// warning. Where the kernel cannot tell they are served.
	OwnUser bool
	// SilentTimeout is how long a connection may stay open from which nothing valid has come, save as many as its
	// address has others: old clients have a second one that is silent. 0 means 10 s.
	SilentTimeout time.Duration
	// StallTimeout is how long a full reply buffer may stay as full as it is before its connection is closed; 0 means
	// 60 s.
	StallTimeout time.Duration
	// Log gets one line at debug level for a connection that is closed for what it sent, a warning when no descriptor
	// is left for new ones or one is refused, and an error where the store is full: of each address one a minute.
	Log zerolog.Logger
}

func (c ServerConfig) withDefaults() (ServerConfig, error) {
	if c.Port < 0 || c.Port > 65535 {
		return c, errhint.Usagef("port %d is not between 0 and 65535", c.Port)
	}
	if c.OldClients != G0 && c.OldClients != G1 {
		return c, errhint.Usagef("old clients cannot be of generation %d", c.OldClients)
	}
	for _, h := range c.Hosts {
		if _, err := netip.ParseAddr(h); err != nil {
			return c, errhint.With(errhint.Usagef("cannot bind %q: not an IP address", h),
				"give the address itself, for example 127.0.0.1 or 0.0.0.0")
		}
	}
	if c.Private != "" && (c.Private[0] == '/' || strings.HasPrefix("init/", c.Private)) {
		return c, errhint.Usagef("keys that begin with %q cannot be private: keys of PyTorch's clients do, too", c.Private)
	}
	allow := make([]netip.Prefix, 0, len(c.Allow))
	for _, p := range c.Allow {
		if !p.IsValid() {
			return c, errhint.Usagef("cannot allow a network that is none: %v", p)
		}
		if p.Addr().Is4In6() && p.Bits() >= 96 {
			p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
		}
		allow = append(allow, p)
	}
	c.Allow = allow
	if c.SilentTimeout <= 0 {
		c.SilentTimeout = 10 * time.Second
	}
	if c.StallTimeout <= 0 {
		c.StallTimeout = time.Minute
	}
	c.Limits = c.Limits.withDefaults()
	return c, nil
}

// bindError wraps what bind or listen said of addr. It satisfies errors.Is(err, syscall.EADDRINUSE) where it applies.
func bindError(addr netip.AddrPort, err error, inUse bool) error {
	err = fmt.Errorf("cannot listen on %s: %w", addr, err)
	if inUse {
		return errhint.With(err, fmt.Sprintf("another process has port %d (see: ss -ltnp)", addr.Port()))
	}
	return err
}
