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
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"muster/checkpointd/planner"
	"muster/internal/wire"
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
		if err := wire.Read(c.conn, frameLimit, &req); err != nil {
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
	if s.participant.direct || s.participant.err != nil {
		return reply{Direct: s.participant.direct}, s.participant.err
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
	told := reply{Local: s.participant.local}
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
		if !s.participant.led() || !s.awaitLocked(until, c.gone) {
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

func (c *session) letGoLocked(id int) {
	if slot := c.held[id]; slot != nil {
		slot.Holds--
		delete(c.held, id)
		c.service.notifyLocked()
	}
}

// wait waits until all that is to be written of a set is on disk.
func (c *session) wait(limit time.Duration) (reply, *os.File, error) {
	s, st := c.service, c.set
	until := time.Now().Add(limit)
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.participant.answeredLocked(until, c.gone) && s.participant.led() {
		return reply{Committed: st.committed.Step}, nil, nil
	}
	for st.view.Busy || !s.participant.led() {
		if !s.participant.led() {
			return reply{}, nil, cmp.Or(s.participant.err, errEnds)
		}
		if !s.awaitLocked(until, c.gone) {
			return reply{Committed: st.committed.Step}, nil, nil
		}
	}
	// What was lost before this round is none of its workers' saves: they have restored something else.
	if st.view.Failed != "" && (!st.view.Lost || st.view.FailedAt.Era >= c.eraLocked()) {
		return reply{}, nil, st.failure()
	}
	return reply{Committed: st.committed.Step, Done: true}, nil, nil
}
