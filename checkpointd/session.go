package checkpointd

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// waitSave is how long a save waits for memory: for other ranks to come as far, and, where the step is to be
	// written, for the disk.
	waitSave  = 10 * time.Minute
	waitRanks = time.Minute
	// waitSalvage is how long a job waits for the steps that its killed predecessor has left to be brought to disk.
	waitSalvage = 10 * time.Minute
	shardsMax   = planner.MaxShards
	// slack is what a new slot has beyond what was asked for, as a fraction of it: states grow a little. Pages of it
	// that nobody writes cost nothing.
	slack = 8
)

// session is one worker's connection about one set.
type session struct {
	service *Service
	conn    *net.UnixConn
	id      int
	pid     int
	leave   sync.Once
	gone    chan struct{} // closed when the session is to end

	// Of the worker; set and those below it are guarded by Service.mu.
	rank, shard int
	saves       bool
	tired       moment // what a save has waited for in vain
	set         *set
	sent        map[int]bool  // slots whose descriptor it has
	held        map[int]*slot // that it looks at, or copies to
	restored    *decision     // what its last load told
	saved       moment        // of its last save
	ended       bool          // that has been brought to an end, with a copy or without
}

// hangUp ends the session: it meets the end of the connection.
func (c *session) hangUp() {
	c.leave.Do(func() { close(c.gone) })
	_ = c.conn.Close()
}

// finishLimit bounds how long a session reads on after its worker has ended. Somebody who inherited the connection may
// hold it.
const finishLimit = time.Second

// finish has the session read what its dead worker sent, and end.
func (c *session) finish() {
	c.leave.Do(func() { close(c.gone) })
	_ = c.conn.SetDeadline(time.Now().Add(finishLimit))
}

// serve answers requests until the worker is gone.
func (c *session) serve() {
	defer c.end()
	for {
		var req request
		if err := readFrame(c.conn, frameLimit, &req); err != nil {
			quiet := errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) || errors.Is(err, unix.ECONNRESET) ||
				errors.Is(err, os.ErrDeadlineExceeded)
			if !quiet { // it did not just die
				c.service.cfg.Log.Warn().Err(err).Int("pid", c.pid).Msg("a worker's connection for checkpoints was ended")
			}
			return
		}
		rep, file, err := c.answer(req)
		if err != nil {
			rep = reply{Error: err.Error()}
		}
		fd := -1
		if file != nil {
			fd = int(file.Fd())
		}
		if err := writeReply(c.conn, rep, fd); err != nil && !errors.Is(err, unix.EPIPE) { // a dead worker may have said more
			return
		}
		runtime.KeepAlive(file)
	}
}

// end gives back what the worker had.
func (c *session) end() {
	c.hangUp()
	s := c.service
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sessions, c)
	if c.set != nil {
		for _, slot := range c.held {
			slot.Holds--
		}
		for _, slots := range c.set.slots.shards {
			for _, slot := range slots {
				if slot.State == slotWriting && slot.Owner == c.id {
					c.set.tear(slot)
				}
			}
		}
	}
	s.notifyLocked()
}

// answer does what a request asks for. A file goes to the worker with the reply.
func (c *session) answer(req request) (reply, *os.File, error) {
	switch req.Op {
	case "hello":
		rep, err := c.hello(req)
		return rep, nil, err
	case "save":
		return reply{}, nil, c.service.saveNow(c.gone)
	}
	if c.set == nil {
		return reply{}, nil, errors.New("the first message is to be hello")
	}
	switch req.Op {
	case "reserve", "begin":
		return c.begin(req)
	case "ready":
		return reply{}, nil, c.ready(req)
	case "abort":
		return reply{}, nil, c.abort(req.Slot)
	case "load":
		return c.load()
	case "open":
		return c.open(req.Path)
	case "release":
		c.service.mu.Lock()
		defer c.service.mu.Unlock()
		c.letGoLocked(req.Slot)
		return reply{}, nil, nil
	case "written": // by the worker itself
		head := headOf(c.set.dir)
		c.service.mu.Lock()
		defer c.service.mu.Unlock()
		if c.set.committed = (moment{Era: c.eraLocked(), Step: req.Step}); c.saved.Step == req.Step {
			c.set.committed.Again = c.saved.Again
		}
		c.service.headLocked(c.set.dir, head)
		return reply{}, nil, nil
	case "wait":
		return c.wait(time.Duration(req.Millis) * time.Millisecond)
	}
	return reply{}, nil, fmt.Errorf("unknown request %q", req.Op)
}

