package checkpointd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// load tells a worker where to restore from. All workers of a round are told the same, whenever they ask for the same
// time.
func (c *session) load() (reply, *os.File, error) {
	s, st := c.service, c.set
	if s.team != nil {
		return c.loadTogether()
	}
	s.mu.Lock()
	for len(st.slots.complete()) == 0 && s.writingLocked(st.dir) { // what is on its way to disk is what is needed
		if !s.awaitLocked(time.Now().Add(waitSave), c.gone) {
			s.mu.Unlock()
			return reply{}, nil, errors.New("the step that is being written to disk does not come to an end")
		}
	}
	n := st.loads[c.rank]
	st.loads[c.rank]++
	for len(st.decisions) < n { // another worker has loaded less often, as one does that was started again alone
		st.decisions = append(st.decisions, nil)
	}
	var d *decision
	if n < len(st.decisions) && st.decisions[n] != nil {
		d = st.decisions[n]
	} else {
		d = &decision{done: make(chan struct{})}
		if n == len(st.decisions) {
			st.decisions = append(st.decisions, d)
		} else {
			st.decisions[n] = d
		}
		s.wg.Go(func() { // reading what is on disk takes long, and nobody waits for it whose worker has gone
			s.mu.Lock()
			defer s.mu.Unlock()
			s.decideLocked(st, d)
			close(d.done)
		})
	}
	s.mu.Unlock()
	select {
	case <-d.done:
	case <-c.gone:
		return reply{}, nil, errors.New("the worker has gone")
	case <-s.ctx.Done():
		return reply{}, nil, errEnds
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return c.restoreLocked(d)
}

// writingLocked reports whether a step is on its way to a directory.
func (s *Service) writingLocked(dir string) bool {
	for _, st := range s.allSetsLocked() {
		if st.dir == dir && (st.running != nil || st.pending != nil) {
			return true
		}
	}
	return false
}

// decideLocked finds the newest step that is whole, in memory or on disk. Reading checksums takes time: the lock is let
// go.
func (s *Service) decideLocked(st *set, d *decision) {
	for {
		complete := st.slots.complete()
		if len(complete) == 0 {
			break
		}
		at := complete[0]
		if st.committed.Step >= 0 && st.committed.Compare(at) > 0 {
			break // what was in memory since is lost
		}
		f := st.plan(at, "")
		bad, err := s.compareLocked(f)
		f.unpin()
		if bad < 0 {
			d.source, d.at = fromMemory, at
			return
		}
		s.damagedLocked(st, bad, f.slots[bad], err)
		if st.pending != nil && st.pending.at == at {
			st.pending.unpin()
			st.pending = nil
		}
		d.notes = append(d.notes, fmt.Sprintf("step %d in memory is not used: shard %d: %v", at.Step, bad, err))
		s.notifyLocked()
	}
	s.mu.Unlock()
	step, notes := chooseDisk(s.ctx, st.dir)
	s.mu.Lock()
	d.notes = append(d.notes, notes...)
	s.cfg.tellPassedOver(st.dir, notes)
	if step == nil {
		d.source = fromNone
		return
	}
	d.source, d.step, d.at = fromDisk, step, moment{Step: step.Step}
	d.err = step.divides(st.shards, st.reshards)
}

// tellPassedOver has the log say why steps on disk are not restored.
func (c *Config) tellPassedOver(dir string, notes []string) {
	if len(notes) > 0 {
		c.Log.Warn().Str("path", dir).Str("reason", joinNotes(notes)).Msg("a checkpoint on disk was passed over")
	}
}

func joinNotes(notes []string) string { return strings.Join(notes, "; ") }

// damagedLocked gives up a copy whose checksums are wrong.
func (s *Service) damagedLocked(st *set, shard int, slot *slot, err error) {
	s.cfg.Log.Warn().Err(err).Int64("step", slot.At.Step).Int("shard", shard).Msg("a checkpoint in memory was damaged, and is not used")
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
	f := st.plan(complete[0], "")
	s.wg.Go(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		_, _ = s.compareLocked(f) // whoever loads is told
		f.unpin()
		st.releaseRetired()
		s.notifyLocked()
	})
}

