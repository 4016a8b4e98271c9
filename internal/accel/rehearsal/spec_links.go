package rehearsal

import (
	"fmt"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"muster/internal/lazyregexp"
)

// FakeLink is what a spec says of copies between accelerators. What is zero is not said.
type FakeLink struct {
	// All has it mean every pair; else it is about A and B, with OneWay only from A to B.
	All    bool
	A, B   int
	OneWay bool
	// MBps is how fast copies are, HostMBps those between an accelerator and the host, in MB/s of 10^6 bytes.
	MBps, HostMBps int
	// Error is what the first copy fails with. Corrupt has copies change what they carry, Hang last for ever.
	Error         string
	Corrupt, Hang bool
}

// Links returns what the spec says of the links between its accelerators, faults last: of what is said of the same pair
// the last counts.
func (f *Fake) Links() []FakeLink {
	links := append([]FakeLink(nil), f.spec.links...)
	for _, fault := range f.spec.faults {
		if !strings.HasPrefix(fault.kind, "pair-") || fault.nums["value"] == 0 {
			continue
		}
		a, b, _ := readPair(fault.text["pair"])
		l := FakeLink{A: a, B: b}
		switch fault.kind {
		case "pair-hang":
			l.Hang = true
		case "pair-corrupt":
			l.Corrupt = true
		default:
			l.Error = fault.text["text"]
		}
		links = append(links, l)
	}
	return links
}

// Count returns how many accelerators the spec gives the node.
func (f *Fake) Count() int { return f.spec.count }

const maxMBps = 100_000_000

var pairForm = lazyregexp.New(`^\d{1,3}:\d{1,3}$`)

func readPair(text string) (a, b int, ok bool) {
	if !pairForm().MatchString(text) {
		return 0, 0, false
	}
	first, second, _ := strings.Cut(text, ":")
	a, _ = strconv.Atoi(first) // digits
	b, _ = strconv.Atoi(second)
	return a, b, a != b
}

// links reads the list of links.
func (r *specReader) links(n *yaml.Node, where string, count int) []FakeLink {
	links := []FakeLink{}
	for i, item := range r.sequence(n, where, maxCount*maxCount) {
		at := fmt.Sprintf("%s[%d]", where, i)
		keys := r.mapping(item, at, []string{"pairs", "pair", "from", "to", "mbps", "host_mbps"}, []string{"kind", "channels"})
		var l FakeLink
		forms := 0
		if v, ok := keys["pairs"]; ok {
			forms++
			l.All = true
			if text, ok := r.text(v, at+".pairs", maxModelLen); ok && text != "all" {
				r.add(v.Line, "%s.pairs is %s; it can be all (pair: is for one)", at, quote(text))
			}
		}
		if v, ok := keys["pair"]; ok {
			forms++
			l.A, l.B = r.pair(v, at+".pair", count)
		}
		from, to := keys["from"], keys["to"]
		if from != nil || to != nil {
			forms++
			if from == nil || to == nil {
				r.add(item.Line, "%s: from and to belong together", at)
			} else {
				l.OneWay = true
				l.A, l.B = r.number(from, at+".from", 0, max(count-1, 0)), r.number(to, at+".to", 0, max(count-1, 0))
				if l.A == l.B {
					r.add(item.Line, "%s: from and to are both %d", at, l.A)
				}
			}
		}
		if forms != 1 {
			r.add(item.Line, "%s: say which links it is about: pairs: all, pair: \"0:1\", or from: and to:", at)
		}
		if v, ok := keys["mbps"]; ok {
			l.MBps = r.number(v, at+".mbps", 1, maxMBps)
		}
		if v, ok := keys["host_mbps"]; ok {
			l.HostMBps = r.number(v, at+".host_mbps", 1, maxMBps)
		}
		links = append(links, l)
	}
	return links
}

// pair reads two accelerators, "2:4".
func (r *specReader) pair(n *yaml.Node, where string, count int) (a, b int) {
	text, ok := r.text(n, where, maxModelLen)
	if !ok {
		return 0, 0
	}
	a, b, ok = readPair(text)
	switch {
	case !ok:
		r.add(n.Line, "%s is %s, not two accelerators such as \"2:4\"", where, quote(text))
	case max(a, b) >= count:
		r.add(n.Line, "%s names GPU %d of %d", where, max(a, b), count)
	}
	return a, b
}
