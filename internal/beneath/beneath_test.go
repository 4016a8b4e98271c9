package beneath_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"muster/internal/beneath"
)

// planted is a directory with a file in d/e, and links that lead inside and outside.
func planted(t *testing.T) (dir string, tree *beneath.Tree) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "dir")
	if err := errors.Join(os.MkdirAll(filepath.Join(dir, "d", "e"), 0o700),
		os.WriteFile(filepath.Join(dir, "d", "e", "file"), []byte("text"), 0o600),
		os.Symlink("d", filepath.Join(dir, "inside")), os.Symlink("..", filepath.Join(dir, "outside")),
		os.Symlink("e/file", filepath.Join(dir, "d", "link")), unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600)); err != nil {
		t.Fatal(err)
	}
	tree, err := beneath.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tree.Close(); err != nil {
			t.Error(err)
		}
	})
	return dir, tree
}

func TestTree(t *testing.T) {
	dir, tree := planted(t)
	for range 2 { // the second time from where it has been
		if text, err := tree.Read("d/e/file", 4); err != nil || string(text) != "text" {
			t.Errorf("%q, %v", text, err)
		}
	}
	if _, err := tree.Read("d/e/file", 3); err == nil {
		t.Error("more than the limit was read")
	}
	for _, name := range []string{"inside/e/file", "d/link", "fifo", "fifo/x", "d", "outside/dir/d/e/file"} {
		if _, err := tree.Read(name, 100); !errors.Is(err, beneath.ErrKind) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, name := range []string{"", ".", "..", "/etc/passwd", "d/../d/e/file", "d//e/file", "../dir/d/e/file"} {
		if _, err := tree.Read(name, 100); err == nil || errors.Is(err, os.ErrNotExist) {
			t.Errorf("%q: %v", name, err)
		}
	}
	if _, err := tree.Read("gone/file", 100); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	for _, name := range []string{"inside/new", "outside/new", "fifo/new", "d/link"} {
		if err := tree.MkdirAll(name, 0o700); err == nil {
			t.Errorf("%s was made", name)
		}
	}
	if err := errors.Join(tree.MkdirAll("a/b/c", 0o700), tree.MkdirAll("a/b/c", 0o700),
		tree.Rename("d/e/file", "a/b/c/file", 0)); err != nil {
		t.Error(err)
	}
	if err := tree.Rename("a/b/c/file", "inside/e/file", 0); !errors.Is(err, beneath.ErrKind) {
		t.Error(err)
	}
	if text, err := tree.Read("a/b/c/file", 100); err != nil || string(text) != "text" {
		t.Errorf("%q, %v", text, err)
	}
	entries, err := tree.Names(".")
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if got := strings.Join(names, " "); err != nil || got != "a d fifo inside outside" {
		t.Errorf("%s, %v", got, err)
	}
	if _, err := beneath.Open(filepath.Join(dir, "fifo")); err == nil {
		t.Error("a FIFO was opened as a directory")
	}
}
