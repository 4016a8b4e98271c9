package tcpstore_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"muster/internal/testutil"
	"muster/rendezvous/tcpstore"
)

// TestTheStoreIsBounded has clients add to a store until they are closed, in each way there is. The store holds no more
// than its limit, serves what does not add to it, and takes more again when there is room.
func TestTheStoreIsBounded(t *testing.T) {
	testutil.Long(t)
	const limit = 4 << 20
	value := strings.Repeat("v", 1000)
	big := strings.Repeat("b", 100<<10)
	for name, c := range map[string]struct {
		add     func(i int) string // a request that has no answer
		partial bool               // it has no end, and each client sends one
	}{
		"small values":   {add: func(i int) string { return opSet + str(fmt.Sprint("k", i)) + str(value) }},
		"names":          {add: func(i int) string { return opSet + str(fmt.Sprint(value, i)) + str("") }},
		"big values":     {add: func(i int) string { return opSet + str(fmt.Sprint("k", i)) + str(big) }},
		"one that grows": {add: func(int) string { return opAppend + str("k") + str(big) }},
		"a queue":        {add: func(int) string { return opQueuePush + str("q") + str(value) }},
		"a queue of big": {add: func(int) string { return opQueuePush + str("q") + str(big) }},
		"many at once": {add: func(i int) string {
			return opMultiSet + u64(2) + str(fmt.Sprint("a", i)) + str(value) + str(fmt.Sprint("b", i)) + str(value)
		}},
		"waits": {add: func(i int) string { return opWait + keys(fmt.Sprint(value, i), value+value) }, partial: true},
		"parts of requests": {add: func(i int) string {
			return opMultiSet + u64(2) + str(fmt.Sprint("a", i)) +
				str(strings.Repeat(big, 5))
		}, partial: true},
		"parts of values": {
			add:     func(i int) string { return opSet + str(fmt.Sprint("a", i)) + u64(800<<10) + strings.Repeat(big, 5) },
			partial: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var log testutil.Buffer
			s, err := tcpstore.Listen(tcpstore.ServerConfig{
				Limits: tcpstore.Limits{Total: limit},
				Log:    zerolog.New(zerolog.SyncWriter(&log)),
			})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			friend := dialHello(t, s)
			friend.ask(opAdd+str("count")+u64(1), u64(1))
			friend.send(opSet + str("old") + str("before"))
			for i := 0; ; i++ {
				if i > 100_000 {
					t.Fatalf("%d requests were taken", i)
				}
				if held := tcpstore.Held(s); held > limit {
					t.Fatalf("it holds %d bytes", held)
				}
				stranger := dialHello(t, s)
				refused := false
				for range map[bool]int{true: 1, false: 100}[c.partial] {
					if _, err := stranger.Write([]byte(c.add(i))); err != nil {
						refused = true
						break
					}
					i++
				}
				if !refused && !c.partial {
					_, _ = stranger.Write([]byte(opPing + "ping"))
					_, err := stranger.Read(make([]byte, 4))
					refused = err != nil
				}
				if c.partial { // nobody answers to it; the log tells
					friend.alive()
					refused = strings.Contains(log.String(), "the store is full")
				}
				if refused {
					break
				}
			}
			for i := range 3 {
				friend.ask(opAdd+str("count")+u64(1), u64(int64(2+i)))
			}
			friend.send(opSet + str("old") + str("later"))
			friend.ask(opGet+str("old"), str("later"))
			testutil.Eventually(t, patience, "it is told", func() bool { return strings.Contains(log.String(), "the store is full") })
			s.Reset()
			testutil.Eventually(t, patience, "nothing is held", func() bool { return tcpstore.Held(s) == 0 })
			s.Close()
			if n := strings.Count(log.String(), "the store is full"); n < 1 || n > 2 ||
				!strings.Contains(log.String(), `"addr":"127.0.0.1:`) || !strings.Contains(log.String(), fmt.Sprint(`"limit":`, limit)) {
				t.Errorf("the log has\n%s", log.String())
			}
		})
	}
}

