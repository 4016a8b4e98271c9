package checkpointd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"muster/checkpointd/planner"
	"muster/internal/peertls"
	"muster/internal/wire"
	"muster/rendezvous"
)

// leading is what the node with group rank 0 does for all: it has the reports, shows views, and does what the planner
// cannot do by itself.
type leading struct {
	s *Service

	ctx    context.Context // ends with the service, or when another node leads
	cancel context.CancelFunc
	acts   sync.WaitGroup

	mu      sync.Mutex
	planner *planner.Leader
	round   int
	size    int             // of the round
	members map[int]*member // by group rank
	late    *time.Timer
	changed chan struct{} // closed when a member has left

	opening map[string]*sync.Mutex // by directory, guarded by mu: a disk may hang
	locks   map[string]*dirLock    // by directory, guarded by mu

	links []*boardConn // to the nodes of the round, where they have no token; the agent's alone
}

// member is the connection of a node.
type member struct {
	conn net.Conn
	from peertls.Identity
	poke chan struct{}
	last []byte // the view that it was shown
}

func newLeading(s *Service) *leading {
	l := &leading{
		s: s, planner: planner.NewLeader(s.cfg.Replicas, newAttempt), members: map[int]*member{},
		opening: map[string]*sync.Mutex{}, locks: map[string]*dirLock{}, changed: make(chan struct{}),
	}
	l.planner.Local, l.planner.More = s.participant.local || s.participant.alone, true // one node gets no copy from another, too
	l.ctx, l.cancel = context.WithCancel(s.ctx)
	return l
}

// listen serves the other nodes of a round that have no token.
func (l *leading) listen(r rendezvous.Round, board rendezvous.Board) {
	for rank := 1; rank < r.GroupWorldSize; rank++ {
		conn := dialBoard(l.ctx, board, viewKey(rank), reportKey(rank), string(l.s.participant.id), r.GroupWorldSize, l.s.cfg.beat)
		l.links = append(l.links, conn)
		l.acts.Go(func() {
			defer func() { _ = conn.Close() }()
			from, err := conn.greet()
			if err != nil {
				l.ended(conn, rank, err)
				return
			}
			l.serve(conn, &greeting{Op: "join", Rank: rank, Round: r.Number, From: peertls.Identity(from)})
		})
	}
}

// begin begins a round of so many nodes, whose eras begin with era. Members of the round before have no part in it.
func (l *leading) begin(round, size int, era uint64, why string) {
	for _, conn := range l.links {
		_ = conn.Close()
	}
	l.links = nil
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, m := range l.members {
		_ = m.conn.Close()
	}
	l.members, l.round, l.size = map[int]*member{}, round, size
	l.planner.BeginRound(size, era, why)
	if l.late != nil {
		l.late.Stop()
	}
	l.late = time.AfterFunc(joinLimit, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.round == round {
			l.planner.GiveUp()
			l.followLocked()
		}
	})
}

// close ends the leading: what is being written is given up.
func (l *leading) close() {
	l.end()
	l.unlock()
}

// end is close, but for the locks.
func (l *leading) end() {
	if l == nil {
		return
	}
	l.cancel()
	l.mu.Lock()
	if l.late != nil {
		l.late.Stop()
	}
	for _, m := range l.members {
		_ = m.conn.Close()
	}
	l.mu.Unlock()
	l.acts.Wait()
}

// unlock lets others open the directories.
func (l *leading) unlock() {
	if l == nil {
		return
	}
	for _, lock := range l.locks {
		lock.close()
	}
}

// hold takes the lock of a directory that was opened.
func (l *leading) hold(dir string, lock *dirLock) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.locks[dir] = lock
}

// awaitMembers waits until the other nodes have gone: they have heard then that nothing is left to be done.
func (l *leading) awaitMembers(ctx context.Context) {
	limit := time.After(closeLimit)
	for {
		l.mu.Lock()
		left, changed := len(l.members), l.changed
		l.mu.Unlock()
		if left == 0 {
			return
		}
		select {
		case <-changed:
		case <-limit:
			return
		case <-ctx.Done():
			return
		}
	}
}

