package dlrover

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"muster/internal/errhint"
	"muster/internal/testutil"
	"muster/rendezvous"
	"muster/rendezvous/membership"
	"muster/rendezvous/tcpstore"
)

// path is a way to a store that can fall silent: connections stay, and nothing comes through them any more.
type path struct{ cut atomic.Bool }

func (p *path) dial(ctx context.Context, addr string) (Conn, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	go func() {
		defer func() { _ = l.Close() }()
		for {
			here, err := l.Accept()
			if err != nil {
				return
			}
			there, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", addr)
			if err != nil {
				_ = here.Close()
				return
			}
			go p.carry(here, there)
			go p.carry(there, here)
		}
	}()
	return tcpstore.Dial(ctx, l.Addr().String(), tcpstore.ClientConfig{Private: membership.KeyPrefix})
}

func (p *path) carry(to, from net.Conn) {
	for b := make([]byte, 4096); ; {
		n, err := from.Read(b)
		if err != nil {
			_ = to.Close()
			return
		}
		if !p.cut.Load() {
			_, _ = to.Write(b[:n])
		}
	}
}

// A node that serves the store and falls silent, as a frozen machine does, with all its connections there, is lost for
// the others within the time that they have for that: also for one that is about to say how the round ends.
func TestHostIsSilent(t *testing.T) {
	t.Parallel()
	f := newFake(t, 2, 2)
	a, b := open(t, f, 0), open(t, f, 1)
	var p path
	b.cfg.LostAfter, b.cfg.Dial = 3*time.Second, p.dial
	rounds := next(t, a, b)
	if r := rounds[1]; r.LossNotice < b.cfg.LostAfter {
		t.Errorf("LossNotice is %v", r.LossNotice)
	}
	p.cut.Store(true)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	v, err := rounds[1].Propose(ctx, rendezvous.Verdict{Kind: rendezvous.Restart, Rank: 1, Status: 5, Restarts: 1})
	if err != nil || v.Kind != rendezvous.Reassemble || v.Reason != "NodeLost" || !strings.Contains(v.Message, "silent for 3s") {
		t.Errorf("%+v, %v", v, err)
	}
	if v := verdict(t, rounds[1]); v.Kind != rendezvous.Reassemble || v.Reason != "NodeLost" {
		t.Errorf("%+v", v)
	}
}

// What the master wants of a node while the store is silent does not keep that node from saying that it lives.
func TestHeartbeatsGoOn(t *testing.T) {
	t.Parallel()
	f := newFake(t, 2, 2)
	a, b := open(t, f, 0), open(t, f, 1)
	var p path
	b.cfg.LostAfter, b.cfg.Dial = time.Hour, p.dial
	next(t, a, b)
	p.cut.Store(true)
	b.carryOut(t.Context(), action{class: "NodeAction", Type: "restart_worker"}) // the others are told behind its back
	p.cut.Store(false)
}