// What counts as held is what there is: whatever clients do, nothing is left in the end.
func TestTheCountIsRight(t *testing.T) {
	testutil.Long(t)
	s := listen(t, tcpstore.ServerConfig{Private: "own/"})
	random := rand.New(rand.NewPCG(1, 2))
	var clients []raw
	for range 8 {
		clients = append(clients, dialHello(t, s))
	}
	key := func() string { return str([]string{"a", "b", "own/c", "own/d", "e"}[random.IntN(5)]) }
	val := func() string { return str(strings.Repeat("v", []int{0, 1, 100, 20_000, 70_000}[random.IntN(5)])) }
	for range 4000 {
		i := random.IntN(len(clients))
		c := clients[i]
		switch random.IntN(10) {
		case 0, 1:
			c.send(opSet, key(), val())
		case 2:
			c.send(opAppend, key(), val())
		case 3:
			c.send(opQueuePush, key(), val())
		case 4:
			c.send(opMultiSet, u64(2), key(), val(), key(), val())
		case 5:
			c.send(opDelete, key())
			_, _ = c.Read(make([]byte, 8))
		case 6:
			c.send(opSet, str("n"), str("1"))
			c.send(opAdd, str("n"), u64(int64(random.IntN(1<<30))))
			_, _ = c.Read(make([]byte, 8))
		default: // it goes in the middle of something, or waits
			switch random.IntN(4) {
			case 0:
				c.send(opWait, keys("never", "own/never"))
			case 1:
				c.send(opSet, key(), u64(1<<20), strings.Repeat("x", 100_000))
			case 2:
				c.send(opMultiSet, u64(2), key(), str(strings.Repeat("x", 20_000)))
			}
			c.Close()
			clients[i] = dialHello(t, s)
		}
	}
	for _, c := range clients {
		c.alive()
		c.Close()
	}
	last := dialHello(t, s)
	for _, k := range []string{"a", "b", "e", "n", "own/c", "own/d"} {
		last.send(opDelete, str(k))
		_, _ = last.Read(make([]byte, 8))
	}
	last.Close()
	s.Reset() // the workers' queues
	agent := dialHello(t, s)
	for _, k := range []string{"own/c", "own/d"} {
		for {
			agent.send(opQueueLen, str(k))
			n := make([]byte, 8)
			if _, err := agent.Read(n); err != nil || bytes.Equal(n, make([]byte, 8)) {
				break
			}
			agent.send(opQueuePop, str(k))
			head := make([]byte, 16)
			if _, err := readFull(agent, head); err != nil {
				t.Fatal(err)
			}
			size := int(head[8]) | int(head[9])<<8 | int(head[10])<<16
			if _, err := readFull(agent, make([]byte, size)); err != nil {
				t.Fatal(err)
			}
		}
	}
	agent.Close()
	testutil.Eventually(t, patience, "nothing is held", func() bool { return tcpstore.Held(s) == 0 })
}

func readFull(c raw, b []byte) (n int, err error) {
	for n < len(b) && err == nil {
		var m int
		m, err = c.Read(b[n:])
		n += m
	}
	return n, err
}

// Who says nothing, or nothing valid, is closed, and who has spoken is not. An old client's second connection may be
// silent.
func TestSilentClientsAreClosed(t *testing.T) {
	t.Parallel()
	s := listen(t, tcpstore.ServerConfig{Hosts: []string{"0.0.0.0"}, SilentTimeout: 300 * time.Millisecond})
	for name, said := range map[string]string{
		"nothing": "", "half a handshake": hello[:3], "half a request": opGet + u64(100) + "x",
		"part of a value": opSet + str("k") + u64(1<<20) + "x",
	} {
		c := dialFrom(t, s, "127.0.0.7")
		c.send(said)
		if got, err := c.Read(make([]byte, 1)); got != 0 || err == nil {
			t.Errorf("who said %s got %d, %v", name, got, err)
		}
	}
	old := dialFrom(t, s, "127.0.0.8")
	old.ask("\x03"+str("init/")+u64(1), u64(1)) // ADD of PyTorch 1.9-2.0
	second, third := dialFrom(t, s, "127.0.0.8"), dialFrom(t, s, "127.0.0.8")
	ended := make(chan raw, 2)
	for _, c := range []raw{second, third} {
		go func() {
			if _, err := c.Read(make([]byte, 1)); err != nil {
				ended <- c
			}
		}()
	}
	one := <-ended
	other := second
	if one == second {
		other = third
	}
	dialFrom(t, s, "127.0.0.7").expectClosed() // as long again, at least
	select {
	case <-ended:
		t.Error("the second connection of an old client was closed")
	default:
	}
	other.send(hello, opPing, "p")
	old.ask("\x03"+str("init/")+u64(1), u64(2))
}

// TestRoomForAgents: what others put into a store does not take the room of the agents, whose keys the job needs to go
// on.
func TestRoomForAgents(t *testing.T) {
	const limit = 4 << 20
	for name, junk := range map[string]func(i int) string{
		"small values": func(i int) string { return opSet + str(fmt.Sprint("k", i)) + str(strings.Repeat("v", 1000)) },
		"big values":   func(i int) string { return opSet + str(fmt.Sprint("k", i)) + str(strings.Repeat("v", 100<<10)) },
		"a queue":      func(int) string { return opQueuePush + str("q") + str(strings.Repeat("v", 1000)) },
		"behind a key of the agents": func(i int) string {
			return opMultiSet + u64(2) + str("own/x") + str("1") + str(fmt.Sprint("k", i)) + str(strings.Repeat("v", 1000))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := listen(t, tcpstore.ServerConfig{Private: "own/", Limits: tcpstore.Limits{Total: limit}})
			for i, refused := 0, 0; refused < 20; i++ { // the last byte that there is
				stranger := dialHello(t, s)
				for range 100 {
					i++
					if _, err := stranger.Write([]byte(junk(i))); err != nil {
						break
					}
				}
				_, _ = stranger.Write([]byte(opPing + "ping"))
				if _, err := stranger.Read(make([]byte, 4)); err != nil {
					refused++
				}
				stranger.Close()
			}
			agent := dialHello(t, s)
			for i := range 50 {
				agent.send(opSet + str(fmt.Sprint("own/", i)) + str(strings.Repeat("v", 1000)))
			}
			agent.send(opSet + str("own/big") + str(strings.Repeat("b", 100<<10)))
			agent.ask(opAdd+str("own/count")+u64(1), u64(1))
			agent.ask(opGet+str("own/big"), str(strings.Repeat("b", 100<<10)))
			if held := tcpstore.Held(s); held > limit {
				t.Errorf("it holds %d bytes", held)
			}
		})
	}
}

