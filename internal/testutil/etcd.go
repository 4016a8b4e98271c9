package testutil

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const (
	etcdProgram = "/usr/bin/etcd"
	etcdctl     = "/usr/bin/etcdctl"
	etcdStart   = time.Minute      // bounds a start, an election
	etcdAsk     = 10 * time.Second // bounds one question
)

// EtcdTLS are the PEM files with which members serve their clients over TLS.
type EtcdTLS struct {
	Cert, Key string
	// ClientCA is the authority of the clients' certificates; empty means that they need none.
	ClientCA string
	// ServerCA signed Cert; ClientCert and ClientKey are what this package itself connects with.
	ServerCA, ClientCert, ClientKey string
}

// EtcdOptions are for EtcdWith; the zero value is a cluster of one member.
type EtcdOptions struct {
	Members int
	TLS     *EtcdTLS
	// Args are further arguments of every member.
	Args []string
}

// EtcdCluster is a cluster of Debian's etcd on loopback. Its members die with the test, and with the test's process.
type EtcdCluster struct {
	// Endpoints are the members' client addresses, host:port.
	Endpoints []string

	t       testing.TB
	opts    EtcdOptions
	client  *http.Client
	members []*etcdMember
}

type etcdMember struct {
	args []string
	log  string // path

	mu   sync.Mutex
	cmd  *exec.Cmd // nil while it is dead
	done chan struct{}
}

// Etcd starts a cluster of 1 or 3 members with empty data, and returns when it has a leader.
func Etcd(t testing.TB, members int) *EtcdCluster {
	t.Helper()
	return EtcdWith(t, EtcdOptions{Members: members})
}

// EtcdWith is Etcd with options.
func EtcdWith(t testing.TB, opts EtcdOptions) *EtcdCluster {
	t.Helper()
	for _, program := range []string{etcdProgram, etcdctl} {
		if _, err := os.Stat(program); err != nil {
			Missing(t, "Debian's etcd-server and etcd-client")
		}
	}
	opts.Members = max(1, opts.Members)
	for attempt := 1; ; attempt++ {
		c, err := startEtcd(t, opts)
		if err == nil {
			return c
		}
		// etcd cannot choose its ports itself, and somebody else may have got those that we found.
		if attempt == 3 {
			t.Fatal(err)
		}
		t.Logf("starting etcd again: %v", err)
	}
}

func startEtcd(t testing.TB, opts EtcdOptions) (*EtcdCluster, error) {
	t.Helper()
	c := &EtcdCluster{t: t, opts: opts, client: etcdHTTP(t, opts.TLS)}
	ports, err := freePorts(2 * opts.Members)
	if err != nil {
		return nil, err
	}
	scheme := "http"
	if opts.TLS != nil {
		scheme = "https"
	}
	dir := t.TempDir()
	var initial []string
	for i := range opts.Members {
		initial = append(initial, fmt.Sprintf("m%d=http://127.0.0.1:%d", i, ports[2*i+1]))
	}
	for i := range opts.Members {
		client := fmt.Sprintf("127.0.0.1:%d", ports[2*i])
		peer := fmt.Sprintf("http://127.0.0.1:%d", ports[2*i+1])
		args := []string{
			"--name", fmt.Sprintf("m%d", i), "--data-dir", filepath.Join(dir, fmt.Sprintf("m%d", i)),
			"--listen-client-urls", scheme + "://" + client, "--advertise-client-urls", scheme + "://" + client,
			"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
			"--initial-cluster", strings.Join(initial, ","), "--initial-cluster-token", filepath.Base(dir),
			"--logger", "zap", "--log-outputs", "stderr",
		}
		if opts.TLS != nil {
			args = append(args, "--cert-file", opts.TLS.Cert, "--key-file", opts.TLS.Key)
			if opts.TLS.ClientCA != "" {
				args = append(args, "--client-cert-auth", "--trusted-ca-file", opts.TLS.ClientCA)
			}
		}
		c.members = append(c.members, &etcdMember{args: append(args, opts.Args...), log: filepath.Join(dir, fmt.Sprintf("m%d.log", i))})
		c.Endpoints = append(c.Endpoints, client)
	}
	t.Cleanup(func() {
		for i := range c.members {
			c.Kill(i)
		}
		c.client.CloseIdleConnections()
	})
	for _, m := range c.members {
		if err := m.start(); err != nil {
			return nil, err
		}
	}
	for end := time.Now().Add(etcdStart); ; time.Sleep(20 * time.Millisecond) { // the pace of asking
		if c.allReady() {
			return c, nil
		}
		for i, m := range c.members {
			select {
			case <-m.done:
				return nil, fmt.Errorf("member %d of etcd ended:\n%s", i, m.tail())
			default:
			}
		}
		if time.Now().After(end) {
			return nil, fmt.Errorf("etcd was not ready within %v:\n%s", etcdStart, c.members[0].tail())
		}
	}
}

