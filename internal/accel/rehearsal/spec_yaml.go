package rehearsal

import (
	"fmt"
	"slices"
	"strings"
	"unicode"

	"go.yaml.in/yaml/v3"

	"muster/internal/wording"
)

// entry is one pair of a mapping.
type entry struct {
	key   string
	value *yaml.Node
	line  int
}

// entries returns the pairs of a mapping in order, each key once. Nothing after the colon counts as an empty mapping.
func (r *specReader) entries(n *yaml.Node, where string) []entry {
	line := n.Line
	n = deref(n)
	if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" {
		return nil
	}
	if n.Kind != yaml.MappingNode {
		r.add(n.Line, "%s must be a mapping, not %s", where, describe(n))
		return nil
	}
	if !r.take(line, where, len(n.Content)/2) {
		return nil
	}
	var list []entry
	first := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		if k.Kind != yaml.ScalarNode {
			r.add(k.Line, "a key of %s must be a word, not %s", where, describe(k))
			continue
		}
		if line, ok := first[k.Value]; ok {
			r.add(k.Line, "%s: key %s is given twice (first on line %d)", where, quote(k.Value), line)
			continue
		}
		first[k.Value] = k.Line
		list = append(list, entry{k.Value, v, k.Line})
	}
	return list
}

// mapping returns the values of the keys in known and reports all other keys, those in later as not supported yet.
func (r *specReader) mapping(n *yaml.Node, where string, known, later []string) map[string]*yaml.Node {
	values := map[string]*yaml.Node{}
	for _, e := range r.entries(n, where) {
		switch {
		case slices.Contains(known, e.key):
			values[e.key] = e.value
		case slices.Contains(later, e.key):
			r.add(e.line, "%s: key %q is not supported yet by this version of muster", where, e.key)
		default:
			r.add(e.line, "%s: unknown key %s (known: %s)", where, quote(e.key), strings.Join(known, ", "))
		}
	}
	return values
}

// number reads a whole number between lowest and highest.
func (r *specReader) number(n *yaml.Node, where string, lowest, highest int) int {
	line := n.Line
	n = deref(n)
	// The parser takes whole numbers of more than 64 bits for floating point.
	huge := n.ShortTag() == "!!float" && strings.Trim(n.Value, "+-0123456789") == ""
	if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!int" && !huge {
		r.add(line, "%s must be a whole number, not %s", where, describe(n))
		return lowest
	}
	var v int
	switch err := n.Decode(&v); {
	case !huge && err == nil && lowest <= v && v <= highest:
		return v
	case lowest == highest:
		r.add(line, "%s is %s; this version of muster knows %d only", where, wording.Clip(n.Value), lowest)
	default:
		r.add(line, "%s is %s, not between %d and %d", where, wording.Clip(n.Value), lowest, highest)
	}
	return lowest
}

// text reads a string of at most limit bytes without control characters; ok is false where it
// is none, and the problem noted.
func (r *specReader) text(n *yaml.Node, where string, limit int) (value string, ok bool) {
	line := n.Line
	n = deref(n)
	if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!str" {
		r.add(line, "%s must be text, not %s (put quotes around it?)", where, describe(n))
		return "", false
	}
	if len(n.Value) > limit {
		r.add(line, "%s has %d bytes, more than the limit of %d", where, len(n.Value), limit)
		return "", false
	}
	if strings.ContainsFunc(n.Value, unicode.IsControl) {
		r.add(line, "%s must not hold control characters", where)
		return "", false
	}
	return n.Value, true
}

// deref follows an alias. An anchored node is never an alias itself.
func deref(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

// describe names a value by what the reader of the file sees.
func describe(n *yaml.Node) string {
	n = deref(n)
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	default:
	}
	switch n.ShortTag() {
	case "!!null":
		return "nothing"
	case "!!str":
		return "the text " + quote(n.Value)
	case "!!bool":
		return "the truth value " + quote(n.Value)
	default:
		return wording.Clip(n.Value)
	}
}

// quote quotes a word of the file for a message.
func quote(s string) string { return fmt.Sprintf("%q", wording.Clip(s)) }
