package checkpointd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"muster/checkpointd/planner"
	"muster/internal/errhint"
	"muster/internal/unixsocket"
)

// Config says how a node keeps its workers' checkpoints.
type Config struct {
	// Socket is the path where workers reach the service; its directory must be there, and the user's alone.
	Socket string
	// RunID names the job in what is written.
	RunID string
	// Workers is how many workers the node has: memory is divided among them.
	Workers int
	// Slots is how many copies of its state a worker has in memory: 1 or 2; 0: 2 where memory allows it, which is where
	// both take less than MemoryShare of what is available.
	Slots int
	// Keep is how many committed steps stay on disk, 0 for all.
	Keep int
	// Rate is how many bytes a second are written to disk at most, 0 for as many as it takes.
	Rate int64
	// Memory is a directory in memory where checkpoints lie so that they outlive muster when it is killed:
	// DefaultMemory, or one that somebody chose. Empty: none do.
	Memory string
	// Dir is the directory of checkpoints that this node was given; empty: none, its workers choose. Nodes tell where
	// theirs differ.
	Dir string
	Log zerolog.Logger

	// Several says that the job has several nodes, which keep checkpoints together; Node is this one's name. Token is
	// the job's secret: they reach each other at Addr, a host or address, and have copies from each other. nil: they
	// agree through the rounds' boards, and copies stay where they are made.
	Several    bool
	Token      []byte
	Addr, Node string
	// Replicas is on how many nodes a copy of each shard is, the one that saved it included; 0 and 1: on that.
	Replicas int

	// Committed is told of each step that got its name on disk by this node, in which directory and how long that took;
	// nil: nobody is. It must not block.
	Committed func(step int64, dir string, took time.Duration)
	// Saved is told of steps that all ranks have saved to memory, each with its directory and when that was so: on the
	// node that leads, and of several within savedApart the newest. nil: nobody is. It must not block.
	Saved func(step int64, dir string, at time.Time)

	// disk and available are the real ones where they are nil, the times are leftLimit, waitRanks and boardBeat where
	// they are 0.
	disk      disk
	available func() int64
	leftLimit time.Duration
	rankLimit time.Duration
	beat      time.Duration // of a boardConn
}

// memoryShare is how much of the available memory another copy may take, allMemory how much the only one may.
const (
	memoryShare = 0.6
	allMemory   = 0.9
)

// Service keeps checkpoints for the workers of this node. Open starts it, Close ends it.
type Service struct {
	cfg         Config
	listener    *net.UnixListener
	participant *participant
	pace        *pace

	ctx    context.Context
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup // everything that was started
	conns  sync.WaitGroup // sessions

	mu       sync.Mutex
	changed  chan struct{} // closed and made anew when anything changes that somebody waits for
	sets     []*set
	retired  []*set              // of rounds with another number of shards: they are written, and nothing else
	openings map[string]*opening // by directory, until that has a set
	sessions map[*session]bool
	dirs     map[string]bool // that workers of this node have named
	places   map[string]bool // directories of files outside of those, likewise
	// The upper part of an era. Of a node that is alone it counts the groups of workers; 0 is that of what was left by
	// another muster.
	round    uint64
	nextConn int
	closed   bool
	segments *segments // nil: memory has no names
	begun    time.Time
	written  written
	setID    int // numbers the sets in the label
	saved    savedSteps
}

// Open begins to listen.
func Open(ctx context.Context, cfg Config) (*Service, error) {
	if cfg.disk == nil {
		cfg.disk = posix{}
	}
	if cfg.available == nil {
		cfg.available = availableMemory
	}
	s := &Service{
		cfg: cfg, pace: newPace(cfg.Rate), changed: make(chan struct{}), openings: map[string]*opening{},
		sessions: map[*session]bool{}, dirs: map[string]bool{}, places: map[string]bool{}, round: 1, begun: time.Now(),
	}
	var err error
	if s.listener, err = unixsocket.Listen(cfg.Socket); err != nil {
		return nil, fmt.Errorf("cannot listen for workers that save checkpoints: %w", err)
	}
	s.participant = newParticipant(s)
	if cfg.Memory != "" {
		if s.segments, err = openSegments(cfg.Memory, cfg.Memory != DefaultMemory, s.labelLocked()); err != nil {
			s.cfg.Log.Warn().Err(err).Msg("checkpoints in memory are lost if muster is killed")
		}
	}
	s.ctx, s.cancel = context.WithCancelCause(context.WithoutCancel(ctx)) // Close ends it, after the workers
	if err := s.participant.open(ctx); err != nil {
		return nil, errors.Join(err, s.listener.Close())
	}
	s.wg.Go(s.accept)
	if cfg.Saved != nil {
		s.saved.news = make(chan struct{}, 1)
		s.wg.Go(s.tellSaved)
	}
	return s, nil
}

