package main

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"muster/internal/testutil"
	"muster/rendezvous/tcpstore"
)

// TestStoreCommand serves a store on a port of its own choice, until SIGTERM.
func TestStoreCommand(t *testing.T) {
	j := start(t, nil, "store", "--bind", "127.0.0.1:0")
	testutil.Eventually(t, 60*time.Second, "the store tells its address", func() bool { return strings.HasSuffix(j.out.String(), "\n") })
	addr := strings.TrimSpace(j.out.String())
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
		got := muster(t, nil, args...)
		if got.status != 2 || strings.Contains(got.stdout, "started") || !strings.Contains(got.stderr, "in use") || !strings.Contains(got.stderr, port) {
			t.Errorf("%v: status %d, want 2\n%s%s", args, got.status, got.stdout, got.stderr)
		}
	}
	j.signal(syscall.SIGTERM)
	if got := j.wait(); got.status != 0 {
		t.Errorf("status %d after SIGTERM, want 0\n%s", got.status, got.stderr)
	}
}
