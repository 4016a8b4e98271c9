package memstore_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"muster/internal/testutil"
	"muster/rendezvous"
	"muster/rendezvous/memstore"
	"muster/rendezvous/storetest"
	"muster/rendezvous/tcpstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 30 * time.Second // bounds a hang, measures nothing

var _ io.Closer = (*memstore.Space)(nil)

func TestStoreContract(t *testing.T) {
	spaces := make(map[*testing.T]*memstore.Space)
	storetest.Run(t, func(t *testing.T) rendezvous.Store {
		if spaces[t] == nil {
			spaces[t] = memstore.NewSpace()
		}
		c := spaces[t].Client()
		t.Cleanup(func() { c.Close() })
		return c
	})
}

func timed(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// client is what both stores have beside the contract.
type client interface {
	rendezvous.Store
	io.Closer
}

// answer is how a call ended, in words that do not depend on the store.
func answer(value any, err error) string {
	switch {
	case err == nil:
		if b, ok := value.([]byte); ok {
			return fmt.Sprintf("nil %v, %d bytes, %q, sum %x", b == nil, len(b), b[:min(len(b), 100)], sha256.Sum256(b))
		}
		return fmt.Sprint(value)
	case errors.Is(err, rendezvous.ErrStoreClosed):
		what, _, _ := strings.Cut(err.Error(), ": ")
		return what + ": closed"
	default:
		return err.Error()
	}
}

// TestAnswersAsTheTCPStoreDoes makes random calls on both stores, and compares every answer and every error's text.
func TestAnswersAsTheTCPStoreDoes(t *testing.T) {
	server, err := tcpstore.Listen(tcpstore.ServerConfig{Loops: 1, Log: zerolog.Nop()})
	must(t, err)
	t.Cleanup(func() { server.Close() })
	keys := rapid.SampledFrom([]string{"", "a", "b", "/c\x00\xff", strings.Repeat("k", 8<<10), strings.Repeat("k", 8<<10+1)})
	text := rapid.SampledFrom([]string{
		"", "0", "7", " \t\v-12x", "+3", "--1", "99999999999999999999", "text", "9223372036854775807",
	})
	huge := [][]byte{make([]byte, 8<<20), make([]byte, 8<<20+1)}
	ended, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("the round is over"))
	rapid.Check(t, func(r *rapid.T) {
		server.Reset()
		space := memstore.NewSpace()
		var pairs [2][2]client // by client, then by store
		open := func(i int) {
			tcp, err := tcpstore.Dial(t.Context(), server.Addrs()[0].String(), tcpstore.ClientConfig{})
			if err != nil {
				r.Fatal(err)
			}
			pairs[i] = [2]client{tcp, space.Client()}
		}
		for i := range pairs {
			open(i)
		}
		defer func() {
			for _, p := range pairs {
				p[0].Close()
			}
		}()
		value := func(name string) []byte {
			if rapid.IntRange(0, 60).Draw(r, name+" is huge") == 60 {
				return rapid.SampledFrom(huge).Draw(r, name)
			}
			return []byte(text.Draw(r, name))
		}
		for range rapid.IntRange(1, 30).Draw(r, "calls") {
			who := rapid.IntRange(0, len(pairs)-1).Draw(r, "client")
			key := keys.Draw(r, "key")
			ctx, stop := context.WithTimeout(t.Context(), patience)
			if rapid.IntRange(0, 20).Draw(r, "ended") == 20 {
				ctx = ended
			}
			var call func(c client) (any, error)
			switch op := rapid.SampledFrom([]string{
				"set", "set", "get", "wait", "add", "add", "compare", "compare", "delete", "close", "reopen",
			}).Draw(r, "op"); op {
			case "set":
				v := value("value")
				call = func(c client) (any, error) { return nil, c.Set(ctx, key, v) }
			case "get": // of a key that is there: one that is not is waited for
				call = func(c client) (any, error) {
					if got, err := c.CompareAndSet(ctx, key, nil, []byte("made")); err != nil {
						return got, err
					}
					return c.Get(ctx, key)
				}
			case "wait":
				call = func(c client) (any, error) {
					if err := c.Set(ctx, key, nil); err != nil {
						return nil, err
					}
					return nil, c.Wait(ctx, key, key)
				}
			case "add":
				delta := rapid.SampledFrom([]int64{0, 1, -5, 1 << 62}).Draw(r, "delta")
				call = func(c client) (any, error) { return c.Add(ctx, key, delta) }
			case "compare":
				expected, desired := value("expected"), value("desired")
				call = func(c client) (any, error) { return c.CompareAndSet(ctx, key, expected, desired) }
			case "delete":
				call = func(c client) (any, error) { return c.Delete(ctx, key) }
			case "close":
				if rapid.IntRange(0, 5).Draw(r, "really") < 5 {
					stop()
					continue
				}
				call = func(c client) (any, error) { return nil, c.Close() }
			case "reopen": // the clients that an Add to text has closed
				stop()
				for _, c := range pairs[who] {
					c.Close()
				}
				open(who)
				continue
			}
			want, got := answer(call(pairs[who][0])), answer(call(pairs[who][1]))
			stop()
			if want != got {
				r.Fatalf("the TCP store answers %s, this one %s", want, got)
			}
		}
	})
}