// TestFullStoreIsRead: a COMPARE_SET that stores nothing, by which agents read a key that may not be there, is never
// refused.
func TestFullStoreIsRead(t *testing.T) {
	s := listen(t, tcpstore.ServerConfig{Private: "own/", Limits: tcpstore.Limits{Total: 1 << 20}})
	writer := dialHello(t, s)
	writer.send(opSet + str("own/there") + str("v"))
	writer.alive()
	for size, i := 1000, 0; size > 0; i++ { // until nothing more fits in
		_, _ = writer.Write([]byte(opSet + str(fmt.Sprint("own/", i)) + str(strings.Repeat("v", size)) + opPing + "ping"))
		if _, err := writer.Read(make([]byte, 4)); err != nil {
			size /= 10
			writer = dialHello(t, s)
		}
	}
	agent, long := dialHello(t, s), strings.Repeat("x", 1000)
	agent.ask(opCompareSet+str("own/missing")+str("absent")+str("absent"), str("absent"))
	agent.ask(opCompareSet+str("own/there")+str("other")+str(long), str("v"))
	agent.send(opCompareSet + str("own/there") + str("v") + str(long))
	if _, err := agent.Read(make([]byte, 8)); err == nil {
		t.Error("a longer value is taken, for which there is no room")
	}
}

// TestAgentsAreToldWhy: an agent that was closed because the store is full finds there why.
func TestAgentsAreToldWhy(t *testing.T) {
	s := listen(t, tcpstore.ServerConfig{Private: "own/", Limits: tcpstore.Limits{Total: 1 << 20}})
	agent := dialHello(t, s)
	for i := range 2000 {
		if _, err := agent.Write([]byte(opSet + str(fmt.Sprint("own/", i)) + str(strings.Repeat("v", 1000)))); err != nil {
			break
		}
	}
	_, _ = agent.Write([]byte(opPing + "ping"))
	if _, err := agent.Read(make([]byte, 4)); err == nil {
		t.Fatal("the store takes twice what it holds")
	}
	agent = dialHello(t, s)
	agent.send(opGet + str("own/"+tcpstore.KeyFull))
	var answer [512]byte
	n, _ := agent.Read(answer[:])
	if text := string(answer[:n]); !strings.Contains(text, "no room in the store") || !strings.Contains(text, "1048576") {
		t.Errorf("%q", text)
	}
}

// TestArrivingLeavesRoomForAgents: requests that arrive beside what others have put into a store, and never are whole,
// do not take the room of the agents either.
func TestArrivingLeavesRoomForAgents(t *testing.T) {
	const limit = 4 << 20
	s := listen(t, tcpstore.ServerConfig{Private: "own/", Limits: tcpstore.Limits{Total: limit}})
	for i, refused := 0, 0; refused < 3; { // small values: those that are not count as what arrives does
		stranger := dialHello(t, s)
		for range 100 {
			i++
			_, _ = stranger.Write([]byte(opSet + str(fmt.Sprint("k", i)) + str(strings.Repeat("v", 1000))))
		}
		_, _ = stranger.Write([]byte(opPing + "ping"))
		if _, err := stranger.Read(make([]byte, 4)); err != nil {
			refused++
		}
		stranger.Close()
	}
	part := opMultiSet + u64(64) + str("a") + str(strings.Repeat("v", 30<<10)) + str("b") + str(strings.Repeat("v", 30<<10))
	var silent []raw
	for range 100 {
		stranger := dialHello(t, s)
		_, _ = stranger.Write([]byte(part))
		silent = append(silent, stranger)
	}
	for _, stranger := range silent { // what was sent is read, or refused
		_ = stranger.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		_, _ = stranger.Read(make([]byte, 1))
	}
	agent := dialHello(t, s)
	for i := range 50 {
		agent.send(opSet + str(fmt.Sprint("own/", i)) + str(strings.Repeat("v", 1000)))
	}
	agent.ask(opAdd+str("own/count")+u64(1), u64(1))
	if held := tcpstore.Held(s); held > limit {
		t.Errorf("it holds %d bytes", held)
	}
}
