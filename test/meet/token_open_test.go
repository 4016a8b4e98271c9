package meet

import (
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"muster/internal/hostaddr"
	"muster/internal/testutil"
	"muster/test/drive"
)

func TestToken(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "job.token")
	seen := map[string]bool{}
	for range 2 {
		got := drive.Run(t, nil, "token")
		raw, err := hex.DecodeString(strings.TrimSuffix(got.Stdout, "\n"))
		if got.Status != 0 || err != nil || len(raw) != 32 || got.Stderr != "" || seen[got.Stdout] {
			t.Errorf("status %d, %q, %q", got.Status, got.Stdout, got.Stderr)
		}
		seen[got.Stdout] = true
	}
	if got := drive.Run(t, nil, "token", file); got.Status != 0 || got.Stdout+got.Stderr != "" {
		t.Errorf("with a file: status %d, %q, %q", got.Status, got.Stdout, got.Stderr)
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
		if got := drive.Run(t, nil, "token", path); got.Status != 2 || !strings.Contains(got.Stderr, "cannot write the token") ||
			!strings.Contains(got.Stderr, path) {
			t.Errorf("%s: status %d, %q", path, got.Status, got.Stderr)
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
	if got := drive.Run(t, nil, "token", file); got.Status != 0 {
		t.Fatal(got.Stderr)
	}
	at := own + ":" + drive.FreePort(t)
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
		got := drive.Run(t, nil, append(args, "--", "true")...)
		said := "no job token: whoever reaches " + at + " can change what this job does"
		if n := strings.Count(got.Stderr, said); got.Status != 0 || n != c.want || c.want > 0 &&
			!strings.Contains(got.Stderr, "--token-file job.token") {
			t.Errorf("%s: status %d, said %d times:\n%s", name, got.Status, n, got.Stderr)
		}
	}
}