func TestTooManyKeys(t *testing.T) {
	s := memstore.NewSpace()
	c := s.Client()
	keys := make([]string, 128<<10+1)
	for i := range keys {
		keys[i] = "k"
	}
	must(t, c.Set(timed(t), "k", nil))
	must(t, c.Wait(timed(t), keys[1:]...))
	err := c.Wait(timed(t), keys...)
	if err == nil || err.Error() != "WAIT of 131073 keys exceeds the store's limit of 131072" {
		t.Fatal(err)
	}
}

// TestWhatAWaitHasSeen: a key named twice counts once, and one that was there counts even if it is gone when the last
// one comes, as in the TCP store.
func TestWhatAWaitHasSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.NewSpace()
		a, b := s.Client(), s.Client()
		must(t, a.Set(t.Context(), "early", nil))
		done := make(chan error, 1)
		go func() { done <- b.Wait(t.Context(), "twice", "early", "gone", "twice") }()
		synctest.Wait()
		for _, key := range []string{"gone", "early", "twice"} {
			select {
			case err := <-done:
				t.Fatalf("returns (%v) before %q is there", err, key)
			default:
			}
			must(t, a.Set(t.Context(), key, nil))
			synctest.Wait()
			if _, err := a.Delete(t.Context(), key); err != nil {
				t.Fatal(err)
			}
		}
		must(t, <-done)
	})
}

// TestEndOfTheStore ends a client, or what it talks to, while calls wait.
func TestEndOfTheStore(t *testing.T) {
	for name, tc := range map[string]struct {
		end  func(s *memstore.Space, c *memstore.Client) error
		want string
		open bool // whether a new client finds a store
	}{
		"client closed": {func(_ *memstore.Space, c *memstore.Client) error { return c.Close() }, "closed here", true},
		"reset":         {func(s *memstore.Space, _ *memstore.Client) error { s.Reset(); return nil }, "the store was emptied", true},
		"space closed":  {func(s *memstore.Space, _ *memstore.Client) error { return s.Close() }, "the store has ended", false},
		"no number": {func(_ *memstore.Space, c *memstore.Client) error {
			if _, err := c.Add(context.Background(), "text", 1); !errors.Is(err, rendezvous.ErrStoreClosed) {
				return fmt.Errorf("Add to text: %w", err)
			}
			return nil
		}, "the value is no number", true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := memstore.NewSpace()
				c, other := s.Client(), s.Client()
				must(t, c.Set(t.Context(), "text", []byte("words")))
				errs := make(chan error, 2)
				go func() { errs <- c.Wait(t.Context(), "text", "never") }()
				go func() { _, err := c.Get(t.Context(), "never"); errs <- err }()
				synctest.Wait()
				for range 2 {
					must(t, tc.end(s, c)) // a second time changes nothing
				}
				for range 2 {
					err := <-errs
					if !errors.Is(err, rendezvous.ErrStoreClosed) || !strings.HasSuffix(err.Error(), `: store is closed: `+tc.want) {
						t.Errorf("a call in progress returns %v", err)
					}
				}
				if err := c.Set(t.Context(), "k", nil); !errors.Is(err, rendezvous.ErrStoreClosed) {
					t.Errorf("a call afterwards returns %v", err)
				}
				err := other.Set(t.Context(), "k", nil)
				if everybody := name == "reset" || name == "space closed"; everybody != errors.Is(err, rendezvous.ErrStoreClosed) {
					t.Errorf("the other client's call returns %v", err)
				}
				next := s.Client()
				if err := next.Set(t.Context(), "never", nil); tc.open != (err == nil) {
					t.Errorf("a new client's call returns %v", err)
				}
				if n := s.NumKeys(); name == "reset" && n != 1 || name == "space closed" && n != 0 {
					t.Errorf("%d keys afterwards", n)
				}
			})
		})
	}
}

