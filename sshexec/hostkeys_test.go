package sshexec_test

import (
	"crypto/rand"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"muster/internal/errhint"
	"muster/internal/testutil"
	"muster/sshexec"
	"muster/sshexec/sshtest"
)

// knownLines returns what a client's known_hosts has.
func knownLines(t *testing.T, c *testutil.SSHClient) []string {
	t.Helper()
	text, err := os.ReadFile(c.KnownHosts)
	if err != nil {
		t.Fatal(err)
	}
	if len(text) > 0 && text[len(text)-1] != '\n' {
		t.Errorf("known_hosts has no end of line: %q", text)
	}
	return strings.FieldsFunc(string(text), func(r rune) bool { return r == '\n' })
}

// tryAt starts the agent on a machine and ends it.
func tryAt(t *testing.T, c *testutil.SSHClient, s *sshtest.Server, change func(*sshexec.Config)) error {
	t.Helper()
	r, err := dialer(t, c, change).Start(t.Context(), at(s), []string{"agent"})
	if err == nil {
		_ = r.Close()
	}
	return err
}

func wantReason(t *testing.T, err error, want sshexec.Reason, text string) {
	t.Helper()
	if e, ok := errors.AsType[*sshexec.Error](err); !ok || e.Reason != want || !strings.Contains(err.Error(), text) ||
		sshexec.Transient(err) {
		t.Errorf("%v, want reason %d with %q", err, want, text)
	}
}

func TestHostKeys(t *testing.T) {
	client := testutil.NewSSHClient(t)
	client.Append(client.KnownHosts,
		"other ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl") // without an end of line
	key := sshtest.Key(t)
	s := sshtest.New(t, sshtest.Config{Keys: []ssh.Signer{key}})
	policy := func(p string) func(*sshexec.Config) { return func(cfg *sshexec.Config) { cfg.HostKeys = p } }
	err := tryAt(t, client, s, policy("strict"))
	wantReason(t, err, sshexec.HostKeyUnknown, ssh.FingerprintSHA256(key.PublicKey()))
	if !strings.Contains(errhint.Of(err), "ssh-keyscan") {
		t.Errorf("the hint is %q", errhint.Of(err))
	}
	wantReason(t, tryAt(t, client, s, func(cfg *sshexec.Config) { cfg.Options = []string{"StrictHostKeyChecking=yes"} }),
		sshexec.HostKeyUnknown, "")
	if err := tryAt(t, client, s, policy("off")); err != nil {
		t.Error(err)
	}
	if lines := len(readLines(t, client.KnownHosts)); lines != 1 {
		t.Errorf("known_hosts has %d lines", lines)
	}
	for range 2 {
		if err := tryAt(t, client, s, policy("accept-new")); err != nil {
			t.Error(err)
		}
	}
	if err := tryAt(t, client, s, policy("strict")); err != nil {
		t.Errorf("the key was learned: %v", err)
	}
	lines := knownLines(t, client)
	if len(lines) != 2 || !strings.HasPrefix(lines[1], "|1|") && !strings.HasPrefix(lines[1], s.HostPort()+" ssh-ed25519 ") {
		t.Fatalf("known_hosts has %q", lines)
	}

	// The same machine with another key.
	if err := os.WriteFile(client.KnownHosts,
		[]byte("# a comment\n\n"+s.HostPort()+" "+string(ssh.MarshalAuthorizedKey(sshtest.Key(t).PublicKey()))), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{"accept-new", "strict"} {
		err := tryAt(t, client, s, policy(p))
		wantReason(t, err, sshexec.HostKeyChanged, client.KnownHosts+":3")
		if !strings.Contains(errhint.Of(err), "ssh-keygen -R '"+s.HostPort()+"' -f "+client.KnownHosts) {
			t.Errorf("the hint is %q", errhint.Of(err))
		}
	}
	if err := tryAt(t, client, s, policy("off")); err != nil {
		t.Error(err)
	}

	// A key of a kind that the machine does not have any more.
	ecdsa := "ecdsa-sha2-nistp256 " +
		"AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBEmKSENjQEezOmxkZMy7opKgwFB9nkt5YRrYMjNu" +
		"G5N87uRgg6CLrbo5wAdT/y6v0mKV0U2w0WZ2YB/++Tpockg="
	if err := os.WriteFile(client.KnownHosts, []byte(s.HostPort()+" "+ecdsa+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	wantReason(t, tryAt(t, client, s, nil), sshexec.HostKeyChanged, "of the kind that is known for it (ecdsa-sha2-nistp256)")

	// A line that cannot be read does not stand in the way of the others, nor move them.
	odd := "h ssh-dss AAAA\nx 1024 35 1234567\n" + s.HostPort() + " " + string(ssh.MarshalAuthorizedKey(sshtest.Key(t).PublicKey()))
	if err := os.WriteFile(client.KnownHosts, []byte(odd), 0o600); err != nil {
		t.Fatal(err)
	}
	wantReason(t, tryAt(t, client, s, nil), sshexec.HostKeyChanged, client.KnownHosts+":3")

	revoked := "@revoked * " + string(ssh.MarshalAuthorizedKey(key.PublicKey()))
	if err := os.WriteFile(client.KnownHosts, []byte(revoked), 0o600); err != nil {
		t.Fatal(err)
	}
	wantReason(t, tryAt(t, client, s, nil), sshexec.HostKeyChanged, "revoked in "+client.KnownHosts+":1")
}

func readLines(t *testing.T, file string) []string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(text)), "\n")
}

