package membership

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"muster/internal/printable"
)

// progressEvery is how often a meeting says who is waited for.
const progressEvery = 5 * time.Second

// waitlist reads how far the meeting is, and says it in a line.
func (h *Handler) waitlist(ctx context.Context) (l waitlist, text string) {
	h.mu.Lock()
	s := h.session
	h.mu.Unlock()
	switch {
	case s == nil:
		return l, "the store is out of reach"
	case s.ctx.Err() != nil:
		return l, s.where() + " is out of reach"
	}
	s.mu.Lock()
	term := s.mandate
	s.mu.Unlock()
	ctx, cancel := both(ctx, s.ctx)
	defer cancel()
	ctx, stop := context.WithTimeout(ctx, h.cfg.KeepAlive)
	defer stop()
	_, err := s.conn.get(ctx, h.keys.term(term, "lobby"), &l)
	if isUntrusted(err) {
		return waitlist{}, err.Error()
	}
	if err != nil {
		return waitlist{}, "no word from the coordinator"
	}
	if len(l.Standbys) > 0 {
		h.mu.Lock()
		h.standbys = l.Standbys
		h.mu.Unlock()
	}
	return l, shown(l.text(h.cfg.Min, h.cfg.Max))
}

// shown makes text from the network fit for a terminal.
func shown(text string) string {
	const most = 2000 // bytes
	return printable.Line(text, most)
}

// limit ends the returned context when the join timeout has passed, and tells every five seconds who is waited for
// until stop is called. A node that waits while a round runs is a spare: for it no time passes, and it reads at once
// where the store may move.
func (h *Handler) limit(ctx context.Context) (limited context.Context, stop func()) {
	limited, cancel := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		began, since, tells := time.Now(), time.Now(), time.Now().Add(progressEvery)
		knows := false // as a spare
		for limited.Err() == nil {
			left := h.cfg.JoinTimeout - time.Since(since)
			if left <= 0 {
				cancel(errJoinTimeout)
				return
			}
			select {
			case <-time.After(min(left, time.Until(tells), h.cfg.beatEvery())):
			case <-limited.Done():
				return
			}
			spare := h.isSpare()
			if spare {
				since = time.Now()
			}
			if time.Now().Before(tells) {
				if knows = knows && spare; spare && !knows {
					l, _ := h.waitlist(limited)
					knows = l.Count > 0
				}
				continue
			}
			tells = time.Now().Add(progressEvery)
			l, text := h.waitlist(limited)
			if limited.Err() == nil && time.Since(since) < h.cfg.JoinTimeout {
				level := zerolog.WarnLevel // also for those who asked for few words: they would see a job that hangs
				if l.Running {
					level = zerolog.InfoLevel
				}
				h.log.WithLevel(level).Str("nodes", strings.Replace(text, " nodes are there", " are there", 1)).Dur("dur_ms",
					time.Since(began)).Msg("waiting for nodes")
			}
		}
	})
	return limited, func() { cancel(nil); wg.Wait() }
}

// isSpare reports whether a round runs without this agent, by the word of a coordinator that lives: what it wrote into
// the waitlist may be old.
func (h *Handler) isSpare() bool {
	h.mu.Lock()
	s := h.session
	h.mu.Unlock()
	return s != nil && s.ctx.Err() == nil && s.roundRuns()
}

// waitlist tells how far the meeting is.
func (r *roster) waitlist(now time.Duration) waitlist {
	l := waitlist{Count: len(r.waiting), Running: r.phase == phaseRun, Awaits: r.awaits(now)}
	for _, s := range r.waiting[:min(len(r.waiting), waitlistNames)] {
		l.Joined = append(l.Joined, s.rec.String())
	}
	if r.phase == phaseGather {
		missing := r.missing()
		for _, m := range missing[:min(len(missing), waitlistNames)] {
			l.Missing = append(l.Missing, m.name)
		}
		l.Lacking = max(len(missing), r.min-len(r.admitted(slices.Clone(r.waiting), now)))
	}
	return l
}

const waitlistNames = 16

// String says it in one line.
func (l waitlist) text(minNodes, maxNodes int) string {
	names := strings.Join(l.Joined, ", ")
	if l.Count > len(l.Joined) {
		names += fmt.Sprintf(" and %d more", l.Count-len(l.Joined))
	}
	want := fmt.Sprint(minNodes)
	if maxNodes > minNodes {
		want = fmt.Sprintf("%d to %d", minNodes, maxNodes)
	}
	text := fmt.Sprintf("%d of %s nodes are there: %s", l.Count, want, names)
	switch {
	case l.Note != "":
		text = l.Note
	case l.Running:
		return fmt.Sprintf("a round runs, and %s: %s", counted(l.Count, "waits", "wait"), names)
	}
	switch {
	case len(l.Missing) > 0:
		text += "; missing: " + strings.Join(l.Missing, ", ")
		if more := l.Lacking - len(l.Missing); more > 0 {
			text += fmt.Sprintf(" and %d more", more)
		}
	case l.Lacking > 0:
		text += fmt.Sprintf("; %d more to come", l.Lacking)
	}
	switch {
	case len(l.Missing) > 0:
	case l.Lacking > 0 && !strings.HasPrefix(l.Awaits, quarantined):
	case l.Awaits != "":
		text += "; " + l.Awaits
	}
	return text
}

// awaits says what a meeting waits for that has nodes enough.
func (r *roster) awaits(now time.Duration) string {
	switch {
	case r.phase != phaseGather || r.mixed:
	case r.leaving:
		return "the host of the store has been told to stop: waiting for another one"
	case r.cutOff():
		return "waiting for more than half of the last round's nodes: they may go on elsewhere"
	case r.notBefore > now:
		return "waiting until no worker of the last round can be left on a node that was lost"
	case r.fixed:
		return r.absent()
	case len(r.inQuarantine(now)) > 0:
		return quarantined + strings.Join(r.inQuarantine(now), ", ")
	case r.target(len(r.waiting)) > 0 && (r.round < 0 || r.inherited):
		return "that is enough, and the last call for others runs"
	case r.target(len(r.waiting)) == 0 && r.unit > 1:
		return fmt.Sprintf("waiting for a multiple of %d", r.unit)
	}
	return ""
}

// absent names the node ranks that nobody has, where nodes come with them.
func (r *roster) absent() string {
	claims, text := r.claims(), ""
	for rank := range r.max {
		if _, there := claims[rank]; there {
			continue
		}
		if len(text) > 60 {
			return text + " and others"
		}
		if text == "" {
			text = "nobody has node rank "
		} else {
			text += ", "
		}
		text += strconv.Itoa(rank)
	}
	return text
}

// counted is a number of nodes with its verb.
func counted(n int, one, more string) string {
	if n == 1 {
		return "1 node " + one
	}
	return fmt.Sprintf("%d nodes %s", n, more)
}
