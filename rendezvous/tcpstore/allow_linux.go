package tcpstore

import (
	"net/netip"
	"time"
	"unsafe"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"
)

const (
	refusalPause = time.Minute // between two log lines about one address
	refusalNames = 1024        // addresses that are remembered for that; an attacker with IPv6 has any number
)

// gate decides who may come in. Only the loop that accepts touches it.
type gate struct {
	allow  []netip.Prefix // empty: all
	log    zerolog.Logger
	logged map[netip.Addr]time.Time // when the last line about an address was written
	swept  time.Time                // when logged was last searched for what is too old
	full   time.Time                // when the last line about too many addresses was written
}

// newGate returns the gate of a configuration that withDefaults has seen.
func newGate(cfg ServerConfig) *gate {
	return &gate{allow: cfg.Allow, log: cfg.Log, logged: make(map[netip.Addr]time.Time)}
}

// admit says whether a client from addr is served, and writes down if not.
func (g *gate) admit(addr netip.Addr, now time.Time) bool {
	for _, p := range g.allow {
		if p.Contains(addr) {
			return true
		}
	}
	if last, ok := g.logged[addr]; ok && now.Sub(last) < refusalPause {
		return false
	}
	if len(g.logged) >= refusalNames && now.Sub(g.swept) >= time.Second {
		g.swept = now
		for a, last := range g.logged {
			if now.Sub(last) >= refusalPause {
				delete(g.logged, a)
			}
		}
	}
	if _, known := g.logged[addr]; !known && len(g.logged) >= refusalNames {
		if now.Sub(g.full) >= refusalPause {
			g.full = now
			g.log.Warn().Int("addresses", refusalNames).Msg("store refuses clients from so many addresses that others are not named")
		}
		return false
	}
	g.logged[addr] = now
	g.log.Warn().Stringer("addr", addr).Msg("store refuses a client: its address is in none of the allowed networks")
	return false
}

// peer is where accept puts the address of a client.
type peer struct {
	sa   unix.RawSockaddrAny
	size uint32
}

// addr returns the address, an IPv4 one in its short form, or an invalid one, which no network contains.
func (p *peer) addr() netip.Addr {
	switch p.sa.Addr.Family {
	case unix.AF_INET:
		return netip.AddrFrom4((*unix.RawSockaddrInet4)(unsafe.Pointer(&p.sa)).Addr)
	case unix.AF_INET6:
		return netip.AddrFrom16((*unix.RawSockaddrInet6)(unsafe.Pointer(&p.sa)).Addr).Unmap()
	}
	return netip.Addr{}
}
