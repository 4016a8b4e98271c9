package etcdstore_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"muster/internal/testutil"
	"muster/rendezvous/etcdstore"
)

// load is what several stores do while members die.
type load struct {
	t      *testing.T
	ctx    context.Context
	stores []*etcdstore.Store
	stop   chan struct{}
	wg     sync.WaitGroup

	adds, changes, waits atomic.Int64
	slowest              atomic.Int64 // call, in nanoseconds

	mu   sync.Mutex
	sums map[int64]bool
	won  map[string]bool // numbers that somebody moved the chain to
}

func startLoad(t *testing.T, stores []*etcdstore.Store) *load {
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	t.Cleanup(cancel)
	l := &load{t: t, ctx: ctx, stores: stores, stop: make(chan struct{}), sums: make(map[int64]bool), won: make(map[string]bool)}
	must(t, stores[0].Set(ctx, "chain", []byte("0")))
	for i, s := range stores {
		l.wg.Go(func() { l.run(func() error { return l.add(s) }) })
		l.wg.Go(func() { l.run(func() error { return l.change(s) }) })
		turn := 0
		l.wg.Go(func() { l.run(func() error { turn++; return l.wait(s, i, turn) }) })
	}
	return l
}

func (l *load) run(call func() error) {
	for {
		select {
		case <-l.stop:
			return
		default:
		}
		start := time.Now()
		if err := call(); err != nil {
			l.t.Error(err)
			return
		}
		if took := int64(time.Since(start)); took > l.slowest.Load() {
			l.slowest.Store(took)
		}
	}
}

// add counts.
func (l *load) add(s *etcdstore.Store) error {
	n, err := s.Add(l.ctx, "n", 1)
	if err != nil {
		return err
	}
	l.adds.Add(1)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sums[n] {
		return fmt.Errorf("two calls got the sum %d", n)
	}
	l.sums[n] = true
	return nil
}

// change moves a number on by one; of those who saw the same one, exactly one may succeed.
func (l *load) change(s *etcdstore.Store) error {
	old, err := s.Get(l.ctx, "chain")
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(string(old))
	if err != nil {
		return err
	}
	key := fmt.Sprintf("%d by %p %d", n+1, s, time.Now().UnixNano())
	got, err := s.CompareAndSet(l.ctx, "lock"+string(old), nil, []byte(key))
	if err != nil {
		return err
	}
	if string(got) != key {
		return nil
	}
	got, err = s.CompareAndSet(l.ctx, "chain", old, []byte(strconv.Itoa(n+1)))
	if err != nil {
		return err
	}
	if string(got) != strconv.Itoa(n+1) {
		return fmt.Errorf("%q follows %d, which was mine to change", got, n)
	}
	l.changes.Add(1)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.won[string(old)] {
		return fmt.Errorf("%d was changed twice", n)
	}
	l.won[string(old)] = true
	return nil
}

// wait has another store wait for a key before it is set.
func (l *load) wait(s *etcdstore.Store, i, turn int) error {
	key := fmt.Sprintf("turn/%d/%d", i, turn)
	other := l.stores[(i+1)%len(l.stores)]
	woke := make(chan error, 1)
	go func() {
		v, err := other.Get(l.ctx, key)
		if err == nil && string(v) != key {
			err = fmt.Errorf("%s holds %q", key, v)
		}
		woke <- err
	}()
	err := s.Set(l.ctx, key, []byte(key))
	if waited := <-woke; err == nil {
		err = waited
	}
	l.waits.Add(1)
	return err
}

// more waits until each kind of call has succeeded n more times.
func (l *load) more(what string, n int64) {
	l.t.Helper()
	a, c, w := l.adds.Load(), l.changes.Load(), l.waits.Load()
	start := time.Now()
	testutil.Eventually(l.t, patience, what, func() bool {
		return l.t.Failed() || (l.adds.Load() >= a+n && l.changes.Load() >= c+n && l.waits.Load() >= w+n)
	})
	l.t.Logf("%s: %v", what, time.Since(start).Round(time.Millisecond))
}

