package warm

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"muster/launch/plan"
)

// TestLearnedKept: what was learned is there for the next job, private, and goes with what it depends on.
func TestLearnedKept(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := func(name, text string) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return p
	}
	script, python := path("train.py", "import a\n"), path("python", "ELF")
	a, b, odd := path("a.py", "1"), path("__init__.py", "22"), path("b c.py", "3")
	cache := filepath.Join(dir, "cache")
	at := func(environ ...string) memory {
		return memorySource{
			Cache: cache, Command: plan.WarmCommand{Form: "script", Name: "train.py", ProbePath: python, Probe: []string{"python"}},
			Path: python, Dir: dir, Environ: environ,
		}.memory()
	}
	m := at()
	got, err := m.load()
	if err != nil || len(got.Modules) != 0 {
		t.Fatalf("an empty cache has %v, %v", got, err)
	}
	if size := got.add([]string{a, b, odd, a, filepath.Join(dir, "gone.py"), "relative.py"}, []string{"A", "not one"}); size != 3 {
		t.Errorf("%d bytes are new, want 3", size)
	}
	got.refuse(b)
	if err := m.save(got); err != nil {
		t.Fatal(err)
	}
	kept, err := m.load()
	if diff := cmp.Diff(got, kept); err != nil || diff != "" {
		t.Errorf("%v, -saved +loaded:\n%s", err, diff)
	}
	if diff := cmp.Diff([]string{a}, func() []string { // the package's directory is this one
		kept.Refused = nil
		kept.Modules = kept.Modules[:1]
		return kept.usable()
	}()); diff != "" {
		t.Error(diff)
	}
	if !got.refuses(a) || got.refuses(dir+"other.py") {
		t.Errorf("refused: %v", got.Refused)
	}
	for _, p := range []string{memoryDir(m), filepath.Join(memoryDir(m), m.name)} {
		if info, err := os.Stat(p); err != nil || info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s: %v, %v", p, info.Mode(), err)
		}
	}

	// Another interpreter, environment or script is another memory.
	names := map[string]string{m.name: "itself"}
	other := func(what string, m memory) {
		if was, there := names[m.name]; there {
			t.Errorf("%s has the same memory as %s", what, was)
		}
		names[m.name] = what
	}
	other("PYTHONPATH", at("PYTHONPATH=/x"))
	if at("RANK=1").name != m.name {
		t.Error("RANK is part of the memory's name")
	}
	path("train.py", "import b\n")
	other("the script's content", at())
	path("python", "ELF of another version")
	other("the interpreter", at())
	_ = script

	// A changed module is not imported ahead, and is news when it is seen again.
	path("a.py", "4444")
	if files := kept.usable(); len(files) > 0 {
		t.Errorf("%v is usable", files)
	}
	if size := kept.add([]string{a}, nil); size != 4 || len(kept.usable()) != 1 {
		t.Errorf("%d new bytes, %v", size, kept)
	}
}