func (c *session) hello(req request) (reply, error) {
	switch {
	case c.set != nil:
		return reply{}, errors.New("hello was said already")
	case req.Version != protocolVersion:
		return reply{}, fmt.Errorf("this muster speaks version %d of the protocol, not %d: the package muster comes from another one",
			protocolVersion, req.Version)
	case !filepath.IsAbs(req.Dir) || filepath.Clean(req.Dir) == "/":
		return reply{}, fmt.Errorf("cannot save checkpoints to %q: give a directory of its own", req.Dir)
	case req.Shards < 1 || req.Shards > shardsMax || req.Shard < 0 || req.Shard >= req.Shards:
		return reply{}, fmt.Errorf("shard %d of %d is none", req.Shard, req.Shards)
	}
	s := c.service
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.team.direct || s.team.err != nil {
		return reply{Direct: s.team.direct}, s.team.err
	}
	dir := filepath.Clean(req.Dir)
	if err := s.openedLocked(dir, c.gone); err != nil {
		return reply{}, err
	}
	s.dirs[dir] = true
	st, err := s.setLocked(dir, req.Shards)
	if err != nil {
		return reply{}, err
	}
	told := reply{Local: s.team.local}
	req.Saves = req.Saves || req.Copies && told.Local
	told.Saves = req.Saves
	for until := time.Now().Add(finishLimit); req.Saves; { // that of a worker that has just died may not have been closed yet
		o := s.saverLocked(st, req.Shard)
		if o == nil {
			break
		}
		if !s.awaitLocked(until, c.gone) {
			return reply{}, fmt.Errorf("rank %d saves shard %d to %s already", o.rank, req.Shard, st.dir)
		}
	}
	st.reshards, st.replicas, st.across = req.Reshards, req.Replicas, req.Across
	if told.Local && req.Replicas > 1 && !st.told["token"] {
		st.told["token"] = true
		s.cfg.Log.Warn().Str("path", dir).Int("replicas",
			req.Replicas).Msg("no copies are made on other nodes: that takes a job token (--token-file)")
	}
	if st.keep.Latest = s.cfg.Keep; req.Keep > 0 {
		st.keep = KeepRules{Latest: req.Keep, Every: req.Every}
	}
	c.set, c.rank, c.shard, c.saves = st, req.Rank, req.Shard, req.Saves
	st.ours[c.shard] = st.ours[c.shard] || c.saves
	s.noteLocked()
	s.notifyLocked()
	if st.view.Write != nil { // which was asked for before a worker had named the directory
		s.writePartLocked(st, *st.view.Write)
	}
	for until := time.Now().Add(namedLimit + joinLimit); !st.view.Open && st.view.Err == ""; {
		if !s.team.led() || !s.awaitLocked(until, c.gone) {
			return reply{}, errors.New("the node that leads in checkpoints does not answer")
		}
	}
	if st.view.Err != "" {
		return reply{}, errors.New(st.view.Err)
	}
	return told, nil
}

// saverLocked is the session that saves a shard, nil where there is none.
func (s *Service) saverLocked(st *set, shard int) *session {
	for o := range s.sessions {
		if o.set == st && o.saves && o.shard == shard {
			return o
		}
	}
	return nil
}

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

func (c *session) letGoLocked(id int) {
	if slot := c.held[id]; slot != nil {
		slot.Holds--
		delete(c.held, id)
		c.service.notifyLocked()
	}
}
