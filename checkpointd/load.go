package checkpointd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"muster/checkpointd/planner"
)

// tellPassedOver has the log say why steps on disk are not restored.
func (c *Config) tellPassedOver(dir string, notes []string) {
	if len(notes) > 0 {
		c.Log.Warn().Str("path", dir).Str("reason", joinNotes(notes)).Msg("a checkpoint on disk was passed over")
	}
}

func joinNotes(notes []string) string { return strings.Join(notes, "; ") }

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

// load tells a worker where to restore from. All workers of a round are told the same, whenever they ask for the same
// time: the leader decides.
func (c *session) load() (reply, *os.File, error) {
	s, st := c.service, c.set
	s.mu.Lock()
	defer s.mu.Unlock()
	n := st.loads[c.rank]
	st.loads[c.rank]++
	s.notifyLocked()
	for until := s.participant.loadLimit(); len(st.view.Decisions) <= n; {
		if !s.participant.led() || !s.awaitLocked(until, c.gone) {
			return reply{}, nil, s.participant.errSilent("what is to be restored")
		}
	}
	told, notes := st.view.Decisions[n], st.notes[n]
	s.mu.Unlock()
	d := st.decided(&told) // reads the directory
	s.mu.Lock()
	d.notes = append(slices.Clone(notes), d.notes...)
	return c.restoreLocked(d)
}

// decided makes a decision out of the leader's.
func (st *set) decided(told *planner.Decision) *decision {
	d := &decision{source: told.Source, at: told.At, from: told.From}
	if told.Note != "" {
		d.notes = []string{told.Note}
	}
	if told.Err != "" {
		d.err = errors.New(told.Err)
		return d
	}
	if told.Source != fromDisk {
		return d
	}
	steps, err := List(st.dir)
	for i := range steps {
		if steps[i].Step == told.At.Step && steps[i].Attempt == told.Attempt {
			d.step = &steps[i]
			return d
		}
	}
	d.err = fmt.Errorf("step %d, which the other nodes restore, is not in %s here: is that on a file system that all nodes share?",
		told.At.Step, st.dir)
	if err != nil {
		d.err = fmt.Errorf("%w (%w)", d.err, err)
	}
	return d
}

// loadLimit is when a worker that asks where to restore from gives up. Whoever leads itself knows that it reads,
// however long that takes.
func (t *participant) loadLimit() time.Time {
	if t.alone {
		return time.Now().AddDate(1, 0, 0)
	}
	return time.Now().Add(waitSave)
}
