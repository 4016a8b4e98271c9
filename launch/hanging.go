package launch

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"muster/internal/errhint"
	"muster/launch/control"
	"muster/launch/diagnose"
	"muster/launch/job"
	"muster/launch/policy"
	"muster/launch/report"
	"muster/rendezvous"
)

// hang is that no worker has shown a sign of life for too long.
type hang struct {
	silence
	verdict diagnose.Verdict
	exclude rendezvous.Expulsion // the node that has to leave because of it
	path    string               // of the evidence, without its ends; empty where it could not be kept
}

// watchLife looks for signs of life of the workers until the returned function is called. On the node that decides for
// all it tells of each hang once.
func (a *Agent) watchLife(ctx context.Context) (hangs <-chan hang, stop func()) {
	rules := a.Plan.Job.Hang
	if !rules.Watches() {
		return nil, func() {}
	}
	timeout := rules.Timeout
	if rules.Auto {
		timeout = autoLeast
	}
	w := newLifeWatch(&a.meeting.Round, timeout)
	if !a.meeting.alone() && w.board == nil {
		a.Log.Warn().Str("hint", "muster as the backend of the rendezvous keeps them out").
			Msg("--hang-timeout does nothing in this round: agents of torchrun or DLRover take part, which do not say whether their " +
				"workers live")
		return nil, func() {}
	}
	w.log = a.Log
	w.names = func(ctx context.Context) []string { return a.Steering.nodeNames(ctx, a.Steering.Status()) }
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	told := make(chan hang, 1)
	var wg sync.WaitGroup
	wg.Go(func() { w.hear(ctx, max(timeout, lifeFirst)) })
	wg.Go(func() { a.followLife(ctx, w, rules.Timeout, told) })
	return told, func() {
		cancel()
		wg.Wait()
	}
}

// followLife says again and again how long the workers here have been silent, and tells of hangs where this node
// decides. A time-out of 0 is learned.
func (a *Agent) followLife(ctx context.Context, w *lifeWatch, timeout time.Duration, told chan<- hang) {
	tick := time.NewTicker(w.every)
	defer tick.Stop()
	var l *lives
	defer func() { l.close() }()
	hung, waited := false, time.Now()
	for ; ; waited = time.Now() {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := time.Now()
		if workers := a.Steering.workersRunning(); l == nil || !slices.Equal(workers, l.workers) {
			l = newLives(workers, l, now) // one that was started anew lives
			a.learner.anew()
		} else if now.Sub(waited) > 4*w.every { // we were stopped, and they probably, too
			l = newLives(workers, l, now)
			w.forget()
		}
		n := lifeNote{Workers: len(l.workers)}
		n.Silent, n.Quiet = a.silence(l, now)
		if n.Exact = l.exact; timeout == 0 {
			a.learner.see(n.Quiet, n.Silent, l.told)
			n.QuietLimit, n.StepLimit = a.learner.limits()
		}
		w.say(ctx, n, now)
		if !w.decides() {
			continue
		}
		switch s, hangs := w.judge(now).hangs(timeout); {
		case !hangs:
			hung = false
		case !hung:
			h, lives := a.explain(ctx, s)
			if hung = !lives; lives {
				continue
			}
			select {
			case told <- h:
			case <-ctx.Done():
			}
		}
	}
}

