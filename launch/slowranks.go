package launch

import (
	"cmp"
	"context"
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"sync"
	"time"

	"muster/internal/errhint"
	"muster/internal/printable"
	"muster/internal/proc"
	"muster/launch/control"
	"muster/launch/job"
	"muster/launch/policy"
	"muster/launch/report"
	"muster/launch/straggler"
	"muster/rendezvous"
)

const (
	// slowEvery is how often it is seen what ranks do in their steps: less often where a look takes more than one of
	// usageShare parts of that in processor time, and where there are many nodes, so that all together write no more often
	// than lifeApart.
	slowEvery = 5 * time.Second
	// slowNews is by how much the ratio of a rank has changed that is told anew.
	slowNews = 0.05
)

// The keys under which nodes tell on the round's board what their ranks do in a step, and group rank 0 how slow they
// are.
const slowVerdictKey = "control/slow"

func slowKey(groupRank int) string { return slowVerdictKey + "/" + strconv.Itoa(groupRank) }

// slowNote is what a node says of its ranks. Count is how many notes it has written.
type slowNote struct {
	Count uint64              `json:"count"`
	Ranks []straggler.Figures `json:"ranks,omitempty"`
}

// slowNodes are the nodes that hold up the training, as the agent knows.
type slowNodes struct {
	mu sync.Mutex
	// leaves is the rank whose node would have to leave, nil for none.
	leaves *straggler.Finding
	// left are the group ranks of nodes that had to leave for that.
	left map[int]bool
	pace slowPace // the zero value stands for slowEvery and usageShare
}

// slowPace is how often it is seen what ranks do in their steps: after every, and not before share times the processor time
// of the look before.
type slowPace struct {
	every time.Duration
	share int
}

// slowWatch is a node's part in finding slow ranks in a round.
type slowWatch struct {
	agent  *Agent
	board  rendezvous.Board // nil: the ranks of this node are compared alone
	round  rendezvous.Round
	pace   slowPace
	tracks map[*worker]*slowTrack
	count  uint64
	heard  map[int]heardSlow // what other nodes have said last, by group rank
	judge  straggler.Judge
	told   []byte // the verdict that was told last
}

// slowTrack is what was seen of a worker.
type slowTrack struct {
	straggler.Track
	threads map[int]proc.Thread
	sums    straggler.Sample
}

type heardSlow struct {
	note  slowNote
	since time.Time
}

// watchSlow looks for ranks that hold up others until the returned function is called.
func (a *Agent) watchSlow(ctx context.Context) (stop func()) {
	w := &slowWatch{agent: a, round: a.meeting.Round, tracks: map[*worker]*slowTrack{}, heard: map[int]heardSlow{}}
	a.slow.found(nil)
	if !a.meeting.alone() {
		w.board = w.round.Board()
	}
	if w.board == nil {
		w.round.GroupRank, w.round.GroupWorldSize, w.round.WorldSize = 0, 1, a.Plan.Procs
	}
	if w.round.WorldSize < 2 || a.Steering == nil {
		return func() {}
	}
	w.pace = cmp.Or(a.slow.pace, slowPace{slowEvery, usageShare})
	w.pace.every = max(w.pace.every, time.Duration(w.round.GroupWorldSize)*lifeApart)
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	wg.Go(func() { w.run(ctx) })
	return func() {
		cancel()
		wg.Wait()
		a.Steering.noteSlow(straggler.Verdict{})
	}
}

// run looks, tells and hears until ctx ends.
func (w *slowWatch) run(ctx context.Context) {
	if w.board != nil { // so that nobody waits for the first word
		w.write(ctx, slowKey(w.round.GroupRank), slowNote{})
		if w.round.GroupRank == 0 {
			w.write(ctx, slowVerdictKey, straggler.Verdict{})
		}
	}
	timer := time.NewTimer(w.pace.every)
	defer timer.Stop()
	quiet := true // nothing was told
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		began := time.Now()
		var ranks []straggler.Figures
		effort := proc.Effort(func() { ranks = w.look(began) })
		timer.Reset(max(w.pace.every, time.Duration(w.pace.share)*effort))
		if w.count++; w.board != nil && (len(ranks) > 0 || !quiet) {
			w.write(ctx, slowKey(w.round.GroupRank), slowNote{w.count, ranks})
		}
		quiet = len(ranks) == 0
		if w.round.GroupRank == 0 {
			w.decide(ctx, ranks, began)
		} else {
			w.hear(ctx)
		}
	}
}

