package rollcall

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"muster/rendezvous"
)

// round is the one that an agent takes part in.
type round struct {
	h       *Handler
	a       assignment
	s       *session
	verdict chan rendezvous.Verdict
	running context.Context // ends with the round
	end     context.CancelFunc
	exited  chan struct{}      // closed when attendExit has returned; nil where all agents are ours
	dismiss context.CancelFunc // ends attendExit
	passed  bool               // everybody has entered the exit barrier; to be read when exited is closed
	wg      sync.WaitGroup
	final   bool // the verdict ended the job; to be read after leave
	cut     bool // the store was lost before anybody's verdict was heard; to be read after leave
	// handover says that the host of the store has announced that it leaves; to be read after leave.
	handover bool
}

// newRound begins to wait for the verdict.
func newRound(h *Handler, a assignment) *round {
	r := &round{h: h, a: a, s: h.session, verdict: make(chan rendezvous.Verdict, 1)}
	r.running, r.end = context.WithCancel(r.s.ctx)
	r.s.enter(a.Round, a.Company)
	attending, dismiss := context.WithCancel(context.WithoutCancel(r.running)) // it outlives the session
	r.dismiss = dismiss
	if at := h.cfg.At; len(a.Exit) > 0 && at != "" {
		r.exited = make(chan struct{})
		r.wg.Go(func() { r.attendExit(attending, at) })
	}
	r.wg.Go(func() {
		if v, ok := r.await(r.running); ok {
			if r.final = v.Kind == rendezvous.Succeed || v.Kind == rendezvous.Fail; r.final {
				r.s.wg.Go(r.settle)
			}
			r.cut = v.Reason == reasonStoreLost
			r.handover = v.Reason == reasonHostStopped && h.movable() && h.host != h.id
			r.verdict <- v
		}
		r.end()
	})
	return r
}

// settle ends the leases of a job that is decided, once everybody has heard that: those who have not may go on without us.
func (r *round) settle() {
	n, err := r.s.conn.Add(r.s.ctx, r.key("heard"), 1)
	switch {
	case err != nil:
	case n == int64(r.a.Company):
		err = r.s.conn.Set(r.s.ctx, r.key("allheard"), []byte("1"))
	default:
		err = r.s.conn.Wait(r.s.ctx, r.key("allheard"))
	}
	if err == nil {
		r.s.settled()
	}
}

// leave ends the wait for the verdict.
func (r *round) leave() {
	r.end()
	r.dismiss()
	r.wg.Wait()
}

func (r *round) key(name string) string { return r.h.keys.round(r.a.Round, name) }

