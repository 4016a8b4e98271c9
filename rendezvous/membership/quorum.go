package membership

import (
	"fmt"
	"math"
	"time"

	"muster/internal/errhint"
	"muster/rendezvous"
)

// cutOff reports whether most of the last round is out of reach: it may have been cut off from us, and go on elsewhere.
// Half of it is enough for us, since the others need more than half; and of two nobody goes on elsewhere. A host that
// was elected needs more than half of it back.
func (r *roster) cutOff() bool {
	switch {
	case !r.quorum:
		return false
	case r.inherited:
		return 2*r.backAgain() < r.lastSize()+r.moved
	case r.last > r.round: // nodes come that were in a round at another store
		return r.lastSize() > 2 && 2*r.backAgain() <= r.lastSize()
	}
	return r.outOfReach()
}

// outOfReach reports whether most of the round is silent: they may go on elsewhere, whatever has been decided here.
func (r *roster) outOfReach() bool { return r.quorum && r.size > 2 && 2*(r.size-r.silent) < r.size }

// noRound is the number of no round.
const noRound = -1

// silentRound is the number of the round most of which is silent.
func (r *roster) silentRound() int64 {
	if r.outOfReach() {
		return int64(r.round)
	}
	return noRound
}

// lostQuorum is how the job ends here when it stays so.
func (r *roster) lostQuorum() rendezvous.Verdict {
	return rendezvous.Verdict{
		Kind: rendezvous.Fail, Reason: "QuorumLost", Status: errhint.TryAgain, Rank: -1, Grace: r.fence,
		Message: fmt.Sprintf("only %d of %d nodes can be reached: the others may go on without them", r.backAgain(), r.lastSize()),
	}
}

// givesUp returns when a meeting ends that most of the last round does not come back to; never while it may.
func (r *roster) givesUp() time.Duration {
	if !r.cutOff() {
		return never
	}
	return max(r.gatherFrom, r.notBefore) + 2*r.patience
}

// backAgain is how many nodes of the last round wait for the next one. Where that was at another store, only those
// count that have asked nowhere else since.
func (r *roster) backAgain() int {
	back := 0
	elsewhere := r.moved > 0 || r.last > r.round
	for _, s := range r.waiting {
		if r.oldRank(s) != math.MaxInt && (s.rec.Voter || !elsewhere) {
			back++
		}
	}
	return back
}

// lastSize is the size of the last round that any node was in.
func (r *roster) lastSize() int {
	size := r.size
	for _, s := range r.waiting {
		if s.rec.Round == r.last {
			size = max(size, s.rec.Size)
		}
	}
	return size
}
