package launch

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"muster/internal/durable"
	"muster/internal/errhint"
	"muster/internal/proc"
	"muster/launch/control"
	"muster/launch/diagnose"
	"muster/launch/evidence"
	"muster/launch/evidence/gather"
	"muster/launch/job"
	"muster/launch/policy"
	"muster/launch/report"
)

const (
	// lifeEvery and lifeRarely bound how often it is looked for signs of life; in between it is an eighth of the
	// time-out.
	lifeEvery  = 250 * time.Millisecond
	lifeRarely = 5 * time.Second
	// livingCPU is the share of a core from which on CPU time is a sign of life: threads that wait in turns use less.
	// Where the machine has more to do than it can, a process is alive that would have used livingWish.
	livingCPU  = 0.05
	livingWish = 0.2
	// mostHangs is how many of them have their evidence kept.
	mostHangs = 5
)

// hang is that no worker has shown a sign of life for HangRules.Timeout.
type hang struct {
	silent  time.Duration
	verdict diagnose.Verdict
	path    string // of the evidence, without its ends; empty where it could not be kept
}

// life is when a worker has shown a sign of life last.
type life struct {
	last time.Time
	cpu  time.Duration
	disk string // what it has read and written there
}

// lives are those of a group's workers.
type lives struct {
	workers []*worker
	of      []life
	looked  time.Time
	saved   int64 // bytes of checkpoints
	// exact says that some tell their steps: only those count.
	exact bool
}

// workersRunning are the workers of this node that run.
func (s *Steering) workersRunning() (workers []*worker) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.places {
		if p.worker != nil && !p.ended {
			workers = append(workers, p.worker)
		}
	}
	return workers
}

// Look implements control.Looker.
func (v served) Look(ctx context.Context) (evidence.Node, error) {
	s := v.s
	select {
	case s.looking <- struct{}{}: // one look at a time
		defer func() { <-s.looking }()
	case <-time.After(gather.Limit / 2):
		return evidence.Node{},
			errhint.Code(errhint.With(fmt.Errorf("others look at the workers of node %s", s.plan.Hostname), "try again"),
				errhint.TryAgain)
	}
	workers := s.workersRunning()
	if len(workers) == 0 {
		return evidence.Node{}, errhint.Code(errhint.With(fmt.Errorf("no worker runs on node %s", s.plan.Hostname),
			"muster status shows how the job stands"), errhint.TryAgain)
	}
	return s.lookAt(ctx, workers, nil), nil
}

// lookAt looks at workers. last says when they have shown signs of life; nil: nobody has looked for them.
func (s *Steering) lookAt(ctx context.Context, workers []*worker, last func(i int) time.Time) evidence.Node {
	list := make([]gather.Worker, len(workers))
	for i, w := range workers {
		list[i] = gather.Worker{Rank: w.Rank, PID: w.proc.PID(), Silent: -1}
		if last != nil {
			list[i].Silent = time.Since(last(i)).Seconds()
		}
		if r, told := w.progress.Read(); told && r.Steps {
			list[i].Step = &r.Step
		}
	}
	return gather.Look(ctx, s.plan.Hostname, list)
}

// watchLife looks for signs of life of the workers until the returned function is called, and tells of each hang once.
func (a *Agent) watchLife(ctx context.Context) (hangs <-chan hang, stop func()) {
	timeout := a.Plan.Job.Hang.Timeout
	if timeout <= 0 {
		return nil, func() {}
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	told := make(chan hang, 1)
	var wg sync.WaitGroup
	wg.Go(func() {
		every := max(lifeEvery, min(timeout/8, lifeRarely))
		tick := time.NewTicker(every)
		defer tick.Stop()
		var l *lives
		hung := false
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			now := time.Now()
			if workers := a.Steering.workersRunning(); l == nil || !slices.Equal(workers, l.workers) {
				l = newLives(workers, now) // one that was started anew lives
			} else if now.Sub(l.looked) > 4*every { // we were stopped, and they probably, too
				l = newLives(workers, now)
			}
			silent := a.silence(l, now)
			if silent < timeout {
				hung = false
			} else if !hung && len(l.workers) > 0 {
				h, lives := a.explain(ctx, l, silent)
				if hung = !lives; lives {
					l = newLives(l.workers, time.Now())
					continue
				}
				select {
				case told <- h:
				case <-ctx.Done():
				}
			}
		}
	})
	return told, func() {
		cancel()
		wg.Wait()
	}
}

func newLives(workers []*worker, now time.Time) *lives {
	l := &lives{workers: workers, of: make([]life, len(workers)), looked: now}
	for i := range l.of {
		l.of[i].last = now
	}
	return l
}

// silence is for how long no worker has shown a sign of life.
func (a *Agent) silence(l *lives, now time.Time) time.Duration {
	pids := make([]int, len(l.workers))
	for i, w := range l.workers {
		pids[i] = w.proc.PID()
	}
	used, err := proc.UsageOf(pids)
	if err != nil {
		a.Log.Debug().Err(err).Msg("signs of life of the workers cannot be read")
		return 0
	}
	since := now.Sub(l.looked)
	l.looked = now
	if a.checkpoints != nil {
		if _, bytes, _ := a.checkpoints.Wrote(); bytes != l.saved {
			l.saved = bytes
			for i := range l.of {
				l.of[i].last = now
			}
		}
	}
	tells := make([]bool, len(l.workers))
	l.exact = false
	for i, w := range l.workers {
		o, r := &l.of[i], w.progress
		if told, is := r.Read(); is {
			tells[i] = told.Steps
			l.exact = l.exact || told.Steps
			if told.Told.After(o.last) {
				o.last = told.Told
			}
			if told.SectionTimeout > 0 && now.Sub(told.SectionBegan) < told.SectionTimeout {
				o.last = now // it has said how long it may take
			}
		}
		if !tells[i] {
			if out := w.logs.LastOutput(); out.After(o.last) {
				o.last = out
			}
			if disk := proc.DiskOf(pids[i]); disk != o.disk {
				o.last, o.disk = now, disk
			}
			if cpu := used[pids[i]].CPU; float64(cpu-o.cpu) >= livingCPU*float64(since) {
				o.last = now
			}
		}
		o.cpu = used[pids[i]].CPU
	}
	silent := time.Duration(-1)
	for i := range l.of {
		if l.exact && !tells[i] {
			continue
		}
		if s := now.Sub(l.of[i].last); silent < 0 || s < silent {
			silent = s
		}
	}
	return max(silent, 0)
}