func (s *Service) accept() {
	for {
		conn, err := s.listener.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			s.cfg.Log.Warn().Err(err).Msg("a worker could not connect for its checkpoints")
			time.Sleep(100 * time.Millisecond) // such as for want of descriptors
			continue
		}
		uid, pid, err := peerUID(conn)
		if err != nil || uid != os.Geteuid() {
			s.cfg.Log.Warn().Err(err).Int("uid", uid).Int("pid", pid).Msg("a process of another user was refused checkpoints")
			_ = conn.Close()
			continue
		}
		s.mu.Lock()
		if s.closed {
			s.mu.Unlock()
			_ = conn.Close()
			continue
		}
		s.nextConn++
		c := &session{
			service: s, conn: conn, id: s.nextConn, pid: pid, gone: make(chan struct{}), tired: planner.Never,
			sent: map[int]bool{}, held: map[int]*slot{},
		}
		s.sessions[c] = true
		s.conns.Add(1)
		s.mu.Unlock()
		go func() {
			defer s.conns.Done()
			c.serve()
		}()
	}
}

// notifyLocked wakes whoever waits for a change, and has the node that leads hear of it.
func (s *Service) notifyLocked() {
	s.wakeLocked()
	s.participant.reportLocked()
}

// wakeLocked wakes whoever waits for a change.
func (s *Service) wakeLocked() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// allSetsLocked are the sets, and those of other numbers of shards that are only to be written still.
func (s *Service) allSetsLocked() []*set {
	return append(append([]*set(nil), s.retired...), s.sets...)
}

// written is what was brought to disk of this node's memory: parts of steps, their bytes, and how long that took.
type written struct {
	parts, bytes int64
	took         time.Duration
}

// Wrote returns how many parts of steps this node has brought to disk, their bytes, and how long that took.
func (s *Service) Wrote() (parts, bytes int64, took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.written.parts, s.written.bytes, s.written.took
}

// wroteLocked takes in that a part was written that took since began.
func (s *Service) wroteLocked(bytes int64, began time.Time) {
	s.written.parts++
	s.written.bytes += bytes
	s.written.took += time.Since(began)
}

// findSetLocked returns a set, nil where there is none.
func (s *Service) findSetLocked(k planner.Key) *set {
	for _, st := range s.allSetsLocked() {
		if st.dir == k.Dir && st.shards == k.Shards {
			return st
		}
	}
	return nil
}

// awaitLocked waits until something changes, with the lock let go meanwhile, and reports whether that was before the
// deadline, before gone was closed and before the service was.
func (s *Service) awaitLocked(until time.Time, gone <-chan struct{}) bool {
	changed := s.changed
	s.mu.Unlock()
	defer s.mu.Lock()
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-changed:
		return true
	case <-timer.C:
	case <-gone:
	case <-s.ctx.Done():
	}
	return false
}

// RoundOver is told that the workers of a round have all ended: what they were copying is torn, what they were looking
// at is free, and the newest complete step is written behind those that come next. why stands in the log.
func (s *Service) RoundOver(why string) {
	s.mu.Lock()
	for c := range s.sessions {
		c.finish()
	}
	s.mu.Unlock()
	s.conns.Wait() // they were told to end, and do nothing that takes long
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.participant.alone {
		s.participant.nextAloneLocked(why)
		return
	}
	s.participant.ended = true
	s.notifyLocked()
}

// saveLocked has the newest complete step of a set written, by whoever decides that.
func (s *Service) saveLocked(st *set, why string) {
	st.urgent++
	st.why = why
	st.asked = s.participant.reportLocked()
}

// Save has the newest complete step written at once, while the workers go on. why stands in the log.
func (s *Service) Save(why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, st := range s.sets {
		s.saveLocked(st, why)
	}
	s.notifyLocked()
}

// Drain waits until everything that is to be written was written, or ctx ends.
func (s *Service) Drain(ctx context.Context) error { return s.participant.drained(ctx) }

// closeLimit is how long Close waits for a disk that hangs in a call. The process is about to end.
const closeLimit = 5 * time.Second

// drainTold is how often whoever waits for the disk is told so.
const drainTold = 10 * time.Second

// errEnds is why what is under way when the service is closed is given up.
var errEnds = errors.New("muster ends")

