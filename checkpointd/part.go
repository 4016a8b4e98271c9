package checkpointd

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"muster/checkpointd/planner"
)

// endPartLocked forgets what was written of a step: it counts, or does not. Then it is removed here, too: where nodes
// do not share the directory whoever leads does not see it. Who led in an earlier round may still be committing it, for
// as long as the next one waits for the directory.
func (s *Service) endPartLocked(st *set) {
	if st.attempt == "" {
		return
	}
	stage, earlier := (&commitment{dir: st.dir, attempt: st.attempt}).stage(), st.ordered != s.round
	st.attempt, st.written = "", nil
	s.wg.Go(func() {
		if earlier {
			select {
			case <-s.ctx.Done():
			case <-time.After(lockPatience):
			}
		}
		_ = s.cfg.disk.RemoveAll(stage)
	})
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
		st.attempt, st.ordered, st.written, st.begun, st.cause = o.Attempt, s.round, nil, map[int]bool{}, nil
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
	if o.Compare {
		s.cfg.Log.Info().Int64("step", o.At.Step).Str("path", st.dir).Int64("bytes", f.bytes()).
			Msg("writing the newest checkpoint in memory to disk")
	}
	s.wg.Go(func() {
		began := time.Now()
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
			s.wroteLocked(f.bytes(), began)
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
	if err != nil && s.participant.alone {
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
