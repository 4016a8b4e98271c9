// Package lazyregexp has regular expressions that are compiled when they are first used. A launcher starts far more
// often than it needs most of them, and each start took a millisecond or two to compile those of all packages.
package lazyregexp

import (
	"os"
	"regexp"
	"strings"
	"sync"
)

// inTest is true in the binary of a test, where a pattern that does not compile is found at once.
var inTest = len(os.Args) > 0 && strings.HasSuffix(os.Args[0], ".test")

// New returns a function for the expression, which is compiled by its first call. That call panics where the pattern
// does not compile.
func New(pattern string) func() *regexp.Regexp {
	compiled := sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(pattern) })
	if inTest {
		compiled()
	}
	return compiled
}