// Close ends the service and frees the memory. What Drain has not waited for is not written.
func (s *Service) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	for c := range s.sessions {
		c.hangUp()
	}
	s.mu.Unlock()
	s.participant.bye()
	s.cancel(errEnds)
	err := s.listener.Close()
	ended := make(chan struct{})
	go func() {
		led := s.participant.close()
		s.conns.Wait()
		s.wg.Wait()
		if s.participant.alone {
			s.removeParts()
		}
		led.unlock()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(closeLimit):
		err = errors.Join(err, fmt.Errorf("a disk does not answer within %v: what is being written to it is given up", closeLimit))
		if s.segments != nil {
			err = errhint.With(err, HowToSave)
		}
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.segments != nil {
		err = errors.Join(err, s.segments.end(s.unwrittenLocked()))
	}
	for _, st := range append(s.retired, s.sets...) {
		st.release()
	}
	for _, o := range s.openings { // by workers that have gone
		o.lock.close()
	}
	s.sets, s.retired, s.openings = nil, nil, nil
	return err
}

// setLocked returns the set of a directory and number of shards, which it makes where there is none. Another number of
// shards than before comes with another world: what is in memory is written, and given up.
func (s *Service) setLocked(dir string, shards int) (*set, error) {
	var st, before *set
	for _, o := range s.sets { // of one directory there are several where they were left by a killed agent
		switch {
		case o.dir != dir:
		case o.shards == shards:
			st = o
		default:
			before = o
		}
	}
	if before == nil && st == nil {
		return s.firstSetLocked(dir, shards)
	}
	if before == nil {
		return st, nil
	}
	for c := range s.sessions {
		if c.set == before {
			return nil, fmt.Errorf("cannot save %d shards to %s: other workers save %d there", shards, dir, before.shards)
		}
	}
	s.retireLocked(before, shards)
	if st == nil {
		s.succeedingLocked(before, shards)
	}
	return s.setLocked(dir, shards)
}

// succeedingLocked adds the set of so many shards that follows another one.
func (s *Service) succeedingLocked(before *set, shards int) {
	retired := func(o *set) bool { return o.dir == before.dir && o.shards == shards }
	if i := slices.IndexFunc(s.retired, retired); i >= 0 { // there are as many as once before
		s.sets, s.retired = append(s.sets, s.retired[i]), slices.Delete(s.retired, i, i+1)
		return
	}
	st := newSet(before.dir, shards)
	st.slots.told = &toldMoments{}
	st.head, st.view.Head = before.head, before.view.Head
	s.sets = append(s.sets, st)
	s.nameLocked(st)
}

// retireLocked has what is in memory of a set written, and then given up: so many shards follow it.
func (s *Service) retireLocked(st *set, shards int) {
	s.cfg.Log.Warn().Str("path", st.dir).Int("shards", shards).Int("before", st.shards).
		Msg("the number of shards has changed: what is in memory cannot be used, and is written to disk")
	s.sets = slices.DeleteFunc(s.sets, func(o *set) bool { return o == st })
	s.retired = append(s.retired, st)
	s.saveLocked(st, "the number of shards has changed")
}

// firstSetLocked makes the first set of a directory.
func (s *Service) firstSetLocked(dir string, shards int) (*set, error) {
	st := newSet(dir, shards)
	st.slots.told = &toldMoments{}
	if o := s.openings[dir]; o != nil { // else the node that leads opens it: see openedLocked
		delete(s.openings, dir)
		s.participant.leading.hold(dir, o.lock)
		st.head = o.head
		if left := s.adoptLocked(st); left != nil {
			left.slots.told = &toldMoments{}
			s.sets = append(s.sets, left)
			s.saveLocked(left, leftWhy)
			return s.setLocked(dir, shards)
		}
	}
	s.sets = append(s.sets, st)
	s.nameLocked(st)
	return st, nil
}

// roomLocked reports whether there is memory for another slot of size bytes for each worker, beside what is in use.
func (s *Service) roomLocked(size int64, share float64) bool {
	return float64(size)*float64(max(1, s.cfg.Workers)) <= share*float64(s.cfg.available())
}

// availableMemory is how many bytes can be had without swapping.
func availableMemory() int64 {
	free := int64(1) << 62
	if n, ok := meminfo("MemAvailable"); ok {
		free = n
	}
	for _, group := range [][2]string{
		{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"},
		{"/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"},
	} {
		limit, ok := readNumber(group[0])
		used, known := readNumber(group[1])
		if ok && known && limit > used {
			free = min(free, limit-used)
		}
	}
	return free
}

func pageUp(n int64) int64 {
	page := int64(unix.Getpagesize())
	return (n + page - 1) / page * page
}
