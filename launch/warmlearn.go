package launch

import (
	"context"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// restartsAfter is how long workers have run when the first template of WarmRules.Restarts is made: jobs that fail at
	// once, or are short, never have one.
	restartsAfter = 10 * time.Second
	// learnFirst and learnLast are how often the workers' notes are read, at first and later.
	learnFirst, learnLast = 2 * time.Second, time.Minute
	// learnFor is how long after a start workers are expected to import something.
	learnFor = 30 * time.Minute
	// learnOnly is how long a template that no start will need is kept for what it can learn.
	learnOnly = 30 * time.Second
	// learnWorth is for how much code, in bytes, another template is made. torch._dynamo is 15 MB with what it needs.
	learnWorth = 200 << 10
	// upgradesLimit is how often a job makes a better template.
	upgradesLimit = 3
	// learnCuts is how many learned modules are found not to be sharable before no learned one is tried.
	learnCuts = 4
	// retireAfter is how long a template is kept that a better one has replaced: a start may have taken it just before.
	retireAfter = 10 * time.Second
	// politeFor is how long a template that is made beside the training gives way to it.
	politeFor = 20 * time.Second
)

// tend looks after the template between a start of workers and the next one: it has the next ones forked ahead, hears what
// these import, and has a better template made. ctx ends when the next start begins. pids are the workers that were forked.
func (w *warmer) tend(ctx context.Context, n int, again bool, pids []int) {
	if !sleep(ctx, prepareAfter) {
		return
	}
	m := w.ready()
	if m != nil && again {
		if err := m.template.prepare(n); err != nil {
			w.failedFork(m.template, err)
		}
	}
	if w.Rules.Restarts && m == nil {
		if !sleep(ctx, restartsAfter-prepareAfter) {
			return
		}
		w.mu.Lock()
		if w.next == nil && !w.hopeless && w.ctx.Err() == nil && ctx.Err() == nil {
			w.beginLocked(w.known.usable(), true)
		}
		w.mu.Unlock()
		m = w.await(ctx)
		if m == nil {
			return
		}
		if err := m.template.prepare(n); err != nil {
			w.failedFork(m.template, err)
		}
	}
	if m != nil && w.Rules.Auto {
		w.learn(ctx, m, n, again, pids)
	}
}

// await waits for the template that is being made.
func (w *warmer) await(ctx context.Context) *making {
	w.mu.Lock()
	m := w.next
	w.mu.Unlock()
	if m == nil {
		return nil
	}
	select {
	case <-m.done:
	case <-ctx.Done():
	}
	return w.ready()
}

func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// learn reads the workers' notes until they say nothing new, and has a template made that has what they import. It does so
// once for each start: what comes later is little.
func (w *warmer) learn(ctx context.Context, m *making, n int, again bool, pids []int) {
	began, last := time.Now(), -1
	limit := learnFor
	if !again {
		limit = learnOnly
	}
	for every := learnFirst; time.Since(began) < limit; every = min(every*5/4, learnLast) {
		if !sleep(ctx, every) {
			return
		}
		if w.ready() != m {
			return // it has ended, and another one has no notes of these workers
		}
		var files, variables []string
		if len(pids) > 0 {
			var err error
			if files, variables, err = m.template.noted(pids); err != nil {
				w.Log.Debug().Err(err).Msg("the template of warm starts does not say what workers import")
				return
			}
		}
		if len(pids) > 0 && len(files) != last { // they are importing
			last = len(files)
			continue
		}
		w.mu.Lock()
		fresh := w.known.add(files, variables)
		files = w.known.usable()
		missing := w.missingLocked(m, files)
		upgrade := again && missing >= learnWorth && w.upgrades < upgradesLimit
		if upgrade {
			w.upgrades++
		}
		w.mu.Unlock()
		if fresh > 0 {
			w.remember()
		}
		if upgrade {
			if better := w.upgrade(m, files); better != nil {
				if err := better.template.prepare(n); err != nil {
					w.failedFork(better.template, err)
				}
			}
			return
		}
		if !again && fresh > 0 || len(pids) == 0 {
			return
		}
	}
}

// missingLocked returns how many bytes of code a template lacks.
func (w *warmer) missingLocked(m *making, files []string) (size int64) {
	for _, path := range files {
		if !slices.Contains(m.learned, path) {
			if f, ok := learnedStat(path); ok {
				size += f.Size
			}
		}
	}
	return size
}

// remember keeps for other jobs what was learned.
func (w *warmer) remember() {
	w.mu.Lock()
	l := w.known
	l.Modules, l.Variables, l.Refused = slices.Clone(l.Modules), slices.Clone(l.Variables), slices.Clone(l.Refused)
	w.mu.Unlock()
	if err := w.Memory.save(l); err != nil {
		w.Log.Debug().Err(err).Msg("what workers import is not kept for the next job")
	}
}

// upgrade makes a better template beside old, which serves restarts until it is ready.
func (w *warmer) upgrade(old *making, files []string) *making {
	m := &making{done: make(chan struct{}), learned: files, polite: true, upgrade: true}
	t := w.make(m)
	m.template, m.looked = t, t != nil
	close(m.done)
	if t == nil {
		return nil
	}
	w.mu.Lock()
	taken := w.next == old && w.ctx.Err() == nil
	if taken {
		w.next = m
	}
	w.mu.Unlock()
	if !taken {
		w.warn(t.Close())
		return nil
	}
	w.wg.Go(func() {
		_ = sleep(w.ctx, retireAfter)
		w.warn(old.template.Close())
	})
	w.wg.Go(func() { w.guard(m) })
	return m
}

// yield lets a process have the processors that nobody else needs, for a while, and returns what undoes it. It changes
// nothing where that could not be undone: workers would be as patient as the template that they are forked from.
func yield(pid int) (undo func() error) {
	allowed := make(chan bool)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with this function, as niceness is a thread's
		own := unix.Gettid()
		nice, err := unix.Getpriority(unix.PRIO_PROCESS, own)
		nice = 20 - nice // what the kernel returns
		allowed <- err == nil && nice < 19 && unix.Setpriority(unix.PRIO_PROCESS, own, nice+1) == nil &&
			unix.Setpriority(unix.PRIO_PROCESS, own, nice) == nil
	}()
	nothing := func() error { return nil }
	if !<-allowed {
		return nothing
	}
	before, err := unix.Getpriority(unix.PRIO_PROCESS, pid)
	if err != nil || unix.Setpriority(unix.PRIO_PROCESS, pid, 19) != nil {
		return nothing
	}
	return func() error { return unix.Setpriority(unix.PRIO_PROCESS, pid, 20-before) }
}
