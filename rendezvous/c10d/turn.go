package c10d

import (
	"fmt"
	"maps"
	"time"
)

// turn is one call of Step.
type turn struct {
	Input
	st  *State
	own bool // whether st may be changed
}

// change returns the state for changing, with the ranks of its round noted.
func (t *turn) change() *State {
	if !t.own {
		t.st, t.own = t.st.Clone(), true
		if len(t.st.LastHeartbeats) == 0 && len(t.st.Ranks) == 0 && t.st.Deadline.IsZero() { // nothing says what kind it is of
			t.st.Naive, t.st.FQDN = t.Settings.Legacy, t.Settings.Legacy
		}
	}
	t.st.remember(t.Round)
	return t.st
}

// dropDead removes the nodes that are silent for too long, in our view; the store learns of it with our next write.
func (t *turn) dropDead() {
	dead := t.Seen.dead()
	if len(dead) == 0 {
		return
	}
	st, removed := t.change(), false
	for n := range dead {
		if st.remove(n) {
			removed = true
		}
	}
	if removed {
		st.afterRemoval(t.Settings.MinNodes)
	}
}

func (t *turn) does(a Action, reason string) Decision {
	return Decision{Action: a, Deadline: t.Deadline, Reason: reason}
}

// writes returns the decision to write the state with our change in it. Who of us is still in a list afterwards has a
// heartbeat, a fresh one where the action says that we live.
func (t *turn) writes(a Action, reason string, change func(*State)) Decision {
	st := t.change()
	change(st)
	fresh := false
	switch a {
	case ActionKeepAlive, ActionAddToParticipants, ActionAddToWaitList, ActionAddToRedundancyList, ActionRestore:
		fresh = true
	default:
	}
	stamp := t.Seen.Stamp(t.Now)
	for _, m := range t.Members {
		// A member without heartbeat would never die in upstream's eyes. No agent leaves one, but the state is not ours
		// alone.
		if _, has := st.LastHeartbeats[m]; (fresh || !has) && st.Mentions(m) {
			st.LastHeartbeats[m] = stamp
		}
	}
	d := t.does(a, reason)
	d.State = st
	return d
}

// idle keeps us alive where that is due, else it waits for the state to change, or for the first of others.
func (t *turn) idle(others ...time.Duration) Decision {
	wait := pollInterval
	due := t.keepAliveIn()
	if due <= 0 {
		return t.writes(ActionKeepAlive, "", func(*State) {})
	}
	wait = min(wait, due)
	for _, d := range others {
		if d > 0 {
			wait = min(wait, d)
		}
	}
	d := t.does(ActionSync, "")
	d.Wait = wait
	return d
}

// keepAliveIn returns how long the heartbeats of all of us in the state are good.
func (t *turn) keepAliveIn() time.Duration {
	due := t.Settings.KeepAlive
	for _, m := range t.Members {
		if t.st.Mentions(m) {
			due = min(due, t.Seen.keepAliveIn(m, t.st, t.Now))
		}
	}
	return due
}

// mentioned returns those of nodes that the state mentions, and the action that takes them out of it.
func (t *turn) mentioned(nodes []Node) (there []Node, a Action) {
	a = ActionRemoveFromRedundancyList
	for _, n := range nodes {
		_, in := t.st.Participants[n]
		switch {
		case in:
			a = min(a, ActionRemoveFromParticipants)
		case t.st.WaitList.Has(n):
			a = min(a, ActionRemoveFromWaitList)
		case !t.st.RedundancyList.Has(n):
			continue
		}
		there = append(there, n)
	}
	return there, a
}

// leave takes nodes of ours out of everything.
func (t *turn) leave(s *State, nodes []Node) {
	removed := false
	for _, n := range nodes {
		if s.remove(n) {
			removed = true
		}
	}
	if removed {
		s.afterRemoval(t.Settings.MinNodes)
	}
}

func (t *turn) leaveAll(s *State) { t.leave(s, t.Members) }

