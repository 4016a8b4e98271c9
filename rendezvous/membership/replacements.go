package membership

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"muster/internal/errhint"
	"muster/rendezvous"
)

// losses counts by group rank how often the node of a rank was lost and had to be replaced. What one rank has lost uses
// up nothing of the others'; a round that goes on with fewer nodes has replaced nobody.
type losses map[int]int

const maxLosses = 4096 // ranks that are counted, and bytes of each that are read: 16

// String is how they travel: "0:1,3:2".
func (l losses) String() string {
	var parts []string
	for _, rank := range slices.Sorted(maps.Keys(l)) {
		parts = append(parts, fmt.Sprintf("%d:%d", rank, l[rank]))
	}
	return strings.Join(parts[:min(len(parts), maxLosses)], ",")
}

// parseLosses reads what String wrote.
func parseLosses(text string) (losses, error) {
	l := losses{}
	if text == "" {
		return l, nil
	}
	if len(text) > 16*maxLosses {
		return nil, errors.New("it has lost too many nodes")
	}
	for part := range strings.SplitSeq(text, ",") {
		left, right, _ := strings.Cut(part, ":")
		rank, err := strconv.ParseUint(left, 10, 31)
		n, err2 := strconv.ParseUint(right, 10, 31)
		if err != nil || err2 != nil || rank >= maxNodes || n > maxRounds || len(l) > maxLosses {
			return nil, fmt.Errorf("%.40q is no count of lost nodes", part)
		}
		l[int(rank)] = int(n)
	}
	return l, nil
}

func badLosses(text string) bool {
	_, err := parseLosses(text)
	return err != nil
}

// learn takes the larger count of each rank.
func (l losses) learn(other losses) {
	for rank, n := range other {
		l[rank] = max(l[rank], n)
	}
}

// replaces counts the loss of the node with a rank, where another one has to take its place, and makes v the end of the
// job where that was one too many. Nodes that wait may take it, but for those in quarantine, and those that have come
// since nothing was heard of it: they may be that node, started again at once.
func (r *roster) replaces(now time.Duration, rank int, v *rendezvous.Verdict) {
	if r.rankLimit <= 0 {
		return
	}
	left := 0
	for _, m := range r.members {
		if !m.gone {
			left++
		}
	}
	for _, s := range r.waiting {
		if _, ours := r.members[s.rec.Agent]; !ours && !s.shut(now) && s.since <= now-r.patience {
			left++
		}
	}
	if r.target(left) > 0 && !r.fixed {
		return
	}
	r.lostOf[rank]++
	r.overRank(v, r.lostOf[rank], rank)
}

// overRank makes the verdict on the n-th loss of a rank the end of the job where that were one too many.
func (r *rules) overRank(v *rendezvous.Verdict, n, rank int) {
	if n > r.rankLimit && v.Kind != rendezvous.Fail {
		v.Kind, v.Reason, v.Status = rendezvous.Fail, "RestartLimitReached", errhint.TryAgain
		v.Message += fmt.Sprintf(", the %s loss of group rank %d: each rank may be replaced %s", ordinal(n), rank, times(r.rankLimit))
	}
}

// limitRank is overRank for a loss that nobody has counted yet, after the known ones, in a round of size nodes.
func (r *rules) limitRank(v *rendezvous.Verdict, known losses, size, rank int) {
	if r.mustReplace(size, rank) {
		r.overRank(v, known[rank]+1, rank)
	}
}

// mustReplace reports whether the node with a rank counts as replaced where it is lost in a round of size nodes: the
// others cannot go on alone.
func (r *rules) mustReplace(size, rank int) bool {
	left := size - 1
	return r.rankLimit > 0 && rank != noRank && (left-left%max(r.unit, 1) < r.min || r.fixed)
}

// noRank is the rank of a node that is not in the round, or not known.
const noRank = -1

// standbyOf is what this agent knows of the place of a round that another one has led.
func (h *Handler) standbyOf(roll *rollRecord) assignment {
	a := assignment{Restarts: roll.Restarts, Replacements: roll.Replacements, Size: roll.Size}
	if h.last.Round == roll.Round {
		a.LostOf = h.last.LostOf
	}
	return a
}

// uncounted are the ranks of nodes that were lost when there was nobody who could count them: that of the coordinator, or
// of the store's host, and those that were lost with it. noRank is for one whose rank is not known. They are counted
// when this roster begins its first round.
func (r *roster) uncounted() (ranks []int) {
	if r.hostHere() >= 0 && (r.last != r.round || r.moved > 0) {
		return r.lostElsewhere()
	}
	if !slices.ContainsFunc(r.waiting, func(s joiner) bool { return s.rec.Job == r.jobBefore }) {
		return nil // what was read of the last round may be of an earlier job
	}
	for _, m := range r.members {
		if m.uncounted {
			ranks = append(ranks, m.rank)
		}
	}
	slices.Sort(ranks)
	return ranks
}

