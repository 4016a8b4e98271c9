package testutil_test

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"muster/internal/testutil"
)

// TestForksProgramOnHost starts such a program on a host: the fork has its network, name, process ids and files, those
// with higher numbers, too, and gets its signals.
func TestForksProgramOnHost(t *testing.T) {
	t.Parallel()
	python := anyPython(t)
	h := testutil.Hosts(t, 1)[0]
	dir := t.TempDir()
	program := filepath.Join(dir, "program")
	if err := testutil.ForksOf(python, "socket", "").Program(program); err != nil {
		t.Fatal(err)
	}
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	var out, errs testutil.Buffer
	c := h.Command(program, "-c", `import os, signal, socket, sys
print(socket.gethostname(), os.getpid() < 1000, [name for _, name in socket.if_nameindex()], os.getcwd(), sys.stdin.read(), flush=True)
print("error", file=sys.stderr, flush=True)
signal.signal(signal.SIGUSR1, lambda *_: os.write(3, b"third"))
signal.signal(signal.SIGTERM, signal.SIG_DFL)
print(os.getpid(), "ready", flush=True)
while True:
    signal.pause()
`)
	c.Dir, c.Stdin, c.Stdout, c.Stderr, c.ExtraFiles = dir, strings.NewReader("input"), &out, &errs, []*os.File{write}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	write.Close()
	testutil.Eventually(t, time.Minute, "the script runs", func() bool { return strings.Contains(out.String(), "ready") })
	want := fmt.Sprintf("%s True ['lo', 'eth0'] %s input\n", h.Name, dir)
	if !strings.HasPrefix(out.String(), want) || errs.String() != "error\n" {
		t.Errorf("%q and %q, want %q", out.String(), errs.String(), want)
	}
	if n := len(h.Processes()); n != 2 {
		t.Errorf("%d processes on the host, want the program and its fork", n)
	}
	if err := c.Process.Signal(syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	third := make([]byte, 5)
	if _, err := io.ReadFull(read, third); err != nil || string(third) != "third" {
		t.Errorf("%q, %v", third, err)
	}
	if err := c.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if status := c.Status(); status != 128+15 {
		t.Errorf("status %d", status)
	}
	if n := len(h.Processes()); n != 0 {
		t.Errorf("%d processes are left", n)
	}
}

// TestForksWithoutProcess: a program whose process cannot import what it should says so at once, and nothing is left of that
// process. A folder whose path is too long for a socket hinders nobody.
func TestForksWithoutProcess(t *testing.T) {
	python := anyPython(t)
	temporary := filepath.Join(t.TempDir(), strings.Repeat("long", 30))
	if err := os.Mkdir(temporary, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", temporary)
	program := filepath.Join(t.TempDir(), "program")
	if err := testutil.ForksOf(python, "socket,tempfile", "").Program(program); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program, "-c", "import sys; print(sys.stdin); sys.exit(7)")
	if out, err := cmd.Output(); cmd.ProcessState.ExitCode() != 7 {
		t.Errorf("%v: %s", err, out)
	}
	t.Setenv("TMPDIR", t.TempDir())
	if err := testutil.ForksOf(python, "no_such_module", "").Program(program); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), program, "-c", "print(1)").CombinedOutput()
	if err == nil || !regexp.MustCompile("FileNotFoundError|ConnectionRefusedError|has ended").Match(out) {
		t.Errorf("%v: %s", err, out)
	}
	testutil.Eventually(t, time.Minute, "its socket is removed", func() bool {
		left, err := os.ReadDir(os.Getenv("TMPDIR"))
		return err == nil && len(left) == 0
	})
}
