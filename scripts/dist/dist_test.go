package main

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"muster/internal/testutil"
)

const (
	testVersion = "v1.2.3-4-gabcdef012"
	testPython  = "1.2.3.post4+gabcdef012"
	testDebian  = "1.2.3+4.gabcdef012"
	testEpoch   = "1700000000"
)

var scratch string // for what all tests share

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "dist")
	if err != nil {
		panic(err)
	}
	scratch = dir
	status := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(status)
}

// archs are the architectures that are built: this machine's, and in a soak test all.
func archs() string {
	if testutil.Soak() {
		return "amd64 arm64"
	}
	return runtime.GOARCH
}

// build runs the dist.sh of a tree.
func build(tree, out string, environ ...string) error {
	cmd := exec.Command(filepath.Join(tree, "scripts/dist.sh"), out)
	cmd.Env = append(os.Environ(), "VERSION="+testVersion, "SOURCE_DATE_EPOCH="+testEpoch, "DIST_ARCHS="+archs(), "GO_TAGS=grpcnotrace",
		"NVPROBE=off")
	cmd.Env = append(cmd.Env, environ...)
	if said, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, said)
	}
	return nil
}

var built = sync.OnceValues(func() (string, error) {
	out := filepath.Join(scratch, "first")
	return out, build("../..", out)
})

// packages returns the directory with what make dist makes of this tree.
func packages(t *testing.T) string {
	t.Helper()
	testutil.Long(t)
	dir, err := built()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// the returns the one file of a pattern in a directory.
func the(t *testing.T, pattern ...string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(pattern...))
	if err != nil || len(found) != 1 {
		t.Fatalf("%v: %q, %v", pattern, found, err)
	}
	return found[0]
}

var machines = map[string]string{"amd64": "x86_64", "arm64": "aarch64"}

// did runs a program, and returns what it wrote to both streams.
func did(t *testing.T, environ []string, name string, args ...string) (said string, err error) {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), environ...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// must is did where failing ends the test.
func must(t *testing.T, environ []string, name string, args ...string) string {
	t.Helper()
	said, err := did(t, environ, name, args...)
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, said)
	}
	return said
}

func sums(t *testing.T, dir string) map[string]string {
	t.Helper()
	found := map[string]string{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		content, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		found[e.Name()] = fmt.Sprintf("%x", sha256.Sum256(content))
	}
	return found
}

// Two builds, in other directories, by other umasks and at other times, give the same bytes. In a soak test the second
// one compiles everything anew.
func TestSameBytes(t *testing.T) {
	t.Parallel()
	first := packages(t)
	tree, out := filepath.Join(t.TempDir(), "elsewhere"), filepath.Join(t.TempDir(), "out")
	copyTree(t, "../..", tree)
	environ := []string{"TZ=Asia/Tokyo", "USER=somebody", "TMPDIR=" + t.TempDir()}
	if testutil.Soak() {
		environ = append(environ, "GOCACHE="+t.TempDir())
	}
	if err := build(tree, out, environ...); err != nil {
		t.Fatal(err)
	}
	one, two := sums(t, first), sums(t, out)
	if len(one) != len(two) || len(one) < 7 {
		t.Errorf("%d files, then %d", len(one), len(two))
	}
	for name, sum := range one {
		if two[name] != sum {
			t.Errorf("%s is not the same", name)
		}
	}
}

// copyTree copies what a source archive has: no commits, nothing built.
func copyTree(t *testing.T, from, to string) {
	t.Helper()
	err := filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		switch {
		case d.Name() == ".git" || rel == "build" || rel == "bin" || d.Name() == "__pycache__":
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		case d.IsDir():
			return os.MkdirAll(filepath.Join(to, rel), 0o700)
		case !d.Type().IsRegular():
			return nil
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		st, err := d.Info()
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, rel), content, st.Mode().Perm()&0o700)
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestChecksums(t *testing.T) {
	t.Parallel()
	dir := packages(t)
	listed, err := os.ReadFile(filepath.Join(dir, "SHA256SUMS"))
	if err != nil {
		t.Fatal(err)
	}
	found := sums(t, dir)
	delete(found, "SHA256SUMS")
	lines := bytes.Split(bytes.TrimSpace(listed), []byte("\n"))
	if len(lines) != len(found) {
		t.Errorf("%d lines for %d files", len(lines), len(found))
	}
	for _, line := range lines {
		sum, name, _ := strings.Cut(string(line), "  ")
		if found[name] != sum {
			t.Errorf("%s is listed with %s, and has %s", name, sum, found[name])
		}
	}
}

func TestBudgetsAreKept(t *testing.T) {
	t.Parallel()
	dir := packages(t)
	for _, pattern := range []string{
		"*" + machines[runtime.GOARCH] + ".whl", "*_" + runtime.GOARCH + ".deb",
		"*-image-*-" + runtime.GOARCH + ".tar",
	} {
		path := the(t, dir, pattern)
		st, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %.1f MB", filepath.Base(path), float64(st.Size())/1e6)
		if st.Size() > budget {
			t.Errorf("more than the budget of %d bytes", budget)
		}
	}
}
