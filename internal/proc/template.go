package proc

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Template is a process that forks workers for us. It belongs to the tree, but not to the workers: Stop leaves it
// alone, until Close ends it. The kernel kills it when this process dies, and the guardian knows it. One goroutine at a
// time may use it.
type Template struct {
	tree *Tree
	proc *Process
	conn channel
}

// templateFD is where a template finds its connection to us.
const templateFD = 3

const (
	// forkLimit and forkEach, for each worker, are how long forking may take. It takes milliseconds where processors
	// are free; where many wait for them, an ordinary start takes longer still.
	forkLimit = 30 * time.Second
	forkEach  = 250 * time.Millisecond
	// stoppedLimit is how long one is waited for that a signal or a debugger holds, and heldEvery how often it is
	// looked for then.
	stoppedLimit = 5 * time.Second
	heldEvery    = 250 * time.Millisecond
)

// StartTemplate starts a template, which finds a socket at descriptor 3; spec.Files has at most three entries.
func (t *Tree) StartTemplate(spec Spec) (*Template, error) {
	conn, theirs, err := newChannel()
	if err != nil {
		return nil, fmt.Errorf("cannot start %s: %w", spec.name(), err)
	}
	defer func() { _ = theirs.Close() }()
	files := make([]*os.File, templateFD, templateFD+1)
	copy(files, spec.Files)
	spec.Files = append(files, theirs)
	p, err := t.start(spec, asTemplate)
	if err != nil {
		conn.close()
		return nil, err
	}
	t.mu.Lock()
	t.pushLocked()
	t.mu.Unlock()
	return &Template{tree: t, proc: p, conn: conn}, nil
}

// PID returns the template's process id.
func (m *Template) PID() int { return m.proc.PID() }

// Done is closed when the template has ended.
func (m *Template) Done() <-chan struct{} { return m.proc.Done() }

// Exit returns how the template ended. It waits for the end.
func (m *Template) Exit() Exit { return m.proc.Exit() }

// Send gives the template a message: keys and values in turn.
func (m *Template) Send(message ...string) error {
	if err := m.conn.send(time.Now().Add(forkLimit), message); err != nil {
		return fmt.Errorf("cannot reach %s: %w", m.proc.label, err)
	}
	return nil
}

// Receive waits for the template's next message until deadline; the zero time waits for ever. It returns io.EOF when
// the template has closed its end, as its death does.
func (m *Template) Receive(deadline time.Time) ([]string, error) {
	message, err := m.conn.receive(deadline)
	if err != nil && !errors.Is(err, io.EOF) {
		err = fmt.Errorf("cannot hear %s: %w", m.proc.label, err)
	}
	return message, err
}

// GiveUp ends a Receive that waits, as its deadline would.
func (m *Template) GiveUp() { _ = m.conn.conn.SetReadDeadline(time.Now()) } // it fails where the connection is closed, and nobody waits

// Stopped reports whether a signal or a debugger holds the template: it answers nobody until it is let go on.
func (m *Template) Stopped() bool {
	p, err := statOf(m.proc.PID())
	return err == nil && p.held()
}

// held reports whether a signal or a debugger has stopped the process.
func (p *procInfo) held() bool { return p.state == 'T' || p.state == 't' }

// forkHeld reports whether one of those is stopped that have a part in a fork under way: the template, what it has
// forked, or a fork that has come to us and is not known yet.
func (m *Template) forkHeld() bool {
	snap, err := readSnapshot()
	if err != nil {
		return false
	}
	t := m.tree
	t.mu.Lock()
	known := make(map[int]bool, len(t.live))
	for pid := range t.live {
		known[pid] = true
	}
	t.mu.Unlock()
	var below func(pid int) bool
	below = func(pid int) bool {
		for _, kid := range snap.kids[pid] {
			if !known[kid.PID] && (kid.held() || below(kid.PID)) {
				return true
			}
		}
		return false
	}
	p := snap.procs[m.PID()]
	return p != nil && p.held() || below(m.PID()) || below(t.self.PID)
}

// ForksLimit is how many processes Fork makes at once: the template gets a descriptor for each, and may have few.
const ForksLimit = 16

// Spare is a fork of a template that waits to become a worker. Like the template it belongs to the tree, but not to the
// workers.
type Spare struct {
	proc *Process
	conn channel
}

