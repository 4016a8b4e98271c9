package c10d

import (
	"fmt"
	"maps"
	"time"
)

// Want is what an agent tries to reach by the steps it takes.
type Want int

const (
	// WantJoin is to be a participant of a complete round.
	WantJoin Want = iota
	// WantStay is to remain the participant that it is, and to hear when the round is over. Upstream's keep-alive.
	WantStay
	// WantExit is to be in no list any more: before the next join, and when leaving for good.
	WantExit
	// WantClose is that nobody joins any more.
	WantClose
)

// Action is what a Decision does. The names are upstream's (_Action) where upstream has it.
type Action int

// The actions whose Decision has a state to write.
const (
	ActionKeepAlive Action = iota + 1
	ActionAddToParticipants
	ActionAddToWaitList
	ActionAddToRedundancyList
	ActionRemoveFromParticipants
	ActionRemoveFromWaitList
	ActionRemoveFromRedundancyList
	ActionMarkComplete
	ActionMarkClosed
	// ActionMarkDeadline starts the last call of a round that has enough nodes and no deadline. Upstream sets one only in
	// the write that brings the number of nodes to exactly the writer's minimum: with other minima elsewhere, never.
	ActionMarkDeadline
	// ActionRestore puts us back into the complete round that somebody dropped us from.
	ActionRestore
)

// The actions that write nothing.
const (
	// ActionSync means: wait, read, ask again.
	ActionSync Action = iota + 101
	// ActionFinish means that what was wanted is reached. After a join, Decision.Round is the round.
	ActionFinish
	// ActionNewRound means that the round we stay in is over or has lost a member: stop the workers, exit, join again.
	ActionNewRound
	// ActionSpared means that the job ended while we were a spare: nothing is left to do, and nothing went wrong. 2.14's
	// torchrun dies of it (§9 row 32).
	ActionSpared
	// ActionErrorClosed means that the rendezvous is closed, ActionErrorTimeout that the deadline has passed.
	ActionErrorClosed
	ActionErrorTimeout
)

var actionNames = map[Action]string{
	ActionKeepAlive: "keep alive", ActionAddToParticipants: "add to participants", ActionAddToWaitList: "add to wait list",
	ActionAddToRedundancyList: "add to redundancy list", ActionRemoveFromParticipants: "remove from participants",
	ActionRemoveFromWaitList: "remove from wait list", ActionRemoveFromRedundancyList: "remove from redundancy list",
	ActionMarkComplete: "mark complete", ActionMarkClosed: "mark closed", ActionMarkDeadline: "mark deadline",
	ActionRestore: "restore", ActionSync: "sync", ActionFinish: "finish", ActionNewRound: "new round",
	ActionSpared: "spared", ActionErrorClosed: "error closed", ActionErrorTimeout: "error timeout",
}

// String returns the action in lower case words.
func (a Action) String() string { return actionNames[a] }

// Round is a complete round as all its members know it.
type Round struct {
	Number, Rank int
	// Ranks are dense from 0; a member that left since is still in them.
	Ranks map[Node]int
}

// Input is everything that a decision depends on.
type Input struct {
	// State is what was read from the store or came back from the last write, nil for NoState. Step does not change it.
	State    *State
	Self     Node
	Settings Settings
	Now      Instant
	Want     Want
	// Deadline is the end of the operation on Now.Mono's clock: Settings.Deadline at its beginning, then what the last
	// Decision returned. Staying has none.
	Deadline time.Duration
	// Round is the round that WantStay is about.
	Round Round
	// Excused is how many of its members may be silent without being dead. An agent of upstream has one connection, and
	// does not keep alive while it waits on it for a key (2.15.0, observed): in the exchange of roles, so all are
	// excused until that is over, and in the exit barrier, so those are that have entered it. While anybody is excused,
	// who waits to join goes on waiting.
	Excused int
	// Seen has observed State.
	Seen *Observer
}

// Decision is what to do next.
type Decision struct {
	Action Action
	// State is to be written by compare-and-set, in place of the one that Step was shown; nil when nothing is. Whatever
	// the store holds afterwards is the next Input, whether the write was ours or not.
	State *State
	// Wait is how long ActionSync waits at most before the state is read again, more than 0.
	Wait time.Duration
	// Deadline replaces Input.Deadline.
	Deadline time.Duration
	// Round is the round that ActionFinish joined.
	Round Round
	// Reason says why, for people, where the action alone does not.
	Reason string
}

const (
	// pollInterval is upstream's delay between two reads of the state.
	pollInterval = time.Second
	// rollback is how long after its deadline a join still tries to leave the lists behind itself.
	rollback = 5 * time.Second
)

