package blame_test

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"

	"pgregory.net/rapid"

	"muster/internal/testutil"
	"muster/netcheck/blame"
	"muster/netcheck/blame/blamesim"
)

// TestRandomWorlds has up to 33 nodes, any number of them bad, up to two bad links, in the usual and in the full mode:
// 12,000 worlds, 500,000 with MUSTER_SOAK=1.
func TestRandomWorlds(t *testing.T) {
	count := testutil.Count(12_000, 500_000)
	exact := 0
	for seed := range count {
		rnd := rand.New(rand.NewPCG(uint64(seed), 1))
		n := 2 + rnd.IntN(32)
		k := rnd.IntN(4)
		if rnd.IntN(8) == 0 {
			k = rnd.IntN(n + 1)
		}
		w := blamesim.New(n, rnd.Perm(n)[:min(k, n)]...)
		all := allPairs(n)
		for range min(rnd.IntN(3), len(all)) {
			w.Links[all[rnd.IntN(len(all))]] = true
		}
		full := rnd.IntN(8) == 0
		c := newCheck(n, blame.Options{Full: full})
		rounds, err := w.Run(c)
		if err == nil && len(w.Links) == 0 && k <= 3 && n-k >= 2 {
			err = checkExact(w, c.Verdict())
			exact++
		}
		if err == nil {
			err = checkLinks(w, c, rounds, full)
		}
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
	t.Logf("%d worlds, %d of them without a bad link and with up to three bad nodes", count, exact)
}

// TestAnything mixes what can happen: nodes cleared before, whether rightly or not, faults of their own before and
// during the check, nodes that report nothing. Nobody healthy is blamed, the rounds are bounded, and two checks that
// are given the same results in another order have the same plan and verdict.
func TestAnything(t *testing.T) {
	many := testutil.Count(10, 1000)
	for range many {
		rapid.Check(t, anything)
	}
}

func anything(t *rapid.T) {
	n := rapid.IntRange(1, 16).Draw(t, "nodes")
	w := blamesim.New(n)
	var opts blame.Options
	for i := range n {
		w.Bad[i] = rapid.IntRange(0, 4).Draw(t, "bad") == 0
		if rapid.IntRange(0, 2).Draw(t, "cleared") == 0 {
			opts.Cleared = append(opts.Cleared, fmt.Sprint("node", i))
		}
	}
	for range min(rapid.IntRange(0, 2).Draw(t, "links"), n-1) {
		a := rapid.IntRange(0, n-2).Draw(t, "a")
		w.Links[blame.PairOf(a, rapid.IntRange(a+1, n-1).Draw(t, "b"))] = true
	}
	faults := make([]bool, n)
	local := func(checks ...*blame.Check) {
		i := rapid.IntRange(0, 3*n).Draw(t, "fault")
		if i >= n {
			return
		}
		faults[i] = true
		for _, c := range checks {
			if err := c.RecordLocal([]blame.Local{{Node: i, Err: "matmul gives NaN"}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	one, two := newCheck(n, opts), newCheck(n, opts)
	local(one, two)
	rounds := 0
	for {
		r, more := one.Next()
		if again, _ := one.Next(); !reflect.DeepEqual(r, again) {
			t.Fatalf("the same round is %v, then %v", r, again)
		}
		if other, _ := two.Next(); !reflect.DeepEqual(r, other) {
			t.Fatalf("the same results lead to %v and %v", r, other)
		}
		if !more {
			break
		}
		if rounds++; rounds > 6 {
			t.Fatalf("%v: round %d", w, rounds)
		}
		var results []blame.Result
		for _, p := range r.Pairs {
			if faults[p.A] || faults[p.B] {
				t.Fatalf("%v is tested although one is at fault by itself", p)
			}
			if w.Passes(p) || rapid.Bool().Draw(t, "reports") {
				results = append(results, w.Test(p))
			}
		}
		mixed := rapid.Permutation(results).Draw(t, "order")
		if err := one.Record(results); err != nil {
			t.Fatal(err)
		}
		if err := two.Record(mixed); err != nil {
			t.Fatal(err)
		}
		local(one, two)
	}
	v := one.Verdict()
	if other := two.Verdict(); !reflect.DeepEqual(v, other) {
		t.Fatalf("the same results lead to %+v and %+v", v, other)
	}
	checkAnything(t, w, faults, opts, v)
}

func checkAnything(t *rapid.T, w blamesim.World, faults []bool, opts blame.Options, v blame.Verdict) {
	for i, fault := range faults {
		n := v.Nodes[i]
		if fault {
			if n.Status != blame.Fail || n.Reason != "matmul gives NaN" {
				t.Fatalf("node %d, at fault by itself, is %s: %s", i, n.Status, n.Reason)
			}
			w.Bad[i] = true // reaches nobody, and does not count for others
		}
	}
	for i, bad := range w.Bad {
		untested := v.Nodes[i].Reason == "cleared by an earlier check, not tested in this one"
		switch s := v.Nodes[i].Status; {
		case !bad && s == blame.Fail && !w.CutOff(i):
			t.Fatalf("%v: healthy node %d is blamed: %s", w, i, v.Nodes[i].Reason)
		case bad && s == blame.Pass && !untested:
			t.Fatalf("%v: bad node %d passes: %s", w, i, v.Nodes[i].Reason)
		case untested && len(opts.Cleared) == 0:
			t.Fatalf("%v: node %d was never cleared", w, i)
		}
	}
	for _, l := range v.Links {
		if !w.Links[l.Pair] {
			t.Fatalf("%v: good link %v is blamed", w, l.Pair)
		}
	}
}

// TestFewHealthy has four or five healthy nodes among many bad ones, one of them with bad links to two others: where
// the rounds do not suffice to ask all, it must not be blamed for these.
func TestFewHealthy(t *testing.T) {
	count := testutil.Count(5_000, 200_000)
	for seed := range count {
		rnd := rand.New(rand.NewPCG(uint64(seed), 4))
		n := 8 + rnd.IntN(20)
		order := rnd.Perm(n)
		healthy := 4 + rnd.IntN(2)
		w, c := blamesim.New(n, order[healthy:]...), newCheck(n, blame.Options{})
		w.Links[blame.PairOf(order[0], order[1])] = true
		w.Links[blame.PairOf(order[0], order[2])] = true
		if _, err := w.Run(c); err != nil {
			t.Fatal(err)
		}
		if err := checkSound(w, c.Verdict()); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}
