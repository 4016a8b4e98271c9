package warm

import (
	"context"
	"time"
)

// looking is a look at whether a template is out of date: what was changed, or why that is not known.
type looking struct {
	done    chan struct{} // closed when it is over
	over    time.Time     // when that was
	changed string
	err     error
}

// justMade is the look at what was imported just now.
func justMade() *looking {
	l := &looking{done: make(chan struct{}), over: time.Now()}
	close(l.done)
	return l
}

// Take returns the template for a start of workers, nil where they are to start as usual. It waits for one that is
// being made, unless it is for restarts alone, and has one made anew that is out of date. It never waits for a better
// one.
func (w *Warmer) Take(ctx context.Context) *Template {
	if w == nil {
		return nil
	}
	w.mu.Lock()
	if w.untended != nil {
		w.untended()
	}
	again := w.restarts
	w.mu.Unlock()
	t := w.Choose(ctx)
	if w.Rules.Restarts && again {
		w.tellRestart(t)
	}
	return t
}

// tellRestart says how the workers of a restart come to their imports, where nobody asked for a warm start.
func (w *Warmer) tellRestart(t *Template) {
	if t != nil {
		w.Log.Info().Int("modules", t.modules).Msg("the workers restart warm: their modules are imported already (--warm off: as usual)")
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	l := w.Log.Debug()
	if w.why != "" {
		l = l.Str("reason", w.why)
	}
	l.Msg("the workers restart as usual: no template of warm starts is ready")
}

// Choose is take for who starts no workers.
func (w *Warmer) Choose(ctx context.Context) *Template {
	limit := time.NewTimer(w.Rules.Wait)
	defer limit.Stop()
	tell := time.NewTicker(tellEvery)
	defer tell.Stop()
	for changes := 0; ; changes++ {
		w.mu.Lock()
		m := w.next
		w.mu.Unlock()
		if m == nil {
			return nil
		}
		if w.Rules.Restarts {
			select {
			case <-m.done:
			default:
				return nil
			}
		}
		if m.waited {
			limit.Reset(0) // its time is spent
		}
		select {
		case <-m.done:
		case <-tell.C:
			w.Log.Info().Str("step", m.at()).Msg("waiting for the template of warm starts")
			changes--
			continue
		case <-limit.C:
			select {
			case <-m.done: // both were ready
				continue
			default:
			}
			m.waited = true
			if !w.late {
				w.late = true
				w.Log.Warn().Str("step", m.at()).Dur("limit_ms", w.Rules.Wait).
					Msg("the template of warm starts is not ready in time: workers start as usual (--warm-wait)")
			}
			return nil
		case <-ctx.Done():
			return nil
		}
		if m.template == nil {
			return nil
		}
		what, err := w.look(ctx, m, tell.C)
		if ctx.Err() != nil {
			return nil // who looks goes on, and what that says is there for the next start
		}
		if err == nil && what == "" {
			return m.template
		}
		message := "the template of warm starts does not answer: making another one"
		if w.Rules.Restarts {
			message = "the workers restart as usual: the template of warm starts does not answer"
		}
		w.replace(m, what, err, message)
		if changes == changesLimit {
			return nil // somebody is at work there; the next start may find it quiet
		}
	}
}

// look finds out whether the template is out of date, or what the look that has begun already says. It returns early
// where ctx ends.
func (w *Warmer) look(ctx context.Context, m *making, tell <-chan time.Time) (what string, err error) {
	l := w.beginLook(m, false)
	for {
		select {
		case <-l.done:
			m.mu.Lock()
			defer m.mu.Unlock()
			if m.looking == l {
				m.looking = nil
			}
			return l.changed, l.err
		case <-tell:
			w.Log.Info().Str("step", "a look at what it has imported").Msg("waiting for the template of warm starts")
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
}

// beginLook has the template looked at, and returns at once. One look at a time: where anew is false what the last one
// says will do for a while.
func (w *Warmer) beginLook(m *making, anew bool) *looking {
	m.mu.Lock()
	defer m.mu.Unlock()
	if l := m.looking; l != nil {
		select {
		case <-l.done:
			if !anew && time.Since(l.over) < lookHolds {
				return l
			}
		default:
			return l
		}
	}
	l := &looking{done: make(chan struct{})}
	m.looking = l
	w.wg.Go(func() {
		l.changed, l.err = m.template.changed()
		l.over = time.Now()
		close(l.done)
	})
	return l
}

// LookAhead has the template looked at behind the back of whoever is going to take it at once.
func (w *Warmer) LookAhead() {
	if m := w.ready(); m != nil {
		w.beginLook(m, true)
	}
}
