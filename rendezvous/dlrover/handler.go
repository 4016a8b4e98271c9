package dlrover

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"muster/internal/errhint"
	"muster/rendezvous"
)

// Conn is a connection to the store that the nodes of a round share.
type Conn interface {
	rendezvous.Batcher
	Close() error
}

// Server is the store of a node.
type Server interface {
	rendezvous.Server
	// Forget deletes those keys of the agents that begin with prefix.
	Forget(prefix string)
}

// Config says how a node takes part.
type Config struct {
	Client *Client // the handler owns it
	// Min and Max bound the nodes of a round, whose number is a multiple of Unit, ≥ 1. What the first node tells the
	// master counts for all.
	Min, Max, Unit int
	// NodeRank is this node's, different for each node of the job. Node is its host name, Addr the address by which
	// others reach it.
	NodeRank   int
	Node, Addr string
	// JoinTimeout bounds a meeting, PendTimeout how long a node waits that the round does without; 0: for ever. LastCall
	// is how long a round that has Min nodes waits for more.
	JoinTimeout, PendTimeout, LastCall time.Duration
	// Listen opens this node's store, which workers and agents use where this node comes first in a round. Ports are
	// those on which workers may serve a store themselves, best first; else it is any.
	Listen func(ctx context.Context) (Server, error)
	Ports  []int
	// Dial reaches the store of another node.
	Dial func(ctx context.Context, addr string) (Conn, error)
	// LostAfter is how long a node of a round that is all ours may be silent; 0: 12 s.
	LostAfter time.Duration
	// Each is the time between two heartbeats; 0: 15 s, as DLRover's agents.
	Each time.Duration
	Log  zerolog.Logger
}

// Handler takes rounds from a master.
type Handler struct {
	cfg    Config
	c      *Client
	stop   context.CancelCauseFunc // of what runs beside the rounds
	beside sync.WaitGroup
	done   context.Context // ends with stop, or when the master wants this pod replaced
	server Server          // nil: not opened yet

	mu       sync.Mutex
	round    *round // nil: none yet
	last     int    // the number of the last one, -1 for none
	orders   rendezvous.Orders
	restarts int
	steps    chan progress
	outcome  rendezvous.VerdictKind // Succeed or Fail once the job has ended here
	excluded string                 // why a check has excluded this node
	leaving  *rendezvous.Verdict    // by which the master has this node replaced
	pairs    *rendezvous.Pairs      // nil: this node is not tested with agents of DLRover
	paired   bool                   // it was, before the round
}

var (
	_ rendezvous.Doorkeeper = (*Handler)(nil)
	_ rendezvous.Counter    = (*Handler)(nil)
)

// statuses of the master's own check of a job before its workers may start.
const (
	checkPassed   = "PASS"
	checkDisabled = "DISABLED"
	checkFailed   = "FAIL"
)

// Pauses between looks at the master.
const (
	preCheckEvery = time.Second
	tellEvery     = 10 * time.Second
	shortestLook  = 50 * time.Millisecond
	longestLook   = time.Second
	exitPatience  = 5 * time.Second
)

// Open introduces this node to the master and returns when the master lets workers start: when its own check has passed,
// or there is none.
func Open(ctx context.Context, cfg Config) (*Handler, error) {
	cfg.LostAfter = cmp.Or(cfg.LostAfter, lostAfter)
	h := &Handler{cfg: cfg, c: cfg.Client, last: -1, steps: make(chan progress, 1)}
	if err := h.introduce(ctx); err != nil {
		return nil, errors.Join(err, h.c.Close())
	}
	h.done, h.stop = context.WithCancelCause(context.WithoutCancel(ctx))
	h.beside.Go(h.keepTelling)
	return h, nil
}

