package tcpstore_test

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"muster/rendezvous/tcpstore"
)

// TestListsLeaveOthersTheirTurn has clients ask for long lists of all keys, one after the other, while another one has
// something to say: it is heard after one list or two, and not when they have all they want.
func TestListsLeaveOthersTheirTurn(t *testing.T) {
	const lists, names = 20, 50
	s := listen(t, tcpstore.ServerConfig{Loops: 1})
	greedy, also, modest := dialHello(t, s), dialHello(t, s), dialHello(t, s)
	for i := range names {
		modest.send(opSet + str(fmt.Sprintf("%04d", i)) + str(""))
	}
	for _, c := range []raw{greedy, also, modest} {
		c.alive()
	}
	release := tcpstore.Hold(s)
	greedy.send(strings.Repeat(opListKeys, lists))
	also.send(strings.Repeat(opListKeys, lists))
	if err := also.Conn.(*net.TCPConn).CloseWrite(); err != nil { // it gets what it has asked for all the same
		t.Fatal(err)
	}
	modest.send(opSet + str("mark") + str(""))
	release()
	without := 0
	for _, c := range []raw{greedy, also} {
		for range lists {
			keys := make([]byte, 8)
			if _, err := io.ReadFull(c, keys); err != nil {
				t.Fatal(err)
			}
			n := int(binary.LittleEndian.Uint64(keys))
			if n == names {
				without++
			}
			if _, err := io.CopyN(io.Discard, c, int64(n*12)); err != nil {
				t.Fatal(err)
			}
		}
	}
	greedy.alive()
	also.expectClosed()
	if without > 2 {
		t.Errorf("%d lists were made before another client had its turn", without)
	}
}

// The list of all keys has a limit of its own: it is made at once, while everybody waits.
func TestListBeyondTheLimitIsRefused(t *testing.T) {
	s := listen(t, tcpstore.ServerConfig{Limits: tcpstore.Limits{ListAtOnce: 1000}})
	c := dialHello(t, s)
	c.send(opSet + str(strings.Repeat("k", 1000-8-8-100)) + str("v"))
	c.ask(opListKeys, u64(1)+str(strings.Repeat("k", 1000-8-8-100)))
	c.send(opSet + str("") + str("v") + opListKeys)
	c.expectClosed()
	c = dialHello(t, s)
	c.send(opMultiGet + keys(slicesRepeat(strings.Repeat("k", 1000-8-8-100), 200)...))
	c.expect(strings.Repeat(str("v"), 200))
}
