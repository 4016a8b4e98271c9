package checkpointd

import (
	"errors"
	"fmt"
	"net"
	"reflect"
	"slices"
	"time"

	"muster/checkpointd/planner"
	"muster/internal/wire"
)

// led reports whether this node hears what its leader decides.
func (t *participant) led() bool { return t.conn != nil || t.alone && !t.s.closed }

// errSilent says that the leader has not said something.
func (t *participant) errSilent(what string) error {
	if t.s.ctx.Err() != nil {
		return errEnds
	}
	return fmt.Errorf("the node that leads in checkpoints does not say %s", what)
}

// reportLocked has the leader told what has changed, and returns the number of the report that says what is now.
func (t *participant) reportLocked() uint64 {
	if !t.led() {
		return t.seq
	}
	r := planner.Report{Addr: string(t.id), Ended: t.ended}
	for _, st := range t.s.allSetsLocked() {
		r.Sets = append(r.Sets, t.s.setReportLocked(st))
	}
	if r.Seq = t.report.Seq; reflect.DeepEqual(r, t.report) {
		return t.seq
	}
	t.seq++
	r.Seq = t.seq
	t.report, t.unsent = r, true
	if t.alone {
		t.consultLocked()
	} else {
		t.wake()
	}
	return t.seq
}

// setReportLocked is what there is of a set on this node.
func (s *Service) setReportLocked(st *set) planner.SetReport {
	sr := planner.SetReport{
		Key: planner.Key{Dir: st.dir, Shards: st.shards}, Reshards: st.reshards, Replicas: st.replicas, Keep: st.keep.Latest,
		Every:    st.keep.Every,
		Verified: st.verified, Attempt: st.attempt, Written: st.written, Committed: st.committed, Next: st.next, NextAt: st.nextAt,
		Full:   st.told["replicas"],
		Urgent: st.urgent, Why: st.why, Begun: planner.Never, Want: st.wanting(), Bad: st.bad,
	}
	if t := s.participant; t.local {
		sr.Replicas, sr.Across = 0, st.across
		for i := range min(s.cfg.Workers, st.shards) {
			sr.Reads = append(sr.Reads, (t.base+i)%st.shards)
		}
	}
	for shard, slots := range st.slots.shards {
		for _, slot := range slots {
			if slot.State == slotReady {
				of := st.copies[slot]
				sr.Copies = append(sr.Copies, planner.Copy{Shard: shard, At: slot.At, Persist: of.persist})
				if st.writtenBefore(slot) && !slices.Contains(sr.Same, slot.At) {
					sr.Same = append(sr.Same, slot.At)
				}
				if of.digest != nil {
					sr.Sums = append(sr.Sums, planner.Sum{Shard: shard, At: slot.At, Digest: *of.digest, Made: of.made()})
				}
			}
		}
	}
	for c := range s.sessions {
		if c.set == st && c.saves {
			begun := st.slots.begun[c.shard]
			if st.slots.refused(c.shard, begun) {
				sr.Refused = append(sr.Refused, begun)
			}
			if len(sr.Saves) == 0 || begun.Compare(sr.Begun) < 0 {
				sr.Begun = begun
			}
			sr.Saves = append(sr.Saves, c.shard)
		}
	}
	slices.Sort(sr.Saves)
	for _, shard := range sr.Saves {
		sr.Begins = append(sr.Begins, st.slots.begun[shard])
	}
	slices.SortFunc(sr.Refused, moment.Compare) // sessions come in no order, and the same is not said twice
	for _, n := range st.loads {
		sr.Loads = max(sr.Loads, n)
	}
	return sr
}

// send sends the newest report whenever there is another one.
func (t *participant) send(conn net.Conn) {
	s := t.s
	for range t.poke {
		s.mu.Lock()
		if t.conn != conn {
			s.mu.Unlock()
			return
		}
		r, unsent := t.report, t.unsent
		t.unsent = false
		s.mu.Unlock()
		if unsent && wire.Write(conn, r) != nil {
			_ = conn.Close() // receive tells
			return
		}
	}
}

// receive takes the leader's views.
func (t *participant) receive(conn net.Conn) {
	s := t.s
	for {
		var v planner.View
		err := wire.Read(conn, peerLimit, &v)
		if err == nil {
			err = t.check(&v)
			if err != nil {
				s.cfg.Log.Warn().Err(err).Msg("the node that leads in checkpoints says what cannot be: it is not heard any more")
			}
		}
		s.mu.Lock()
		if t.conn != conn {
			s.mu.Unlock()
			return
		}
		if err != nil {
			_ = conn.Close()
			t.conn = nil
			if t.err == nil && !t.drain {
				t.err = errors.New("the node that leads in checkpoints is gone")
			}
			s.notifyLocked()
			s.mu.Unlock()
			t.wake()
			return
		}
		t.seen, t.addrs, t.drain = v.Seen, v.Addrs, v.Drained
		for i := range v.Sets {
			s.carryOutLocked(&v.Sets[i])
		}
		s.notifyLocked()
		s.mu.Unlock()
	}
}

// check returns an error where a view is none that the leader of this round could show.
func (t *participant) check(v *planner.View) error {
	if err := v.Check(); err != nil {
		return err
	}
	if len(v.Addrs) != t.size {
		return fmt.Errorf("it shows %d nodes, and this round has %d", len(v.Addrs), t.size)
	}
	gives := func(d planner.Decision) bool { return len(d.From) > 0 }
	for i := range v.Sets {
		if t.local && (len(v.Sets[i].Fetch) > 0 || slices.ContainsFunc(v.Sets[i].Decisions, gives)) {
			return errNoToken
		}
	}
	return nil
}

// answeredLocked waits until the leader's view follows from what is now, and tells whether it came.
func (t *participant) answeredLocked(until time.Time, gone <-chan struct{}) bool {
	for seq := t.reportLocked(); t.seen < seq; {
		if !t.led() || !t.s.awaitLocked(until, gone) {
			return false
		}
	}
	return true
}
