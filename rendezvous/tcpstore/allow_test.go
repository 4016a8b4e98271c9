package tcpstore_test

import (
	"bytes"
	"context"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"muster/internal/errhint"
	"muster/rendezvous/tcpstore"
)

func prefixes(t testing.TB, list ...string) (out []netip.Prefix) {
	t.Helper()
	for _, text := range list {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, p)
	}
	return out
}

// TestAllow connects from several addresses to a server that takes both families on one socket, which gives IPv4
// clients an address of IPv6.
func TestAllow(t *testing.T) {
	for _, tc := range []struct {
		name   string
		allow  []string
		served []string // of 127.0.0.1, 127.0.0.2, 127.1.2.3 and ::1
	}{
		{"nobody said", nil, []string{"127.0.0.1", "127.0.0.2", "127.1.2.3", "::1"}},
		{"one address", []string{"127.0.0.2/32"}, []string{"127.0.0.2"}},
		{"a network, written with host bits", []string{"127.0.0.77/24"}, []string{"127.0.0.1", "127.0.0.2"}},
		{"two networks", []string{"10.0.0.0/8", "127.1.0.0/16", "::1/128"}, []string{"127.1.2.3", "::1"}},
		{"IPv4 in IPv6", []string{"::ffff:127.0.0.0/120"}, []string{"127.0.0.1", "127.0.0.2"}},
		{"all of IPv6", []string{"::/0"}, []string{"::1"}},
		{"all of IPv4", []string{"0.0.0.0/0"}, []string{"127.0.0.1", "127.0.0.2", "127.1.2.3"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := listen(t, tcpstore.ServerConfig{Hosts: []string{"::"}, Allow: prefixes(t, tc.allow...)})
			for _, from := range []string{"127.0.0.1", "127.0.0.2", "127.1.2.3", "::1"} {
				c := dialFrom(t, s, from)
				if !slices.Contains(tc.served, from) {
					c.expectClosed()
					continue
				}
				c.ask(hello+opPing+"ping", "ping")
			}
		})
	}
}

// dialFrom connects from an address to the server's port on the address itself.
func dialFrom(t testing.TB, s *tcpstore.Server, from string) raw {
	t.Helper()
	ip := net.ParseIP(from)
	c, err := net.DialTCP("tcp", &net.TCPAddr{IP: ip}, &net.TCPAddr{IP: ip, Port: s.Port()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return raw{t, c}
}

func TestAllowRefusesNonsense(t *testing.T) {
	if s, err := tcpstore.Listen(tcpstore.ServerConfig{Allow: make([]netip.Prefix, 1)}); errhint.CodeOf(err) != errhint.Usage {
		t.Errorf("error %v, want a usage error", err)
		if s != nil {
			s.Close()
		}
	}
}

// TestRefusedClientsDoNotFillTheLog has two addresses come again and again.
func TestRefusedClientsDoNotFillTheLog(t *testing.T) {
	var log bytes.Buffer
	s, err := tcpstore.Listen(tcpstore.ServerConfig{
		Hosts: []string{"0.0.0.0"}, Allow: prefixes(t, "127.0.0.1/32"), Log: zerolog.New(zerolog.SyncWriter(&log)),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	began := time.Now()
	for range 50 {
		dialFrom(t, s, "127.0.0.5").expectClosed()
		dialFrom(t, s, "127.0.0.6").expectClosed()
	}
	dialFrom(t, s, "127.0.0.1").ask(hello+opPing+"ping", "ping")
	took := time.Since(began)
	s.Close() // ends the loop that writes
	want := 2 * (1 + int(took/time.Minute))
	if n := strings.Count(log.String(), "\n"); n < 2 || n > want || !strings.Contains(log.String(), "127.0.0.5") ||
		!strings.Contains(log.String(), "127.0.0.6") {
		t.Errorf("%d lines, want 2:\n%s", n, log.String())
	}
}

// TestAClientIsToldWhyItMayBeRefused dials from an address that is not allowed.
func TestAClientIsToldWhyItMayBeRefused(t *testing.T) {
	s := listen(t, tcpstore.ServerConfig{Allow: prefixes(t, "10.0.0.0/8")})
	ctx, cancel := context.WithTimeout(t.Context(), time.Second) // over which it tries again and again
	defer cancel()
	_, err := tcpstore.Dial(ctx, s.Addrs()[0].String(), tcpstore.ClientConfig{})
	if err == nil || !strings.Contains(errhint.Of(err), "network that it serves") {
		t.Errorf("error %v, hint %q", err, errhint.Of(err))
	}
}