// A key that twenty connections see at once is written down once, by several launchers too.
func TestAcceptAtOnce(t *testing.T) {
	testutil.Long(t)
	for _, hash := range []string{"no", "yes"} {
		client := testutil.NewSSHClient(t)
		servers := []*sshtest.Server{sshtest.New(t, sshtest.Config{}), sshtest.New(t, sshtest.Config{})}
		_ = tryAt(t, testutil.NewSSHClient(t), servers[0], nil) // the binary is there
		_ = tryAt(t, testutil.NewSSHClient(t), servers[1], nil)
		var wg sync.WaitGroup
		for range 4 {
			d := dialer(t, client, func(cfg *sshexec.Config) { cfg.Options = []string{"HashKnownHosts=" + hash} })
			for i := range 6 {
				wg.Go(func() {
					r, err := d.Start(t.Context(), at(servers[i%2]), []string{"agent"})
					if err != nil {
						t.Error(err)
						return
					}
					_ = r.Close()
				})
			}
		}
		wg.Wait()
		lines := knownLines(t, client)
		if len(lines) != 2 || strings.HasPrefix(lines[0], "|1|") != (hash == "yes") {
			t.Errorf("hashed %s: known_hosts has %q", hash, lines)
		}
	}
}

// Where nothing can be written, a key is remembered as long as the launcher runs.
func TestNoKnownHosts(t *testing.T) {
	client := testutil.NewSSHClient(t)
	first := sshtest.New(t, sshtest.Config{})
	d := dialer(t, client, func(cfg *sshexec.Config) {
		cfg.Options = []string{"UserKnownHostsFile=/dev/null/known_hosts", "HostKeyAlias=same"}
	})
	for range 2 {
		_ = startAt(t, d, first).Close()
	}
	_, err := d.Start(t.Context(), at(sshtest.New(t, sshtest.Config{})), []string{"agent"})
	wantReason(t, err, sshexec.HostKeyChanged, "a connection a moment ago")
}

// authority makes a host key that an authority vouches for.
func authority(t *testing.T) (ca ssh.Signer, host ssh.Signer) {
	t.Helper()
	ca = sshtest.Key(t)
	key := sshtest.Key(t)
	cert := &ssh.Certificate{
		Key: key.PublicKey(), CertType: ssh.HostCert, ValidPrincipals: []string{"127.0.0.1"},
		ValidBefore: uint64(time.Now().Add(time.Hour).Unix()),
	}
	if err := cert.SignCert(rand.Reader, ca); err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.NewCertSigner(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	return ca, signer
}

func TestCertAuthority(t *testing.T) {
	client := testutil.NewSSHClient(t)
	ca, certified := authority(t)
	_, other := authority(t)
	bare := sshtest.Key(t)
	client.Append(client.KnownHosts, "@cert-authority * "+string(ssh.MarshalAuthorizedKey(ca.PublicKey())))
	strict := func(cfg *sshexec.Config) { cfg.HostKeys = "strict" }
	if err := tryAt(t, client, sshtest.New(t, sshtest.Config{Keys: []ssh.Signer{certified}}), strict); err != nil {
		t.Errorf("a machine with a certificate: %v", err)
	}
	plain := sshtest.New(t, sshtest.Config{Keys: []ssh.Signer{bare}})
	wantReason(t, tryAt(t, client, plain, strict), sshexec.HostKeyUnknown, "")
	if err := tryAt(t, client, plain, nil); err != nil {
		t.Errorf("a machine without a certificate: %v", err)
	}
	if lines := knownLines(t, client); len(lines) != 2 {
		t.Errorf("known_hosts has %q", lines)
	}
	err := tryAt(t, client, sshtest.New(t, sshtest.Config{Keys: []ssh.Signer{other}}), nil)
	wantReason(t, err, sshexec.HostKeyChanged, "")
}

// OpenSSH's own client and we agree about what known_hosts says.
func TestKnownByOpenSSH(t *testing.T) {
	s := testutil.SSHD(t, testutil.SSHDConfig{UnknownKey: true})
	d := dialer(t, s.Client, func(cfg *sshexec.Config) { cfg.Options = []string{"HashKnownHosts=yes"} })
	_ = start(t, d, s.Name).Close()
	if out, err := sshCommand(t, s, "echo here"); err != nil || out != "here\n" {
		t.Errorf("ssh says %q, %v", out, err)
	}
	if _, err := os.Stat(filepath.Join(s.Client.Home, ".ssh/known_hosts2")); err == nil {
		t.Error("there is a second file")
	}
}

// sshCommand runs a command by OpenSSH's client, which must know the machine.
func sshCommand(t *testing.T, s *testutil.SSHServer, command string) (string, error) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "ssh", "-F", s.Client.Config, "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes",
		s.Name, command).Output()
	return string(out), err
}
