package sshexec_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"muster/internal/hosts"
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
		Binary:  "/proc/self/exe", Version: "muster version of the tests", Log: zerolog.New(zerolog.NewTestWriter(t)),
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
	sent := make([]byte, 6<<20) // more than any window or pipe has room for
	_, _ = rand.Read(sent)
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
	d := dialer(t, s.Client, nil)
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
