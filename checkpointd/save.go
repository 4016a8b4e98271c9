package checkpointd

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"time"
)

// begin gives the worker memory for a step. reserve, which is begin without a step, has it prepared ahead.
func (c *session) begin(req request) (rep reply, file *os.File, err error) {
	reserve := req.Op == "reserve"
	s, st := c.service, c.set
	switch {
	case !c.saves:
		return reply{}, nil, fmt.Errorf("rank %d saves no shard", c.rank)
	case req.Size < 0 || req.Size > 1<<50 || req.Step < 0:
		return reply{}, nil, fmt.Errorf("cannot keep %d bytes of step %d", req.Size, req.Step)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if reserve {
		for _, o := range st.slots.shards[c.shard] { // as much as what there is, where the worker does not know
			req.Size = max(req.Size, st.mem[o].want)
		}
		if req.Size == 0 {
			return reply{Busy: true}, nil, nil
		}
	}
	var at moment
	if !reserve {
		at = c.momentLocked(req.Step)
		defer func() { c.ended = rep.Busy || rep.Full }()
	}
	began, told := time.Now(), false
	for {
		kind, chosen := st.slots.victim(c.shard, s.rulesLocked(req.Size))
		switch {
		case kind == takeSlot && reserve:
			return c.reserveLocked(chosen, req.Size)
		case kind == takeSlot:
			return c.takeLocked(chosen, req.Size, at)
		case reserve:
			return reply{Busy: true}, nil, nil
		case kind == waitDisk && !slices.ContainsFunc(st.slots.shards[c.shard], func(o *slot) bool { return o.Pins > 0 }):
			rep = c.fullLocked(at) // workers look at what it would have to wait for
			rep.Busy = true
			return rep, nil, nil
		case kind == waitDisk && !req.Persist:
			return reply{Busy: true}, nil, nil
		}
		if kind != waitRank {
			if !s.awaitLocked(began.Add(waitSave), c.gone) {
				return reply{Busy: true}, nil, nil
			}
			continue
		}
		if c.tired == chosen.At { // another save has waited for it long enough
			return reply{Busy: true, Note: st.laggards(chosen.At)}, nil, nil
		}
		limit := cmp.Or(s.cfg.rankLimit, waitRanks)
		until := limit
		if !told {
			until = limit / 10
		}
		switch {
		case s.awaitLocked(began.Add(until), c.gone):
		case time.Since(began) < until: // the worker has gone, or muster ends
			return reply{Busy: true}, nil, nil
		case !told:
			told = true
			s.cfg.Log.Warn().Int64("step", at.Step).Str("path", st.dir).Str("reason",
				st.laggards(chosen.At)).Msg("a worker waits until it may save")
		default:
			c.tired = chosen.At
			return reply{Busy: true, Note: st.laggards(chosen.At)}, nil, nil
		}
	}
}

// laggards says what a moment lacks.
func (st *set) laggards(at moment) string {
	missing := st.slots.missing(at)
	if slices.ContainsFunc(missing, func(shard int) bool { return !st.ours[shard] }) { // other nodes may have those
		return fmt.Sprintf("not all ranks have saved step %d to %s", at.Step, st.dir)
	}
	return fmt.Sprintf("of step %d nobody has saved the shards %v to %s", at.Step, missing, st.dir)
}

// momentLocked is the moment of a save that begins. One that is not brought to an end is begun anew by a worker that
// needs more memory than it had thought.
func (c *session) momentLocked(step int64) moment {
	at := moment{Era: c.eraLocked(), Step: step, Again: c.saved.Again}
	switch {
	case c.saved.Era != at.Era || c.saved.Step != at.Step:
		at.Again = 0
	case c.ended:
		at.Again++
	}
	c.saved, c.ended = at, false
	return at
}

// eraLocked is the era of what the worker saves. Ranks that never load follow those that do.
func (c *session) eraLocked() uint64 {
	loads := c.set.loads[c.rank]
	if loads == 0 {
		loads = len(c.set.view.Decisions)
	}
	return c.service.round<<eraShift | uint64(min(loads, loadsMax))
}

// reserveLocked makes the slot that the next save is going to take, and hands it over.
func (c *session) reserveLocked(chosen *slot, size int64) (reply, *os.File, error) {
	if chosen == nil {
		if !c.service.roomLocked(size, allMemory) {
			return reply{Busy: true}, nil, nil
		}
		var err error
		if chosen, err = c.service.newSlotLocked(c.set, c.shard, size); err != nil {
			return reply{}, nil, err
		}
	}
	return c.handOverLocked(chosen)
}

// takeLocked has a slot, a new one for nil, take a copy.
func (c *session) takeLocked(chosen *slot, size int64, at moment) (reply, *os.File, error) {
	s, st := c.service, c.set
	if chosen != nil && (chosen.Size < size || st.mem[chosen].grow(size) != nil) { // the state has grown, or somebody cut the file
		if !s.roomLocked(size-chosen.Size, allMemory) {
			return c.fullLocked(at), nil, nil
		}
		st.forget(c.shard, chosen)
		chosen = nil
	}
	if chosen == nil {
		if !s.roomLocked(size, allMemory) {
			return c.fullLocked(at), nil, nil
		}
		var err error
		if chosen, err = c.service.newSlotLocked(c.set, c.shard, size); err != nil {
			return reply{}, nil, err
		}
	}
	if chosen.State == slotReady && len(st.slots.shards[c.shard]) == 1 && !st.told["slots"] {
		st.told["slots"] = true
		s.cfg.Log.Warn().Str("path", st.dir).Int64("bytes", size).
			Msg("memory has room for one copy only: a worker that dies while it saves leaves none (--ckpt-slots)")
	}
	delete(st.copies, chosen)
	st.slots.begin(c.shard, chosen, at, c.id)
	if err := st.mem[chosen].begin(at, c.pid, time.Now().UnixNano()); err != nil {
		c.set.tear(chosen)
		return reply{}, nil, err
	}
	s.notifyLocked()
	return c.handOverLocked(chosen)
}

// fullLocked says that there is no memory for a step; nobody waits for the shard's copy of it.
func (c *session) fullLocked(at moment) reply {
	c.set.slots.begun[c.shard] = at
	c.service.notifyLocked()
	return reply{Full: true}
}

// rulesLocked are the rules for slots of so many bytes.
func (s *Service) rulesLocked(size int64) slotRules {
	r := slotRules{Slots: 2, Room: func() bool { return s.roomLocked(size, memoryShare) }}
	if s.cfg.Slots > 0 { // as somebody said: as long as there is any memory
		r.Slots, r.Room = s.cfg.Slots, func() bool { return s.roomLocked(size, allMemory) }
	}
	return r
}

// newSlotLocked makes memory for a shard.
func (s *Service) newSlotLocked(st *set, shard int, size int64) (*slot, error) {
	room := pageUp(size + size/slack)
	file, path, err := s.newFile(st, shard, headerSize+room)
	if err != nil {
		return nil, err
	}
	m, err := newMemory(file, path, room, size, s.cfg.RunID, shard, st.shards)
	if err != nil {
		return nil, err
	}
	chosen := st.slots.add(shard, room)
	st.mem[chosen] = m
	return chosen, nil
}

// handOverLocked tells the worker of a slot, with its descriptor where it has not got that yet.
func (c *session) handOverLocked(s *slot) (reply, *os.File, error) {
	m := c.set.mem[s]
	rep := reply{Slot: s.ID, Capacity: int64(len(m.bytes))}
	if c.sent[s.ID] {
		return rep, nil, nil
	}
	c.sent[s.ID] = true
	rep.New = true
	return rep, m.file, nil
}

// ready is told that a copy is whole.
func (c *session) ready(req request) error {
	s, st := c.service, c.set
	s.mu.Lock()
	defer s.mu.Unlock()
	slot := st.slots.find(c.shard, req.Slot)
	if slot == nil || slot.State != slotWriting || slot.Owner != c.id {
		return fmt.Errorf("slot %d is not being written by this worker", req.Slot)
	}
	m := st.mem[slot]
	l, used, err := m.layout(req.MetaOffset, req.MetaLength)
	now := time.Now()
	if err == nil {
		err = m.finish(req.MetaOffset, req.MetaLength, now.UnixNano())
	}
	if err != nil {
		c.set.tear(slot)
		s.notifyLocked()
		return err
	}
	slot.State, c.ended = slotReady, true
	s.placeLocked(&l)
	copied := &copied{layout: l, metaOff: req.MetaOffset, metaLen: req.MetaLength, used: used, persist: req.Persist, pid: c.pid, end: now}
	copied.compareAnew(m)
	st.copies[slot] = copied
	s.sealLocked(st, slot, copied)
	s.notifyLocked()
	return nil
}

// sealLocked has a copy's checksums computed behind the worker's back. A save that overwrites it ends that.
func (s *Service) sealLocked(st *set, slot *slot, of *copied) {
	m := st.mem[slot]
	m.hold()
	s.wg.Go(func() {
		defer m.release()
		stale := func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return st.copies[slot] != of || s.closed
		}
		sums, whole := m.sums(of.used, 1, stale)
		s.mu.Lock()
		defer s.mu.Unlock()
		if whole && st.copies[slot] == of && !s.closed {
			m.seal(of.used, sums)
			of.compareAnew(m)
			st.verified = slices.DeleteFunc(slices.Clone(st.verified), func(at moment) bool { return at == slot.At })
		}
	})
}

// abort gives a slot back that was not filled.
func (c *session) abort(id int) error {
	s := c.service
	s.mu.Lock()
	defer s.mu.Unlock()
	slot := c.set.slots.find(c.shard, id)
	if slot == nil || slot.State != slotWriting || slot.Owner != c.id {
		return fmt.Errorf("slot %d is not being written by this worker", id)
	}
	c.set.tear(slot)
	s.notifyLocked()
	return nil
}