// TestFakeClock is what simulations live on: waiting takes no real time, and ends to the nanosecond.
func TestFakeClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.NewSpace()
		a, b := s.Client(), s.Client()
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if err := a.Wait(ctx, "never"); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Hour {
			t.Fatalf("%v after %v", err, time.Since(start))
		}
		go func() {
			time.Sleep(24 * time.Hour)
			if err := b.Set(t.Context(), "k", []byte("v")); err != nil {
				t.Error(err)
			}
		}()
		got, err := a.Get(t.Context(), "k")
		if err != nil || string(got) != "v" || time.Since(start) != 25*time.Hour {
			t.Fatalf("%q, %v after %v", got, err, time.Since(start))
		}
	})
}

// TestValuesAreCopied changes bytes that went in and that came out.
func TestValuesAreCopied(t *testing.T) {
	s := memstore.NewSpace()
	c := s.Client()
	in := []byte("value")
	must(t, c.Set(timed(t), "set", in))
	swapped, err := c.CompareAndSet(timed(t), "swapped", nil, in)
	must(t, err)
	waiting := make(chan []byte)
	for range 2 {
		go func() {
			v, err := c.Get(timed(t), "late")
			if err != nil {
				t.Error(err)
			}
			v[0]++ // two waiters with one array would be a data race, too
			waiting <- v
		}()
	}
	must(t, s.Client().Set(timed(t), "late", in))
	<-waiting
	<-waiting
	in[0], swapped[0] = 'X', 'Y'
	for _, key := range []string{"set", "swapped", "late"} {
		for range 2 {
			got, err := c.Get(timed(t), key)
			must(t, err)
			if !bytes.Equal(got, []byte("value")) {
				t.Fatalf("%s holds %q", key, got)
			}
			got[0] = 'Z'
		}
	}
}

// TestThousands is a round of 4,000 agents, each with a client: all of them count, the last opens the gate for all.
// Half of them then wait for what never comes, until they give up, which must leave nothing behind.
func TestThousands(t *testing.T) {
	const agents = 4000
	s := memstore.NewSpace()
	ctx := timed(t)
	giveUp, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	for i := range agents {
		c := s.Client()
		wg.Go(func() {
			defer c.Close()
			n, err := c.Add(ctx, "count", 1)
			if err == nil && n == agents {
				err = c.Set(ctx, "gate", nil)
			}
			if err == nil {
				err = c.Wait(ctx, "gate", "count")
			}
			if err != nil {
				t.Error(err)
				return
			}
			if i%2 == 0 {
				if err := c.Wait(giveUp, "gate", "never", "at all"); !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
			}
		})
	}
	testutil.Eventually(t, patience, "half of the agents wait, the others have gone", func() bool {
		keys, waits, clients := s.Waiting()
		return keys == 2 && waits == agents && clients == agents/2
	})
	cancel()
	wg.Wait()
	if keys, _, clients := s.Waiting(); keys != 0 || clients != 0 {
		t.Errorf("%d keys waited for and %d clients are left", keys, clients)
	}
}
