package membership

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"muster/internal/errhint"
	"muster/rendezvous"
)

// round is the one that an agent takes part in.
type round struct {
	h       *Handler
	a       assignment
	s       *session
	verdict chan rendezvous.Verdict
	tallied chan rendezvous.Tally
	running context.Context // ends with the round
	leader  string          // agent id of the coordinator
	// decision is the coordinator's where this agent has the leadership, else nil.
	decision *decision
	strayed  context.Context // ends before, where the round is not the coordinator's any more
	end      context.CancelFunc
	exited   chan struct{}      // closed when attendExit has returned; nil where all agents are ours
	dismiss  context.CancelFunc // ends attendExit
	passed   bool               // everybody has entered the exit barrier; to be read when exited is closed
	wg       sync.WaitGroup
	final    bool // the verdict ended the job; to be read after leave
	cut      bool // the store was lost before anybody's verdict was heard; to be read after leave
	// handover says that the host of the store has announced that it leaves; to be read after leave.
	handover bool
	// garbled says that the round has ended soon because nobody of this job has written what stood for the verdict or
	// for heartbeats; to be read after leave.
	garbled bool
	began   time.Time
	// restarts is how many restarts the job has had by the verdict that was heard; to be read after leave.
	restarts int
	// orders are what holds by the verdict that was heard; to be read after leave.
	orders rendezvous.Orders
	gone   int // agent rank of the node that was lost by that verdict, noRank for none

	mu    sync.Mutex
	heard bool              // a verdict has been noted
	wrote map[string]bool   // keys that this agent has written for the round
	kept  map[string][]byte // what is written again where it is gone: the newest of each key
}

// newRound begins to wait for the verdict.
func newRound(h *Handler, a assignment) *round {
	r := &round{
		h: h, a: a, s: h.session, verdict: make(chan rendezvous.Verdict, 1), tallied: make(chan rendezvous.Tally, 1),
		wrote: map[string]bool{}, began: time.Now(), gone: noRank,
	}
	r.running, r.end = context.WithCancel(r.s.ctx)
	if r.leader = r.s.ledBy(); r.leader == h.id && h.coord != nil {
		r.decision = h.coord.decisionOn(a.id())
	}
	r.strayed = r.s.enter(r.running, a, h.asked)
	attending, dismiss := context.WithCancel(context.WithoutCancel(r.running)) // it outlives the session
	r.dismiss = dismiss
	if at := h.cfg.At; len(a.Exit) > 0 && at != "" {
		r.exited = make(chan struct{})
		r.wg.Go(func() { r.attendExit(attending, at) })
	}
	r.wg.Go(func() {
		if v, ok := r.await(r.running); ok {
			if r.note(v); v.Kind == rendezvous.Succeed || v.Kind == rendezvous.Fail {
				r.s.wg.Go(r.settle)
			}
			r.verdict <- v
		}
		r.end()
	})
	return r
}

// note keeps what the first verdict that is heard means for the next round. The watch hears it, and so does who
// proposes, who may have left the round before the watch has come to it.
func (r *round) note(v rendezvous.Verdict) {
	h := r.h
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.heard {
		return
	}
	r.heard = true
	r.final = v.Kind == rendezvous.Succeed || v.Kind == rendezvous.Fail
	if v.Kind == rendezvous.Restart { // a coordinator that is lost now may not have heard it
		r.restarts = v.Restarts
	}
	r.orders = v.Orders
	if !r.a.Mixed { // else it is not known which of ours has that rank
		r.gone = v.Lost - 1
	}
	r.cut = v.Reason == reasonStoreLost
	r.garbled = isDisturbance(v.Reason) && time.Since(r.began) <= soon*h.cfg.deadAfter()
	r.handover = v.Reason == reasonHostStopped && h.movable() && h.host != h.id
}

// settle ends the leases of a job that is decided, once everybody has heard that: those who have not may go on without
// us.
func (r *round) settle() {
	ctx, all := r.s.ctx, r.key("allheard")
	err := r.say(ctx, r.agentKey("heard", r.a.AgentRank), noteRecord{})
	if err == nil && r.a.AgentRank == 0 {
		err = r.s.conn.collect(ctx, r.agentKeys("heard"), r.pause(), func(i int, raw []byte) bool {
			_, err := r.h.codec.open(r.agentKey("heard", i), raw, &noteRecord{})
			return err == nil
		})
		if err == nil {
			err = r.say(ctx, all, noteRecord{})
		}
	} else if err == nil {
		_, err = r.s.conn.await(ctx, all, r.pause(), &noteRecord{})
	}
	if err == nil {
		r.s.settled()
	}
}

// say writes a record of this round.
func (r *round) say(ctx context.Context, key string, v any) error {
	r.noted(key)
	return r.s.conn.set(ctx, key, v)
}

// noted takes in that this agent has written under key, and deletes it when nobody reads it any more.
func (r *round) noted(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wrote[key] = true
}

// mostLost is how often in a row a record may be gone that was written again before.
const mostLost = 5

