package checkpointd

import (
	"errors"
	"fmt"
	"strconv"
	"time"
)

// startLocked has the pending step of a set written, unless one is being written.
func (s *Service) startLocked(st *set) {
	if st.running != nil || st.pending == nil || s.closed {
		return
	}
	f := st.pending
	st.running, st.pending = f, nil
	s.wg.Go(func() {
		err := s.write(st, f)
		s.mu.Lock()
		defer s.mu.Unlock()
		f.unpin()
		st.running, st.failed, st.failedAt = nil, err, f.at
		if err == nil {
			st.committed, st.writtenTo = f.at, f.copies[0].stepDirOf(f.at.Step)
			s.headLocked(st.dir, st.next)
		}
		if errors.Is(err, errChecksum) { // an older one will do
			s.breakpointLocked(st, f.why)
		}
		st.releaseRetired()
		s.startLocked(st)
		s.notifyLocked()
	})
}

// progressEvery is how often a step that takes long to write says how far it is.
const progressEvery = 10 * time.Second

// compare compares the checksums of what is to be written, and gives up a copy that is damaged.
func (s *Service) compare(st *set, f *flush) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	bad, err := s.compareLocked(f)
	if err != nil {
		s.damagedLocked(st, f.shards[bad], f.slots[bad], err)
	}
	return err
}

// write brings a step to disk, and removes those that are not to be kept.
func (s *Service) write(st *set, f *flush) (err error) {
	log := s.cfg.Log.With().Int64("step", f.at.Step).Str("path", st.dir).Int64("bytes", f.bytes()).Logger()
	began := time.Now()
	level := log.Debug
	if f.why != "" {
		level = log.Info
		log.Info().Str("reason", f.why).Msg("writing the newest checkpoint in memory to disk")
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("cannot write the checkpoint of step %d to %s: %w", f.at.Step, st.dir, err)
			log.Error().Err(err).Msg("checkpoint not written")
			return
		}
		level().Dur("dur_ms", time.Since(began)).Msg("checkpoint written")
	}()
	if f.why != "" { // it was saved some time ago: what is damaged must not get new checksums
		if err := s.compare(st, f); err != nil {
			return err
		}
	}
	writers, err := f.writers(s.pace)
	if err != nil {
		return err
	}
	c, err := s.commitment(st, f, newAttempt(), writers)
	if err != nil {
		return err
	}
	s.mu.Lock()
	st.next, st.nextAt = c.attempt, f.at
	s.noteLocked()
	s.mu.Unlock()
	stop := s.showProgress(st, f, writers)
	err = c.run(s.ctx)
	stop()
	if err != nil {
		return err
	}
	s.mu.Lock()
	keep := st.keep
	s.mu.Unlock()
	if err := pruneOn(s.cfg.disk, st.dir, keep); err != nil {
		log.Warn().Err(err).Msg("old checkpoints were not removed")
	}
	return nil
}

// showProgress tells now and then how far the writing of a step is, until the function that it returns is called.
func (s *Service) showProgress(st *set, f *flush, writers []shardWriter) (stop func()) {
	done := make(chan struct{})
	s.wg.Go(func() {
		tick := time.NewTicker(progressEvery)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				var written int64
				for _, w := range writers {
					written += w.written.Load()
				}
				s.cfg.Log.Info().Int64("step", f.at.Step).Str("path", st.dir).Int64("bytes", f.bytes()).
					Str("written", strconv.FormatInt(written*100/max(1, f.bytes()), 10)+"%").Msg("writing a checkpoint")
			}
		}
	})
	return func() { close(done) }
}
