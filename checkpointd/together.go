package checkpointd

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"muster/checkpointd/planner"
	"muster/internal/peertls"
)

// load tells a worker where to restore from. All workers of a round are told the same, whenever they ask for the same
// time: the leader decides.
func (c *session) load() (reply, *os.File, error) {
	s, st := c.service, c.set
	s.mu.Lock()
	defer s.mu.Unlock()
	n := st.loads[c.rank]
	st.loads[c.rank]++
	s.notifyLocked()
	for until := s.team.loadLimit(); len(st.view.Decisions) <= n; {
		if !s.team.led() || !s.awaitLocked(until, c.gone) {
			return reply{}, nil, s.team.errSilent("what is to be restored")
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
		s.team.reportLocked() // its digest is wanted
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
	addrs := slices.Clone(s.team.addrs)
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
		err = readFrame(conn, greetingLimit, &head)
		_ = conn.Close()
		if err == nil && head.Error == "" && head.Shard >= 0 && head.Shard < st.shards {
			return head.Shard, true
		}
	}
	return 0, false
}

// wait waits until all that is to be written of a set is on disk.
func (c *session) wait(limit time.Duration) (reply, *os.File, error) {
	s, st := c.service, c.set
	until := time.Now().Add(limit)
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.team.answeredLocked(until, c.gone) && s.team.led() {
		return reply{Committed: st.committed.Step}, nil, nil
	}
	for st.view.Busy || !s.team.led() {
		if !s.team.led() {
			return reply{}, nil, cmp.Or(s.team.err, errEnds)
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
