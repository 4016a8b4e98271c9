package testutil

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const (
	sshdProgram = "/usr/sbin/sshd"
	sshdStart   = 30 * time.Second // bounds a start, and an end
)

// SSHClient is a user's folder of ssh files: a key that every SSHServer of this client lets in, known_hosts with their
// keys, and a configuration that knows them by their names.
type SSHClient struct {
	// Home is the folder that has .ssh in it.
	Home string
	// Key is the private key, Home/.ssh/id_ed25519, and KnownHosts and Config the files beside it. OpenSSH's own client
	// does not ask $HOME: give it -F Config, in which the other files are named.
	Key, KnownHosts, Config string

	t       testing.TB
	mu      sync.Mutex // of the files
	servers int
}

// NewSSHClient makes the folder of a user who knows no server yet.
func NewSSHClient(t testing.TB) *SSHClient {
	t.Helper()
	if _, err := exec.LookPath("ssh-keygen"); err != nil {
		Missing(t, "Debian's openssh-client")
	}
	home := t.TempDir()
	dir := filepath.Join(home, ".ssh")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	c := &SSHClient{
		Home: home, Key: filepath.Join(dir, "id_ed25519"), KnownHosts: filepath.Join(dir, "known_hosts"),
		Config: filepath.Join(dir, "config"), t: t,
	}
	sshKey(t, c.Key, "")
	c.Append(c.KnownHosts, "")
	c.Append(c.Config, "")
	return c
}

// sshKey makes a key pair, file and file.pub, that is encrypted unless passphrase is empty.
func sshKey(t testing.TB, file, passphrase string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-C", filepath.Base(file), "-f",
		file).CombinedOutput()
	if err != nil {
		t.Fatalf("cannot make a key: %v\n%s", err, out)
	}
}

// Append adds text to one of the client's files.
func (c *SSHClient) Append(file, text string) {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	f, err := os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		c.t.Fatal(err)
	}
	if _, err := f.WriteString(text); err != nil {
		c.t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		c.t.Fatal(err)
	}
}

// SSHDConfig is for SSHD; the zero value is a server on 127.0.0.1 with a client of its own, who knows it.
type SSHDConfig struct {
	// Client is whom the server lets in, and whose files will know the server. Nil: a new one.
	Client *SSHClient
	// Name is what the client's configuration calls the server. Empty: that of Host, else ssh0, ssh1 and so on.
	Name string
	// Host is where the server runs, at port 22 of all its addresses. Nil: this machine, at a free port of Address.
	Host *Host
	// Address is 127.0.0.1 unless given; ::1 is another one. A server on a Host needs none.
	Address string
	// UnknownKey leaves the server's key out of the client's known_hosts.
	UnknownKey bool
	// Env are variables, NAME=VALUE, that commands get: over HOME, which is the server's own folder unless it stands
	// here.
	Env []string
	// Config are further lines of sshd_config. The first of two that say the same wins, and these come first.
	Config string
}

// SSHServer is an OpenSSH server of this user, started by SSHD. It ends with the test.
type SSHServer struct {
	// Name is what the client's configuration calls it.
	Name string
	// Addr is where it listens, host:port, and Port the latter part.
	Addr string
	Port int
	// User is who logs in.
	User string
	// Home is the HOME of commands that it runs, an empty folder of the test. They start in the user's real one.
	Home string
	// HostKey is the line of known_hosts with its key, without the host.
	HostKey string
	// Client is who is let in.
	Client *SSHClient

	t    testing.TB
	host *Host
	dir  string
	log  Buffer
	args []string
	mu   sync.Mutex
	pid  int // outside of the host's namespace; 0: it is stopped
	done <-chan struct{}
}

