package probe_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"muster/internal/accel/nvline"
	"muster/internal/accel/probe"
	"muster/internal/testutil"
)

// roleVariable turns the test binary into a process that runs the probe under an obstacle; it prints an outcome.
const roleVariable = "PROBE_TEST_ROLE"

// scratch holds what the tests compile, once for all of them.
var scratch string

func TestMain(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" {
		os.Exit(obstructed(role))
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	var err error
	if scratch, err = os.MkdirTemp("", "probe-test-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(scratch) }()
	code := m.Run()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// outcome is what a process under an obstacle prints.
type outcome struct {
	Via, Err string
	Complete bool
	GPUs     int
}

func obstructed(role string) int {
	fail := func(what string, err error) int {
		fmt.Fprintf(os.Stderr, "%s: %v\n", what, err)
		return 3
	}
	b, err := os.ReadFile(os.Getenv("PROBE_TEST_BLOB"))
	if err != nil {
		return fail("blob", err)
	}
	probe.SetBlob(string(b))
	o := probe.Options{Timeout: 20 * time.Second, Exec: os.Getenv("PROBE_TEST_EXEC")}
	tmp := os.Getenv("TMPDIR")
	for what := range strings.SplitSeq(role, ",") {
		switch what {
		case "no-memfd":
			if err := denyMemfd(); err != nil {
				return fail("seccomp", err)
			}
		case "noexec":
			if err := unix.Mount("none", tmp, "tmpfs", unix.MS_NOEXEC, ""); err != nil {
				return fail("mount", err)
			}
		case "no-proc":
			if err := unix.Mount("none", "/proc", "tmpfs", 0, ""); err != nil {
				return fail("mount", err)
			}
		}
	}
	o.Environ = os.Environ()
	var out outcome
	r, err := probe.Run(context.Background(), o)
	if err != nil {
		out.Err = err.Error()
	} else {
		out = outcome{Via: r.Via, Complete: r.Complete, GPUs: len(r.GPUs)}
	}
	if err := json.NewEncoder(os.Stdout).Encode(out); err != nil {
		return fail("output", err)
	}
	return 0
}

// denyMemfd makes memfd_create fail for this process, as some container runtimes do.
func denyMemfd() error {
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // seccomp_data.nr
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_MEMFD_CREATE, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	runtime.LockOSThread() // no new privileges and the filter are asked for by one thread, for all
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC,
		uintptr(unsafe.Pointer(&prog)))
	runtime.KeepAlive(filter)
	if errno != 0 {
		return errno
	}
	return nil
}

// compiled is the outcome of one compilation for all tests.
type compiled struct {
	once sync.Once
	path string
	err  error
}

func (c *compiled) get(t testing.TB, name string, argv func(path string) *exec.Cmd) string {
	t.Helper()
	testutil.Long(t)
	if _, err := exec.LookPath("gcc"); err != nil {
		testutil.Missing(t, "gcc")
	}
	c.once.Do(func() {
		c.path = filepath.Join(scratch, name)
		if out, err := argv(c.path).CombinedOutput(); err != nil {
			c.err = fmt.Errorf("cannot compile %s: %w\n%s", name, err, out)
		}
	})
	if c.err != nil {
		t.Fatal(c.err)
	}
	return c.path
}

var theProbe, theLibrary, oldLibrary compiled

// realProbe compiles cmd/nvprobe, the way the Makefile does.
func realProbe(t testing.TB) string {
	t.Helper()
	return theProbe.get(t, "nvprobe", func(path string) *exec.Cmd {
		cmd := exec.Command("go", "build", "-trimpath", "-ldflags", `-s -w -linkmode external -extldflags "-Wl,-z,lazy"`, "-o", path,
			"muster/cmd/nvprobe")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=1", "CC=gcc", "GOFLAGS=", "CGO_CFLAGS=-O2 -g0 -Wno-deprecated-declarations")
		return cmd
	})
}

// fakeLibrary compiles the library that stands in for NVIDIA's.
func fakeLibrary(t testing.TB) string {
	t.Helper()
	return theLibrary.get(t, "libnvidia-ml.so.1", func(path string) *exec.Cmd {
		return exec.Command("gcc", "-shared", "-fPIC", "-O1", "-w", "-o", path, "testdata/fakenvml.c")
	})
}

// fakeOldLibrary is fakeLibrary of a driver that does not know of remapped rows.
func fakeOldLibrary(t testing.TB) string {
	t.Helper()
	return oldLibrary.get(t, "libold.so", func(path string) *exec.Cmd {
		return exec.Command("gcc", "-shared", "-fPIC", "-O1", "-w", "-DNO_ROWS", "-o", path, "testdata/fakenvml.c")
	})
}

// options returns options that run the real probe on the fake library with these settings.
func options(t testing.TB, settings ...string) probe.Options {
	t.Helper()
	return with(t, realProbe(t), fakeLibrary(t), settings...)
}

func with(t testing.TB, path, library string, settings ...string) probe.Options {
	t.Helper()
	file := filepath.Join(t.TempDir(), "settings")
	if err := os.WriteFile(file, []byte(strings.Join(settings, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return probe.Options{
		Environ: append(os.Environ(), probe.Variable+"="+path, nvline.LibraryVariable+"="+library, "MUSTER_FAKE_NVML="+file),
		Timeout: 20 * time.Second,
	}
}

// script returns options that run a shell script in place of the probe.
func script(t testing.TB, text string) probe.Options {
	t.Helper()
	path := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o700); err != nil {
		t.Fatal(err)
	}
	return probe.Options{Environ: append(os.Environ(), probe.Variable+"="+path), Timeout: 20 * time.Second}
}
