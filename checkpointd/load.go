package checkpointd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

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
	f := st.plan(complete[0], "")
	s.wg.Go(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		_, _ = s.compareLocked(f) // whoever loads is told
		f.unpin()
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