// SSHD starts a server and returns when it listens. It skips the test where there is no OpenSSH server.
func SSHD(t testing.TB, cfg SSHDConfig) *SSHServer {
	t.Helper()
	if _, err := os.Stat(sshdProgram); err != nil {
		Missing(t, "Debian's openssh-server")
	}
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	if me.Uid == "0" { // where its unprivileged child lives; Debian makes it at boot
		if err := os.MkdirAll("/run/sshd", 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if cfg.Client == nil {
		cfg.Client = NewSSHClient(t)
	}
	s := &SSHServer{User: me.Username, Client: cfg.Client, t: t, host: cfg.Host, dir: t.TempDir()}
	s.Home = filepath.Join(s.dir, "home")
	if err := os.Mkdir(s.Home, 0o700); err != nil {
		t.Fatal(err)
	}
	s.Client.mu.Lock()
	s.Name = cfg.Name
	switch {
	case s.Name != "":
	case cfg.Host != nil:
		s.Name = cfg.Host.Name
	default:
		s.Name = "ssh" + strconv.Itoa(s.Client.servers)
	}
	s.Client.servers++
	s.Client.mu.Unlock()
	hostname := "127.0.0.1"
	if cfg.Address != "" {
		hostname = cfg.Address
	}
	if cfg.Host != nil {
		hostname, s.Port = cfg.Host.Addrs[0][0].String(), 22
	} else {
		s.Port = freePort(t, hostname)
	}
	s.Addr = net.JoinHostPort(hostname, strconv.Itoa(s.Port))
	key := filepath.Join(s.dir, "host_key")
	sshKey(t, key, "")
	s.HostKey = readKey(t, key+".pub")
	s.args = []string{"-D", "-e", "-f", s.configure(cfg, hostname, key)}
	if !cfg.UnknownKey {
		s.Client.Append(s.Client.KnownHosts, s.knownAs(cfg, hostname)+" "+s.HostKey+"\n")
	}
	s.Client.Append(s.Client.Config,
		fmt.Sprintf("Host %s\n  HostName %s\n  Port %d\n  User %s\n  IdentityFile %s\n  UserKnownHostsFile %s\n",
			s.Name, hostname, s.Port, s.User, s.Client.Key, s.Client.KnownHosts))
	t.Cleanup(s.Stop)
	s.Start()
	return s
}

// knownAs is how known_hosts names the server.
func (s *SSHServer) knownAs(cfg SSHDConfig, hostname string) string {
	if cfg.Host == nil {
		return fmt.Sprintf("[%s]:%d", hostname, s.Port)
	}
	names := []string{cfg.Host.Name}
	for _, addrs := range cfg.Host.Addrs {
		names = append(names, addrs[0].String(), addrs[1].String())
	}
	return strings.Join(names, ",")
}

func freePort(t testing.TB, address string) int {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", net.JoinHostPort(address, "0"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port
}

// readKey returns the algorithm and the key of a .pub file.
func readKey(t testing.TB, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(text))
	return fields[0] + " " + fields[1]
}

// configure writes sshd_config and returns its path.
func (s *SSHServer) configure(cfg SSHDConfig, hostname, key string) string {
	listen := "ListenAddress " + hostname + "\n"
	if cfg.Host != nil {
		listen = "ListenAddress 0.0.0.0\nListenAddress ::\n"
	}
	env := []string{sshdQuote("HOME=" + s.Home)}
	if cfg.Host != nil {
		for _, v := range cfg.Host.Environ() {
			env = append(env, sshdQuote(v))
		}
	}
	if dir := os.Getenv("GOCOVERDIR"); dir != "" { // set by make cover
		env = append(env, sshdQuote("GOCOVERDIR="+dir))
	}
	for _, v := range cfg.Env {
		env = append(env, sshdQuote(v))
	}
	config := filepath.Join(s.dir, "sshd_config")
	text := cfg.Config + "\n" + listen + fmt.Sprintf("Port %d\nHostKey %s\nAuthorizedKeysFile %s.pub\nSetEnv %s\n", s.Port, key,
		s.Client.Key, strings.Join(env, " ")) +
		"PidFile none\nUsePAM no\nStrictModes no\nUseDNS no\nPrintMotd no\nPermitRootLogin yes\nPasswordAuthentication no\n" +
		"KbdInteractiveAuthentication no\n" +
		"MaxStartups 1000\nLogLevel VERBOSE\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
	return config
}

func sshdQuote(v string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(v) + `"`
}

// Start starts the server again that Stop has ended, at the same port with the same key.
func (s *SSHServer) Start() {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pid != 0 {
		s.t.Fatalf("%s runs", s.Name)
	}
	said := &Buffer{}
	if err := s.startLocked(io.MultiWriter(&s.log, said)); err != nil {
		s.t.Fatalf("cannot start sshd: %v", err)
	}
	addresses := 1
	if s.host != nil {
		addresses = 2 // one after the other
	}
	for end := time.Now().Add(sshdStart); strings.Count(said.String(), "Server listening on ") < addresses; {
		select {
		case <-s.done:
			s.t.Fatalf("sshd has ended:\n%s", said)
		case <-time.After(5 * time.Millisecond):
		}
		if time.Now().After(end) {
			s.t.Fatalf("sshd does not listen within %v:\n%s", sshdStart, said)
		}
	}
}

// startLocked starts the program without the environment of the test: sessions inherit a part of it.
func (s *SSHServer) startLocked(output io.Writer) error {
	environ := []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	if s.host != nil {
		c := s.host.Command(sshdProgram, s.args...)
		c.Env, c.Dir, c.Stdout, c.Stderr = environ, "/", output, output
		if err := c.Start(); err != nil {
			return err
		}
		s.pid, s.done = c.Process.Pid, c.Ended()
		return nil
	}
	cmd := exec.CommandContext(context.Background(), sshdProgram, s.args...)
	cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = environ, "/", output, output
	cmd.WaitDelay = time.Second // what it leaves may hold its standard error
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	done := make(chan struct{})
	go func() { // ends with the program, which Stop ends
		_ = cmd.Wait()
		close(done)
	}()
	s.pid, s.done = cmd.Process.Pid, done
	return nil
}

// Log returns what the server has said.
func (s *SSHServer) Log() string { return s.log.String() }

// Stop ends the server, its connections and what it started. Only what has become a daemon of its own stays.
func (s *SSHServer) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pid == 0 {
		return
	}
	select {
	case <-s.done:
	default:
		_ = syscall.Kill(s.pid, syscall.SIGSTOP) // no new connections meanwhile
		killChildren(s.pid)
		_ = syscall.Kill(s.pid, syscall.SIGKILL)
		select {
		case <-s.done:
		case <-time.After(sshdStart):
			s.t.Errorf("sshd %s does not end", s.Name)
		}
	}
	s.pid = 0
}

// Cut ends all connections of the server, and what runs over them. It goes on to listen.
func (s *SSHServer) Cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pid != 0 {
		killChildren(s.pid)
	}
}

// killChildren kills what descends from a process, parents first: they cannot replace what was killed.
func killChildren(pid int) {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, file := range tasks {
		text, _ := os.ReadFile(file)
		for field := range strings.FieldsSeq(string(text)) {
			child, err := strconv.Atoi(field)
			if err != nil {
				continue
			}
			_ = syscall.Kill(child, syscall.SIGSTOP)
			killChildren(child)
			_ = syscall.Kill(child, syscall.SIGKILL)
		}
	}
}
