package policy

import (
	"fmt"
	"time"

	"muster/internal/errhint"
	"muster/internal/printable"
	"muster/launch/job"
	"muster/rendezvous"
)

// Verdict is what is to be done after an event.
type Verdict int

// The verdicts.
const (
	CarryOn        Verdict = iota // nothing changes
	Restart                       // stop the group, pause for Delay, meet the other nodes, start it again
	Succeed                       // the job has succeeded; stop what is left after Linger
	Fail                          // the job has failed; stop the group
	StopForNow                    // muster was asked to stop; stop the group
	Reassemble                    // the nodes have changed: stop the group, meet the others, start it again
	RestartNode                   // stop the group, pause for Delay, start it again in the same round
	RestartWorker                 // start the failed worker again after Delay, the others go on
	Tally                         // this node's workers have ended, and the other nodes' are to be counted too
	Leave                         // this node is not fit: it ends, the others go on without it
	WaitForVerdict                // other nodes leave: nothing is started, how the round ends will be said
	Hold                          // what failed may be the echo of a lost node: wait for word of the others before deciding
)

// Decision is the policy's answer to an event.
type Decision struct {
	Verdict Verdict
	Reason  job.Reason
	// Rank and Status are the failure that decided, -1 and 0 where none did. The failure report may know better which
	// worker is to blame: it has read what they said. Without a rank, Status is the job's where it is not 0.
	Rank, Status int
	// Restarts belongs to what starts workers again: how often that was then done (TORCHELASTIC_RESTART_COUNT), by the
	// whole job, and for RestartNode and RestartWorker by this node within rounds too.
	Restarts int
	// Delay is the pause before the next start.
	Delay time.Duration
	// Linger belongs to succeed: how long the workers that still run may go on.
	Linger time.Duration
	// Exclude belongs to a Restart, and to a Reassemble that somebody has asked for: the node that has to leave before
	// the next start.
	Exclude rendezvous.Expulsion
	// Orders belong to a Reassemble that somebody has asked for, and to a Restart before which the nodes are checked.
	Orders rendezvous.Orders
	// Node is the host whose agent decided, empty for this one and for handlers. Text says why where Reason is none of
	// ours.
	Node, Text string
}

// Final reports whether the job ends with the decision, as far as this node is concerned.
func (d Decision) Final() bool {
	return d.Verdict == Succeed || d.Verdict == Fail || d.Leaves()
}

// InLoop reports whether the job ends because its restarts do not bring it further: its status says that nobody is to
// start it again, and not how a worker has ended.
func (d Decision) InLoop() bool { return d.Verdict == Fail && d.Reason == job.ReasonCrashLoop }

// Leaves reports whether this node leaves, and the others may go on.
func (d Decision) Leaves() bool { return d.Verdict == StopForNow || d.Verdict == Leave }

// Stops reports whether somebody has stopped this node's part of the job, or all of it: then no failure is looked for.
func (d Decision) Stops() bool {
	return d.Verdict == StopForNow || d.Verdict == Fail && d.Reason == job.ReasonStopped
}

// StartsAgain reports whether this node's group ends and another one is started.
func (d Decision) StartsAgain() bool {
	return d.Verdict == Restart || d.Verdict == Reassemble || d.Verdict == RestartNode
}

// Proposal is what the other nodes are told of a decision that ends the round. Where this node leaves they are to go on
// without it.
func (d Decision) Proposal(node string) rendezvous.Verdict {
	v := rendezvous.Verdict{Reason: string(d.Reason), Message: d.Message(), Node: node, Rank: d.Rank, Status: d.Status}
	switch d.Verdict {
	case Restart:
		v.Kind, v.Restarts, v.Delay, v.Exclude, v.Orders = rendezvous.Restart, d.Restarts, d.Delay, d.Exclude, d.Orders
	case Succeed:
		v.Kind, v.Linger = rendezvous.Succeed, d.Linger
	case Fail:
		v.Kind = rendezvous.Fail
		if d.Reason == job.ReasonDeadline {
			v.Status = errhint.Deadline
		}
	case Reassemble:
		v.Kind, v.Orders, v.Exclude = rendezvous.Reassemble, d.Orders, d.Exclude
	default:
		v.Kind, v.Reason = rendezvous.Reassemble, string(job.ReasonNodeStopped)
	}
	return v
}

