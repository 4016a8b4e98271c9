package tcpstore_test

import (
	"strings"
	"testing"
	"time"

	"muster/internal/testutil"
	"muster/rendezvous/tcpstore"
)

// TestUnreadCopiesOfAValueAreBounded: who leaves the answers to GET unread keeps a big value alive that was replaced meanwhile. A
// store that is full takes no request that has it make another copy, however few bytes that has.
func TestUnreadCopiesOfAValueAreBounded(t *testing.T) {
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
				reader := dialHello(t, s) // it reads nothing
				reader.send(opGet + str("k"))
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

// TestUnreadListsOfValuesAreBounded: one answer to MULTI_GET may name a big value very often. What the server keeps to send it counts
// as unread, though the value itself is there once.
func TestUnreadListsOfValuesAreBounded(t *testing.T) {
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
