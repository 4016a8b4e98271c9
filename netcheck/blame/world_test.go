package blame_test

import (
	"muster/netcheck/blame"
	"muster/netcheck/blame/blamesim"
)

// newCheck is blame.New for options that are right.
func newCheck(n int, opts blame.Options) *blame.Check {
	c, err := blame.New(blamesim.Names(n), opts)
	if err != nil {
		panic(err)
	}
	return c
}

// allPairs returns all links of n nodes.
func allPairs(n int) (pairs []blame.Pair) {
	blamesim.Sets(n, 2, func(s []int) { pairs = append(pairs, blame.Pair{A: s[0], B: s[1]}) })
	return pairs
}
