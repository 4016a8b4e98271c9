package onpath

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"muster/internal/errhint"
)

func TestCompareVersions(t *testing.T) {
	rising := []string{
		"v0.0.0-9-gaaaaaaa", "v0.0.0-10-gbbbbbbb", "v0.1.0-alpha", "v0.1.0-alpha.1", "v0.1.0-rc.1", "v0.1.0-rc.1-2-gccccccc", "v0.1.0",
		"v0.1.0-3-gddddddd-dirty", "v0.1.1", "0.10.0", "v1.0.0",
	}
	for i, a := range rising {
		for j, b := range rising {
			want := 0
			switch {
			case i < j:
				want = -1
			case i > j:
				want = 1
			}
			if got := compareVersions(a, b); got != want {
				t.Errorf("compareVersions(%q, %q) = %d, want %d", a, b, got, want)
			}
		}
	}
	for _, unknown := range []string{"devel", "devel-0123456789ab", "5906997", "", "1.2", "1.2.x"} {
		if got := compareVersions(unknown, "1.0.0"); got != 0 {
			t.Errorf("compareVersions(%q, 1.0.0) = %d, want 0", unknown, got)
		}
	}
	if got := compareVersions("v1.0.0+a", "1.0.0+b"); got != 0 {
		t.Errorf("what stands behind a plus orders: %d", got)
	}
}

// script writes a program into a directory.
func script(t *testing.T, dir, name, text string) string {
	t.Helper()
	at := filepath.Join(dir, name)
	if err := os.WriteFile(at, []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return at
}

// TestMusters: each file called muster is told once, with what it says of itself, and which one runs.
func TestMusters(t *testing.T) {
	t.Parallel()
	first, second, third := t.TempDir(), t.TempDir(), t.TempDir()
	script(t, first, "muster", "echo muster version v0.1.0")
	script(t, second, "muster", "echo something else")
	if err := os.Link(filepath.Join(first, "muster"), filepath.Join(third, "muster")); err != nil {
		t.Fatal(err)
	}
	found := Musters(t.Context(), []string{"PATH=.:" + first + ":" + second + ":" + third})
	if len(found) != 2 || found[0].Version != "v0.1.0" || !found[0].InFront || found[1].Version != "" || found[1].InFront {
		t.Fatalf("%+v", found)
	}
	for i, want := range []string{
		"stands in front on PATH and is version v0.1.0, older than this one", "is on PATH, too, and does not say its version",
	} {
		if got := found[i].Sentence("v0.2.0"); !strings.Contains(got, want) {
			t.Errorf("%q lacks %q", got, want)
		}
	}
}

// TestLinks: all links are made or none, and a file that was in the way comes back.
func TestLinks(t *testing.T) {
	t.Parallel()
	dir, later := t.TempDir(), t.TempDir()
	var told, warned []string
	l := Links{
		Dir: dir, Argv0: "muster", Environ: []string{"PATH=" + dir + ":" + later},
		Launcher: func(name string) bool { return name != "muster" },
		Tell:     func(line string) { told = append(told, line) }, Warn: func(line string) { warned = append(warned, line) },
	}
	hidden := script(t, later, "two", "")
	if err := l.Make([]string{"one", "two"}); errhint.CodeOf(err) != errhint.Usage || !strings.Contains(err.Error(), hidden) {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	script(t, dir, "one", "echo before")
	l.Force = true
	if err := l.Make([]string{"one", "two"}); err != nil {
		t.Fatal(err)
	}
	if to, err := os.Readlink(filepath.Join(dir, "one")); err != nil || to != l.target {
		t.Errorf("%s %v, want %s", to, err, l.target)
	}
	if err := l.Remove([]string{"one", "two", "three"}); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "one")); err != nil || !strings.Contains(string(text), "before") {
		t.Errorf("%q %v", text, err)
	}
	if len(told) != 5 || !strings.HasSuffix(told[4], "three is not there") || len(warned) != 0 {
		t.Errorf("%q %q", told, warned)
	}
	l.Environ = nil
	if err := l.Make([]string{"three"}); err != nil || len(warned) != 1 || !strings.Contains(warned[0], "is not on PATH") {
		t.Errorf("%v %q", err, warned)
	}
}
