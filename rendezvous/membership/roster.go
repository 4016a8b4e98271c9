package membership

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"muster/internal/errhint"
	"muster/rendezvous"
)

// Placement is a node that is to be given a rank.
type Placement struct {
	// Addr is the address by which others reach it.
	Addr string
	// Survivor says that it was in the round before, with the group rank Rank.
	Survivor bool
	Rank     int
}

// rules are what a roster decides by. They do not change.
type rules struct {
	min, max, spares, unit int
	// fixed says that every node comes with the group rank that it must have, and that all max of them are needed.
	fixed bool
	// checks are the flags by which the nodes examine each other.
	checks string
	// doors says that nodes which come while a round runs are examined before it ends for them.
	doors bool
	// lastCall is how long a round that could begin waits for more nodes after the last one came.
	lastCall time.Duration
	// patience is how long a node may be silent before it is lost.
	patience time.Duration
	// replaceLimit bounds lost nodes, backoffLimit them and restarts together; negative: no limit.
	replaceLimit, backoffLimit int
	// rankLimit bounds how often the node of each rank may be replaced; 0: no limit.
	rankLimit int
	// lossLimit bounds restarts and lost nodes together where a node is lost; 0: no limit.
	lossLimit int
	// quorum says that the others may go on elsewhere when most of them cannot reach us: we must not go on then. fence
	// is the grace that workers get in a round that is cut so, fenced how long after a node is given up its workers
	// have ended.
	quorum        bool
	fence, fenced time.Duration
	// order ranks nodes: order(p)[r] is the index of the node that gets rank r.
	order func([]Placement) []int
}

// phase is where a roster stands.
type phase int

const (
	phaseGather phase = iota // a round is to begin
	phaseRun                 // a round runs
	phaseOver                // the job has ended
)

// joiner is one agent that wants to join.
type joiner struct {
	ticket int64
	rec    joinRecord
	since  time.Duration // when it came, by the coordinator's clock
	first  int64         // its first ticket: it may have drawn others since
	door   doorState
}

// member is an agent of the round that runs, or ran last.
type member struct {
	rank int
	name string // for people
	host string
	gone bool // lost, or left
	// uncounted says that it was lost when nobody knew whether that counts: the coordinator's leadership was inherited.
	uncounted bool
}

// roster decides who takes part in a round, when it begins, and what lost and new nodes mean for it. It is pure: it
// knows no clock, store or goroutine. Each method takes the time since some fixed moment, and returns what is to be
// done.
type roster struct {
	rules
	phase      phase
	round      int               // number of the last round, -1 before the first
	size       int               // nodes of that round, those of torchrun included
	members    map[string]member // ours among them, by agent
	silent     int               // how many of them were lost by silence
	proposed   bool              // a verdict on the round was proposed already
	waiting    []joiner          // by ticket
	tickets    map[string]int64  // theirs, by agent
	pending    []effect
	gathers    bool // a meeting is under way, since gatherFrom
	gatherFrom time.Duration
	last       int // number of the last round that any node was in
	lastJoin   time.Duration
	mixed      bool // agents of torchrun take part: when a round begins is not ours to say
	// notBefore is until when no round begins: others may not have stopped yet. inherited says that we came to an
	// leadership whose holder died.
	notBefore time.Duration
	inherited bool
	// moved is 1 where the store has moved to us: then half of the last round may be at the one before.
	moved   int
	verdict rendezvous.Verdict // on the last round, once it is over

	restarts, replacements int
	lostOf                 losses
	orders                 rendezvous.Orders // of the job, since the last verdict
	wanted                 int               // nodes, by those that were started for that; 0: no more than orders say
	jobBefore              string            // job of the agent whose leadership we have
	leaving                bool              // the host of the store leaves: the next round is for its successor
	earlier                earlier
	added                  int                 // restarts of the earlier job that came to be known while the round runs
	spent                  *rendezvous.Verdict // the job has lost more nodes than it may
}

func newRoster(r rules) *roster {
	return &roster{rules: r, round: -1, last: -1, members: map[string]member{}, tickets: map[string]int64{}, lostOf: losses{}}
}

// effect is one thing to be done.
type effect struct {
	begin   *beginning
	propose *rendezvous.Verdict
	round   int // of propose: another one may begin in the same turn
	reply   *reply
}

// beginning is a round that begins: its nodes by rank.
type beginning struct {
	number  int
	joiners []joiner
}

// reply ends a ticket without a place.
type reply struct {
	joiner
	answer answer
}

