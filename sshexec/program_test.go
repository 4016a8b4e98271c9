package sshexec_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"muster/internal/errhint"
	"muster/internal/hosts"
	"muster/internal/proc"
	"muster/internal/testutil"
	"muster/sshexec"
)

// bySSH has OpenSSH's client used.
func bySSH(c *testutil.SSHClient, tr *proc.Tree) func(*sshexec.Config) {
	return func(cfg *sshexec.Config) {
		cfg.Program, cfg.Tree = []string{"ssh", "-F", c.Config}, tr
	}
}

func TestProgram(t *testing.T) {
	testutil.Long(t)
	s := testutil.SSHD(t, testutil.SSHDConfig{UnknownKey: true})
	tr := tree(t)
	d := dialer(t, s.Client, bySSH(s.Client, tr))
	for range 2 {
		r := start(t, d, s.Name)
		talk(t, r)
		if r.LocalAddr().IsValid() {
			t.Errorf("it knows the address %v", r.LocalAddr())
		}
	}
	if n := strings.Count(s.Log(), "Starting session: command"); n != 4 {
		t.Errorf("it took %d sessions, and not 3 and 1", n)
	}
	r := start(t, d, s.Name)
	s.Cut()
	if status, err := r.Wait(); err == nil || !sshexec.Transient(err) ||
		!strings.Contains(err.Error(), "lost the connection to host "+s.Name) {
		t.Errorf("after a cut it ended with %d, %v", status, err)
	}
	r = start(t, d, s.Name)
	_ = r.Close()
	testutil.Eventually(t, long, "the agent sees the end of its input", func() bool { return len(agents(t, s)) == 0 })
}

// agents returns the pids of agents that a server started.
func agents(t *testing.T, s *testutil.SSHServer) []string {
	t.Helper()
	var found []string
	all, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, f := range all {
		if text, err := os.ReadFile(f); err == nil && strings.Contains(string(text), "HOME="+s.Home+"\x00") {
			found = append(found, filepath.Base(filepath.Dir(f)))
		}
	}
	return found
}

func TestProgramUnreached(t *testing.T) {
	testutil.Long(t)
	client := testutil.NewSSHClient(t)
	s := testutil.SSHD(t, testutil.SSHDConfig{Client: client, Name: "stranger", UnknownKey: true})
	other := testutil.SSHD(t, testutil.SSHDConfig{Client: client, Name: "changed", UnknownKey: true})
	friend := testutil.SSHD(t, testutil.SSHDConfig{Client: client, Name: "friend"})
	chosen := testutil.SSHD(t, testutil.SSHDConfig{Client: client, Name: "chosen", UnknownKey: true})
	client.Append(client.Config, "Host chosen\n  StrictHostKeyChecking yes\n")
	client.Append(client.KnownHosts, fmt.Sprintf("[127.0.0.1]:%d %s\n", other.Port, s.HostKey))
	tr := tree(t) // what runs before is no business of it
	strict := func(cfg *sshexec.Config) { cfg.HostKeys = "strict" }
	for name, c := range map[string]struct {
		host   hosts.Host
		change func(*sshexec.Config)
		reason sshexec.Reason
	}{
		"unknown name": {host: hosts.Host{Name: "nobody.invalid"}, reason: sshexec.NameUnknown},
		"refused":      {host: hosts.Host{Name: "127.0.0.1", Port: closed(t)}, reason: sshexec.Refused},
		"wrong user":   {host: hosts.Host{Name: friend.Name, User: "nobody-here"}, reason: sshexec.AuthFailed},
		"chosen":       {host: hosts.Host{Name: chosen.Name}, reason: sshexec.HostKeyUnknown},
		"unknown key":  {host: hosts.Host{Name: s.Name}, change: strict, reason: sshexec.HostKeyUnknown},
		"changed key":  {host: hosts.Host{Name: other.Name}, change: strict, reason: sshexec.HostKeyChanged},
		"quiet": {host: hosts.Host{Name: "127.0.0.1", Port: closed(t)}, reason: sshexec.Failed, change: func(cfg *sshexec.Config) {
			cfg.Program = append(cfg.Program, "-q")
		}},
	} {
		d := dialer(t, client, func(cfg *sshexec.Config) {
			bySSH(client, tr)(cfg)
			if c.change != nil {
				c.change(cfg)
			}
		})
		r, err := d.Start(t.Context(), c.host, []string{"agent"})
		if err == nil {
			_ = r.Close()
		}
		e, ok := errors.AsType[*sshexec.Error](err)
		if !ok || e.Reason != c.reason || errhint.Of(err) == "" || errhint.CodeOf(err) != errhint.TryAgain ||
			!strings.Contains(err.Error(), "host "+c.host.Name) {
			t.Errorf("%s: %v (%s)", name, err, errhint.Of(err))
		}
	}
	missing := func(cfg *sshexec.Config) { cfg.Program, cfg.Tree = []string{"no-such-ssh"}, tr }
	if _, err := newDialer(t, client, missing); errhint.CodeOf(err) != errhint.Usage {
		t.Errorf("a program that is not there: %v", err)
	}
}

