package checkpointd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/rs/zerolog"

	"muster/checkpointd/planner"
	"muster/internal/peertls"
	"muster/internal/wire"
)

// fetchLocked gets a copy of a shard from another node, unless that is being done.
func (s *Service) fetchLocked(st *set, shard int, at moment, from int) {
	key := planner.Copy{Shard: shard, At: at}
	if st.fetching[key] || shard < 0 || shard >= st.shards || from < 0 || from >= len(s.participant.addrs) ||
		st.slots.at(shard, at) != nil {
		return
	}
	addr := s.participant.addrs[from]
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
		if !s.participant.led() || !s.awaitLocked(until, nil) {
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
	if s.participant.local {
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
	if err := wire.Read(conn, greetingLimit, &head); err != nil {
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

// bringLocked gets a shard of the step that is restored from the node that has it.
func (c *session) bringLocked(shard int) (*slot, error) {
	s, st, d := c.service, c.set, c.restored
	if shard >= len(d.from) {
		return nil, fmt.Errorf("nobody has shard %d", shard)
	}
	st.fetchErr = nil
	for until := time.Now().Add(waitSave); ; {
		if slot := st.slots.at(shard, d.at); slot != nil {
			return slot, nil
		}
		if st.fetchErr != nil {
			return nil, st.fetchErr
		}
		s.fetchLocked(st, shard, d.at, d.from[shard])
		s.participant.reportLocked() // its digest is wanted
		if !st.fetching[planner.Copy{Shard: shard, At: d.at}] {
			return nil, fmt.Errorf("there is no way to get shard %d of step %d", shard, d.at.Step)
		}
		if !s.awaitLocked(until, c.gone) {
			return nil, fmt.Errorf("shard %d of step %d does not come", shard, d.at.Step)
		}
	}
}

// findLocked asks the other nodes which shard has a file of the step that is restored.
func (c *session) findLocked(path string) (shard int, ok bool) {
	s, st, at := c.service, c.set, c.restored.at
	addrs := slices.Clone(s.participant.addrs)
	s.mu.Unlock()
	defer s.mu.Lock()
	for _, addr := range addrs {
		conn, err := dialPeer(s.ctx, s.cfg.domain(), peertls.Identity(addr),
			greeting{Op: "find", Key: planner.Key{Dir: st.dir, Shards: st.shards}, At: at, Path: path})
		if err != nil {
			continue
		}
		_ = conn.SetReadDeadline(time.Now().Add(peerTime))
		var head copyHead
		err = wire.Read(conn, greetingLimit, &head)
		_ = conn.Close()
		if err == nil && head.Error == "" && head.Shard >= 0 && head.Shard < st.shards {
			return head.Shard, true
		}
	}
	return 0, false
}