func (w *slowWatch) write(ctx context.Context, key string, what any) {
	ctx, cancel := context.WithTimeout(ctx, w.pace.every)
	defer cancel()
	text, err := json.Marshal(what)
	if err == nil {
		err = note(ctx, w.board, key, text)
	}
	if err != nil {
		w.agent.Log.Debug().Err(err).Msg("the other nodes do not hear how slow the ranks here are")
	}
}

// read reads what another node has written, and reports whether there was something.
func (w *slowWatch) read(ctx context.Context, key string, to any) bool {
	ctx, cancel := context.WithTimeout(ctx, worldTime)
	defer cancel()
	text, err := w.board.Get(ctx, key)
	return err == nil && json.Unmarshal(text, to) == nil
}

// look says what the ranks here do in a step that tell their steps.
func (w *slowWatch) look(now time.Time) (all []straggler.Figures) {
	a := w.agent
	workers, pids := a.Steering.workersRunning(), []int(nil)
	told := map[*worker]straggler.Sample{}
	for _, o := range workers {
		if r, is := o.progress.Read(); is && r.Steps {
			told[o] = straggler.Sample{
				At: now, Step: r.Step, Steps: time.Duration(r.Sum * float64(time.Second)), Collective: r.Collective, Loading: r.Loading,
			}
			pids = append(pids, o.proc.PID())
		}
	}
	for o := range w.tracks {
		if !slices.Contains(workers, o) {
			delete(w.tracks, o)
		}
	}
	if len(told) == 0 {
		return nil
	}
	threads, err := proc.ThreadsOf(pids)
	if err != nil {
		a.Log.Debug().Err(err).Msg("what the workers do in their steps cannot be read")
		return nil
	}
	strain := proc.StrainNow()
	for _, o := range workers {
		s, is := told[o]
		if !is {
			continue
		}
		t := w.tracks[o]
		if t == nil {
			t = &slowTrack{}
			w.tracks[o] = t
		}
		t.run(threads[o.proc.PID()])
		s.Busy, s.Queued, s.Disk, s.Node = t.sums.Busy, t.sums.Queued, t.sums.Disk, straggler.Node(strain)
		t.Add(s)
		if f, known := t.Figures(); known {
			f.Rank, f.Node, f.GroupRank, f.Workers = o.Rank, a.Plan.Hostname, w.round.GroupRank, len(workers)
			all = append(all, f)
		}
	}
	return all
}

// run adds what the busiest of a worker's threads has done since the last look.
func (t *slowTrack) run(threads []proc.Thread) {
	now, busiest := make(map[int]proc.Thread, len(threads)), proc.Thread{}
	of := func(t *proc.Thread) time.Duration { return t.Ran + t.Queued + t.Disk }
	for _, th := range threads {
		now[th.TID] = th
		was := t.threads[th.TID]
		did := proc.Thread{Ran: th.Ran - was.Ran, Queued: th.Queued - was.Queued, Disk: th.Disk - was.Disk}
		if did.Ran >= 0 && of(&did) > of(&busiest) { // else another thread has the number now
			busiest = did
		}
	}
	if t.threads != nil { // what was before the first look is no part of a step
		t.sums.Busy += of(&busiest)
		t.sums.Queued += busiest.Queued
		t.sums.Disk += busiest.Disk
	}
	t.threads = now
}