// insistOn writes a record of this round again where it is gone, until the round ends: nobody may wait for ever because
// it was taken away. Where it is gone each time, the job ends: what this node says is not heard.
func (r *round) insistOn(key string, v any) {
	r.insist(key, r.h.codec.seal(key, v), 5*r.h.cfg.deadAfter(), 0)
}

// insist is insistOn for a sealed value, that looks so many times, 0 for no end, with a pause before each. The value
// that is insisted on last is to stand under the key: whoever changes it insists before it writes.
func (r *round) insist(key string, own []byte, pause time.Duration, looks int) {
	r.mu.Lock()
	if r.kept == nil {
		r.kept = map[string][]byte{}
	}
	_, looking := r.kept[key]
	r.kept[key] = own
	r.mu.Unlock()
	if looking {
		return
	}
	changed := func() bool { // own is the newest then
		r.mu.Lock()
		defer r.mu.Unlock()
		before := own
		own = r.kept[key]
		return !bytes.Equal(before, own)
	}
	r.wg.Go(func() {
		tick := time.NewTicker(pause)
		defer tick.Stop()
		for lost, n := 0, 0; ; n++ {
			select {
			case <-tick.C:
			case <-r.running.Done():
				return
			}
			if changed() {
				lost, n = 0, 0
			}
			if looks != 0 && n >= looks {
				r.mu.Lock()
				if bytes.Equal(r.kept[key], own) {
					delete(r.kept, key)
					r.mu.Unlock()
					return
				}
				r.mu.Unlock()
			}
			stands, err := r.s.conn.stands(r.running, key, own)
			if err == nil && !stands && !changed() {
				lost++
				err = r.s.conn.setSealed(r.running, key, own)
				for err == nil && changed() { // that may have replaced what was written meanwhile
					err = r.s.conn.setSealed(r.running, key, own)
				}
			} else if err == nil {
				lost = 0
			}
			if err == nil && lost >= mostLost {
				_, _ = r.offer(r.running, r.recordsLost()) // the loss of the store is met elsewhere
				return
			}
		}
	})
}

// written returns what this agent has written for the round.
func (r *round) written() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Keys(r.wrote))
}

// tidy deletes what this agent has written for the round before the last one: nobody reads it any more.
func (h *Handler) tidy(s *session, r *round) {
	old := h.stale[0]
	h.stale[0], h.stale[1] = h.stale[1], r
	if old == nil || old.s != s { // that store is lost
		return
	}
	keys := old.written()
	s.wg.Go(func() { _ = s.conn.remove(s.ctx, keys...) }) // where it fails the store is lost
}

// pause is how long a round waits before it looks again at what nobody of this job can have written.
func (r *round) pause() time.Duration { return r.h.cfg.lookEvery() }

// leave ends the wait for the verdict.
func (r *round) leave() {
	r.end()
	r.dismiss()
	r.wg.Wait()
}

func (r *round) key(name string) string { return r.h.keys.round(r.a.id(), name) }
func (r *round) agentKey(name string, agentRank int) string {
	return r.h.keys.agentKey(r.a.id(), name, agentRank)
}

// agentKeys are the keys under which the agents of the round say something.
func (r *round) agentKeys(name string) []string {
	keys := make([]string, r.a.Agents)
	for i := range keys {
		keys[i] = r.agentKey(name, i)
	}
	return keys
}

// await waits for the verdict. Where the store or the coordinator is lost first, it is to meet again.
func (r *round) await(ctx context.Context) (rendezvous.Verdict, bool) {
	leadership := r.s.leadership(r.h.term.term)
	for {
		waiting, cancel := both(ctx, leadership)
		waiting, stop := both(waiting, r.strayed)
		v, err := r.decided(waiting)
		stop()
		cancel()
		switch {
		case err == nil:
			return v, true
		case r.s.ctx.Err() == nil && errors.Is(err, rendezvous.ErrStoreClosed):
			r.s.lose(err)
			return r.lost(), true
		case r.s.ctx.Err() != nil:
			_, isLost := errors.AsType[*lostError](r.s.cause())
			return r.lost(), isLost
		case ctx.Err() != nil:
			return rendezvous.Verdict{}, false
		case errors.Is(r.s.strays(), errStrayed): // what we could offer would not come to count
			return r.roundOver(), true
		case errors.Is(r.s.strays(), errNoAnswer):
			return r.lost(), true
		case r.strayed.Err() != nil:
			v := r.lossBy(r.s.strays(), "is not heard of")
			offering, cancel := context.WithTimeout(ctx, r.h.cfg.fence()/2)
			counts, err := r.offer(offering, v)
			cancel()
			if err == nil {
				v = counts
			}
			return v, true
		case leadership.Err() != nil:
			// Whoever follows as coordinator may say it, too: the first one counts.
			v := r.lossBy(context.Cause(leadership), "is lost") //nolint:contextcheck // only its cause
			if v, err := r.offer(ctx, v); err == nil {
				return v, true
			}
		}
		select { // the store refuses: it may not for ever
		case <-time.After(r.h.cfg.beatEvery()):
		case <-ctx.Done():
		}
	}
}