// Step decides what one agent does next. It is a function of its input: of equal inputs it makes equal decisions.
//
// The rules are upstream's (_RendezvousJoinOp, _RendezvousExitOp, _RendezvousCloseOp, _RendezvousKeepAliveOp and
// _sanitize) but for these: who is dead, when a last call ends and what a heartbeat says is told by Observer (§9 row 22);
// ranks are kept (rows 5 and 6); losing a member ends the round for its survivors (row 1); a round that cannot take one
// more is not disturbed by who waits; a spare leaves the place of a restarting node free.
func Step(in Input) Decision {
	t := turn{Input: in, st: in.State}
	if t.st == nil {
		t.st = NewState()
		t.st.Naive, t.st.FQDN = in.Settings.Legacy, in.Settings.Legacy
		// A store that lost its state begins a round that nobody has seen: the keys of the old ones may still be there.
		t.st.Round = in.Seen.round + 1
		t.own = true
	}
	t.dropDead()
	switch in.Want {
	case WantStay:
		return t.stay()
	case WantExit:
		return t.exit()
	case WantClose:
		return t.closing()
	case WantJoin:
	}
	return t.join()
}

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
	}
	t.st.remember()
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

// writes returns the decision to write the state with our change in it. Who is still in a list afterwards has a fresh
// heartbeat.
func (t *turn) writes(a Action, reason string, change func(*State)) Decision {
	st := t.change()
	change(st)
	switch a {
	case ActionKeepAlive, ActionAddToParticipants, ActionAddToWaitList, ActionAddToRedundancyList, ActionRestore:
		st.LastHeartbeats[t.Self] = t.Seen.Stamp(t.Now)
	default:
	}
	// A member without heartbeat would never die in upstream's eyes. No agent leaves one, but the state is not ours alone.
	if _, has := st.LastHeartbeats[t.Self]; !has && st.Mentions(t.Self) {
		st.LastHeartbeats[t.Self] = t.Seen.Stamp(t.Now)
	}
	d := t.does(a, reason)
	d.State = st
	return d
}

// idle keeps us alive where that is due, else it waits for the state to change, or for the first of others.
func (t *turn) idle(others ...time.Duration) Decision {
	wait := pollInterval
	if t.st.Mentions(t.Self) {
		due := t.Seen.keepAliveIn(t.st, t.Now)
		if due <= 0 {
			return t.writes(ActionKeepAlive, "", func(*State) {})
		}
		wait = min(wait, due)
	}
	for _, d := range others {
		if d > 0 {
			wait = min(wait, d)
		}
	}
	d := t.does(ActionSync, "")
	d.Wait = wait
	return d
}

func (t *turn) isParticipant() bool { _, in := t.st.Participants[t.Self]; return in }

// join is _RendezvousJoinOp.
func (t *turn) join() Decision {
	st, n, in := t.st, len(t.st.Participants), t.isParticipant()
	spare, waits := st.RedundancyList.Has(t.Self), st.WaitList.Has(t.Self)
	switch {
	case st.Closed && spare:
		return t.does(ActionSpared, "the job has ended while this node was a spare")
	case st.Closed:
		return t.does(ActionErrorClosed, "the rendezvous is closed")
	case spare: // no deadline applies
		left, vacancy := t.Seen.vacancyIn(t.Now)
		if !vacancy || left > 0 {
			return t.idle(left)
		}
		d := t.writes(ActionRemoveFromRedundancyList, "there is a free place", t.leave)
		d.Deadline = t.Settings.Deadline(WantJoin, t.Now.Mono)
		return d
	case st.Complete && in:
		return t.finish()
	case t.Now.Mono > t.Deadline:
		return t.late(in, waits)
	case st.Complete && n >= t.Settings.MaxNodes:
		// Also from the wait list, where upstream stays: its agents restart for as long as it is not empty, and a full
		// round cannot take us in.
		return t.writes(ActionAddToRedundancyList, "", t.addSpare)
	case st.Complete && !waits:
		return t.writes(ActionAddToWaitList, "", func(s *State) { s.WaitList[t.Self] = struct{}{} })
	case st.Complete:
		return t.idle(t.Deadline - t.Now.Mono)
	case in:
		return t.gather(n)
	case n >= t.Settings.MaxNodes:
		// Others may have more places than we: upstream would go beyond its own maximum, and then never complete.
		return t.writes(ActionAddToRedundancyList, "", t.addSpare)
	}
	return t.writes(ActionAddToParticipants, "", t.take)
}

func (t *turn) addSpare(s *State) {
	delete(s.WaitList, t.Self)
	s.RedundancyList[t.Self] = struct{}{}
}

// take makes us a participant. Upstream calls the last call and completes the round in the same write.
func (t *turn) take(s *State) {
	delete(s.WaitList, t.Self)
	s.Participants[t.Self] = 0
	switch n := len(s.Participants); {
	case n == t.Settings.MaxNodes:
		s.complete()
	case n == t.Settings.MinNodes, n > t.Settings.MinNodes && s.Deadline.IsZero():
		t.lastCall(s)
	}
}

func (t *turn) lastCall(s *State) { s.Deadline = t.Seen.Stamp(t.Now).Add(t.Settings.LastCall) }

// leave takes us out of everything.
func (t *turn) leave(s *State) {
	if s.remove(t.Self) {
		s.afterRemoval(t.Settings.MinNodes)
	}
}

