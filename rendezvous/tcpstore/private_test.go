package tcpstore_test

import (
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"muster/internal/errhint"
	"muster/internal/testutil"
	"muster/rendezvous/tcpstore"
)

const private = "muster/"

// TestPrivateKeys uses every request on keys of both kinds.
func TestPrivateKeys(t *testing.T) {
	s := listen(t, tcpstore.ServerConfig{Private: private})
	c, other := dialHello(t, s), dialHello(t, s)
	waiting := func(n int) {
		t.Helper()
		testutil.Eventually(t, patience, fmt.Sprint(n, " waits"), func() bool { return tcpstore.Waiting(s) == n })
	}
	big := strings.Repeat("v", 1<<20)
	c.send(opSet + str("muster/set") + str("a") + opSet + str("/set") + str("b") + opSet + str("muster/big") + str(big))
	c.ask(opGet+str("muster/set")+opGet+str("/set"), str("a")+str("b"))
	c.send(opGet + str("muster/big"))
	c.expect(str(big))
	c.send(opAppend + str("muster/set") + str("+") + opMultiSet + u64(2) + str("muster/m") + str("1") + str("/m") + str("2"))
	c.ask(opMultiGet+keys("/m", "muster/m", "muster/set", "/set"), str("2")+str("1")+str("a+")+str("b"))
	c.ask(opAdd+str("muster/n")+u64(3)+opAdd+str("/n")+u64(4), u64(3)+u64(4))
	c.ask(opCompareSet+str("muster/cas")+str("")+str("x")+opCompareSet+str("muster/cas")+str("x")+str("y"), str("x")+str("y"))
	c.ask(opCheck+keys("muster/cas", "/n")+opCheck+keys("/cas")+opCheck+keys("muster/cas", "/cas"), "\x00\x01\x01")
	c.send(opQueuePush + str("muster/q") + str("e") + opQueuePush + str("/q") + str("f") + opQueuePush + str("/q") + str("g"))
	c.ask(opQueueLen+str("muster/q")+opQueueLen+str("/q"), u64(1)+u64(2))
	c.ask(opQueuePop+str("muster/q")+opQueuePop+str("muster/q"), u64(1)+str("e")+u64(0))

	// A wait for keys of both, and barriers of one name.
	other.send(opWait + keys("/late", "muster/late"))
	waiting(1)
	c.send(opSet + str("muster/late") + str(""))
	c.alive()
	waiting(1)
	c.send(opSet + str("/late") + str(""))
	other.expect("\x00")
	other.send(opBarrier + str("muster/bar") + u64(2))
	waiting(1)
	c.ask(opBarrier+str("/bar")+u64(1), "\x00")
	waiting(1)
	c.ask(opBarrier+str("muster/bar")+u64(2), "\x00")
	other.expect("\x00")

	// Keys that only look like it: shorter, and PyTorch's.
	c.send(opSet + str("muster") + str("") + opSet + str("/muster/k") + str(""))
	public := []string{"/set", "/m", "/n", "/late", "/bar", "muster", "/muster/k"}
	c.ask(opNumKeys, u64(int64(len(public))))
	client := dial(t, s.Addrs()[0].String())
	got, err := client.ListKeys(timed(t))
	slices.Sort(got)
	slices.Sort(public)
	if err != nil || !slices.Equal(got, public) {
		t.Errorf("keys %q (%v), want %q", got, err, public)
	}
	if n, err := client.NumKeys(timed(t)); err != nil || n != int64(len(public)) {
		t.Errorf("%d keys (%v), want %d", n, err, len(public))
	}
	c.ask(opDelete+str("muster/set")+opDelete+str("muster/set")+opGet+str("/set"), u64(1)+u64(0)+str("b"))

	// Without a private prefix all are alike.
	c = dialHello(t, listen(t, tcpstore.ServerConfig{}))
	c.send(opSet + str("muster/k") + str("") + opSet + str("/k") + str(""))
	c.ask(opNumKeys, u64(2))
}

