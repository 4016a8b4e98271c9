package checkpointd

import (
	"cmp"
	"context"
	"time"

	"muster/checkpointd/planner"
)

// leftLimit is how long workers wait for a disk that is to say what of the memory of a killed muster is still needed.
// Nodes that know wait for those that do not: see callRound.
const leftLimit = joinLimit/2 - 5*time.Second

// awaitLeft is leftBehind within a limit, unless the node takes part in a lineage already. A search that takes longer
// goes on, for a round that begins before the node takes part in one.
func (t *participant) awaitLeft(ctx context.Context) []*leftover {
	if t.s.segments == nil || t.lineage != 0 || ctx.Err() != nil {
		return nil
	}
	select {
	case old := <-t.search: // others may have written since then
		closeAll(old)
		t.search = nil
	default:
	}
	if t.search == nil {
		found := make(chan []*leftover, 1)
		t.search = found
		go func() { found <- t.leftBehind() }() // nobody waits for it that ends: it touches nothing of this muster's
	}
	late := time.NewTimer(cmp.Or(t.s.cfg.leftLimit, leftLimit))
	defer late.Stop()
	select {
	case left := <-t.search:
		t.search = nil
		return left
	case <-late.C:
		t.s.cfg.Log.Warn().Str("try", "end the job before it saves, and start it again when the disk answers").
			Msg("the disk does not answer: what a killed muster of this run may have left in memory is not used")
	case <-ctx.Done():
	}
	return nil
}

// endSearch leaves what is found from now on to others.
func (t *participant) endSearch() {
	if found := t.search; found != nil {
		t.search = nil
		go func() { closeAll(<-found) }()
	}
}

func closeAll(left []*leftover) {
	for _, lo := range left {
		lo.close()
	}
}

// leftBehind takes what killed agents of this run have left on the node where it has been one of several. The caller
// closes them.
func (t *participant) leftBehind() (found []*leftover) {
	s := t.s
	for _, path := range labelPaths(s.segments.dir) {
		l, err := readLabel(path)
		if err != nil || l.RunID != s.cfg.RunID || l.Lineage == 0 || isKept(path) {
			continue
		}
		if lo := s.openUsable(path, ""); lo != nil {
			found = append(found, lo)
		}
	}
	return found
}

// inheritLocked takes part in a lineage. Its copies that were left on this node are ours from then on, under the
// moments that they had: other nodes have the other shards. What is left of lineages before it is older, and is given
// up, as is what the lineage has gone on from without this node. What somebody else has written over stays.
func (t *participant) inheritLocked(left []*leftover, call roundCall) {
	s, lineage := t.s, call.Lineage
	if t.lineage != 0 && t.lineage != lineage { // the nodes that it was with are not among these
		for _, st := range s.allSetsLocked() {
			st.giveUp()
			st.diskState, st.view.Head = diskState{committed: planner.Never, nextAt: planner.Never}, ""
		}
	}
	t.lineage = lineage
	s.noteLocked() // whoever finds what is linked before it is noted again is to know whose it is
	kept := map[*leftover]bool{}
	for _, lo := range left {
		if lo.label.Lineage != lineage {
			continue
		}
		for _, old := range lo.sets {
			st := s.findSetLocked(planner.Key{Dir: old.dir, Shards: old.shards})
			if st == nil {
				st = s.successorLocked(old)
				st.slots.told = &toldMoments{}
				s.sets = append(s.sets, st)
			}
			if old.committed.Compare(st.committed) > 0 {
				st.committed = old.committed
			}
			if err := s.takeOverLocked(st, old, func(at moment) (moment, bool) { return at, true }); err != nil {
				s.cfg.Log.Warn().Err(err).Str("path", st.dir).Msg("a checkpoint in memory is not used")
				kept[lo] = true
			}
			s.dirs[st.dir] = true // its workers had named it
			for _, of := range st.copies {
				if of.made() {
					s.placeLocked(&of.layout)
				}
			}
			if len(st.copies) > 0 {
				s.cfg.Log.Info().Str("path", st.dir).Int("shards", st.held()).Int("of", st.shards).Msg(leftUsed)
			}
		}
	}
	s.noteLocked()
	for _, lo := range left {
		if lo.label.Lineage > lineage || kept[lo] { // newer only where clocks have jumped
			continue
		}
		gone := lo.label.Lineage < lineage && len(lo.sets) > 0
		for st, head := range lo.others {
			written, ours := call.Heads[head]
			if newest, _ := st.newestHere(); ours && newest.Compare(written) <= 0 {
				lo.sets, gone = append(lo.sets, st), true
			} else {
				s.tellOthers(st)
			}
		}
		if gone {
			s.cfg.Log.Warn().Msg(
				"a killed muster of this run has left checkpoints in memory; the job has gone on without them, and they are given up")
		}
		if err := lo.dropAll(); err != nil {
			s.cfg.Log.Warn().Err(err).Msg("cannot remove checkpoints in memory")
		}
	}
}

// held is of how many shards there are copies on this node.
func (st *set) held() (n int) {
	for _, slots := range st.slots.shards {
		if len(slots) > 0 {
			n++
		}
	}
	return n
}
