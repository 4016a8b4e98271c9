package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"muster/internal/testutil"
)

// tool is a program that make deps installs.
func tool(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		testutil.Missing(t, name)
	}
	return path
}

// uv and pipx install the command from the wheel, without a network, and remove it.
func TestInstallers(t *testing.T) {
	t.Parallel()
	wheel, bin := ourWheel(t), testutil.Peer(t, "installers")
	for name, c := range map[string]struct{ install, remove []string }{
		"uv tool": {[]string{bin + "/uv", "tool", "install", "--no-index", wheel}, []string{
			bin + "/uv", "tool", "uninstall",
			distribution,
		}},
		"pipx": {[]string{bin + "/pipx", "install", wheel}, []string{bin + "/pipx", "uninstall", distribution}},
	} {
		home := t.TempDir()
		environ := []string{
			"HOME=" + home, "XDG_CONFIG_HOME=", "XDG_DATA_HOME=", "XDG_CACHE_HOME=", "PIP_CONFIG_FILE=/dev/null", "PIP_NO_INDEX=1",
			"UV_OFFLINE=1", "UV_PYTHON_DOWNLOADS=never", "UV_NO_CONFIG=1", "PATH=" + bin + ":/usr/local/bin:/usr/bin:/bin",
		}
		if name == "pipx" && !testutil.Soak() {
			environ = append(environ, "PIPX_SHARED_LIBS="+sharedPip(t, bin))
		}
		must(t, environ, c.install[0], c.install[1:]...)
		program := filepath.Join(home, ".local/bin/muster")
		if said := must(t, environ, program, "--version"); strings.TrimSpace(said) != "muster version "+testVersion {
			t.Errorf("%s: muster --version says %q", name, said)
		}
		if name == "uv tool" {
			if said := must(t, environ, bin+"/uvx", "--no-index", "--from", wheel, "muster", "--version"); !strings.Contains(said,
				testVersion) {
				t.Errorf("uvx: %s", said)
			}
		}
		must(t, environ, c.remove[0], c.remove[1:]...)
		if _, err := os.Lstat(program); err == nil {
			t.Errorf("%s has left the command behind", name)
		}
	}
}

// sharedPip is a virtual environment with the pip of another one, as pipx makes it for all that it installs. In a soak
// test pipx makes it, which takes seconds.
func sharedPip(t *testing.T, bin string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "shared")
	must(t, nil, bin+"/python", "-m", "venv", "--without-pip", dir)
	site := the(t, dir, "lib/python3*/site-packages")
	for from, to := range map[string]string{
		the(t, bin, "../lib/python3*/site-packages/pip"): site + "/pip", bin + "/pip": dir + "/bin/pip",
	} {
		if err := os.Symlink(from, to); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// pip installs the wheel within 3 s of a processor, to the first answer of muster.
func TestInstallIsQuick(t *testing.T) {
	t.Parallel()
	testutil.SoakOnly(t)
	wheel, v := ourWheel(t), newVenv(t)
	var used time.Duration
	for _, line := range [][]string{
		{v.dir + "/bin/python", "-m", "pip", "install", "--no-index", "--disable-pip-version-check", wheel},
		{v.dir + "/bin/muster", "--version"},
	} {
		cmd := exec.Command(line[0], line[1:]...)
		cmd.Env = append(os.Environ(), v.environ()...)
		if said, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%q: %v\n%s", line, err, said)
		}
		used += cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	}
	if t.Logf("pip install and muster --version: %v of a processor", used); used > 3*time.Second {
		t.Errorf("that is more than 3 s")
	}
}

// enter goes into a root with this machine's /dev and a /proc of its own.
const enter = `mkdir -p "$1/proc" "$1/dev" && mount -t proc proc "$1/proc" && mount --rbind /dev "$1/dev" && exec chroot "$@"`

