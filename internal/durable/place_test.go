package durable_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"muster/internal/durable"
	"muster/internal/errhint"
)

// TestOurs: a directory counts as ours where nobody else can put something else into it, or in its place.
func TestOurs(t *testing.T) {
	base := t.TempDir()
	dir := func(name string, mode os.FileMode) string {
		path := filepath.Join(base, name)
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	link := func(to, name string) string {
		path := filepath.Join(base, name)
		if err := os.Symlink(to, path); err != nil {
			t.Fatal(err)
		}
		return path
	}
	private, sticky, open, group := dir("private", 0o700), dir("sticky", 0o777|os.ModeSticky), dir("open", 0o777), dir("group", 0o770)
	if err := os.Mkdir(filepath.Join(open, "below"), 0o700); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(base, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		private: private, sticky: sticky, link(private, "link"): private,
		open: "", group: "", filepath.Join(open, "below"): "", link(filepath.Join(open, "below"), "away"): "", file: "",
		filepath.Join(base, "none"): "",
	} {
		if got, err := durable.Ours(path); got != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q, %v; want %q", path, got, err, want)
		}
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(private, 12345, 12345); err != nil {
			t.Fatal(err)
		}
		if _, err := durable.Ours(private); err == nil {
			t.Error("a directory of somebody else counts as ours")
		}
	}
}

// TestMkdirTempKeepsAway: a directory for temporary files to which all may write is not used where there is a better
// one.
func TestMkdirTempKeepsAway(t *testing.T) {
	open := filepath.Join(t.TempDir(), "scratch")
	if err := os.Mkdir(open, 0o700); err != nil {
		t.Fatal(err)
	}
	ours, err := durable.MkdirTemp(open, "x-")
	if err != nil || filepath.Dir(ours) != open {
		t.Fatalf("%q, %v; want one in %s", ours, err, open)
	}
	if err := os.Chmod(open, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := durable.Ours("/tmp"); err != nil {
		t.Skip(err)
	}
	away, err := durable.MkdirTemp(open, "x-")
	if err != nil || strings.HasPrefix(away, open) {
		t.Fatalf("%q, %v; want one in /tmp", away, err)
	}
	if err := os.Remove(away); err != nil {
		t.Error(err)
	}
	for _, bad := range []string{filepath.Join(open, "missing"), file(t)} {
		made, err := durable.MkdirTemp(bad, "x-")
		if err == nil || !strings.Contains(err.Error(), "TMPDIR") || !strings.Contains(err.Error(), bad) ||
			errhint.CodeOf(err) != errhint.Usage {
			t.Errorf("%q, %v, status %d; want an error that names TMPDIR and %s, and status 2", made, err, errhint.CodeOf(err), bad)
		}
	}
}

func file(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, nil, 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}
