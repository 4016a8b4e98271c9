package membership

import (
	"cmp"
	"math"
	"slices"
	"time"

	"muster/rendezvous"
)

// most is how many nodes a round has at most.
func (r *roster) most() int {
	if n := r.orders.Nodes; n > 0 && !r.fixed {
		return max(r.min, min(max(n, r.wanted), r.max))
	}
	return r.max
}

// raise makes what was wanted by nodes that were started for it an order to all. No verdict with other orders is on its
// way while a round is to begin.
func (r *roster) raise() {
	if n := r.orders.Nodes; n > 0 && r.wanted > n {
		r.orders.Version++
		if r.orders.Nodes = r.wanted; r.wanted >= r.max {
			r.orders.Nodes = 0
		}
	}
	r.wanted = 0
}

// target is the size of the round that n nodes make, 0 if they make none.
func (r *roster) target(n int) int {
	w := min(n, r.most())
	if r.spares > 0 {
		w = min(r.most(), max(r.min, n-r.spares, r.size)) // a spare takes the place of who is lost
		w = min(w, n)
	}
	w -= w % r.unit
	if w < r.min {
		return 0
	}
	return w
}

// candidates are the waiting nodes that may be in the next round, best first: survivors by their old rank, then the
// others as they came.
func (r *roster) candidates(now time.Duration) []joiner {
	joiners := r.admitted(slices.Clone(r.waiting), now)
	if r.fixed {
		claims := r.claims()
		joiners = slices.DeleteFunc(joiners, func(s joiner) bool { return claims.holder(s) != "" })
	}
	slices.SortStableFunc(joiners, func(a, b joiner) int { return cmp.Compare(r.oldRank(a), r.oldRank(b)) })
	return joiners
}

// oldRank is the rank that a node had in the round before, or more than any rank.
func (r *roster) oldRank(s joiner) int {
	if s.rec.Round == r.last && s.rec.Round >= 0 {
		return s.rec.Rank
	}
	return math.MaxInt
}

// missing are the members of the last round that live and have not come back yet, by rank.
func (r *roster) missing() []member {
	var missing []member
	for agent, m := range r.members {
		if _, back := r.tickets[agent]; !m.gone && !back {
			missing = append(missing, m)
		}
	}
	slices.SortFunc(missing, func(a, b member) int { return cmp.Compare(a.rank, b.rank) })
	return missing
}

// never is a wait that only an event ends.
const never = time.Duration(math.MaxInt64)

// choose returns the nodes of the next round, or how long to wait before asking again.
func (r *roster) choose(now time.Duration) (joiners []joiner, wait time.Duration) {
	all := r.candidates(now)
	n := r.target(len(all))
	switch {
	case n == 0 || r.leaving || len(r.missing()) > 0:
		return nil, never
	case r.notBefore > now:
		return nil, r.notBefore - now
	case r.cutOff():
		return nil, never
	case n == r.most():
	case r.round >= 0 && !r.inherited: // a round that goes on with whom it has
	default:
		if quiet := now - r.lastJoin; quiet < r.lastCall {
			return nil, r.lastCall - quiet
		}
	}
	return all[:n], 0
}

// meetIn returns how long it takes until those who wait may meet the agents of torchrun, who decide when a round
// begins.
func (r *roster) meetIn(now time.Duration) time.Duration {
	if len(r.waiting) == 0 || len(r.missing()) > 0 {
		return never
	}
	return max(r.notBefore-now, 0)
}

// grow proposes another round where nodes wait that it could take in.
func (r *roster) grow(now time.Duration) {
	if left := r.growIn(now); left > 0 {
		return
	}
	came := r.newcomers()
	v := rendezvous.Verdict{
		Kind: rendezvous.Reassemble, Reason: "ScaleUp", Rank: -1, Message: counted(len(came), "waits", "wait") + " to join",
	}
	if len(came) == 1 {
		v.Subject = came[0]
	}
	r.propose(v)
}

// newcomers are the host names of the nodes that wait and were not in the round.
func (r *roster) newcomers() (hosts []string) {
	for _, s := range r.waiting {
		if _, ours := r.members[s.rec.Agent]; !ours && (!r.doors || r.mixed || s.door.passed) {
			hosts = append(hosts, s.rec.Node)
		}
	}
	return hosts
}

// growIn returns how long it takes until a larger round is to be proposed.
func (r *roster) growIn(now time.Duration) time.Duration {
	n := len(r.newcomers())
	if r.phase != phaseRun || r.proposed || r.fixed || n == 0 {
		return never
	}
	larger := r.target(r.size + n)
	switch {
	case larger <= r.size:
		return never
	case larger == r.most():
		return 0
	}
	return max(r.lastCall-(now-r.lastJoin), 0)
}

// wake returns after how long settle may have something to do, never for not at all.
func (r *roster) wake(now time.Duration) time.Duration {
	wait := never
	switch r.phase {
	case phaseGather:
		if _, wait = r.choose(now); r.mixed {
			if wait = r.meetIn(now); wait == 0 { // the meeting is under way
				wait = never
			}
		}
		if at := r.givesUp(); at != never {
			wait = min(wait, max(at-now, 0)+time.Millisecond)
		}
	case phaseRun:
		wait = r.growIn(now)
	default:
	}
	if _, examined := r.examinedIn(now); examined > 0 {
		wait = min(wait, examined)
	}
	if r.fixed {
		claims := r.claims()
		for _, s := range r.waiting {
			if claims.holder(s) != "" {
				wait = min(wait, max(r.doubt()-(now-s.since), 0)+time.Millisecond)
			}
		}
	}
	return wait
}
