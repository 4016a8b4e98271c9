package launch

import (
	"context"
	"fmt"
	"slices"
	"time"

	"muster/internal/errhint"
	"muster/launch/control"
	"muster/launch/diagnose"
	"muster/launch/policy"
	"muster/rendezvous"
)

// A node that has to leave, though no check has found it unfit, does so in the next round, as one that a check finds:
// all nodes meet again, that one leaves with its status, and the others go on without it.

// canSpare reports whether the job may go on without one of the nodes of a round.
func (a *Agent) canSpare(r *rendezvous.Round) bool { return a.canSpareSome(r, 1) }

// canSpareSome is canSpare for so many nodes.
func (a *Agent) canSpareSome(r *rendezvous.Round, nodes int) bool {
	j := &a.Plan.Job
	if r.GroupWorldSize <= nodes || r.Board() == nil { // agents of torchrun know of no such thing
		return false
	}
	unit := max(j.Meeting.NodeUnit, 1)
	return (r.GroupWorldSize-nodes)/unit*unit >= j.Nodes.Min || j.Meeting.Spares >= r.Replacements+nodes
}

// toLeave is the node of a rank that has to leave the round, the zero value where the job cannot do without it.
func (a *Agent) toLeave(groupRank int, node string, status int, reason string) rendezvous.Expulsion {
	if !a.canSpare(&a.meeting.Round) {
		a.Log.Warn().Str("node", node).Str("reason", reason).Msg("the node is not excluded: too few nodes would be left")
		return rendezvous.Expulsion{}
	}
	return rendezvous.Expulsion{GroupRank: groupRank, Node: node, Status: status, Reason: reason}
}

// nodesCause are the kinds of hang that come from a node and not from the program.
var nodesCause = []diagnose.Kind{diagnose.Stopped, diagnose.Blocked}

// hungNode is the node that has to leave because of a hang: its workers hold up all others, and the reason lies in it.
// There is none where a node could not be looked at, which may be the reason itself. Workers in the kernel also read and
// write, each at its own time: the node is to blame only where others wait for them. One that waits for the files of
// another machine would wait for them on any node.
func (a *Agent) hungNode(v diagnose.Verdict, seen control.Looked) rendezvous.Expulsion {
	nodes := seen.Nodes
	if !slices.Contains(nodesCause, v.Kind) || len(v.Culprits) == 0 || len(seen.Missing) > 0 ||
		v.Kind == diagnose.Blocked && len(v.Victims) == 0 {
		return rendezvous.Expulsion{}
	}
	at := -1
	for i := range nodes {
		for _, r := range nodes[i].Ranks {
			switch {
			case !slices.Contains(v.Culprits, r.Rank):
			case at >= 0 && at != i, diagnose.Remote(&r):
				return rendezvous.Expulsion{} // no single node is to blame
			default:
				at = i
			}
		}
	}
	if at < 0 {
		return rendezvous.Expulsion{}
	}
	return a.toLeave(nodes[at].GroupRank, nodes[at].Node, errhint.Faulty, v.Sentence)
}

// failingNode is this node where it has to leave because all failures of a crash loop come from it.
func (a *Agent) failingNode(w *worker) rendezvous.Expulsion {
	rules := &a.Plan.Job.Restart
	if rules.CrashLoop == 0 || w.stopped || w.proc.Exit().Success() || !a.policy.InLoop() || a.loop.expelled || a.meeting.alone() ||
		!a.loop.always(a.Plan.Hostname, rules.CrashLoop) || !a.canSpare(&a.meeting.Round) || !a.uniqueName() {
		return rendezvous.Expulsion{}
	}
	return a.toLeave(a.meeting.GroupRank, a.Plan.Hostname, errhint.Faulty, fmt.Sprintf(
		"the last %d failures, which were in a crash loop, all came from this node", rules.CrashLoop+1))
}

// always reports whether the newest n failures came from one node.
func (c *crashLoop) always(node string, n int) bool {
	if len(c.failed) < n {
		return false
	}
	return !slices.ContainsFunc(c.failed[len(c.failed)-n:], func(f attempt) bool { return f.node != node })
}

