package warm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"muster/internal/proc"
	"muster/internal/python"
	"muster/launch/job"
	"muster/launch/plan"
)

// Warmer keeps a template ready for the next start of workers. All trouble with it costs a line in the log and a start
// as usual. Its exported fields are filled before begin.
type Warmer struct {
	Tree    *proc.Tree
	Log     zerolog.Logger
	Rules   job.WarmRules
	Command plan.WarmCommand
	// Worker is local rank 0; the others differ from it in what their Env calls their own.
	Worker plan.Worker
	Stdin  *os.File
	// HookDir is made; it holds what the interpreter reads.
	HookDir string
	// Source is what the script's late imports are kept under between jobs.
	Source memorySource

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu      sync.Mutex
	next    *making // nil: there will be no template
	failed  int     // templates that came to be and ended
	probed  bool    // the interpreter is known to be one that stops for us
	late    bool    // it was told that the template is not ready in time
	modules []string
	limit   int // imports of the script that are made

	hopeless bool               // no template can be made, and none is tried again
	why      string             // why workers start as usual, where nobody asked for a warm start
	untended context.CancelFunc // ends what goes on between two starts
	restarts bool               // workers have started before

	lore lore
}

// making is a template that is being made, or was.
type making struct {
	learned  []string      // files of what workers import late, to be imported as well
	recall   bool          // learned is to be looked up
	polite   bool          // it is made beside the training, which comes first
	upgrade  bool          // it is made beside another one that is ready
	done     chan struct{} // closed when it is decided
	template *Template     // nil: there will be none
	waited   bool          // a start has waited for it in vain
	mu       sync.Mutex
	step     string // what is being imported

	looking *looking // the look at the template that the next start goes by; nil: none has begun
}

const (
	// templatesLimit is how many templates that were ready may die before no other is made.
	templatesLimit = 3
	// cutsLimit is how often what is imported is made less.
	cutsLimit = 10
	// allImports is more than any script begins with.
	allImports = 1 << 20
	// changesLimit is how many templates one start finds out of date before it goes without.
	changesLimit = 2
	// prepareAfter is how long after a start the workers of the next one are forked.
	prepareAfter = time.Second
	// lookHolds is how long what a look at a template says is believed: a template may be there for days before a start
	// takes it.
	lookHolds = 10 * time.Second
	// tellEvery is how often a start that waits for the template says what it waits for.
	tellEvery = 10 * time.Second
)

// Begin starts a template, and returns at once.
func (w *Warmer) Begin(ctx context.Context) {
	if w == nil {
		return
	}
	w.ctx, w.cancel = context.WithCancel(context.WithoutCancel(ctx)) // Close ends it, after the workers
	w.modules, w.limit = w.Rules.Modules, allImports
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.Rules.Restarts {
		w.beginLocked(&making{recall: w.Rules.Auto})
	}
}

// beginLocked has a template made.
func (w *Warmer) beginLocked(m *making) {
	m.done = make(chan struct{})
	w.next = m
	w.wg.Go(func() {
		if m.recall {
			m.learned = w.recall()
		}
		t := w.make(m)
		m.template, m.looking = t, justMade()
		close(m.done)
		if t != nil {
			w.guard(m)
		}
	})
}

// guard waits for the end of a template.
func (w *Warmer) guard(m *making) {
	select {
	case <-m.template.proc.Done():
		w.ended(m)
	case <-w.ctx.Done():
	}
}

// ended replaces a template that has ended by itself.
func (w *Warmer) ended(m *making) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.next != m || w.ctx.Err() != nil {
		return
	}
	w.warn(m.template.Close()) // its spares
	w.failed++
	l := w.Log.WithLevel(w.level(zerolog.WarnLevel)).Int("pid", m.template.proc.PID()).Str("exit", m.template.proc.Exit().String())
	if w.failed == templatesLimit {
		l.Msg("the template of warm starts ended again: workers start as usual from now on")
		w.next = nil
		return
	}
	if w.Rules.Restarts {
		w.why = "it ended: it " + m.template.proc.Exit().String()
		l.Msg("the template of warm starts ended: another one is made after the next start")
		w.next = nil
		return
	}
	l.Msg("the template of warm starts ended: making another one")
	w.beginLocked(&making{}) // a start may wait for it: without what was learned
}

