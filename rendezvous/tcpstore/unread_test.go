package tcpstore_test

import (
	"strings"
	"testing"
	"time"

	"muster/internal/testutil"
	"muster/rendezvous/tcpstore"
)

// TestUnreadCopiesOfAValueAreBounded: who leaves the answers to GET unread keeps a big value alive that was replaced
// meanwhile. A store that is full takes no request that has it make another copy, however few bytes that has.
func TestUnreadCopiesOfAValueAreBounded(t *testing.T) {
	testutil.Long(t)
	const limit, most = 64 << 20, 128
	piece := strings.Repeat("b", 4<<20)
	for name, again := range map[string]string{
		"a few bytes more": opAppend + str("k") + str("b"),
		"a big piece more": opAppend + str("k") + str(strings.Repeat("b", 20<<10)),
	} {
		t.Run(name, func(t *testing.T) {
			s := listen(t, tcpstore.ServerConfig{Limits: tcpstore.Limits{Total: limit}})
			writer := dialHello(t, s)
			for range 3 {
				writer.send(opAppend + str("k") + str(piece))
			}
			writer.alive()
			refused := false
			for range most {
				reader := dialHello(t, s) // it reads one byte, and is served then
				reader.send(opGet + str("k"))
				_ = reader.SetReadDeadline(time.Now().Add(patience))
				if _, err := reader.Read(make([]byte, 1)); err != nil {
					t.Fatal(err)
				}
				before := tcpstore.Held(s)
				_, _ = writer.Write([]byte(again + opPing + "ping"))
				_ = writer.SetReadDeadline(time.Now().Add(patience))
				if _, err := writer.Read(make([]byte, 4)); err != nil {
					refused = true
					break
				}
				testutil.Eventually(t, patience, "the reader was served", func() bool { return tcpstore.Held(s) >= before })
			}
			if held := tcpstore.Held(s); held > 2*limit {
				t.Errorf("the store holds %d bytes, and its limit is %d", held, limit)
			}
			if !refused {
				t.Error("nothing was refused")
			}
		})
	}
}

// TestUnreadListsOfValuesAreBounded: one answer to MULTI_GET may name a big value very often. What the server keeps to
// send it counts as unread, though the value itself is there once.
func TestUnreadListsOfValuesAreBounded(t *testing.T) {
	testutil.Long(t)
	const names, limit = 128 << 10, 16 << 20
	s := listen(t, tcpstore.ServerConfig{Limits: tcpstore.Limits{ReplyTotal: limit}})
	writer := dialHello(t, s)
	writer.send(opSet + str("k") + str(strings.Repeat("b", 16<<10)))
	writer.alive()
	reader := dialHello(t, s) // it reads nothing
	reader.send(opMultiGet + u64(names) + strings.Repeat(str("k"), names))
	testutil.Eventually(t, patience, "the answer waits", func() bool { return tcpstore.Hoarded(s) > 0 })
	if least := names * 2 * 32; tcpstore.Hoarded(s) < least { // before and between two values there is a length
		t.Fatalf("%d bytes count as unread, and the answer takes %d at least", tcpstore.Hoarded(s), least)
	}
	for range 4 {
		dialHello(t, s).send(opMultiGet + u64(names) + strings.Repeat(str("k"), names))
	}
	testutil.Eventually(t, patience, "somebody is closed", func() bool { return tcpstore.Hoarders(s) == 1 && tcpstore.Hoarded(s) <= limit })
	writer.alive()
}

// TestAgentsReadNoMoreThanTheyWrite: a stranger may make the value of an agents' key as long as the store holds. An
// agent that reads it has no more of it in memory than an agent can have written, and sees that it is longer; the
// connection is in step.
func TestAgentsReadNoMoreThanTheyWrite(t *testing.T) {
	const most = 1 << 20
	s := listen(t, tcpstore.ServerConfig{Private: "own/"})
	stranger := dialHello(t, s)
	for range 8 {
		stranger.send(opAppend + str("own/long") + str(strings.Repeat("x", 1<<20)))
		stranger.send(opAppend + str("long") + str(strings.Repeat("x", 1<<20)))
	}
	stranger.alive()
	ctx := t.Context()
	c, err := tcpstore.Dial(ctx, s.Addrs()[0].String(), tcpstore.ClientConfig{Private: "own/", Limits: tcpstore.Limits{Value: most}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for name, read := range map[string]func(key string) ([]byte, error){
		"GET":         func(key string) ([]byte, error) { return c.Get(ctx, key) },
		"COMPARE_SET": func(key string) ([]byte, error) { return c.CompareAndSet(ctx, key, []byte("y"), []byte("z")) },
		"MULTI_GET": func(key string) ([]byte, error) {
			values, err := c.MultiGet(ctx, key)
			if err != nil {
				return nil, err
			}
			return values[0], nil
		},
	} {
		for key, want := range map[string]int{"own/long": most + 1, "long": 8 << 20} {
			if v, err := read(key); err != nil || len(v) != want {
				t.Errorf("%s %s: %d bytes, %v; want %d", name, key, len(v), err, want)
			}
		}
	}
	if n, err := c.Add(ctx, "own/count", 1); err != nil || n != 1 {
		t.Errorf("the connection is out of step: %d, %v", n, err)
	}
}