func TestPrivateKeysArePyTorchsNever(t *testing.T) {
	for _, private := range []string{"/", "/muster/", "i", "init", "init/"} {
		if s, err := tcpstore.Listen(tcpstore.ServerConfig{Private: private}); errhint.CodeOf(err) != errhint.Usage {
			t.Errorf("%q: error %v, want a usage error", private, err)
			if s != nil {
				s.Close()
			}
		}
	}
}

// TestResetSparesAgents has a connection in every state there is when a round begins.
func TestResetSparesAgents(t *testing.T) {
	s := listen(t, tcpstore.ServerConfig{Private: private})
	var workers, agents []raw
	worker := func(requests ...string) raw {
		c := dialHello(t, s)
		c.send(requests...)
		workers = append(workers, c)
		return c
	}
	agent := func(requests ...string) raw {
		c := dialHello(t, s)
		c.ask(opCheck+keys(private)+opPing+"ping", "\x01ping")
		c.send(requests...)
		agents = append(agents, c)
		return c
	}
	big := strings.Repeat("b", 1<<20)
	worker(opSet + str("/k") + str("v") + opQueuePush + str("/q") + str("e") + opSet + str("/big") + str(big)).alive()
	worker(opWait + keys("/never"))
	worker(opBarrier + str("/bar") + u64(9))
	worker(opSet + str("/half") + u64(1<<20) + big[:1<<19])
	agent()
	waits := agent(opWait + keys("muster/later"))
	barrier := agent(opBarrier + str("muster/bar") + u64(2))
	popper := agent(opWait + keys("muster/q"))
	both := agent(opSet+str("muster/kept")+str("kept")+opSet+str("/k2")+str("")+opSet+str("muster/big")+str(big),
		opWait+keys("/both", "muster/both"))
	public := agent(opWait + keys("/k3"))
	half := agent(opSet + str("muster/half") + u64(1<<20) + big[:1<<19])
	piece := agent(opSet + str("muster/piece")[:5])
	old := dialRaw(t, s) // PyTorch 1.9-2.0
	old.ask("\x03"+str("muster/old")+u64(1), u64(1))
	agents = append(agents, old)
	testutil.Eventually(t, patience, "the waits arrive", func() bool { return tcpstore.Waiting(s) == 7 })
	half.Conn.(*net.TCPConn).SetNoDelay(true)

	for range 3 { // an agent stays one
		s.Reset()
	}
	if n := tcpstore.Waiting(s); n != 5 {
		t.Errorf("%d waits are left, want the 5 of agents", n)
	}
	for _, c := range workers {
		c.expectClosed()
	}
	c := dialHello(t, s)
	c.ask(opNumKeys+opQueueLen+str("/q")+opCheck+keys("/k"), u64(0)+u64(0)+"\x01")
	c.ask(opGet+str("muster/kept"), str("kept"))
	c.send(opGet + str("muster/big"))
	c.expect(str(big))
	c.send(opSet + str("muster/both") + str("") + opSet + str("muster/later") + str("") + opQueuePush + str("muster/q") + str("e"))
	waits.expect("\x00")
	popper.expect("\x00")
	popper.ask(opQueuePop+str("muster/q"), u64(1)+str("e"))
	c.ask(opBarrier+str("muster/bar")+u64(2), "\x00")
	barrier.expect("\x00")
	if n := tcpstore.Waiting(s); n != 2 {
		t.Errorf("%d waits are left, want 2 for keys of workers", n)
	}
	c.send(opSet + str("/both") + str("") + opSet + str("/k3") + str(""))
	both.expect("\x00")
	public.expect("\x00")
	if n := tcpstore.Awaited(s); n != 0 {
		t.Errorf("%d names are waited for by nobody", n)
	}
	half.send(big[1<<19:])
	half.ask(opMultiGet+keys("muster/half"), str(big))
	piece.send(str("muster/piece")[5:] + str("whole") + opGet + str("muster/piece"))
	piece.expect(str("whole"))
	for _, a := range agents[:len(agents)-1] {
		a.alive()
	}
	old.ask("\x03"+str("muster/old")+u64(1), u64(2))
}

