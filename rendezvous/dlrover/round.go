package dlrover

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"muster/internal/errhint"
	"muster/rendezvous"
)

const (
	// lookEvery is how often the master is asked whether nodes wait for another round.
	lookEvery = time.Second
	// lostAfter is how long a node may be silent; the nodes say beats times as often to each other that they live.
	lostAfter = 12 * time.Second
	beats     = 6
	// barrierPatience is how long a node whose workers have succeeded waits for those of DLRover's agents, as these do.
	barrierPatience = 15 * time.Minute
	// goodbye is how long the store of a round is there for others at the end.
	goodbye = 30 * time.Second
)

// round is a round of the master, and the Exchange of its nodes.
type round struct {
	h      *Handler
	world  world
	me     int // group rank
	mixed  bool
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	store  Conn   // of a round of several nodes that are all ours; nil: each decides for itself
	prefix string // of its keys

	verdict chan rendezvous.Verdict
	tallied chan rendezvous.Tally
	parted  bool        // this node ends, and the others go on without it: nobody reports to it
	silent  atomic.Bool // the node that serves the store was silent for too long
}

var _ rendezvous.Exchange = (*round)(nil)

func (r *round) key(name string) string { return r.prefix + name }

func (r *round) keys(name string) []string {
	all := make([]string, len(r.world.nodes))
	for rank := range all {
		all[rank] = r.key(name + "/" + strconv.Itoa(rank))
	}
	return all
}

func (r *round) own(name string) string { return r.key(name + "/" + strconv.Itoa(r.me)) }

// first reports whether this node does what one of them has to do.
func (r *round) first() bool { return r.store == nil || r.me == 0 }

// watch begins what runs beside the workers of the round.
func (r *round) watch() {
	if r.first() {
		r.wg.Go(r.watchMaster)
	}
	if r.store != nil {
		r.wg.Go(r.awaitVerdict)
		r.wg.Go(r.beat)
	}
	switch {
	case r.store == nil:
	case r.me == 0:
		r.wg.Go(r.watchNodes)
	default:
		r.wg.Go(r.watchHost)
	}
}

// end ends all of that. The round is void afterwards.
func (r *round) end() {
	r.cancel()
	r.wg.Wait()
	if r.store != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.ctx), connectTimeout)
		defer cancel()
		_ = r.store.Set(ctx, r.own("left"), []byte("1")) // for who has parted; the store may have gone
		_ = r.store.Close()                              // a store that has gone already is no news
	}
}

// learn takes in a verdict that counts.
func (r *round) learn(v rendezvous.Verdict) {
	h := r.h
	h.mu.Lock()
	defer h.mu.Unlock()
	h.orders.Learn(v.Orders)
	switch v.Kind {
	case rendezvous.Restart:
		h.restarts = max(h.restarts, v.Restarts)
	case rendezvous.Succeed, rendezvous.Fail:
		h.outcome = v.Kind
	case rendezvous.Reassemble:
	}
}

// deliver tells the agent a verdict.
func (r *round) deliver(v rendezvous.Verdict) {
	v = r.instead(v)
	r.learn(v)
	select {
	case r.verdict <- v:
	case <-r.ctx.Done():
	}
}

// demand ends the round by a verdict of the handler's own.
func (r *round) demand(v rendezvous.Verdict) {
	if r.store == nil {
		r.deliver(v)
		return
	}
	if _, err := r.offer(r.ctx, v); err != nil && r.ctx.Err() == nil {
		r.h.cfg.Log.Warn().Err(err).Msg("the other nodes were not told how the round ends")
	}
}

// leaveOn ends this node's part by a verdict of its own, Handler.leaving; the others meet without it.
func (r *round) leaveOn(v rendezvous.Verdict) {
	if r.store == nil {
		r.deliver(v)
		return
	}
	r.demand(withoutMe(v)) // awaitVerdict hears of that, and says instead what holds here
}