// explain finds out what workers do that hang, keeps it, and says it; but for workers that turn out to live.
func (a *Agent) explain(ctx context.Context, l *lives, silent time.Duration) (h hang, lives bool) {
	seen := a.Steering.lookAt(ctx, l.workers, func(i int) time.Time { return l.of[i].last })
	if !l.exact && wants(&seen) {
		a.Log.Debug().Dur("silent_ms", silent).Msg("the workers were silent, but wait for a core")
		return hang{}, true
	}
	h = hang{silent: silent, verdict: diagnose.Of([]evidence.Node{seen}, nil)}
	var err error
	if h.path, err = a.keepHang(seen, h.verdict); err != nil {
		a.Log.Warn().Err(err).Msg("the evidence of the hang is not kept")
	}
	e := a.Log.Error().Str("reason", h.verdict.Sentence).Str("kind", string(h.verdict.Kind)).Dur("silent_ms",
		silent.Round(time.Millisecond))
	if len(h.verdict.Culprits) > 0 {
		e = e.Ints("ranks", h.verdict.Culprits)
	}
	if h.path != "" {
		e = e.Str("path", h.path+".txt")
	}
	e.Msg("the workers hang")
	a.Steering.hung(report.Hang{
		Time: moment(seen.At), SilentSeconds: silent.Seconds(), Kind: string(h.verdict.Kind), Sentence: h.verdict.Sentence,
		Culprits: h.verdict.Culprits, Victims: h.verdict.Victims, Evidence: h.path,
	})
	return h, false
}

// wants reports whether a worker would use processors if it got them.
func wants(seen *evidence.Node) bool {
	for _, r := range seen.Ranks {
		sum := 0.0
		for i := range r.Processes {
			sum += r.Processes[i].Wants
		}
		if sum >= livingWish {
			return true
		}
	}
	return false
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

// keepHang writes the evidence of a hang under the log directory, the newest mostHangs of them, and returns the path of
// the files without their ends.
func (a *Agent) keepHang(seen evidence.Node, v diagnose.Verdict) (string, error) {
	parent := a.logs.RunDir()
	if parent == "" { // no files are written: the evidence alone has a directory of its own
		if a.hangDir == "" {
			dir, err := os.MkdirTemp(a.Plan.TempDir, "muster-hang-")
			if err != nil {
				return "", err
			}
			a.hangDir = dir
		}
		parent = a.hangDir
	}
	dir := filepath.Join(parent, "hangs")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	groups := evidence.Merge([]evidence.Node{seen}, true)
	var text, svg bytes.Buffer
	fmt.Fprintf(&text, "%s\n\n%s\n\n", v.Sentence, strings.Join(v.Evidence, "\n"))
	if err := evidence.WriteText(&text, groups); err != nil {
		return "", err
	}
	if err := evidence.WriteSVG(&svg, v.Sentence, groups); err != nil {
		return "", err
	}
	whole, err := json.Marshal(struct {
		Verdict diagnose.Verdict `json:"verdict"`
		Nodes   []evidence.Node  `json:"nodes"`
	}{v, []evidence.Node{seen}})
	if err != nil {
		return "", err
	}
	base := filepath.Join(dir, seen.At.UTC().Format("20060102T150405.000Z"))
	for end, content := range map[string][]byte{".txt": text.Bytes(), ".svg": svg.Bytes(), ".json": whole} {
		if err := durable.Replace(base+end, content, 0o600); err != nil {
			return "", err
		}
	}
	return base, forget(dir)
}

// forget removes the evidence of all but the newest hangs.
func forget(dir string) error {
	names, err := filepath.Glob(filepath.Join(dir, "*Z.json"))
	if err != nil {
		return err
	}
	slices.Sort(names)
	for len(names) > mostHangs {
		base := strings.TrimSuffix(names[0], ".json")
		for _, end := range []string{".txt", ".svg", ".json"} {
			if err := os.Remove(base + end); err != nil && !os.IsNotExist(err) {
				return err
			}
		}
		names = names[1:]
	}
	return nil
}

// stepHang decides what follows from a hang.
func (a *Agent) stepHang(h hang, lingers bool) policy.Decision {
	action := a.Plan.Job.Hang.Action
	if lingers || a.meeting.decided() || action != job.HangRestart && action != job.HangFail {
		return policy.Decision{Rank: -1}
	}
	return a.policy.Step(policy.Event{
		Kind: policy.WorkersHang, At: time.Now(), StartAgain: action == job.HangRestart, Status: errhint.Deadline,
		Text: fmt.Sprintf("no worker has shown a sign of life for %v: %s", h.silent.Round(time.Second), h.verdict.Sentence),
	})
}