// make makes a template, with fewer imports where one of them cannot be shared. It returns nil where there can be none,
// and has told why.
func (w *Warmer) make(m *making) *Template {
	for range cutsLimit + learnCuts {
		began := time.Now()
		t, imports, err := w.try(m)
		if err == nil {
			l := w.Log.WithLevel(w.level(zerolog.InfoLevel))
			if t.until != "" {
				l = l.Str("until", t.until)
			}
			if imports == 0 && t.learned == 0 {
				w.giveUp("the script begins with no import that can be shared")
				l.Msg("no warm start: the script begins with no import that can be shared")
				_ = t.Close()
				return nil
			}
			l.Int("pid", t.proc.PID()).Int("imports", imports).Int("modules", t.modules).Int("learned", t.learned).Dur("dur_ms",
				time.Since(began))
			if m.upgrade {
				l.Msg("better template ready: it has what workers import late")
			} else {
				l.Msg("template ready")
			}
			return t
		}
		if w.ctx.Err() != nil {
			return nil
		}
		r, ok := errors.AsType[*refusal](err)
		level := w.level(zerolog.WarnLevel)
		if ok && r.Learned != "" {
			level = zerolog.DebugLevel // nobody asked for this module
		}
		l := w.Log.WithLevel(level).Err(err)
		if ok && r.Hint != "" {
			l = l.Str("hint", r.Hint)
		}
		switch {
		case ok && r.Learned != "":
			w.cutLearned(m, r)
			l.Msg("the template of warm starts is made without a module that workers import late")
		case m.upgrade:
			l.Msg("no better template of warm starts: the one that is there stays")
			return nil
		case !ok || !w.cut(r):
			w.giveUp(err.Error())
			l.Msg("no warm start: workers start as usual")
			return nil
		case r.Module >= 0:
			l.Msg("the template of warm starts is made without this module")
		default:
			l.Msg("the template of warm starts is made without this import and those behind it")
		}
	}
	return nil
}

// cut leaves out what a refusal is about, and reports whether anything is left. What a script imports behind it is left
// out with it.
func (w *Warmer) cut(r *refusal) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case r.Module >= 0 && r.Module < len(w.modules):
		w.modules = slices.Delete(slices.Clone(w.modules), r.Module, r.Module+1)
	case r.Module < 0 && r.Step >= 0:
		w.limit = r.Step
	default:
		return false
	}
	return len(w.modules) > 0 || w.Rules.Auto && w.limit > 0
}

// level is that of what is told of the template: nobody wants to know it who has not asked for one.
func (w *Warmer) level(asked zerolog.Level) zerolog.Level {
	if w.Rules.Restarts {
		return zerolog.DebugLevel
	}
	return asked
}

// giveUp notes that there can be no template, and why.
func (w *Warmer) giveUp(why string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hopeless, w.why = true, why
}

func (w *Warmer) try(m *making) (*Template, int, error) {
	w.mu.Lock()
	modules, limit, probed := w.modules, w.limit, w.probed
	w.mu.Unlock()
	variables := w.lore.assigned()
	entries, own := w.Worker.Env.Common()
	env, err := python.Hook(w.HookDir, entries)
	if err != nil {
		return nil, 0, err
	}
	if !probed {
		probe := proc.Spec{
			Path: w.Command.ProbePath, Args: w.Command.Probe, Env: env, Dir: w.Worker.Dir, Files: []*os.File{nil},
			Label: "a trial of the interpreter",
		}
		t, err := startTemplate(w.ctx, w.Tree, probe, []string{"probe", ""})
		if err != nil {
			return nil, 0, err
		}
		if err := t.Close(); err != nil {
			return nil, 0, err
		}
		w.mu.Lock()
		w.probed = true
		w.mu.Unlock()
	}
	order := []string{
		"agent", strconv.Itoa(os.Getpid()), "arguments", strconv.Itoa(w.Command.Arguments),
		"form", w.Command.Form, "name", w.Command.Name, "limit", strconv.Itoa(limit),
	}
	if w.Rules.Auto {
		order = append(order, "auto", "", "learn", "")
		for _, path := range m.learned {
			order = append(order, "learned", path)
		}
		for _, name := range variables {
			order = append(order, "assigned", name)
		}
	}
	for _, name := range modules {
		order = append(order, "module", name)
	}
	for _, name := range append(own, w.Worker.Varying...) {
		order = append(order, "varying", name)
	}
	for _, entry := range entries {
		order = append(order, "env", entry)
	}
	t, err := startTemplate(w.ctx, w.Tree, proc.Spec{
		Path: w.Worker.Path, Args: w.Worker.Argv, Env: env, Dir: w.Worker.Dir, CPUs: w.Worker.CPUs, Files: []*os.File{w.Stdin},
		Label: "the template",
	}, order)
	if err != nil {
		return nil, 0, err
	}
	stop := context.AfterFunc(w.ctx, func() { _ = t.proc.Kill() })
	defer stop()
	undo := func() error { return nil }
	if m.polite {
		undo = sync.OnceValue(yield(t.proc.PID()))
		defer time.AfterFunc(politeFor, func() { _ = undo() }).Stop() // it has an answer for the one who asks next
	}
	imports, err := t.await(m.importing)
	if undone := undo(); err == nil {
		err = undone // workers would be as patient
	}
	if err != nil {
		return nil, 0, errors.Join(err, t.Close())
	}
	return t, imports, nil
}