// uniqueName reports whether no other node of the round has this one's name.
func (a *Agent) uniqueName() bool {
	names, same := a.Steering.nodeNames(context.Background(), a.Steering.Status()), 0 // it bounds itself
	for _, n := range names {
		if n == a.Plan.Hostname {
			same++
		}
	}
	return same == 1
}

// expels takes over which node has to leave, as the round before has decided, or has had to do and could not: another
// verdict than that one's leaving ended it.
func (m *meeting) expels(last *meeting) {
	e := last.expel
	over := func(v rendezvous.Verdict) bool { // it was waited for in vain, or has left
		return v.Reason == string(reasonUnfit) || v.Kind == rendezvous.Reassemble && v.Node == e.Node && v.Status == e.Status
	}
	if i := slices.IndexFunc(last.known, func(v rendezvous.Verdict) bool { return v.Exclude.Any() }); i >= 0 {
		e = last.known[i].Exclude
		m.expel, m.expelFrom, m.expelMe = e, last.GroupWorldSize, e.GroupRank == last.GroupRank
	} else if !slices.ContainsFunc(last.known, over) {
		m.expel, m.expelFrom, m.expelMe = e, last.expelFrom, last.expelMe
	}
}

// hasGone reports whether the node that has to leave did not come into the round: the kernel keeps its workers, and its
// muster has ended. Another node may have its place, and others may have gone, too, so that names tell it, where each
// node has one of its own.
func (a *Agent) hasGone(ctx context.Context) bool {
	m := a.meeting
	if m.expelMe {
		return false
	}
	a.Steering.mu.Lock()
	b := a.Steering.board
	a.Steering.mu.Unlock()
	known := b.Board != nil && m.expel.Node != a.Plan.Hostname
	if known {
		for i, h := range hearAll(ctx, b) {
			switch {
			case i == b.groupRank:
			case h == nil:
				known = false
			case h.Status.Tasks[0].Node == m.expel.Node:
				return false
			}
		}
	}
	return known || m.GroupWorldSize < m.expelFrom
}

// tellExpelled has the job remember a node that had to leave, and tells who wants to hear of it.
func (a *Agent) tellExpelled(ctx context.Context, e rendezvous.Expulsion) {
	leads := a.meeting.GroupRank == 0
	a.loop.expelled = true
	a.slow.gone(e)
	a.exclude(ctx, []rendezvous.Exclusion{{Node: e.Node, Reason: e.Reason}}, leads)
	if leads {
		a.tellFault(ctx, NodeFault{Node: e.Node, Reason: e.Reason, Status: e.Status})
	}
}

// expel does what a round before has decided on one of its nodes. It returns nothing where none has to leave.
func (a *Agent) expel(ctx context.Context) *policy.Decision {
	m := a.meeting
	e := m.expel
	if !e.Any() {
		return nil
	}
	if a.hasGone(ctx) {
		m.expel = rendezvous.Expulsion{}
		a.tellExpelled(ctx, e)
		return nil
	}
	if !a.canSpare(&m.Round) {
		m.expel = rendezvous.Expulsion{}
		if m.GroupRank == 0 {
			a.Log.Warn().Str("node", e.Node).Str("reason", e.Reason).Msg("the node is not excluded: too few nodes would be left")
		}
		return nil
	}
	m.expelFrom = m.GroupWorldSize
	out := CheckOutcome{
		Again: true, Message: fmt.Sprintf("node %s has to leave: %s", e.Node, e.Reason),
		Excluded: []rendezvous.Exclusion{{Node: e.Node, Reason: e.Reason}},
	}
	if m.expelMe {
		out.Status = e.Status
	}
	d := afterCheck(out)
	if d.Verdict == policy.Leave {
		a.unfit = d
	}
	m.checked = true
	a.tellExpelled(ctx, e)
	a.Steering.checked(out, d, nil, time.Duration(0))
	return d
}