func (h *Handler) introduce(ctx context.Context) error {
	cfg := &h.cfg
	err := h.sayParams(ctx)
	if err == nil {
		err = h.c.insist(ctx, func(ctx context.Context) error {
			text, err := json.Marshal(map[string]any{"min_nodes": cfg.Min, "max_nodes": cfg.Max, "launcher": "muster"})
			if err != nil {
				return err
			}
			return h.c.event(ctx, eventPreCheck, string(text), 0, cfg.NodeRank)
		})
	}
	if err != nil {
		return err
	}
	told := time.Now()
	for {
		var state string
		err := h.c.insist(ctx, func(ctx context.Context) (err error) {
			state, err = h.c.preCheck(ctx)
			return err
		})
		if err != nil || state == checkPassed || state == checkDisabled {
			return err
		}
		if time.Since(told) >= tellEvery {
			told = time.Now()
			text := "waiting for the master's check of the job"
			if state == checkFailed {
				text = "the master's check of the job has failed; waiting for what it does about that"
			}
			cfg.Log.Warn().Str("state", state).Msg(text)
		}
		if err := sleep(ctx, preCheckEvery); err != nil {
			return err
		}
	}
}

// sayParams tells the master how many nodes a round has. It heeds the first who says so, and a master that has begun
// anew has forgotten it.
func (h *Handler) sayParams(ctx context.Context) error {
	return h.c.insist(ctx, func(ctx context.Context) error {
		return h.c.params(ctx, h.cfg.Min, h.cfg.Max, h.cfg.LastCall, h.cfg.Unit, h.cfg.JoinTimeout)
	})
}

// sleep returns nil after d, or why ctx has ended.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// either returns a context that ends with both.
func either(ctx, other context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(other, func() { cancel(context.Cause(other)) })
	return ctx, func() { stop(); cancel(nil) }
}

// errAgain says that a round has fallen apart before it began, errNoStore that it was because of this node.
var (
	errAgain   = errors.New("the round has ended before it began")
	errNoStore = errors.New("this node does not reach its store")
)

// storeTries is in how many rounds, one after the other, this node may not reach their store. Each of them costs the
// workers of the others.
const storeTries = 3

// tries counts rounds that have fallen apart one after the other.
type tries struct {
	since   time.Time // of the first of them
	noStore int       // the last ones, because of this node
}

// Next implements rendezvous.Handler.
func (h *Handler) Next(ctx context.Context, m rendezvous.Member) (rendezvous.Round, error) {
	h.leave() //nolint:contextcheck // a round that is left ends also where ctx has ended
	h.mu.Lock()
	h.paired = false
	h.mu.Unlock()
	ctx, end := either(ctx, h.done)
	defer end()
	var failed tries
	for {
		began := time.Now()
		w, err := h.meet(ctx, m.LocalWorldSize)
		if time.Since(began) > h.cfg.JoinTimeout { // the round did without this node: that was no try
			failed.since = time.Time{}
		}
		var r rendezvous.Round
		if err == nil {
			r, err = h.begin(ctx, w)
		}
		if v := h.leavesOn(); v != nil {
			h.leave() //nolint:contextcheck // as above
			return rendezvous.Round{}, &rendezvous.OverError{Verdict: *v}
		}
		switch {
		case errors.Is(err, errAgain) && ctx.Err() == nil:
			h.leave() //nolint:contextcheck // as above
			if err := h.tryAgain(ctx, &failed, err); err != nil {
				return r, err
			}
			h.cfg.Log.Warn().Err(err).Int("round", w.round-1).Msg("meeting the other nodes again")
			continue
		case err != nil && ctx.Err() != nil:
			return r, context.Cause(ctx)
		}
		return r, err
	}
}

// tryAgain returns nil where another round may be tried after one that has fallen apart, because of why.
func (h *Handler) tryAgain(ctx context.Context, failed *tries, why error) error {
	failed.since = cmp.Or(failed.since, time.Now())
	if failed.noStore++; !errors.Is(why, errNoStore) {
		failed.noStore = 0
	}
	switch over := time.Since(failed.since) > h.cfg.JoinTimeout; {
	case failed.noStore >= storeTries:
		return h.notMet(ctx, "store-unreachable", fmt.Sprintf("%d times, one after the other: %v", storeTries, why),
			"can this node connect to that address and port? --iface on the node there says which address it has for others")
	case over:
		return h.notMet(ctx, "join-timeout", fmt.Sprintf("no round has begun within %v: %v", h.cfg.JoinTimeout, why), moreTime)
	}
	return nil
}