// Fork has the template make n spares, at most ForksLimit; message is the template's word for it. Each is leader of its
// own session, killed by the kernel when this process dies, and ours to wait for. With an error there are fewer, and
// the template is not to be used again.
func (m *Template) Fork(n int, message ...string) ([]*Spare, error) {
	began := time.Now()
	deadline := began.Add(forkLimit + time.Duration(n)*forkEach)
	conns := make([]channel, 0, n)
	pass := make([]*os.File, 0, n)
	release := func() {
		for _, f := range pass {
			_ = f.Close()
		}
		pass = nil
	}
	defer release()
	for range n {
		conn, theirs, err := newChannel()
		if err != nil {
			for _, c := range conns {
				c.close()
			}
			return nil, fmt.Errorf("cannot fork from %s: %w", m.proc.label, err)
		}
		conns, pass = append(conns, conn), append(pass, theirs)
	}
	m.tree.expect(1)
	defer m.tree.expect(-1)
	err := m.conn.send(deadline, message, pass...)
	release() // so that the end of the others shows
	errs := []error{err}
	var spares []*Spare
	for _, conn := range conns {
		var p *Process
		if err == nil {
			if p, err = m.welcome(conn, began, deadline); err != nil {
				errs, err = append(errs, err), nil // the others may be well
			}
		}
		if p == nil {
			conn.close() // a spare that is there nevertheless ends when it sees this
			continue
		}
		spares = append(spares, &Spare{proc: p, conn: conn})
	}
	if err := errors.Join(errs...); err != nil {
		return spares, fmt.Errorf("cannot fork from %s: %w", m.proc.label, err)
	}
	return spares, nil
}

// welcome registers a process that was forked.
func (m *Template) welcome(conn channel, began, deadline time.Time) (*Process, error) {
	answer, err := conn.awaited(began, deadline, m.forkHeld, "pid", 2)
	if err != nil {
		return nil, err
	}
	pid, err := strconv.Atoi(answer[1])
	if err != nil {
		return nil, err
	}
	return m.tree.adopt(pid)
}

// awaited is answer where somebody may have been stopped who has a part in it: the waiting ends then, stoppedLimit
// after began.
func (c channel) awaited(began, deadline time.Time, held func() bool, word string, n int) ([]string, error) {
	answered := make(chan struct{})
	var hopeless bool
	var wg sync.WaitGroup
	wg.Go(func() {
		look := time.NewTicker(heldEvery)
		defer look.Stop()
		for {
			select {
			case <-answered:
				return
			case <-look.C:
				if time.Since(began) >= stoppedLimit && held() {
					hopeless = true
					_ = c.conn.SetReadDeadline(time.Now()) // again and again: the reader sets its own when it begins
				}
			}
		}
	})
	answer, err := c.answer(deadline, word, n)
	close(answered)
	wg.Wait()
	if err != nil && hopeless {
		err = fmt.Errorf("a process was stopped, and has not gone on for %v", stoppedLimit)
	}
	return answer, err
}

// answer receives a message that begins with word and has n parts.
func (c channel) answer(deadline time.Time, word string, n int) ([]string, error) {
	answer, err := c.receive(deadline)
	switch {
	case errors.Is(err, io.EOF):
		return nil, errors.New("it ended before it had begun")
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, errors.New("no answer in time")
	case err != nil:
		return nil, err
	case len(answer) == 2 && answer[0] == "failed":
		return nil, errors.New(answer[1])
	case len(answer) != n || answer[0] != word:
		return nil, fmt.Errorf("unexpected answer %q", answer)
	}
	return answer, nil
}

// StartSpares makes spares workers, each with the arguments, environment, CPUs, label and first three files of a spec,
// all files where it has a program of its own; there are as many specs. They end like workers that Start started. Each
// is let go with the message onward. One that cannot be made a worker is nil in the result, and gone; the error says
// why.
func (t *Tree) StartSpares(spares []*Spare, specs []Spec, onward []string) ([]*Process, error) {
	began := time.Now()
	deadline := began.Add(forkLimit + time.Duration(len(specs))*forkEach)
	procs := make([]*Process, len(specs))
	errs := make([]error, len(specs))
	for i, s := range spares {
		errs[i] = s.order(specs[i], later(deadline))
	}
	for i, s := range spares {
		if errs[i] == nil {
			_, errs[i] = s.conn.awaited(began, later(deadline), s.held, "ready", 1)
		}
		if errs[i] == nil {
			t.employ(s.proc, specs[i].Label)
			errs[i] = s.conn.send(later(deadline), onward)
		}
		s.conn.close()
		if errs[i] == nil {
			procs[i] = s.proc
		} else {
			_ = s.proc.SignalGroup(unix.SIGKILL)
			errs[i] = fmt.Errorf("cannot fork %s: %w", specs[i].name(), errs[i])
		}
	}
	t.mu.Lock()
	t.pushLocked()
	t.mu.Unlock()
	t.nudge()
	return procs, errors.Join(errs...)
}

