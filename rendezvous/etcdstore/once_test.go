package etcdstore_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"muster/internal/testutil"
	"muster/rendezvous/etcdstore"
)

// lossy is a network that loses answers, and delivers requests later that were given up.
type lossy struct {
	mu   sync.Mutex
	rand *rand.Rand
	late sync.WaitGroup
	lost int
}

var errLost = status.Error(codes.Unavailable, "the answer was lost")

func (l *lossy) dice(n int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.rand.IntN(n)
}

func (l *lossy) intercept(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker,
	opts ...grpc.CallOption,
) error {
	if !etcdstore.HasWrites(req) {
		return invoke(ctx, method, req, reply, cc, opts...)
	}
	switch l.dice(6) {
	case 0: // done, and nobody knows
		if err := invoke(ctx, method, req, reply, cc, opts...); err != nil {
			return err
		}
	case 1: // not done yet
		wait := time.Duration(l.dice(200)) * time.Millisecond
		l.late.Go(func() {
			time.Sleep(wait)                                                             // what it is: a request on its way
			_ = invoke(context.WithoutCancel(ctx), method, req, new(pb.TxnResponse), cc) // the options are the caller's, who has gone on
		})
	case 2: // never to be done
	default:
		return invoke(ctx, method, req, reply, cc, opts...)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lost++
	return errLost
}

// TestLostAnswers runs calls of every kind through a network that loses answers and delivers requests late: each is
// done once, and its answer tells what was done.
func TestLostAnswers(t *testing.T) {
	testutil.Long(t)
	c := testutil.Etcd(t, 1)
	cfg := job(c)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	nets := make([]*lossy, 3)
	stores := make([]*etcdstore.Store, len(nets))
	for i := range nets {
		nets[i] = &lossy{rand: rand.New(rand.NewPCG(seed, uint64(i)))}
		through := cfg
		through.Intercept(nets[i].intercept)
		stores[i] = open(t, through)
	}
	ctx := within(t)
	each := 10
	if testutil.Soak() {
		each = 100
	}
	var wg sync.WaitGroup
	wins := make([]map[int]bool, len(stores))
	removed := make([]int, len(stores))
	for i, s := range stores {
		wins[i] = make(map[int]bool)
		wg.Go(func() { // sums are all different, and none is missing
			for range each {
				n, err := s.Add(ctx, "n", 1)
				if err != nil {
					t.Error(err)
					return
				}
				if wins[i][int(n)] {
					t.Errorf("store %d got the sum %d twice", i, n)
				}
				wins[i][int(n)] = true
			}
		})
		wg.Go(func() { // a key that comes and goes: each value has one who made it, and one who removed it
			for k := range each {
				key := "turn" + strconv.Itoa(k)
				mine := fmt.Sprintf("%d", i)
				got, err := s.CompareAndSet(ctx, key, nil, []byte(mine))
				if err != nil {
					t.Error(err)
					return
				}
				if string(got) == mine {
					if there, err := s.Delete(ctx, key); err != nil || !there {
						t.Errorf("store %d made %s, but there: %v, %v", i, key, there, err)
					}
					removed[i]++
				}
			}
		})
		wg.Go(func() { // only this one writes here: what it wrote last stands, whatever comes late
			key := "own" + strconv.Itoa(i)
			for k := range each {
				want := strconv.Itoa(k)
				if err := s.Set(ctx, key, []byte(want)); err != nil {
					t.Error(err)
					return
				}
				if got, err := s.Get(ctx, key); err != nil || string(got) != want {
					t.Errorf("%s holds %q after %q was set (%v)", key, got, want, err)
				}
			}
		})
	}
	wg.Wait()
	lost := 0
	for _, n := range nets {
		n.late.Wait()
		lost += n.lost
	}
	if lost < each {
		t.Errorf("only %d answers were lost", lost)
	}
	plain := open(t, cfg)
	seen := make(map[int]bool)
	for i := range wins {
		for n := range wins[i] {
			if seen[n] {
				t.Errorf("two got the sum %d", n)
			}
			seen[n] = true
		}
		got, err := plain.Get(ctx, "own"+strconv.Itoa(i))
		if err != nil || string(got) != strconv.Itoa(each-1) {
			t.Errorf("own%d ends as %q (%v)", i, got, err)
		}
	}
	if got, err := plain.Get(ctx, "n"); err != nil || string(got) != strconv.Itoa(each*len(stores)) {
		t.Errorf("the sum is %q, want %d (%v)", got, each*len(stores), err)
	}
	for k := range each {
		if there, err := plain.Delete(ctx, "turn"+strconv.Itoa(k)); err != nil || there {
			t.Errorf("turn%d came back (%v)", k, err)
		}
	}
	if removed[0]+removed[1]+removed[2] < each {
		t.Errorf("keys were made %v times", removed)
	}
}

// TestLateCopy delivers a copy of a write after its key was removed again, when every condition of its own is met anew.
func TestLateCopy(t *testing.T) {
	c := testutil.Etcd(t, 1)
	cfg := job(c)
	other := open(t, cfg)
	for name, call := range map[string]func(ctx context.Context, s *etcdstore.Store, key string) error{
		"Add": func(ctx context.Context, s *etcdstore.Store, key string) error { return second(s.Add(ctx, key, 1)) },
		"CompareAndSet": func(ctx context.Context, s *etcdstore.Store, key string) error {
			return second(s.CompareAndSet(ctx, key, nil, []byte("v")))
		},
		"Set": func(ctx context.Context, s *etcdstore.Store, key string) error { return s.Set(ctx, key, []byte("v")) },
		"refused CompareAndSet": func(ctx context.Context, s *etcdstore.Store, key string) error {
			// The first copy is given up; then somebody else has the key, and the call is refused.
			if err := other.Set(ctx, key, []byte("theirs")); err != nil {
				return err
			}
			got, err := s.CompareAndSet(ctx, key, nil, []byte("v"))
			if err == nil && string(got) != "theirs" {
				return fmt.Errorf("%q stands there", got)
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := within(t)
			var deliver func() error
			armed := false
			through := cfg
			through.Intercept(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker,
				opts ...grpc.CallOption,
			) error {
				if armed && etcdstore.HasWrites(req) {
					armed = false
					deliver = func() error { return invoke(context.WithoutCancel(ctx), method, req, new(pb.TxnResponse), cc) }
					return errLost
				}
				return invoke(ctx, method, req, reply, cc, opts...)
			})
			s := open(t, through)
			armed = true
			key := "late " + name
			must(t, call(ctx, s, key))
			if there, err := other.Delete(ctx, key); err != nil || !there {
				t.Fatal(there, err)
			}
			must(t, deliver())
			if there, err := other.Delete(ctx, key); err != nil || there {
				t.Errorf("the late copy was applied (%v)", err)
			}
		})
	}
}
