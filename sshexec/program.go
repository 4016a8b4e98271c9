package sshexec

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"al.essio.dev/pkg/shellescape"

	"muster/internal/errhint"
	"muster/internal/hosts"
	"muster/internal/proc"
)

// programStop is how long a program may take to end by itself when its standard input does.
const programStop = 2 * time.Second

// piped is a program that runs here, with pipes to it.
type piped struct {
	*proc.Process
	tree   *proc.Tree
	stdin  *os.File
	stdout *os.File
	stderr *tail
	read   chan struct{} // closed when all of stderr was read
	close  func()
}

// startPiped starts a program.
func (d *Dialer) startPiped(path string, args []string, label string) (p *piped, err error) {
	pipes, err := proc.NewPipes(proc.In, proc.Out, proc.Out)
	if err != nil {
		return nil, fmt.Errorf("cannot start %s: %w", label, err)
	}
	started, err := d.cfg.Tree.Start(proc.Spec{
		Path: path, Args: append([]string{path}, args...), Env: d.cfg.Environ, Files: pipes.Theirs,
		Label: label,
	})
	pipes.Settle(err)
	if err != nil {
		return nil, err
	}
	p = &piped{
		Process: started, tree: d.cfg.Tree, stdin: pipes.Ours[0], stdout: pipes.Ours[1], stderr: newTail(),
		read: make(chan struct{}),
	}
	go func() { // ends with the program, and with what it left behind: close ends both
		_, _ = io.Copy(p.stderr, pipes.Ours[2])
		_ = pipes.Ours[2].Close()
		close(p.read)
	}()
	p.close = sync.OnceFunc(p.stop)
	return p, nil
}

// stop ends the program's input, and then the program.
func (p *piped) stop() {
	_ = p.stdin.Close()
	select {
	case <-p.Done():
	case <-time.After(programStop):
	}
	ctx, cancel := context.WithTimeout(context.Background(), programStop)
	defer cancel()
	_ = p.tree.Stop(ctx, proc.Ladder{Signal: syscall.SIGTERM, Grace: time.Second, Leftover: time.Second},
		p.Process) // the tree's owner sees what is left
	_ = p.stdout.Close()
}

// output runs a program here and returns what it writes.
func (d *Dialer) output(ctx context.Context, path string, args []string, stdin string) (string, error) {
	p, err := d.startPiped(path, args, filepath.Base(path))
	if err != nil {
		return "", err
	}
	defer p.close()
	stop := context.AfterFunc(ctx, p.close)
	defer stop()
	_, _ = io.WriteString(p.stdin, stdin) // one that does not want it says why by itself
	_ = p.stdin.Close()
	out, err := io.ReadAll(io.LimitReader(p.stdout, 1<<20))
	<-p.Done()
	<-p.read
	switch {
	case ctx.Err() != nil:
		return "", context.Cause(ctx)
	case err != nil:
		return "", err
	case !p.Exit().Success():
		return "", fmt.Errorf("%s: %s", p.Exit(), oneLine(p.stderr.String()))
	}
	return string(out), nil
}

// programLink runs commands by a program that takes ssh's arguments. Each goes over a connection of its own.
type programLink struct {
	d    *Dialer
	s    *settings
	args []string // the whole command, less the remote one
	ssh  bool     // it has ssh's options, and ends with 255 where the machine was not reached
}

// programPath finds the configured program.
func (d *Dialer) programPath() (string, error) {
	path, err := proc.LookPath(d.cfg.Program[0], "", d.cfg.Environ)
	if err != nil {
		return "", withHint(errhint.Usagef("cannot use %s in place of ssh: %v", d.cfg.Program[0], err), errhint.Of(err))
	}
	return path, nil
}

func (d *Dialer) programLink(ctx context.Context, h hosts.Host) (link, error) {
	if h.Name == "" || strings.HasPrefix(h.Name, "-") || strings.ContainsAny(h.Name, " \t\r\n\x00") {
		return nil, errhint.Usagef("cannot reach a host by ssh whose name is %q", h.Name)
	}
	path, err := d.programPath()
	if err != nil {
		return nil, err
	}
	l := &programLink{d: d, args: append([]string{path}, d.cfg.Program[1:]...)}
	l.s = &settings{
		name: h.Name, hostname: h.Name, user: firstOf(h.User, d.cfg.User), port: firstOf(h.Port, d.cfg.Port),
		timeout: d.cfg.ConnectTimeout,
	}
	l.ssh = !strings.HasPrefix(filepath.Base(path), "kubexec")
	if !l.ssh {
		l.args = append(l.args, h.Name)
		return l, nil
	}
	every := firstOf(d.cfg.Alive, aliveEvery)
	options := append([]string{}, d.cfg.Options...) // the first of two that say the same wins
	options = append(options, "BatchMode=yes",
		fmt.Sprintf("ConnectTimeout=%d", seconds(firstOf(d.cfg.ConnectTimeout, defaultConnectTimeout))),
		fmt.Sprintf("ServerAliveInterval=%d", seconds(every)), fmt.Sprintf("ServerAliveCountMax=%d", aliveMisses))
	policy := d.cfg.HostKeys
	if policy == "" {
		// The program would ask, and cannot. What somebody chose stays.
		if files, err := d.files.of(ctx, h); err == nil && slices.Contains([]string{"", "ask"}, files.first("stricthostkeychecking", "")) {
			policy = "accept-new"
		}
	}
	switch policy {
	case "accept-new":
		options = append(options, "StrictHostKeyChecking=accept-new")
	case "strict":
		options = append(options, "StrictHostKeyChecking=yes")
	case "off":
		options = append(options, "StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null")
	}
	for _, o := range options {
		l.args = append(l.args, "-o", o)
	}
	if l.s.port != 0 {
		l.args = append(l.args, "-p", strconv.Itoa(l.s.port))
	}
	if d.cfg.Identity != "" {
		l.args = append(l.args, "-i", d.cfg.Identity)
	}
	if l.s.user != "" {
		l.args = append(l.args, "-l", l.s.user)
	}
	l.args = append(l.args, "--", h.Name)
	return l, nil
}

