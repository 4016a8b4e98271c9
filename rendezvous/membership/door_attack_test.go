package membership_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"muster/internal/testutil"
	"muster/rendezvous"
	"muster/rendezvous/membership"
	"muster/rendezvous/memstore"
)

// errSick is what is found of a node at the door.
var errSick = errors.New("a GPU has fallen off the bus")

// atTheDoor has two nodes come at once to a job of two that trains: both say a word on their board, and of one of them
// is found that it is sick. It returns what became of both once the round of the others has ended, or some minutes have
// passed.
func atTheDoor(t *testing.T, tamper func(s *memstore.Space)) (good, sick *next, stopped bool) {
	j := checked(t, 2, 4)
	j.cfg.Token = jobToken
	a, b := j.start("a"), j.start("b")
	j.mustMeet(a, b)
	if err := a.Board().Set(t.Context(), rendezvous.StandardKey, []byte("as good as this")); err != nil {
		t.Fatal(err)
	}
	tamper(j.space)
	newcomer := func(name string, found error) (*agent, chan next) {
		x := j.start(name)
		x.AtDoor(func(ctx context.Context, d rendezvous.Door) error {
			if text := string(d.Standard); text != "as good as this" && text != "" {
				t.Errorf("%s is to be compared with %q", name, text)
			}
			if d.Size > 1 {
				if err := d.Board.Set(ctx, fmt.Sprint("word/", d.Rank), []byte("word of "+name)); err != nil {
					return nil
				}
				limited, cancel := context.WithTimeout(ctx, time.Minute)
				defer cancel()
				if text, err := d.Board.Get(limited, fmt.Sprint("word/", 1-d.Rank)); err == nil &&
					!strings.HasPrefix(string(text), "word of ") {
					t.Errorf("%s reads %q", name, text)
				}
			}
			if found != nil {
				_ = x.Exclude(ctx, []rendezvous.Exclusion{{Node: name, Reason: "sick"}}, true)
			}
			return found
		})
		return x, x.begin(t.Context())
	}
	_, placeGood := newcomer("good", nil)
	synctest.Wait()
	x, placeSick := newcomer("sick", errSick)
	var mu sync.Mutex
	var left sync.WaitGroup
	var ended *next
	left.Go(func() {
		n := <-placeSick
		mu.Lock()
		ended = &n
		mu.Unlock()
		if errors.Is(n.err, errSick) {
			x.Close()
		}
	})
	t.Cleanup(left.Wait) // before that of x, which closes it, too
	select {
	case <-a.Verdict():
		stopped = true
		b.verdict()
		meet(t.Context(), a, b)
	case <-time.After(10 * time.Minute):
	}
	select {
	case n := <-placeGood:
		good = &n
	case <-time.After(time.Second):
	}
	mu.Lock()
	defer mu.Unlock()
	return good, ended, stopped
}

// TestDoorIsSealed: all that is said at the door, and what is remembered of excluded nodes, can be written with the
// token only; and it is deleted when nobody needs it any more.
func TestDoorIsSealed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		seen := map[string]bool{}
		var space *memstore.Space
		good, sick, stopped := atTheDoor(t, func(s *memstore.Space) {
			space = s
			s.Tamper(func(key string, value []byte) ([]byte, bool) {
				mu.Lock()
				defer mu.Unlock()
				if strings.HasPrefix(key, membership.KeyPrefix) && !bare(key) && !membership.Sealed("job7", jobToken, key, value) {
					t.Errorf("not sealed: %q is %.80q", key, value)
				}
				seen[class(key)] = true
				return value, true
			})
		})
		if !stopped || good == nil || good.err != nil || good.round.GroupWorldSize != 3 || sick == nil || !errors.Is(sick.err, errSick) {
			t.Errorf("the round ended: %v; the good one: %+v, the sick one: %+v", stopped, good, sick)
		}
		mu.Lock()
		defer mu.Unlock()
		for _, want := range []string{"found/", "board/word", "quarantine"} {
			if !slices.ContainsFunc(slices.Collect(maps.Keys(seen)), func(c string) bool { return strings.Contains(c, want) }) {
				t.Errorf("nothing was written that has to do with %q: the test shows less than it says", want)
			}
		}
		for key := range space.Keys() {
			if strings.Contains(key, "/door/") {
				t.Errorf("%q is left", key)
			}
		}
	})
}

// TestForgedAtTheDoor does to each kind of key that is written at the door what is no right of the attacker: no sick
// node comes in, and no good one is sent away. What is taken away once only is said again. Each kind of key is forged
// in each way the first time, the second or each time that it is written; with MUSTER_SOAK=1 in all three. Under
// the race detector each kind is forged in one or two ways at one of them.
func TestForgedAtTheDoor(t *testing.T) {
	classes := map[string]bool{}
	var old []record
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		atTheDoor(t, func(s *memstore.Space) {
			s.Tamper(func(key string, value []byte) ([]byte, bool) {
				mu.Lock()
				defer mu.Unlock()
				old = append(old, record{key, class(key), value})
				if strings.Contains(key, "/door/") || strings.HasSuffix(key, "/quarantine") || strings.Contains(key, "/answer/") {
					classes[class(key)] = true
				}
				return value, true
			})
		})
	})
	if len(classes) < 4 {
		t.Fatalf("kinds of keys: %v", slices.Sorted(maps.Keys(classes)))
	}
	for k, of := range slices.Sorted(maps.Keys(classes)) {
		for w, what := range slices.Sorted(maps.Keys(forgeries(nil, nil))) {
			for m, nth := range []int{1, 2, 0} { // 0: each time
				switch {
				case racing():
					if (k+w)%8 != 0 || k%3 != m {
						continue
					}
				case !testutil.Soak() && (k+w)%3 != m || thin(2*k+w):
					continue
				}
				t.Run(fmt.Sprintf("%s/%s/%d", strings.ReplaceAll(of, "/", ":"), what, nth), func(t *testing.T) {
					t.Parallel()
					synctest.Test(t, func(t *testing.T) {
						var mu sync.Mutex
						now, struck := map[string][]byte{}, 0
						forged := forgeries(old, rand.New(rand.NewPCG(uint64(len(of)), uint64(len(what)))))[what]
						good, sick, stopped := atTheDoor(t, func(s *memstore.Space) {
							s.Tamper(func(key string, value []byte) ([]byte, bool) {
								mu.Lock()
								defer mu.Unlock()
								defer func() { now[key] = value }()
								if class(key) != of {
									return value, true
								}
								if struck++; nth > 0 && struck != nth {
									return value, true
								}
								f := forged(record{key, class(key), value}, now)
								return f, f != nil
							})
						})
						if sick != nil && sick.err == nil {
							t.Errorf("the sick one is in %+v", sick.round)
						}
						if good != nil && errors.Is(good.err, errSick) || good != nil && good.err != nil &&
							strings.Contains(good.err.Error(), "sick") {
							t.Errorf("the good one has left: %v", good.err)
						}
						if nth > 0 && (!stopped || good == nil || good.err != nil) {
							t.Errorf("the round ended: %v; the good one: %+v", stopped, good)
						}
					})
				})
			}
		}
	}
}
