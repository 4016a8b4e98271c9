package checkpointd

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/rs/zerolog"

	"muster/checkpointd/planner"
	"muster/internal/peertls"
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
	if i := slices.Index(s.retired, st); i >= 0 && v.Open && !v.Busy && s.team.seen >= st.asked && len(st.fetching) == 0 &&
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

// endPartLocked forgets what was written of a step: it counts, or does not. Then it is removed here, too: where nodes
// do not share the directory whoever leads does not see it.
func (s *Service) endPartLocked(st *set) {
	if st.attempt == "" {
		return
	}
	stage := (&commitment{dir: st.dir, attempt: st.attempt}).stage()
	st.attempt, st.written = "", nil
	s.wg.Go(func() { _ = s.cfg.disk.RemoveAll(stage) })
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

// fetchLocked gets a copy of a shard from another node, unless that is being done.
func (s *Service) fetchLocked(st *set, shard int, at moment, from int) {
	key := planner.Copy{Shard: shard, At: at}
	if st.fetching[key] || shard < 0 || shard >= st.shards || from < 0 || from >= len(s.team.addrs) || st.slots.at(shard, at) != nil {
		return
	}
	addr := s.team.addrs[from]
	bad := planner.Bad{Shard: shard, At: at, Addr: addr}
	if slices.Contains(st.bad, bad) {
		st.fetchErr = fmt.Errorf("cannot get shard %d of step %d from %s: what it has is not what was saved", shard, at.Step,
			peertls.Identity(addr).Addr())
		return
	}
	st.fetching[key], st.wants[key] = true, true
	s.wg.Go(func() {
		err := s.fetch(st, shard, at, peertls.Identity(addr))
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(st.fetching, key)
		if err == nil {
			delete(st.wants, key)
		}
		if _, differs := errors.AsType[*digestError](err); differs {
			st.bad = append(slices.Clone(st.bad[max(0, len(st.bad)-maxBad+1):]), bad) // a report may have the old list
		}
		if errors.Is(err, errNoRoom) && !st.told["replicas"] {
			st.told["replicas"] = true
			s.cfg.Log.Warn().Str("path", st.dir).Msg("memory has no room for copies of other nodes' checkpoints")
		} else if err != nil {
			st.fetchErr = fmt.Errorf("cannot get shard %d of step %d from %s: %w", shard, at.Step, peertls.Identity(addr).Addr(), err)
			level := zerolog.DebugLevel
			if !st.told["fetch"] {
				st.told["fetch"], level = true, zerolog.WarnLevel
			}
			s.cfg.Log.WithLevel(level).Err(st.fetchErr).Msg("a copy of a checkpoint was not received")
		}
		s.notifyLocked()
	})
}

// maxBad is how many copies that were not what had been stated are remembered.
const maxBad = 256

// wanting are the copies that are, or were to be, got, in order, whose digest is not known.
func (st *set) wanting() (list []planner.Copy) {
	for c := range st.wants {
		if st.stated(c) == nil {
			list = append(list, c)
		}
	}
	slices.SortFunc(list, func(a, b planner.Copy) int { return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.Shard, b.Shard)) })
	return list
}

// stated is the digest of a copy, as the leader passes it on from the node that made it; nil for none yet.
func (st *set) stated(c planner.Copy) *planner.Digest {
	for i := range st.view.Sums {
		if s := &st.view.Sums[i]; s.Shard == c.Shard && s.At == c.At {
			return &s.Digest
		}
	}
	return nil
}

// statedLimit is how long a copy that has come waits for what the node that made it states.
const statedLimit = 2 * time.Minute

// agreedLocked compares the digest of a copy that has come with what the node that made it has stated, and waits for
// that.
func (s *Service) agreedLocked(st *set, c planner.Copy, came planner.Digest) error {
	for until := time.Now().Add(statedLimit); ; {
		if stated := st.stated(c); stated != nil {
			if *stated != came {
				return &digestError{came, *stated}
			}
			return nil
		}
		if !s.team.led() || !s.awaitLocked(until, nil) {
			return errors.New("nobody says what its digest is")
		}
	}
}

// errNoRoom says that there is no memory for a copy.
var errNoRoom = errors.New("there is no memory for it")

// errNoToken refuses what would take a token.
var errNoToken = errors.New("nodes have copies from each other only with a job token")