// join is _RendezvousJoinOp.
func (t *turn) join() Decision {
	st, in, spares, waits := t.st, 0, 0, 0
	for _, m := range t.Members {
		if _, ok := st.Participants[m]; ok {
			in++
		}
		if st.RedundancyList.Has(m) {
			spares++
		}
		if st.WaitList.Has(m) {
			waits++
		}
	}
	// No deadline applies to spares.
	allSpare := spares == len(t.Members)
	switch {
	case st.Closed && allSpare && spares > 0:
		return t.does(ActionSpared, "the job has ended while this node was a spare")
	case st.Closed:
		return t.does(ActionErrorClosed, "the rendezvous is closed")
	case st.Complete && in > 0:
		return t.finish()
	case !allSpare && t.Now.Mono > t.Deadline:
		return t.late(in > 0, waits > 0)
	}
	if d := t.place(); d.Action != 0 {
		if d.Action == ActionRemoveFromRedundancyList && allSpare {
			d.Deadline = t.Settings.Deadline(WantJoin, t.Now.Mono)
		}
		return d
	}
	if in > 0 {
		return t.gather(len(st.Participants))
	}
	left, _ := t.Seen.vacancyIn(t.Now)
	if allSpare {
		return t.idle(left)
	}
	return t.idle(left, t.Deadline-t.Now.Mono)
}

// place puts those of us who are in no list, or in one that is not theirs any more, where they belong. The decision has
// no action where all are.
func (t *turn) place() Decision {
	left, vacancy := t.Seen.vacancyIn(t.Now)
	p := placement{turn: t}
	if vacancy && left <= 0 {
		p.free = t.Seen.places
	}
	var action Action
	for _, m := range t.Members {
		if a := p.put(m); a != 0 && (action == 0 || a < action) {
			action = a
		}
	}
	if action == 0 {
		return Decision{}
	}
	reason := ""
	if action == ActionRemoveFromRedundancyList {
		reason = "there is a free place"
	}
	return t.writes(action, reason, func(*State) {})
}

// placement is one call of place.
type placement struct {
	*turn
	free int // how many spares may come
}

func (p *placement) put(m Node) Action {
	st, n := p.st, len(p.st.Participants)
	_, in := st.Participants[m]
	switch {
	case in:
		return 0
	case st.RedundancyList.Has(m):
		if p.free == 0 {
			return 0
		}
		p.free--
		p.change().remove(m)
		return ActionRemoveFromRedundancyList
	case n >= p.Settings.MaxNodes:
		// In a complete round also from the wait list, where upstream stays: its agents restart for as long as it is
		// not empty, and a full round cannot take us in. In an incomplete one others may have more places than we:
		// upstream would go beyond its own maximum, and then never complete.
		st = p.change()
		delete(st.WaitList, m)
		st.RedundancyList[m] = struct{}{}
		return ActionAddToRedundancyList
	case st.Complete && st.WaitList.Has(m):
		return 0
	case st.Complete:
		p.free = max(0, p.free-1)
		p.change().WaitList[m] = struct{}{}
		return ActionAddToWaitList
	}
	p.free = max(0, p.free-1)
	p.take(p.change(), m)
	return ActionAddToParticipants
}

// take makes m a participant. Upstream calls the last call and completes the round in the same write.
func (t *turn) take(s *State, m Node) {
	delete(s.WaitList, m)
	s.Participants[m] = 0
	switch n := len(s.Participants); {
	case n == t.Settings.MaxNodes:
		t.complete(s)
	case n == t.Settings.MinNodes, n > t.Settings.MinNodes && s.Deadline.IsZero():
		t.lastCall(s)
	}
}

func (t *turn) complete(s *State) {
	if t.Successors {
		s.complete(t.Seen.ours)
	} else {
		s.complete(nil)
	}
}

func (t *turn) lastCall(s *State) { s.Deadline = t.Seen.Stamp(t.Now).Add(t.Settings.LastCall) }

