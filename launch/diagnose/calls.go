package diagnose

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"muster/launch/evidence"
)

// pending is the oldest call of a process that has not come to its end, by the Flight Recorder; nil for none.
func pending(p *evidence.Process) *evidence.Collective {
	for i := range p.Calls {
		if p.Calls[i].Pending {
			return &p.Calls[i]
		}
	}
	return nil
}

// callOf is a call of a rank with a number in a group, nil where the recorder has it no more, or not yet.
func callOf(a activity, group string, number int64) *evidence.Collective {
	main := a.rank.Main()
	for i := range main.Calls {
		if c := &main.Calls[i]; c.Group == group && c.Number == number && !c.P2P {
			return c
		}
	}
	return nil
}

// recorded judges ranks all of which wait in a collective by what the Flight Recorder has of them. It reports false
// where that explains nothing: not all ranks have told, or all are in the same call.
func recorded(all []activity) (v Verdict, explains bool) {
	if slices.ContainsFunc(all, func(a activity) bool { return a.in == nil || a.in.P2P }) {
		return v, false
	}
	first := all[0].in
	for _, a := range all {
		if a.in.Group != first.Group { // each group waits for its own
			return differ(all, func(a activity) *evidence.Collective { return a.in }, func(a, b *evidence.Collective) bool {
				return a.Group == b.Group && a.Number == b.Number && a.Same(b)
			})
		}
		if a.in.Number < first.Number {
			first = a.in
		}
	}
	// What counts is the first call that not all have ended.
	of := func(a activity) *evidence.Collective { return callOf(a, first.Group, first.Number) }
	if slices.ContainsFunc(all, func(a activity) bool { return of(a) == nil }) {
		return v, false
	}
	if v, explains = differ(all, of, func(a, b *evidence.Collective) bool { return a.Same(b) }); explains {
		return v, true
	}
	var behind, ahead []activity
	for _, a := range all {
		if a.in.Number == first.Number {
			behind = append(behind, a)
		} else {
			ahead = append(ahead, a)
		}
	}
	if len(ahead) == 0 {
		return v, false
	}
	v = Verdict{Kind: Unknown, Victims: ranks(all)}
	v.Sentence = fmt.Sprintf(
		"%s in %s, which %s ended, and %s in %s: whether a connection is lost or they gave sizes that do not fit cannot "+
			"be told", is(behind), first, has(ahead), cmp.Or(pronoun(ahead), "they"), ahead[0].in)
	if sizes := odd(ahead, behind, of); sizes != "" {
		v.Sentence += sizes
	}
	return v, true
}

// differ judges ranks that have made different calls where all had to make the same.
func differ(all []activity, of func(activity) *evidence.Collective, same func(a, b *evidence.Collective) bool) (v Verdict, is bool) {
	var groups [][]activity
	for _, a := range all {
		i := slices.IndexFunc(groups, func(g []activity) bool { return same(of(g[0]), of(a)) })
		if i < 0 {
			groups = append(groups, nil)
			i = len(groups) - 1
		}
		groups[i] = append(groups[i], a)
	}
	if len(groups) < 2 {
		return v, false
	}
	slices.SortStableFunc(groups, func(a, b []activity) int { return cmp.Compare(len(a), len(b)) })
	return mismatch(groups, func(a activity) string {
		c := of(a)
		text := c.String()
		if a.in != c {
			text += ", which has ended there, and now in " + a.in.String()
		}
		return text
	}), true
}

// odd says where some ranks gave other sizes in the call than others, which that call allows.
func odd(ahead, behind []activity, of func(activity) *evidence.Collective) string {
	var parts []string
	by := map[string][]activity{}
	for _, a := range append(slices.Clone(behind), ahead...) {
		sizes := of(a).Sizes()
		if by[sizes] == nil {
			parts = append(parts, sizes)
		}
		by[sizes] = append(by[sizes], a)
	}
	if len(parts) < 2 {
		return ""
	}
	for i, sizes := range parts {
		parts[i] = named(by[sizes]) + " gave " + sizes
	}
	return " (" + strings.Join(parts, ", ") + ")"
}

func is(of []activity) string {
	if len(of) == 1 {
		return named(of) + " is"
	}
	return named(of) + " are"
}

func has(of []activity) string {
	if len(of) == 1 {
		return named(of) + " has"
	}
	return named(of) + " have"
}

func pronoun(of []activity) string {
	if len(of) == 1 {
		return "it is"
	}
	return "they are"
}