// gather is what a participant of an incomplete round does.
func (t *turn) gather(n int) Decision {
	switch {
	case n < t.Settings.MinNodes || n > t.Settings.MaxNodes:
		return t.idle(t.Deadline - t.Now.Mono)
	case n == t.Settings.MaxNodes: // filled by somebody whose maximum is larger
		return t.writes(ActionMarkComplete, "all nodes are there", (*State).complete)
	case t.st.Deadline.IsZero():
		return t.writes(ActionMarkDeadline, "enough nodes are there", t.lastCall)
	}
	left := t.Seen.lastCallIn(t.Now)
	if left <= 0 {
		return t.writes(ActionMarkComplete, "the last call is over", (*State).complete)
	}
	return t.idle(left, t.Deadline-t.Now.Mono)
}

// late is a join past its deadline.
func (t *turn) late(in, waits bool) Decision {
	if t.Now.Mono <= t.Deadline+rollback {
		if in {
			return t.writes(ActionRemoveFromParticipants, "not enough nodes came in time", t.leave)
		}
		if waits {
			return t.writes(ActionRemoveFromWaitList, "no round began in time", t.leave)
		}
	}
	return t.does(ActionErrorTimeout, "the join timeout has passed")
}

// finish ends a join in a complete round. Upstream counts who is in the state when it comes to read it: a member that
// has left until then leaves the others with different sizes of one world. Here the members are those that the round was
// completed with; where one is gone already, or where that can only be seen from the gap among the ranks, we go on to the
// next round.
func (t *turn) finish() Decision {
	ranks := t.st.Participants
	if r, ok := t.st.Ranks[t.Self]; ok && t.st.RanksRound == t.st.Round && r == ranks[t.Self] {
		ranks = t.st.Ranks
	}
	why := t.lost(ranks)
	if why == "" && !dense(ranks) {
		why = "a member has left the round before it began"
	}
	if why != "" {
		return t.writes(ActionRemoveFromParticipants, why, t.leave)
	}
	d := t.does(ActionFinish, "")
	d.Round = Round{Number: t.st.Round, Rank: ranks[t.Self], Ranks: maps.Clone(ranks)}
	return d
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
		case n == t.Self || in && t.Seen.Alive(n):
		case !t.Seen.Alive(n):
			silent++
			if lower(n, first) {
				first = n
			}
		case !t.Seen.evicted(n) && lower(n, left):
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

// stay is what a participant does while its workers run. Upstream only writes its heartbeat and looks whether anybody
// waits: the survivors of a dead node go on until their workers give up, half an hour later (§9 row 1).
func (t *turn) stay() Decision {
	st, in := t.st, t.isParticipant()
	switch {
	case st.Closed: // the job is about to end; no round follows
		return t.idle()
	case !st.Complete || st.Round != t.Round.Number:
		return t.does(ActionNewRound, fmt.Sprintf("round %d is over", t.Round.Number))
	case !in:
		return t.restore()
	case t.Seen.keepAliveIn(st, t.Now) <= 0:
		// First of all, so that we stay alive for the others while our workers stop.
		return t.idle()
	}
	if why := t.lost(t.Round.Ranks); why != "" {
		return t.does(ActionNewRound, why)
	}
	// Upstream's agents restart for whoever waits, even if they cannot let him in.
	if n := len(st.WaitList); n > 0 && t.Excused == 0 && len(st.Participants) < t.Settings.MaxNodes {
		return t.does(ActionNewRound, fmt.Sprintf("%d %s to join", n, map[bool]string{true: "node waits", false: "nodes wait"}[n == 1]))
	}
	return t.idle()
}

// restore is for a participant that somebody dropped, an agent of upstream whose clock is ahead, or one of ours because
// this process was stopped. As long as the round goes on as it was, we take our place in it again; upstream's agents stay
// outside and never notice.
func (t *turn) restore() Decision {
	st := t.st
	free := len(st.Participants) < t.Settings.MaxNodes && len(st.WaitList) == 0
	for _, rank := range st.Participants {
		free = free && rank != t.Round.Rank
	}
	if !free {
		return t.does(ActionNewRound, "this node was dropped from the round")
	}
	return t.writes(ActionRestore, "this node was dropped from the round", func(s *State) {
		delete(s.RedundancyList, t.Self)
		s.Participants[t.Self] = t.Round.Rank
	})
}

// exit is _RendezvousExitOp; we also leave the lists of those who wait, so that nobody restarts for a node that is gone.
func (t *turn) exit() Decision {
	if !t.st.Mentions(t.Self) {
		return t.does(ActionFinish, "")
	}
	if t.Now.Mono > t.Deadline {
		return t.does(ActionErrorTimeout, "the exit took too long")
	}
	a := ActionRemoveFromParticipants
	switch {
	case t.isParticipant():
	case t.st.WaitList.Has(t.Self):
		a = ActionRemoveFromWaitList
	default:
		a = ActionRemoveFromRedundancyList
	}
	return t.writes(a, "", t.leave)
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
