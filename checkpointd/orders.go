package checkpointd

import (
	"slices"

	"muster/checkpointd/planner"
)

// carryOutLocked does what the leader's view of a set asks of this node. Views are whole: what was begun is not begun
// again.
func (s *Service) carryOutLocked(v *planner.SetView) {
	st := s.findSetLocked(v.Key)
	if st == nil {
		if len(v.Fetch) == 0 { // of others, and none of our business
			return
		}
		st = newSet(v.Dir, v.Shards)
		s.sets = append(s.sets, st)
		s.nameLocked(st)
	}
	s.learnLocked(st, v)
	st.view = *v
	st.slots.told = &toldMoments{complete: v.Complete, dead: v.Dead}
	s.noteSavedLocked(st)
	st.repin(v.Pin)
	for _, m := range v.Verify {
		s.verifyLocked(st, m)
	}
	if v.Write != nil {
		s.writePartLocked(st, *v.Write)
	} else if len(v.Pin) == 0 || !v.Busy {
		s.endPartLocked(st)
	}
	for _, c := range v.Sum {
		if slot := st.slots.at(c.Shard, c.At); slot != nil {
			s.digestLocked(st, slot)
		}
	}
	for _, f := range v.Fetch {
		s.fetchLocked(st, f.Shard, f.At, f.From)
	}
	s.tidyLocked(st)
	if i := slices.Index(s.retired, st); i >= 0 && v.Open && !v.Busy && s.participant.seen >= st.asked && len(st.fetching) == 0 &&
		len(st.verifying) == 0 &&
		(len(v.Complete) == 0 || v.Committed.Compare(v.Complete[0]) >= 0) {
		st.repin(nil)
		st.release()
		s.retired = slices.Delete(s.retired, i, i+1)
	}
}

// learnLocked hears what is on disk, and what is on its way there, and notes it where that is new.
func (s *Service) learnLocked(st *set, v *planner.SetView) {
	now := st.diskState
	if v.Open && v.Head != st.view.Head { // else a worker may have written since
		now.head = v.Head
	}
	if v.Committed.Compare(now.committed) > 0 {
		now.committed = v.Committed
	}
	if v.Next != "" {
		now.next, now.nextAt = v.Next, v.NextAt
	}
	if now != st.diskState {
		st.diskState = now
		s.noteLocked()
	}
}

// repin keeps the slots of moments, and only those, from being overwritten.
func (st *set) repin(moments []moment) {
	for _, slots := range st.slots.shards {
		for _, slot := range slots {
			pin := slot.State == slotReady && slices.Contains(moments, slot.At)
			if pin != slot.Kept {
				slot.Kept = pin
				if pin {
					slot.Pins++
				} else {
					slot.Pins--
				}
			}
		}
	}
}

// tidyLocked frees copies of shards that other nodes' workers save, once a newer step of this round has come.
func (s *Service) tidyLocked(st *set) {
	complete := st.view.Complete
	if len(complete) == 0 || complete[0].Era>>eraShift != s.round {
		return
	}
	for shard, slots := range st.slots.shards {
		if st.ours[shard] {
			continue
		}
		for _, slot := range slices.Clone(slots) {
			if slot.free() && (slot.State != slotReady || slot.At.Compare(complete[0]) < 0) {
				st.forget(shard, slot)
			}
		}
	}
}