// TestLearnedHostile gives it caches that muster has not written: each is refused as a whole, and nothing of it is
// used.
func TestLearnedHostile(t *testing.T) {
	t.Parallel()
	entry := func(path string) string {
		return fmt.Sprintf(`{"version":2,"modules":[{"path":%q,"size":1,"mtime":1}]}`, path)
	}
	many := learned{Version: learnedVersion, Modules: make([]learnedFile, learnedFilesLimit+1)}
	for i := range many.Modules {
		many.Modules[i].Path = "/a.py"
	}
	manyText, err := json.Marshal(many)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"garbage": "\x00\xff", "not an object": "[]", "another version": `{"version":1}`, "deep": strings.Repeat("[", 1<<19),
		"too long": strings.Repeat(" ", memoryLimit+1) + "{}",
		"relative": entry("a.py"), "parent": entry("/usr/../tmp/a.py"), "no module": entry("/etc/passwd"), "a semicolon": entry("/a;b.py"),
		"a line": entry("/a\n.py"), "NUL": entry("/a\x00.py"), "a quote": entry(`/a".py`), "odd name": entry("/os system.py"),
		"long":       entry("/" + strings.Repeat("a/", 300) + "a.py"),
		"a variable": `{"version":2,"variables":["A=B"]}`, "a refusal": `{"version":2,"refused":["../x"]}`,
		"negative": `{"version":2,"modules":[{"path":"/a.py","size":-1}]}`,
		"too many": string(manyText),
	} {
		m := memory{t.TempDir(), "x.json"}
		if err := os.MkdirAll(memoryDir(m), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(memoryDir(m), m.name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := m.load(); err == nil || len(got.Modules)+len(got.Variables)+len(got.Refused) > 0 || got.Version != learnedVersion {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}

// TestLearnedPlaces: a file or directory that others could have written to is not read, nor written to.
func TestLearnedPlaces(t *testing.T) {
	t.Parallel()
	l := learned{Version: learnedVersion, Variables: []string{"A"}}
	fresh := func() memory {
		m := memory{filepath.Join(t.TempDir(), "cache"), "x.json"}
		if err := m.save(l); err != nil {
			t.Fatal(err)
		}
		return m
	}
	instead := func(path string) error {
		return errors.Join(os.Rename(path, path+"2"), os.Symlink(filepath.Base(path)+"2", path))
	}
	for name, c := range map[string]struct {
		spoil func(m memory) error
		saves bool // it can be replaced by one that is in order
	}{
		"directory for all":       {func(m memory) error { return os.Chmod(memoryDir(m), 0o777) }, false},
		"parent for all":          {func(m memory) error { return os.Chmod(filepath.Join(m.cache, "muster"), 0o777) }, false},
		"cache for all":           {func(m memory) error { return os.Chmod(m.cache, 0o777) }, false},
		"a directory above":       {func(m memory) error { return os.Chmod(filepath.Dir(m.cache), 0o770) }, false},
		"file for all":            {func(m memory) error { return os.Chmod(filepath.Join(memoryDir(m), m.name), 0o666) }, true},
		"link to a directory":     {func(m memory) error { return instead(memoryDir(m)) }, false},
		"link to another one":     {func(m memory) error { return instead(filepath.Join(m.cache, "muster")) }, false},
		"link":                    {func(m memory) error { return instead(filepath.Join(memoryDir(m), m.name)) }, true},
		"FIFO":                    {func(m memory) error { return fifo(filepath.Join(memoryDir(m), m.name)) }, false},
		"no file":                 {func(m memory) error { return directory(filepath.Join(memoryDir(m), m.name)) }, false},
		"half a file":             {func(m memory) error { return os.Truncate(filepath.Join(memoryDir(m), m.name), 11) }, true},
		"somebody else's file":    {func(m memory) error { return os.Chown(filepath.Join(memoryDir(m), m.name), 4711, -1) }, true},
		"somebody else's cache":   {func(m memory) error { return os.Chown(m.cache, 4711, -1) }, false},
		"somebody else's, within": {func(m memory) error { return os.Chown(memoryDir(m), 4711, -1) }, false},
	} {
		if strings.HasPrefix(name, "somebody") && os.Geteuid() != 0 {
			continue // only root can give files away
		}
		m := fresh()
		if got, err := m.load(); err != nil || len(got.Variables) != 1 {
			t.Fatalf("%s, before: %v, %v", name, got, err)
		}
		if err := c.spoil(m); err != nil {
			t.Fatal(err)
		}
		if got, err := m.load(); err == nil || len(got.Variables) > 0 {
			t.Errorf("%s: %v, %v", name, got, err)
		}
		if err := m.save(l); (err == nil) != c.saves {
			t.Errorf("%s: saved: %v", name, err)
		}
		if got, err := m.load(); c.saves && (err != nil || len(got.Variables) != 1) {
			t.Errorf("%s, saved anew: %v, %v", name, got, err)
		}
	}
	if got, err := (memory{}).load(); err != nil || got.Version != learnedVersion || (memory{}).save(got) != nil {
		t.Errorf("without a cache: %v, %v", got, err)
	}
}

// TestLearnedElsewhere has caches that are in order and look odd, and homes in which nothing is to be made.
func TestLearnedElsewhere(t *testing.T) {
	t.Parallel()
	l := learned{Version: learnedVersion, Variables: []string{"A"}}
	sticky := t.TempDir()
	if err := errors.Join(os.Chmod(sticky, 0o777|os.ModeSticky), os.Symlink("real", filepath.Join(sticky, "cache"))); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(sticky, "real"), 0o750); err != nil {
		t.Fatal(err)
	}
	for _, cache := range []string{filepath.Join(sticky, "cache"), filepath.Join(sticky, "not", "yet"), sticky} {
		m := memory{cache, "x.json"}
		if err := m.save(l); err != nil {
			t.Errorf("%s: %v", cache, err)
		}
		if got, err := m.load(); err != nil || len(got.Variables) != 1 {
			t.Errorf("%s: %v, %v", cache, got, err)
		}
	}
	if err := (memory{"/proc/self/cache", "x.json"}).save(l); err == nil {
		t.Error("a cache was made in /proc")
	}
	if os.Geteuid() == 0 { // as sudo has it: root with the home of a user
		home := t.TempDir()
		if err := os.Chown(home, 4711, -1); err != nil {
			t.Fatal(err)
		}
		if err := (memory{filepath.Join(home, ".cache"), "x.json"}).save(l); err == nil ||
			!strings.Contains(err.Error(), "belongs to user 4711") {
			t.Error(err)
		}
		if left, err := os.ReadDir(home); err != nil || len(left) > 0 {
			t.Errorf("%v was made in a user's home by root; %v", left, err)
		}
	}
}

// TestLearnedTogether has two jobs write the same memory at once, and a third read it: it is always a whole one.
func TestLearnedTogether(t *testing.T) {
	t.Parallel()
	m := memory{t.TempDir(), "x.json"}
	l := learned{Version: learnedVersion}
	for i := range 500 {
		l.Variables = append(l.Variables, fmt.Sprintf("V%d", i))
	}
	if err := m.save(l); err != nil {
		t.Fatal(err)
	}
	var writers sync.WaitGroup
	for range 2 {
		writers.Go(func() {
			for range 50 {
				if err := m.save(l); err != nil {
					t.Error(err)
				}
			}
		})
	}
	written := make(chan struct{})
	go func() { writers.Wait(); close(written) }()
	for {
		if got, err := m.load(); err != nil || len(got.Variables) != 500 {
			t.Fatalf("%d, %v", len(got.Variables), err)
		}
		select {
		case <-written:
			if left, err := os.ReadDir(memoryDir(m)); err != nil || len(left) != 1 {
				t.Errorf("%v, %v", left, err)
			}
			return
		default:
		}
	}
}

func memoryDir(m memory) string { return filepath.Join(m.cache, "muster", "warm") }

func fifo(path string) error { return errors.Join(os.Remove(path), unix.Mkfifo(path, 0o600)) }

func directory(path string) error { return errors.Join(os.Remove(path), os.Mkdir(path, 0o700)) }

// TestLearnedBounded: the cache forgets the scripts that were not started for the longest time, and what was begun;
// other files stay.
func TestLearnedBounded(t *testing.T) {
	t.Parallel()
	cache := t.TempDir()
	dir := memoryDir(memory{cache: cache})
	name := func(i int) string { return fmt.Sprintf("%032x.json", i) }
	put := func(name string) {
		path := filepath.Join(dir, name)
		old := time.Now().Add(-24 * time.Hour)
		if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Chtimes(path, old, old)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range memoriesKept + 3 {
		if i == 1 {
			put("package.json")
			put("." + name(7) + ".ABCDEFGH")
		}
		if err := (memory{cache, name(i)}).save(learned{Version: learnedVersion}); err != nil {
			t.Fatal(err)
		}
		old := time.Now().Add(time.Duration(i-1000) * time.Minute)
		if err := os.Chtimes(filepath.Join(dir, name(i)), old, old); err != nil {
			t.Fatal(err)
		}
	}
	var want []string
	for i := range memoriesKept {
		want = append(want, name(i+3))
	}
	want = append(want, "package.json")
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, e := range entries {
		left = append(left, e.Name())
	}
	if diff := cmp.Diff(want, left); diff != "" {
		t.Error(diff)
	}
}