// A program in the way of Kubeflow's kubexec.sh gets the host and the command, and no options.
func TestKubexec(t *testing.T) {
	testutil.Long(t)
	home, dir := t.TempDir(), t.TempDir()
	path := filepath.Join(dir, "kubexec.sh")
	write := func(stdin string) {
		program(t, dir, "kubexec.sh", `[ "$1" = pod-0 ] || { echo "pods \"$1\" not found" >&2; exit 1; }; shift; export HOME=`+home+
			`; exec /bin/sh -c "$*" `+stdin)
	}
	client := testutil.NewSSHClient(t)
	tr := tree(t) // what runs before is no business of it
	d := dialer(t, client, func(cfg *sshexec.Config) {
		write("")
		cfg.Program, cfg.Tree = []string{path}, tr
	})
	talk(t, start(t, d, "pod-0"))
	talk(t, start(t, d, "pod-0"))
	_, err := d.Start(t.Context(), hosts.Host{Name: "pod-1"}, []string{"agent"})
	if !sshexec.Transient(err) || !strings.Contains(err.Error(), `not found`) {
		t.Errorf("a pod that is not there yet: %v", err)
	}
	write("</dev/null")
	_, err = d.Start(t.Context(), hosts.Host{Name: "pod-0"}, []string{"agent"})
	if err == nil || sshexec.Transient(err) || !strings.Contains(err.Error(), "no standard input") ||
		!strings.Contains(errhint.Of(err), "-i") {
		t.Errorf("a program without standard input: %v", err)
	}
}

func TestProxyCommand(t *testing.T) {
	testutil.Long(t)
	client := testutil.NewSSHClient(t)
	jump := testutil.SSHD(t, testutil.SSHDConfig{Client: client})
	s := testutil.SSHD(t, testutil.SSHDConfig{Client: client})
	client.Append(client.Config, "Host behind\n  HostName 127.0.0.1\n  Port "+strconv.Itoa(s.Port)+"\n  ProxyCommand ssh -F "+client.Config+
		" -W %h:%p "+jump.Name+
		"\nHost broken\n  ProxyCommand echo no way >&2; exit 1\n")
	tr := tree(t)
	d := dialer(t, client, func(cfg *sshexec.Config) { cfg.Tree = tr })
	talk(t, start(t, d, "behind"))
	_, err := d.Start(t.Context(), hosts.Host{Name: "broken"}, []string{"agent"})
	if !sshexec.Transient(err) || !strings.Contains(err.Error(), "the ProxyCommand ended it: no way") {
		t.Errorf("%v", err)
	}
}

// What ssh's configuration says is used; what only ssh itself can decide, it is asked.
func TestConfigFiles(t *testing.T) {
	testutil.Long(t)
	client := testutil.NewSSHClient(t)
	s := testutil.SSHD(t, testutil.SSHDConfig{Client: client, Name: "machine"})
	dir := filepath.Dir(client.Config)
	include := filepath.Join(dir, "more.conf")
	user := s.User
	plain := fmt.Sprintf("Include more.conf\nHost node-*\n  Port %d\n", s.Port)
	rest := fmt.Sprintf("Host node-1\n  HostName 127.0.0.1\n  User %s\n  IdentityFile ~/.ssh/key-of-%%r-%%n\n  IdentitiesOnly yes\n"+
		"Match all\n  Port 1\n", user)
	if err := os.Rename(client.Key, filepath.Join(dir, "key-of-"+user+"-node-1")); err != nil {
		t.Fatal(err)
	}
	for file, text := range map[string]string{client.Config: plain, include: rest} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	known := fmt.Sprintf("UserKnownHostsFile=%s", client.KnownHosts)
	options := func(cfg *sshexec.Config) { cfg.Options = []string{known, "Port=" + strconv.Itoa(s.Port)} }
	talk(t, start(t, dialer(t, client, options), "node-1"))

	// The same below a condition.
	if err := os.WriteFile(include, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	text := strings.Replace(rest, "Host node-1\n", "Host other\n  User nobody\nMatch host node-1 exec \"test %n = node-1\"\n", 1)
	text = strings.ReplaceAll(text, "~/.ssh/", dir+"/")
	if err := os.WriteFile(client.Config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := exec.LookPath("ssh"); err != nil {
		testutil.Missing(t, "Debian's openssh-client")
	}
	tr := tree(t)
	talk(t, start(t, dialer(t, client, func(cfg *sshexec.Config) { options(cfg); cfg.Tree = tr }), "node-1"))
	_, err := dialer(t, client, options).Start(t.Context(), hosts.Host{Name: "node-1"}, []string{"agent"})
	if e, ok := errors.AsType[*sshexec.Error](err); !ok || e.Reason != sshexec.NameUnknown {
		t.Errorf("without ssh, what stands below the condition is not used: %v", err)
	}
	broken := strings.Replace(text, `exec "test`, `nonsense "test`, 1)
	if err := os.WriteFile(client.Config, []byte(broken), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = dialer(t, client, func(cfg *sshexec.Config) { options(cfg); cfg.Tree = tr }).Start(t.Context(), hosts.Host{Name: "node-1"},
		[]string{"agent"})
	if errhint.CodeOf(err) != errhint.Usage || !strings.Contains(err.Error(), "nonsense") {
		t.Errorf("a configuration that ssh refuses: %v", err)
	}
}
