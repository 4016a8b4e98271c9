package launch

import (
	"fmt"
	"time"

	"muster/internal/errhint"
	"muster/rendezvous"
)

// verdict is what is to be done after an event.
type verdict int

const (
	carryOn        verdict = iota // nothing changes
	restart                       // stop the group, pause for Delay, meet the other nodes, start it again
	succeed                       // the job has succeeded; stop what is left after Linger
	fail                          // the job has failed; stop the group
	stopForNow                    // muster was asked to stop; stop the group
	reassemble                    // the nodes have changed: stop the group, meet the others, start it again
	restartNode                   // stop the group, pause for Delay, start it again in the same round
	restartWorker                 // start the failed worker again after Delay, the others go on
	tally                         // this node's workers have ended, and the other nodes' are to be counted too
	leave                         // this node is not fit: it ends, the others go on without it
	waitForVerdict                // other nodes leave: nothing is started, how the round ends will be said
	hold                          // what failed may be the echo of a lost node: wait for word of the others before deciding
)

// reason names why a job or a round ended, in the words of the status file. Handlers bring more.
type reason string

const (
	reasonSucceeded    reason = "WorkersSucceeded"
	reasonWorkerFailed reason = "WorkerFailed"         // restarted, or final because nothing asks for a restart
	reasonFatal        reason = "FatalExitCode"        // a code of RestartRules.Fatal
	reasonMaxRestarts  reason = "MaxRestartsReached"   // RestartRules.MaxRestarts
	reasonBackoffLimit reason = "BackoffLimitReached"  // RestartRules.BackoffLimit
	reasonDeadline     reason = "DeadlineExceeded"     // RestartRules.Deadline
	reasonStopped      reason = "StopRequested"        // a signal to muster
	reasonFinished     reason = "WorkersSucceededOnce" // restarted although all went well: RestartAlways
	reasonNodeStopped  reason = "NodeStopped"          // reassembled: muster was asked to stop on one of the nodes
	reasonLeaseOver    reason = "LeaseOver"            // reassembled: nobody heard of a node, whose workers were killed for that
	reasonRefused      reason = "Refused"              // muster did not start the job
	reasonNotMet       reason = "NodesNotMet"          // the nodes did not meet in time, or too few are left
	reasonNotSaved     reason = "CheckpointNotSaved"   // the workers have succeeded, but what they saved last is not on disk
	reasonInternal     reason = "InternalError"        // muster could not run the job, or not end it
)

// decision is the policy's answer to an event.
type decision struct {
	Verdict verdict
	Reason  reason
	// Rank and Status are the failure that decided, -1 and 0 where none did. The failure report may know better which
	// worker is to blame: it has read what they said. Without a rank, Status is the job's where it is not 0.
	Rank, Status int
	// Restarts belongs to what starts workers again: how often that was then done (TORCHELASTIC_RESTART_COUNT), by the whole
	// job, and for restartNode and restartWorker by this node within rounds too.
	Restarts int
	// Delay is the pause before the next start.
	Delay time.Duration
	// Linger belongs to succeed: how long the workers that still run may go on.
	Linger time.Duration
	// Node is the host whose agent decided, empty for this one and for handlers. Text says why where Reason is none of ours.
	Node, Text string
}

// final reports whether the job ends with the decision, as far as this node is concerned.
func (d decision) final() bool {
	return d.Verdict == succeed || d.Verdict == fail || d.leaves()
}

// leaves reports whether this node leaves, and the others may go on.
func (d decision) leaves() bool { return d.Verdict == stopForNow || d.Verdict == leave }

// startsAgain reports whether this node's group ends and another one is started.
func (d decision) startsAgain() bool {
	return d.Verdict == restart || d.Verdict == reassemble || d.Verdict == restartNode
}

// proposal is what the other nodes are told of a decision that ends the round. Where this node leaves they are to go on
// without it.
func (d decision) proposal(node string) rendezvous.Verdict {
	v := rendezvous.Verdict{Reason: string(d.Reason), Message: d.message(), Node: node, Rank: d.Rank, Status: d.Status}
	switch d.Verdict {
	case restart:
		v.Kind, v.Restarts, v.Delay = rendezvous.Restart, d.Restarts, d.Delay
	case succeed:
		v.Kind, v.Linger = rendezvous.Succeed, d.Linger
	case fail:
		v.Kind = rendezvous.Fail
		if d.Reason == reasonDeadline {
			v.Status = errhint.Deadline
		}
	case reassemble:
		v.Kind = rendezvous.Reassemble
	default:
		v.Kind, v.Reason = rendezvous.Reassemble, string(reasonNodeStopped)
	}
	return v
}

// decisionOf is what a verdict of all nodes means here. It came over the network: texts are made fit for a terminal, and
// numbers that cannot be are not taken.
func decisionOf(v rendezvous.Verdict) decision {
	d := decision{Reason: reason(printable(v.Reason)), Rank: max(v.Rank, -1), Status: v.Status, Node: printable(v.Node)}
	switch d.Reason {
	case reasonSucceeded, reasonWorkerFailed, reasonFatal, reasonMaxRestarts, reasonBackoffLimit, reasonDeadline, reasonFinished:
	default:
		d.Text = printable(v.Message)
	}
	if d.Status < 0 || d.Status > 255 {
		d.Status = errhint.Internal
	}
	switch v.Kind {
	case rendezvous.Restart:
		d.Verdict, d.Delay = restart, max(v.Delay, 0)
	case rendezvous.Reassemble:
		d.Verdict, d.Rank, d.Status = reassemble, -1, 0
	case rendezvous.Succeed:
		d.Verdict, d.Rank, d.Status, d.Linger = succeed, -1, 0, max(v.Linger, 0)
	case rendezvous.Fail:
		d.Verdict = fail
	default: // of a later version of ours: what it wants is not known, and to go on would be to guess
		d.Verdict, d.Rank, d.Status, d.Reason = fail, -1, errhint.Internal, reasonInternal
		d.Text = fmt.Sprintf("another node ended the round with %q, which this version of muster does not know", v.Kind)
	}
	return d
}

// message returns the decision as a sentence for people.
func (d decision) message() string {
	text := d.cause()
	if d.Text != "" {
		return text
	}
	switch d.Verdict {
	case restart:
		text += fmt.Sprintf("; restart %d", d.Restarts)
	case restartNode:
		text += fmt.Sprintf("; restart %d, on this node alone", d.Restarts)
	case restartWorker:
		text += fmt.Sprintf("; restart %d, of this worker alone", d.Restarts)
	default:
		return text
	}
	if d.Delay > 0 {
		text += fmt.Sprintf(" after %v", d.Delay.Round(time.Millisecond))
	}
	return text
}

// cause is the part of the message that says why, for those who say by themselves what is done about it.
func (d decision) cause() string {
	var text string
	switch {
	case d.Text != "":
		return d.Text
	case d.Rank >= 0:
		text = fmt.Sprintf("rank %d ended with status %d", d.Rank, d.Status)
	case d.Reason == reasonDeadline:
		text = "the deadline was reached"
	case d.Reason == reasonStopped:
		text = "muster was asked to stop"
	case d.Reason == reasonSucceeded || d.Reason == reasonFinished:
		text = "the workers succeeded"
	case d.Verdict == reassemble:
		text = "the nodes meet again"
	default:
		text = "workers failed"
	}
	switch d.Reason {
	case reasonFatal:
		text += ", which is fatal"
	case reasonMaxRestarts:
		text += ", and no restart is left"
	case reasonBackoffLimit:
		text += ", and the backoff limit is reached"
	default:
	}
	return text
}
