// Package storetest is the contract of rendezvous.Store as a test suite. Every implementation runs it.
package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"muster/rendezvous"
)

const (
	patience = time.Minute            // bounds a hang
	blocked  = 100 * time.Millisecond // how long a call must block to count as blocking; a slow machine only weakens the test
)

// Run runs the suite. newStore returns a client of the same store at every call within one t, and of an empty store at
// the first one; it closes what it opened by t.Cleanup. Tests named in except are left out, for stores that we did not
// write and that are known to break that part of the contract.
func Run(t *testing.T, newStore func(t *testing.T) rendezvous.Store, except ...string) {
	for _, tc := range []struct {
		name string
		test func(t *testing.T, open func() rendezvous.Store)
	}{
		{"set and get", setAndGet},
		{"binary keys and values", binary},
		{"big values", bigValues},
		{"get waits", getWaits},
		{"wait for several", waitForSeveral},
		{"wait for nothing", waitForNothing},
		{"cancelled wait leaves the store usable", cancelledWait},
		{"deadline and cause", deadlineAndCause},
		{"ended context", endedContext},
		{"add", add},
		{"add from many", addFromMany},
		{"add wakes", addWakes},
		{"compare and set", compareAndSet},
		{"compare and set has one winner", oneWinner},
		{"compare and set wakes", compareAndSetWakes},
		{"delete", remove},
		{"one client from many goroutines", manyGoroutines},
		{"a set is seen by others at once", seenAtOnce},
	} {
		if slices.Contains(except, tc.name) {
			continue
		}
		t.Run(tc.name, func(t *testing.T) {
			tc.test(t, func() rendezvous.Store {
				t.Helper()
				return newStore(t)
			})
		})
	}
}