// gather is what participants of an incomplete round do.
func (t *turn) gather(n int) Decision {
	switch {
	case n < t.Settings.MinNodes || n > t.Settings.MaxNodes:
		return t.idle(t.Deadline - t.Now.Mono)
	case n == t.Settings.MaxNodes: // filled by somebody whose maximum is larger
		return t.writes(ActionMarkComplete, "all nodes are there", t.complete)
	case t.st.Deadline.IsZero():
		return t.writes(ActionMarkDeadline, "enough nodes are there", t.lastCall)
	}
	left := t.Seen.lastCallIn(t.Now) - t.HeadStart
	if left <= 0 {
		return t.writes(ActionMarkComplete, "the last call is over", t.complete)
	}
	return t.idle(left, t.Deadline-t.Now.Mono)
}

// late is a join past its deadline.
func (t *turn) late(in, waits bool) Decision {
	if t.Now.Mono <= t.Deadline+rollback {
		if in {
			return t.writes(ActionRemoveFromParticipants, "not enough nodes came in time", t.leaveAll)
		}
		if waits {
			return t.writes(ActionRemoveFromWaitList, "no round began in time", t.leaveAll)
		}
	}
	return t.does(ActionErrorTimeout, "the join timeout has passed")
}

// finish ends a join in a complete round. Upstream counts who is in the state when it comes to read it: a member that
// has left until then leaves the others with different sizes of one world. Here the members are those that the round
// was completed with; where one is gone already, or where that can only be seen from the gap among the ranks, we go on
// to the next round.
func (t *turn) finish() Decision {
	ranks := t.st.Participants
	if t.noted() {
		ranks = t.st.Ranks
	}
	round := Round{Number: t.st.Round, Ranks: ranks}
	var why string
	if missing := t.missing(round); len(missing) > 0 {
		d := t.restore(round, missing)
		if d.State != nil {
			return d
		}
		why = d.Reason
	} else {
		why = t.lost(ranks)
	}
	if why == "" && !dense(ranks) {
		why = "a member has left the round before it began"
	}
	if why != "" {
		var in []Node // spares stay spares
		for _, m := range t.Members {
			if _, ok := t.st.Participants[m]; ok {
				in = append(in, m)
			}
		}
		return t.writes(ActionRemoveFromParticipants, why, func(s *State) { t.leave(s, in) })
	}
	d := t.does(ActionFinish, "")
	round.Ranks = maps.Clone(ranks)
	for _, m := range t.Members {
		if rank, in := ranks[m]; in {
			round.Rank = rank
			break
		}
	}
	d.Round = round
	return d
}

// noted reports whether the state says with whom its round was completed, and that agrees with what it says of us.
func (t *turn) noted() bool {
	st := t.st
	if st.RanksRound != st.Round {
		return false
	}
	for _, m := range t.Members {
		if rank, in := st.Participants[m]; in {
			if was, ok := st.Ranks[m]; !ok || was != rank {
				return false
			}
		}
	}
	return true
}

// missing returns those of us who are members of a complete round that the state does not count any more.
func (t *turn) missing(r Round) []Node {
	var missing []Node
	for _, m := range t.Members {
		if _, member := r.Ranks[m]; member {
			if _, in := t.st.Participants[m]; !in {
				missing = append(missing, m)
			}
		}
	}
	return missing
}

func dense(ranks map[Node]int) bool {
	seen := make([]bool, len(ranks))
	for _, r := range ranks {
		if r < 0 || r >= len(seen) || seen[r] {
			return false
		}
		seen[r] = true
	}
	return true
}

// lost says which member a complete round has lost, "" for none. It is lost when it is silent for too long, and when it
// has gone by itself; not when an agent of upstream has dropped it for its clock while it lives.
func (t *turn) lost(ranks map[Node]int) string {
	// Of several the one with the lowest rank is told; there is rarely any.
	silent, first, left := 0, Node{}, Node{}
	lower := func(n, than Node) bool { return than == Node{} || ranks[n] < ranks[than] }
	for n := range ranks {
		_, in := t.st.Participants[n]
		switch {
		case in && t.Seen.Alive(n):
		case !t.Seen.Alive(n):
			silent++
			if lower(n, first) {
				first = n
			}
		case (t.Seen.ours.Has(n) || !t.Seen.evicted(n)) && lower(n, left):
			left = n
		}
	}
	switch {
	case silent > t.Excused:
		return fmt.Sprintf("node %s (group rank %d) is not heard of for %v", first, ranks[first], t.Settings.DeadAfter())
	case left != Node{}:
		return fmt.Sprintf("node %s (group rank %d) has left", left, ranks[left])
	}
	return ""
}