// end stops the load and checks the books.
func (l *load) end() {
	l.t.Helper()
	close(l.stop)
	l.wg.Wait()
	sum, err := l.stores[0].Get(l.ctx, "n")
	must(l.t, err)
	if string(sum) != strconv.FormatInt(l.adds.Load(), 10) || len(l.sums) != int(l.adds.Load()) {
		l.t.Errorf("%d calls added 1, with %d sums, and %s stands there", l.adds.Load(), len(l.sums), sum)
	}
	chain, err := l.stores[0].Get(l.ctx, "chain")
	must(l.t, err)
	if string(chain) != strconv.FormatInt(l.changes.Load(), 10) {
		l.t.Errorf("%d changes lead to %s", l.changes.Load(), chain)
	}
	l.t.Logf("%d adds, %d changes, %d waits, slowest call %v", l.adds.Load(), l.changes.Load(), l.waits.Load(),
		time.Duration(l.slowest.Load()).Round(time.Millisecond))
}

// TestMembersDie kills the leader under load, and then whoever leads, and freezes one: nothing is lost, nothing counts
// twice, and whoever waits is woken.
func TestMembersDie(t *testing.T) {
	testutil.Long(t)
	c := testutil.Etcd(t, 3)
	cfg := job(c)
	var stores []*etcdstore.Store
	for range 4 {
		stores = append(stores, open(t, cfg))
	}
	waiting := make(chan error, 1)
	go func() { waiting <- stores[1].Wait(context.Background(), "set after all that") }()

	l := startLoad(t, stores)
	l.more("before", 5)
	dead := c.KillLeader()
	l.more("after the death of the leader", 5)
	c.Start(dead)
	l.more("with the dead member back", 5)
	testutil.Eventually(t, patience, "all members are in", func() bool { return c.InSync() })
	dead = c.KillLeader()
	l.more("after the death of the next leader", 5)
	c.Start(dead)
	testutil.Eventually(t, patience, "all members are in again", func() bool { return c.InSync() })
	frozen := c.Leader()
	c.Signal(frozen, syscall.SIGSTOP)
	l.more("with a frozen leader", 5)
	c.Signal(frozen, syscall.SIGCONT)
	l.more("after it", 5)
	l.end()
	select {
	case err := <-waiting:
		t.Fatalf("a wait ended early (%v)", err)
	default:
	}
	must(t, stores[0].Set(within(t), "set after all that", nil))
	must(t, <-waiting)
}

// TestNoQuorum stops two members of three: calls end with their context and say why, and go on when one is back.
func TestNoQuorum(t *testing.T) {
	testutil.Long(t)
	t.Parallel()
	c := testutil.Etcd(t, 3)
	cfg := job(c)
	s := open(t, cfg)
	must(t, s.Set(within(t), "n", []byte("1")))
	leader := c.Leader()
	c.Kill(leader)
	c.Kill((leader + 1) % 3)

	cause := errors.New("the join timeout of 4 s is over")
	ctx, cancel := context.WithTimeoutCause(context.Background(), 4*time.Second, cause)
	defer cancel()
	var wg sync.WaitGroup
	for name, call := range map[string]func() error{
		"SET": func() error { return s.Set(ctx, "k", nil) }, "GET": func() error { return second(s.Get(ctx, "n")) },
		"WAIT": func() error { return s.Wait(ctx, "k") }, "ADD": func() error { return second(s.Add(ctx, "n", 1)) },
		"COMPARE_SET": func() error { return second(s.CompareAndSet(ctx, "n", nil, nil)) },
		"DELETE":      func() error { return second(s.Delete(ctx, "n")) },
	} {
		wg.Go(func() {
			err := call()
			t.Logf("%v", err)
			if !errors.Is(err, cause) || !strings.Contains(fmt.Sprint(err), "no quorum: 1 of 3 members answer") ||
				!strings.Contains(fmt.Sprint(err), "cannot "+name) ||
				!strings.Contains(fmt.Sprint(err), c.Endpoints[leader]+": nobody listens") {
				t.Errorf("%s: error %v", name, err)
			}
		})
	}
	wg.Wait()
	if s, err := etcdstore.Open(ctx, cfg); err == nil {
		_ = s.Close()
		t.Error("opened without a quorum")
	}

	long := within(t)
	sum := make(chan error, 1)
	go func() {
		n, err := s.Add(long, "n", 1)
		if err == nil && n < 2 { // the ADD above may have been taken by the member that was left, and is done now
			err = fmt.Errorf("the sum is %d", n)
		}
		sum <- err
	}()
	c.Start(leader)
	must(t, <-sum)
}

