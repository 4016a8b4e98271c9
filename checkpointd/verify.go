package checkpointd

import (
	"fmt"
	"slices"
)

// damagedLocked gives up a copy whose checksums are wrong.
func (s *Service) damagedLocked(st *set, shard int, slot *slot, err error) {
	s.cfg.Log.Warn().Err(err).Int64("step", slot.At.Step).Int("shard", shard).Msg("a checkpoint in memory was damaged, and is not used")
	st.cause = err
	st.tear(slot)
}

// compareLocked compares the checksums of a pinned step, with the lock let go, and returns the first shard whose are
// wrong, -1 for none.
func (s *Service) compareLocked(f *flush) (bad int, err error) {
	var sound []func() error
	for _, c := range f.copies {
		sound = append(sound, c.sound)
	}
	s.mu.Unlock()
	defer s.mu.Lock()
	for shard, ok := range sound {
		if err := ok(); err != nil {
			return shard, err
		}
	}
	return -1, nil
}

// compareAheadLocked has the checksums of the newest complete step compared before workers ask for it: nobody is left
// who could write to it.
func (s *Service) compareAheadLocked(st *set) {
	complete := st.slots.complete()
	if len(complete) == 0 || s.closed {
		return
	}
	f := st.plan(complete[0])
	s.wg.Go(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		_, _ = s.compareLocked(f) // whoever loads is told
		f.unpin()
		s.notifyLocked()
	})
}

// compare compares the checksums of what is to be written, and returns the first copy that is damaged, -1 for none.
func (s *Service) compare(f *flush) (bad int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.compareLocked(f)
}

// verifyLocked has this node's copies of a moment compared with their checksums; those that differ are given up.
func (s *Service) verifyLocked(st *set, at moment) {
	if slices.Contains(st.verified, at) || st.verifying[at] {
		return
	}
	st.verifying[at] = true
	f := &flush{at: at}
	for shard := range st.slots.shards {
		if slot := st.slots.at(shard, at); slot != nil {
			f.add(st, shard, slot)
		}
	}
	sound := make([]func() error, len(f.copies))
	for i, of := range f.copies {
		sound[i] = of.sound
	}
	s.wg.Go(func() {
		errs := make([]error, len(sound))
		for i := range sound {
			errs[i] = sound[i]()
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		f.unpin()
		for i, slot := range f.slots {
			if errs[i] != nil && st.copies[slot] == f.copies[i] { // nobody has found that meanwhile
				s.damagedLocked(st, f.shards[i], slot, errs[i])
				n := len(st.view.Decisions)
				st.notes[n] = append(st.notes[n], fmt.Sprintf("step %d in memory is not used: shard %d: %v", at.Step, f.shards[i], errs[i]))
			}
		}
		delete(st.verifying, at)
		st.verified = append(slices.Clone(st.verified), at)
		s.notifyLocked()
	})
}