// instead is what a verdict means here: a node that has to leave does not meet the others again.
func (r *round) instead(v rendezvous.Verdict) rendezvous.Verdict {
	if own := r.h.leavesOn(); own != nil && v.Kind != rendezvous.Succeed && v.Kind != rendezvous.Fail {
		return *own
	}
	return v
}

// withoutMe is what the failure of one node means to the others: the master has its pod replaced.
func withoutMe(v rendezvous.Verdict) rendezvous.Verdict {
	why := v.Message
	if why == "" {
		why = v.Reason
	}
	return rendezvous.Verdict{
		Kind: rendezvous.Reassemble, Reason: "NodeReplaced", Rank: -1, Node: v.Node,
		Message: fmt.Sprintf("node %s has ended, and DLRover's master replaces it: %s", v.Node, why),
	}
}

// watchMaster notices that nodes wait for another round.
func (r *round) watchMaster() {
	for sleep(r.ctx, lookEvery) == nil {
		n, err := r.h.othersWait(r.ctx)
		if err != nil || n <= 0 { // who does not hear the master goes on, and so does who hears that the job is stopping
			continue
		}
		r.demand(rendezvous.Verdict{
			Kind: rendezvous.Reassemble, Reason: "PeersChanged", Rank: -1,
			Message: fmt.Sprintf("%d nodes wait at DLRover's master for another round", n),
		})
		return
	}
}

// lost is the verdict where the store of the round has gone.
func (r *round) lost(err error) rendezvous.Verdict {
	if r.silent.Load() {
		err = fmt.Errorf("it was silent for %v", r.h.cfg.LostAfter)
	}
	return rendezvous.Verdict{
		Kind: rendezvous.Reassemble, Reason: "NodeLost", Rank: -1,
		Message: fmt.Sprintf("the node with group rank 0, which serves the store of the round, is lost: %v", err),
	}
}

// awaitVerdict hears how the round ends from whichever node says it first.
func (r *round) awaitVerdict() {
	text, err := r.store.Get(r.ctx, r.key("verdict"))
	var v rendezvous.Verdict
	switch {
	case r.ctx.Err() != nil:
		return
	case err == nil:
		if err = json.Unmarshal(text, &v); err != nil {
			err = fmt.Errorf("its verdict cannot be read: %w", err)
		}
	}
	if err != nil {
		v = r.lost(err)
	}
	r.seen()
	r.deliver(v)
}

// seen tells the node that serves the store that this one knows how the round ends.
func (r *round) seen() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.ctx), connectTimeout)
	defer cancel()
	_ = r.store.Set(ctx, r.own("seen"), []byte("1")) // if not, that one waits in vain for a while
}

// seeOff keeps the store of the round until all others know how it has ended.
func (r *round) seeOff() {
	r.h.mu.Lock()
	over := r.h.outcome != ""
	r.h.mu.Unlock()
	if r.store == nil || r.me != 0 || !over {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.ctx), goodbye)
	defer cancel()
	if _, err := r.peek(ctx, r.key("verdict")); err != nil {
		return // nobody was told anything
	}
	if err := r.store.Wait(ctx, r.keys("seen")...); err != nil {
		r.h.cfg.Log.Warn().Err(err).Msg("some nodes may not know how the job has ended")
	}
}

// errNothing says that a key is not there.
var errNothing = errors.New("there is no such key")

// peek returns the value of a key without waiting for it.
func (r *round) peek(ctx context.Context, key string) ([]byte, error) {
	probe := []byte("\x00is anything here?")
	text, err := r.store.CompareAndSet(ctx, key, probe, probe)
	if err == nil && bytes.Equal(text, probe) {
		err = errNothing
	}
	return text, err
}

// offer proposes a verdict to all and returns the one that stands.
func (r *round) offer(ctx context.Context, v rendezvous.Verdict) (rendezvous.Verdict, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return v, err
	}
	stands, err := r.store.CompareAndSet(ctx, r.key("verdict"), nil, text)
	if err != nil {
		return v, err
	}
	var counts rendezvous.Verdict
	if err := json.Unmarshal(stands, &counts); err != nil {
		return r.lost(fmt.Errorf("its verdict cannot be read: %w", err)), nil
	}
	return counts, nil
}