// TestResetForgetsWhatAnAgentWasAboutToPop has an agent be woken for an element of the workers' queue.
func TestResetForgetsWhatAnAgentWasAboutToPop(t *testing.T) {
	s := listen(t, tcpstore.ServerConfig{Private: private})
	agent, pusher := dialHello(t, s), dialHello(t, s)
	agent.ask(opCheck+keys(private), "\x01")
	agent.send(opWait + keys("/q"))
	testutil.Eventually(t, patience, "a wait", func() bool { return tcpstore.Waiting(s) == 1 })
	pusher.send(opQueuePush + str("/q") + str("of the last round"))
	agent.expect("\x00")
	s.Reset()
	pusher.expectClosed()
	first, second, pusher := dialHello(t, s), dialHello(t, s), dialHello(t, s)
	first.send(opWait + keys("/q"))
	testutil.Eventually(t, patience, "a wait", func() bool { return tcpstore.Waiting(s) == 1 })
	second.send(opWait + keys("/q"))
	testutil.Eventually(t, patience, "two waits", func() bool { return tcpstore.Waiting(s) == 2 })
	pusher.send(opQueuePush + str("/q") + str("e"))
	first.expect("\x00")
	agent.ask(opCancelWait, "\x01") // what it passes on now would wake the second for the element of the first
	second.ask(opCancelWait, "\x01")
	first.ask(opQueuePop+str("/q"), u64(1)+str("e"))
}

// TestResetReleasesMemory fills both key spaces and wants the memory back, of the workers' at once and of the agents'
// when they delete.
func TestResetReleasesMemory(t *testing.T) {
	testutil.Long(t)
	const each = 20_000
	s := listen(t, tcpstore.ServerConfig{Private: private})
	agent := dialHello(t, s)
	agent.ask(opCheck+keys(private), "\x01")
	fill := func(c raw, prefix string) {
		for i := range each {
			c.send(opSet + str(fmt.Sprint(prefix, i)) +
				str("a value that takes some room, a hundred bytes or so, in all the twenty thousand of its keys, say"))
		}
		for i := range 8 {
			c.send(opQueuePush + str(prefix+"queue") + str(strings.Repeat("q", 1<<20)) + opSet + str(fmt.Sprint(prefix, "big", i)) +
				str(strings.Repeat("b", 1<<20)))
		}
		c.alive()
	}
	const full = each*100 + 16<<20 // what either takes at least
	empty := heap()
	fill(agent, private)
	agents := heap()
	worker := dialHello(t, s)
	fill(worker, "/")
	both := heap()
	if agents-empty < full || both-agents < full {
		t.Fatalf("keys take %d and %d bytes, less than what was stored", agents-empty, both-agents)
	}
	s.Reset()
	if left := heap() - agents; left > full/10 {
		t.Errorf("%d bytes of the workers' keys are left", left)
	}
	for i := range each {
		agent.ask(opDelete+str(fmt.Sprint(private, i)), u64(1))
	}
	for i := range 8 {
		agent.ask(opDelete+str(fmt.Sprint(private, "big", i)), u64(1))
		agent.send(opQueuePop + str(private+"queue"))
		agent.expect(u64(int64(8 - i)))
		agent.expect(str(strings.Repeat("q", 1<<20)))
	}
	s.Reset() // gives up the buffers that were kept for the next big value
	if left := heap() - empty; left > full/2 {
		t.Errorf("%d bytes are left of nothing", left)
	}
}

