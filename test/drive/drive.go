// Package drive is what tests that drive the real muster have in common: the binary, which is built once for all of them,
// jobs that run, commands beside them, and what they leave behind. The tests lie beside it, by what they are of.
package drive

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// launchers are names under which muster runs, as links that users make.
var launchers = []string{"torchrun", "dlrover-run", "accelerate", "deepspeed", "colossalai", "horovodrun", "mpirun"}

// Main is the TestMain of a package whose tests start muster: it builds muster, puts it on PATH under all of its names,
// and runs the tests.
func Main(m *testing.M) {
	Prepare()
	if dir := os.Getenv("MUSTER_COVER"); dir != "" { // make cover: where each process of muster leaves what it has run
		if err := os.Setenv("GOCOVERDIR", dir); err != nil { // in the place of go test's own, which keeps that of tests alone
			panic(err)
		}
	}
	dir, err := build()
	if err != nil {
		fmt.Fprintln(os.Stderr, "cannot build muster for the tests:", err)
		os.Exit(1)
	}
	if err := os.Setenv("PATH", dir+":"+os.Getenv("PATH")); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// makeDir makes a directory for all tests of this process. It is removed when this process has ended, however it has.
func makeDir(pattern string) (string, error) {
	dir, err := os.MkdirTemp("", pattern)
	if err != nil {
		return "", err
	}
	remover := exec.Command("sh", "-c", `trap "" HUP INT TERM; read -r _; rm -rf "$1"`, "sh", dir)
	remover.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdin, err := remover.StdinPipe()
	if err == nil {
		madeDirs = append(madeDirs, stdin)
		err = remover.Start()
	}
	return dir, err
}

// madeDirs are pipes, one for each directory, which the end of this process closes.
var madeDirs []io.Closer

// Prepare makes of the surroundings of go test those that people have.
func Prepare() {
	Root()                              // before a test changes the directory
	if signal.Ignored(syscall.SIGHUP) { // by nohup, in front of go test: what the tests start would ignore it, too
		signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	}
	if python, err := PlainPython(); err == nil { // else each Python of a worker begins as a shim's shell scripts
		_ = os.Setenv("PATH", filepath.Dir(python)+":"+os.Getenv("PATH"))
	}
}

// PlainPython is the interpreter behind python3: PATH may lead to a shim.
var PlainPython = sync.OnceValues(func() (string, error) {
	out, err := exec.Command("python3", "-c", "import sys; print(sys.executable)").Output()
	return strings.TrimSpace(string(out)), err
})

// Root is the directory of this checkout. Go runs tests in the directories of their packages.
var Root = sync.OnceValue(func() string {
	dir, err := os.Getwd()
	for ; err == nil && dir != "/"; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
	}
	panic("these tests run in a checkout of muster alone")
})

// build builds muster, with the race detector where the tests have it, and returns the directory where it lies under all
// of its names. Packages whose tests run at the same time wait for the first of them; go build then finds that there is
// nothing to do, which takes it 0.4 s of processor time. This muster looks for jobs where XDG_RUNTIME_DIR and TMPDIR say, and
// not in the directories of all users, too: other jobs of this user may run on the machine, or may have left something.
func build() (dir string, err error) {
	name := "plain"
	args := []string{"build", "-ldflags=-w -X muster/internal/durable.systemTemporaries="}
	if raceDetector {
		name, args = "race", append(args, "-race")
	}
	if os.Getenv("MUSTER_COVER") != "" {
		name, args = name+"-cover", append(args, "-cover", "-coverpkg=./...")
	}
	dir = filepath.Join(Root(), "build", "drive", name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	lock, err := os.OpenFile(dir+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", err
	}
	defer func() { _ = lock.Close() }()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return "", err
	}
	cmd := exec.Command("go", append(args, "-o", filepath.Join(dir, "muster"), "./cmd/muster")...)
	cmd.Dir = Root()
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	for _, link := range launchers {
		if err := os.Symlink("muster", filepath.Join(dir, link)); err != nil && !errors.Is(err, fs.ErrExist) {
			return "", err
		}
	}
	return dir, nil
}

// sources looks at all files that muster is built from. Go keeps the result of a package's tests while the files at which
// they have looked are as they were, and does not know by itself that these tests are of the whole program.
var sources = sync.OnceFunc(func() {
	_ = filepath.WalkDir(Root(), func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (path == filepath.Join(Root(), "build") || strings.HasPrefix(d.Name(), ".") && path != Root()):
			return filepath.SkipDir
		case d.Type().IsRegular():
			_, err = os.Stat(path)
		}
		return err
	})
})
