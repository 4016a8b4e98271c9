package membership

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"muster/rendezvous"
)

// offer proposes a verdict and returns the one that counts.
func (r *round) offer(ctx context.Context, v rendezvous.Verdict) (rendezvous.Verdict, error) {
	key := r.key("verdict")
	if len(v.Message) > maxMessage {
		v.Message = v.Message[:maxMessage]
	}
	v.Exclude.Reason, v.Exclude.Node = clip(v.Exclude.Reason, maxMessage), clip(v.Exclude.Node, maxLabel)
	r.noted(key)
	var counts verdictRecord
	_, err := r.s.conn.claim(ctx, key, v, &counts)
	switch {
	case isUntrusted(err): // the others take it for the same
		return unreadable(err), nil
	case err != nil:
		return v, err
	}
	return counts.Verdict, nil
}

// calls returns a context for calls in this round: it ends with the session, too.
func (r *round) calls(ctx context.Context) (context.Context, context.CancelFunc) {
	return both(ctx, r.s.ctx)
}

// broken reports whether err comes from the loss of the store; the session then ends.
func (r *round) broken(err error) bool {
	if errors.Is(err, rendezvous.ErrStoreClosed) {
		r.s.lose(err)
	}
	return r.s.ctx.Err() != nil
}

var _ rendezvous.Exchange = (*round)(nil)

// Verdict implements rendezvous.Exchange.
func (r *round) Verdict() <-chan rendezvous.Verdict {
	return r.verdict
}

// Lease implements rendezvous.Handler.
func (h *Handler) Lease() <-chan time.Time {
	if h.round == nil || h.round.a.Agents < 2 && h.host == h.id { // without us there is no store
		return nil
	}
	return h.round.s.leases
}

// Propose implements rendezvous.Exchange.
func (r *round) Propose(ctx context.Context, v rendezvous.Verdict) (rendezvous.Verdict, error) {
	h := r.h
	both, cancel := r.calls(ctx)
	defer cancel()
	if v.Node == "" {
		v.Node = h.cfg.Node
	}
	if v.Kind == rendezvous.Reassemble && v.Reason == reasonNodeStopped && h.host == h.id && h.movable() {
		v.Reason = reasonHostStopped
	}
	counts, err := r.offer(both, v)
	if err == nil {
		stops := []string{reasonNodeStopped, reasonHostStopped, reasonJobStopped}
		counts, err = r.confirm(both, counts, slices.Contains(stops, v.Reason))
	}
	if err != nil {
		if r.broken(err) && ctx.Err() == nil {
			lost := r.lost()
			r.note(lost)
			return lost, nil
		}
		return v, fmt.Errorf("cannot propose how round %d ends: %w", r.a.Round, err)
	}
	r.note(counts)
	h.over = h.over || counts.Kind == rendezvous.Succeed || counts.Kind == rendezvous.Fail
	h.leaving = h.leaving || counts.Reason == reasonHostStopped && v.Reason == reasonHostStopped
	return counts, nil
}

// Tally implements rendezvous.Exchange. Each agent says what has become of its workers, and the first of them
// waits for all of them. In a round with agents of torchrun nobody is told the sum where nobody has failed: when the
// others' workers have succeeded, too, the coordinator proposes the end.
func (r *round) Tally(ctx context.Context, t rendezvous.Tally) error {
	both, cancel := r.calls(ctx)
	defer cancel()
	key, own := r.agentKey("ended", r.a.AgentRank), tallyRecord{t.Ended, t.Failed}
	if err := r.say(both, key, own); err != nil {
		if r.broken(err) && ctx.Err() == nil {
			return nil // the verdict is on its way
		}
		return fmt.Errorf("cannot count the workers of round %d: %w", r.a.Round, err)
	}
	r.insistOn(key, own)
	if r.a.AgentRank == 0 {
		r.wg.Go(r.tally)
	}
	return nil
}

// Tallied implements rendezvous.Exchange.
func (r *round) Tallied() <-chan rendezvous.Tally {
	return r.tallied
}

// tally adds up what has become of the workers of all agents.
func (r *round) tally() {
	var sum rendezvous.Tally
	err := r.s.conn.collect(r.running, r.agentKeys("ended"), r.pause(), func(i int, raw []byte) bool {
		var t tallyRecord
		if _, err := r.h.codec.open(r.agentKey("ended", i), raw, &t); err != nil {
			return false
		}
		sum.Ended += t.Ended
		sum.Failed += t.Failed
		return true
	})
	switch {
	case err != nil: // there is a verdict, or the store is lost, which will be said
	case r.a.Mixed && sum.Failed == 0:
		_ = r.say(r.running, r.key("passed"), noteRecord{})
		r.insistOn(r.key("passed"), noteRecord{})
	default:
		r.tallied <- sum
	}
}

// Report implements rendezvous.Exchange.
func (r *round) Report(ctx context.Context, report []byte) error {
	both, cancel := r.calls(ctx)
	defer cancel()
	if err := r.report(both, report); err != nil && (!r.broken(err) || ctx.Err() != nil) {
		return fmt.Errorf("cannot tell the others about failures in round %d: %w", r.a.Round, err)
	}
	return nil
}

// maxReports is how many agents' reports are read: where more have failed, the first ones tell why.
const maxReports = 64

// slotKey is the key of a report.
func (r *round) slotKey(slot int) string { return r.key("report/" + strconv.Itoa(slot)) }

