package main

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"muster/internal/testutil"
)

// venv is a fresh virtual environment of Python, in which nothing is installed.
type venv struct {
	t    *testing.T
	dir  string
	site string
	own  bool // whether it has a pip of its own, which takes seconds to install
}

func newVenv(t *testing.T, options ...string) venv {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "venv")
	must(t, nil, "python3", append([]string{"-m", "venv", dir}, options...)...)
	return venv{t, dir, the(t, dir, "lib/python3*/site-packages"), len(options) == 0}
}

// bare is a virtual environment that the pip of another Python installs into.
func bare(t *testing.T) venv {
	t.Helper()
	return newVenv(t, "--without-pip")
}

// users is a virtual environment as users have it in a soak test, with a pip of its own, and a bare one otherwise.
func users(t *testing.T) venv {
	t.Helper()
	if !testutil.Soak() {
		return bare(t)
	}
	return newVenv(t)
}

var installedOnce = sync.OnceValues(func() (string, error) {
	dir := filepath.Join(scratch, "installed")
	wheels, err := filepath.Glob(filepath.Join(scratch, "first", "*"+machines[runtime.GOARCH]+".whl"))
	if err != nil || len(wheels) != 1 {
		return "", fmt.Errorf("%q, %w", wheels, err)
	}
	runner, err := pipRunner()
	if err != nil {
		return "", err
	}
	for _, line := range [][]string{
		{"python3", "-m", "venv", "--without-pip", dir},
		{dir + "/bin/python", runner, "--disable-pip-version-check", "install", "--no-index", wheels[0]},
	} {
		cmd := exec.Command(line[0], line[1:]...)
		cmd.Env = append(os.Environ(), "PIP_CONFIG_FILE=/dev/null")
		if said, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("%q: %w\n%s", line, err, said)
		}
	}
	return dir, nil
})

// installed is a virtual environment with our wheel, for tests whose subject is not how it is installed: a copy of one
// for all. In a soak test pip installs into each.
func installed(t *testing.T) venv {
	t.Helper()
	wheel := ourWheel(t)
	if testutil.Soak() {
		v := bare(t)
		if said, err := v.pip("install", "--no-index", wheel); err != nil {
			t.Fatalf("%v\n%s", err, said)
		}
		return v
	}
	first, err := installedOnce()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "venv")
	must(t, nil, "cp", "-a", first, dir)
	return venv{t: t, dir: dir, site: the(t, dir, "lib/python3*/site-packages")}
}

// environ is what an activated environment has. Without a network pip asks nobody, and without its settings it looks
// nowhere.
func (v venv) environ(more ...string) []string {
	return append([]string{
		"PATH=" + v.dir + "/bin:/usr/bin:/bin", "VIRTUAL_ENV=" + v.dir, "PYTHONPATH=", "PIP_CONFIG_FILE=/dev/null",
		"PIP_FIND_LINKS=",
	}, more...)
}

func (v venv) pip(args ...string) (string, error) {
	v.t.Helper()
	line := append(v.pipLine(), args...)
	return did(v.t, v.pipEnviron(), line[0], line[1:]...)
}

func (v venv) pipLine() []string {
	v.t.Helper()
	if v.own {
		return []string{v.dir + "/bin/python", "-m", "pip", "--disable-pip-version-check"}
	}
	runner, err := pipRunner()
	if err != nil {
		v.t.Fatal(err)
	}
	return []string{v.dir + "/bin/python", runner, "--disable-pip-version-check"}
}

// pipRunner is what a Python's own pip runs in the other Python that --python names: to run it saves an import of pip.
var pipRunner = sync.OnceValues(func() (string, error) {
	said, err := exec.Command("python3", "-c", "import pip; print(pip.__path__[0])").Output()
	return filepath.Join(strings.TrimSpace(string(said)), "__pip-runner__.py"), err
})

func (v venv) pipEnviron() []string {
	if v.own {
		return v.environ()
	}
	return []string{"PIP_CONFIG_FILE=/dev/null"}
}

func (v venv) python(args ...string) (string, error) {
	v.t.Helper()
	return did(v.t, v.environ(), v.dir+"/bin/python", args...)
}

func ourWheel(t *testing.T) string {
	t.Helper()
	return the(t, packages(t), "*"+machines[runtime.GOARCH]+".whl")
}

