package checkpointd

import (
	"cmp"
	"errors"
	"os"
	"slices"
	"time"

	"muster/checkpointd/planner"
)

// labelLocked is the label of the service as it is now.
func (s *Service) labelLocked(more ...*set) label {
	l := label{
		Version: labelVersion, RunID: s.cfg.RunID, PID: os.Getpid(), Socket: s.cfg.Socket, Begun: s.begun,
		Lineage: s.participant.lineage,
	}
	for _, st := range slices.Concat(s.allSetsLocked(), more) {
		l.Sets = append(l.Sets, labelSet{
			ID: st.id, Dir: st.dir, Shards: st.shards, Reshards: st.reshards, Keep: st.keep,
			Committed: st.committed, Head: st.head, Next: st.next, NextAt: st.nextAt,
		})
	}
	return l
}

// noteLocked writes down what whoever finds the segments has to know. more are sets that are ours in a moment.
func (s *Service) noteLocked(more ...*set) {
	if s.segments == nil {
		return
	}
	if err := s.segments.label.write(s.labelLocked(more...)); err != nil {
		s.cfg.Log.Warn().Err(err).Msg("cannot describe the checkpoints in memory: if muster is killed they cannot be told from older ones")
	}
}

// nameLocked gives a new set, which is among the others, its number in the label.
func (s *Service) nameLocked(st *set) {
	s.setID++
	st.id = s.setID
	s.noteLocked()
}

// headLocked says which step the trackers of a directory name since one of ours was written.
func (s *Service) headLocked(dir, head string) {
	for _, st := range s.allSetsLocked() {
		if st.dir == dir {
			st.head = head
		}
	}
	s.noteLocked()
}

// beingSaved reports whether somebody brings to disk what a dead agent has left for a directory.
func (s *Service) beingSaved(dir string) bool {
	return s.segments != nil && slices.ContainsFunc(labelPaths(s.segments.dir), func(path string) bool {
		l, err := readLabel(path)
		return err == nil && l.Saving && isKept(path) && slices.ContainsFunc(l.Sets, func(of labelSet) bool { return of.Dir == dir })
	})
}

// Label is the file that describes the checkpoints in memory, for Salvage; empty where they die with muster.
func (s *Service) Label() string {
	if s.segments == nil {
		return ""
	}
	return s.segments.label.path
}

// unwrittenLocked reports whether a step that is in memory could not be written to disk. Its memory then stays, for
// another attempt; not so where somebody was in a hurry.
func (s *Service) unwrittenLocked() bool {
	left := false
	for _, st := range s.allSetsLocked() {
		at, unwritten := st.unwritten()
		how := HowToSave
		if !s.participant.alone { // whether all nodes have it nobody may be left to tell
			at, _ = st.newestHere()
			unwritten, how = at.Compare(st.committed) > 0, HowToGoOn
		}
		if !unwritten || !s.failedLocked(st) && !s.untouchedLocked(at) {
			continue
		}
		for shard := range st.shards {
			if slot := st.slots.at(shard, at); slot != nil && st.mem[slot].path == "" {
				unwritten = false
			}
		}
		if unwritten {
			left = true
			for _, m := range st.mem {
				m.path = ""
			}
			s.cfg.Log.Error().Int64("step", at.Step).Str("path", st.dir).Msg(how)
		}
	}
	return left
}

// failedLocked reports whether the newest step of a set is, or may be, not on disk, though nobody gave up waiting for
// that.
func (s *Service) failedLocked(st *set) bool {
	return !s.participant.hurried && (st.view.Failed != "" || !st.view.Open || s.participant.lost())
}

// untouchedLocked reports whether a moment is of a job that was killed, which this one could not restore and has saved
// nothing since: other nodes may have the shards that were missing.
func (s *Service) untouchedLocked(at moment) bool {
	return !s.participant.hurried && at.Era < s.participant.joined
}

// HowToSave is said where checkpoints stay in memory.
const HowToSave = "the newest checkpoint stays in memory: muster ckpt ls shows it, muster ckpt save writes it to disk, and muster ckpt " +
	"drop gives it up"

// HowToGoOn is said where a node's part of checkpoints of several nodes stays in memory.
const HowToGoOn = "what this node has of the newest checkpoint stays in memory: start the job again on all nodes with the same run id " +
	"(--run-id or --rdzv-id), and it goes on from there; muster ckpt ls shows it, muster ckpt save writes what is whole here, and " +
	"muster ckpt drop gives it up"

// end removes the label and what is left of segments, unless they are to stay.
func (g *segments) end(stay bool) error {
	if stay {
		g.label.close()
		return nil
	}
	return g.label.remove()
}