// restoreLocked carries a decision out for one worker.
func (c *session) restoreLocked(d *decision) (reply, *os.File, error) {
	rep := reply{Source: d.source, Step: d.at.Step, Note: joinNotes(d.notes)}
	if d.err != nil {
		return reply{}, nil, d.err
	}
	c.restored = d
	if st := c.set; d.source != fromNone && st.shown < st.loads[c.rank] {
		st.shown = st.loads[c.rank]
		c.service.cfg.Log.Info().Int64("step", d.at.Step).Str("from", d.source).Str("path", st.dir).Msg("workers restore a checkpoint")
	}
	switch d.source {
	case fromMemory:
		return c.lookLocked(c.shard, rep)
	case fromDisk:
		rep.Root = filepath.Join(d.step.Dir, d.step.stepDir())
		if f := d.step.shardFile(c.shard % d.step.Shards); f != nil {
			rep.Path = f.at(d.step.Dir)
		}
	}
	return rep, nil, nil
}

// lookLocked lets the worker look at a shard of the step that it restores.
func (c *session) lookLocked(shard int, rep reply) (reply, *os.File, error) {
	st := c.set
	slot := st.slots.at(shard, c.restored.at)
	if slot == nil && c.restored.from != nil {
		var err error
		if slot, err = c.bringLocked(shard); err != nil {
			return reply{}, nil, err
		}
	}
	if slot == nil {
		return reply{}, nil, fmt.Errorf("step %d, which the other ranks have restored, is not in memory any more", c.restored.at.Step)
	}
	at := st.copies[slot]
	if c.held[slot.ID] == nil {
		slot.Holds++
		c.held[slot.ID] = slot
	}
	rep.MetaOffset, rep.MetaLength = at.metaOff, at.metaLen
	m := st.mem[slot]
	rep.Slot, rep.Capacity, rep.New = slot.ID, int64(len(m.bytes)), true
	return rep, m.file, nil
}

// open lets the worker look at the shard that has a file of the step that it restores.
func (c *session) open(path string) (reply, *os.File, error) {
	s := c.service
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.restored == nil || c.restored.source != fromMemory {
		return reply{}, nil, errors.New("no step was restored from memory")
	}
	shard, ok := c.set.shardOf(path, c.restored.at)
	if !ok && c.restored.from != nil {
		shard, ok = c.findLocked(path)
	}
	if ok {
		return c.lookLocked(shard, reply{})
	}
	return reply{}, nil, fmt.Errorf("step %d in memory has no file %q", c.restored.at.Step, path)
}

// expectedLocked reports whether a step that is to be written lacks shards whose ranks have not come as far yet.
func (c *session) expectedLocked() bool {
	s, st := c.service, c.set
	complete := st.slots.complete()
	for slot, of := range st.copies {
		if !of.persist || slot.At.Era != c.eraLocked() || slot.At.Compare(st.committed) <= 0 || slices.Contains(complete, slot.At) ||
			st.slots.dead(slot.At) {
			continue
		}
		gone := false
		for shard := range st.shards {
			gone = gone || st.slots.at(shard, slot.At) == nil && (s.saverLocked(st, shard) == nil || st.slots.refused(shard, slot.At))
		}
		if !gone {
			return true
		}
	}
	return false
}

// wait waits until all that is to be written of a set is on disk.
func (c *session) wait(limit time.Duration) (reply, *os.File, error) {
	s, st := c.service, c.set
	until := time.Now().Add(limit)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.team != nil {
		return c.waitTogetherLocked(until)
	}
	for st.pending != nil || st.running != nil || c.expectedLocked() {
		if !s.awaitLocked(until, c.gone) {
			return reply{Committed: st.committed.Step}, nil, nil
		}
	}
	// What was damaged before this round is none of its workers' saves: they have restored something else.
	if st.failed != nil && (st.failedAt.Era == c.eraLocked() || !errors.Is(st.failed, errChecksum)) {
		return reply{}, nil, st.failed
	}
	return reply{Committed: st.committed.Step, Done: true}, nil, nil
}
