package blame

import (
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestMatch compares match with trying everything: it pairs as many as can be, each once and with a partner of its own.
func TestMatch(t *testing.T) {
	const n = 6 // left nodes 0 to 5, partners 6 to 11
	left := []int{0, 1, 2, 3, 4, 5}
	rnd := rand.New(rand.NewPCG(1, 5))
	for range 5000 {
		var partners [n][]int
		for i := range partners {
			for _, j := range rnd.Perm(n)[:1+rnd.IntN(n)] {
				partners[i] = append(partners[i], n+j)
			}
			slices.Sort(partners[i])
		}
		p := &pairing{busy: make([]bool, 2*n)}
		p.match(left, func(i int) []int { return partners[i] })
		busy := make([]bool, 2*n)
		for _, q := range p.pairs {
			if busy[q.A] || busy[q.B] || !slices.Contains(partners[q.A], q.B) {
				t.Fatalf("%v of %v", p.pairs, partners)
			}
			busy[q.A], busy[q.B] = true, true
		}
		if most := mostPairs(partners[:], 0); len(p.pairs) != most {
			t.Fatalf("%d pairs of %v, want %d", len(p.pairs), partners, most)
		}
	}
}

// mostPairs tries every way to give the left nodes partners other than those in taken, a bit for each.
func mostPairs(partners [][]int, taken uint) int {
	if len(partners) == 0 {
		return bits.OnesCount(taken)
	}
	most := mostPairs(partners[1:], taken)
	for _, j := range partners[0] {
		if taken&(1<<j) == 0 {
			most = max(most, mostPairs(partners[1:], taken|1<<j))
		}
	}
	return most
}
