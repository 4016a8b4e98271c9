package launch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"al.essio.dev/pkg/shellescape"
	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"muster/internal/errhint"
	"muster/internal/printable"
	"muster/internal/wording"
	"muster/launch/control"
	"muster/launch/job"
	"muster/launch/policy"
	"muster/launch/report"
)

// scaling asks for another limit of the nodes of a round.
type scaling struct {
	nodes  int // 0: as many as the job allows
	text   string
	answer chan<- error
}

// scale has all nodes meet again with another number of them, if that is agreed: those that are too many leave.
func (a *Agent) scale(ctx context.Context, r scaling, lingers bool) (policy.Decision, error) {
	none := policy.Decision{Rank: -1}
	if lingers || a.meeting.decided() {
		r.answer <- errhint.Code(errors.New("cannot scale the job: it is decided, and about to end"), errhint.TryAgain)
		return none, nil
	}
	if need := len(serving(a.meeting.HostRank, a.meeting.LeadRank)); r.nodes > 0 && r.nodes < need {
		r.answer <- errhint.Code(errhint.With(errors.New(
			"cannot scale the job to 1 node now: one node serves its store, and another one coordinates"),
			"scale it to 2 nodes"), errhint.TryAgain)
		return none, nil
	}
	next := a.meeting.Orders
	next.Version++
	next.Nodes = r.nodes
	d, err := a.settle(ctx, policy.Decision{
		Verdict: policy.Reassemble, Reason: job.ReasonScaled, Rank: -1, Text: r.text, Orders: next,
	})
	switch v := a.meeting.verdict; { // this node may be one that leaves by it
	case err != nil:
		r.answer <- err
	case v == nil || v.Orders.Version != next.Version || v.Orders.Nodes != next.Nodes:
		r.answer <- errhint.Code(fmt.Errorf("the job is not scaled now: %s", d.Message()), errhint.TryAgain)
	default:
		r.answer <- nil
	}
	return d, err
}

// surplus is the decision of a node that is one too many by what was decided on the round, else d.
func (a *Agent) surplus(d policy.Decision) policy.Decision {
	most := d.Orders.Nodes
	if d.Verdict != policy.Reassemble || d.Reason != job.ReasonScaled || most == 0 ||
		stays(a.meeting.GroupRank, a.meeting.HostRank, a.meeting.LeadRank, most) {
		return d
	}
	return policy.Decision{
		Verdict: policy.Leave, Reason: job.ReasonSurplus, Rank: -1,
		Text: fmt.Sprintf("node %s (group rank %d) leaves the job, which goes on with %s: %s", a.Plan.Hostname, a.meeting.GroupRank,
			wording.Plural(most, "node"), d.Message()),
	}
}

// stays reports whether the node with a group rank is one of most that stay in the job: those with the lowest, but the
// ones that serve the store and coordinate in any case. There is room for these.
func stays(rank, host, lead, most int) bool {
	keep := serving(host, lead)
	if slices.Contains(keep, rank) {
		return true
	}
	before := 0 // of the others, those with a lower rank
	for r := range rank {
		if !slices.Contains(keep, r) {
			before++
		}
	}
	return before < most-len(keep)
}