// later is deadline, or in a second where that has passed: one that was stopped must not cost the others their turn.
func later(deadline time.Time) time.Time {
	if soon := time.Now().Add(time.Second); deadline.Before(soon) {
		return soon
	}
	return deadline
}

// order tells a spare what it is to be.
func (s *Spare) order(spec Spec, deadline time.Time) error {
	files, cleanup, err := spec.open()
	defer cleanup()
	if err != nil {
		return err
	}
	message := make([]string, 0, 2*(len(spec.Args)+len(spec.Env)+len(spec.CPUs)+len(spec.Program)))
	for _, a := range spec.Args {
		message = append(message, "argv", a)
	}
	for _, e := range spec.Env {
		message = append(message, "env", e)
	}
	for _, c := range spec.CPUs {
		message = append(message, "cpu", strconv.Itoa(c))
	}
	if len(spec.Program) == 0 {
		files = files[:3]
	}
	for _, p := range spec.Program {
		message = append(message, "program", p)
	}
	return s.conn.send(deadline, message, files...)
}

// held reports whether a signal or a debugger has stopped the spare.
func (s *Spare) held() bool {
	p, err := statOf(s.proc.PID())
	return err == nil && p.held()
}

// Close ends a spare that is not wanted any more, and waits for its end.
func (s *Spare) Close() error {
	s.conn.close()
	return s.proc.destroy()
}

// expect says that children will come, or have come, that are to be registered before anybody reaps them.
func (t *Tree) expect(n int) {
	if n > 0 {
		t.looking.Lock() // a fork that is half done when somebody looks is taken for a process that is not ours
		defer t.looking.Unlock()
	}
	t.mu.Lock()
	if t.expected == 0 {
		t.forked = make(chan struct{})
	}
	t.expected += n
	if t.expected == 0 {
		close(t.forked)
	}
	t.mu.Unlock()
	if n < 0 {
		t.reap()
	}
}

// awaitForks waits until no fork is under way. The caller keeps others from being begun.
func (t *Tree) awaitForks() {
	t.mu.Lock()
	n, forked := t.expected, t.forked
	t.mu.Unlock()
	if n == 0 {
		return
	}
	timer := time.NewTimer(forkLimit) // of one that takes longer the processes are taken for others, and are stopped with the others
	defer timer.Stop()
	select {
	case <-forked:
	case <-timer.C:
	}
}

// adopt registers child pid, which we did not start, as a spare.
func (t *Tree) adopt(pid int) (*Process, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed() {
		return nil, ErrClosed
	}
	// What is no child of ours is somebody else's, whatever the message says; a child that is there is not reaped
	// before we let go of the lock.
	st, err := statOf(pid)
	if err != nil || st.ppid != t.self.PID || st.sid != pid || t.live[pid] != nil {
		return nil, fmt.Errorf("process %d is no fork for us", pid)
	}
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		pidfd = -1
	}
	p := t.registerLocked(pid, pidfd, "a spare worker", asTemplate, time.Now())
	t.pushLocked()
	return p, nil
}

// employ makes a spare a worker.
func (t *Tree) employ(p *Process, label string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p.mu.Lock()
	p.label, p.exit.Started = label, time.Now()
	p.mu.Unlock()
	p.role = asWorker
	t.pushLocked()
	if c := t.birthplaceLocked(); c != nil {
		if err := os.WriteFile(filepath.Join(c.inner, "cgroup.procs"), strconv.AppendInt(nil, int64(p.id.PID), 10), 0); err != nil {
			t.log.Debug().Err(err).Msg("worker not in its cgroup")
		}
	}
}

// destroy kills a process and its group, and waits for its end.
func (p *Process) destroy() error {
	if err := p.SignalGroup(syscall.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	timer := time.NewTimer(DefaultKill)
	defer timer.Stop()
	select {
	case <-p.done:
		return nil
	case <-timer.C:
		return fmt.Errorf("cannot kill %s, process %d (in %s)", p.label, p.id.PID, wchan(p.id.PID))
	}
}

// Kill ends the template at once, from any goroutine, and whoever waits for its answer.
func (m *Template) Kill() error {
	m.conn.close()
	return m.proc.SignalGroup(syscall.SIGKILL)
}

// Close kills the template and its children, and waits for its end.
func (m *Template) Close() error {
	m.conn.close()
	return m.proc.destroy()
}