// explain finds out what workers do that hang, keeps it, and says it; but for workers that turn out to live.
func (a *Agent) explain(ctx context.Context, s silence) (h hang, lives bool) {
	seen, err := a.Steering.lookWorld(ctx, true)
	if err != nil {
		a.Log.Debug().Err(err).Msg("workers that hang could not be looked at")
	}
	at := time.Now()
	for i := range seen.Nodes {
		if n := &seen.Nodes[i]; s.quiet && wants(n) {
			a.Log.Debug().Dur("silent_ms", s.silent).Str("node", n.Node).Msg("the workers were silent, but wait for a core")
			return hang{}, true
		}
	}
	h = hang{silence: s, verdict: diagnose.Of(seen.Nodes, seen.Missing)}
	if a.Plan.Job.Hang.Exclude {
		h.exclude = a.hungNode(h.verdict, seen)
	}
	if h.path, err = a.keepHang(seen, at, h.verdict); err != nil {
		a.Log.Warn().Err(err).Msg("the evidence of the hang is not kept")
	}
	e := a.Log.Error().Str("reason", h.verdict.Sentence).Str("kind", string(h.verdict.Kind)).Dur("silent_ms",
		s.silent.Round(time.Millisecond))
	if len(h.verdict.Culprits) > 0 {
		e = e.Ints("ranks", h.verdict.Culprits)
	}
	if h.path != "" {
		e = e.Str("path", h.path+".txt")
	}
	e.Msg("the workers hang")
	a.Steering.hung(report.Hang{
		Time: moment(at), SilentSeconds: s.silent.Seconds(), Kind: string(h.verdict.Kind), Sentence: h.verdict.Sentence,
		Culprits: h.verdict.Culprits, Victims: h.verdict.Victims, Evidence: h.path,
	})
	return h, false
}

// hung notes a hang for who looks at the job.
func (s *Steering) hung(h report.Hang) {
	s.mu.Lock()
	s.lastHang = &h
	e := s.event(control.WorkersHang)
	e.Message = h.Sentence
	s.events.Add(e)
	s.mu.Unlock()
	s.publishSoon()
}

// stepHang decides what follows from a hang.
func (a *Agent) stepHang(ctx context.Context, h hang, lingers bool) policy.Decision {
	action, d := a.Plan.Job.Hang.Action, policy.Decision{Rank: -1}
	acts := action == job.HangRestart || action == job.HangFail
	if lingers || a.meeting.decided() || !acts && !h.exclude.Any() {
		return d
	}
	further := a.further(context.WithoutCancel(ctx)) // it bounds itself
	if h.exclude.Any() && a.loop.expelled {
		a.Log.Warn().Str("node", h.exclude.Node).Msg("the node is not excluded: another one was, and the job has not come further since")
		h.exclude = rendezvous.Expulsion{}
	}
	if acts || h.exclude.Any() {
		a.loop.remember(attempt{rank: -1, how: "a hang", says: h.verdict.Sentence})
		d = a.policy.Step(policy.Event{
			Kind: policy.WorkersHang, At: time.Now(), StartAgain: action == job.HangRestart || h.exclude.Any(), Borne: !acts,
			Status: errhint.Deadline, Exclude: h.exclude, Further: further, Text: a.hangText(h),
		})
	}
	if d.Verdict == policy.Restart && (a.Examiner != nil || a.Checker != nil) && unexplained(&h.verdict) {
		d.Orders = a.meeting.Orders
		d.Orders.Version++
		d.Orders.CheckAt = a.meeting.Number + 1
	}
	if d.Verdict == policy.CarryOn {
		a.loop.judged = false // the workers may come further yet
		if h.exclude.Any() {
			a.Log.Warn().Str("node", h.exclude.Node).Msg("the node is not excluded: no restart is left")
		}
	}
	return d
}

// unexplained reports whether a verdict does not say what the workers hang for: the cause may be a node, or a network.
func unexplained(v *diagnose.Verdict) bool {
	return v.Kind == diagnose.Unknown || v.Kind == diagnose.Nothing
}

// hangText says that the workers hang, and what they do.
func (a *Agent) hangText(h hang) string {
	what := "shown a sign of life"
	if !h.quiet && a.Plan.Job.Hang.Auto {
		what = "finished a step"
	}
	text := fmt.Sprintf("no worker has %s for %v", what, h.silent.Round(time.Second))
	if a.Plan.Job.Hang.Auto {
		text += fmt.Sprintf(" (--hang-timeout auto: %v)", h.limit.Round(time.Second))
	}
	return text + ": " + h.verdict.Sentence
}
