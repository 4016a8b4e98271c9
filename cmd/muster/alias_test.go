package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"muster/internal/onpath"
	"muster/test/drive"
)

// aliasBench is a place with directories for PATH, in which muster is a link, as installers of Python's tools make it.
type aliasBench struct {
	t              *testing.T
	bin, real, old string // in this order on PATH, unless a test says otherwise
	path           string
}

func newAliasBench(t *testing.T) *aliasBench {
	t.Helper()
	dir := t.TempDir()
	b := &aliasBench{t: t, bin: filepath.Join(dir, "bin"), real: filepath.Join(dir, "real"), old: filepath.Join(dir, "old")}
	for _, d := range []string{b.bin, b.real, b.old} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(self, filepath.Join(b.bin, "muster")); err != nil {
		t.Fatal(err)
	}
	b.path = b.bin + ":" + b.real + ":" + b.old
	return b
}

func (b *aliasBench) script(path, text string) {
	b.t.Helper()
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
		b.t.Fatal(err)
	}
}

// run calls the program at path, and returns its status and what it said.
func (b *aliasBench) run(path string, args ...string) (status int, stdout, stderr string) {
	b.t.Helper()
	cmd := exec.Command(path, args...)
	cmd.Env = append(drive.CleanEnviron(), "PATH="+b.path)
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); cmd.ProcessState == nil {
		b.t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

func (b *aliasBench) muster(args ...string) (status int, stdout, stderr string) {
	b.t.Helper()
	return b.run(filepath.Join(b.bin, "muster"), args...)
}

func TestAliasMakesLinksThatRun(t *testing.T) {
	t.Parallel()
	b := newAliasBench(t)
	if status, out, errs := b.muster("alias", "torchrun", "deepspeed"); status != 0 || errs != "" ||
		!strings.Contains(out, "torchrun -> muster") {
		t.Fatalf("status %d, stdout %q, stderr %q", status, out, errs)
	}
	if to, err := os.Readlink(filepath.Join(b.bin, "deepspeed")); err != nil || to != "muster" {
		t.Errorf("the link leads to %q, %v", to, err)
	}
	if status, out, errs := b.run(filepath.Join(b.bin, "torchrun"), "--standalone", "--nproc-per-node=1", "--no-python", "/bin/echo",
		"works"); status != 0 || !strings.Contains(out, "works") {
		t.Errorf("through the link: status %d, stdout %q, stderr %q", status, out, errs)
	}
	if status, _, errs := b.muster("alias", "torchrun"); status != 0 { // once more
		t.Errorf("again: status %d, %s", status, errs)
	}
	if status, _, errs := b.muster("alias", "--remove", "torchrun", "deepspeed"); status != 0 {
		t.Errorf("--remove: status %d, %s", status, errs)
	}
	if left, _ := filepath.Glob(filepath.Join(b.bin, "*")); len(left) != 1 {
		t.Errorf("left behind: %q", left)
	}
}

func TestAliasShadowsNoLauncherUnasked(t *testing.T) {
	t.Parallel()
	b := newAliasBench(t)
	later := filepath.Join(b.real, "torchrun")
	b.script(later, "echo the real one")
	status, _, errs := b.muster("alias", "deepspeed", "torchrun")
	if status != 2 || !strings.Contains(errs, later) || !strings.Contains(errs, "--force") {
		t.Errorf("a launcher later on PATH: status %d, stderr %q", status, errs)
	}
	if _, err := os.Lstat(filepath.Join(b.bin, "deepspeed")); err == nil {
		t.Error("one link was made although the other was refused")
	}
	if status, _, errs := b.muster("alias", "--force", "torchrun"); status != 0 {
		t.Errorf("--force: status %d, stderr %q", status, errs)
	}
}

func TestAliasKeepsTheFileInItsPlace(t *testing.T) {
	t.Parallel()
	b := newAliasBench(t)
	at := filepath.Join(b.bin, "torchrun")
	b.script(at, "echo the real one")
	if status, _, errs := b.muster("alias", "torchrun"); status != 2 || !strings.Contains(errs, at) {
		t.Errorf("a launcher in its place: status %d, stderr %q", status, errs)
	}
	if status, _, errs := b.muster("alias", "--force", "torchrun"); status != 0 {
		t.Fatalf("--force: status %d, stderr %q", status, errs)
	}
	if _, out, _ := b.run(at + onpath.KeptSuffix); out != "the real one\n" {
		t.Errorf("what was kept says %q", out)
	}
	if status, _, errs := b.muster("alias", "--remove", "torchrun"); status != 0 {
		t.Fatalf("--remove: status %d, stderr %q", status, errs)
	}
	if _, out, _ := b.run(at); out != "the real one\n" {
		t.Errorf("what was put back says %q", out)
	}
	if status, _, errs := b.muster("alias", "--remove", "torchrun"); status != 2 || !strings.Contains(errs, "no link") {
		t.Errorf("--remove of a real launcher: status %d, stderr %q", status, errs)
	}
}

func TestAliasBadInput(t *testing.T) {
	t.Parallel()
	b := newAliasBench(t)
	b.script(filepath.Join(b.bin, "mpirun"), "")
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"alias"}, "there is no name"},
		{[]string{"alias", "tochrun"}, "tochrun"},
		{[]string{"alias", "run"}, "under the name"},
		{[]string{"alias", "../torchrun"}, "muster does not run under"},
		{[]string{"alias", "--dir", filepath.Join(b.bin, "absent"), "torchrun"}, "make the directory first"},
		{[]string{"alias", "--dir", "/proc", "torchrun"}, "--dir DIR puts the links where you may write"},
		{[]string{"alias", "--force", "--remove", "torchrun"}, "force"},
	} {
		status, _, errs := b.muster(c.args...)
		if status != 2 || !strings.Contains(errs, c.want) {
			t.Errorf("muster %q: status %d, stderr %q lacks %q", c.args, status, errs, c.want)
		}
	}
}

