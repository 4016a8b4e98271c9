package checkpointd

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// opening is a directory on its way to its first set. A disk may hang meanwhile: nobody but those who want that
// directory waits for it.
type opening struct {
	done bool
	lock *dirLock
	head string // see headOf
	err  error
}

// openedLocked waits until a directory is open, and whoever brings to disk what a dead agent has left for it is done.
// Of several nodes the one that leads opens it.
func (s *Service) openedLocked(dir string, gone <-chan struct{}) error {
	for until := time.Now().Add(waitSalvage); ; {
		if !s.participant.alone || slices.ContainsFunc(s.sets, func(st *set) bool { return st.dir == dir }) {
			return nil
		}
		o := s.openings[dir]
		switch {
		case o == nil:
			s.openings[dir] = s.open(dir)
		case !o.done:
			if !s.awaitLocked(until, gone) {
				return fmt.Errorf("cannot save checkpoints to %s: the disk does not answer", dir)
			}
		case o.err == nil:
			return nil
		default:
			delete(s.openings, dir)
			if !errors.Is(o.err, errLocked) || !s.beingSaved(dir) || time.Now().After(until) {
				return o.err
			}
			_ = s.awaitLocked(time.Now().Add(time.Second), gone)
			select {
			case <-gone:
				return o.err
			case <-s.ctx.Done():
				return o.err
			default:
			}
		}
	}
}

// open begins to open a directory.
func (s *Service) open(dir string) *opening {
	o := &opening{}
	s.wg.Go(func() {
		lock, err := openDir(s.cfg.disk, dir)
		head := headOf(dir)
		s.mu.Lock()
		defer s.mu.Unlock()
		o.done, o.lock, o.head, o.err = true, lock, head, err
		s.notifyLocked()
	})
	return o
}
