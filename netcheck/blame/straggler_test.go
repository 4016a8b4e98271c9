package blame_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"muster/internal/testutil"
	"muster/netcheck/blame"
	"muster/netcheck/blame/blamesim"
)

// TestStragglerRules has the examples of dlrover.md 2.4, as times of matrix multiplications.
func TestStragglerRules(t *testing.T) {
	tests := []struct {
		name         string
		took         []int // ms
		mean, median []int // who is one
		factor       float64
		faulty       []int
	}{
		{name: "two nodes", took: []int{10, 30}, mean: []int{1}},
		{name: "half of four", took: []int{10, 10, 50, 50}, mean: []int{2, 3}},
		{name: "two of five", took: []int{10, 10, 10, 100, 100}, mean: []int{3, 4}, median: []int{3, 4}},
		{name: "two of three", took: []int{10, 100, 100}},
		{name: "upstream's example", took: []int{23, 136, 20, 20}, mean: []int{1}, median: []int{1}},
		{name: "twice is not more than twice", took: []int{10, 10, 20}},
		{name: "another factor", took: []int{10, 10, 20}, factor: 1.5, mean: []int{2}, median: []int{2}},
		{name: "not measured", took: []int{10, 0, 0, 0, 50}, mean: []int{4}},
		{
			name: "a faulty node is not slow too, and does not count", took: []int{10, 10, 50, 5000}, faulty: []int{3}, mean: []int{2},
			median: []int{2},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for rule, want := range map[blame.StragglerRule][]int{blame.MeanOfOthers: tt.mean, blame.MedianOfAll: tt.median} {
				c := newCheck(len(tt.took), blame.Options{Rule: rule, Factor: tt.factor})
				var locals []blame.Local
				for i, ms := range tt.took {
					l := blame.Local{Node: i, Compute: time.Duration(ms) * time.Millisecond}
					if slices.Contains(tt.faulty, i) {
						l.Err = "wrong result"
					}
					locals = append(locals, l)
				}
				if err := c.RecordLocal(locals); err != nil {
					t.Fatal(err)
				}
				var got []int
				for _, s := range c.Verdict().Stragglers {
					if s.Resource == blame.Compute {
						got = append(got, s.Node)
					}
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("rule %d (-want +got)\n%s", rule, diff)
				}
			}
		})
	}
}

// TestNetworkStragglers has up to two nodes that are four times slower, and up to three bad ones, which are not told to
// be slow. A fast node is never taken for a slow one, although half of its tests may be slow.
func TestNetworkStragglers(t *testing.T) {
	count := testutil.Count(5_000, 200_000)
	for seed := range count {
		rnd := rand.New(rand.NewPCG(uint64(seed), 2))
		n := 3 + rnd.IntN(31)
		order := rnd.Perm(n)
		bad := order[:rnd.IntN(min(3, n-2)+1)]
		slow := slices.Sorted(slices.Values(order[n-rnd.IntN(3):]))
		w, c := blamesim.New(n, bad...), newCheck(n, blame.Options{})
		w.Speed = make([]time.Duration, n)
		for i := range w.Speed {
			w.Speed[i] = time.Second + time.Duration(rnd.IntN(100))*time.Millisecond
			if slices.Contains(slow, i) {
				w.Speed[i] *= 4
			}
		}
		rounds, err := w.Run(c)
		if err != nil {
			t.Fatal(err)
		}
		if len(rounds) > 6 {
			t.Fatalf("%v, slow %v: %d rounds", w, slow, len(rounds))
		}
		v := c.Verdict()
		v.Stragglers, slow = nil, slices.DeleteFunc(slow, func(i int) bool { return w.Bad[i] })
		if err := checkExact(w, v); err != nil {
			t.Fatal(err)
		}
		var got []int
		for _, s := range c.Verdict().Stragglers {
			got = append(got, s.Node)
		}
		healthy := n - len(bad)
		for _, i := range got {
			if !slices.Contains(slow, i) {
				t.Fatalf("%v, slow %v: %d is a straggler", w, slow, i)
			}
		}
		if healthy >= 8 && len(rounds) < 6 && !slices.Equal(got, slow) { // after the sixth round who is not proven slow goes free
			t.Fatalf("%v, slow %v: stragglers are %v in %d rounds", w, slow, got, len(rounds))
		}
	}
}