// leavesOn returns the verdict by which the master has this node replaced, nil for none.
func (h *Handler) leavesOn() *rendezvous.Verdict {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.leaving
}

// helloKey is under which a node of ours says that it waits for the round after one.
func helloKey(rank, after int) string {
	return "muster/hello/" + strconv.Itoa(rank) + "/" + strconv.Itoa(after)
}

// hello is what a node of ours brings into a round.
type hello struct {
	Node     string            `json:"node"`
	Last     int               `json:"last"` // the number of its last round, -1 for none
	Restarts int               `json:"restarts,omitempty"`
	Orders   rendezvous.Orders `json:"orders,omitzero"`
}

func (h *Handler) sayHello(ctx context.Context, after int) error {
	h.mu.Lock()
	text, err := json.Marshal(hello{h.cfg.Node, h.last, h.restarts, h.orders})
	h.mu.Unlock()
	if err != nil {
		return err
	}
	return h.c.insist(ctx, func(ctx context.Context) error { return h.c.set(ctx, helloKey(h.cfg.NodeRank, after), text) })
}

func (h *Handler) world(ctx context.Context) (w world, err error) {
	err = h.c.insist(ctx, func(ctx context.Context) error {
		w, err = h.c.commWorld(ctx, training, h.cfg.NodeRank)
		return err
	})
	return w, err
}

// missing says how many nodes wait, and what else stands in the way. The error is that the job has ended.
func (h *Handler) missing(ctx context.Context) (string, error) {
	n, err := h.c.waiting(ctx, training)
	checking, err2 := h.c.waiting(ctx, networkCheck)
	switch {
	case err != nil || err2 != nil:
		return "how many nodes wait is not known", nil //nolint:nilerr // what the job needs is asked with patience
	case n < 0 || checking < 0:
		return "", h.jobEnds()
	case checking > 0:
		return fmt.Sprintf("%d agents of DLRover wait for a network check, in which muster takes no part with them: "+
			"give --network-check here, too, or leave it out on their nodes", checking), nil
	}
	return fmt.Sprintf("%d nodes wait, %d to %d are needed, each with its own NODE_RANK; this one has %d",
		n, h.cfg.Min, h.cfg.Max, h.cfg.NodeRank), nil
}

