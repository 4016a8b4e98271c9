// Package sshtest has ssh servers that misbehave in ways which no real one can be asked for: they die in the middle of
// a copy, freeze, or have whatever key the test wants. What they run is real. Only tests import it; for servers that
// behave, testutil.SSHD starts OpenSSH's.
package sshtest

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/crypto/ssh"
)

// Config is for New; the zero value is a server on 127.0.0.1 that lets everybody in who has a key.
type Config struct {
	// Keys are the host keys. Empty: a new one.
	Keys []ssh.Signer
	// Authorized are those that are let in. Nil: every key.
	Authorized []ssh.PublicKey
	// PasswordOnly takes passwords, and no keys; Also asks for a password behind a key.
	PasswordOnly, Also bool
	// Shell is the login shell: it gets -c and the command. Empty: /bin/sh.
	Shell string
	// Env are further variables of commands, NAME=VALUE.
	Env []string
	// DieAfter, where it is not 0, is how many bytes of standard input one connection brings before it is cut.
	DieAfter int64
	// Silent takes connections and says nothing.
	Silent bool
}

// Server is an ssh server that ends with its test.
type Server struct {
	// Addr is where it listens, host:port, and Port the latter part.
	Addr string
	Port int
	// Home is the HOME of its commands, an empty folder of the test.
	Home string

	cfg    Config
	config *ssh.ServerConfig
	listen net.Listener
	wg     sync.WaitGroup
	// DieAfter may be changed while it runs.
	DieAfter atomic.Int64

	mu       sync.Mutex
	conns    map[*conn]bool
	sessions int
	closed   bool
}

// Key makes a key for a server or a client.
func Key(t testing.TB) ssh.Signer {
	t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.NewSignerFromKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return signer
}

// New starts a server.
func New(t testing.TB, cfg Config) *Server {
	t.Helper()
	if len(cfg.Keys) == 0 {
		cfg.Keys = []ssh.Signer{Key(t)}
	}
	if cfg.Shell == "" {
		cfg.Shell = "/bin/sh"
	}
	s := &Server{cfg: cfg, Home: t.TempDir(), config: &ssh.ServerConfig{}, conns: map[*conn]bool{}}
	s.DieAfter.Store(cfg.DieAfter)
	for _, k := range cfg.Keys {
		s.config.AddHostKey(k)
	}
	noPassword := func(ssh.ConnMetadata, []byte) (*ssh.Permissions, error) { return nil, errors.New("no") }
	if cfg.PasswordOnly {
		s.config.PasswordCallback = noPassword
	} else {
		s.config.PublicKeyCallback = func(_ ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
			if cfg.Also {
				return nil, &ssh.PartialSuccessError{Next: ssh.ServerAuthCallbacks{PasswordCallback: noPassword}}
			}
			if cfg.Authorized == nil {
				return nil, nil
			}
			for _, k := range cfg.Authorized {
				if string(k.Marshal()) == string(key.Marshal()) {
					return nil, nil
				}
			}
			return nil, errors.New("no")
		}
	}
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.listen, s.Addr, s.Port = l, l.Addr().String(), l.Addr().(*net.TCPAddr).Port
	s.wg.Go(s.serve)
	t.Cleanup(func() {
		_ = l.Close()
		s.mu.Lock()
		s.closed = true
		s.mu.Unlock()
		s.Cut()
		s.wg.Wait()
	})
	return s
}

// Cut ends all connections, and what runs over them.
func (s *Server) Cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		_ = c.Close()
	}
}

// Freeze stops reading from and writing to all connections: the machine has lost its power.
func (s *Server) Freeze() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		c.freeze.Do(func() { close(c.frozen) })
	}
}

// Sessions is how many commands were run, and Connections how many connections are open.
func (s *Server) Sessions() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sessions
}

// Connections is how many connections are open.
func (s *Server) Connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}

// conn is a connection that can freeze.
type conn struct {
	net.Conn
	frozen chan struct{}
	freeze sync.Once
	closed chan struct{}
	close  sync.Once
	input  atomic.Int64 // bytes of standard input
}

func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	select {
	case <-c.frozen:
		<-c.closed
	default:
	}
	return n, err
}

