package checkpointd

import (
	"fmt"
	"strconv"
	"time"
)

// progressEvery is how often a step that takes long to write says how far it is.
const progressEvery = 10 * time.Second

// write brings what a dead agent has left of a step to disk, and removes steps that are not to be kept.
func (s *Service) write(st *set, f *flush) (err error) {
	log := s.cfg.Log.With().Int64("step", f.at.Step).Str("path", st.dir).Int64("bytes", f.bytes()).Logger()
	began := time.Now()
	log.Info().Str("reason", leftWhy).Msg("writing the newest checkpoint in memory to disk")
	defer func() {
		if err != nil {
			err = fmt.Errorf("cannot write the checkpoint of step %d to %s: %w", f.at.Step, st.dir, err)
			log.Error().Err(err).Msg("checkpoint not written")
			return
		}
		log.Info().Dur("dur_ms", time.Since(began)).Msg("checkpoint written")
	}()
	writers, err := f.writers(s.pace)
	if err != nil {
		return err
	}
	c, err := s.commitment(st, f, newAttempt(), writers)
	if err != nil {
		return err
	}
	stop := s.showProgress(st, f, writers)
	err = c.run(s.ctx)
	stop()
	if err != nil {
		return err
	}
	if err := pruneOn(s.cfg.disk, st.dir, st.keep); err != nil {
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