// serve takes a node's reports, and shows it views, until one of the two goes.
func (l *leading) serve(conn net.Conn, g *greeting) {
	rank := g.Rank
	m := &member{conn: conn, from: g.From, poke: make(chan struct{}, 1)}
	l.mu.Lock()
	if g.Round != l.round || l.ctx.Err() != nil {
		l.mu.Unlock()
		return
	}
	old := l.members[rank]
	if rank >= l.size || old != nil && old.from != m.from {
		l.mu.Unlock()
		l.misbehaved(conn, rank, fmt.Errorf("cannot join as node %d of %d, or that is another agent's place", rank, l.size))
		return
	}
	if old != nil { // its connection broke, and it has noticed first
		_ = old.conn.Close()
	}
	l.members[rank] = m
	l.mu.Unlock()
	var showing sync.WaitGroup
	showing.Go(func() { l.show(m, rank) })
	for {
		r := &planner.Report{}
		if err := wire.Read(conn, peerLimit, r); err != nil {
			l.ended(conn, rank, err)
			break
		}
		if err := r.Check(); err != nil || r.Addr != string(m.from) {
			l.misbehaved(conn, rank, errors.Join(err, errReport))
			break
		}
		l.mu.Lock()
		if l.members[rank] == m {
			l.planner.Report(rank, r)
			l.followLocked()
		}
		l.mu.Unlock()
	}
	_ = conn.Close()
	l.mu.Lock()
	if l.members[rank] == m {
		delete(l.members, rank)
		l.planner.Gone(rank)
		l.followLocked()
		close(l.changed)
		l.changed = make(chan struct{})
	}
	l.mu.Unlock()
	close(m.poke)
	showing.Wait()
}

var errReport = errors.New("its report cannot be taken")

// ended tells how a node's connection has ended, where that was not by the node's own end.
func (l *leading) ended(conn net.Conn, rank int, err error) {
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, net.ErrClosed), errors.Is(err, syscall.ECONNRESET),
		errors.Is(err, rendezvous.ErrStoreClosed): // the store of the round has gone, not the node
	case errors.Is(err, errSilent):
		l.s.cfg.Log.Warn().Int("group_rank",
			rank).Msg("a node is not heard of any more about checkpoints: what it alone has in memory counts as lost")
	default:
		l.misbehaved(conn, rank, err)
	}
}

func (l *leading) misbehaved(conn net.Conn, rank int, err error) {
	l.s.cfg.Log.Warn().Err(err).Int("group_rank", rank).Stringer("addr", conn.RemoteAddr()).Msg(peerMisbehaved)
}

// show sends a node its view whenever that has changed.
func (l *leading) show(m *member, rank int) {
	for range m.poke {
		l.mu.Lock()
		v := l.planner.View(rank)
		text, err := json.Marshal(v)
		same := string(text) == string(m.last)
		m.last = text
		l.mu.Unlock()
		if err != nil || !same && wire.Write(m.conn, json.RawMessage(text)) != nil {
			_ = m.conn.Close()
			return
		}
	}
}

// followLocked does what follows from a change.
func (l *leading) followLocked() {
	for _, a := range l.planner.Actions() {
		l.acts.Go(func() { l.act(a) })
	}
	for _, m := range l.members {
		select {
		case m.poke <- struct{}{}:
		default:
		}
	}
}