// rooted runs a command in a root of its own.
func rooted(root string, args ...string) (string, error) {
	cmd := exec.Command("/bin/sh", append([]string{"-c", enter, "sh", root}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS} // Go makes its mounts private
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive"}
	said, err := cmd.CombinedOutput()
	return string(said), err
}

const twoRanks = "[0] rank 0 of 2\n[1] rank 1 of 2\n"

// The Debian package on a Debian that has nothing but what is essential: it installs, a job runs, the package of another
// architecture is refused, and nothing stays behind.
func TestBareDebian(t *testing.T) {
	t.Parallel()
	testutil.SoakOnly(t)
	dir := packages(t)
	release, err := os.ReadFile("/etc/os-release")
	codename := regexp.MustCompile(`(?m)^VERSION_CODENAME=(.+)$`).FindSubmatch(release)
	if err != nil || codename == nil || os.Getuid() != 0 {
		testutil.Missing(t, "root on a Debian")
	}
	root := filepath.Join(t.TempDir(), "root")
	must(t, nil, tool(t, "mmdebstrap"), "--variant=essential", string(codename[1]), root)
	for arch := range machines {
		must(t, nil, "cp", the(t, dir, "*_"+arch+".deb"), filepath.Join(root, arch+".deb"))
	}
	for other := range machines {
		if other != runtime.GOARCH {
			if said, err := rooted(root, "dpkg", "-i", "/"+other+".deb"); err == nil || !strings.Contains(said, "does not match system") {
				t.Errorf("the package for %s: %v, %s", other, err, said)
			}
		}
	}
	if said, err := rooted(root, "dpkg", "-i", "/"+runtime.GOARCH+".deb"); err != nil {
		t.Fatalf("%v, %s", err, said)
	}
	if said, err := rooted(root, "muster", "run", "-n", "2", "--", "sh", "-c", "echo rank $RANK of $WORLD_SIZE"); err != nil ||
		!sameWords(said, twoRanks) {
		t.Errorf("%v, %s", err, said)
	}
	if said, err := rooted(root, "dpkg", "--purge", distribution); err != nil {
		t.Errorf("%v, %s", err, said)
	}
	if _, err := os.Stat(root + "/usr/bin/muster"); err == nil {
		t.Error("muster has stayed")
	}
}

// sameWords compares lines that may come in any order.
func sameWords(a, b string) bool {
	for line := range strings.Lines(b) {
		if strings.Count(a, line) != 1 {
			return false
		}
	}
	return len(a) == len(b)
}

const muslWorker = `#include <stdio.h>
#include <stdlib.h>
int main(void) { printf("rank %s of %s\n", getenv("RANK"), getenv("WORLD_SIZE")); return 0; }
`

// The wheel's program in a root whose only C library is musl, with workers that are linked to it.
func TestBareMusl(t *testing.T) {
	t.Parallel()
	testutil.SoakOnly(t)
	wheel, root := ourWheel(t), t.TempDir()
	if os.Getuid() != 0 {
		testutil.Missing(t, "root, who can change its root")
	}
	gcc := tool(t, "musl-gcc")
	loader := "/lib/ld-musl-" + machines[runtime.GOARCH] + ".so.1"
	for _, name := range []string{"lib", "tmp"} {
		if err := os.Mkdir(filepath.Join(root, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(root+"/worker.c", []byte(muslWorker), 0o600); err != nil {
		t.Fatal(err)
	}
	must(t, nil, gcc, "-o", root+"/worker", root+"/worker.c")
	must(t, nil, "cp", "-L", loader, root+loader)
	must(t, nil, "python3", "-m", "zipfile", "-e", wheel, root+"/wheel")
	program := the(t, root, "wheel/*.data/scripts/muster")
	if err := os.Chmod(program, 0o755); err != nil {
		t.Fatal(err)
	}
	said, err := rooted(root, strings.TrimPrefix(program, root), "run", "-n", "2", "--", "/worker")
	if err != nil || !sameWords(said, twoRanks) {
		t.Errorf("%v, %s", err, said)
	}
}

// The binary for arm64, by an emulator: it starts, and knows what it would run.
func TestOtherArchitecture(t *testing.T) {
	t.Parallel()
	testutil.SoakOnly(t)
	if runtime.GOARCH != "amd64" {
		testutil.Missing(t, "a machine on which arm64 is the other architecture")
	}
	program := the(t, packages(t), "muster-linux-arm64")
	emulator := tool(t, "qemu-aarch64-static")
	if said := must(t, nil, emulator, program, "version"); !strings.Contains(said, testVersion) || !strings.Contains(said, "linux/arm64") {
		t.Errorf("%s", said)
	}
	said := must(t, []string{"XDG_RUNTIME_DIR=" + t.TempDir()}, emulator, program, "run", "-n", "2", "--dry-run", "--", program)
	if !strings.Contains(said, "dry run of muster") || !strings.Contains(said, "rank 1 (local rank 1)") {
		t.Errorf("%s", said)
	}
}