// DecisionOf is what a verdict of all nodes means here. It came over the network: texts are made fit for a terminal,
// and numbers that cannot be are not taken.
func DecisionOf(v rendezvous.Verdict) Decision {
	d := Decision{Reason: job.Reason(printable.Output(v.Reason)), Rank: max(v.Rank, -1), Status: v.Status, Node: printable.Output(v.Node)}
	switch d.Reason {
	case job.ReasonSucceeded, job.ReasonWorkerFailed, job.ReasonFatal, job.ReasonMaxRestarts, job.ReasonBackoffLimit, job.ReasonDeadline,
		job.ReasonFinished:
	default:
		d.Text = printable.Output(v.Message)
	}
	if d.Reason == job.ReasonBackoffLimit && d.Rank < 0 { // a node was lost, and no worker has failed
		d.Text = printable.Output(v.Message)
	}
	if d.Status < 0 || d.Status > 255 {
		d.Status = errhint.Internal
	}
	switch v.Kind {
	case rendezvous.Restart:
		d.Verdict, d.Delay, d.Exclude, d.Orders = Restart, max(v.Delay, 0), shown(v.Exclude), v.Orders
	case rendezvous.Reassemble:
		d.Verdict, d.Rank, d.Status, d.Orders, d.Exclude = Reassemble, -1, 0, v.Orders, shown(v.Exclude)
	case rendezvous.Succeed:
		d.Verdict, d.Rank, d.Status, d.Linger = Succeed, -1, 0, max(v.Linger, 0)
	case rendezvous.Fail:
		d.Verdict = Fail
	default: // of a later version of ours: what it wants is not known, and to go on would be to guess
		d.Verdict, d.Rank, d.Status, d.Reason = Fail, -1, errhint.Internal, job.ReasonInternal
		d.Text = fmt.Sprintf("another node ended the round with %q, which this version of muster does not know", v.Kind)
	}
	return d
}

// shown makes what another node says of one that has to leave fit for a terminal.
func shown(e rendezvous.Expulsion) rendezvous.Expulsion {
	e.Node, e.Reason = printable.Output(e.Node), printable.Output(e.Reason)
	return e
}

// Message returns the decision as a sentence for people.
func (d Decision) Message() string {
	text := d.Cause()
	if d.Text != "" {
		return text
	}
	switch d.Verdict {
	case Restart:
		text += fmt.Sprintf("; restart %d", d.Restarts)
	case RestartNode:
		text += fmt.Sprintf("; restart %d, on this node alone", d.Restarts)
	case RestartWorker:
		text += fmt.Sprintf("; restart %d, of this worker alone", d.Restarts)
	default:
		return text
	}
	if d.Delay > 0 {
		text += fmt.Sprintf(" after %v", d.Delay.Round(time.Millisecond))
	}
	return text
}

// Cause is the part of the message that says why, for those who say by themselves what is done about it.
func (d Decision) Cause() string {
	var text string
	switch {
	case d.Text != "":
		return d.Text
	case d.Rank >= 0:
		text = fmt.Sprintf("rank %d ended with status %d", d.Rank, d.Status)
	case d.Reason == job.ReasonDeadline:
		text = "the deadline was reached"
	case d.Reason == job.ReasonStopped:
		text = "muster was asked to stop"
	case d.Reason == job.ReasonSucceeded || d.Reason == job.ReasonFinished:
		text = "the workers succeeded"
	case d.Verdict == Reassemble:
		text = "the nodes meet again"
	default:
		text = "workers failed"
	}
	switch d.Reason {
	case job.ReasonFatal:
		text += ", which is fatal"
	case job.ReasonMaxRestarts:
		text += ", and no restart is left"
	case job.ReasonBackoffLimit:
		text += ", and the backoff limit is reached"
	default:
	}
	return text
}

// NodeKey is the key of a log under which the node stands that has decided: the node of the worker that failed, or one
// that is well and has seen what happened to another one. It is empty where somebody has asked, of which the node says
// nothing.
func (d Decision) NodeKey() string {
	switch {
	case d.Rank >= 0, d.Verdict == RestartNode:
		return "node"
	case d.Reason == job.ReasonPaused, d.Reason == job.ReasonScaled, d.Reason == job.ReasonRequested:
		return ""
	}
	return "decided_by"
}
