package tcpstore

import (
	"bytes"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
)

// TestRefusalsPerAddressAndMinute has addresses come at made-up times, and more of them than are remembered.
func TestRefusalsPerAddressAndMinute(t *testing.T) {
	var log bytes.Buffer
	g := newGate(ServerConfig{Allow: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, Log: zerolog.New(&log)})
	now := time.Unix(1_800_000_000, 0)
	addr := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{192, 168, byte(i >> 8), byte(i)}) }
	lines := func(what string, want int) {
		t.Helper()
		if n := strings.Count(log.String(), "\n"); n != want {
			t.Errorf("%s: %d lines, want %d", what, n, want)
		}
		log.Reset()
	}
	if !g.admit(netip.MustParseAddr("10.1.2.3"), now) || g.admit(netip.Addr{}, now) {
		t.Error("the wrong ones are admitted")
	}
	lines("nowhere", 1)
	for second := range 121 {
		for range 3 {
			g.admit(addr(0), now.Add(time.Duration(second)*time.Second))
		}
	}
	lines("at 0, 60 and 120 seconds", 3)
	now = now.Add(time.Hour)
	for range 2 {
		for i := range 5 * refusalNames {
			g.admit(addr(i), now)
		}
	}
	lines("too many", refusalNames+1)
	if len(g.logged) != refusalNames {
		t.Errorf("%d addresses are remembered, want %d", len(g.logged), refusalNames)
	}
	now = now.Add(refusalPause)
	g.admit(addr(5*refusalNames-1), now)
	lines("a minute later", 1)
	if len(g.logged) != 1 {
		t.Errorf("%d addresses are remembered, want 1", len(g.logged))
	}
}
