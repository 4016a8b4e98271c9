package dlrover

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"

	"muster/internal/errhint"
	"muster/rendezvous"
)

// How agents of DLRover test each other (NodeCheckElasticAgent of 0.6.1, read).
const (
	pairTries  = 2 // each of pairRounds
	pairRounds = 2 // the second one mixes groups that have failed with good ones
	// pairTime bounds a test; failedTime is said of one that has failed.
	pairTime   = 300 * time.Second
	failedTime = 3600
	// judgeTime is how long others may take until the master has heard of all of them, nextPause what lies between two
	// rounds.
	judgeTime = 360 * time.Second
	nextPause = 5 * time.Second
	// fewNodes is up to how many nodes none of them is blamed: all leave.
	fewNodes = 3
)

// testsKey is under which a node of ours says that it wants to be tested in a rendezvous.
func testsKey(name string, rank int) string { return "muster/tests/" + name + "/" + strconv.Itoa(rank) }

var _ rendezvous.PairKeeper = (*Handler)(nil)

// AtPairs implements rendezvous.PairKeeper.
func (h *Handler) AtPairs(p rendezvous.Pairs) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pairs = &p
}

// Paired implements rendezvous.PairKeeper.
func (h *Handler) Paired() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.paired
}

func (h *Handler) pairRules() *rendezvous.Pairs {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.pairs
}

// checking returns how many agents of DLRover wait for a network check in which this node is to take part; 0 where it
// takes none.
func (h *Handler) checking(ctx context.Context) (n int, err error) {
	if h.pairRules() == nil {
		return 0, nil
	}
	err = h.c.insist(ctx, func(ctx context.Context) error {
		n, err = h.c.waiting(ctx, networkCheck)
		return err
	})
	return n, err
}

// othersWait returns how many nodes wait for a round after this one: agents of DLRover that test nodes come to the
// network check first.
func (h *Handler) othersWait(ctx context.Context) (n int, err error) {
	if n, err = h.c.waiting(ctx, training); err == nil && n == 0 && h.pairRules() != nil {
		n, err = h.c.waiting(ctx, networkCheck)
	}
	return n, err
}

// pairsWait returns how many agents of DLRover wait for a network check, or 1 where they would notice this node only
// there: they look for newcomers there alone, once they have tested each other.
func (h *Handler) pairsWait(ctx context.Context) (n int, err error) {
	n, err = h.checking(ctx)
	h.mu.Lock()
	known := h.pairs == nil || h.paired || h.round != nil && !h.round.mixed
	h.mu.Unlock()
	if err != nil || n > 0 || known {
		return n, err
	}
	if err := h.sayParams(ctx); err != nil { // without them a master completes a round of nobody as soon as it is asked
		return 0, err
	}
	var w world
	err = h.c.insist(ctx, func(ctx context.Context) (err error) {
		w, err = h.c.commWorld(ctx, networkCheck, h.cfg.NodeRank)
		return err
	})
	return min(w.round, 1), err
}

// pair has this node tested together with agents of DLRover, as they are before each round.
func (h *Handler) pair(ctx context.Context, workers int) error {
	rules := h.pairRules()
	h.cfg.Log.Info().Msg("network check with agents of DLRover, by their own test")
	test, err := rules.Open(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return h.unable(err)
	}
	defer func() {
		if closeErr := test.Close(); closeErr != nil {
			h.cfg.Log.Warn().Err(closeErr).Msg("something of the check program is left")
		}
	}()
	p := &pairing{h: h, rules: rules, test: test, workers: workers}
	good := false
	for try := 0; err == nil && try < pairTries && !good; try++ {
		good, err = p.run(ctx, networkCheck, pairRounds)
	}
	if err == nil && good && rules.Perf { // theirs meet in the rendezvous of the training for that
		_, err = p.run(ctx, training, 1)
	}
	if err == nil {
		h.mu.Lock()
		h.paired = true
		h.mu.Unlock()
	}
	return err
}

// unable is the error of a node that cannot take part: agents of DLRover wait for it.
func (h *Handler) unable(err error) error {
	err = fmt.Errorf("cannot take part in the network check of DLRover's agents: %w", err)
	return errhint.Code(errhint.With(err, "leave --network-check out on all nodes, or let all of them be muster's"), errhint.Undecided)
}

// pairing is this node's part in one network check.
type pairing struct {
	h       *Handler
	rules   *rendezvous.Pairs
	test    rendezvous.PairTest
	workers int
	why     error // the last test of this node failed; nil: it has not
}