// adoptLocked looks for what a killed agent of the same run has left for a directory, which st has just locked. It
// returns a set that has it; nil where there is nothing.
func (s *Service) adoptLocked(st *set) *set {
	if s.segments == nil {
		return nil
	}
	type candidate struct {
		*leftover
		st *set
	}
	var found []candidate
	for _, path := range labelPaths(s.segments.dir) {
		l, err := readLabel(path)
		if err != nil || !slices.ContainsFunc(l.Sets, func(o labelSet) bool { return o.Dir == st.dir }) || isKept(path) {
			continue
		}
		log := s.cfg.Log.With().Str("path", st.dir).Str("run_id", l.RunID).Logger()
		if l.RunID != s.cfg.RunID {
			log.Warn().Msg("a job with another run id was killed and has left checkpoints in memory for this directory: muster ckpt ls")
			continue
		}
		if l.Lineage != 0 {
			log.Warn().Msg("a job of several nodes was killed and has left checkpoints in memory for this directory: muster ckpt ls")
			continue
		}
		lo := s.openUsable(path, st.dir)
		if lo == nil {
			continue
		}
		defer lo.close()
		for old := range lo.others {
			s.tellOthers(old)
		}
		for _, old := range lo.sets {
			found = append(found, candidate{lo, old})
		}
	}
	slices.SortStableFunc(found, func(a, b candidate) int {
		return cmp.Or(b.st.saved().Compare(a.st.saved()), b.label.Begun.Compare(a.label.Begun))
	})
	var adopted *set
	for _, c := range found {
		if adopted == nil && len(c.st.slots.complete()) > 0 {
			if adopted = s.succeedLocked(c.st); adopted == nil {
				continue
			}
		}
		if err := c.drop(c.st); err != nil { // its names, where it was adopted; else it is older than what was, or in pieces
			s.cfg.Log.Warn().Err(err).Str("path", st.dir).Msg("cannot remove checkpoints in memory")
		}
	}
	return adopted
}

// saved is when the newest complete step was, the zero time for none.
func (st *set) saved() (newest time.Time) {
	if complete := st.slots.complete(); len(complete) > 0 {
		for shard := range st.shards {
			if end := st.copies[st.slots.at(shard, complete[0])].end; end.After(newest) {
				newest = end
			}
		}
	}
	return newest
}

// leftWhy is why a step of a killed agent is written.
const leftWhy = "it was left in memory"

// leftUsed is said where an agent goes on with what another one has left.
const leftUsed = "a killed muster of this run has left checkpoints in memory, which are used"

// succeedLocked makes the complete steps of a dead agent's set our own. Their eras come before all of ours.
func (s *Service) succeedLocked(old *set) *set {
	complete := old.slots.complete()
	eras := []uint64{old.committed.Era}
	for _, at := range complete {
		eras = append(eras, at.Era)
	}
	slices.Sort(eras)
	eras = slices.Compact(eras)
	era := func(at moment) moment { at.Era = uint64(slices.Index(eras, at.Era)); return at }
	st := s.successorLocked(old)
	st.committed, st.next, st.nextAt = era(old.committed), "", planner.Never // whoever wrote next is dead
	err := s.takeOverLocked(st, old, func(at moment) (moment, bool) { return era(at), slices.Contains(complete, at) })
	if err != nil || len(st.slots.complete()) == 0 {
		s.cfg.Log.Warn().Err(err).Str("path", st.dir).Msg("checkpoints in memory are not used")
		st.release()
		return nil
	}
	s.cfg.Log.Info().Int64("step", st.slots.complete()[0].Step).Str("path", st.dir).Msg(leftUsed)
	s.noteLocked(st)
	for mine, m := range st.mem {
		_ = guarded(func() error { m.put64(headerEra, mine.At.Era); return nil }) // verify tells of memory that was cut
	}
	return st
}

// successorLocked is a set that goes on where a dead agent's has ended, still without its copies.
func (s *Service) successorLocked(old *set) *set {
	st := newSet(old.dir, old.shards)
	st.reshards, st.keep, st.diskState = old.reshards, old.keep, old.diskState
	s.setID++
	st.id = s.setID
	return st
}

// takeOverLocked makes copies of a dead agent's set those of st. Each gets a second name, which is ours, before the old
// one goes, so that at any time somebody can find them. as returns the moment of which a copy is here, and whether it
// is wanted. The error has what was left out.
func (s *Service) takeOverLocked(st, old *set, as func(moment) (moment, bool)) error {
	var errs []error
	for shard, slots := range old.slots.shards {
		for _, slot := range slots {
			at, wanted := as(slot.At)
			if !wanted || st.slots.at(shard, at) != nil { // there twice, where an agent that took it over was killed, too
				continue
			}
			m, path := old.mem[slot], s.segments.path(st.id, shard)
			if err := os.Link(m.path, path); err != nil {
				errs = append(errs, err)
				continue
			}
			mine := st.slots.add(shard, slot.Size)
			mine.State, mine.At = slotReady, at
			m.path = path
			st.mem[mine], st.copies[mine] = m, old.copies[slot]
			delete(old.mem, slot)
		}
	}
	return errors.Join(errs...)
}