// Verdict implements rendezvous.Exchange.
func (r *round) Verdict() <-chan rendezvous.Verdict { return r.verdict }

// Propose implements rendezvous.Exchange. A node that fails ends by itself, as an agent of DLRover does: the master has
// it replaced, and the others meet again.
func (r *round) Propose(ctx context.Context, v rendezvous.Verdict) (rendezvous.Verdict, error) {
	if v.Node == "" {
		v.Node = r.h.cfg.Node
	}
	if v.Rank >= 0 && (v.Kind == rendezvous.Restart || v.Kind == rendezvous.Fail) {
		r.tellFailure(ctx, v)
	}
	if r.store == nil {
		v = r.instead(v)
		r.learn(v)
		return v, nil
	}
	said, alone := v, v.Kind == rendezvous.Fail && v.Status != errhint.Deadline
	if alone {
		said = withoutMe(v)
	}
	counts, err := r.offer(ctx, said)
	switch {
	case err != nil && ctx.Err() == nil && errors.Is(err, rendezvous.ErrStoreClosed) && !alone:
		counts = r.lost(err)
	case err != nil && alone && ctx.Err() == nil:
		counts, r.parted = v, true // who ends needs nobody for that
	case err != nil:
		return v, fmt.Errorf("cannot propose how round %d ends: %w", r.world.round-1, err)
	case alone && counts == said:
		counts, r.parted = v, true
	}
	if own := r.instead(counts); own != counts {
		counts, r.parted = own, true
	}
	r.learn(counts)
	r.seen() //nolint:contextcheck // the others hear of it also where ctx has ended
	if r.parted {
		r.wg.Go(r.part)
	}
	return counts, nil
}

// part ends what this node, which ends alone, still shares with the others, once all of them have left the round:
// nobody answers there any more.
func (r *round) part() {
	others := r.keys("left")
	if r.store.Wait(r.ctx, slices.Delete(others, r.me, r.me+1)...) == nil {
		_ = r.store.Close() // whoever waits there hears of that
	}
}

// tellFailure tells the master of a worker that has failed.
func (r *round) tellFailure(ctx context.Context, v rendezvous.Verdict) {
	ctx, cancel := context.WithTimeout(ctx, exitPatience)
	defer cancel()
	base := 0
	for _, p := range r.world.nodes[:r.me] {
		base += p.workers
	}
	text, err := json.Marshal(map[string]any{strconv.Itoa(v.Rank): map[string]any{
		"local_rank": max(v.Rank-base, 0), "exitcode": v.Status, "message": v.Message, "datetime": time.Now().Format(time.DateTime),
	}})
	r.h.mu.Lock()
	restarts := r.h.restarts
	r.h.mu.Unlock()
	if err == nil {
		err = r.h.c.failure(ctx, string(text), restarts, levelProcess)
	}
	if err != nil {
		r.h.cfg.Log.Warn().Err(err).Msg("the master was not told of the worker that has failed")
	}
}

// Tally implements rendezvous.Exchange.
func (r *round) Tally(ctx context.Context, t rendezvous.Tally) error {
	switch {
	case r.store == nil && (!r.mixed || t.Failed > 0):
		r.tallied <- t
		return nil
	case r.store == nil:
		r.wg.Go(func() {
			r.barrier()
			r.tallied <- t
		})
		return nil
	}
	text, err := json.Marshal(t)
	if err == nil {
		err = r.store.Set(ctx, r.own("ended"), text)
	}
	if err != nil {
		if ctx.Err() == nil && errors.Is(err, rendezvous.ErrStoreClosed) {
			return nil // the verdict is on its way
		}
		return fmt.Errorf("cannot count the workers of round %d: %w", r.world.round-1, err)
	}
	if r.me == 0 {
		r.wg.Go(r.sum)
	}
	return nil
}

