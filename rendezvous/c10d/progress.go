package c10d

import (
	"fmt"
	"slices"
	"strings"
)

// phase is what a Bridge is doing.
type phase int

const (
	phaseNone phase = iota
	phaseJoin
	phaseShare
	phaseStay
	phaseBarrier
	phaseLeave
)

// progress is what Progress tells. It is replaced as a whole and never changed.
type progress struct {
	phase    phase
	state    *State
	min, max int
	round    *round          // from phaseShare to phaseBarrier
	waits    func() *waitFor // in phaseShare
}

// tell replaces what Progress says.
func (b *Bridge) tell(p progress) {
	p.state, p.min, p.max, p.round = b.state, b.cfg.Settings.MinNodes, b.cfg.Settings.MaxNodes, b.joined
	b.progress.Store(&p)
}

// show keeps up with the state.
func (b *Bridge) show() {
	p := *b.progress.Load()
	if p.state != b.state {
		p.state = b.state
		b.progress.Store(&p)
	}
}

// Progress says in words what the bridge is doing and whom it waits for. It may be called at any time.
func (b *Bridge) Progress() string {
	p := b.progress.Load()
	switch p.phase {
	case phaseJoin:
		return p.joining()
	case phaseShare:
		text := fmt.Sprintf("round %d is complete with %s", p.round.Number, nodes(len(p.round.order)))
		if w := p.waits(); w != nil {
			return fmt.Sprintf("%s; waiting for node %s (group rank %d) to say %s", text, w.node.Addr, w.rank, w.what)
		}
		return text
	case phaseStay:
		return fmt.Sprintf("round %d runs with %s", p.round.Number, nodes(len(p.round.order)))
	case phaseBarrier:
		return fmt.Sprintf("all workers here have succeeded; waiting for those of %s of torchrun", nodes(p.round.others()))
	case phaseLeave:
		return "leaving"
	case phaseNone:
	}
	return "waiting for agents of torchrun"
}

// joining says who is there and who is missing.
func (p *progress) joining() string {
	st := p.state
	if st == nil {
		return fmt.Sprintf("no node has joined yet, at least %d must", p.min)
	}
	n := len(st.Participants)
	text := fmt.Sprintf("round %d: %s joined%s", st.Round, nodes(n), inBrackets(st.Participants))
	switch {
	case st.Closed:
		return "the rendezvous is closed"
	case st.Complete:
		text = fmt.Sprintf("round %d runs with %s%s; waiting for it to end", st.Round, nodes(n), inBrackets(st.Participants))
	case n < p.min:
		text += fmt.Sprintf("; waiting for %d more", p.min-n)
	case n < p.max:
		text += "; that is enough, others may still come before the last call ends"
	}
	missing := map[Node]struct{}{}
	for node := range st.Ranks {
		_, in := st.Participants[node]
		if _, alive := st.LastHeartbeats[node]; !st.Complete && !in && !alive {
			missing[node] = struct{}{}
		}
	}
	if len(missing) > 0 {
		text += fmt.Sprintf("; not back from the last round:%s", inBrackets(missing))
	}
	if len(st.WaitList) > 0 {
		text += fmt.Sprintf("; waiting for the next round:%s", inBrackets(st.WaitList))
	}
	return text
}

func nodes(n int) string {
	if n == 1 {
		return "1 node"
	}
	return fmt.Sprintf("%d nodes", n)
}

// inBrackets returns a few addresses in brackets, nothing for none.
func inBrackets[V any](set map[Node]V) string {
	const most = 8
	all := make([]string, 0, len(set))
	for n := range set {
		all = append(all, n.Addr)
	}
	if len(all) == 0 {
		return ""
	}
	slices.Sort(all)
	more := ""
	if len(all) > most {
		more = fmt.Sprintf(" and %d more", len(all)-most)
		all = all[:most]
	}
	return " (" + strings.Join(all, ", ") + more + ")"
}
