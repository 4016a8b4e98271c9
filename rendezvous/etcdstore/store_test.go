package etcdstore_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"muster/internal/testutil"
	"muster/rendezvous"
	"muster/rendezvous/etcdstore"
	"muster/rendezvous/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = time.Minute // bounds a hang

var lastJob atomic.Int64

// job returns the configuration of a job that no other test has.
func job(c *testutil.EtcdCluster) etcdstore.Config {
	n := lastJob.Add(1)
	return etcdstore.Config{Endpoints: c.Endpoints, Prefix: fmt.Sprintf("/test%d/%d/", os.Getpid(), n), Lease: fmt.Sprintf("job%d", n)}
}

func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

func open(t testing.TB, cfg etcdstore.Config) *etcdstore.Store {
	t.Helper()
	s, err := etcdstore.Open(within(t), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestStore(t *testing.T) {
	testutil.Long(t)
	c := testutil.Etcd(t, 1)
	jobs := make(map[*testing.T]etcdstore.Config)
	storetest.Run(t, func(t *testing.T) rendezvous.Store {
		if _, ok := jobs[t]; !ok {
			jobs[t] = job(c)
		}
		return open(t, jobs[t])
	})
}

func TestSeveral(t *testing.T) {
	c := testutil.Etcd(t, 1)
	a := open(t, job(c))
	var _ interface {
		MultiGet(context.Context, ...string) ([][]byte, error)
	} = a
	ctx := within(t)

	const n = 2*etcdstore.ReadBatch + 3
	var pairs []etcdstore.Pair
	var keys []string
	for i := range n {
		keys = append(keys, fmt.Sprintf("several/%d", i))
		pairs = append(pairs, etcdstore.Pair{Key: keys[i], Value: strconv.AppendInt(nil, int64(i), 10)})
	}
	got := make(chan [][]byte, 1)
	failed := make(chan error, 1)
	go func() {
		values, err := a.MultiGet(ctx, keys...)
		failed <- err
		got <- values
	}()
	must(t, a.MultiSet(ctx, append([]etcdstore.Pair{{Key: keys[0], Value: []byte("of two with one key the last counts")}}, pairs...)...))
	must(t, <-failed)
	for i, v := range <-got {
		if string(v) != strconv.Itoa(i) {
			t.Fatalf("key %d holds %q", i, v)
		}
	}
	must(t, a.Wait(ctx, keys...))
	if values, err := a.MultiGet(ctx); err != nil || len(values) != 0 {
		t.Errorf("of no keys: %q, %v", values, err)
	}
	must(t, a.MultiSet(ctx))
	over := make([]etcdstore.Pair, 1)
	over[0].Value = make([]byte, etcdstore.MaxValue+1)
	if err := a.MultiSet(ctx, over...); err == nil {
		t.Error("a value beyond the limit was taken")
	}

	short, cancel := context.WithCancelCause(ctx)
	cause := errors.New("enough")
	time.AfterFunc(50*time.Millisecond, func() { cancel(cause) })
	if _, err := a.MultiGet(short, append(keys, "never")...); !errors.Is(err, cause) {
		t.Errorf("error %v, want the cause", err)
	}
}

func TestLimits(t *testing.T) {
	testutil.Long(t)
	c := testutil.Etcd(t, 1)
	s := open(t, job(c))
	ctx := within(t)
	for _, n := range []int{etcdstore.MaxKey - 1, etcdstore.MaxKey, etcdstore.MaxKey + 1} {
		key := strings.Repeat("k", n)
		for name, err := range map[string]error{
			"SET":    s.Set(ctx, key, nil),
			"GET":    second(s.Get(ctx, key)),
			"WAIT":   s.Wait(ctx, key),
			"ADD":    second(s.Add(ctx, key+"", 1)),
			"CAS":    second(s.CompareAndSet(ctx, key, nil, nil)),
			"DELETE": second(s.Delete(ctx, key)),
		} {
			if name == "ADD" && n <= etcdstore.MaxKey { // the empty value that SET left is no number
				if !errors.Is(err, etcdstore.ErrNumber) {
					t.Errorf("ADD to an empty value: %v", err)
				}
				continue
			}
			if (err != nil) != (n > etcdstore.MaxKey) {
				t.Errorf("%s of a key of %d bytes: %v", name, n, err)
			}
		}
	}
	for _, n := range []int{
		etcdstore.MaxPlain - 1, etcdstore.MaxPlain, etcdstore.MaxPlain + 1, etcdstore.MaxValue - 1, etcdstore.MaxValue,
		etcdstore.MaxValue + 1,
	} {
		value := bytes.Repeat([]byte{byte(n)}, n)
		err := s.Set(ctx, "big", value)
		if (err != nil) != (n > etcdstore.MaxValue) {
			t.Fatalf("SET of %d bytes: %v", n, err)
		}
		if err != nil {
			continue
		}
		if got, err := s.Get(ctx, "big"); err != nil || !bytes.Equal(got, value) {
			t.Fatalf("%d bytes came back as %d (%v)", n, len(got), err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

// TestBigValues compares and replaces values that are cut into pieces, and looks for pieces that nobody needs.
func TestBigValues(t *testing.T) {
	testutil.Long(t)
	c := testutil.Etcd(t, 1)
	cfg := job(c)
	s := open(t, cfg)
	ctx := within(t)
	one, two := bytes.Repeat([]byte("1"), 3*etcdstore.MaxPlain+1), bytes.Repeat([]byte("2"), 2*etcdstore.MaxPlain)
	pieces := func(want int64) {
		t.Helper()
		var n int64
		testutil.Eventually(t, patience, fmt.Sprintf("%d pieces are left", want), func() bool {
			var err error
			n, err = s.Raw(ctx, cfg.Prefix+"~p/")
			must(t, err)
			return n == want
		})
	}
	cas := func(expected, desired, want []byte) {
		t.Helper()
		got, err := s.CompareAndSet(ctx, "k", expected, desired)
		must(t, err)
		if !bytes.Equal(got, want) {
			t.Fatalf("%d bytes stand there, want %d", len(got), len(want))
		}
	}
	cas(two, one, two) // missing
	pieces(0)
	cas(nil, one, one)
	pieces(4)
	cas(nil, two, one)
	cas(two, two, one)
	pieces(4)
	cas(one, two, two)
	pieces(2)
	cas(two, []byte("small"), []byte("small"))
	pieces(0)
	must(t, s.Set(ctx, "k", one))
	must(t, s.Set(ctx, "k", two))
	pieces(2)
	must(t, s.MultiSet(ctx, etcdstore.Pair{Key: "k", Value: one}, etcdstore.Pair{Key: "l", Value: two}))
	pieces(6)
	if values, err := s.MultiGet(ctx, "l", "k"); err != nil || !bytes.Equal(values[0], two) || !bytes.Equal(values[1], one) {
		t.Errorf("MULTI_GET of big values: %v", err)
	}
	for _, k := range []string{"k", "l"} {
		if there, err := s.Delete(ctx, k); err != nil || !there {
			t.Fatal(there, err)
		}
	}
	pieces(0)
	if _, err := s.Add(ctx, "k", 1); err != nil {
		t.Error(err)
	}
}

// TestBigValuesReplacedWhileRead reads a value whose pieces vanish under the reader.
func TestBigValuesReplacedWhileRead(t *testing.T) {
	testutil.Long(t)
	c := testutil.Etcd(t, 1)
	cfg := job(c)
	a, b := open(t, cfg), open(t, cfg)
	ctx := within(t)
	must(t, a.Set(ctx, "k", bytes.Repeat([]byte{0}, etcdstore.MaxPlain+1)))
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range 20 {
			if err := a.Set(ctx, "k", bytes.Repeat([]byte{byte(i)}, etcdstore.MaxPlain+1+i)); err != nil {
				t.Error(err)
			}
		}
	})
	last := byte(0)
	for last < 19 && !t.Failed() {
		v, err := b.Get(ctx, "k")
		must(t, err)
		if v[0] < last || len(v) != etcdstore.MaxPlain+1+int(v[0]) || bytes.Count(v, v[:1]) != len(v) {
			t.Fatalf("a value of %d bytes that begins with %d after %d", len(v), v[0], last)
		}
		last = v[0]
	}
	wg.Wait()
}

// TestKeySpace looks at what the cluster holds: keys as they are, and none that meets one of ours.
func TestKeySpace(t *testing.T) {
	c := testutil.Etcd(t, 1)
	cfg := job(c)
	s := open(t, cfg)
	other := cfg
	other.Prefix += "x/"
	o := open(t, other)
	ctx := within(t)
	keys := []string{"plain", "", "~", "~k", "~kk", "k", "~s/", "~p/", "~~", "muster/job/0/member", "\xfemuster"}
	for i, k := range keys {
		for _, special := range []string{"", "\xfemuster", "\xfemuster ", "\xfemuster:600000:x"} {
			must(t, s.Set(ctx, k, []byte(special+strconv.Itoa(i))))
			if got, err := s.Get(ctx, k); err != nil || string(got) != special+strconv.Itoa(i) {
				t.Fatalf("%q holds %q, %v", k, got, err)
			}
			if got, err := s.CompareAndSet(ctx, k, []byte(special+strconv.Itoa(i)), []byte(strconv.Itoa(i))); err != nil ||
				string(got) != strconv.Itoa(i) {
				t.Fatalf("%q holds %q, %v", k, got, err)
			}
		}
	}
	for i, k := range keys {
		if got, err := s.Get(ctx, k); err != nil || string(got) != strconv.Itoa(i) {
			t.Errorf("%q holds %q, %v", k, got, err)
		}
	}
	if got := c.Ctl("get", "--print-value-only", cfg.Prefix+"muster/job/0/member"); strings.TrimSpace(got) != "9" {
		t.Errorf("etcdctl reads %q", got)
	}
	if there, err := o.Delete(ctx, "plain"); err != nil || there {
		t.Errorf("prefixes meet: %v, %v", there, err)
	}
}

func TestAddToNoNumber(t *testing.T) {
	c := testutil.Etcd(t, 1)
	s := open(t, job(c))
	ctx := within(t)
	must(t, s.Set(ctx, "n", []byte("many")))
	if _, err := s.Add(ctx, "n", 1); !errors.Is(err, etcdstore.ErrNumber) {
		t.Errorf("error %v", err)
	}
	if v, err := s.Get(ctx, "n"); err != nil || string(v) != "many" {
		t.Errorf("%q, %v", v, err)
	}
	if n := s.Slots(); n == 0 {
		t.Error("the slot is lost")
	}
}

// TestClose ends calls of every kind.
func TestClose(t *testing.T) {
	c := testutil.Etcd(t, 1)
	s := open(t, job(c))
	ctx := within(t)
	errs := make(chan error, 3)
	go func() { errs <- second(s.Get(ctx, "never")) }()
	go func() { errs <- s.Wait(ctx, "n1", "n2") }()
	go func() { errs <- second(s.MultiGet(ctx, "n1", "n2")) }()
	time.Sleep(50 * time.Millisecond) // so that most often they are under way; they must end in any case
	must(t, s.Close())
	for range 3 {
		if err := <-errs; !errors.Is(err, rendezvous.ErrStoreClosed) {
			t.Errorf("error %v, want ErrStoreClosed", err)
		}
	}
	for name, err := range map[string]error{
		"Set": s.Set(ctx, "k", nil), "Get": second(s.Get(ctx, "k")), "Wait": s.Wait(ctx), "Add": second(s.Add(ctx, "k", 1)),
		"CompareAndSet": second(s.CompareAndSet(ctx, "k", nil, nil)), "Delete": second(s.Delete(ctx, "k")),
		"MultiGet": second(s.MultiGet(ctx)), "MultiSet": s.MultiSet(ctx),
	} {
		if !errors.Is(err, rendezvous.ErrStoreClosed) {
			t.Errorf("%s: error %v, want ErrStoreClosed", name, err)
		}
	}
	must(t, s.Close())
}

// TestWatchIsPrompt bounds how long a waiter takes to notice, while others write: etcd serves a watch from the past
// late.
func TestWatchIsPrompt(t *testing.T) {
	testutil.Long(t)
	c := testutil.Etcd(t, 1)
	cfg := job(c)
	a, b, noise := open(t, cfg), open(t, cfg), open(t, cfg)
	ctx, stop := context.WithCancel(within(t))
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	wg.Go(func() {
		for ctx.Err() == nil {
			_ = noise.Set(ctx, "noise", nil)
		}
	})
	var total time.Duration
	const rounds = 20
	for i := range rounds {
		key := "prompt" + strconv.Itoa(i)
		woke := make(chan time.Time, 1)
		go func() {
			_ = b.Wait(ctx, key)
			woke <- time.Now()
		}()
		time.Sleep(20 * time.Millisecond) // so that the waiter waits; it would be faster else
		must(t, a.Set(ctx, key, nil))
		set := time.Now()
		total += max(0, (<-woke).Sub(set))
	}
	t.Logf("woke %v after the answer to the write, on average", total/rounds)
	if total/rounds > 5*time.Second {
		t.Errorf("waiters wake %v late", total/rounds)
	}
}