// join takes in a ticket. settle is to follow, as after every change.
func (r *roster) join(now time.Duration, ticket int64, rec joinRecord) {
	if why := r.misfit(rec); why != "" {
		r.refuse(joiner{ticket: ticket, rec: rec}, why)
		return
	}
	if _, again := r.tickets[rec.Agent]; again { // an agent has one wish at a time: the last one counts
		r.drop(rec.Agent)
	}
	if m, was := r.members[rec.Agent]; was && m.gone { // silent for a while, and back
		m.gone, m.uncounted = false, false
		r.members[rec.Agent] = m
		r.silent = max(r.silent-1, 0)
	}
	r.tickets[rec.Agent] = ticket
	r.waiting = append(r.waiting, joiner{ticket: ticket, rec: rec, since: now, first: ticket})
	if n := len(r.waiting); n > 1 && r.waiting[n-2].first > ticket {
		slices.SortFunc(r.waiting, func(a, b joiner) int { return cmp.Compare(a.first, b.first) })
	}
	if rec.Round > r.round {
		r.fromElsewhere()
	}
	r.lastJoin, r.last = now, max(r.last, rec.Round)
	r.learn(rec)
	r.wanted = max(r.wanted, rec.Wants)
	if _, ours := r.members[rec.Agent]; ours && r.phase == phaseRun && !r.proposed {
		// It has lost the store for a while, and stopped its workers; or it has heard a verdict that is on its way to
		// us.
		r.propose(rendezvous.Verdict{
			Kind: rendezvous.Reassemble, Reason: "NodeReturned", Rank: -1, Subject: rec.Node,
			Message: "node " + rec.String() + " was cut off for a while and has stopped its workers",
		})
	}
}

// fromElsewhere takes in that an agent has come whose last round was at a store whose place this one has taken: that has
// ended, and whoever has not heard of it yet notices that in time.
func (r *roster) fromElsewhere() {
	if !r.inherited && r.moved == 0 {
		r.notBefore = max(r.notBefore, r.patience+r.fenced)
	}
}

// learn takes in what an agent knows of the job's past.
func (r *roster) learn(rec joinRecord) {
	r.restarts = max(r.restarts, rec.Restarts)
	r.replacements = max(r.replacements, rec.Replacements)
	r.orders.Learn(rec.Orders)
	if known, err := parseLosses(rec.LostOf); err == nil { // which was checked
		r.lostOf.learn(known)
	}
}

// again takes in another ticket of an agent that waits already, for the same wish: it keeps its place, and has this
// ticket in the place of old. waits is false where it does not wait.
func (r *roster) again(ticket int64, rec joinRecord) (old int64, waits bool) {
	if old, waits = r.tickets[rec.Agent]; !waits || rec.Wish == "" {
		return 0, false
	}
	for i := range r.waiting {
		if s := &r.waiting[i]; s.rec.Agent == rec.Agent && s.rec.Wish == rec.Wish {
			s.ticket, r.tickets[rec.Agent] = ticket, ticket
			return old, true
		}
	}
	return 0, false
}

// refuse ends a ticket.
func (r *roster) refuse(s joiner, why string) {
	r.pending = append(r.pending, effect{reply: &reply{s, answer{Refused: why}}})
}

// drop forgets what an agent waits for.
func (r *roster) drop(agent string) {
	delete(r.tickets, agent)
	r.waiting = slices.DeleteFunc(r.waiting, func(s joiner) bool { return s.rec.Agent == agent })
}

// misfit says why an agent can never be in this job, "" if it can.
func (r *roster) misfit(rec joinRecord) string {
	switch {
	case r.fixed && (rec.NodeRank < 0 || rec.NodeRank >= r.max):
		return fmt.Sprintf("node %s has node rank %d, and this job has node ranks 0 to %d", rec, rec.NodeRank, r.max-1)
	case !r.fixed && rec.NodeRank >= 0:
		return fmt.Sprintf("node %s insists on node rank %d, and in this job ranks are given by the rendezvous", rec, rec.NodeRank)
	case r.checks != rec.Checks:
		return fmt.Sprintf("node %s was started %s, and this job %s", rec, withFlags(rec.Checks), withFlags(r.checks))
	}
	return ""
}

func withFlags(checks string) string {
	if checks == "" {
		return "without --network-check"
	}
	return "with " + checks
}

// goes is how an agent goes.
type goes int

const (
	goesSilent  goes = iota // nothing was heard of it for too long
	goesLeft                // it has left by itself
	goesDeaf                // it writes heartbeats, or somebody has saved them up, and they answer none of the coordinator's
	goesGarbled             // what stands in the place of its heartbeats nobody of this job has written: it may live
)