// TestAgentsClientOverReset has clients of agents work on while round after round begins, and workers come and go.
func TestAgentsClientOverReset(t *testing.T) {
	const agents, rounds = 6, 60
	s := listen(t, tcpstore.ServerConfig{Private: private})
	addr := s.Addrs()[0].String()
	dialAgent := func() *tcpstore.Client { return dialAs(t, addr, tcpstore.ClientConfig{Private: private}) }
	stop := make(chan struct{})
	var workers, wg sync.WaitGroup
	for range 4 {
		workers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				c, err := net.Dial("tcp", addr)
				if err != nil {
					t.Error(err)
					return
				}
				c.SetDeadline(time.Now().Add(patience))
				if _, err := c.Write([]byte(hello + opSet + str("/k") + str("v") + opWait + keys("/k", "/never"))); err == nil {
					io.ReadFull(c, make([]byte, 1))
				}
				c.Close()
			}
		})
	}
	ctx := timed(t)
	for i := range agents {
		c := dialAgent()
		wg.Go(func() {
			for round := range rounds {
				// Two calls at once, so that connections are opened in the middle of it all.
				var waits sync.WaitGroup
				waits.Go(func() {
					if _, err := c.Get(ctx, fmt.Sprint(private, "round", round)); err != nil {
						t.Errorf("agent %d, round %d: %v", i, round, err)
					}
				})
				if err := c.Barrier(ctx, fmt.Sprint(private, "bar", round), agents+1); err != nil {
					t.Errorf("agent %d, round %d: %v", i, round, err)
				}
				if _, err := c.Add(ctx, private+"n", 1); err != nil {
					t.Errorf("agent %d, round %d: %v", i, round, err)
				}
				waits.Wait()
			}
		})
	}
	host := dialAgent()
	for round := range rounds {
		s.Reset()
		if err := host.Barrier(ctx, fmt.Sprint(private, "bar", round), agents+1); err != nil {
			t.Fatal(err)
		}
		s.Reset()
		if err := host.Set(ctx, fmt.Sprint(private, "round", round), nil); err != nil {
			t.Fatal(err)
		}
	}
	wg.Wait()
	close(stop)
	s.Reset()
	workers.Wait()
	if n, err := host.Get(ctx, private+"n"); err != nil || string(n) != strconv.Itoa(agents*rounds) {
		t.Errorf("agents were there %s times (%v), want %d", n, err, agents*rounds)
	}
	s.Reset()
	if n, err := host.NumKeys(ctx); err != nil || n != 0 {
		t.Errorf("%d keys in a new round (%v)", n, err)
	}
}

// TestForget deletes some keys of the agents, and no others; who waits for one goes on waiting.
func TestForget(t *testing.T) {
	s := listen(t, tcpstore.ServerConfig{Private: private})
	ctx, host := timed(t), dialAs(t, s.Addrs()[0].String(), tcpstore.ClientConfig{Private: private})
	mine := func(key string) string { return private + key }
	for _, key := range []string{mine("a/1"), mine("a/2"), mine("ab"), "/a/1"} {
		if err := host.Set(ctx, key, []byte(key)); err != nil {
			t.Fatal(err)
		}
	}
	got := make(chan string, 1)
	go func() {
		value, err := host.Get(ctx, mine("a/3"))
		got <- fmt.Sprintf("%s %v", value, err)
	}()
	testutil.Eventually(t, patience, "the wait arrives", func() bool { return tcpstore.Waiting(s) == 1 })
	s.Forget(mine("a/"))
	for key, want := range map[string]bool{mine("a/1"): false, mine("a/2"): false, mine("ab"): true, "/a/1": true} {
		if there, err := host.Check(ctx, key); err != nil || there != want {
			t.Errorf("%s is there: %v, %v", key, there, err)
		}
	}
	if err := host.Set(ctx, mine("a/3"), []byte("v")); err != nil {
		t.Fatal(err)
	}
	if word := <-got; word != "v <nil>" {
		t.Error(word)
	}
}

// TestWorkersClientEndsWithTheRound is the other side: who does not say that it is an agent's is none.
func TestWorkersClientEndsWithTheRound(t *testing.T) {
	s := listen(t, tcpstore.ServerConfig{Private: private})
	c := dial(t, s.Addrs()[0].String())
	if err := c.Set(timed(t), "/k", nil); err != nil {
		t.Fatal(err)
	}
	s.Reset()
	if err := c.Set(timed(t), "/k", nil); err == nil {
		t.Error("a client of the last round sets a key in this one")
	}
}