// lostElsewhere are the ranks of those who were in the last round, at a store whose place this one has taken, and have
// not come here: the host's first, unless it has left by itself.
func (r *roster) lostElsewhere() (ranks []int) {
	hostRank, _, lost := r.lostHost()
	agents, back, left, mixed := 0, 0, false, false
	found := map[int]bool{}
	for _, s := range r.waiting {
		if s.rec.Round != r.last {
			continue
		}
		agents, back, found[s.rec.Rank] = max(agents, s.rec.Agents), back+1, true
		mixed = mixed || s.rec.Agents != s.rec.Size
		if s.rec.Host == "" && s.rec.HostRank != noRank {
			left, found[s.rec.HostRank] = true, true
		}
	}
	if !lost && !left {
		return nil
	}
	missing := agents - back
	if lost {
		ranks, found[hostRank] = append(ranks, hostRank), true
		if hostRank == noRank { // it was not in the round
			missing++
		}
	}
	for rank := 0; len(ranks) < missing; rank++ {
		switch {
		case mixed: // torchrun's have ranks among ours
			ranks = append(ranks, noRank)
		case !found[rank]:
			ranks = append(ranks, rank)
		}
	}
	return ranks
}

// lostTogether is the verdict on the nodes that nobody has counted yet, and whether that ends the job.
func (r *roster) lostTogether() (v rendezvous.Verdict, over bool) {
	ranks := r.uncounted()
	if len(ranks) == 0 {
		return v, false
	}
	v = rendezvous.Verdict{
		Kind: rendezvous.Reassemble, Reason: reasonNodeLost, Rank: -1, Message: "a node of the last round was lost",
	}
	if len(ranks) > 1 {
		v.Message = fmt.Sprintf("%d nodes of the last round were lost together", len(ranks))
	}
	r.limit(&v, r.restarts, r.replacements+len(ranks))
	known := maps.Clone(r.lostOf)
	for i, rank := range ranks {
		r.limitRank(&v, known, r.lastSize()-i, rank)
		known[rank]++
	}
	return v, v.Kind == rendezvous.Fail
}

// allBack returns when everybody of the last round has come back who lives; never while some are known to be missing.
func (r *roster) allBack() time.Duration {
	if r.cutOff() || len(r.missing()) > 0 {
		return never
	}
	return max(r.gatherFrom, r.notBefore) + 2*r.patience
}

// hostHere is the index of the agent that serves this store among those that wait, -1 for none.
func (r *roster) hostHere() int {
	return slices.IndexFunc(r.waiting, func(s joiner) bool { return s.rec.Hosts })
}

// lostHost says whether the node is lost that served the store in the last round, and its rank there: those who were in
// it find another agent at this store, by, which was elected or has been started in the place of the lost one.
func (r *roster) lostHost() (rank int, by joinRecord, lost bool) {
	hosts := r.hostHere()
	if hosts < 0 || r.last == r.round && r.moved == 0 {
		return noRank, joinRecord{}, false
	}
	by = r.waiting[hosts].rec
	for _, s := range r.waiting {
		if _, back := r.tickets[s.rec.Host]; s.rec.Round == r.last && s.rec.Host != "" && !back {
			return s.rec.HostRank, by, true
		}
	}
	return noRank, joinRecord{}, false
}

// hostReturned is the verdict on the loss of a node that served the store and serves it again, and whether that ends
// the job. Where the store has moved, those who were in the last round have asked that before.
func (r *roster) hostReturned() (v rendezvous.Verdict, over bool) {
	rank, by, lost := r.lostHost()
	if !lost || r.moved > 0 {
		return v, false
	}
	v = rendezvous.Verdict{
		Kind: rendezvous.Reassemble, Reason: reasonNodeLost, Rank: -1, Subject: by.Node,
		Message: fmt.Sprintf("node %s, which hosts the store, was lost and has been started again", by),
	}
	r.limit(&v, r.restarts, r.replacements+1)
	r.limitRank(&v, r.lostOf, r.lastSize(), rank)
	return v, v.Kind == rendezvous.Fail
}

func times(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

func ordinal(n int) string {
	switch {
	case n%10 == 1 && n%100 != 11:
		return fmt.Sprintf("%dst", n)
	case n%10 == 2 && n%100 != 12:
		return fmt.Sprintf("%dnd", n)
	case n%10 == 3 && n%100 != 13:
		return fmt.Sprintf("%drd", n)
	}
	return fmt.Sprintf("%dth", n)
}
