package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"muster/internal/testutil"
)

func TestVersionForms(t *testing.T) {
	t.Parallel()
	// In rising order.
	forms := []struct{ text, python, debian string }{
		{"v0.0.0-70-gabcdef012", "0.0.0.post70+gabcdef012", "0.0.0+70.gabcdef012"},
		{"v1.2.3-alpha.1", "1.2.3a1", "1.2.3~alpha.1"},
		{"v1.2.3-rc.1", "1.2.3rc1", "1.2.3~rc.1"},
		{"v1.2.3-rc.1-4-gabcdef012", "1.2.3rc1.post4+gabcdef012", "1.2.3~rc.1+4.gabcdef012"},
		{"v1.2.3", "1.2.3", "1.2.3"},
		{"v1.2.3-4-gabcdef012", "1.2.3.post4+gabcdef012", "1.2.3+4.gabcdef012"},
		{"v1.2.3-10-gabcdef012-dirty", "1.2.3.post10+gabcdef012.dirty", "1.2.3+10.gabcdef012+dirty"},
		{"v1.10.0", "1.10.0", "1.10.0"},
	}
	var pythons []string
	for i, f := range forms {
		v, err := parseVersion(f.text)
		if err != nil {
			t.Errorf("%s: %v", f.text, err)
			continue
		}
		if got, err := v.python(); got != f.python || err != nil {
			t.Errorf("%s is %s to Python, %v; want %s", f.text, got, err, f.python)
		}
		if got := v.debian(); got != f.debian {
			t.Errorf("%s is %s to Debian, want %s", f.text, got, f.debian)
		}
		if got := v.tag(); got != f.text {
			t.Errorf("%s comes back as %s", f.text, got)
		}
		pythons = append(pythons, f.python)
		if i > 0 {
			if said, err := did(t, nil, "dpkg", "--compare-versions", forms[i-1].debian, "lt", f.debian); err != nil {
				t.Errorf("dpkg does not take %s for newer than %s: %s", f.debian, forms[i-1].debian, said)
			}
		}
	}
	for _, wrong := range []string{"", "1.2.3", "v1.2", "v1.2.3-final.1", "v1.2.3+x", "devel"} {
		if _, err := parseVersion(wrong); err == nil {
			t.Errorf("%q is taken for a version", wrong)
		}
	}
	must(t, nil, "python3", "-c", `
import sys
from pip._vendor.packaging.version import Version
given = sys.argv[1:]
assert [str(Version(v)) for v in given] == given, given
assert sorted(given, key=Version) == given, sorted(given, key=Version)`,
		pythons[0], pythons[1], pythons[2], pythons[3], pythons[4], pythons[5], pythons[6], pythons[7])
}

// The version of a checkout is its tag, and how far it is behind it.
func TestVersionOfACheckout(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	script, err := os.ReadFile("../version.sh")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "scripts"), 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "scripts/version.sh")
	if err := os.WriteFile(path, script, 0o700); err != nil {
		t.Fatal(err)
	}
	environ := []string{
		"GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a", "GIT_COMMITTER_NAME=a",
		"GIT_COMMITTER_EMAIL=a", "GIT_CEILING_DIRECTORIES=" + filepath.Dir(dir), "VERSION=",
	}
	git := func(args ...string) { must(t, environ, "git", append([]string{"-C", dir}, args...)...) }
	is := func(want string) {
		t.Helper()
		got := strings.TrimSpace(must(t, environ, "bash", path)) // to execute what was just written may be refused as "text file busy"
		if begins, open := strings.CutSuffix(want, "*"); got != want && (!open || !strings.HasPrefix(got, begins)) {
			t.Errorf("the version is %s, want %s", got, want)
		}
	}
	is("v0.0.0")
	git("init", "-q")
	is("v0.0.0")
	git("add", ".")
	git("commit", "-qm", "one")
	is("v0.0.0-1-g*")
	git("tag", "other")
	is("v0.0.0-1-g*")
	git("tag", "v1.2.3-rc.1")
	is("v1.2.3-rc.1")
	git("commit", "-qm", "two", "--allow-empty")
	is("v1.2.3-rc.1-1-g*")
	git("tag", "v1.2.3")
	is("v1.2.3")
	if err := os.WriteFile(path, append(script, '\n'), 0o700); err != nil {
		t.Fatal(err)
	}
	is("v1.2.3-dirty")
	if said, err := did(t, append(environ, "VERSION=1.2"), path); err == nil || !strings.Contains(said, "1.2 is no semantic version") {
		t.Errorf("a wrong VERSION: %v, %s", err, said)
	}
}

// The types that users' checkers see are those of the code.
func TestStubIsOfTheCode(t *testing.T) {
	t.Parallel()
	testutil.Long(t)
	const at = "../../internal/python/checkpoint/muster/checkpoint/"
	must(t, nil, "python3", "testdata/stubs.py", at+"__init__.pyi", at+"_checkpointer.py", at+"_sharded.py", at+"_files.py",
		at+"_safetensors.py")
}
