package c10d_test

import (
	"context"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"muster/rendezvous/c10d"
	"muster/rendezvous/memstore"
	"muster/rendezvous/tcpstore"
)

// TestBridgeKeepsTheirStore makes a node of ours rank 0 where an agent of torchrun was in the round before: the others
// send their workers to its store in any case, if it serves one.
func TestBridgeKeepsTheirStore(t *testing.T) {
	for _, c := range []struct {
		name  string
		keys  []string // of a store there, nil for none
		other bool     // whether something else listens there
		kept  bool
		left  int64 // keys that stay
	}{
		{"it serves one", []string{"/default_pg/0//cpu//0/0", "init/", "x"}, false, true, 0},
		{"it is the store of the rendezvous", []string{"x", stateKey}, false, true, 2},
		{"nobody listens", nil, false, false, 0},
		{"something else listens", nil, true, false, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			port := l.Addr().(*net.TCPAddr).Port
			var client *tcpstore.Client
			if !c.other {
				l.Close()
			}
			if c.keys != nil {
				server, err := tcpstore.Listen(tcpstore.ServerConfig{})
				if err != nil {
					t.Fatal(err)
				}
				defer server.Close()
				port = server.Port()
				if client, err = tcpstore.Dial(ctx, fmt.Sprintf("127.0.0.1:%d", port), tcpstore.ClientConfig{}); err != nil {
					t.Fatal(err)
				}
				defer client.Close()
				for _, key := range c.keys {
					if err := client.Set(ctx, key, nil); err != nil {
						t.Fatal(err)
					}
				}
			}
			set := c10d.DefaultSettings(2, 2)
			cr := &crowd{T: t, space: memstore.NewSpace(), ctx: ctx, set: set}
			cr.store = cr.space.Client()
			s := c10d.NewState()
			s.Round = 3
			text, err := c10d.Encode(s)
			if err != nil {
				t.Fatal(err)
			}
			if err := cr.store.Set(ctx, stateKey, text); err != nil {
				t.Fatal(err)
			}
			b, p := cr.group(func(cfg *c10d.BridgeConfig) { cfg.Log = zerolog.New(zerolog.NewTestWriter(t)) }, "a"), cr.peer("m")
			p.round.Number = 2
			p.say("MASTER_ADDR", "127.0.0.1")
			p.say("MASTER_PORT", fmt.Sprint(port))
			var j c10d.Joined
			together(func() { j = b.mustJoin() }, func() { p.join(); p.brings(1) })
			if kept := j.MasterPort == port; kept != c.kept || !j.AgentStore {
				t.Errorf("joined %+v, the old store is at port %d", j, port)
			}
			if got := p.hear("MASTER_PORT"); got != fmt.Sprint(j.MasterPort) {
				t.Errorf("the others hear port %s, we %d", got, j.MasterPort)
			}
			if client != nil {
				if n, err := client.NumKeys(ctx); err != nil || n != c.left {
					t.Errorf("%d keys are left in the old store, %v; want %d", n, err, c.left)
				}
			}
		})
	}
}
