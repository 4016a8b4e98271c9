package sshexec

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"muster/internal/errhint"
)

// Remote is our binary, running on a machine. Whoever started it reads Stdout, and calls Close in the end.
type Remote struct {
	run    *session
	stdout io.Reader
	link   link
	wait   func() (int, error)
}

func newRemote(c *conversation, l link) *Remote {
	return &Remote{run: c.run, stdout: c.out, link: l, wait: sync.OnceValues(func() (int, error) {
		status, err := c.run.wait()
		if err == nil {
			err = l.unreached(status, c.run.stderr.String(), true)
		}
		if err != nil {
			return -1, err
		}
		return status, nil
	})}
}

// Stdin is the standard input of the remote program. Closing it is the end of that.
func (r *Remote) Stdin() io.WriteCloser { return r.run.stdin }

// Stdout is what the remote program writes. What is not read holds it up, after some megabytes.
func (r *Remote) Stdout() io.Reader { return r.stdout }

// Stderr returns the end of what was written to standard error there, up to 8 KiB: it is meant for errors.
func (r *Remote) Stderr() string { return r.run.stderr.String() }

// LocalAddr and RemoteAddr are the ends of the connection as they are seen here. They are not valid where it goes
// through a jump host or a program.
func (r *Remote) LocalAddr() netip.AddrPort { local, _ := r.link.addrs(); return local }

// RemoteAddr is the other end; see LocalAddr.
func (r *Remote) RemoteAddr() netip.AddrPort { _, remote := r.link.addrs(); return remote }

// Wait waits for the end of the remote program and returns its exit status, 128+n where signal n killed it. The error
// says that the connection was lost before, so that nobody knows. It may be called several times.
func (r *Remote) Wait() (status int, err error) { return r.wait() }

// Close ends the connection: the remote program sees the end of its standard input. It may be called several times.
func (r *Remote) Close() error {
	r.run.close()
	r.link.close()
	return nil
}

// link is a way to run commands on a machine.
type link interface {
	// run starts a command, which the login shell of the machine reads.
	run(ctx context.Context, command string) (*session, error)
	addrs() (local, remote netip.AddrPort)
	fail(reason Reason, hint string, err error) error
	// unreached returns why a command that has ended so never ran, or nil where it may have: began tells that it did,
	// and then the connection was lost.
	unreached(status int, stderr string, began bool) error
	close()
}

// session is one command that runs on a machine.
type session struct {
	stdin  io.WriteCloser
	stdout io.Reader
	stderr *tail
	wait   func() (int, error)
	close  func()
}

// finish closes a session whose command has given its last answer and is about to end. It waits for that: Dropbear may
// close a session that is opened while another one ends.
func (s *session) finish() {
	ended := make(chan struct{})
	go func() { // ends with the session, which is closed below
		_, _ = s.wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(goodbye):
	}
	s.close()
}

// sshLink runs commands over one connection of our own client.
type sshLink struct{ c *connection }

func (l *sshLink) fail(reason Reason, hint string, err error) error {
	return l.c.s.fail(reason, hint, err)
}

func (l *sshLink) close() { l.c.close(nil) }

func (l *sshLink) addrs() (local, remote netip.AddrPort) {
	a, ok := l.c.net.LocalAddr().(*net.TCPAddr)
	b, both := l.c.net.RemoteAddr().(*net.TCPAddr)
	if !ok || !both || len(l.c.s.jumps) > 0 { // what the library says of a channel through a jump host is made up
		return local, remote
	}
	return plain(a.AddrPort()), plain(b.AddrPort())
}

// plain writes an IPv4 address as such.
func plain(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()) }

func (l *sshLink) unreached(int, string, bool) error { return nil } // the protocol tells the two apart

func (l *sshLink) run(ctx context.Context, command string) (*session, error) {
	stop := context.AfterFunc(ctx, func() { l.c.end(context.Cause(ctx)) })
	defer stop()
	run, err := l.c.session()
	if err != nil {
		return nil, l.broken(err, "its sshd may allow no sessions (MaxSessions), or no processes are left there")
	}
	s := &session{stderr: newTail(), close: func() { sayGoodbye(run) }}
	stdout, err1 := run.StdoutPipe()
	stderr, err2 := run.StderrPipe()
	stdin, err3 := run.StdinPipe()
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, err
	}
	s.stdout, s.stdin = stdout, stdin
	if err := run.Start(command); err != nil {
		return nil, l.broken(err, "its sshd may not let this user run commands")
	}
	read := make(chan struct{})
	go func() { // ends with the session
		_, _ = io.Copy(s.stderr, stderr)
		close(read)
	}()
	s.wait = sync.OnceValues(func() (int, error) {
		err := run.Wait()
		<-read
		return l.status(err)
	})
	return s, nil
}

// goodbye is how long a machine may take to take the end of a session. One that is dead takes nothing.
const goodbye = time.Second

func sayGoodbye(run *ssh.Session) {
	told := make(chan struct{})
	go func() { // ends with the connection at the latest
		_ = run.Close()
		close(told)
	}()
	select {
	case <-told:
	case <-time.After(goodbye):
	}
}

// broken explains why a session could not be had: the connection has ended, or the other side does not want it.
func (l *sshLink) broken(err error, hint string) error {
	if lost := l.c.lost(); lost != nil {
		return l.fail(Lost, "", lost)
	}
	if brokenOff(err) {
		return l.fail(Lost, "", errors.New("the other side ended the session before the command ran"))
	}
	return l.fail(NoProgram, hint, fmt.Errorf("it runs no command: %w", err))
}

// status reads how a command has ended.
func (l *sshLink) status(err error) (int, error) {
	if err == nil {
		return 0, nil
	}
	if exit, ok := errors.AsType[*ssh.ExitError](err); ok {
		if name := exit.Signal(); name != "" {
			return errhint.FromSignal(signalNumber(name)), nil
		}
		return exit.ExitStatus(), nil
	}
	select { // the end of the connection is told to the session first
	case <-l.c.done:
	case <-time.After(time.Second):
	}
	lost := l.c.lost()
	if lost == nil {
		lost = errors.New("the other side ended the session, and did not say how the program ended")
	}
	return -1, l.fail(Lost, "is the machine up, and the network between?", lost)
}

// signalNumber reads a name without SIG, as the protocol has it. One that is not known counts as 0.
func signalNumber(name string) int { return int(unix.SignalNum("SIG" + name)) }

// tail keeps the end of what is written to it.
type tail struct {
	mu   sync.Mutex
	text []byte
}

const tailSize = 8 << 10

func newTail() *tail { return &tail{} }

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p...)
	if over := len(t.text) - tailSize; over > 0 {
		t.text = slices.Delete(t.text, 0, over)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.ToValidUTF8(string(t.text), "?")
}