// lossBy is the verdict on the round where the coordinator is not heard of, or does not hear this node: that is no lost
// node where cause says so. Whoever has the leadership then may not wait for us. lost is what has become of its node.
func (r *round) lossBy(cause error, lost string) rendezvous.Verdict {
	v := rendezvous.Verdict{Kind: rendezvous.Reassemble, Rank: -1, Node: r.h.cfg.Node, Grace: r.h.cfg.fence()}
	node := "the node of the coordinator"
	if lead := r.a.LeadNode; lead != (nodeID{}) {
		node = "node " + lead.String() + ", which coordinates,"
	}
	switch {
	case errors.Is(cause, errUnheard):
		v.Reason, v.Message = reasonUnheard, "the coordinator hears nothing of node "+r.h.cfg.Node+", which hears the coordinator"
	case errors.Is(cause, errLeft):
		v.Reason, v.Message, v.Subject = reasonNodeLost, node+" has left", r.a.LeadNode.Host
	case errors.Is(cause, errAnew):
		v.Reason, v.Message = reasonAnew, errAnew.Error()
	case errors.Is(cause, errGarbled):
		v.Reason, v.Message = reasonBeatsGarbled, errGarbled.Error()+"; "+foreignHint
	default:
		v = r.h.lossOf(node+" "+lost, r.a, r.a.LeadRank)
		v.Subject = r.a.LeadNode.Host
	}
	return v
}

// The reasons of a verdict of an agent that was told to stop: as it proposes it, where it hosts the store, and for the whole
// job.
const (
	reasonNodeStopped = "NodeStopped"
	reasonHostStopped = "HostStopped"
	reasonJobStopped  = "StopRequested"
)

// reasonStoreLost is the reason of a verdict that this agent has found alone.
const reasonStoreLost = "StoreLost"

// reasonRoundOver is the reason of a verdict of an agent whose coordinator has ended the round.
const reasonRoundOver = "RoundOver"

// attendExit waits until everybody has entered the exit barrier of a round with agents of torchrun, for which there is
// no verdict in time where one of those hosts the store: it takes that with it at once. The answer comes before the end
// of the connection, and by one that nothing else happens to.
func (r *round) attendExit(ctx context.Context, at string) {
	defer close(r.exited)
	conn, err := r.h.cfg.Dial(ctx, at)
	for err != nil && ctx.Err() == nil { // the store may be busy
		select {
		case <-time.After(r.h.cfg.beatEvery()):
			conn, err = r.h.cfg.Dial(ctx, at)
		case <-ctx.Done():
		}
	}
	if err != nil {
		return // the verdict is all that we hear
	}
	r.passed = conn.Wait(ctx, r.a.Exit...) == nil
	_ = conn.Close()
}

// exitGrace is how long the answer of a store that is lost may still take.
const exitGrace = time.Second

// hasPassed reports whether the store is lost because nobody needs it any more.
func (r *round) hasPassed() bool {
	if r.exited == nil {
		return false
	}
	select {
	case <-r.exited:
		return r.passed
	case <-time.After(exitGrace):
		return false
	}
}

// lost is the verdict when the store is out of reach.
func (r *round) lost() rendezvous.Verdict {
	if r.hasPassed() {
		return succeeded()
	}
	v := rendezvous.Verdict{Kind: rendezvous.Reassemble, Reason: reasonStoreLost, Rank: -1, Message: r.s.where() + " does not answer"}
	if cause := context.Cause(r.s.ctx); cause != nil {
		v.Message = cause.Error()
	}
	v.Grace = r.h.cfg.fence() // the others may go on without this node
	return v
}

// succeeded is the verdict on a round with agents of torchrun whose workers have all succeeded.
func succeeded() rendezvous.Verdict {
	return rendezvous.Verdict{Kind: rendezvous.Succeed, Reason: "WorkersSucceeded", Rank: -1, Message: "the workers succeeded"}
}

// unreadable is what every agent takes for the verdict where nobody of this job can have written what stands there.
func unreadable(err error) rendezvous.Verdict {
	return rendezvous.Verdict{Kind: rendezvous.Reassemble, Reason: reasonGarbled, Rank: -1, Message: err.Error()}
}

// reasonGarbled is the reason of what every agent takes for the verdict where it cannot be read.
const reasonGarbled = "VerdictGarbled"

// isDisturbance reports whether a round has ended because something changes what agents write, or keeps it from others.
func isDisturbance(reason string) bool {
	return reason == reasonGarbled || reason == reasonBeatsGarbled || reason == reasonUnheard
}

// mostGarbled is how many rounds in a row may end so, soon after they have begun: in no more than soon times as long as
// a node may be silent. What disturbs the network once in a while is no reason to give up.
const (
	mostGarbled = 10
	soon        = 10
)

// garbled returns an error where too many rounds in a row have ended so.
func (h *Handler) garbled() error {
	if h.round == nil {
		return nil
	}
	if h.garbles++; !h.round.garbled {
		h.garbles = 0
	}
	if h.garbles < mostGarbled {
		return nil
	}
	err := fmt.Errorf("cannot go on: the last %d rounds have ended because words of this job's agents did not arrive, or others stood in "+
		"their place", h.garbles)
	return errhint.Code(errhint.With(err, foreignHint), errhint.TryAgain)
}