// lost takes in that an agent is gone.
func (r *roster) lost(now time.Duration, agent string, how goes) {
	left := how == goesLeft
	for _, s := range r.waiting { // should it live, it asks again
		if s.rec.Agent == agent && !left {
			r.pending = append(r.pending, effect{reply: &reply{s, answer{Again: true}}})
		}
	}
	r.drop(agent)
	m, ours := r.members[agent]
	if !ours || m.gone {
		return
	}
	m.gone, m.uncounted = true, how == goesSilent && r.inherited
	r.members[agent] = m
	if !left {
		r.silent++
		r.notBefore = max(r.notBefore, now+r.fenced)
	}
	if r.phase == phaseOver {
		return
	}
	v := r.afterLoss(m, how)
	if how == goesSilent && !r.inherited {
		r.replaces(now, m.rank, &v)
	}
	switch {
	case r.phase == phaseRun && !r.proposed:
		r.propose(v)
	case r.phase == phaseGather && v.Kind == rendezvous.Fail:
		r.phase, r.verdict = phaseOver, v
	default:
	}
}

func (r *roster) propose(v rendezvous.Verdict) {
	r.proposed = true
	r.pending = append(r.pending, effect{propose: &v, round: r.round})
}

// reasonNodeLost is the reason of a verdict on a round that has lost a node.
const reasonNodeLost = "NodeLost"

// reasonBeatsGarbled is the reason of a verdict on a round with a node whose heartbeats were replaced, reasonUnheard of
// one with a node of which the coordinator does not hear, while it hears the coordinator.
const (
	reasonBeatsGarbled = "HeartbeatsGarbled"
	reasonUnheard      = "NodeUnheard"
)

// afterLoss is the verdict on a round that has lost a node.
func (r *roster) afterLoss(m member, how goes) rendezvous.Verdict {
	left, name := how == goesLeft, m.name
	v := rendezvous.Verdict{Kind: rendezvous.Reassemble, Reason: reasonNodeLost, Rank: -1, Subject: m.host}
	v.Message = fmt.Sprintf("node %s is not heard of for %v", name, r.patience)
	if left {
		v.Message = fmt.Sprintf("node %s has left", name)
	}
	if r.quorum && !left {
		v.Grace = r.fence
	}
	if how == goesDeaf {
		v.Reason, v.Message = reasonUnheard, "node "+name+" does not hear the coordinator: its heartbeats answer none that is not old"
		return v
	}
	if how == goesGarbled { // that says nothing of the node: it is no loss that counts, and it may come back at once
		v.Reason = reasonBeatsGarbled
		v.Message = "something that is no agent of this job replaces or removes the heartbeats of node " + name +
			" in the store; " + foreignHint
		return v
	}
	if !left && !r.inherited { // in a leadership that we took over nobody is counted who had gone long before
		r.replacements++
	}
	v.Lost = m.rank + 1
	r.limit(&v, r.restarts, r.replacements)
	return v
}

// limit makes the verdict on a lost node the end of the job where that were one too many.
func (r *rules) limit(v *rendezvous.Verdict, restarts, replacements int) {
	switch {
	case r.replaceLimit >= 0 && replacements > r.replaceLimit:
		v.Kind, v.Reason, v.Status = rendezvous.Fail, "RestartLimitReached", errhint.TryAgain
		if r.replaceLimit == 0 {
			v.Message += ", and no restart is left for a lost node"
		} else {
			v.Message += fmt.Sprintf(", and the restart limit of %d lost nodes is reached", r.replaceLimit)
		}
	case r.lossLimit > 0 && replacements+restarts > r.lossLimit:
		v.Kind, v.Reason, v.Status = rendezvous.Fail, "RestartLimitReached", errhint.TryAgain
		v.Message += fmt.Sprintf(", and no restart is left for a lost node: %d of %d used", r.lossLimit, r.lossLimit)
	case r.backoffLimit >= 0 && replacements+restarts > r.backoffLimit:
		v.Kind, v.Reason, v.Status = rendezvous.Fail, "BackoffLimitReached", errhint.TryAgain
		v.Message += fmt.Sprintf(", and the backoff limit of %d is reached", r.backoffLimit)
	}
}

// end takes in the verdict on the round that runs.
func (r *roster) end(v rendezvous.Verdict) {
	if r.phase != phaseRun {
		return
	}
	r.verdict, r.phase, r.leaving = v, phaseGather, v.Reason == reasonHostStopped
	if v.Orders.Version > r.orders.Version && v.Orders.Nodes != r.orders.Nodes {
		r.wanted = 0 // somebody wants another number by now
	}
	r.orders.Learn(v.Orders)
	switch v.Kind {
	case rendezvous.Restart:
		r.restarts = max(r.restarts, v.Restarts+r.added)
	case rendezvous.Succeed, rendezvous.Fail:
		r.phase = phaseOver
	default:
	}
}