// seconds rounds up: 0 would mean never.
func seconds(d time.Duration) int { return int((d + time.Second - 1) / time.Second) }

func (l *programLink) fail(reason Reason, hint string, err error) error {
	e := &Error{Host: l.s.name, User: l.s.user, Reason: reason, Err: err}
	return errhint.Code(withHint(e, hint), errhint.TryAgain)
}

func (l *programLink) addrs() (local, remote netip.AddrPort) { return local, remote }

func (l *programLink) close() {}

func (l *programLink) run(_ context.Context, command string) (*session, error) {
	p, err := l.d.startPiped(l.args[0], append(l.args[1:len(l.args):len(l.args)], command), filepath.Base(l.args[0])+" to "+l.s.name)
	if err != nil {
		return nil, l.fail(NoProgram, "", err)
	}
	return &session{stdin: p.stdin, stdout: p.stdout, stderr: p.stderr, close: p.close, wait: sync.OnceValues(func() (int, error) {
		<-p.Done()
		select {
		case <-p.read:
		case <-time.After(time.Second): // what it left behind may hold the pipe
		}
		return p.Exit().Status(), nil
	})}, nil
}

func (l *programLink) said(status int, stderr string) error {
	text := oneLine(stderr)
	if text == "" {
		return fmt.Errorf("%s ended with status %d", filepath.Base(l.args[0]), status)
	}
	return fmt.Errorf("%s ended with status %d: %s", filepath.Base(l.args[0]), status, text)
}

// unreached tells a program that did not reach the machine. ssh ends with 255 then, and where the connection was lost;
// of other programs nobody knows, so what they never started may come about later.
func (l *programLink) unreached(status int, stderr string, began bool) error {
	reason := reasonOf(stderr)
	switch {
	case l.ssh && status != 255, began && !l.ssh:
		return nil
	case began:
		reason = Lost
	}
	var hint string
	switch reason {
	case AuthFailed:
		hint = "let a key in with ssh-copy-id, load it with ssh-add, or name one with --ssh-identity: nobody is asked for a password"
	case HostKeyChanged, HostKeyUnknown:
		hint = "look at the machine's key in known_hosts"
	default:
		hint = "try the same by hand: " + shellescape.QuoteCommand(append(slices.Clone(l.args), "true"))
	}
	return l.fail(reason, hint, l.said(status, stderr))
}

// proxy starts a ProxyCommand: its standard input and output are the connection.
func (d *Dialer) proxy(s *settings) (net.Conn, error) {
	p, err := d.startPiped("/bin/sh", []string{"-c", "exec " + s.proxy}, "the ProxyCommand to "+s.name)
	if err != nil {
		return nil, err
	}
	return &proxyConn{p}, nil
}

// proxyConn is a connection through a program.
type proxyConn struct{ p *piped }

func (c *proxyConn) Read(b []byte) (int, error) {
	n, err := c.p.stdout.Read(b)
	return n, c.explain(err)
}

func (c *proxyConn) Write(b []byte) (int, error) {
	n, err := c.p.stdin.Write(b)
	return n, c.explain(err)
}

// explain adds to the end of the connection what the program has said.
func (c *proxyConn) explain(err error) error {
	if !brokenOff(err) {
		return err
	}
	select {
	case <-c.p.read:
	case <-time.After(time.Second):
	}
	if said := oneLine(c.p.stderr.String()); said != "" {
		return &proxyError{said}
	}
	return err
}

// proxyError is the end of a connection through a program that has said something.
type proxyError struct{ said string }

func (e *proxyError) Error() string { return "the ProxyCommand ended it: " + e.said }
func (e *proxyError) Unwrap() error { return io.EOF }

func (c *proxyConn) Close() error {
	c.p.close()
	return nil
}

func (c *proxyConn) LocalAddr() net.Addr              { return proxyAddr{} }
func (c *proxyConn) RemoteAddr() net.Addr             { return proxyAddr{} }
func (c *proxyConn) SetDeadline(time.Time) error      { return os.ErrNoDeadline }
func (c *proxyConn) SetReadDeadline(time.Time) error  { return os.ErrNoDeadline }
func (c *proxyConn) SetWriteDeadline(time.Time) error { return os.ErrNoDeadline }

// proxyAddr stands for an end of a connection that only a program knows.
type proxyAddr struct{}

func (proxyAddr) Network() string { return "proxy" }
func (proxyAddr) String() string  { return "ProxyCommand" }