// jobEnds is how a node ends that wants a round when the job is stopping: another node's workers have succeeded.
func (h *Handler) jobEnds() error {
	v := rendezvous.Verdict{
		Kind: rendezvous.Fail, Reason: "JobStopping", Rank: -1, Status: errhint.TryAgain,
		Message: "the master begins no further round, as the job is stopping: another node has ended with success",
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.round == nil { // no worker has run here
		v.Kind, v.Status = rendezvous.Succeed, 0
	}
	h.outcome = v.Kind
	return &rendezvous.OverError{Verdict: v}
}

// Hints where nodes have not met in time.
const (
	moreTime    = "--join-timeout gives other nodes more time"
	morePending = "a greater pend_timeout in --rdzv-conf has this node wait longer until it is needed"
)

// notMet is the error of a meeting that did not come about, of which the master is told.
func (h *Handler) notMet(ctx context.Context, kind, why, hint string) error {
	text, err := json.Marshal(map[string]any{
		"rdzv_name": training, "node_rank": h.cfg.NodeRank, "err_type": kind, "err_message": why,
		"elapsed_time": seconds(h.cfg.JoinTimeout),
	})
	if err == nil {
		err = h.c.failure(ctx, string(text), 0, levelRendezvous)
	}
	if err != nil {
		h.cfg.Log.Warn().Err(err).Msg("the master was not told that no round came about")
	}
	err = fmt.Errorf("cannot meet the other nodes at %s: %s", h.c, why)
	return errhint.Code(errhint.With(err, hint), errhint.TryAgain)
}

// leave ends what belongs to the last round.
func (h *Handler) leave() {
	h.mu.Lock()
	r := h.round
	h.mu.Unlock()
	if r != nil {
		r.end()
	}
}

// Lease implements rendezvous.Handler: a node that the master does not hear goes on, as an agent of DLRover does.
func (h *Handler) Lease() <-chan time.Time { return nil }

// Counts implements rendezvous.Counter.
func (h *Handler) Counts() rendezvous.Counts {
	h.mu.Lock()
	defer h.mu.Unlock()
	return rendezvous.Counts{StoreOperations: rendezvous.CountStores(h.server)}
}

// AtDoor implements rendezvous.Doorkeeper. Nobody is examined before the round: nobody knows there who waits.
func (h *Handler) AtDoor(func(ctx context.Context, d rendezvous.Door) error) {}

// RoundBoard implements rendezvous.Doorkeeper.
func (h *Handler) RoundBoard() rendezvous.Board {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.round == nil {
		return nil
	}
	return h.round.board()
}

// checkFailure is the reason by which the master knows that a node is to be replaced (NodeExitReason.CHECK_FAIL).
const checkFailure = "CheckFailure"

// Exclude implements rendezvous.Doorkeeper: a node that a check has excluded is to be replaced by another one.
func (h *Handler) Exclude(ctx context.Context, gone []rendezvous.Exclusion, _ bool) error {
	own := slices.IndexFunc(gone, func(e rendezvous.Exclusion) bool { return e.Node == h.cfg.Node })
	if own < 0 {
		return nil
	}
	h.mu.Lock()
	h.excluded = cmp.Or(gone[own].Reason, checkFailure)
	restarts := h.restarts
	h.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, exitPatience)
	defer cancel()
	return errors.Join(
		h.c.event(ctx, eventFaulty, gone[own].Reason, 0, h.cfg.NodeRank),
		h.c.failure(ctx, checkFailure, restarts, levelNode))
}

// Remember implements rendezvous.Doorkeeper: who comes back is for the master to say.
func (h *Handler) Remember([]rendezvous.Exclusion) {}

// Close implements rendezvous.Handler. The master is told how this node has ended, unless it knows.
func (h *Handler) Close() error {
	h.mu.Lock()
	r := h.round
	h.mu.Unlock()
	if r != nil {
		r.seeOff()
		r.end()
	}
	h.stop(nil)
	h.beside.Wait()
	h.mu.Lock()
	kind, known := eventFailed, h.excluded != ""
	if h.outcome == rendezvous.Succeed {
		kind = eventSucceeded
	}
	h.mu.Unlock()
	if !known {
		ctx, cancel := context.WithTimeout(context.Background(), exitPatience)
		defer cancel()
		if err := h.c.event(ctx, kind, "", 0, -1); err != nil {
			h.cfg.Log.Warn().Err(err).Msg("the master was not told how this node has ended")
		}
	}
	err := h.c.Close()
	if h.server != nil {
		err = errors.Join(err, h.server.Close())
	}
	return err
}

// freePort returns a port for a store that a worker serves.
func (h *Handler) freePort(ctx context.Context) (port int, err error) {
	for _, port := range append(slices.Clone(h.cfg.Ports), 0) {
		l, listenErr := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(h.cfg.Addr, strconv.Itoa(port)))
		if listenErr != nil {
			err = listenErr
			continue
		}
		at, is := l.Addr().(*net.TCPAddr)
		if err := l.Close(); err != nil || !is {
			return 0, err
		}
		return at.Port, nil
	}
	return 0, fmt.Errorf("cannot find a port for the workers' store on %s: %w", h.cfg.Addr, err)
}