func ctx(t *testing.T) context.Context {
	c, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return c
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantValue(t *testing.T, s rendezvous.Store, key, want string) {
	t.Helper()
	got, err := s.Get(ctx(t), key)
	must(t, err)
	if string(got) != want {
		t.Fatalf("%q holds %q, want %q", key, got, want)
	}
}

// start runs f and returns a channel that gets its error.
func start(f func() error) <-chan error {
	c := make(chan error, 1)
	go func() { c <- f() }()
	return c
}

func wantBlocked(t *testing.T, c <-chan error) {
	t.Helper()
	select {
	case err := <-c:
		t.Fatalf("returned (%v) before its key was there", err)
	case <-time.After(blocked):
	}
}

func setAndGet(t *testing.T, open func() rendezvous.Store) {
	a, b := open(), open()
	must(t, a.Set(ctx(t), "k", []byte("v1")))
	wantValue(t, b, "k", "v1")
	must(t, b.Set(ctx(t), "k", []byte("longer value")))
	wantValue(t, a, "k", "longer value")
	must(t, b.Set(ctx(t), "k", nil))
	wantValue(t, a, "k", "")
}

func binary(t *testing.T, open func() rendezvous.Store) {
	s := open()
	key, value := "a/\x00\xff//é \n", "\x00\x01\xfe\xff"
	must(t, s.Set(ctx(t), key, []byte(value)))
	wantValue(t, s, key, value)
	must(t, s.Set(ctx(t), "", []byte("of the empty key")))
	wantValue(t, s, "", "of the empty key")
}

func bigValues(t *testing.T, open func() rendezvous.Store) {
	a, b := open(), open()
	for _, n := range []int{16<<10 - 1, 16 << 10, 64<<10 + 1, 1 << 20, 3<<20 + 7} {
		value := bytes.Repeat([]byte("0123456789abcdef!"), n/17+1)[:n]
		must(t, a.Set(ctx(t), "big", value))
		got, err := b.Get(ctx(t), "big")
		must(t, err)
		if !bytes.Equal(got, value) {
			t.Fatalf("value of %d bytes came back as %d other bytes", n, len(got))
		}
	}
	must(t, a.Set(ctx(t), "big", []byte("small")))
	wantValue(t, b, "big", "small")
}

func getWaits(t *testing.T, open func() rendezvous.Store) {
	a, b := open(), open()
	var got []byte
	done := start(func() (err error) { got, err = a.Get(ctx(t), "later"); return err })
	wantBlocked(t, done)
	must(t, b.Set(ctx(t), "later", []byte("here")))
	must(t, <-done)
	if string(got) != "here" {
		t.Fatalf("got %q", got)
	}
}

func waitForSeveral(t *testing.T, open func() rendezvous.Store) {
	a, b := open(), open()
	must(t, b.Set(ctx(t), "one", nil))
	done := start(func() error { return a.Wait(ctx(t), "one", "two", "three") })
	must(t, b.Set(ctx(t), "three", nil))
	wantBlocked(t, done)
	must(t, b.Set(ctx(t), "two", nil))
	must(t, <-done)
	must(t, a.Wait(ctx(t), "one", "two", "three"))
}

func waitForNothing(t *testing.T, open func() rendezvous.Store) {
	must(t, open().Wait(ctx(t)))
}

func cancelledWait(t *testing.T, open func() rendezvous.Store) {
	a, b := open(), open()
	must(t, a.Set(ctx(t), "k", []byte("v")))
	for i := range 20 {
		c, cancel := context.WithCancel(ctx(t))
		key := "never" + strconv.Itoa(i)
		done := start(func() error { return a.Wait(c, key) })
		if i%2 == 0 {
			time.Sleep(time.Millisecond) // lets half of the waits reach the store first; both cases must work
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Fatalf("error %v, want context.Canceled", err)
		}
		must(t, b.Set(ctx(t), key, nil)) // wakes nobody
		wantValue(t, a, "k", "v")
	}
}

func deadlineAndCause(t *testing.T, open func() rendezvous.Store) {
	s := open()
	short, cancel := context.WithTimeout(ctx(t), blocked)
	defer cancel()
	if _, err := s.Get(short, "never"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v, want context.DeadlineExceeded", err)
	}
	cause := errors.New("the round is over")
	c, stop := context.WithCancelCause(ctx(t))
	done := start(func() error { return s.Wait(c, "never") })
	wantBlocked(t, done)
	stop(cause)
	if err := <-done; !errors.Is(err, cause) {
		t.Errorf("error %v, want the cause", err)
	}
}

func endedContext(t *testing.T, open func() rendezvous.Store) {
	s := open()
	c, cancel := context.WithCancel(ctx(t))
	cancel()
	for name, call := range map[string]func() error{
		"Set":           func() error { return s.Set(c, "k", nil) },
		"Get":           func() error { _, err := s.Get(c, "k"); return err },
		"Wait":          func() error { return s.Wait(c, "k") },
		"Add":           func() error { _, err := s.Add(c, "k", 1); return err },
		"CompareAndSet": func() error { _, err := s.CompareAndSet(c, "k", nil, nil); return err },
		"Delete":        func() error { _, err := s.Delete(c, "k"); return err },
	} {
		if err := call(); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: error %v, want context.Canceled", name, err)
		}
	}
	if there, err := s.Delete(ctx(t), "k"); err != nil || there {
		t.Errorf("a call with an ended context had an effect (%v, %v)", there, err)
	}
}

func add(t *testing.T, open func() rendezvous.Store) {
	s := open()
	for _, step := range []struct{ delta, want int64 }{{5, 5}, {-7, -2}, {0, -2}, {1 << 40, 1<<40 - 2}} {
		got, err := s.Add(ctx(t), "n", step.delta)
		must(t, err)
		if got != step.want {
			t.Fatalf("add %d gives %d, want %d", step.delta, got, step.want)
		}
		wantValue(t, s, "n", strconv.FormatInt(step.want, 10))
	}
	must(t, s.Set(ctx(t), "n", []byte("41")))
	if got, err := s.Add(ctx(t), "n", 1); err != nil || got != 42 {
		t.Fatalf("add to a set number gives %d, %v", got, err)
	}
}

