package checkpointd

import (
	"maps"
	"slices"
	"time"
)

// savedApart is the least time between two steps that Config.Saved is told of: where every step is saved, that would be
// all there is to read.
const savedApart = time.Second

// savedSteps are steps that Config.Saved is to be told of, by directory. Service.mu guards them: who is told has locks
// of its own, under which it asks the service for its numbers, so that it is told by somebody who holds none.
type savedSteps struct {
	news    chan struct{} // room for one; nil: nobody is told
	last    map[string]moment
	pending map[string]savedStep
}

type savedStep struct {
	step int64
	at   time.Time
}

// noteSavedLocked notes a step that all ranks have saved in this round, where this node leads.
func (s *Service) noteSavedLocked(st *set) {
	complete := st.view.Complete
	if s.saved.news == nil || len(complete) == 0 || complete[0].Era>>eraShift != s.round || s.participant.leading == nil {
		return
	}
	if last, told := s.saved.last[st.dir]; told && complete[0].Compare(last) <= 0 {
		return
	}
	if s.saved.last == nil {
		s.saved.last = map[string]moment{}
	}
	if s.saved.pending == nil {
		s.saved.pending = map[string]savedStep{}
	}
	s.saved.last[st.dir], s.saved.pending[st.dir] = complete[0], savedStep{complete[0].Step, time.Now()}
	select {
	case s.saved.news <- struct{}{}:
	default: // it will be told with what came before
	}
}

// tellSaved tells of the steps that were saved until the service ends, and of the last ones then.
func (s *Service) tellSaved() {
	for over := false; !over; {
		select {
		case <-s.saved.news:
		case <-s.ctx.Done():
			over = true
		}
		s.mu.Lock()
		pending := s.saved.pending
		s.saved.pending = nil
		s.mu.Unlock()
		for _, dir := range slices.Sorted(maps.Keys(pending)) {
			s.cfg.Saved(pending[dir].step, dir, pending[dir].at)
		}
		if over {
			return
		}
		timer := time.NewTimer(savedApart)
		select {
		case <-timer.C:
		case <-s.ctx.Done():
		}
		timer.Stop()
	}
}
