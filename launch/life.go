package launch

import (
	"time"

	"muster/internal/proc"
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

func newLives(workers []*worker, now time.Time) *lives {
	l := &lives{workers: workers, of: make([]life, len(workers)), looked: now}
	for i := range l.of {
		l.of[i].last = now
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

// silence is for how long no worker of this node has shown a sign of life.
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
	wished := a.Steering.wishedForCores()
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
			for _, sign := range []time.Time{w.logs.LastOutput(), wished} {
				if sign.After(o.last) {
					o.last = sign
				}
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
	a.Steering.noteLives(l)
	return max(silent, 0)
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