// serving are the group ranks of the nodes that serve the store and coordinate.
func serving(host, lead int) (ranks []int) {
	for _, r := range []int{host, lead} {
		if r >= 0 && !slices.Contains(ranks, r) {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// fixedError is why a job of a fixed size is not scaled.
func fixedError(nodes job.Range) error {
	return errhint.With(errhint.Usagef("cannot scale the job: it has a fixed number of nodes, %d", nodes.Min),
		"--nnodes MIN:MAX makes a job elastic, and in a job file elasticPolicy or minNodes")
}

// scale has the job go on with so many nodes, and says what follows. starts says that those which are
// lacking come by themselves, and bring a higher limit along.
func (s *Steering) scale(ctx context.Context, by control.Peer, n int, starts bool) (string, error) {
	bounds := s.plan.Job.Nodes
	s.mu.Lock()
	phase, nodes, limit, mixed, away := s.status.Phase, s.status.Nodes, s.orders.Nodes, s.mixed, s.awayLocked()
	s.mu.Unlock()
	switch {
	case bounds.Min == bounds.Max:
		return "", fixedError(bounds)
	case n < bounds.Min || n > bounds.Max:
		return "", errhint.With(errhint.Usagef("cannot scale the job to %s: it was started with --nnodes %d:%d", wording.Plural(n, "node"),
			bounds.Min, bounds.Max), fmt.Sprintf("give a number from %d to %d; or start the job again with another --nnodes MIN:MAX, and "+
			"of a job file with other minReplicas or minNodes, and replicas", bounds.Min, bounds.Max))
	case mixed:
		return "", errhint.Usagef("cannot scale the job: agents of torchrun or DLRover take part, which know of no such thing")
	case slices.Contains(endPhases, phase):
		return "", errhint.Code(fmt.Errorf("cannot scale the job: it is decided, and about to end (%s)", phase), errhint.TryAgain)
	case away != nil:
		return "", away
	}
	if n < nodes || limit > 0 && n != limit && (!starts || n <= max(nodes, limit)) {
		r := scaling{nodes: n, text: fmt.Sprintf("%s has scaled the job to %s", by, wording.Plural(n, "node"))}
		if n == bounds.Max {
			r.nodes = 0
		}
		if err := s.sendScale(ctx, r); err != nil {
			return "", err
		}
	}
	switch {
	case n < nodes:
		return fmt.Sprintf("the job goes on with %s: of the others (%d, by the highest group ranks) each leaves with exit status 0",
			wording.Plural(n, "node"), nodes-n), nil
	case n == nodes && limit == 0 && n < bounds.Max:
		return fmt.Sprintf("the job has %s; up to %d may take part", wording.Plural(n, "node"), bounds.Max), nil
	case n == nodes:
		return "the job has " + wording.Plural(n, "node"), nil
	}
	most := n
	if limit == 0 { // a limit that is higher than what there is would stop the workers for nothing
		most = bounds.Max
	}
	if s.part {
		return "the job takes up to " + wording.Plural(most, "node"), nil
	}
	return fmt.Sprintf("the job has %s and takes up to %d: nobody here can start one; on a new machine call %s",
		wording.Plural(nodes, "node"), most, shellescape.QuoteCommand(job.ShownArgsBut(os.Args, s.plan.Job.Vars()))), nil
}

// sendScale hands a request to the loop that waits in a round.
func (s *Steering) sendScale(ctx context.Context, r scaling) error {
	answer := make(chan error, 1)
	r.answer = answer
	err := hand(ctx, s, s.scales, r, "scale the job", "it neither runs nor is paused", "muster status shows when it does")
	if err != nil {
		return err
	}
	return agreed(ctx, answer, "scaled")
}

// killKey is where the node with a group rank is told that it is to be lost.
func killKey(groupRank int) string { return "control/kill/" + strconv.Itoa(groupRank) }

// killPause is how long a node goes on that was told to be lost: who has asked is to have an answer.
const killPause = 200 * time.Millisecond

// listenKill waits for word of another node that this one is to be lost.
func (s *Steering) listenKill(ctx context.Context, b roundBoard) {
	var why []byte
	take := func(text []byte) bool { why = text; return true }
	if awaitNote(ctx, b.Board, killKey(b.groupRank), take) {
		s.die(printable.Output(string(why)))
	}
}

// die ends this process as the kernel ends one: nothing is said to other nodes, and the guardian ends the workers.
func (s *Steering) die(text string) { Die(text, s.log) }

// Die ends this process as the kernel ends one, after a moment.
func Die(text string, log zerolog.Logger) {
	log.Error().Str("reason", cmp.Or(text, "another node was asked to")).Msg("this node is lost on purpose: muster kills itself")
	time.AfterFunc(killPause, func() { _ = unix.Kill(os.Getpid(), unix.SIGKILL) })
}

// killNode has a node of the round be lost, named by its group rank or its name, and says what follows.
func (s *Steering) killNode(ctx context.Context, by control.Peer, name string) (string, error) {
	own := s.Status()
	s.mu.Lock()
	b := s.board
	s.mu.Unlock()
	if own.Nodes <= 1 && s.plan.Job.Alone() {
		return "", errhint.With(errhint.Usagef("cannot rehearse the loss of a node: the job has one node, and would end"),
			"muster stop ends a job")
	}
	if b.Board == nil || len(own.Tasks) == 0 {
		return "", errhint.Code(fmt.Errorf("cannot reach the nodes now: they have no round together (%s)", own.Phase), errhint.TryAgain)
	}
	names := make([]string, own.Nodes)
	for i, t := range s.world(ctx, own).Tasks {
		if i < len(names) {
			names[i] = t.Node
		}
	}
	rank, err := whichNode(name, names)
	if err != nil {
		return "", err
	}
	text := fmt.Sprintf("%s has asked for the loss of %s (group rank %d)", by, wording.Node(names[rank]), rank)
	s.log.Warn().Msg(text)
	if rank == own.GroupRank {
		s.die(text)
	} else {
		ctx, cancel := context.WithTimeout(ctx, tellTime)
		defer cancel()
		if err := ask(ctx, b.Board, killKey(rank), []byte(text)); err != nil {
			return "", errhint.Code(fmt.Errorf("cannot tell %s: %w", wording.Node(names[rank]), err), errhint.TryAgain)
		}
	}
	return fmt.Sprintf("%s (group rank %d) kills itself, as if its machine were lost; %s",
		wording.Node(names[rank]), rank, afterLoss(&s.plan.Job, &own)), nil
}

// afterLoss says what follows where a job that stands so loses a node, as far as its rules alone say it.
func afterLoss(j *job.Job, d *report.Status) string {
	lost, rules := d.Replacements+1, &j.Restart
	all := lost + d.RestartCount
	switch {
	case rules.ReplaceLimit >= 0 && lost > rules.ReplaceLimit, rules.LossLimit > 0 && all > rules.LossLimit,
		rules.BackoffLimit >= 0 && all > rules.BackoffLimit:
		return fmt.Sprintf("the job ends by its limit of restarts, with status %d", errhint.TryAgain)
	case d.Nodes <= 1:
		return "it is the last one: the job goes on only where another node takes its place"
	case d.Nodes-1 < j.Nodes.Min:
		return fmt.Sprintf("a round needs %s: a node that waits or comes takes its place, else the job ends with status %d",
			wording.Plural(j.Nodes.Min, "node"), errhint.TryAgain)
	case d.Nodes == 2: // one node alone does not decide that a store is lost
		return "the other one goes on by its rules, unless the lost one hosted the store"
	}
	return "the others go on by their rules"
}

// whichNode finds the group rank of a node by that, or by its name.
func whichNode(name string, names []string) (int, error) {
	var found []string
	at := -1
	for i, n := range names {
		if n == name {
			at = i
			found = append(found, strconv.Itoa(i))
		}
	}
	if len(found) > 1 {
		return 0, errhint.Usagef("%d nodes are called %s: name one of them by its group rank, %v", len(found), name, found)
	}
	if at >= 0 {
		return at, nil
	}
	if n, err := strconv.Atoi(name); err == nil && n >= 0 && n < len(names) {
		return n, nil
	}
	return 0, errhint.With(errhint.Usagef("the job has no node %q: its nodes have the group ranks 0 to %d", name, len(names)-1),
		"they are called "+printable.Line(strings.Join(names, ", "), 256)+"; group ranks count the replicas of a job file "+
			"as muster explain lists them")
}
