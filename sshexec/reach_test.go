package sshexec_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"muster/internal/errhint"
	"muster/internal/hosts"
	"muster/internal/testutil"
	"muster/sshexec"
	"muster/sshexec/sshtest"
)

// authorized returns the public key of a client.
func authorized(t *testing.T, c *testutil.SSHClient) ssh.PublicKey {
	t.Helper()
	text, err := os.ReadFile(c.Key + ".pub")
	if err != nil {
		t.Fatal(err)
	}
	key, _, _, _, err := ssh.ParseAuthorizedKey(text)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// closed returns a port at which nobody listens.
func closed(t *testing.T) int {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port
}

// What is wrong is told with the host, the user and the port, with what was tried, and with what can be done.
func TestUnreached(t *testing.T) {
	client := testutil.NewSSHClient(t)
	mine := []ssh.PublicKey{authorized(t, client)}
	strangers := []ssh.PublicKey{sshtest.Key(t).PublicKey()}
	talker, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = talker.Close() })
	go func() {
		for c, err := talker.Accept(); err == nil; c, err = talker.Accept() {
			_, _ = c.Write([]byte("HTTP/1.1 400 Bad Request\r\n" + strings.Repeat("x", 300) + "\r\n"))
			_ = c.Close()
		}
	}()
	server := func(cfg sshtest.Config) hosts.Host { return at(sshtest.New(t, cfg)) }
	here := func(port int) hosts.Host { return hosts.Host{Name: "127.0.0.1", Port: port} }
	withoutKeys := testutil.NewSSHClient(t)
	if err := os.Remove(withoutKeys.Key); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		host      hosts.Host
		client    *testutil.SSHClient
		change    func(*sshexec.Config)
		reason    sshexec.Reason
		transient bool
		text      []string
		hint      string
	}{
		"unknown name": {
			host: hosts.Host{Name: "nobody.invalid"}, reason: sshexec.NameUnknown, transient: true,
			text: []string{"cannot reach host nobody.invalid (as ", " at nobody.invalid:22)"}, hint: "name",
		},
		"refused": {
			host: here(closed(t)), reason: sshexec.Refused, transient: true, text: []string{"connection refused"},
			hint: "does sshd run there",
		},
		"silent": {
			host: server(sshtest.Config{Silent: true}), reason: sshexec.TimedOut, transient: true,
			change: func(cfg *sshexec.Config) { cfg.ConnectTimeout = 200 * time.Millisecond },
			text:   []string{"did not finish the login within 600ms"}, hint: "sshd",
		},
		"not ssh": {host: here(talker.Addr().(*net.TCPAddr).Port), reason: sshexec.NotSSH, hint: "is this the port of an sshd"},
		"wrong key": {
			host: server(sshtest.Config{Authorized: strangers}), reason: sshexec.AuthFailed,
			text: []string{"tried: " + client.Key, "it takes: publickey"}, hint: "ssh-copy-id -p ",
		},
		"passwords only": {
			host: server(sshtest.Config{PasswordOnly: true}), reason: sshexec.AuthFailed,
			text: []string{"it takes no keys", "it takes: password"}, hint: "never asks for a password",
		},
		"key and password": {
			host: server(sshtest.Config{Also: true}), reason: sshexec.AuthFailed,
			text: []string{"took a key, and asks for more"}, hint: "AuthenticationMethods",
		},
		"no key": {
			host: server(sshtest.Config{Authorized: mine}), client: withoutKeys, reason: sshexec.AuthFailed,
			text: []string{"there is no key"}, hint: "ssh-keygen",
		},
		"named key is gone": {
			host: server(sshtest.Config{Authorized: mine}), reason: sshexec.AuthFailed,
			change: func(cfg *sshexec.Config) { cfg.Options = []string{"IdentityFile=~/.ssh/gone"} },
			text:   []string{"not used: " + filepath.Join(client.Home, ".ssh/gone") + " (no such file or directory)"}, hint: "ssh-keygen",
		},
		"jump host unknown": {
			host: here(1), reason: sshexec.NameUnknown, transient: true,
			change: func(cfg *sshexec.Config) { cfg.Options = []string{"ProxyJump=nobody.invalid"} },
			text:   []string{"cannot reach host 127.0.0.1: cannot reach jump host nobody.invalid"}, hint: "name",
		},
		"shell is missing": {
			host: server(sshtest.Config{Shell: "/nowhere/sh"}), reason: sshexec.NoProgram,
			text: []string{"status 127", "no such file"}, hint: "login shell",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if c.client == nil {
				c.client = client
			}
			d := dialer(t, c.client, c.change)
			_, err := d.Start(t.Context(), c.host, []string{"agent"})
			e, ok := errors.AsType[*sshexec.Error](err)
			if !ok || e.Reason != c.reason || sshexec.Transient(err) != c.transient || errhint.CodeOf(err) != errhint.TryAgain {
				t.Fatalf("%v (%+v, transient %v, code %d)", err, e, sshexec.Transient(err), errhint.CodeOf(err))
			}
			for _, want := range append(c.text, c.host.Name) {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%v has no %q", err, want)
				}
			}
			if !strings.Contains(errhint.Of(err), c.hint) {
				t.Errorf("the hint is %q", errhint.Of(err))
			}
			t.Log(err, "|", errhint.Of(err))
		})
	}
}

