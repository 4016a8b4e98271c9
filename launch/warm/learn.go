package warm

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"muster/internal/proc"
)

const (
	// restartsAfter is how long workers have run when the first template of WarmRules.Restarts is made: jobs that fail
	// at once, or are short, never have one.
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
	// politeFor is how long a template that is made beside the training gives way to it. Where nothing is left to it
	// its work is only put off, and a restart may come.
	politeFor = 3 * time.Second
	// templateRoom is how much memory, in bytes, must be free for a template that nobody asked for. PyTorch and
	// transformers take a third of it.
	templateRoom = 2 << 30
)

// lore is what is known of late imports in this job. It has a lock of its own, for which no start of workers waits.
type lore struct {
	recalled sync.Once
	memory   memory

	// learning is held by who has a better template made: one at a time.
	learning sync.Mutex

	mu       sync.Mutex
	known    learned
	cuts     int // how often something of that was found not to be sharable
	upgrades int // templates that were made because of it
}

// copy returns what is known, for who looks at it without the lock.
func (o *lore) copy() learned {
	o.mu.Lock()
	defer o.mu.Unlock()
	l := o.known
	l.Modules, l.Variables, l.Refused = slices.Clone(l.Modules), slices.Clone(l.Variables), slices.Clone(l.Refused)
	return l
}

// assigned are the variables that scripts had set by the time of their late imports.
func (o *lore) assigned() []string { return o.copy().Variables }

// recall returns the late imports that are known and may be made, with those of earlier jobs. It reads files: no start
// waits for it but one that waits for its template.
func (w *Warmer) recall() []string {
	w.lore.recalled.Do(func() {
		m := w.Source.memory()
		known, err := m.load()
		if err != nil {
			w.Log.Debug().Err(err).Msg("what workers have imported in earlier jobs cannot be used")
		}
		w.lore.mu.Lock()
		defer w.lore.mu.Unlock()
		w.lore.memory, w.lore.known = m, known
	})
	known := w.lore.copy()
	return known.usable()
}

// remember keeps for other jobs what was learned.
func (w *Warmer) remember() {
	if err := w.lore.memory.save(w.lore.copy()); err != nil {
		w.Log.Debug().Err(err).Msg("what workers import is not kept for the next job")
	}
}

// cutLearned leaves out a late import that a refusal is about, for good. After some of them all are left out, in this
// job.
func (w *Warmer) cutLearned(m *making, r *refusal) {
	o := &w.lore
	o.mu.Lock()
	o.known.refuse(r.Learned)
	o.cuts++
	before := len(m.learned)
	m.learned = slices.DeleteFunc(slices.Clone(m.learned), o.known.refuses)
	if o.cuts >= learnCuts || len(m.learned) == before {
		m.learned, o.upgrades = nil, upgradesLimit
	}
	o.mu.Unlock()
	w.remember()
}

// tend looks after the template between a start of workers and the next one: it has the next ones forked ahead, hears
// what these import, and has a better template made. ctx ends when the next start begins. pids are the workers that
// were forked.
func (w *Warmer) tend(ctx context.Context, n int, again bool, pids []int) {
	if !sleep(ctx, prepareAfter) {
		return
	}
	m := w.ready()
	if m == nil && again && w.Rules.Restarts {
		if !sleep(ctx, restartsAfter-prepareAfter) {
			return
		}
		w.beginBeside(ctx)
	}
	if m == nil {
		m = w.await(ctx)
	}
	if m == nil {
		return
	}
	if again {
		if err := m.template.prepare(n); err != nil {
			w.FailedFork(m.template, err)
			return
		}
	}
	if w.Rules.Auto {
		w.learn(ctx, m, n, again, pids)
	}
}

// beginBeside has a template made beside the training, for restarts, where none is there and nobody asked for one.
func (w *Warmer) beginBeside(ctx context.Context) {
	free, known := proc.FreeMemory()
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.next != nil || w.hopeless || w.failed >= templatesLimit || w.ctx.Err() != nil || ctx.Err() != nil:
	case known && free < templateRoom:
		w.why = fmt.Sprintf("the training leaves %d MiB of memory free, and a template is made where there are %d", free>>20,
			templateRoom>>20)
		w.Log.Debug().Msg("no template of warm starts: " + w.why)
	default:
		w.why = "none was ready in time"
		w.beginLocked(&making{recall: true, polite: true})
	}
}

// await waits for the template that is being made.
func (w *Warmer) await(ctx context.Context) *making {
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

// learn reads the workers' notes until they say nothing new, and has a template made that has what they import. It does
// so once for each start: what comes later is little.
func (w *Warmer) learn(ctx context.Context, m *making, n int, again bool, pids []int) {
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
		if w.settle(m, n, again, files, variables) || len(pids) == 0 {
			return
		}
	}
}

// settle takes what all workers have imported, and has a better template made where this one lacks much of it. It
// reports whether there is nothing more to learn before the next start.
func (w *Warmer) settle(m *making, n int, again bool, files, variables []string) (done bool) {
	w.lore.learning.Lock()
	defer w.lore.learning.Unlock()
	if w.ready() != m {
		return true
	}
	w.recall()
	known := w.lore.copy()
	fresh := known.add(files, variables) // looks at the files, which may be far away
	files = known.usable()
	w.lore.mu.Lock()
	w.lore.known = known
	upgrade := again && m.missing(files) >= learnWorth && w.lore.upgrades < upgradesLimit
	if upgrade {
		w.lore.upgrades++
	}
	w.lore.mu.Unlock()
	if fresh > 0 {
		w.remember()
	}
	if !upgrade {
		return !again && fresh > 0
	}
	if better := w.upgrade(m, files); better != nil {
		if err := better.template.prepare(n); err != nil {
			w.FailedFork(better.template, err)
		}
	}
	return true
}

// missing returns how many bytes of code a template lacks.
func (m *making) missing(files []string) (size int64) {
	for _, path := range files {
		if !slices.Contains(m.learned, path) {
			if f, ok := learnedStat(path); ok {
				size += f.Size
			}
		}
	}
	return size
}

// upgrade makes a better template beside old, which serves restarts until it is ready.
func (w *Warmer) upgrade(old *making, files []string) *making {
	m := &making{done: make(chan struct{}), learned: files, polite: true, upgrade: true}
	t := w.make(m)
	m.template, m.looking = t, justMade()
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