func TestWheelInstallsAndGoes(t *testing.T) {
	t.Parallel()
	wheel, v := ourWheel(t), users(t)
	before := listing(t, v.dir)
	began := time.Now()
	if said, err := v.pip("install", "--no-index", wheel); err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	said := must(t, v.environ(), v.dir+"/bin/muster", "--version")
	t.Logf("pip install and muster --version: %.2f s", time.Since(began).Seconds())
	if strings.TrimSpace(said) != "muster version "+testVersion {
		t.Errorf("muster --version says %q", said)
	}
	if said, err := v.python("-m", "muster", "--version"); err != nil || !strings.HasPrefix(said, "muster version "+testVersion) ||
		strings.Contains(said, "warning") {
		t.Errorf("python -m muster: %v, %s", err, said)
	}
	if said, err := v.python("-c",
		"from importlib.metadata import version as v; import muster, muster.progress; print(v(muster.DISTRIBUTION))"); err != nil ||
		strings.TrimSpace(said) != testPython {
		t.Errorf("the metadata say %q, %v", said, err)
	}
	for _, name := range []string{"muster/py.typed", "muster/checkpoint/__init__.pyi"} {
		if _, err := os.Stat(filepath.Join(v.site, name)); err != nil {
			t.Error(err)
		}
	}
	if said, err := v.python("-c", "import dlrover"); err == nil || !strings.Contains(said, "No module named 'dlrover'") {
		t.Errorf("the wheel brings a package dlrover, which would hide the real one: %v, %s", err, said)
	}
	if said, err := v.python("-c", "import muster.checkpoint"); err == nil || !strings.Contains(said, "install PyTorch for this Python") {
		t.Errorf("without PyTorch: %v, %s", err, said)
	}
	if said, err := v.pip("check"); err != nil {
		t.Errorf("pip check: %s", said)
	}
	if said, err := v.pip("uninstall", "-y", distribution); err != nil {
		t.Errorf("pip uninstall: %v, %s", err, said)
	}
	if err := removeCompiled(v.dir); err != nil {
		t.Fatal(err)
	}
	if after := listing(t, v.dir); after != before {
		t.Errorf("after pip uninstall there is\n%s\nbefore there was\n%s", after, before)
	}
}

// removeCompiled removes what Python itself wrote beside the sources.
func removeCompiled(dir string) error {
	return filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.Name() == "__pycache__" {
			return errSkip(os.RemoveAll(path))
		}
		return err
	})
}

func errSkip(err error) error {
	if err != nil {
		return err
	}
	return filepath.SkipDir
}

// listing names what lies below dir, but for what Python itself writes there.
func listing(t *testing.T, dir string) string {
	t.Helper()
	if err := removeCompiled(dir); err != nil {
		t.Fatal(err)
	}
	return must(t, nil, "find", dir, "-printf", "%P\n")
}