// run takes part in up to so many rounds of tests, and reports whether this node has passed one of them.
func (p *pairing) run(ctx context.Context, name string, rounds int) (good bool, err error) {
	h := p.h
	var faulty, slow []int
	for i := range rounds {
		if i > 0 {
			if err := sleep(ctx, nextPause); err != nil {
				return good, err
			}
		}
		w, err := p.meet(ctx, name)
		if err != nil {
			return good, err
		}
		took, err := p.measure(ctx, name, w)
		if err != nil {
			return good, err
		}
		good = good || p.why == nil
		if err := p.tell(ctx, good, took); err != nil {
			return good, err
		}
		if faulty, slow, err = p.judged(ctx); err != nil {
			return good, err
		}
		h.cfg.Log.Info().Int("round", w.round-1).Int("group_world_size", len(w.nodes)).Bool("passed", p.why == nil).
			Float64("figure", took).Ints("faulty", faulty).Ints("stragglers", slow).Msg("tested with agents of DLRover")
		if len(faulty) == 0 && (len(slow) == 0 || !p.rules.Strict) {
			return good, nil
		}
		var running int
		err = h.c.insist(ctx, func(ctx context.Context) (err error) {
			running, err = h.c.running(ctx)
			return err
		})
		switch {
		case err != nil:
			return good, err
		case running <= fewNodes:
			return good, p.nobody(faulty, slow)
		}
	}
	return good, p.verdict(ctx, faulty, slow)
}

// nobody is why this node leaves with the others where they are so few that nobody can be blamed.
func (p *pairing) nobody(faulty, slow []int) error {
	reason := fmt.Sprintf("the network check with agents of DLRover failed (node ranks %v), or found stragglers (%v); "+
		"of %d nodes or fewer nobody can be blamed, so that all leave", faulty, slow, fewNodes)
	if p.why != nil {
		reason += ": " + p.why.Error()
	}
	return &rendezvous.UnfitError{Status: errhint.Undecided, Reason: reason}
}

// verdict is what the last round of tests means for this node.
func (p *pairing) verdict(ctx context.Context, faulty, slow []int) error {
	h := p.h
	switch rank := h.cfg.NodeRank; {
	case slices.Contains(faulty, rank):
		reason := "it failed DLRover's network check, also with a node that passes it"
		if p.why != nil {
			reason += ": " + p.why.Error()
		}
		h.mu.Lock()
		h.excluded = reason
		restarts := h.restarts
		h.mu.Unlock()
		if err := h.c.failure(ctx, checkFailure, restarts, levelNode); err != nil {
			h.cfg.Log.Warn().Err(err).Msg("the master was not told that this node is to be replaced")
		}
		return &rendezvous.UnfitError{Status: errhint.Faulty, Reason: reason}
	case slices.Contains(slow, rank) && p.rules.Strict:
		return &rendezvous.UnfitError{
			Status: errhint.Straggler, Reason: "DLRover's network check took more than twice as long here as the median of all nodes",
		}
	case slices.Contains(slow, rank):
		h.cfg.Log.Warn().Msg("this node is a straggler in DLRover's network check")
	}
	return nil
}

// join joins the master's next round of tests.
func (p *pairing) join(ctx context.Context, name string) error {
	h := p.h
	err := h.sayParams(ctx)
	for _, say := range []func(context.Context) error{
		func(ctx context.Context) error { return h.c.set(ctx, testsKey(name, h.cfg.NodeRank), []byte("1")) },
		func(ctx context.Context) error { return h.c.join(ctx, name, h.cfg.NodeRank, p.workers) },
	} {
		if err == nil {
			err = h.c.insist(ctx, say)
		}
	}
	return err
}

// meet joins the master's next round of tests and waits for the group of this node.
func (p *pairing) meet(ctx context.Context, name string) (w world, err error) {
	h := p.h
	if err := p.join(ctx, name); err != nil {
		return w, err
	}
	began, told, pending := time.Now(), time.Now(), time.Time{}
	for pause := shortestLook; ; pause = min(pause*3/2, longestLook) {
		err := h.c.insist(ctx, func(ctx context.Context) (err error) {
			w, err = h.c.commWorld(ctx, name, h.cfg.NodeRank)
			return err
		})
		switch {
		case err != nil:
			return w, err
		case w.index(h.cfg.NodeRank) >= 0:
			return w, nil
		case len(w.nodes) > 0:
			began, pending = time.Now(), cmp.Or(pending, time.Now()) // others are tested without this node
			if h.cfg.PendTimeout > 0 && time.Since(pending) > h.cfg.PendTimeout {
				return w, h.notMet(ctx, "pend-timeout",
					fmt.Sprintf("others were tested without this node for %v", h.cfg.PendTimeout), morePending)
			}
		case time.Since(began) > h.cfg.JoinTimeout:
			return w, h.notMet(ctx, "join-timeout",
				fmt.Sprintf("no round of DLRover's network check was complete within %v", h.cfg.JoinTimeout), moreTime)
		}
		tell := time.Since(told) >= tellEvery
		if tell || len(w.nodes) > 0 { // a master that has begun anew does not know that this node waits
			anew, err := h.forgotten(ctx, testsKey(name, h.cfg.NodeRank))
			if err == nil && anew {
				err = p.join(ctx, name)
			}
			if err != nil {
				return w, err
			}
		}
		if tell {
			told = time.Now()
			n, err := h.c.waiting(ctx, name)
			if err == nil && n < 0 {
				return w, h.jobEnds()
			}
			h.cfg.Log.Warn().Dur("dur_ms", time.Since(began)).Int("waiting", n).Msg("waiting for other nodes to be tested with")
		}
		if err := sleep(ctx, pause); err != nil {
			return w, err
		}
	}
}