// A node that serves the store and has left a round that is over is not lost, although it says no more there: who still
// stops workers reads what others report.
func TestHostHasGoneOn(t *testing.T) {
	testutil.Long(t)
	t.Parallel()
	f := newFake(t, 2, 2)
	a, b := open(t, f, 0), open(t, f, 1)
	b.cfg.LostAfter = 3 * time.Second
	rounds := next(t, a, b)
	if err := rounds[0].Report(t.Context(), []byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := rounds[0].Propose(t.Context(), rendezvous.Verdict{Kind: rendezvous.Restart, Rank: 0, Restarts: 1}); err != nil {
		t.Fatal(err)
	}
	verdict(t, rounds[1])
	a.leave()
	time.Sleep(b.cfg.LostAfter + 3*b.cfg.LostAfter/beats) // long enough to be taken for lost
	if err := rounds[1].Report(t.Context(), []byte("y")); err != nil {
		t.Fatal(err)
	}
	if all, err := rounds[1].Reports(t.Context()); err != nil || len(all) != 2 {
		t.Errorf("%q, %v", all, err)
	}
}

// What the nodes of a round have told each other does not stay in the store of its first node.
func TestStoreForgetsRounds(t *testing.T) {
	t.Parallel()
	f := newFake(t, 2, 2)
	a, b := open(t, f, 0), open(t, f, 1)
	ctx, old := t.Context(), ""
	for i := range 2 {
		rounds := next(t, a, b)
		if err := rounds[1].Board().Set(ctx, "k", []byte("v")); err != nil {
			t.Fatal(err)
		}
		r := a.round
		if text, err := r.peek(ctx, r.key("board/k")); err != nil || string(text) != "v" {
			t.Errorf("%q, %v", text, err)
		}
		for _, key := range []string{"board/k", "beat/0", "left/1"} {
			if text, err := r.peek(ctx, old+key); i == 1 && !errors.Is(err, errNothing) {
				t.Errorf("%s of the round before is %q, %v", key, text, err)
			}
		}
		old = r.prefix
	}
}

// A node that does not reach the store of the rounds ends after some: each of them costs the workers of the others.
func TestStoreIsOutOfReach(t *testing.T) {
	t.Parallel()
	f := newFake(t, 2, 2)
	a, b := open(t, f, 0), open(t, f, 1)
	var dialed atomic.Int32
	b.cfg.Dial = func(context.Context, string) (Conn, error) {
		dialed.Add(1)
		return nil, errors.New("no store at 10.0.0.1:4711")
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { // the other node meets it each time
		defer close(ended)
		for {
			r, err := a.Next(ctx, rendezvous.Member{LocalWorldSize: 1})
			if err != nil {
				return
			}
			select {
			case <-r.Verdict():
			case <-ctx.Done():
				return
			}
		}
	}()
	_, err := b.Next(t.Context(), rendezvous.Member{LocalWorldSize: 1})
	cancel()
	<-ended
	if errhint.CodeOf(err) != errhint.TryAgain || !strings.Contains(fmt.Sprint(err),
		"does not reach its store: no store at 10.0.0.1:4711") ||
		!strings.Contains(errhint.Of(err), "--iface") || dialed.Load() != storeTries || !f.heard("NodeFailure rdzv_error") {
		t.Errorf("%v (%s) after %d tries", err, errhint.Of(err), dialed.Load())
	}
}

// Rounds that fall apart one after the other are met again for as long as a meeting may take.
func TestRoundsFallApart(t *testing.T) {
	t.Parallel()
	n := open(t, newFake(t, 1, 1), 0)
	failed := tries{noStore: storeTries - 1}
	if err := n.tryAgain(t.Context(), &failed, errAgain); err != nil || failed.noStore != 0 || failed.since.IsZero() {
		t.Errorf("%v, %+v", err, failed)
	}
	failed.since = failed.since.Add(-2 * n.cfg.JoinTimeout)
	err := n.tryAgain(t.Context(), &failed, fmt.Errorf("%w: 1 nodes wait", errAgain))
	if errhint.CodeOf(err) != errhint.TryAgain || !strings.Contains(fmt.Sprint(err), "no round has begun within 1m0s: ") {
		t.Error(err)
	}
}

// A node that the master wants replaced leaves, whatever ends the round for it, and the others meet without it.
func TestRelaunchOfOneOfTwo(t *testing.T) {
	t.Parallel()
	f := newFake(t, 2, 2)
	a, b := open(t, f, 0), open(t, f, 1)
	rounds := next(t, a, b)
	b.carryOut(t.Context(), action{class: "NodeAction", Type: "relaunch_worker"})
	if v := verdict(t, rounds[0]); v.Kind != rendezvous.Reassemble || v.Reason != "NodeReplaced" || v.Node != "node-1" {
		t.Errorf("%+v", v)
	}
	if v := verdict(t, rounds[1]); v.Kind != rendezvous.Fail || v.Reason != "MasterRelaunch" {
		t.Errorf("the node hears %+v first", v)
	}
	v, err := rounds[1].Propose(t.Context(), rendezvous.Verdict{Kind: rendezvous.Restart, Rank: 1, Status: 5, Restarts: 1})
	if err != nil || v.Reason != "MasterRelaunch" || v.Status != errhint.TryAgain {
		t.Errorf("a worker that has failed meanwhile makes it %+v, %v", v, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	go func() { _, _ = a.Next(ctx, rendezvous.Member{LocalWorldSize: 1}) }()
	_, err = b.Next(ctx, rendezvous.Member{LocalWorldSize: 1})
	if over, is := errors.AsType[*rendezvous.OverError](err); !is || over.Verdict.Reason != "MasterRelaunch" {
		t.Errorf("it meets the others again: %v", err)
	}
}

// A node counts once in the barrier of DLRover's agents, also where the master's answer is lost.
func TestBarrierCountsOnce(t *testing.T) {
	t.Parallel()
	f := newFake(t, 1, 1)
	c, adds := f.client(t, 0), 0
	f.lost = func(ask object) bool {
		delta, _ := ask.number("value")
		if adds += delta; delta == 1 && adds == 1 {
			return true // it was counted, and nobody hears of that
		}
		return false
	}
	if n, err := c.addOne(t.Context(), "k"); err != nil || n != 1 {
		t.Errorf("%d, %v", n, err)
	}
	f.mu.Lock()
	f.down = true
	f.mu.Unlock()
	time.AfterFunc(300*time.Millisecond, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.down = false
	})
	if n, err := c.addOne(t.Context(), "k"); err != nil || n != 2 {
		t.Errorf("%d, %v", n, err)
	}
}
