package sshexec_test

import (
	"bytes"
	"context"
	crand "crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"muster/internal/errhint"
	"muster/internal/hosts"
	"muster/internal/proc"
	"muster/internal/testutil"
	"muster/sshexec"
)

// dialer returns one for the user of a client. change may be nil.
func dialer(t *testing.T, c *testutil.SSHClient, change func(*sshexec.Config)) *sshexec.Dialer {
	t.Helper()
	d, err := newDialer(t, c, change)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func newDialer(t *testing.T, c *testutil.SSHClient, change func(*sshexec.Config)) (*sshexec.Dialer, error) {
	t.Helper()
	env := map[string]string{"HOME": c.Home}
	cfg := sshexec.Config{
		Home: c.Home, Env: func(name string) (string, bool) { v, ok := env[name]; return v, ok },
		Environ: []string{"HOME=" + c.Home, "PATH=" + os.Getenv("PATH")},
		Binary:  script(t), Version: "muster version of the tests", Log: zerolog.New(zerolog.NewTestWriter(t)),
	}
	if change != nil {
		change(&cfg)
	}
	d, err := sshexec.New(cfg)
	if err == nil {
		t.Cleanup(func() { _ = d.Close() })
	}
	return d, err
}

// script makes a program of a quarter of a megabyte that does what the agent of this binary does, and costs less to send,
// to check and to start.
func script(t *testing.T) string {
	t.Helper()
	scripted.Do(func() {
		random := make([]byte, 1<<17)
		// The same for all launchers, and another one in each run: a copy that an earlier run left in /tmp must not be
		// found.
		_, _ = rand.NewChaCha8([32]byte(binary.BigEndian.AppendUint64(make([]byte, 24), uint64(time.Now().UnixNano())))).Read(random)
		scriptText = append([]byte("#!/bin/sh\nshift\ncase $1 in die) kill -9 $$ ;; full) echo the last words >&2; exit 3 ;; esac\n"+
			"echo \"agent $* in $HOME\"\ncat\nexit 7\n"), hex.EncodeToString(random)...)
	})
	path := filepath.Join(t.TempDir(), "muster")
	if err := os.WriteFile(path, scriptText, 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

var (
	scripted   sync.Once
	scriptText []byte
)

// ownBinary has the binary of the test sent, as muster sends itself.
func ownBinary(cfg *sshexec.Config) { cfg.Binary = "/proc/self/exe" }

// tree is for what starts programs here; a test has one at most.
func tree(t *testing.T) *proc.Tree {
	t.Helper()
	tr, err := proc.Open(proc.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tr.Stop(context.Background(), proc.Ladder{}); err != nil {
			t.Error(err)
		}
		if err := tr.Close(); err != nil {
			t.Error(err)
		}
	})
	return tr
}

func TestIPv6(t *testing.T) {
	testutil.Long(t)
	s := testutil.SSHD(t, testutil.SSHDConfig{Address: "::1"})
	r, err := dialer(t, s.Client, func(cfg *sshexec.Config) { cfg.HostKeys = "strict" }).
		Start(t.Context(), hosts.Host{Name: "::1", Port: s.Port, User: s.User}, []string{"agent", "with words"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	if r.RemoteAddr().String() != s.Addr {
		t.Errorf("it is at %v, not %v", r.RemoteAddr(), s.Addr)
	}
	talk(t, r)
}

// start starts the agent of the tests on a machine, and reads its first line.
func start(t *testing.T, d *sshexec.Dialer, name string) *sshexec.Remote {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r, err := d.Start(ctx, hosts.Host{Name: name}, []string{"agent", "with words"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return r
}

// talk checks that a remote program gets and sends every byte, and tells its status.
func talk(t *testing.T, r *sshexec.Remote) {
	t.Helper()
	exchange(t, r, 6<<20) // more than any window or pipe has room for
}

// greet is talk with few bytes, where it is what starts that matters.
func greet(t *testing.T, r *sshexec.Remote) {
	t.Helper()
	exchange(t, r, 1<<16)
}

func exchange(t *testing.T, r *sshexec.Remote, size int) {
	t.Helper()
	sent := make([]byte, size)
	_, _ = crand.Read(sent)
	go func() {
		_, _ = r.Stdin().Write(sent)
		_ = r.Stdin().Close()
	}()
	got, err := io.ReadAll(r.Stdout())
	if err != nil {
		t.Fatal(err)
	}
	first, rest, _ := bytes.Cut(got, []byte("\n"))
	if !strings.HasPrefix(string(first), "agent with words in /") {
		t.Errorf("the agent begins with %q", first)
	}
	if !bytes.Equal(rest, sent) {
		t.Errorf("%d bytes came back changed, of %d", len(rest), len(sent))
	}
	status, err := r.Wait()
	if status != 7 || err != nil {
		t.Errorf("it ended with %d, %v", status, err)
	}
}

func TestOpenSSH(t *testing.T) {
	s := testutil.SSHD(t, testutil.SSHDConfig{})
	d := dialer(t, s.Client, ownBinary)
	for _, what := range []string{"with the binary sent", "with the binary there"} {
		began := time.Now()
		r := start(t, d, s.Name)
		t.Logf("%s: %v", what, time.Since(began))
		if r.RemoteAddr().String() != s.Addr || !r.LocalAddr().Addr().IsLoopback() {
			t.Errorf("the connection goes from %v to %v", r.LocalAddr(), r.RemoteAddr())
		}
		talk(t, r)
	}
	if n := strings.Count(s.Log(), "Starting session: command"); n != 4 {
		t.Errorf("it took %d sessions, and not 3 and 1", n)
	}
}

func TestAgent(t *testing.T) {
	testutil.Long(t)
	s := testutil.SSHD(t, testutil.SSHDConfig{})
	socket := filepath.Join(t.TempDir(), "agent")
	cmd := exec.CommandContext(t.Context(), "ssh-agent", "-D", "-a", socket)
	if err := cmd.Start(); err != nil {
		testutil.Missing(t, "Debian's openssh-client")
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	testutil.Eventually(t, 30*time.Second, "the agent listens", func() bool { _, err := os.Stat(socket); return err == nil })
	add := exec.CommandContext(t.Context(), "ssh-add", s.Client.Key)
	add.Env = append(os.Environ(), "SSH_AUTH_SOCK="+socket)
	if out, err := add.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	withAgent := func(cfg *sshexec.Config) {
		cfg.Env = func(name string) (string, bool) { return socket, name == "SSH_AUTH_SOCK" }
	}
	run := func(t *testing.T, change func(*sshexec.Config)) error {
		r, err := dialer(t, s.Client, change).Start(t.Context(), hosts.Host{Name: s.Name}, []string{"agent"})
		if err == nil {
			_ = r.Close()
		}
		return err
	}
	encrypt := exec.CommandContext(t.Context(), "ssh-keygen", "-q", "-p", "-P", "", "-N", "secret", "-f", s.Client.Key)
	if out, err := encrypt.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if err := run(t, withAgent); err != nil {
		t.Errorf("with an encrypted key that the agent has: %v", err)
	}
	if err := run(t, nil); err == nil || !strings.Contains(err.Error(), "(encrypted)") ||
		!strings.Contains(errhint.Of(err), "ssh-add "+s.Client.Key) {
		t.Errorf("with an encrypted key and no agent: %v (%s)", err, errhint.Of(err))
	}
	if err := os.Remove(s.Client.Key); err != nil {
		t.Fatal(err)
	}
	if err := run(t, withAgent); err != nil {
		t.Errorf("with a key that the agent alone has: %v", err)
	}
	refused := func(cfg *sshexec.Config) { withAgent(cfg); cfg.Options = []string{"IdentityAgent=none"} }
	if err := run(t, refused); err == nil || sshexec.Transient(err) {
		t.Errorf("without the agent: %v", err)
	}
}

// Many machines behind one jump host: the way there is opened once.
func TestJump(t *testing.T) {
	testutil.Long(t)
	client := testutil.NewSSHClient(t)
	jump := testutil.SSHD(t, testutil.SSHDConfig{Client: client, Name: "jump"})
	second := testutil.SSHD(t, testutil.SSHDConfig{Client: client, Name: "second"})
	s := testutil.SSHD(t, testutil.SSHDConfig{Client: client, Name: "inner", Address: "::1"})
	client.Append(client.Config, "Host inner\n  ProxyJump jump\nHost far\n  HostName ::1\n  Port "+strconv.Itoa(s.Port)+
		"\n  ProxyJump jump,second\n")
	d := dialer(t, client, nil)
	r := start(t, d, "inner")
	if r.LocalAddr().IsValid() || r.RemoteAddr().IsValid() {
		t.Errorf("it knows the addresses %v and %v", r.LocalAddr(), r.RemoteAddr())
	}
	talk(t, r)
	n := 12
	if testutil.Soak() {
		n = 64
	}
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			r, err := d.Start(t.Context(), hosts.Host{Name: "inner"}, []string{"agent"})
			if err != nil {
				t.Error(err)
				return
			}
			defer func() { _ = r.Close() }()
			_ = r.Stdin().Close()
			if status, err := r.Wait(); status != 7 || err != nil {
				t.Errorf("it ended with %d, %v", status, err)
			}
		})
	}
	wg.Wait()
	if n := strings.Count(jump.Log(), "Accepted publickey"); n != 1 {
		t.Errorf("%d logins at the jump host", n)
	}
	talk(t, start(t, d, "far"))
	if n := strings.Count(second.Log(), "Accepted publickey"); n != 1 {
		t.Errorf("%d logins at the second jump host", n)
	}
	held := start(t, d, "inner")
	jump.Cut()
	if status, err := held.Wait(); err == nil || !sshexec.Transient(err) {
		t.Errorf("after the jump host was cut it ended with %d, %v", status, err)
	}
	testutil.Eventually(t, 2*time.Minute, "inner is reached by a new way", func() bool {
		r, err := d.Start(t.Context(), hosts.Host{Name: "inner"}, []string{"agent", "with words"})
		if err != nil {
			if !sshexec.Transient(err) {
				t.Fatal(err)
			}
			return false // the old way had not been given up yet
		}
		talk(t, r)
		return true
	})
	jump.Stop()
	_, err := d.Start(t.Context(), hosts.Host{Name: "inner"}, []string{"agent"})
	if e, ok := errors.AsType[*sshexec.Error](err); !ok || !e.Jump || e.Reason != sshexec.Refused ||
		!strings.Contains(err.Error(), "host inner: cannot reach jump host jump") {
		t.Errorf("without the jump host: %v", err)
	}
}

func TestDropbear(t *testing.T) {
	testutil.Long(t)
	program := "/usr/sbin/dropbear"
	if _, err := os.Stat(program); err != nil {
		testutil.Missing(t, "Debian's dropbear-bin")
	}
	// Dropbear has neither another HOME nor another list of keys than the user's. So it runs on a host of the test,
	// whose view of the files is its own.
	h := testutil.Hosts(t, 1)[0]
	client := testutil.NewSSHClient(t)
	dir := t.TempDir()
	home := "/root"
	if me, err := user.Current(); err == nil {
		home = me.HomeDir
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	script := `mount -t tmpfs -o mode=700 tmpfs "$1" && mkdir -m 700 "$1/.ssh" && cp "$2" "$1/.ssh/authorized_keys" &&
		dropbearkey -t ed25519 -f "$3/key" >/dev/null && exec "$4" -F -E -p 127.0.0.1:2222 -r "$3/key" -P "$3/pid"`
	cmd := h.Command("sh", "-c", script, "sh", home, client.Key+".pub", dir, program)
	cmd.Dir = "/"
	said := &testutil.Buffer{}
	cmd.Stdout, cmd.Stderr = said, said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	client.Append(client.Config, "Host bear\n  HostName 127.0.0.1\n  Port 2222\n  ProxyCommand nsenter -t "+strconv.Itoa(cmd.Process.Pid)+
		" -n "+self+" relay %h:%p\n")
	d := dialer(t, client, func(cfg *sshexec.Config) { cfg.Tree = tree(t) })
	testutil.Eventually(t, 30*time.Second, "dropbear listens",
		func() bool { _, err := os.Stat(filepath.Join(dir, "pid")); return err == nil })
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("dropbear says:\n%s", said)
		}
	})
	talk(t, start(t, d, "bear"))
	if got, _ := os.ReadFile(client.KnownHosts); !strings.HasPrefix(string(got), "[127.0.0.1]:2222 ssh-ed25519 ") &&
		!strings.HasPrefix(string(got), "|1|") {
		t.Errorf("known_hosts has %q", got)
	}
	d.Close()
}

// Login files may write what they like, up to a limit.
func TestNoise(t *testing.T) {
	testutil.Long(t)
	s := testutil.SSHD(t, testutil.SSHDConfig{})
	d := dialer(t, s.Client, nil)
	rc := filepath.Join(s.Home, ".bashrc")
	for noise, want := range map[string]string{
		"echo Welcome; printf 'no end of line'":                           "",
		"yes | head -c 60000; echo muster-bootstrap: run; echo noise >&2": "",
		"yes | head -c 70000":                                             "more than 65536 bytes",
		"echo 'This account is not available.'; exit 1": "ended with status 1 without running /bin/sh: This account " +
			"is not available.",
		"echo '/bin/sh: restricted: no slash in command names' >&2; exit 0": "ended with status 0 without running /bin/sh: /bin/sh: " +
			"restricted",
	} {
		if err := os.WriteFile(rc, []byte(noise+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		r, err := d.Start(t.Context(), hosts.Host{Name: s.Name}, []string{"agent", "with words"})
		if want == "" && err == nil {
			talk(t, r)
			_ = r.Close()
			continue
		}
		if err == nil || want == "" || !strings.Contains(err.Error(), want) || sshexec.Transient(err) {
			t.Errorf("%s: %v", noise, err)
		}
	}
}

func TestSlowLogin(t *testing.T) {
	testutil.Long(t)
	s := testutil.SSHD(t, testutil.SSHDConfig{})
	if err := os.WriteFile(filepath.Join(s.Home, ".bashrc"), []byte("echo waiting for the file server\nsleep 1000\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	d := dialer(t, s.Client, func(cfg *sshexec.Config) { cfg.AnswerTimeout = 500 * time.Millisecond })
	_, err := d.Start(t.Context(), hosts.Host{Name: s.Name}, []string{"agent"})
	if err == nil || !strings.Contains(err.Error(), "did not answer within 500ms: waiting for the file server") {
		t.Errorf("%v", err)
	}
}

// What is known of the end of a remote program, and of that of a connection.
func TestEnds(t *testing.T) {
	s := testutil.SSHD(t, testutil.SSHDConfig{})
	d := dialer(t, s.Client, nil)
	run := func(word string) *sshexec.Remote {
		r, err := d.Start(t.Context(), hosts.Host{Name: s.Name}, []string{"agent", word})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = r.Close() })
		return r
	}
	if status, err := run("die").Wait(); status != 128+9 || err != nil {
		t.Errorf("a killed program ended with %d, %v", status, err)
	}
	r := run("full")
	if status, err := r.Wait(); status != 3 || err != nil || r.Stderr() != "the last words\n" {
		t.Errorf("it ended with %d, %v, and said %q", status, err, r.Stderr())
	}
	r = run("")
	s.Cut()
	status, err := r.Wait()
	if err == nil || !sshexec.Transient(err) || errhint.CodeOf(err) != errhint.TryAgain {
		t.Errorf("after a cut it ended with %d, %v", status, err)
	}
	r = run("")
	_ = r.Close()
	if _, err := r.Wait(); err == nil {
		t.Error("nobody knows how it ended, and Wait says so not")
	}
}