// stay is what participants do while their workers run, and what those of us do meanwhile who came later. Upstream only
// writes its heartbeat and looks whether anybody waits: the survivors of a dead node go on until their workers give up,
// half an hour later (§9 row 1).
func (t *turn) stay() Decision {
	st := t.st
	switch {
	case st.Closed: // the job is about to end; no round follows
		return t.idle()
	case !st.Complete || st.Round != t.Round.Number:
		return t.does(ActionNewRound, fmt.Sprintf("round %d is over", t.Round.Number))
	}
	if missing := t.missing(t.Round); len(missing) > 0 {
		return t.restore(t.Round, missing)
	}
	if t.keepAliveIn() <= 0 {
		// First of all, so that we stay alive for the others while our workers stop.
		return t.idle()
	}
	if why := t.lost(t.Round.Ranks); why != "" {
		return t.does(ActionNewRound, why)
	}
	if d := t.place(); d.Action != 0 {
		return d
	}
	// Upstream's agents restart for whoever waits, even if they cannot let him in.
	if n := len(st.WaitList); n > 0 && t.Excused == 0 && len(st.Participants) < t.Settings.MaxNodes {
		return t.does(ActionNewRound, fmt.Sprintf("%d %s to join", n, map[bool]string{true: "node waits", false: "nodes wait"}[n == 1]))
	}
	left, _ := t.Seen.vacancyIn(t.Now)
	return t.idle(left)
}

// restore is for participants that somebody dropped, an agent of upstream whose clock is ahead, or one of ours because
// this process was stopped. As long as the round goes on as it was, we take our place in it again; upstream's agents
// stay outside and never notice.
func (t *turn) restore(r Round, missing []Node) Decision {
	st := t.st
	why := "this node was dropped from the round"
	if len(missing) > 1 || len(t.Members) > 1 {
		why = fmt.Sprintf("node %s (group rank %d) was dropped from the round", missing[0], r.Ranks[missing[0]])
	}
	free := len(st.Participants)+len(missing) <= t.Settings.MaxNodes && len(st.WaitList) == 0
	wanted := make(map[int]bool, len(missing))
	for _, m := range missing {
		wanted[r.Ranks[m]] = true
	}
	for _, rank := range st.Participants {
		free = free && !wanted[rank]
	}
	if !free {
		return t.does(ActionNewRound, why)
	}
	return t.writes(ActionRestore, why, func(s *State) {
		for _, m := range missing {
			delete(s.RedundancyList, m)
			s.Participants[m] = r.Ranks[m]
		}
	})
}

// exit is _RendezvousExitOp; we also leave the lists of those who wait, so that nobody restarts for a node that is
// gone.
func (t *turn) exit() Decision {
	gone, a := t.mentioned(t.Members)
	leaving, b := t.mentioned(t.Leaving)
	if gone = append(gone, leaving...); len(gone) == 0 {
		return t.does(ActionFinish, "")
	}
	if t.Now.Mono > t.Deadline {
		return t.does(ActionErrorTimeout, "the exit took too long")
	}
	return t.writes(min(a, b), "", func(s *State) { t.leave(s, gone) })
}

// closing is _RendezvousCloseOp.
func (t *turn) closing() Decision {
	switch {
	case t.st.Closed:
		return t.does(ActionFinish, "")
	case t.Now.Mono > t.Deadline:
		return t.does(ActionErrorTimeout, "the close took too long")
	}
	return t.writes(ActionMarkClosed, "", func(s *State) { s.Closed = true })
}