func TestWrongUser(t *testing.T) {
	testutil.Long(t)
	s := testutil.SSHD(t, testutil.SSHDConfig{})
	_, err := dialer(t, s.Client, nil).Start(t.Context(), hosts.Host{Name: s.Name, User: "no-such-user"}, []string{"agent"})
	if e, ok := errors.AsType[*sshexec.Error](err); !ok || e.Reason != sshexec.AuthFailed ||
		!strings.Contains(err.Error(), "(as no-such-user at "+s.Addr+")") {
		t.Errorf("%v", err)
	}
}

// Behind a jump host, the reasons come from there.
func TestBehindJump(t *testing.T) {
	testutil.Long(t)
	client := testutil.NewSSHClient(t)
	jump := testutil.SSHD(t, testutil.SSHDConfig{Client: client, Name: "jump"})
	closedJump := testutil.SSHD(t, testutil.SSHDConfig{Client: client, Name: "closed", Config: "AllowTcpForwarding no"})
	via := func(jump string) *sshexec.Dialer {
		return dialer(t, client, func(cfg *sshexec.Config) { cfg.Options = []string{"ProxyJump=" + jump} })
	}
	for _, c := range []struct {
		jump   string
		host   hosts.Host
		reason sshexec.Reason
	}{
		{jump.Name, hosts.Host{Name: "127.0.0.1", Port: closed(t)}, sshexec.Refused},
		{jump.Name, hosts.Host{Name: "nobody.invalid"}, sshexec.NameUnknown},
		{closedJump.Name, hosts.Host{Name: "127.0.0.1"}, sshexec.AuthFailed},
	} {
		_, err := via(c.jump).Start(t.Context(), c.host, []string{"agent"})
		if e, ok := errors.AsType[*sshexec.Error](err); !ok || e.Reason != c.reason || e.Jump ||
			!strings.Contains(err.Error(), "jump host "+c.jump+" says") {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// Wrong usage is told before anything is reached.
func TestUsage(t *testing.T) {
	client := testutil.NewSSHClient(t)
	for name, change := range map[string]func(*sshexec.Config){
		"host keys": func(cfg *sshexec.Config) { cfg.HostKeys = "maybe" },
		"port":      func(cfg *sshexec.Config) { cfg.Port = 70000 },
		"key":       func(cfg *sshexec.Config) { cfg.Identity = "/nowhere/key" },
		"option":    func(cfg *sshexec.Config) { cfg.Options = []string{"ControlMaster=yes"} },
		"no value":  func(cfg *sshexec.Config) { cfg.Options = []string{"Port"} },
		"prompt":    func(cfg *sshexec.Config) { cfg.Options = []string{"BatchMode=no"} },
		"program":   func(cfg *sshexec.Config) { cfg.Program = []string{"ssh"} },
	} {
		if _, err := newDialer(t, client, change); errhint.CodeOf(err) != errhint.Usage {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, change := range map[string]func(*sshexec.Config){
		"port":        func(cfg *sshexec.Config) { cfg.Options = []string{"Port=many"} },
		"token":       func(cfg *sshexec.Config) { cfg.Options = []string{"IdentityFile=%X"} },
		"variable":    func(cfg *sshexec.Config) { cfg.Options = []string{"UserKnownHostsFile=${NOWHERE}/x"} },
		"proxy":       func(cfg *sshexec.Config) { cfg.Options = []string{"ProxyCommand=nc %h %p"} },
		"jump":        func(cfg *sshexec.Config) { cfg.Options = []string{"ProxyJump=host:port"} },
		"many jumps":  func(cfg *sshexec.Config) { cfg.Options = []string{"ProxyJump=a,b,c,d,e,f,g,h,i"} },
		"alive":       func(cfg *sshexec.Config) { cfg.Options = []string{"ServerAliveInterval -1"} },
		"config file": func(*sshexec.Config) { client.Append(client.Config, "Host [\n  Port 1\nMatch\n") },
	} {
		_, err := dialer(t, client, change).Start(t.Context(), hosts.Host{Name: "127.0.0.1"}, []string{"agent"})
		if errhint.CodeOf(err) != errhint.Usage || sshexec.Transient(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, name := range []string{"", "-oProxyCommand=x", "a b", "a\nb"} {
		if _, err := dialer(t, client, nil).Start(t.Context(), hosts.Host{Name: name},
			[]string{"agent"}); errhint.CodeOf(err) != errhint.Usage {
			t.Errorf("host %q: %v", name, err)
		}
	}
}

var errEnough = errors.New("somebody pressed ^C")

// A start that is not wanted any more ends, wherever it waits.
func TestCancel(t *testing.T) {
	client := testutil.NewSSHClient(t)
	shell := filepath.Join(t.TempDir(), "shell")
	if err := os.WriteFile(shell, []byte("#!/bin/sh\nexec sleep 1000\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	slow := sshtest.New(t, sshtest.Config{Shell: shell})
	silent := sshtest.New(t, sshtest.Config{Silent: true})
	for name, s := range map[string]*sshtest.Server{"in the login": silent, "in the login files": slow} {
		ctx, cancel := context.WithCancelCause(t.Context())
		go func() {
			for s.Connections() == 0 || s == slow && s.Sessions() == 0 {
				time.Sleep(time.Millisecond) // the pace of polling
			}
			cancel(errEnough)
		}()
		_, err := dialer(t, client, nil).Start(ctx, at(s), []string{"agent"})
		if !errors.Is(err, errEnough) {
			t.Errorf("%s: %v", name, err)
		}
		cancel(nil)
	}
}

// A machine that has lost its power says nothing more, and is missed.
func TestFreeze(t *testing.T) {
	testutil.Long(t)
	s := sshtest.New(t, sshtest.Config{})
	d := dialer(t, testutil.NewSSHClient(t), func(cfg *sshexec.Config) { cfg.Alive = 50 * time.Millisecond })
	r := startAt(t, d, s)
	time.Sleep(time.Second) // twenty signs of life
	if _, err := r.Stdin().Write([]byte("still there\n")); err != nil {
		t.Fatal(err)
	}
	s.Freeze()
	status, err := r.Wait()
	if err == nil || !strings.Contains(err.Error(), "no sign of life for 200ms") || !sshexec.Transient(err) {
		t.Errorf("it ended with %d, %v", status, err)
	}
}