// slots returns how many reports there may be.
func (r *round) slots() int { return min(r.a.Agents, maxReports) }

// report leaves a report in a slot that nobody else has taken, and says where it is. In a job of many agents most find
// the slots taken by those who were faster.
func (r *round) report(ctx context.Context, report []byte) error {
	slot := 0
	for try := 0; len(report) > 0 && slot == 0 && try < 2; try++ {
		n := (r.a.AgentRank+try*(1+r.a.AgentRank/maxReports))%r.slots() + 1
		key := r.slotKey(n)
		counts, err := r.s.conn.settle(ctx, key, report)
		if isUntrusted(err) {
			continue
		}
		if err != nil {
			return err
		}
		if bytes.Equal(counts, report) {
			r.noted(key)
			slot = n
		}
	}
	if r.collects() { // the round may be over here before all others have stopped
		r.s.wg.Go(r.collectReports)
	}
	return r.say(ctx, r.agentKey("stopped", r.a.AgentRank), stoppedRecord{slot})
}

// lostAgent is the agent rank of the node that was lost by the verdict on the round, noRank for none.
func (r *round) lostAgent() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.gone
}

// collects reports whether this agent is the first one that is left.
func (r *round) collects() bool {
	return r.a.AgentRank == 0 || r.a.AgentRank == 1 && r.lostAgent() == 0
}

// stoppedKeys are the keys under which the agents of the round say that they have stopped, by agent rank, but for the
// lost one.
func (r *round) stoppedKeys() []string {
	keys := r.agentKeys("stopped")
	if lost := r.lostAgent(); lost >= 0 && lost < len(keys) {
		keys = slices.Delete(keys, lost, lost+1)
	}
	return keys
}

// collectReports waits until every agent that is left has stopped, and says in which slots they have reported.
func (r *round) collectReports() {
	ctx, cancel := context.WithTimeout(r.s.ctx, r.h.cfg.CloseTimeout)
	defer cancel()
	var all reportedRecord
	keys := r.stoppedKeys()
	err := r.s.conn.collect(ctx, keys, r.pause(), func(i int, raw []byte) bool {
		var s stoppedRecord
		if _, err := r.h.codec.open(keys[i], raw, &s); err != nil {
			return false
		}
		if s.Slot > 0 && s.Slot <= r.slots() && !slices.Contains(all.Slots, s.Slot) {
			all.Slots = append(all.Slots, s.Slot)
		}
		return true
	})
	if err == nil {
		_ = r.say(ctx, r.key("reported"), all) // without it the others take what is there
	}
}

// Reports implements rendezvous.Exchange.
func (r *round) Reports(ctx context.Context) ([][]byte, error) {
	waiting, cancel := r.calls(ctx)
	defer cancel()
	var all reportedRecord
	soon, stop := context.WithTimeout(waiting, reportsSoon)
	defer stop()
	_, err := r.s.conn.await(soon, r.key("reported"), r.pause(), &all)
	if err != nil && waiting.Err() == nil {
		r.tellAwaited(waiting)
		_, err = r.s.conn.await(waiting, r.key("reported"), r.pause(), &all)
	}
	if err != nil { // without it we take what is there
		all.Slots = nil
		for slot := range r.slots() {
			all.Slots = append(all.Slots, slot+1)
		}
	}
	reading, enough := context.WithTimeout(r.s.ctx, time.Second)
	defer enough()
	keys := make([]string, len(all.Slots))
	for i, slot := range all.Slots {
		keys[i] = r.slotKey(slot)
	}
	values, _ := r.s.conn.current(reading, keys) //nolint:contextcheck // ctx may have ended, which is no reason to read nothing
	var reports [][]byte
	for i, value := range values {
		if value == nil {
			continue // or the store is lost, and with it what was said there
		}
		if report, _, err := r.h.codec.openBytes(keys[i], value); err == nil {
			reports = append(reports, report)
		}
	}
	return reports, nil
}

// reportsSoon is after how long it is said whose reports are waited for.
const reportsSoon = 3 * time.Second

// tellAwaited says which nodes have not said that their workers have ended.
func (r *round) tellAwaited(ctx context.Context) {
	if r.a.Agents > maxReports { // all would ask for all
		return
	}
	var roll rollRecord
	if _, err := r.s.conn.peek(ctx, r.h.keys.job("members"), &roll); err != nil || roll.id() != r.a.id() {
		return
	}
	said, err := r.s.conn.current(ctx, r.agentKeys("stopped"))
	if err != nil || len(roll.Members) != len(said) {
		return
	}
	var names []string
	for i, m := range roll.Members {
		if said[i] == nil && i != r.lostAgent() {
			names = append(names, m.String())
		}
	}
	if len(names) > 0 {
		r.h.log.Warn().Strs("nodes", names).Msg("waiting until the workers of other nodes have ended")
	}
}

// Agree implements rendezvous.Exchange.
func (r *round) Agree(ctx context.Context, value []byte) ([]byte, error) {
	both, cancel := r.calls(ctx)
	defer cancel()
	r.noted(r.key("agreed"))
	agreed, err := r.s.conn.settle(both, r.key("agreed"), value)
	if err != nil {
		if r.broken(err) && ctx.Err() == nil {
			return value, nil
		}
		return value, fmt.Errorf("cannot agree with the others: %w", err)
	}
	if agreed, err = r.settledOn(both, agreed); err != nil && !r.broken(err) {
		return value, fmt.Errorf("cannot agree with the others: %w", err)
	}
	return agreed, nil
}
