// Package typos finds the word that somebody may have meant who wrote another one.
package typos

import "strings"

// longest is longer than any name that is known: what is longer is not compared with them.
const longest = 64

// shortestPrefix is how long the beginning of a name must be to suggest the name, in letters with the dashes.
const shortestPrefix = 5

// Nearest returns the known word with the fewest typing errors between it and word, else one that begins like word, or
// "" when none is close.
func Nearest(word string, known []string) string {
	if len(word) > longest {
		return ""
	}
	best, distance := "", 1+max(1, len(word)/4)
	for _, k := range known {
		if d := Count(word, k); d < distance {
			best, distance = k, d
		}
	}
	if best == "" && len(word) >= shortestPrefix {
		for _, k := range known {
			if strings.HasPrefix(Plain(k), Plain(word)) {
				return k
			}
		}
	}
	return best
}

// Plain writes a name with dashes only: dashes and underscores are the same letter in names.
func Plain(name string) string { return strings.ReplaceAll(name, "_", "-") }

// Count counts the letters to insert, delete, replace or swap with their neighbour to get from a to b.
func Count(a, b string) int {
	a, b = Plain(a), Plain(b)
	before, previous, current := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range previous {
		previous[j] = j
	}
	for i := 1; i <= len(a); i++ {
		current[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			current[j] = min(previous[j]+1, current[j-1]+1, previous[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				current[j] = min(current[j], before[j-2]+1)
			}
		}
		before, previous, current = previous, current, before
	}
	return previous[len(b)]
}