// sum adds up what has become of the workers of all nodes.
func (r *round) sum() {
	texts, err := r.store.MultiGet(r.ctx, r.keys("ended")...)
	if err != nil {
		return // there is a verdict, or the store is lost
	}
	var sum rendezvous.Tally
	for _, text := range texts {
		var t rendezvous.Tally
		if json.Unmarshal(text, &t) != nil {
			return // nobody of ours has written that: the workers' time limits are left
		}
		sum.Ended += t.Ended
		sum.Failed += t.Failed
	}
	r.tallied <- sum
}

// barrier waits until the workers of all nodes have succeeded, as agents of DLRover wait for each other. Who waits in
// vain ends with success all the same.
func (r *round) barrier() {
	c, ctx := r.h.c, r.ctx
	n, err := c.addOne(ctx, torchKey(r.world.round, keyBarrier))
	if err == nil && n >= len(r.world.nodes) {
		err = c.insist(ctx, func(ctx context.Context) error {
			return c.set(ctx, torchKey(r.world.round, keyPassed), []byte("<val_ignored>"))
		})
	}
	for began := time.Now(); err == nil && time.Since(began) < barrierPatience; {
		passed, lookErr := c.lookUp(ctx, torchKey(r.world.round, keyPassed))
		if lookErr == nil && len(passed) > 0 {
			return
		}
		err = sleep(ctx, lookEvery)
	}
	if ctx.Err() == nil {
		r.h.cfg.Log.Warn().Err(err).Msg("the workers here have succeeded; whether those of DLRover's agents have is not known")
	}
}

// Tallied implements rendezvous.Exchange.
func (r *round) Tallied() <-chan rendezvous.Tally { return r.tallied }

// Report implements rendezvous.Exchange.
func (r *round) Report(ctx context.Context, report []byte) error {
	if r.store == nil {
		return nil
	}
	err := r.store.Set(ctx, r.own("report"), append([]byte{0}, report...)) // an empty value would be none
	if errors.Is(err, rendezvous.ErrStoreClosed) && ctx.Err() == nil {
		return nil
	}
	return err
}

// Reports implements rendezvous.Exchange.
func (r *round) Reports(ctx context.Context) (all [][]byte, err error) {
	if r.store == nil || r.parted {
		return nil, nil
	}
	_ = r.store.Wait(ctx, r.keys("report")...) // what is there is taken
	reading, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	for _, key := range r.keys("report") {
		text, err := r.peek(reading, key)
		if err != nil && !errors.Is(err, errNothing) {
			return all, nil // the store is lost, and with it what was said there
		}
		if err == nil && len(text) > 1 {
			all = append(all, text[1:])
		}
	}
	return all, nil
}

// Agree implements rendezvous.Exchange.
func (r *round) Agree(ctx context.Context, value []byte) ([]byte, error) {
	if r.store == nil {
		return value, nil
	}
	agreed, err := r.store.CompareAndSet(ctx, r.key("agreed"), nil, value)
	if err != nil {
		if errors.Is(err, rendezvous.ErrStoreClosed) && ctx.Err() == nil {
			return value, nil
		}
		return value, fmt.Errorf("cannot agree with the others: %w", err)
	}
	return agreed, nil
}

// Board implements rendezvous.Exchange.
func (r *round) Board() rendezvous.Board { return r.board() }

func (r *round) board() rendezvous.Board {
	if r.store == nil {
		return nil
	}
	return board{r}
}

// board is what the nodes of a round share.
type board struct{ r *round }

// Set implements rendezvous.Board.
func (b board) Set(ctx context.Context, key string, value []byte) error {
	return b.r.store.Set(ctx, b.r.key("board/"+key), value)
}

// Get implements rendezvous.Board.
func (b board) Get(ctx context.Context, key string) ([]byte, error) {
	return b.r.store.Get(ctx, b.r.key("board/"+key))
}