// tell has the planner hear of an outcome.
func (l *leading) tell(f func(*planner.Leader)) {
	if t := l.s.participant; t.alone {
		l.s.mu.Lock()
		defer l.s.mu.Unlock()
		l.mu.Lock()
		f(l.planner)
		l.mu.Unlock()
		t.consultLocked()
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	f(l.planner)
	l.followLocked()
}

// act does what the planner has asked for.
func (l *leading) act(a planner.Action) {
	switch a.Kind {
	case planner.Open:
		head := ""
		err := l.awaitOpenable(a.Dir)
		if err == nil {
			err = l.open(a.Dir)
			head = headOf(a.Dir)
		}
		l.tell(func(c *planner.Leader) { c.Opened(a.Key, head, err) })
	case planner.Choose:
		d := l.choose(a)
		l.tell(func(c *planner.Leader) { c.Chosen(a.Key, d) })
	case planner.Commit:
		err := l.commit(a)
		if err != nil {
			l.s.blame(a.Key, err)
		}
		l.tell(func(c *planner.Leader) { c.Committed(a.Key, a.Attempt, err) })
	case planner.Abort:
		log := l.s.cfg.Log.With().Int64("step", a.At.Step).Str("path", a.Dir).Str("reason", a.Why).Logger()
		if a.Again {
			log.Warn().Msg("the checkpoint is written once more")
		} else {
			log.Error().Msg("checkpoint not written")
		}
		if !l.s.named(a.Dir) {
			return // nothing was written here
		}
		if err := l.s.cfg.disk.RemoveAll(own(a.Dir, stagePrefix+a.Attempt)); err != nil {
			l.s.cfg.Log.Debug().Err(err).Msg("what was written of a checkpoint is left")
		}
	}
}

// lockPatience is how long a directory may still be locked by the node that led before.
const lockPatience = 45 * time.Second

// open makes and locks a directory, once for all sets in it.
func (l *leading) open(dir string) error {
	l.mu.Lock()
	if l.opening[dir] == nil {
		l.opening[dir] = &sync.Mutex{}
	}
	one := l.opening[dir]
	l.mu.Unlock()
	one.Lock()
	defer one.Unlock()
	l.mu.Lock()
	opened := l.locks[dir] != nil // by another set
	l.mu.Unlock()
	if opened {
		return nil
	}
	for began := time.Now(); ; {
		lock, err := openDir(l.s.cfg.disk, dir)
		if err == nil {
			l.hold(dir, lock)
			return nil
		}
		if !errors.Is(err, errLocked) || time.Since(began) > lockPatience || l.ctx.Err() != nil {
			return err
		}
		time.Sleep(200 * time.Millisecond)
	}
}

// choose finds the newest usable step on disk.
func (l *leading) choose(a planner.Action) planner.Decision {
	step, notes := chooseDisk(l.ctx, a.Dir)
	l.s.cfg.tellPassedOver(a.Dir, notes)
	note := joinNotes(notes)
	if step == nil {
		return planner.Decision{Source: planner.FromNone, Note: note}
	}
	d := planner.Decision{Source: planner.FromDisk, At: moment{Step: step.Step}, Attempt: step.Attempt, Note: note}
	if err := step.divides(a.Shards, a.Reshards); err != nil {
		d.Err = err.Error()
	}
	return d
}

// commit makes visible what all nodes have written.
func (l *leading) commit(a planner.Action) (err error) {
	s := l.s
	log := s.cfg.Log.With().Int64("step", a.At.Step).Str("path", a.Dir).Logger()
	began := time.Now()
	defer func() {
		if err == nil && s.cfg.Committed != nil {
			s.cfg.Committed(a.At.Step, a.Dir, time.Since(began))
		}
		if err != nil {
			err = fmt.Errorf("cannot commit the checkpoint of step %d in %s: %w", a.At.Step, a.Dir, err)
			log.Error().Err(err).Msg("checkpoint not written")
		} else if a.Why != "" {
			log.Info().Str("reason", a.Why).Msg("checkpoint written")
		} else {
			log.Debug().Msg("checkpoint written")
		}
	}()
	if err := l.awaitNamed(a.Dir); err != nil {
		return err
	}
	c := &commitment{
		disk: s.cfg.disk, dir: a.Dir, step: a.At.Step, runID: s.cfg.RunID, attempt: a.Attempt, shards: a.Shards, now: time.Now,
	}
	var files []File
	elsewhere := false
	var parts trackers
	for shard, text := range a.Results {
		var r partResult
		if err := json.Unmarshal(text, &r); err != nil {
			return fmt.Errorf("cannot read what shard %d has become: %w", shard, err)
		}
		if ours := s.wrote(&a, shard); !ours {
			if err := r.check(s, &a, shard); err != nil {
				return fmt.Errorf("what shard %d has become cannot be: %w", shard, err)
			}
			if s.participant.local {
				r.Trackers, r.Spare = nil, nil // rank 0, which is here, says the same
			}
		}
		if c.stepDir != "" && r.StepDir != c.stepDir {
			return errDirectories(shard, r.StepDir, 0, c.stepDir)
		}
		c.stepDir, c.spare = r.StepDir, append(c.spare, r.Spare...)
		if err := parts.add(r.Trackers); err != nil {
			return err
		}
		if len(files) > 0 && len(r.Files) > 0 && r.Elsewhere != elsewhere {
			return errSomeElsewhere
		}
		elsewhere = elsewhere || r.Elsewhere
		files = append(files, r.Files...)
	}
	if len(files) == 0 {
		return errors.New("none of its shards has a file")
	}
	c.trackers = parts.list
	for i := range files {
		path := c.stagedPath(&files[i], elsewhere)
		info, err := os.Stat(path)
		if err == nil && info.Size() != files[i].Size {
			err = fmt.Errorf("%s has %d bytes, and %d were written", path, info.Size(), files[i].Size)
		}
		if err != nil {
			return fmt.Errorf("the file of shard %d is not seen here as it was written: is %s on a file system that all nodes share? (%w)",
				files[i].Shard, a.Dir, err)
		}
	}
	if err := c.publish(files, elsewhere); err != nil {
		if !c.decided {
			err = errors.Join(err, c.giveUp(files, elsewhere))
		}
		return err
	}
	if err := pruneOn(s.cfg.disk, a.Dir, KeepRules{Latest: a.Keep, Every: a.Every}); err != nil {
		log.Warn().Err(err).Msg("old checkpoints were not removed")
	}
	return nil
}