// settle returns what is to be done now.
func (r *roster) settle(now time.Duration) []effect {
	if r.phase == phaseGather {
		if !r.gathers {
			r.gathers, r.gatherFrom = true, now
		}
		v, is := r.lostQuorum(), now > r.givesUp()
		if !is && r.verdict.Reason == reasonNodeLost { // more may be lost by now than the verdict knew
			v = r.verdict
			r.limit(&v, r.restarts, r.replacements)
			is = v.Kind == rendezvous.Fail
		}
		if !is && !r.cutOff() { // else the others may have gone on without the node that is back
			v, is = r.hostReturned()
		}
		if !is && now > r.allBack() {
			v, is = r.lostTogether()
		}
		if !is && r.spent != nil {
			v, is = *r.spent, true
		}
		if is {
			r.phase, r.verdict = phaseOver, v
		}
	}
	switch r.phase {
	case phaseOver:
	case phaseRun:
		r.refuseDoubles(now)
		if r.spent != nil && !r.proposed {
			r.propose(*r.spent)
		}
		r.grow(now)
	default:
		r.refuseDoubles(now)
		joiners, wait := r.choose(now)
		if wait > 0 || r.mixed {
			break
		}
		if v, is := r.lostTogether(); is {
			r.phase, r.verdict = phaseOver, v
		} else {
			r.begin(joiners)
		}
	}
	if r.phase == phaseOver {
		r.tellOver()
	}
	effects := r.pending
	r.pending = nil
	return effects
}

// tellOver answers those who wait for a round of a job that has ended.
func (r *roster) tellOver() {
	for _, s := range r.waiting {
		v := r.verdict
		r.pending = append(r.pending, effect{reply: &reply{s, answer{Over: &v}}})
	}
	r.waiting = nil
	clear(r.tickets)
}

// begin makes the next round of those who join.
func (r *roster) begin(joiners []joiner) {
	r.raise()
	b := beginning{number: r.last + 1, joiners: make([]joiner, len(joiners))}
	if r.fixed {
		for _, s := range joiners {
			b.joiners[s.rec.NodeRank] = s
		}
	} else {
		places := make([]Placement, len(joiners))
		claimed := make(map[int]bool, len(joiners)) // rounds of the same number at two stores gave the same ranks
		for i, s := range joiners {
			places[i] = Placement{Addr: s.rec.Addr}
			if rank := r.oldRank(s); rank != math.MaxInt && !claimed[rank] {
				places[i].Survivor, places[i].Rank, claimed[rank] = true, rank, true
			}
		}
		wanted := make([]int, len(joiners))
		for i, s := range joiners {
			wanted[i] = s.rec.Prefers - 1
		}
		before := func(rank, i int) bool { return places[i].Survivor && places[i].Rank == rank }
		for rank, i := range preferred(r.order(places), wanted, before) {
			b.joiners[rank] = joiners[i]
		}
	}
	ranks := make([]int, len(joiners))
	for i := range ranks {
		ranks[i] = i
	}
	r.begun(b.number, len(b.joiners), b.joiners, ranks)
	r.pending = append(r.pending, effect{begin: &b})
}

// begun notes that a round of size nodes runs, of which ours are joiners, with ranks.
func (r *roster) begun(number, size int, joiners []joiner, ranks []int) {
	for i, rank := range r.uncounted() {
		r.replacements++
		if r.mustReplace(r.lastSize()-i, rank) {
			r.lostOf[rank]++
		}
	}
	r.phase, r.round, r.last, r.size = phaseRun, number, number, size
	r.silent, r.proposed, r.inherited, r.notBefore, r.moved, r.gathers, r.added = 0, false, false, 0, 0, false, 0
	r.members = make(map[string]member, len(joiners))
	for i, s := range joiners {
		r.members[s.rec.Agent] = member{rank: ranks[i], name: s.rec.String(), host: s.rec.Node}
		delete(r.tickets, s.rec.Agent)
	}
	r.waiting = slices.DeleteFunc(r.waiting, func(s joiner) bool { _, waits := r.tickets[s.rec.Agent]; return !waits })
}

// name returns the name of an agent's node for people.
func (r *roster) name(agent string) string {
	if m, ok := r.members[agent]; ok {
		return m.name
	}
	for _, s := range r.waiting {
		if s.rec.Agent == agent {
			return s.rec.String()
		}
	}
	return "agent " + agent
}
