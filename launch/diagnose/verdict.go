package diagnose

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"muster/launch/evidence"
)

// Verdict says who holds up whom.
type Verdict struct {
	Kind Kind `json:"kind"`
	// Sentence is the whole verdict in words.
	Sentence string `json:"sentence"`
	// Culprits are the ranks that hold up others, Victims those that wait for them.
	Culprits []int `json:"culprits,omitempty"`
	Victims  []int `json:"victims,omitempty"`
	// Evidence has a line for each thing that was seen.
	Evidence []string `json:"evidence,omitempty"`
}

// Of judges what was seen on the nodes of a job. missing are the nodes that were not looked at.
func Of(nodes []evidence.Node, missing []string) Verdict {
	var all []activity
	for i := range nodes {
		for j := range nodes[i].Ranks {
			all = append(all, look(&nodes[i].Ranks[j]))
		}
	}
	slices.SortFunc(all, func(a, b activity) int { return cmp.Compare(a.rank.Rank, b.rank.Rank) })
	if slices.ContainsFunc(all, func(a activity) bool { return a.rank.Node != all[0].rank.Node }) {
		for i := range all {
			all[i].node = all[i].rank.Node
		}
	}
	v := judge(all)
	for i := range all {
		v.Evidence = append(v.Evidence, all[i].shows...)
	}
	if len(missing) > 0 {
		v.Sentence += "; " + and(missing) + " could not be looked at, and may be the reason"
	}
	return v
}

func judge(all []activity) Verdict {
	var waiting, others []activity
	for _, a := range all {
		if a.kind == Collective {
			waiting = append(waiting, a)
		} else {
			others = append(others, a)
		}
	}
	switch {
	case len(all) == 0:
		return Verdict{Kind: Unknown, Sentence: "no rank could be looked at"}
	case len(others) == 0:
		return among(all)
	case len(waiting) == 0:
		return apart(others)
	}
	culprits := worst(others)
	v := Verdict{Kind: culprits[0].kind, Culprits: ranks(culprits), Victims: ranks(waiting)}
	wait := "waits"
	if len(waiting) > 1 {
		wait = "wait"
	}
	them := "it"
	if len(culprits) > 1 {
		them = "them"
	}
	where := " in " + waiting[0].call
	if waiting[0].at != "" {
		where += " " + waiting[0].at
	}
	if holder := holderOf(all, culprits[0]); v.Kind == FileLock && slices.Contains(v.Victims, holder) {
		v.Kind, v.Culprits = Deadlock, append(v.Culprits, holder)
		v.Sentence = fmt.Sprintf("%s, which rank %d has, and that one waits for the others%s", phrase(culprits), holder, where)
		return v
	}
	v.Sentence = fmt.Sprintf("%s has not come to %s: %s; %s %s for %s%s", named(culprits), waiting[0].call, does(culprits),
		names(v.Victims), wait, them, where)
	if len(culprits) > 1 {
		v.Sentence = strings.Replace(v.Sentence, " has not come", " have not come", 1)
	}
	v.Sentence += doubt(v.Kind)
	return v
}

// doubt says between which causes a kind cannot tell.
func doubt(k Kind) string {
	switch k {
	case Runs:
		return "; a long computation cannot be told from an endless loop by one look"
	case Lock:
		return "; who has the lock cannot be seen"
	default:
		return ""
	}
}

// worst are those whose activity explains most.
func worst(all []activity) []activity {
	for _, k := range severity {
		var of []activity
		for _, a := range all {
			if a.kind == k {
				of = append(of, a)
			}
		}
		if len(of) > 0 {
			return of
		}
	}
	return all
}

