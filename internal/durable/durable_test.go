package durable_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"muster/internal/durable"
	"muster/internal/testutil"
)

func write(t *testing.T, path, text string, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// A file that is there keeps its mode and its group: nobody can read it afterwards who could not before.
func TestReplaceKeepsMode(t *testing.T) {
	for _, mode := range []os.FileMode{0o600, 0o640, 0o644, 0o666, 0o400} {
		path := filepath.Join(t.TempDir(), "file")
		write(t, path, "old", mode)
		if os.Geteuid() == 0 {
			if err := os.Chown(path, -1, testutil.OtherUserID); err != nil {
				t.Fatal(err)
			}
		}
		if err := durable.Replace(path, []byte("new"), 0o644); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != mode || read(t, path) != "new" {
			t.Errorf("mode %v became %v: %v", mode, info.Mode(), err)
		}
		if st := info.Sys().(*syscall.Stat_t); os.Geteuid() == 0 && st.Gid != testutil.OtherUserID {
			t.Errorf("its group became %d", st.Gid)
		}
	}
}

// The mode of a file that somebody else has put there gives nobody more than that of a new one.
func TestReplaceFileOfAnotherUser(t *testing.T) {
	dir := testutil.ReachedDir(t, 0o1777)
	path := filepath.Join(dir, "file")
	testutil.RunOtherUser(t, "sh", "-c", "umask 0; echo old >"+path)
	if err := durable.Replace(path, []byte("new"), 0o644); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("%v, %v", info, err)
	}
}

// TestReplaceLinks: links of ours lead to what is replaced; those of another user are refused, wherever they are on the
// way, and what they lead to stays as it was.
func TestReplaceLinks(t *testing.T) {
	ours := testutil.ReachedDir(t, 0o755)
	keys, link := filepath.Join(ours, "authorized_keys"), filepath.Join(ours, "link")
	write(t, keys, "keys", 0o600)
	if err := os.Symlink("authorized_keys", link); err != nil {
		t.Fatal(err)
	}
	if err := durable.Replace(link, []byte("more keys"), 0o644); err != nil || read(t, keys) != "more keys" {
		t.Errorf("%v: %q", err, read(t, keys))
	}
	if to, err := os.Readlink(link); err != nil || to != "authorized_keys" {
		t.Errorf("the link became %q, %v", to, err)
	}
	if info, err := os.Stat(keys); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	shared := testutil.ReachedDir(t, 0o1777)
	testutil.RunOtherUser(t, "ln", "-s", keys, filepath.Join(shared, "status.json"))
	testutil.RunOtherUser(t, "ln", "-s", ours, filepath.Join(shared, "dir"))
	testutil.RunOtherUser(t, "ln", "-s", filepath.Join(ours, "new"), filepath.Join(shared, "missing"))
	if err := os.Symlink(filepath.Join(shared, "status.json"), filepath.Join(ours, "by")); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{
		filepath.Join(shared, "status.json"), filepath.Join(shared, "dir", "authorized_keys"), filepath.Join(shared, "missing"),
		filepath.Join(ours, "by"),
	} {
		if err := durable.Replace(path, []byte("x"), 0o644); err == nil ||
			!strings.Contains(err.Error(), "is a symbolic link of user 47114") {
			t.Errorf("%s: %v", path, err)
		}
	}
	if read(t, keys) != "more keys" {
		t.Errorf("keys became %q", read(t, keys))
	}
	if _, err := os.Lstat(filepath.Join(ours, "new")); err == nil {
		t.Error("a file was made where another user's link leads to")
	}
}

// What is to be private becomes so.
func TestReplacePrivate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	write(t, path, "old", 0o644)
	if err := durable.Replace(path, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
}

// Files that are written to where they lie are not those of somebody else's link, either.
func TestCreate(t *testing.T) {
	ours, shared := testutil.ReachedDir(t, 0o755), testutil.ReachedDir(t, 0o1777)
	keys := filepath.Join(ours, "authorized_keys")
	write(t, keys, "keys", 0o600)
	testutil.RunOtherUser(t, "ln", "-s", keys, filepath.Join(shared, "stdout"))
	testutil.RunOtherUser(t, "mkfifo", filepath.Join(shared, "stderr"))
	for _, name := range []string{"stdout", "stderr"} {
		if f, err := durable.Create(filepath.Join(shared, name), os.O_TRUNC, 0o666); err == nil {
			t.Errorf("%s was opened", f.Name())
		}
	}
	f, err := durable.Create(filepath.Join(shared, "new"), os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("text"); err != nil || f.Close() != nil || read(t, f.Name()) != "text" || read(t, keys) != "keys" {
		t.Errorf("%v: %q, %q", err, read(t, f.Name()), read(t, keys))
	}
}

// Nothing but a regular file is replaced.
func TestReplaceOther(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("gone", filepath.Join(dir, "dangling")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("loop", filepath.Join(dir, "loop")); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"fifo": "no regular file", ".": "", "dangling": "link to nothing", "loop": "too many levels", "missing/file": "no such file",
		"fifo/file": "not a directory",
	} {
		if err := durable.Replace(dir+"/"+name, []byte("x"), 0o644); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if left, _ := os.ReadDir(dir); len(left) != 3 {
		t.Errorf("left: %v", left)
	}
}
