package dlrover

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"muster/rendezvous"
	"muster/rendezvous/membership"
)

// boards begins the keys of all rounds in the store that its first node serves.
const boards = membership.KeyPrefix + "dlrover/"

// beat says to the other nodes that this one lives.
func (r *round) beat() {
	every := r.h.cfg.LostAfter / beats
	for n := int64(1); ; n++ {
		if r.store.Set(r.ctx, r.own("beat"), strconv.AppendInt(nil, n, 10)) != nil {
			return // awaitVerdict notices, too
		}
		if sleep(r.ctx, every) != nil {
			return
		}
	}
}

// watchNodes notices that a node is silent.
func (r *round) watchNodes() {
	words, heard := make([]string, len(r.world.nodes)), make([]time.Time, len(r.world.nodes))
	began, limit := time.Now(), r.h.cfg.LostAfter
	for i := range heard {
		heard[i] = began
	}
	for last := began; sleep(r.ctx, limit/beats) == nil; {
		if gap := time.Since(last); gap > 2*limit/beats { // this node itself stood still
			for i := range heard {
				heard[i] = heard[i].Add(gap)
			}
		}
		last = time.Now()
		for rank, key := range r.keys("beat") {
			text, err := r.peek(r.ctx, key)
			if err != nil && !errors.Is(err, errNothing) {
				return
			}
			if word := string(text); word != words[rank] {
				words[rank], heard[rank] = word, time.Now()
			}
			if rank != r.me && time.Since(heard[rank]) > limit {
				r.demand(rendezvous.Verdict{
					Kind: rendezvous.Reassemble, Reason: "NodeLost", Rank: -1,
					Message: fmt.Sprintf("the node with group rank %d (node rank %d) was silent for %v", rank, r.world.nodes[rank].rank,
						limit),
				})
				return
			}
		}
	}
}

// watchHost notices that the node which serves the store is silent. It closes the store: whoever waits there, as in
// awaitVerdict or in Propose, ends with ErrStoreClosed.
func (r *round) watchHost() {
	limit := r.h.cfg.LostAfter
	every := limit / beats
	heard, word := time.Now(), ""
	for last := heard; sleep(r.ctx, every) == nil; {
		if gap := time.Since(last); gap > 3*every { // this node itself stood still
			heard = heard.Add(gap)
		}
		last = time.Now()
		lives, err := r.hostLives(every, &word)
		if errors.Is(err, rendezvous.ErrStoreClosed) {
			return // awaitVerdict notices, too
		}
		if lives {
			heard = time.Now()
		}
		if time.Since(heard) > limit && r.ctx.Err() == nil {
			r.silent.Store(true)
			_ = r.store.Close()
			return
		}
	}
}

// hostLives reports within a time whether the node that serves the store lives: it has said another word than before,
// or it has gone on to another round, as this one is decided, and its store answers.
func (r *round) hostLives(within time.Duration, word *string) (bool, error) {
	ctx, cancel := context.WithTimeout(r.ctx, within)
	defer cancel()
	text, err := r.peek(ctx, r.key("beat/0"))
	if err == nil && string(text) != *word {
		*word = string(text)
		return true, nil
	}
	if err == nil || errors.Is(err, errNothing) {
		_, err = r.peek(ctx, r.key("verdict"))
	}
	return err == nil, err
}
