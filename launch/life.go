package launch

import (
	"slices"
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
	// ran is when it has used processors last and got somewhere, shown when it has shown any other sign.
	ran, shown time.Time
	spins      time.Duration // for how long it has got nowhere, though it uses processors; 0 for not
	others     time.Time     // when other processes of it than the one that gets nowhere have used processors last
	spin       spin
	cpu        time.Duration
	disk       string // what it has read and written there
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

// newLives has workers alive now. What is known from before of how those that go on get somewhere stays known.
func newLives(workers []*worker, before *lives, now time.Time) *lives {
	l := &lives{workers: workers, of: make([]life, len(workers)), looked: now}
	for i, w := range workers {
		o := &l.of[i]
		o.last, o.any, o.ran, o.shown = now, now, now, now
		if before == nil {
			continue
		}
		if at := slices.Index(before.workers, w); at >= 0 {
			o.spin, before.of[at].spin = before.of[at].spin, spin{}
			o.spin.anew(now)
		}
	}
	before.close()
	return l
}

// close lets go of the workers.
func (l *lives) close() {
	if l == nil {
		return
	}
	for i := range l.of {
		l.of[i].spin.close()
	}
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
	read := slices.Clone(pids)
	for i := range l.of {
		if m := l.of[i].spin.marked; m != nil {
			read = append(read, m.PID)
		}
	}
	used, err := proc.UsageOf(read)
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
				l.of[i].last, l.of[i].shown = now, now
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
			if sign.After(o.shown) {
				o.shown = sign
			}
		}
		if disk := proc.DiskOf(pids[i]); disk != o.disk {
			o.shown, o.disk = now, disk
		}
		o.run(pids[i], used, livingCPU*float64(since), now)
		if o.spin.counted.After(o.shown) {
			o.shown = o.spin.counted
		}
		o.any = o.shown
		if o.ran.After(o.any) {
			o.any = o.ran
		}
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

// run takes in how much CPU time a worker has used so far, by what was read of all at one moment. So much more of it is a sign of life.
func (o *life) run(pid int, read map[int]proc.Usage, sign float64, now time.Time) {
	used, own := read[pid].CPU-o.cpu, o.spin.used(read)
	o.cpu, o.spins = read[pid].CPU, 0
	o.spin.look(pid, now)
	if float64(used) < sign {
		return
	}
	// What others than the process that gets nowhere do, as those that load data for it, is a sign of life.
	if float64(used-own) >= max(sign, float64(3*proc.Tick)) {
		o.others = now
	}
	o.ran = now
	if since, idle := o.spin.idle(now); idle && o.others.Before(now) {
		o.ran = since
		if o.others.After(since) {
			o.ran = o.others
		}
		o.spins = now.Sub(o.ran)
	}
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
	if sign.After(o.shown) {
		o.shown = sign
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

// noteLives keeps when workers have shown signs of life, and which get nowhere, for who looks at them.
func (s *Steering) noteLives(l *lives) {
	last, spins := make(map[*worker]time.Time, len(l.workers)), map[*worker]time.Duration{}
	for i, w := range l.workers {
		last[w] = l.of[i].last
		if l.of[i].spins > 0 {
			spins[w] = l.of[i].spins
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lives, s.spins = last, spins
}
