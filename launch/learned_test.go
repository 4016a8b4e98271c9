package launch

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
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
		return newMemory(cache, warmCommand{form: "script", name: "train.py", probe: []string{"python"}}, python, dir, environ)
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
	for _, p := range []string{m.dir, filepath.Join(m.dir, m.name)} {
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

// TestLearnedHostile gives it caches that muster has not written: each is refused as a whole, and nothing of it is used.
func TestLearnedHostile(t *testing.T) {
	t.Parallel()
	entry := func(path string) string {
		return fmt.Sprintf(`{"version":1,"modules":[{"path":%q,"size":1,"mtime":1}]}`, path)
	}
	many := learned{Version: 1, Modules: make([]learnedFile, learnedFilesLimit+1)}
	for i := range many.Modules {
		many.Modules[i].Path = "/a.py"
	}
	manyText, err := json.Marshal(many)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"garbage": "\x00\xff", "not an object": "[]", "another version": `{"version":2}`, "deep": strings.Repeat("[", 1<<19),
		"too long": strings.Repeat(" ", learnedSizeLimit+1) + "{}",
		"relative": entry("a.py"), "parent": entry("/usr/../tmp/a.py"), "no module": entry("/etc/passwd"), "a semicolon": entry("/a;b.py"),
		"a line": entry("/a\n.py"), "NUL": entry("/a\x00.py"), "a quote": entry(`/a".py`), "odd name": entry("/os system.py"),
		"long":       entry("/" + strings.Repeat("a/", 300) + "a.py"),
		"a variable": `{"version":1,"variables":["A=B"]}`, "a refusal": `{"version":1,"refused":["../x"]}`,
		"negative": `{"version":1,"modules":[{"path":"/a.py","size":-1}]}`,
		"too many": string(manyText),
	} {
		m := memory{filepath.Join(t.TempDir(), "muster", "warm"), "x.json"}
		if err := os.MkdirAll(m.dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(m.dir, m.name), []byte(text), 0o600); err != nil {
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
	fresh := func() memory {
		m := memory{filepath.Join(t.TempDir(), "muster", "warm"), "x.json"}
		l := learned{Version: learnedVersion, Variables: []string{"A"}}
		if err := m.save(l); err != nil {
			t.Fatal(err)
		}
		return m
	}
	for name, spoil := range map[string]func(m memory) error{
		"directory for all": func(m memory) error { return os.Chmod(m.dir, 0o777) },
		"parent for all":    func(m memory) error { return os.Chmod(filepath.Dir(m.dir), 0o777) },
		"file for all":      func(m memory) error { return os.Chmod(filepath.Join(m.dir, m.name), 0o666) },
		"link to a directory": func(m memory) error {
			if err := os.Rename(m.dir, m.dir+"2"); err != nil {
				return err
			}
			return os.Symlink(m.dir+"2", m.dir)
		},
		"link": func(m memory) error {
			p := filepath.Join(m.dir, m.name)
			if err := os.Rename(p, p+"2"); err != nil {
				return err
			}
			return os.Symlink(p+"2", p)
		},
		"no file": func(m memory) error {
			p := filepath.Join(m.dir, m.name)
			if err := os.Remove(p); err != nil {
				return err
			}
			return os.Mkdir(p, 0o700)
		},
	} {
		m := fresh()
		if got, err := m.load(); err != nil || len(got.Variables) != 1 {
			t.Fatalf("%s, before: %v, %v", name, got, err)
		}
		if err := spoil(m); err != nil {
			t.Fatal(err)
		}
		if got, err := m.load(); err == nil || len(got.Variables) > 0 {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	if got, err := (memory{}).load(); err != nil || got.Version != learnedVersion || (memory{}).save(got) != nil {
		t.Errorf("without a cache: %v, %v", got, err)
	}
}

// TestLearnedBounded: the cache forgets the scripts that were not started for the longest time.
func TestLearnedBounded(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "muster", "warm")
	for i := range learnedKept + 3 {
		m := memory{dir, fmt.Sprintf("%03d.json", i)}
		if err := m.save(learned{Version: learnedVersion}); err != nil {
			t.Fatal(err)
		}
		old := time.Now().Add(time.Duration(i-1000) * time.Minute)
		if err := os.Chtimes(filepath.Join(dir, m.name), old, old); err != nil {
			t.Fatal(err)
		}
	}
	left, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(left) > learnedKept || filepath.Base(left[len(left)-1]) != fmt.Sprintf("%03d.json", learnedKept+2) {
		t.Errorf("%d files are left, the last %v; %v", len(left), left[len(left)-1:], err)
	}
}