// among judges ranks all of which wait in a collective.
func among(all []activity) Verdict {
	told, explains := recorded(all)
	if explains && told.Kind == Mismatch {
		return told
	}
	by := map[string][]activity{}
	for _, a := range all {
		by[a.call] = append(by[a.call], a)
	}
	if len(by) > 1 && !explains {
		var groups [][]activity
		for _, g := range by {
			groups = append(groups, g)
		}
		slices.SortFunc(groups, func(a, b []activity) int {
			return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a[0].rank.Rank, b[0].rank.Rank))
		})
		return mismatch(groups, func(a activity) string { return a.call })
	}
	v := Verdict{Kind: Unknown, Victims: ranks(all)}
	where := "in " + all[0].call
	if all[0].at != "" {
		where += " " + all[0].at
	}
	if len(all) == 1 {
		v.Sentence = names(v.Victims) + " waits " + where
		return v
	}
	if ends, text := cut(all); text != "" {
		v.Kind, v.Culprits = Link, ranks(ends)
		v.Sentence = fmt.Sprintf("the connection between %s and %s does not get through (%s), and all ranks wait %s", named(ends[:1]),
			named(ends[1:]), text, where)
		return v
	}
	if explains {
		return told
	}
	if c := all[0].in; c != nil && !slices.ContainsFunc(all, func(a activity) bool { return a.in == nil || !a.in.Same(c) }) {
		v.Sentence = fmt.Sprintf(
			"all ranks seen (%s) are %s, each in %s: whether they are about to finish it or have lost a connection cannot be "+
				"told by one look", fold(v.Victims), where, c)
		return v
	}
	v.Sentence = fmt.Sprintf(
		"all ranks seen (%s) are %s: whether they are about to finish it, disagree about sizes, or have lost a connection "+
			"cannot be told by one look", fold(v.Victims), where)
	if places := distinct(all); len(places) > 1 {
		v.Kind = Mismatch
		v.Sentence = fmt.Sprintf("all ranks wait in %s, but not from the same place: %s; whether that is the same call cannot be told",
			all[0].call, strings.Join(places, "; "))
	}
	return v
}

// distinct are the places from which ranks have called, where there are several.
func distinct(all []activity) (places []string) {
	var order []string
	by := map[string][]activity{}
	for _, a := range all {
		if by[a.at] == nil {
			order = append(order, a.at)
		}
		by[a.at] = append(by[a.at], a)
	}
	for _, at := range order {
		places = append(places, names(ranks(by[at]))+" "+cmp.Or(at, "somewhere"))
	}
	return places
}

// mismatch judges ranks that are in several collectives, the fewest first.
func mismatch(order [][]activity, call func(activity) string) Verdict {
	v := Verdict{Kind: Mismatch}
	var parts []string
	most := len(order[len(order)-1])
	tie := len(order[0]) == most
	for _, g := range order {
		part := fmt.Sprintf("%s in %s", names(ranks(g)), call(g[0]))
		if len(g) < most {
			part = fmt.Sprintf("%s in %s", named(g), call(g[0]))
		}
		if g[0].at != "" {
			part += " " + g[0].at
		}
		parts = append(parts, part)
		if len(g) < most && !tie {
			v.Culprits = append(v.Culprits, ranks(g)...)
		} else {
			v.Victims = append(v.Victims, ranks(g)...)
		}
	}
	slices.Sort(v.Culprits)
	slices.Sort(v.Victims)
	v.Sentence = "the ranks wait in different collectives: " + strings.Join(parts, ", ")
	if tie {
		v.Sentence += "; which of them is the wrong one cannot be told"
	}
	return v
}

// apart judges ranks none of which waits in a collective.
func apart(all []activity) Verdict {
	w := worst(all)
	v := Verdict{Kind: w[0].kind}
	switch {
	case v.Kind == Runs:
		v.Kind = Nothing
		v.Sentence = "no rank waits for another one: " + phrase(w) + doubt(Runs)
		return v
	case v.Kind == FileLock && holderOf(all, w[0]) >= 0:
		holder := holderOf(all, w[0])
		i := slices.IndexFunc(all, func(a activity) bool { return a.rank.Rank == holder })
		v.Culprits, v.Victims = []int{holder}, ranks(w)
		v.Sentence = fmt.Sprintf("%s, which rank %d has: that one %s", phrase(w), holder, all[i].does)
		return v
	}
	v.Culprits = ranks(w)
	v.Sentence = phrase(w)
	if v.Kind == Device && len(w) > 1 && len(w) == len(all) {
		v.Culprits, v.Victims = nil, v.Culprits
		v.Sentence += "; which of their devices holds up the others cannot be told"
		return v
	}
	if len(w) < len(all) {
		var rest []activity
		for _, a := range all {
			if !slices.Contains(v.Culprits, a.rank.Rank) {
				rest = append(rest, a)
			}
		}
		v.Sentence += "; of the others " + phrase(rest)
	}
	v.Sentence += "; none waits in a collective" + doubt(v.Kind)
	return v
}