// decide compares the ranks of all nodes, says what it has found, and tells it the others.
func (w *slowWatch) decide(ctx context.Context, own []straggler.Figures, now time.Time) {
	if w.board != nil {
		var mu sync.Mutex
		forEach(w.round.GroupWorldSize-1, func(i int) {
			var n slowNote
			if !w.read(ctx, slowKey(i+1), &n) {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if h := w.heard[i+1]; h.since.IsZero() || h.note.Count != n.Count {
				w.heard[i+1] = heardSlow{n, now}
			}
		})
	}
	all := slices.Clone(own)
	for i, h := range w.heard {
		if now.Sub(h.since) > max(4*w.pace.every, lifeStale) {
			continue
		}
		for _, f := range h.note.Ranks {
			if f.Rank >= 0 && f.Rank < w.round.WorldSize && f.Step > 0 &&
				!slices.ContainsFunc(all, func(o straggler.Figures) bool { return o.Rank == f.Rank }) {
				f.Node, f.GroupRank = printable.Output(f.Node), i
				all = append(all, f)
			}
		}
	}
	v := w.judge.Compare(all, w.round.WorldSize)
	w.agent.take(v)
	for i := range v.New {
		w.agent.tellSlowRank(&v.New[i])
	}
	if text, err := json.Marshal(v); w.board != nil && err == nil && string(text) != string(w.told) {
		w.told = text
		w.write(ctx, slowVerdictKey, v)
	}
}

// hear reads what group rank 0 has found.
func (w *slowWatch) hear(ctx context.Context) {
	var v straggler.Verdict
	if !w.read(ctx, slowVerdictKey, &v) {
		return
	}
	for i := range v.Slow {
		v.Slow[i].Node, v.Slow[i].Detail = printable.Output(v.Slow[i].Node), printable.Output(v.Slow[i].Detail)
	}
	if f := v.Leaves; f != nil {
		f.Node, f.Detail = printable.Output(f.Node), printable.Output(f.Detail)
	}
	w.agent.take(v)
}

// take takes in which ranks are slow.
func (a *Agent) take(v straggler.Verdict) {
	a.slow.found(v.Leaves)
	a.Steering.noteSlow(v)
}

// found takes in whose node would have to leave.
func (s *slowNodes) found(leaves *straggler.Finding) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leaves = leaves
}

// gone takes in that a node had to leave.
func (s *slowNodes) gone(e rendezvous.Expulsion) {
	if e.Status != errhint.Straggler {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.left == nil {
		s.left = map[int]bool{}
	}
	s.left[e.GroupRank] = true
}

// tellSlowRank says that a rank is slow.
func (a *Agent) tellSlowRank(f *straggler.Finding) {
	a.Log.Warn().Int("rank", f.Rank).Str("node", f.Node).Str("cause", string(f.Cause)).Float64("ratio", math.Round(100*f.Ratio)/100).
		Str("reason", f.Sentence()).Msg("a rank holds up the training")
	a.Steering.happened(control.RankSlow, func(e *control.Event) {
		rank := f.Rank
		e.Rank, e.Subject, e.Message = &rank, f.Node, f.Sentence()
	})
}

// slowNode is the node that has to leave with a decision by which workers start again, as --exclude-straggler wants it:
// one that holds up the training, unless the node that had its ranks before had to leave for the same. Then it is not
// the node.
func (a *Agent) slowNode(d policy.Decision) rendezvous.Expulsion {
	restarts := d.Verdict == policy.Restart || d.Verdict == policy.Reassemble && d.Reason == job.ReasonRequested
	if d.Exclude.Any() || !restarts || !a.Plan.Job.Check.ExcludeStraggler || a.meeting.alone() {
		return d.Exclude
	}
	a.slow.mu.Lock()
	f := a.slow.leaves
	again := f != nil && a.slow.left[f.GroupRank]
	a.slow.mu.Unlock()
	switch {
	case f == nil:
		return d.Exclude
	case again:
		a.Log.Warn().Str("node", f.Node).Str("reason", f.Sentence()).
			Msg("the node is not excluded: another one had to leave that had its ranks, and they are slow again")
		return d.Exclude
	}
	return a.toLeave(f.GroupRank, f.Node, errhint.Straggler, f.Sentence())
}

// noteSlow keeps how slow ranks are, for who looks at them.
func (s *Steering) noteSlow(v straggler.Verdict) {
	s.mu.Lock()
	was := s.slow
	s.slow = v
	news := len(was.Ratios) != len(v.Ratios) || len(was.Slow) != len(v.Slow)
	for rank, ratio := range v.Ratios {
		change := ratio - was.Ratios[rank]
		news = news || max(change, -change) > slowNews
	}
	if news {
		s.usageNews++
	}
	s.mu.Unlock()
}

// tellSlow says in a rank of the status how slow it is.
func tellSlow(r *report.Rank, v *straggler.Verdict) {
	if ratio, is := v.Ratios[r.Rank]; is {
		r.Slowness = &ratio
	}
	for i := range v.Slow {
		if v.Slow[i].Rank == r.Rank {
			r.Slow = v.Slow[i].Sentence()
		}
	}
}
