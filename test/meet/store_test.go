package meet

import (
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"muster/internal/testutil"
	"muster/rendezvous/tcpstore"
	"muster/test/drive"
)

// TestStoreAllow serves one of this machine's loopback addresses, and refuses the other ones and what is no network.
func TestStoreAllow(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, flag, variable string }{
		{"flag", "127.0.0.2, ::1/128", "10.0.0.0/8"},
		{"variable", "", "127.0.0.2/32"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			args := []string{"store", "--bind", "127.0.0.1:0"}
			if tc.flag != "" {
				args = append(args, "--store-allow", tc.flag)
			}
			j := drive.Start(t, []string{"MUSTER_STORE_ALLOW=" + tc.variable}, args...)
			testutil.Eventually(t, 60*time.Second, "the store tells its address",
				func() bool { return strings.HasSuffix(j.Out.String(), "\n") })
			to, err := net.ResolveTCPAddr("tcp", strings.TrimSpace(j.Out.String()))
			if err != nil {
				t.Fatal(err)
			}
			for from, served := range map[string]bool{"127.0.0.2": true, "127.0.0.1": false} {
				c, err := net.DialTCP("tcp", &net.TCPAddr{IP: net.ParseIP(from)}, to)
				if err != nil {
					t.Fatal(err)
				}
				c.SetDeadline(time.Now().Add(60 * time.Second)) // bounds a hang
				c.Write([]byte("\x00\xce\xf7\x85\x3c\x0dping"))
				answer, _ := io.ReadFull(c, make([]byte, 4))
				if (answer == 4) != served {
					t.Errorf("%s gets an answer of %d bytes, want it served: %v", from, answer, served)
				}
				c.Close()
			}
			j.Signal(syscall.SIGTERM)
			if got := j.End(); got.Status != 0 || !strings.Contains(got.Stderr, "127.0.0.1") || strings.Contains(got.Stderr, "127.0.0.2") {
				t.Errorf("status %d, and it does not tell whom it refused, or that it refused another one\n%s", got.Status, got.Stderr)
			}
		})
	}
	for value, want := range map[string]string{
		"10.0.0.0/33": `"10.0.0.0/33" is no network`, "somewhere": "ADDRESS/BITS", "10.0.0.0/8,": `"" is no network`,
		"10.1.2.3/8": "10.0.0.0/8?", "fe80::1%lo": "is no network",
	} {
		if got := drive.Run(t, nil, "store", "--bind", "127.0.0.1:0", "--store-allow", value); got.Status != 2 ||
			!strings.Contains(got.Stderr, want) || !strings.Contains(got.Stderr, "--store-allow") {
			t.Errorf("%s: status %d, want 2 and %q\n%s", value, got.Status, want, got.Stderr)
		}
	}
	if got := drive.Run(t, []string{"MUSTER_STORE_ALLOW=x"}, "store", "--bind", "127.0.0.1:0"); got.Status != 2 ||
		!strings.Contains(got.Stderr, "MUSTER_STORE_ALLOW") {
		t.Errorf("status %d, want 2 and the variable's name\n%s", got.Status, got.Stderr)
	}
}

// TestStoreCommand serves a store on a port of its own choice, until SIGTERM.
func TestStoreCommand(t *testing.T) {
	t.Parallel()
	j := drive.Start(t, nil, "store", "--bind", "127.0.0.1:0")
	testutil.Eventually(t, 60*time.Second, "the store tells its address", func() bool { return strings.HasSuffix(j.Out.String(), "\n") })
	addr := strings.TrimSpace(j.Out.String())
	client, err := tcpstore.Dial(t.Context(), addr, tcpstore.ClientConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if err := client.Set(t.Context(), "/k", []byte("v")); err != nil {
		t.Error(err)
	}
	if got, err := client.Get(t.Context(), "/k"); err != nil || string(got) != "v" {
		t.Errorf("got %q, %v", got, err)
	}
	if err := client.Close(); err != nil {
		t.Error(err)
	}

	// The port is taken: a job or a store that wants it is refused before anything starts.
	_, port, _ := strings.Cut(addr, ":")
	for _, args := range [][]string{
		{"store", "--bind", addr},
		{"run", "--master-port", port, "--", "echo", "started"},
		{"torchrun", "--master-port", port, "--no-python", "echo", "started"},
		{"torchrun", "--rdzv-backend", "c10d", "--rdzv-endpoint", addr, "--no-python", "echo", "started"},
	} {
		got := drive.Run(t, nil, args...)
		if got.Status != 2 || strings.Contains(got.Stdout, "started") || !strings.Contains(got.Stderr, "in use") ||
			!strings.Contains(got.Stderr, port) {
			t.Errorf("%v: status %d, want 2\n%s%s", args, got.Status, got.Stdout, got.Stderr)
		}
	}
	j.Signal(syscall.SIGTERM)
	if got := j.End(); got.Status != 0 {
		t.Errorf("status %d after SIGTERM, want 0\n%s", got.Status, got.Stderr)
	}
}
