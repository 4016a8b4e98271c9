package kv_test

import (
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"muster/horovod/kv"
	"muster/internal/testutil"
)

// TestOtherUsers: every user of a machine reaches loopback. Where a job has workers on this one, processes of others are not answered,
// unless somebody has named loopback.
func TestOtherUsers(t *testing.T) {
	for name, networks := range map[string][]netip.Prefix{"refused": nil, "let in": {netip.MustParsePrefix("127.0.0.0/8")}} {
		t.Run(name, func(t *testing.T) {
			s := kv.New(nil)
			var log buffer
			clients := kv.NewClients(networks, zerolog.New(&log))
			clients.Set("here", addrs("127.0.0.1"))
			s.Only(clients)
			addr := serve(t, s)
			if got, err := from(t, "127.0.0.1", addr, ask("PUT", "/global/0", "ours")); err != nil || got != "HTTP/1.1 200" {
				t.Fatalf("our own process: %q, %v", got, err)
			}
			_, port, _ := net.SplitHostPort(addr)
			const put = `exec 3<>/dev/tcp/127.0.0.1/$0 && printf 'PUT /global/0 HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx' >&3 && head -c 12 <&3 | grep 200`
			err := testutil.Stranger(t, "bash", "-c", put, port).Run()
			if served := err == nil; served != (name == "let in") {
				t.Errorf("another user was answered: %v (%v)", served, err)
			}
			if told := strings.Contains(log.String(), "another user's"); told != (name == "refused") {
				t.Errorf("the log has %q", log.String())
			}
		})
	}
}