// freePorts returns ports that nobody listened on a moment ago.
func freePorts(n int) ([]int, error) {
	var ports []int
	for range n {
		l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer func() { _ = l.Close() }() // all together, so that no port comes twice
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}

func etcdHTTP(t testing.TB, files *EtcdTLS) *http.Client {
	t.Helper()
	transport := &http.Transport{DisableKeepAlives: true}
	if files != nil {
		cfg := &tls.Config{RootCAs: x509.NewCertPool()}
		pem, err := os.ReadFile(files.ServerCA)
		if err != nil || !cfg.RootCAs.AppendCertsFromPEM(pem) {
			t.Fatalf("no certificate in %q (%v)", files.ServerCA, err)
		}
		if files.ClientCert != "" {
			pair, err := tls.LoadX509KeyPair(files.ClientCert, files.ClientKey)
			if err != nil {
				t.Fatal(err)
			}
			cfg.Certificates = []tls.Certificate{pair}
		}
		transport.TLSClientConfig = cfg
	}
	return &http.Client{Transport: transport, Timeout: etcdAsk}
}

func (m *etcdMember) start() error {
	out, err := os.OpenFile(m.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = out.Close() }()
	cmd := exec.CommandContext(context.Background(), etcdProgram, m.args...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.Env = []string{"PATH=/usr/bin:/bin"} // ETCD_... of the machine would be settings too
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started, done := make(chan error), make(chan struct{})
	go func() {
		// The signal comes when the thread that started the process ends, so this one must not end before it.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
			close(done)
		}
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("cannot start etcd: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.cmd, m.done = cmd, done
	return nil
}

func (m *etcdMember) tail() []byte {
	b, _ := os.ReadFile(m.log)
	return b[max(0, len(b)-4000):]
}

// etcdStatus is a member's answer to /v3/maintenance/status. The gateway writes 64-bit numbers as strings.
type etcdStatus struct {
	Header struct {
		MemberID string `json:"member_id"`
	} `json:"header"`
	Leader string `json:"leader"`
}

// ask returns what member i says of itself.
func (c *EtcdCluster) ask(i int) (etcdStatus, error) {
	var status etcdStatus
	scheme := "http://"
	if c.opts.TLS != nil {
		scheme = "https://"
	}
	ctx, cancel := context.WithTimeout(context.Background(), etcdAsk)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, scheme+c.Endpoints[i]+"/v3/maintenance/status", strings.NewReader("{}"))
	if err != nil {
		return status, err
	}
	resp, err := c.client.Do(req)
	if err != nil {
		return status, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return status, errors.New(resp.Status)
	}
	return status, json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(&status)
}

func (c *EtcdCluster) allReady() bool {
	for i := range c.members {
		if s, err := c.ask(i); err != nil || s.Leader == "" || s.Leader == "0" {
			return false
		}
	}
	return true
}

// InSync reports whether every member is alive and knows a leader.
func (c *EtcdCluster) InSync() bool {
	for _, m := range c.members {
		if !m.alive() {
			return false
		}
	}
	return c.allReady()
}

// Leader waits until some living member is the leader, and returns its index.
func (c *EtcdCluster) Leader() int {
	c.t.Helper()
	leader := -1
	Eventually(c.t, etcdStart, "etcd has a leader", func() bool {
		for i, m := range c.members {
			if !m.alive() {
				continue
			}
			if s, err := c.ask(i); err == nil && s.Leader == s.Header.MemberID {
				leader = i
				return true
			}
		}
		return false
	})
	return leader
}

func (m *etcdMember) alive() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.cmd != nil
}

// KillLeader kills the leader and returns its index.
func (c *EtcdCluster) KillLeader() int {
	c.t.Helper()
	i := c.Leader()
	c.Kill(i)
	return i
}

// Kill kills member i with SIGKILL and waits for its end. Its data stay. It may be dead already.
func (c *EtcdCluster) Kill(i int) {
	m := c.members[i]
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cmd == nil {
		return
	}
	_ = m.cmd.Process.Kill()
	<-m.done
	m.cmd = nil
}

// Start starts member i, which was killed, on its old data, and returns at once.
func (c *EtcdCluster) Start(i int) {
	c.t.Helper()
	if c.members[i].alive() {
		c.t.Fatalf("member %d of etcd is alive", i)
	}
	if err := c.members[i].start(); err != nil {
		c.t.Fatal(err)
	}
}

// Signal sends sig to member i: SIGSTOP freezes it, SIGCONT goes on.
func (c *EtcdCluster) Signal(i int, sig syscall.Signal) {
	c.t.Helper()
	m := c.members[i]
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cmd == nil {
		c.t.Fatalf("member %d of etcd is dead", i)
	}
	if err := m.cmd.Process.Signal(sig); err != nil {
		c.t.Fatal(err)
	}
}

// Ctl runs etcdctl with args against all members and returns what it wrote.
func (c *EtcdCluster) Ctl(args ...string) string {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), etcdStart)
	defer cancel()
	all := []string{"--endpoints", strings.Join(c.Endpoints, ",")}
	if tls := c.opts.TLS; tls != nil {
		all = append(all, "--cacert", tls.ServerCA)
		if tls.ClientCert != "" {
			all = append(all, "--cert", tls.ClientCert, "--key", tls.ClientKey)
		}
		for i, e := range c.Endpoints {
			all[1] = strings.Replace(all[1], e, "https://"+c.Endpoints[i], 1)
		}
	}
	cmd := exec.CommandContext(ctx, etcdctl, append(all, args...)...)
	cmd.Env = []string{"PATH=/usr/bin:/bin", "ETCDCTL_API=3"}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		c.t.Fatalf("etcdctl %s: %v\n%s", strings.Join(args, " "), err, stderr.Bytes())
	}
	return string(out)
}
