package membership

import (
	"slices"
	"strings"
	"sync"
	"time"
)

// A heartbeat counts as a sign of life where it answers one of the coordinator's that is not old: what somebody has
// held back does not keep a dead node alive. And the coordinator says in its own heartbeat which of them each member of
// the round has answered. That is by what an agent may let its workers run on, and not the answers of the store, which
// nobody signs.

// ledger is what a coordinator knows of who hears it. Its heartbeat writes there which ones were sent, its loop who has
// answered them.
type ledger struct {
	window time.Duration // how old a heartbeat may be to which an answer is a sign of life

	mu         sync.Mutex
	looked     time.Duration // time in which the loop looked at the others' heartbeats
	sent       []sentBeat    // our heartbeats that may still be answered
	round      string        // nonce of the last round that we have begun, "" for none
	agentRanks map[string]int
	heard      []int64 // by rank among the agents: the last of our heartbeats that the member has answered
	next       int     // the term of who has the leadership now, 0 while we have it
}

// sentBeat is one of our heartbeats.
type sentBeat struct {
	n      int64
	looked time.Duration
	at     time.Time
}

func newLedger(window time.Duration) *ledger { return &ledger{window: window} }

// look takes in that the loop looks at heartbeats again, so much later.
func (l *ledger) look(gap time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.looked += gap
	l.sent = slices.DeleteFunc(l.sent, func(s sentBeat) bool { return l.looked-s.looked > l.window })
}

// begin takes in a round, with its members in the order of their agent ranks, and what each of them has answered last.
func (l *ledger) begin(round string, members []string, heard []int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.round, l.heard, l.agentRanks = round, heard, make(map[string]int, len(members))
	for agentRank, agent := range members {
		l.agentRanks[agent] = agentRank
	}
}

// send adds to heartbeat b what it says of the others.
func (l *ledger) send(b *beat, at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sent = append(l.sent, sentBeat{b.N, l.looked, at})
	if l.next > 0 { // what we say of others counts no longer
		b.Term, b.Runs = &l.next, false
		return
	}
	b.Round = l.round
	if len(l.heard) == 0 {
		return
	}
	seen := make([]byte, len(l.heard))
	for agentRank, n := range l.heard {
		age := int64(len(seenAges) - 1)
		if n > 0 {
			age = min(max(b.N-n, 0), age)
		}
		seen[agentRank] = seenAges[age]
	}
	b.Seen = string(seen)
}

// resign takes in that another agent has the leadership, of a later term.
func (l *ledger) resign(term int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.next = term
}

// answered takes in that an agent has answered heartbeat n, and reports whether that is one of ours, and not old.
func (l *ledger) answered(agent string, n int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	is := slices.ContainsFunc(l.sent, func(s sentBeat) bool { return s.n == n })
	if agentRank, member := l.agentRanks[agent]; is && member {
		l.heard[agentRank] = max(l.heard[agentRank], n)
	}
	return is
}

// heardUntil is when a heartbeat of ours was sent that another member of the round has answered, the zero time for none
// that is not old.
func (l *ledger) heardUntil() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.heard) == 0 {
		return time.Time{}
	}
	last := slices.Max(l.heard) // our own rank has none
	for _, s := range l.sent {
		if s.n == last {
			return s.at
		}
	}
	return time.Time{}
}

// seenAges are how many heartbeats of the coordinator ago the one was which a member has answered last, in beat.Seen;
// the last of them is for so many or more.
const seenAges = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ+-"

// answeredBy returns which heartbeat of the coordinator the member with a rank among the agents has answered last, 0
// for none that is known.
func (b *beat) answeredBy(agentRank int) int64 {
	if agentRank < 0 || agentRank >= len(b.Seen) {
		return 0
	}
	age := strings.IndexByte(seenAges, b.Seen[agentRank])
	if age < 0 || age == len(seenAges)-1 {
		return 0
	}
	return max(b.N-int64(age), 0)
}

// replies are which heartbeats of a coordinator an agent has answered, and when first: the newest last.
type replies struct {
	to    string // agent id of the coordinator
	heard int64  // its last heartbeat
	sent  []replied
}

// mostReplies is how many of them are kept: more than seenAges has.
const mostReplies = 64

// replied is an answer to heartbeat n.
type replied struct {
	n  int64
	at time.Time
}

// follow takes in who the coordinator is.
func (r *replies) follow(agent string) {
	if r.to != agent {
		*r = replies{to: agent}
	}
}

// answer returns which heartbeat a new one of ours answers, which is sent now; 0 for none.
func (r *replies) answer(now time.Time) int64 {
	if r.heard > 0 && (len(r.sent) == 0 || r.sent[len(r.sent)-1].n < r.heard) {
		if len(r.sent) == mostReplies {
			r.sent = slices.Delete(r.sent, 0, 1)
		}
		r.sent = append(r.sent, replied{r.heard, now})
	}
	return r.heard
}

// at returns when heartbeat n was answered first, the zero time where that is not known.
func (r *replies) at(n int64) time.Time {
	for _, s := range r.sent {
		if s.n == n {
			return s.at
		}
	}
	return time.Time{}
}