// The package works in a script that no muster has started, with the real PyTorch.
func TestWheelSavesWithoutTheLauncher(t *testing.T) {
	t.Parallel()
	torch := testutil.Torch(t)
	v := installed(t)
	site := strings.TrimSpace(must(t, nil, torch, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"))
	if err := os.WriteFile(filepath.Join(v.site, "torch.pth"), []byte("import site; site.addsitedir('"+site+"')\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	said, err := v.python("-c", `
import sys, torch, muster.checkpoint as c
assert c.__file__.startswith(sys.prefix), c.__file__
k = c.Checkpointer(sys.argv[1])
assert k.save_checkpoint(3, {"w": torch.ones(2)}) and k.wait_latest_checkpoint() == 3
print(c.Checkpointer(sys.argv[1]).load_checkpoint()["w"].sum().item())`, t.TempDir())
	if err != nil || strings.TrimSpace(said) != "2.0" {
		t.Errorf("%v, %s", err, said)
	}
	// The other project's package, installed over ours.
	if err := os.WriteFile(filepath.Join(v.site, "muster/__init__.py"), []byte("class Muster: pass\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if said, err := v.python("-c", "import muster.checkpoint"); err == nil ||
		!strings.Contains(said, "is another project's, which has the same name: pip uninstall muster") {
		t.Errorf("with the other project's package: %v, %s", err, said)
	}
}

// An older muster in front on PATH is told of by both that can tell: the one that is called by its path, and python -m
// muster.
func TestOlderMusterInFront(t *testing.T) {
	t.Parallel()
	v, older := installed(t), t.TempDir()
	if err := os.WriteFile(older+"/muster", []byte("#!/bin/sh\necho muster version v1.0.0\n"),
		0o700); err != nil {
		t.Fatal(err)
	}
	environ := v.environ("PATH=" + older + ":" + v.dir + "/bin:/usr/bin:/bin")
	said := must(t, environ, v.dir+"/bin/muster", "version")
	if !strings.Contains(said, older+"/muster stands in front on PATH and is version v1.0.0, older than this one") {
		t.Errorf("muster version: %s", said)
	}
	said = must(t, environ, v.dir+"/bin/python", "-m", "muster", "--version")
	if !strings.Contains(said, older+"/muster, which stands in front on PATH") || !strings.Contains(said, "muster version "+testVersion) {
		t.Errorf("python -m muster: %s", said)
	}
	// What python -m muster cannot start, it explains.
	if err := os.WriteFile(v.dir+"/bin/muster", []byte("\x7fELF of another machine"), 0o700); err != nil {
		t.Fatal(err)
	}
	if said, err := v.python("-m", "muster", "--version"); err == nil || !strings.Contains(said, "built for another kind of machine") {
		t.Errorf("of another machine: %v, %s", err, said)
	}
	if err := os.Remove(v.dir + "/bin/muster"); err != nil {
		t.Fatal(err)
	}
	if said, err := v.python("-m", "muster", "--version"); err == nil ||
		!strings.Contains(said, "pip install --force-reinstall muster-launch") {
		t.Errorf("without its program: %v, %s", err, said)
	}
}

// pip takes the wheel where it runs, on glibc and on musl, and refuses it where it does not.
func TestWheelPlatforms(t *testing.T) {
	t.Parallel()
	wheel, v := ourWheel(t), bare(t)
	other := map[string]string{"x86_64": "aarch64", "aarch64": "x86_64"}[machines[runtime.GOARCH]]
	foreign := filepath.Join(t.TempDir(), strings.ReplaceAll(filepath.Base(wheel), machines[runtime.GOARCH], other))
	content, err := os.ReadFile(wheel)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(foreign, content, 0o600); err != nil {
		t.Fatal(err)
	}
	if said, err := v.pip("install", "--no-index", foreign); err == nil ||
		!strings.Contains(said, "is not a supported wheel on this platform") {
		t.Errorf("a wheel for %s: %v, %s", other, err, said)
	}
	fits := map[string]bool{
		"manylinux_2_17": true, "manylinux_2_28": false, "manylinux2014": true, "musllinux_1_1": true, "musllinux_1_2": true, "win": false,
	}
	said := must(t, []string{"PIP_CONFIG_FILE=/dev/null", "PIP_DISABLE_PIP_VERSION_CHECK=1"}, "python3", append([]string{
		"-c", `
import sys
from pip._internal.cli.main import main # one import for all
wheels, to, machine, name, *platforms = sys.argv[1:]
for p in platforms:
	status = main(["download", "--no-index", "--no-deps", "--only-binary=:all:", "--find-links", wheels, "--platform", p + "_" + machine,
		"--python-version", "3.12", "-d", to + "/" + p, "--pre", name])
	print("pip for", p, "ended with", status)`, filepath.Dir(wheel), t.TempDir(), machines[runtime.GOARCH], distribution,
	}, slices.Sorted(maps.Keys(fits))...)...)
	for platform, fit := range fits {
		status := "1"
		if fit {
			status = "0"
		}
		if !strings.Contains(said, "pip for "+platform+" ended with "+status+"\n") {
			t.Errorf("%s: fits: %v; %s", platform, fit, said)
		}
	}
}

// Where site-packages cannot be written pip says so, leaves nothing half done, and --target is a way out:
// docs/install.md says it.
func TestReadOnlySitePackages(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		testutil.Missing(t, "root, who can mount a directory read-only")
	}
	wheel, v := ourWheel(t), users(t)
	script := `set -e; mount --bind "$1" "$1"; mount -o remount,bind,ro "$1"; shift; exec "$@"`
	run := func(args ...string) (string, error) {
		cmd := exec.Command("/bin/sh", append(append([]string{"-c", script, "sh", v.dir}, v.pipLine()...), args...)...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS} // Go makes its mounts private
		cmd.Env = append(os.Environ(), v.pipEnviron()...)
		said, err := cmd.CombinedOutput()
		return string(said), err
	}
	if said, err := run("install", "--no-index", wheel); err == nil || !strings.Contains(said, "Read-only file system") {
		t.Errorf("%v, %s", err, said)
	}
	if _, err := os.Stat(v.dir + "/bin/muster"); err == nil {
		t.Error("it was half installed")
	}
	target := t.TempDir()
	if said, err := run("install", "--no-index", "--target", target, wheel); err != nil {
		t.Fatalf("--target: %v, %s", err, said)
	}
	if said := must(t, []string{"PYTHONPATH=" + target}, "python3", "-m", "muster", "--version"); !strings.Contains(said, testVersion) {
		t.Errorf("from --target: %s", said)
	}
	// muster alias in a directory that cannot be written says what to do.
	v = installed(t)
	v.dir += "/bin" // bind it alone
	cmd := exec.Command("/bin/sh", "-c", script, "sh", v.dir, v.dir+"/muster", "alias", "--force", "torchrun")
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	cmd.Env = []string{"PATH=" + v.dir + ":/usr/sbin:/sbin:/usr/bin:/bin"}
	said, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(said), "--dir DIR puts the links where you may write") {
		t.Errorf("muster alias: %v, %s", err, said)
	}
}
