package c10d

import "time"

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

// Action is what a Decision does, for one of us at least. The names are upstream's (_Action) where upstream has it.
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
	// ActionMarkDeadline starts the last call of a round that has enough nodes and no deadline. Upstream sets one only
	// in the write that brings the number of nodes to exactly the writer's minimum: with other minima elsewhere, never.
	ActionMarkDeadline
	// ActionRestore puts those of us back into the complete round whom somebody dropped from it.
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
	// ActionSpared means that the job ended while all of us were spares: nothing is left to do, and nothing went wrong.
	// 2.14's torchrun dies of it (§9 row 32).
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
	Number int
	// Rank is the first member's of ours that takes part.
	Rank int
	// Ranks are dense from 0; a member that left since is still in them.
	Ranks map[Node]int
}

// Input is everything that a decision depends on.
type Input struct {
	// State is what was read from the store or came back from the last write, nil for NoState. Step does not change it.
	State *State
	// Members are the nodes of ours that shall take part, each once. Where there are fewer places than members, those
	// in front get them. Most agents have one; a peers of thousands costs one decision and one write all the same.
	Members []Node
	// Leaving are nodes of ours that shall be in no list any more, whatever Want says of the Members. Seen must know
	// both as ours.
	Leaving  []Node
	Settings Settings
	Now      Instant
	Want     Want
	// Deadline is the end of the operation on Now.Mono's clock: Settings.Deadline at its beginning, then what the last
	// Decision returned. Staying has none.
	Deadline time.Duration
	// Round is the round that was joined last, which WantStay is about.
	Round Round
	// Successors says that all nodes but ours are agents of upstream, one of whom may have to inherit rank 0: see successor.
	Successors bool
	// HeadStart is how much sooner than its end we take a last call for over: who completes a round gives the ranks.
	HeadStart time.Duration
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

// Step decides what the nodes of one process do next, one node as a rule. It is a function of its input: of equal
// inputs it makes equal decisions. Several nodes do what each of them would do alone, one after the other and with
// nobody in between, but write it at once.
//
// The rules are upstream's (_RendezvousJoinOp, _RendezvousExitOp, _RendezvousCloseOp, _RendezvousKeepAliveOp and
// _sanitize) but for these: who is dead, when a last call ends and what a heartbeat says is told by Observer (§9 row
// 22); ranks are kept (rows 5 and 6); losing a member ends the round for its survivors (row 1); a round that cannot
// take one more is not disturbed by who waits; a spare leaves the place of a restarting node free.
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
	case WantExit:
		return t.exit()
	case WantClose:
		return t.closing()
	case WantStay, WantJoin:
	}
	if gone, a := t.mentioned(in.Leaving); len(gone) > 0 {
		return t.writes(a, "", func(s *State) { t.leave(s, gone) })
	}
	if in.Want == WantStay {
		return t.stay()
	}
	return t.join()
}