// TestLease looks at what keeps the keys of a job, and what ends them.
func TestLease(t *testing.T) {
	testutil.Long(t)
	t.Parallel()
	c := testutil.Etcd(t, 1)
	cfg := job(c)
	cfg.LeaseTTL = 2 * time.Second
	ctx := within(t)
	a, b := open(t, cfg), open(t, cfg)
	looking := cfg
	looking.Lease += " of somebody who looks"
	l := open(t, looking)
	must(t, l.Set(ctx, "his own", nil))
	must(t, a.Set(ctx, "set", nil))
	_, err := a.Add(ctx, "added", 1)
	must(t, err)
	_, err = a.CompareAndSet(ctx, "compared", nil, []byte("v"))
	must(t, err)
	must(t, a.MultiSet(ctx, etcdstore.Pair{Key: "several", Value: make([]byte, 2*etcdstore.MaxPlain)}))
	must(t, a.Close())

	time.Sleep(2 * cfg.LeaseTTL) // the store that is left keeps the keys for as long as it lives
	must(t, b.Wait(ctx, "set", "added", "compared", "several"))
	must(t, b.Close())
	testutil.Eventually(t, patience, "only what is kept by another job is left", func() bool {
		n, err := l.Raw(ctx, cfg.Prefix)
		must(t, err)
		return n == 2 // his key and his slot
	})

	// A lease that is lost is granted anew, and the store goes on.
	d := open(t, cfg)
	must(t, d.Set(ctx, "k", nil))
	c.Ctl("lease", "revoke", strconv.FormatInt(d.LeaseID(), 16))
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			if n, err := d.Add(ctx, fmt.Sprintf("after%d", i), 1); err != nil || n != 1 {
				t.Errorf("after the loss of the lease: %d, %v", n, err)
			}
		})
	}
	wg.Wait()
	if there, err := d.Delete(ctx, "k"); err != nil || there {
		t.Errorf("the key outlived its lease (%v)", err)
	}
	c.Ctl("lease", "revoke", strconv.FormatInt(d.LeaseID(), 16))
	testutil.Eventually(t, patience, "the lease is granted by a store that does nothing", func() bool {
		left, err := d.LeaseLeft(ctx)
		must(t, err)
		return left > 0
	})
	must(t, d.Set(ctx, "big", make([]byte, 2*etcdstore.MaxPlain)))
	if v, err := d.Get(ctx, "big"); err != nil || len(v) != 2*etcdstore.MaxPlain {
		t.Errorf("%d bytes, %v", len(v), err)
	}
}

// TestManyAdd has a crowd add to one key at the same time.
func TestManyAdd(t *testing.T) {
	testutil.Long(t)
	c := testutil.Etcd(t, 1)
	cfg := job(c)
	const crowd = 100
	stores := []*etcdstore.Store{open(t, cfg), open(t, cfg), open(t, cfg), open(t, cfg)}
	ctx := within(t)
	var wg sync.WaitGroup
	start := time.Now()
	for i := range crowd {
		wg.Go(func() {
			if _, err := stores[i%len(stores)].Add(ctx, "n", 1); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	t.Logf("%d adds at once took %v", crowd, time.Since(start))
	if v, err := stores[0].Get(ctx, "n"); err != nil || string(v) != strconv.Itoa(crowd) {
		t.Errorf("the sum is %q, %v", v, err)
	}
}