func (m *making) importing(label string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.step = label
}

func (m *making) at() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.step
}

// Prepare is told that workers have started, and with which process ids those that were forked. Where there can be
// another start its workers are forked ahead, some time later: now the processors are needed. Else the template is kept
// for a while, for what it can learn for the next job.
func (w *Warmer) Prepare(n int, again bool, pids []int) {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ctx.Err() != nil {
		return
	}
	if w.untended != nil {
		w.untended()
	}
	w.restarts = true
	if !again && w.Rules.Restarts && w.next == nil {
		return
	}
	ctx, cancel := context.WithCancel(w.ctx)
	w.untended = cancel
	w.wg.Go(func() {
		defer cancel()
		if m := w.ready(); m != nil && !again && (!w.Rules.Auto || len(pids) == 0) {
			w.release(m)
			return
		}
		w.tend(ctx, n, again, pids)
		if m := w.ready(); m != nil && !again && ctx.Err() == nil {
			w.release(m)
		}
	})
}

// release ends a template that no start will need.
func (w *Warmer) release(m *making) {
	w.mu.Lock()
	if w.next == m {
		w.next = nil
	}
	w.mu.Unlock()
	w.warn(m.template.Close())
}

// Ready reports whether there is a template that a start need not wait for.
func (w *Warmer) Ready() bool { return w.ready() != nil }

// ready returns the template that is ready, nil where there is none.
func (w *Warmer) ready() *making {
	if w == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.next == nil {
		return nil
	}
	select {
	case <-w.next.done:
		if w.next.template != nil {
			return w.next
		}
	default:
	}
	return nil
}

func (w *Warmer) warn(err error) {
	if err != nil {
		w.Log.Warn().Err(err).Msg("the template of warm starts was not ended")
	}
}

// replace ends a template that cannot be used any more, because of what was changed or with the error and message that
// are to be told, and has another one made.
func (w *Warmer) replace(m *making, what string, err error, message string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.next != m || w.ctx.Err() != nil {
		return // it ended, and that was seen, or was meant
	}
	if err == nil {
		w.modules, w.limit = w.Rules.Modules, allImports // what could not be shared may be mended
		w.Log.WithLevel(w.level(zerolog.InfoLevel)).Str("path",
			what).Msg("changed since it was imported: making the template of warm starts anew")
	} else {
		w.failed++
		w.why = err.Error()
		w.Log.Warn().Err(err).Msg(message)
	}
	w.next = nil
	w.warn(m.template.Close())
	if w.failed < templatesLimit && !w.Rules.Restarts {
		w.beginLocked(&making{})
	}
}

// FailedFork is told when a template could not fork a worker: another one is made.
func (w *Warmer) FailedFork(t *Template, err error) {
	message := "workers start as usual, and another template is made"
	if w.Rules.Restarts {
		message = "the template of warm starts cannot fork workers: another one is made after the next start"
	}
	if m := w.ready(); m != nil && m.template == t {
		w.replace(m, "", err, message)
	} else { // it has ended, and been replaced
		w.Log.Warn().Err(err).Msg("workers start as usual")
	}
}

// Close ends the template, and what its modules left behind.
func (w *Warmer) Close() error {
	if w == nil || w.cancel == nil {
		return nil
	}
	w.cancel()
	w.mu.Lock()
	m := w.next
	w.mu.Unlock()
	var err error
	if m != nil {
		<-m.done
		if m.template != nil {
			err = m.template.Close()
		}
	}
	w.wg.Wait()
	return err
}

// New returns the warmer of a plan, nil where its workers start as usual.
func New(p *plan.Plan, tree *proc.Tree, stdin *os.File, log zerolog.Logger) (*Warmer, error) {
	rules := p.Job.Warm
	if !p.Warms() {
		return nil, nil
	}
	command, cold := p.Warm()
	if cold != nil {
		level := zerolog.WarnLevel
		switch {
		case rules.Restarts:
			level = zerolog.DebugLevel
		case rules.Auto: // asked for whatever the command is
			level = zerolog.InfoLevel
		}
		log.WithLevel(level).Err(cold).Msg("no warm start: workers start as usual")
		return nil, nil
	}
	worker, err := p.Worker(p.DryRound(), 0, 0, "")
	if err != nil {
		return nil, fmt.Errorf("cannot make a template: %w", err)
	}
	return &Warmer{
		Tree: tree, Log: log, Rules: rules, Command: command, Worker: worker, Stdin: stdin, HookDir: filepath.Join(p.RunDir, "template"),
		Source: memorySource{p.CacheDir, command, p.Executable(), p.Dir, worker.Env.Strings()},
		lore:   lore{known: learned{Version: learnedVersion}},
	}, nil
}