func addFromMany(t *testing.T, open func() rendezvous.Store) {
	const clients, each = 8, 50
	var wg sync.WaitGroup
	for range clients {
		s := open()
		wg.Go(func() {
			for range each {
				if _, err := s.Add(ctx(t), "n", 1); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	wantValue(t, open(), "n", strconv.Itoa(clients*each))
}

func addWakes(t *testing.T, open func() rendezvous.Store) {
	a, b := open(), open()
	done := start(func() error { return a.Wait(ctx(t), "n") })
	wantBlocked(t, done)
	_, err := b.Add(ctx(t), "n", 0)
	must(t, err)
	must(t, <-done)
}

func compareAndSet(t *testing.T, open func() rendezvous.Store) {
	s := open()
	for i, step := range []struct{ expected, desired, want string }{
		{"x", "y", "x"},         // missing, and something expected: nothing stored, expected comes back
		{"", "first", "first"},  // missing, nothing expected
		{"", "second", "first"}, // refused
		{"first", "third", "third"},
		{"first", "fourth", "third"},
		{"third", "", ""},
		{"", "fifth", "fifth"}, // equal to the empty value
	} {
		got, err := s.CompareAndSet(ctx(t), "k", []byte(step.expected), []byte(step.desired))
		must(t, err)
		if string(got) != step.want {
			t.Fatalf("step %d gives %q, want %q", i, got, step.want)
		}
	}
	wantValue(t, s, "k", "fifth")
	if there, err := s.Delete(ctx(t), "k"); err != nil || !there {
		t.Fatal(there, err)
	}
}

func oneWinner(t *testing.T, open func() rendezvous.Store) {
	const clients = 8
	results := make([]string, clients)
	var wg sync.WaitGroup
	for i := range clients {
		s := open()
		wg.Go(func() {
			got, err := s.CompareAndSet(ctx(t), "leader", nil, fmt.Append(nil, i))
			if err != nil {
				t.Error(err)
			}
			results[i] = string(got)
		})
	}
	wg.Wait()
	for _, r := range results {
		if r != results[0] || r == "" {
			t.Fatalf("several winners: %q", results)
		}
	}
	wantValue(t, open(), "leader", results[0])
}

func compareAndSetWakes(t *testing.T, open func() rendezvous.Store) {
	a, b := open(), open()
	done := start(func() error { return a.Wait(ctx(t), "k") })
	wantBlocked(t, done)
	_, err := b.CompareAndSet(ctx(t), "k", nil, []byte("v"))
	must(t, err)
	must(t, <-done)
}

func remove(t *testing.T, open func() rendezvous.Store) {
	a, b := open(), open()
	must(t, a.Set(ctx(t), "k", []byte("v")))
	for _, want := range []bool{true, false} {
		there, err := b.Delete(ctx(t), "k")
		must(t, err)
		if there != want {
			t.Fatalf("Delete says %v, want %v", there, want)
		}
	}
	done := start(func() error { return a.Wait(ctx(t), "k") })
	wantBlocked(t, done)
	must(t, b.Set(ctx(t), "k", nil))
	must(t, <-done)
}

func manyGoroutines(t *testing.T, open func() rendezvous.Store) {
	s := open()
	const n = 16
	errs := make(chan error, n)
	for i := range n { // each waits for the next one's key, so they only end if a Wait does not hold up a Set
		go func() {
			errs <- func() error {
				if i < n-1 {
					if err := s.Wait(ctx(t), "g"+strconv.Itoa(i+1)); err != nil {
						return err
					}
				}
				return s.Set(ctx(t), "g"+strconv.Itoa(i), nil)
			}()
		}()
	}
	for range n {
		must(t, <-errs)
	}
	must(t, s.Wait(ctx(t), "g0"))
}

func seenAtOnce(t *testing.T, open func() rendezvous.Store) {
	a, b := open(), open()
	for i := range 200 {
		must(t, a.Set(ctx(t), "k", []byte(strconv.Itoa(i))))
		wantValue(t, b, "k", strconv.Itoa(i))
	}
}