// fetch receives a copy into a slot of its own.
func (s *Service) fetch(st *set, shard int, at moment, from peertls.Identity) error {
	if s.team.local {
		return errNoToken
	}
	ask := greeting{Op: "fetch", Key: planner.Key{Dir: st.dir, Shards: st.shards}, At: at, Shard: shard}
	conn, err := dialPeer(s.ctx, s.cfg.domain(), from, ask)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	stop := context.AfterFunc(s.ctx, func() { _ = conn.Close() })
	defer stop()
	_ = conn.SetReadDeadline(time.Now().Add(stallTime))
	var head copyHead
	if err := readFrame(conn, greetingLimit, &head); err != nil {
		return noEOF(err)
	}
	if err := head.check(); err != nil {
		return err
	}
	s.mu.Lock()
	if !s.roomLocked(head.Used, allMemory) || s.closed {
		s.mu.Unlock()
		return errNoRoom
	}
	slot, err := s.newSlotLocked(st, shard, head.Used)
	if err != nil {
		s.mu.Unlock()
		return err
	}
	slot.State, slot.At, slot.Owner = slotWriting, at, -1
	m := st.mem[slot]
	m.hold()
	err = m.begin(at, 0, time.Now().UnixNano())
	s.mu.Unlock()
	var digest planner.Digest
	if err == nil {
		digest, err = receiveCopy(s.ctx, conn, &head, m, func(ctx context.Context, part int) (net.Conn, error) {
			ask.Part, ask.Parts = part, head.Parts
			return dialPeer(ctx, s.cfg.domain(), from, ask)
		})
	}
	var of *copied
	if err == nil {
		var l layout
		var used int64
		if l, used, err = m.layout(head.MetaOff, head.MetaLen); err == nil {
			of = &copied{layout: l, metaOff: head.MetaOff, metaLen: head.MetaLen, used: used, persist: head.Persist, digest: &digest}
			if used > head.Used {
				err = fmt.Errorf("its files have %d bytes, and %d came", used, head.Used)
			}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	defer m.release()
	if err == nil {
		err = s.agreedLocked(st, planner.Copy{Shard: shard, At: at}, digest)
	}
	if err == nil {
		err = m.state(digest)
	}
	if err == nil {
		err = m.finish(head.MetaOff, head.MetaLen, time.Now().UnixNano())
	}
	if st.mem[slot] != m {
		return errors.New("the set was given up meanwhile")
	}
	if err != nil {
		st.forget(shard, slot)
		return err
	}
	slot.State = slotReady
	of.compareAnew(m)
	st.copies[slot] = of
	s.sealLocked(st, slot, of)
	st.repin(st.view.Pin)
	return nil
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

// partResult is what a node has written of a shard, for the node that commits.
type partResult struct {
	Files     []File      `json:"files,omitempty"`
	StepDir   string      `json:"step_dir"`
	Trackers  [][2]string `json:"trackers,omitempty"`
	Spare     []int64     `json:"spare,omitempty"`
	Elsewhere bool        `json:"elsewhere,omitempty"`
}

// writePartLocked writes this node's shards of a step.
func (s *Service) writePartLocked(st *set, o planner.Order) {
	if !s.namedLocked(st.dir) { // yet: see hello
		return
	}
	if st.attempt != o.Attempt {
		s.endPartLocked(st)
		st.attempt, st.written, st.begun, st.cause = o.Attempt, nil, map[int]bool{}, nil
	}
	f := &flush{at: o.At}
	for _, shard := range o.Shards {
		if shard < 0 || shard >= st.shards || st.begun[shard] {
			continue
		}
		slot := st.slots.at(shard, o.At)
		if slot == nil { // the view is older than its loss
			continue
		}
		st.begun[shard] = true
		f.add(st, shard, slot)
	}
	if len(f.shards) == 0 {
		return
	}
	var place error
	for _, of := range f.copies {
		place = errors.Join(place, s.checkLayoutLocked(st.dir, of))
	}
	s.wg.Go(func() {
		err, bad := place, -1
		if err == nil && o.Compare {
			bad, err = s.compare(f)
		}
		var results []partResult
		if err == nil {
			results, err = s.writeShards(st, f, o.Attempt)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		f.unpin()
		if bad >= 0 && errors.Is(err, errChecksum) && st.copies[f.slots[bad]] == f.copies[bad] { // an older one will do
			s.damagedLocked(st, f.shards[bad], f.slots[bad], err)
		}
		if err == nil {
			st.wrote, st.wroteTo = o.At, results[0].StepDir
		} else {
			st.cause = err
		}
		if st.attempt == o.Attempt {
			st.written = slices.Clone(st.written)
			for i, shard := range f.shards {
				w := planner.Written{Shard: shard}
				if err != nil {
					w.Err = fmt.Sprintf("%scannot write the checkpoint of step %d to %s: %v", s.who(), o.At.Step, st.dir, err)
				} else {
					w.Result, _ = json.Marshal(results[i]) // of names and numbers
				}
				st.written = append(st.written, w)
			}
		}
		s.notifyLocked()
	})
}

// who names this node before what it says to others, where it is one of several.
func (s *Service) who() string {
	if s.cfg.Node == "" {
		return ""
	}
	return "node " + s.cfg.Node + " "
}

// blame remembers why a step of a set was not committed.
func (s *Service) blame(k planner.Key, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if st := s.findSetLocked(k); st != nil {
		st.cause = err
	}
}

// writeShards writes the files of shards to where they lie until the step is committed.
func (s *Service) writeShards(st *set, f *flush, attempt string) ([]partResult, error) {
	writers, err := f.writers(s.pace)
	if err != nil {
		return nil, err
	}
	c, err := s.commitment(st, f, attempt, writers)
	if err != nil {
		return nil, err
	}
	stop := s.showProgress(st, f, writers)
	files, elsewhere, err := c.writeFiles(s.ctx)
	stop()
	if err != nil && s.team.alone {
		return nil, errors.Join(err, c.giveUp(files, elsewhere))
	}
	if err != nil && elsewhere {
		return nil, errors.Join(err, c.removeStaged(files))
	}
	if err != nil {
		return nil, err // the directory is the others', too: the node that leads removes it
	}
	results := make([]partResult, len(f.shards))
	for i, of := range f.copies {
		results[i] = partResult{StepDir: c.stepDir, Trackers: of.layout.Trackers, Spare: of.layout.Spare, Elsewhere: elsewhere}
	}
	for _, file := range files {
		i := slices.Index(f.shards, file.Shard)
		results[i].Files = append(results[i].Files, file)
	}
	return results, nil
}