func TestAliasTellsWhyItWillNotBeFound(t *testing.T) {
	t.Parallel()
	b := newAliasBench(t)
	b.script(filepath.Join(b.real, "torchrun"), "")
	b.path = b.real + ":" + b.bin
	if status, _, errs := b.muster("alias", "torchrun"); status != 0 || !strings.Contains(errs,
		filepath.Join(b.real, "torchrun")+" stands in front on PATH: that one runs, not muster; put the link there (--dir "+
			b.real+" --force)") {
		t.Errorf("status %d, stderr %q", status, errs)
	}
	b.path = b.real + ":" + b.bin
	if status, _, errs := b.muster("alias", "--dir", b.old, "deepspeed"); status != 0 || !strings.Contains(errs, "is not on PATH") {
		t.Errorf("status %d, stderr %q", status, errs)
	}
	if to, err := os.Readlink(filepath.Join(b.old, "deepspeed")); err != nil || to != filepath.Join(b.bin, "muster") {
		t.Errorf("a link in another directory leads to %q, %v", to, err)
	}
}

func TestVersionTellsOfAnOlderMusterInFront(t *testing.T) {
	t.Parallel()
	b := newAliasBench(t)
	older := filepath.Join(b.old, "muster")
	b.script(older, "echo muster version v0.0.0-1-gabcdef0")
	if status, out, errs := b.muster("version"); status != 0 || !strings.Contains(out, "muster version ") ||
		!strings.Contains(errs, older+" is on PATH, too, and is version v0.0.0-1-gabcdef0") ||
		!strings.Contains(errs, "muster runs this one") {
		t.Errorf("behind: status %d, stdout %q, stderr %q", status, out, errs)
	}
	b.path = b.old + ":" + b.bin
	if _, _, errs := b.muster("version"); !strings.Contains(errs, older+" stands in front on PATH and is version v0.0.0-1-gabcdef0") {
		t.Errorf("in front: stderr %q", errs)
	}
	b.script(older, "exit 1")
	_, out, errs := b.muster("version", "--json")
	var about aboutVersion
	if err := json.Unmarshal([]byte(out), &about); err != nil || errs != "" {
		t.Fatalf("%v, stderr %q", err, errs)
	}
	if len(about.Others) != 1 || about.Others[0] != (onpath.Muster{Path: older, InFront: true}) || about.Version == "" || about.Arch == "" {
		t.Errorf("JSON says %s", out)
	}
	if status, _, _ := b.muster("version", "extra"); status != 2 {
		t.Errorf("an argument too many: status %d", status)
	}
}
