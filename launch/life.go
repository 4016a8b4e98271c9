package launch

import (
	"time"

	"muster/internal/proc"
	"muster/launch/progress"
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
)

// life is when a worker has shown a sign of life last: one that counts, and any.
type life struct {
	last time.Time
	any  time.Time
	cpu  time.Duration
	disk string // what it has read and written there
}

// lives are those of a group's workers.
type lives struct {
	workers []*worker
	of      []life
	looked  time.Time
	saved   int64 // bytes of checkpoints
	// exact says that some tell their steps: only those count. told is what these have told.
	exact bool
	told  []progress.Reading
}

func newLives(workers []*worker, now time.Time) *lives {
	l := &lives{workers: workers, of: make([]life, len(workers)), looked: now}
	for i := range l.of {
		l.of[i].last, l.of[i].any = now, now
	}
	return l
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

// silence is for how long no worker of this node has shown a sign of life: one that counts, and any.
func (a *Agent) silence(l *lives, now time.Time) (silent, quiet time.Duration) {
	pids := make([]int, len(l.workers))
	for i, w := range l.workers {
		pids[i] = w.proc.PID()
	}
	used, err := proc.UsageOf(pids)
	if err != nil {
		a.Log.Debug().Err(err).Msg("signs of life of the workers cannot be read")
		return 0, 0
	}
	since := now.Sub(l.looked)
	l.looked = now
	if a.checkpoints != nil {
		if _, bytes, _ := a.checkpoints.Wrote(); bytes != l.saved {
			l.saved = bytes
			for i := range l.of {
				l.of[i].last, l.of[i].any = now, now
			}
		}
	}
	wished := a.Steering.wishedForCores()
	tells := make([]bool, len(l.workers))
	l.exact, l.told = false, l.told[:0]
	for i, w := range l.workers {
		o := &l.of[i]
		tells[i] = o.hear(w, now, a.Plan.Job.Hang.Auto, &l.told)
		l.exact = l.exact || tells[i]
		for _, sign := range []time.Time{w.logs.LastOutput(), wished} {
			if sign.After(o.any) {
				o.any = sign
			}
		}
		if disk := proc.DiskOf(pids[i]); disk != o.disk {
			o.any, o.disk = now, disk
		}
		if cpu := used[pids[i]].CPU; float64(cpu-o.cpu) >= livingCPU*float64(since) {
			o.any = now
		}
		o.cpu = used[pids[i]].CPU
		if !tells[i] {
			o.last = o.any
		}
	}
	silent, quiet = -1, -1
	for i, o := range l.of {
		if s := now.Sub(o.any); quiet < 0 || s < quiet {
			quiet = s
		}
		if s := now.Sub(o.last); (silent < 0 || s < silent) && (tells[i] || !l.exact) {
			silent = s
		}
	}
	a.Steering.noteLives(l)
	return max(silent, 0), max(quiet, 0)
}

// hear takes in what a worker tells of itself, and reports whether it tells its steps, and will tell more.
func (o *life) hear(w *worker, now time.Time, auto bool, told *[]progress.Reading) bool {
	r, is := w.progress.Read()
	if !is {
		return false
	}
	sign := r.Told
	if r.SectionTimeout > 0 && now.Sub(r.SectionBegan) < r.SectionTimeout {
		sign = now // it has said how long it may take
	}
	if sign.After(o.any) {
		o.any = sign
	}
	if r.Steps && auto && inOpenSection(&r) {
		sign = now // there are no steps meanwhile
	}
	if sign.After(o.last) {
		o.last = sign
	}
	if r.Steps {
		*told = append(*told, r)
	}
	return r.Steps && !r.Ends
}

// wishedForCores is when workers here were seen last that waited for a core.
func (s *Steering) wishedForCores() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.coresWished
}

// noteLives keeps when workers have shown signs of life, for who looks at them.
func (s *Steering) noteLives(l *lives) {
	last := make(map[*worker]time.Time, len(l.workers))
	for i, w := range l.workers {
		last[w] = l.of[i].last
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lives = last
}