func (c *conn) Write(b []byte) (int, error) {
	select {
	case <-c.frozen:
		<-c.closed
	default:
	}
	return c.Conn.Write(b)
}

func (c *conn) Close() error {
	c.close.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

func (s *Server) serve() {
	for {
		nc, err := s.listen.Accept()
		if err != nil {
			return
		}
		c := &conn{Conn: nc, frozen: make(chan struct{}), closed: make(chan struct{})}
		s.mu.Lock()
		if s.closed {
			_ = c.Close()
		}
		s.conns[c] = true
		s.mu.Unlock()
		s.wg.Go(func() {
			defer func() {
				_ = c.Close()
				s.mu.Lock()
				delete(s.conns, c)
				s.mu.Unlock()
			}()
			s.handle(c)
		})
	}
}

func (s *Server) handle(c *conn) {
	if s.cfg.Silent {
		<-c.closed
		return
	}
	_, channels, requests, err := ssh.NewServerConn(c, s.config)
	if err != nil {
		return
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		for r := range requests { // a keep-alive gets the answer that nobody knows it, as from OpenSSH
			_ = r.Reply(false, nil)
		}
	})
	for nc := range channels {
		if nc.ChannelType() != "session" {
			_ = nc.Reject(ssh.UnknownChannelType, "sessions only")
			continue
		}
		ch, reqs, err := nc.Accept()
		if err != nil {
			return
		}
		wg.Go(func() { s.session(c, ch, reqs) })
	}
}

func (s *Server) session(c *conn, ch ssh.Channel, reqs <-chan *ssh.Request) {
	var wg sync.WaitGroup
	defer wg.Wait()
	defer func() { _ = ch.Close() }()
	for r := range reqs {
		if r.Type != "exec" || len(r.Payload) < 4 {
			_ = r.Reply(false, nil)
			continue
		}
		_ = r.Reply(true, nil)
		command := string(r.Payload[4:][:binary.BigEndian.Uint32(r.Payload)])
		s.mu.Lock()
		s.sessions++
		s.mu.Unlock()
		wg.Go(func() {
			defer func() { _ = ch.Close() }()
			s.run(c, ch, command)
		})
	}
}

// run runs a command by the login shell, until it ends or the connection does.
func (s *Server) run(c *conn, ch ssh.Channel, command string) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		select {
		case <-c.closed:
			cancel()
		case <-ctx.Done():
		}
	}()
	cmd := exec.CommandContext(ctx, s.cfg.Shell, "-c", command)
	cmd.Dir, cmd.Env = s.Home, append([]string{"HOME=" + s.Home, "PATH=" + os.Getenv("PATH"), "SSH_CLIENT=127.0.0.1 1 1"}, s.cfg.Env...)
	cmd.Stdout, cmd.Stderr = ch, ch.Stderr()
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return
	}
	if err := cmd.Start(); err != nil {
		_, _ = io.WriteString(ch.Stderr(), err.Error())
		exit(ch, 127)
		return
	}
	go func() { // ends with the channel
		defer func() { _ = stdin.Close() }()
		buffer := make([]byte, 4<<10)
		for {
			n, err := ch.Read(buffer)
			total := c.input.Add(int64(n))
			if limit := s.DieAfter.Load(); limit > 0 && total > limit {
				_ = c.Close()
				return
			}
			if _, werr := stdin.Write(buffer[:n]); err != nil || werr != nil {
				return
			}
		}
	}()
	_ = cmd.Wait()
	status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if ok && status.Signaled() {
		_, _ = ch.SendRequest("exit-signal", false, ssh.Marshal(struct {
			Name string
			Core bool
			Text string
			Lang string
		}{Name: signalNames[status.Signal()]}))
		return
	}
	exit(ch, status.ExitStatus())
}

var signalNames = map[syscall.Signal]string{syscall.SIGKILL: "KILL", syscall.SIGTERM: "TERM", syscall.SIGINT: "INT", syscall.SIGHUP: "HUP"}

func exit(ch ssh.Channel, status int) {
	_, _ = ch.SendRequest("exit-status", false, binary.BigEndian.AppendUint32(nil, uint32(status)))
}

// HostPort is what known_hosts calls the server.
func (s *Server) HostPort() string { return "[127.0.0.1]:" + strconv.Itoa(s.Port) }
