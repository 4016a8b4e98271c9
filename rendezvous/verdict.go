package rendezvous

import (
	"fmt"
	"time"
)

// VerdictKind says what becomes of a job when a round ends.
type VerdictKind string

// The kinds of verdict.
const (
	// Restart follows a failure: every agent stops its workers, pauses for Delay, and meets the others again.
	Restart VerdictKind = "restart"
	// Reassemble follows a change of the membership: as Restart, with no pause, and no restart is counted.
	Reassemble VerdictKind = "reassemble"
	// Succeed and Fail end the job.
	Succeed VerdictKind = "succeed"
	Fail    VerdictKind = "fail"
)

// Verdict is how a round ends, for all its agents alike. It travels as JSON.
type Verdict struct {
	Kind VerdictKind `json:"kind"`
	// Reason is why, in a word of the status file; Message says it in a sentence for people.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
	// Node is the host name of the agent that proposed it, empty where a handler did by itself.
	Node string `json:"node,omitempty"`
	// Subject is the host name of the node that was lost, has come or is back, where a handler knows which.
	Subject string `json:"subject,omitempty"`
	// Rank and Status are the worker's failure that decided: -1 and 0 where none did. For Fail without one, Status is
	// the exit status of the job.
	Rank   int `json:"rank"`
	Status int `json:"status,omitempty"`
	// Lost is one more than the group rank of the node whose loss decided, 0 for none: nothing is heard of it any more.
	Lost int `json:"lost,omitempty"`
	// Restarts belongs to Restart: how many restarts the whole job has then had. Delay is the pause before the next.
	Restarts int           `json:"restarts,omitempty"`
	Delay    time.Duration `json:"delay,omitempty"`
	// Orders belong to a Reassemble that somebody has asked for, and to a Restart before which the nodes are to be
	// checked: what holds from then on.
	Orders Orders `json:"orders,omitzero"`
	// Exclude belongs to Restart, and to a Reassemble that somebody has asked for: a node of the round that has to leave
	// the job in the next one; the zero value is none.
	Exclude Expulsion `json:"exclude,omitzero"`
	// Linger belongs to Succeed: how long workers that still run may go on.
	Linger time.Duration `json:"linger,omitempty"`
	// Grace bounds the grace of the workers where it is set: others may go on without this node, and must not find it
	// still writing.
	Grace time.Duration `json:"grace,omitempty"`
}

// Expulsion is a node that has to leave a job whose other nodes go on.
type Expulsion struct {
	// GroupRank is its rank in the round that says so, Node its name.
	GroupRank int    `json:"groupRank"`
	Node      string `json:"node"`
	// Status is the exit status that it leaves with, Reason says why in a sentence for people.
	Status int    `json:"status"`
	Reason string `json:"reason,omitempty"`
}

// Any reports whether a node has to leave.
func (e Expulsion) Any() bool { return e.Status != 0 }

// Tally counts workers that have ended by themselves, and how many of them failed.
type Tally struct{ Ended, Failed int }

// OverError is what Next returns when the job has ended without this agent: it was a spare, or came too late.
type OverError struct {
	// Verdict is how the job ended: Succeed or Fail.
	Verdict Verdict
}

func (e *OverError) Error() string {
	return fmt.Sprintf("the job has ended without this node (%s): %s", e.Verdict.Kind, e.Verdict.Message)
}