// measure runs the test in a group. That it fails is no error: pairing.why has it.
func (p *pairing) measure(ctx context.Context, name string, w world) (took float64, err error) {
	h := p.h
	bounded, cancel := context.WithTimeout(ctx, pairTime)
	defer cancel()
	g := rendezvous.PairGroup{}
	me := w.index(h.cfg.NodeRank)
	for i, n := range w.nodes {
		if i < me {
			g.FirstRank += n.workers
		}
		g.World += n.workers
	}
	g.Store, p.why = p.store(bounded, name, w, me)
	if p.why == nil {
		took, p.why = p.test.Test(bounded, g)
	}
	switch {
	case ctx.Err() != nil:
		return took, context.Cause(ctx)
	case p.why != nil:
		h.cfg.Log.Warn().Err(p.why).Msg("this node has failed in a test with agents of DLRover")
		return failedTime, nil
	}
	return took, nil
}

// store agrees with the others of a group where they meet: the first one says it.
func (p *pairing) store(ctx context.Context, name string, w world, me int) (string, error) {
	h := p.h
	keys := []string{storeKey(name, w.round, w.group, keyMasterAddr), storeKey(name, w.round, w.group, keyMasterPort)}
	if me == 0 {
		port, err := h.freePort(ctx)
		if err != nil {
			return "", err
		}
		for i, value := range []string{h.cfg.Addr, strconv.Itoa(port)} {
			if err := h.c.insist(ctx, func(ctx context.Context) error { return h.c.set(ctx, keys[i], []byte(value)) }); err != nil {
				return "", err
			}
		}
		return net.JoinHostPort(h.cfg.Addr, strconv.Itoa(port)), nil
	}
	bounded, cancel := context.WithTimeout(ctx, beginPatience)
	defer cancel()
	for look := shortestLook; ; look = min(look*3/2, longestLook) {
		found, err := h.c.lookUpAll(bounded, keys)
		if err == nil && found != nil {
			return net.JoinHostPort(string(found[keys[0]]), string(found[keys[1]])), nil
		}
		if sleep(bounded, look) != nil {
			return "", fmt.Errorf("node rank %d has not said within %v where the processes of the test meet: %w",
				w.nodes[0].rank, beginPatience, errors.Join(err, context.Cause(ctx)))
		}
	}
}

// tell reports how the tests of this node have gone so far.
func (p *pairing) tell(ctx context.Context, good bool, took float64) error {
	kind := eventFaulty
	if good {
		kind = eventChecked
	}
	return p.h.c.insist(ctx, func(ctx context.Context) error {
		return p.h.c.event(ctx, kind, "", time.Duration(took*float64(time.Second)), p.h.cfg.NodeRank)
	})
}

// judged waits until the master has heard of all nodes, and returns which it finds at fault, and which slow.
func (p *pairing) judged(ctx context.Context) (faulty, slow []int, err error) {
	began := time.Now()
	for _, ask := range []struct {
		request string
		found   *[]int
	}{{"NetworkReadyRequest", &faulty}, {"StragglerExistRequest", &slow}} {
		for {
			var reason string
			err := p.h.c.insist(ctx, func(ctx context.Context) (err error) {
				*ask.found, reason, err = p.h.c.checkResult(ctx, ask.request)
				return err
			})
			if err != nil {
				return nil, nil, err
			}
			if reason != reasonWaiting && reason != reasonNoInit {
				break
			}
			if time.Since(began) > judgeTime {
				p.h.cfg.Log.Warn().Dur("limit_ms", judgeTime).Msg("the master has not heard of all nodes that are tested")
				break
			}
			if err := sleep(ctx, lookEvery); err != nil {
				return nil, nil, err
			}
		}
	}
	return faulty, slow, nil
}