// cut finds a connection between two ranks on which bytes are sent again and again.
func cut(all []activity) (between []activity, text string) {
	// A machine's own addresses are on every machine.
	key := func(address, node string) string {
		if at, err := netip.ParseAddrPort(address); err == nil && at.Addr().Unmap().IsLoopback() {
			return node + " " + address
		}
		return address
	}
	ends := map[string]*activity{}
	each := func(f func(x *activity, s *evidence.Socket)) {
		for n := range all {
			x := &all[n]
			for i := range x.rank.Processes {
				for j := range x.rank.Processes[i].Sockets {
					f(x, &x.rank.Processes[i].Sockets[j])
				}
			}
		}
	}
	each(func(x *activity, s *evidence.Socket) { ends[key(s.Local, x.node)] = x })
	each(func(x *activity, s *evidence.Socket) {
		peer, known := ends[key(s.Peer, x.node)]
		if !known || peer.rank.Rank == x.rank.Rank || s.Send == 0 || s.Retransmits == 0 || text != "" {
			return
		}
		between = []activity{*x, *peer}
		slices.SortFunc(between, func(a, b activity) int { return cmp.Compare(a.rank.Rank, b.rank.Rank) })
		text = fmt.Sprintf("%d bytes from rank %d were sent again %d times", s.Send, x.rank.Rank, s.Retransmits)
	})
	return between, text
}

// holderOf is the rank that has the lock which one waits for, -1 for none.
func holderOf(all []activity, of activity) int {
	for _, a := range all {
		for i := range a.rank.Processes {
			if of.holder > 0 && a.rank.Processes[i].PID == of.holder && a.node == of.node {
				return a.rank.Rank
			}
		}
	}
	return -1
}

func ranks(of []activity) []int {
	list := make([]int, len(of))
	for i := range of {
		list[i] = of[i].rank.Rank
	}
	return list
}

// phrase is what ranks do, those that do the same in one.
func phrase(of []activity) string {
	var order []string
	by := map[string][]activity{}
	for _, a := range of {
		if by[a.does] == nil {
			order = append(order, a.does)
		}
		by[a.does] = append(by[a.does], a)
	}
	parts := make([]string, len(order))
	for i, d := range order {
		parts[i] = named(by[d]) + each(by[d]) + " " + d
	}
	return strings.Join(parts, "; ")
}

// does is phrase without the ranks where all do the same.
func does(of []activity) string {
	for _, a := range of {
		if a.does != of[0].does {
			return phrase(of)
		}
	}
	if len(of) == 1 {
		return "it " + of[0].does
	}
	return "each " + of[0].does
}

func each(of []activity) string {
	if len(of) > 1 {
		return ": each"
	}
	return ""
}

// names is "rank 1" or "ranks 0-2 and 5".
func names(of []int) string {
	if len(of) == 1 {
		return "rank " + strconv.Itoa(of[0])
	}
	return "ranks " + fold(of)
}

// named is names with the nodes that the ranks are on, where several nodes were looked at.
func named(of []activity) string {
	const most = 3 // nodes that are named
	var nodes []string
	by := map[string][]int{}
	for _, a := range of {
		if by[a.node] == nil {
			nodes = append(nodes, a.node)
		}
		by[a.node] = append(by[a.node], a.rank.Rank)
	}
	if nodes[0] == "" || len(nodes) > most {
		return names(ranks(of))
	}
	parts := make([]string, len(nodes))
	for i, n := range nodes {
		parts[i] = names(by[n]) + " on node " + n
	}
	return list(parts)
}

// list is words as people write them.
func list(words []string) string {
	last := len(words) - 1
	if last == 0 {
		return words[0]
	}
	return strings.Join(words[:last], ", ") + " and " + words[last]
}

// fold is a list of numbers as people write it: "0-2, 5".
func fold(of []int) string { return evidence.Fold(of) }

func and(words []string) string {
	if len(words) == 1 {
		return "node " + words[0]
	}
	return "the nodes " + list(words)
}
