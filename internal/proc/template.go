package proc

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Template is a process that forks workers for us. It belongs to the tree, but not to the workers: Stop leaves it alone,
// until Close ends it. The kernel kills it when this process dies, and the guardian knows it. One goroutine at a time
// may use it.
type Template struct {
	tree *Tree
	proc *Process
	conn channel
}

// templateFD is where a template finds its connection to us.
const templateFD = 3

// forkLimit and forkEach, for each worker, are how long forking may take. It takes milliseconds; what needs longer was
// stopped, or starves.
const (
	forkLimit = 5 * time.Second
	forkEach  = 250 * time.Millisecond
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

// ForksLimit is how many workers Fork takes at once: the kernel passes 253 descriptors, and each has four.
const ForksLimit = 32

// Fork has the template fork one worker for each spec, with its arguments, environment, label and first three files. They
// are sent behind message, which is the template's word for it, each under the keys worker, argv and env. The workers are
// as those that Start started: leaders of their own sessions, killed by the kernel when this process dies, ours to wait
// for. Each is held until it is registered, and let go with the message onward. A worker that could not be made is nil in
// the result; the error says why, and the template is not to be used again.
func (m *Template) Fork(specs []Spec, message, onward []string) ([]*Process, error) {
	procs := make([]*Process, len(specs))
	err := m.fork(procs, specs, message, onward)
	m.tree.nudge()
	return procs, err
}

func (m *Template) fork(procs []*Process, specs []Spec, message, onward []string) error {
	deadline := time.Now().Add(forkLimit + time.Duration(len(specs))*forkEach)
	message = slices.Clip(message)
	var pass []*os.File
	conns := make([]channel, 0, len(specs))
	defer func() {
		for _, c := range conns {
			c.close() // a worker that was not let go ends when it sees this
		}
	}()
	for _, spec := range specs {
		files, cleanup, err := spec.open()
		defer cleanup()
		if err != nil {
			return err
		}
		conn, theirs, err := newChannel()
		if err != nil {
			return fmt.Errorf("cannot fork %s: %w", spec.name(), err)
		}
		conns = append(conns, conn)
		defer func() { _ = theirs.Close() }()
		pass = append(append(pass, files[:3]...), theirs)
		message = append(message, "worker", "")
		for _, a := range spec.Args {
			message = append(message, "argv", a)
		}
		for _, e := range spec.Env {
			message = append(message, "env", e)
		}
	}
	m.tree.expect(1)
	defer m.tree.expect(-1)
	started := time.Now()
	if err := m.conn.send(deadline, message, pass...); err != nil {
		return fmt.Errorf("cannot reach %s: %w", m.proc.label, err)
	}
	for i := range pass {
		if i%4 == 3 {
			_ = pass[i].Close() // so that the end of the others shows; closing twice does no harm
		}
	}
	var errs []error
	for i, spec := range specs {
		var err error
		if procs[i], err = m.welcome(conns[i], spec, started, deadline, onward); err != nil {
			errs = append(errs, fmt.Errorf("cannot fork %s from the template: %w", spec.name(), err))
		}
	}
	return errors.Join(errs...)
}

// welcome registers a worker that was forked, and lets it go.
func (m *Template) welcome(conn channel, spec Spec, started, deadline time.Time, onward []string) (*Process, error) {
	answer, err := conn.receive(deadline)
	switch {
	case errors.Is(err, io.EOF):
		return nil, errors.New("it ended before it had begun")
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, errors.New("no answer in time")
	case err != nil:
		return nil, err
	case len(answer) != 2 || answer[0] != "pid":
		return nil, fmt.Errorf("%q", answer)
	}
	pid, err := strconv.Atoi(answer[1])
	if err != nil {
		return nil, err
	}
	p, err := m.tree.adopt(pid, spec.Label, started)
	if err != nil {
		return nil, err
	}
	if err := conn.send(deadline, onward); err != nil {
		// It is registered, and ends by itself: a worker like any other that does not get far.
		m.tree.log.Debug().Err(err).Int("pid", pid).Msg("forked worker not let go")
	}
	return p, nil
}

// expect says that children will come, or have come, that are to be registered before anybody reaps them.
func (t *Tree) expect(n int) {
	t.mu.Lock()
	t.expected += n
	t.mu.Unlock()
	if n < 0 {
		t.reap()
	}
}

// adopt registers child pid, which we did not start, as a worker.
func (t *Tree) adopt(pid int, label string, started time.Time) (*Process, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed() {
		return nil, ErrClosed
	}
	// What is no child of ours is somebody else's, whatever the message says; a child that is there is not reaped
	// before we let go of the lock.
	st, err := statOf(pid)
	if err != nil || st.ppid != t.self.PID || st.sid != pid || t.live[pid] != nil {
		return nil, fmt.Errorf("process %d is no worker of ours", pid)
	}
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		pidfd = -1
	}
	if t.cgroup != nil {
		if err := os.WriteFile(filepath.Join(t.cgroup.path, "cgroup.procs"), strconv.AppendInt(nil, int64(pid), 10), 0); err != nil {
			t.log.Debug().Err(err).Msg("worker not in its cgroup")
		}
	}
	p := t.registerLocked(pid, pidfd, label, asWorker, started)
	t.pushLocked()
	return p, nil
}

// Kill ends the template at once, from any goroutine.
func (m *Template) Kill() error { return m.proc.SignalGroup(syscall.SIGKILL) }

// Close kills the template and its children, and waits for its end.
func (m *Template) Close() error {
	defer m.conn.close()
	if err := m.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	timer := time.NewTimer(DefaultKill)
	defer timer.Stop()
	select {
	case <-m.proc.Done():
		return nil
	case <-timer.C:
		return fmt.Errorf("cannot kill the template, process %d (in %s)", m.proc.PID(), wchan(m.proc.PID()))
	}
}