// await waits for the verdict. Where the store or the coordinator is lost first, it is to meet again.
func (r *round) await(ctx context.Context) (rendezvous.Verdict, bool) {
	office := r.s.office(r.s.h.term)
	for {
		waiting, cancel := both(ctx, office)
		value, err := r.s.conn.Get(waiting, r.key("verdict"))
		cancel()
		switch {
		case err == nil:
			v, err := r.h.codec.verdict(r.key("verdict"), value)
			if err != nil {
				v = rendezvous.Verdict{Kind: rendezvous.Reassemble, Rank: -1, Message: err.Error()}
			}
			return v, true
		case r.s.ctx.Err() == nil && errors.Is(err, rendezvous.ErrStoreClosed):
			r.s.lose(err)
			return r.lost(), true
		case r.s.ctx.Err() != nil:
			_, isLost := errors.AsType[*lostError](r.s.cause())
			return r.lost(), isLost
		case ctx.Err() != nil:
			return rendezvous.Verdict{}, false
		case office.Err() != nil:
			// Whoever follows in office may say it, too: the first one counts.
			v := r.h.lossOf("the node of the coordinator is lost", r.a)
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

// The reasons of a verdict of an agent that was told to stop: as it proposes it, and where it hosts the store.
const (
	reasonNodeStopped = "NodeStopped"
	reasonHostStopped = "HostStopped"
)

// reasonStoreLost is the reason of a verdict that this agent has found alone.
const reasonStoreLost = "StoreLost"

// attendExit waits until everybody has entered the exit barrier of a round with agents of torchrun, for which there is no
// verdict in time where one of those hosts the store: it takes that with it at once. The answer comes before the end of
// the connection, and by one that nothing else happens to.
func (r *round) attendExit(ctx context.Context, at string) {
	defer close(r.exited)
	conn, err := r.h.cfg.Dial(ctx, at)
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
	v := rendezvous.Verdict{Kind: rendezvous.Reassemble, Reason: reasonStoreLost, Rank: -1, Message: r.s.place + " is lost"}
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

// offer proposes a verdict and returns the one that counts.
func (r *round) offer(ctx context.Context, v rendezvous.Verdict) (rendezvous.Verdict, error) {
	key := r.key("verdict")
	value, err := r.s.conn.CompareAndSet(ctx, key, nil, r.h.codec.seal(key, v))
	if err != nil {
		return v, err
	}
	counts, err := r.h.codec.verdict(key, value)
	if err != nil { // the others take it for the same
		counts, err = rendezvous.Verdict{Kind: rendezvous.Reassemble, Rank: -1, Message: err.Error()}, nil
	}
	return counts, err
}

// current returns the round that runs, and a context for calls in it.
func (h *Handler) current(ctx context.Context) (*round, context.Context, context.CancelFunc, error) {
	if h.round == nil {
		return nil, nil, nil, errors.New("internal error: no round runs")
	}
	ctx, cancel := both(ctx, h.round.s.ctx)
	return h.round, ctx, cancel, nil
}

// broken reports whether err comes from the loss of the store; the session then ends.
func (r *round) broken(err error) bool {
	if errors.Is(err, rendezvous.ErrStoreClosed) {
		r.s.lose(err)
	}
	return r.s.ctx.Err() != nil
}

// Verdict implements rendezvous.Handler.
func (h *Handler) Verdict() <-chan rendezvous.Verdict {
	if h.round == nil {
		return nil
	}
	return h.round.verdict
}

// Lease implements rendezvous.Handler.
func (h *Handler) Lease() <-chan time.Time {
	if h.round == nil || h.round.a.Company < 2 && h.host == h.id { // without us there is no store
		return nil
	}
	return h.round.s.leases
}

// Propose implements rendezvous.Handler.
func (h *Handler) Propose(ctx context.Context, v rendezvous.Verdict) (rendezvous.Verdict, error) {
	r, both, cancel, err := h.current(ctx)
	if err != nil {
		return v, err
	}
	defer cancel()
	if v.Node == "" {
		v.Node = h.cfg.Node
	}
	if v.Kind == rendezvous.Reassemble && v.Reason == reasonNodeStopped && h.host == h.id && h.movable() {
		v.Reason = reasonHostStopped
	}
	counts, err := r.offer(both, v)
	if err != nil {
		if r.broken(err) && ctx.Err() == nil {
			return r.lost(), nil
		}
		return v, fmt.Errorf("cannot propose how round %d ends: %w", r.a.Round, err)
	}
	h.over = h.over || counts.Kind == rendezvous.Succeed || counts.Kind == rendezvous.Fail
	h.leaving = h.leaving || counts.Reason == reasonHostStopped && v.Reason == reasonHostStopped
	return counts, nil
}

// tallyShift separates the two counts of a Tally in one number.
const tallyShift = 32

// Tally implements rendezvous.Handler. In a round with agents of torchrun nobody is told complete where nobody has
// failed: when the others' workers have succeeded, too, the coordinator proposes the end.
func (h *Handler) Tally(ctx context.Context, t rendezvous.Tally) (rendezvous.Tally, bool, error) {
	r, both, cancel, err := h.current(ctx)
	if err != nil {
		return t, false, err
	}
	defer cancel()
	n, err := r.s.conn.Add(both, r.key("ended"), int64(t.Ended)|int64(t.Failed)<<tallyShift)
	if err == nil {
		sum := rendezvous.Tally{Ended: int(n & (1<<tallyShift - 1)), Failed: int(n >> tallyShift)}
		complete := sum.Ended >= r.a.Workers
		if complete && r.a.Mixed && sum.Failed == 0 {
			complete = false
			err = r.s.conn.Set(both, r.key("passed"), []byte("1"))
		}
		if err == nil {
			return sum, complete, nil
		}
	}
	if r.broken(err) && ctx.Err() == nil {
		return t, false, nil // the verdict is on its way
	}
	return t, false, fmt.Errorf("cannot count the workers of round %d: %w", r.a.Round, err)
}

// Report implements rendezvous.Handler.
func (h *Handler) Report(ctx context.Context, report []byte) error {
	r, both, cancel, err := h.current(ctx)
	if err != nil {
		return err
	}
	defer cancel()
	if err = r.report(both, report); err != nil && (!r.broken(err) || ctx.Err() != nil) {
		return fmt.Errorf("cannot tell the others about failures in round %d: %w", r.a.Round, err)
	}
	return nil
}

func (r *round) report(ctx context.Context, report []byte) error {
	if len(report) > 0 {
		n, err := r.s.conn.Add(ctx, r.key("reports"), 1)
		if err != nil {
			return err
		}
		if err := r.s.conn.Set(ctx, r.key("report/"+strconv.FormatInt(n, 10)), report); err != nil {
			return err
		}
	}
	stopped, err := r.s.conn.Add(ctx, r.key("stopped"), 1)
	if err == nil && stopped == int64(r.a.Company) {
		err = r.s.conn.Set(ctx, r.key("reported"), []byte("1"))
	}
	return err
}

// maxReports is how many agents' reports are read: where more have failed, the first ones tell why.
const maxReports = 64

// Reports implements rendezvous.Handler.
func (h *Handler) Reports(ctx context.Context) ([][]byte, error) {
	r, waiting, cancel, err := h.current(ctx)
	if err != nil {
		return nil, err
	}
	defer cancel()
	_ = r.s.conn.Wait(waiting, r.key("reported")) // without it we take what is there
	reading, stop := context.WithTimeout(r.s.ctx, time.Second)
	defer stop()
	n, err := r.s.conn.Add(reading, r.key("reports"), 0) //nolint:contextcheck // ctx may have ended, which is no reason to read nothing
	if err != nil {
		return nil, nil // the store is lost, and with it what was said there
	}
	var reports [][]byte
	for i := int64(1); i <= min(n, maxReports); i++ {
		report, err := r.s.conn.Get(reading, r.key("report/"+strconv.FormatInt(i, 10))) //nolint:contextcheck // as above
		if err != nil {
			break // somebody died while writing
		}
		reports = append(reports, report)
	}
	return reports, nil
}

// Agree implements rendezvous.Handler.
func (h *Handler) Agree(ctx context.Context, value []byte) ([]byte, error) {
	r, both, cancel, err := h.current(ctx)
	if err != nil {
		return value, err
	}
	defer cancel()
	agreed, err := r.s.conn.CompareAndSet(both, r.key("agreed"), nil, value)
	if err != nil {
		if r.broken(err) && ctx.Err() == nil {
			return value, nil
		}
		return value, fmt.Errorf("cannot agree with the others: %w", err)
	}
	return agreed, nil
}
