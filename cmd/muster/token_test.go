package main

import (
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"muster/internal/hostaddr"
	"muster/internal/testutil"
)

func TestToken(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "job.token")
	seen := map[string]bool{}
	for range 2 {
		got := muster(t, nil, "token")
		raw, err := hex.DecodeString(strings.TrimSuffix(got.stdout, "\n"))
		if got.status != 0 || err != nil || len(raw) != 32 || got.stderr != "" || seen[got.stdout] {
			t.Errorf("status %d, %q, %q", got.status, got.stdout, got.stderr)
		}
		seen[got.stdout] = true
	}
	if got := muster(t, nil, "token", file); got.status != 0 || got.stdout+got.stderr != "" {
		t.Errorf("with a file: status %d, %q, %q", got.status, got.stdout, got.stderr)
	}
	text, err := os.ReadFile(file)
	info, _ := os.Stat(file)
	if raw, bad := hex.DecodeString(strings.TrimSpace(string(text))); err != nil || bad != nil || len(raw) != 32 || info.Mode() != 0o600 {
		t.Errorf("the file has %d bytes (%v), mode %v", len(raw), bad, info.Mode())
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink(filepath.Join(dir, "elsewhere"), link); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{file, link, dir, filepath.Join(dir, "none", "x")} {
		if got := muster(t, nil, "token", path); got.status != 2 || !strings.Contains(got.stderr, "cannot write the token") ||
			!strings.Contains(got.stderr, path) {
			t.Errorf("%s: status %d, %q", path, got.status, got.stderr)
		}
	}
	if again, _ := os.ReadFile(file); string(again) != string(text) {
		t.Error("a file that was there was overwritten")
	}
	if _, err := os.Lstat(filepath.Join(dir, "elsewhere")); err == nil {
		t.Error("a link was followed")
	}
}

// What is open without a token is said in one line, on the node that serves the store, and not where there is one.
func TestOpenIsTold(t *testing.T) {
	t.Parallel()
	own := hostaddr.Outward()
	if own == "" {
		testutil.Missing(t, "an address that is not loopback")
	}
	file := filepath.Join(t.TempDir(), "token")
	if got := muster(t, nil, "token", file); got.status != 0 {
		t.Fatal(got.stderr)
	}
	at := own + ":" + freePort(t)
	for name, c := range map[string]struct {
		args []string
		want int
	}{
		"none": {nil, 1}, "one": {[]string{"--token-file", file}, 0},
	} {
		args := append([]string{
			"--log-level", "warn", "run", "--nnodes", "1:2", "--last-call", "0.1", "--rdzv", "muster://" + at,
			"--run-id", "x",
		}, c.args...)
		got := muster(t, nil, append(args, "--", "true")...)
		said := "no job token: whoever reaches " + at + " can change what this job does"
		if n := strings.Count(got.stderr, said); got.status != 0 || n != c.want || c.want > 0 &&
			!strings.Contains(got.stderr, "--token-file job.token") {
			t.Errorf("%s: status %d, said %d times:\n%s", name, got.status, n, got.stderr)
		}
	}
}
