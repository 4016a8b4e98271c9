package report

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"muster/internal/testutil"
)

// recordedHint is a sample of testdata/hints: lines "# name: value", an empty line, and what the worker said.
type recordedHint struct {
	want string
	exit Exit
}

func readHintSample(t *testing.T, file string) recordedHint {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	head, body, ok := strings.Cut(string(text), "\n\n")
	if !ok || !strings.Contains(head, "\n# source: ") {
		t.Fatalf("%s says nothing about its origin", file)
	}
	s := recordedHint{exit: Exit{LastLines: strings.Split(strings.TrimSuffix(body, "\n"), "\n")}}
	for line := range strings.SplitSeq(head, "\n") {
		name, value, _ := strings.Cut(strings.TrimPrefix(line, "# "), ":")
		value = strings.TrimSpace(value)
		n, err := strconv.Atoi(value)
		switch name {
		case "want":
			s.want, err = value, nil
		case "status":
			s.exit.Code = n
		case "signal":
			s.exit.Signal = syscall.Signal(n)
		case "source":
			err = nil
		default:
			t.Fatalf("%s: unknown %q", file, line)
		}
		if err != nil {
			t.Fatalf("%s: %q: %v", file, line, err)
		}
	}
	return s
}

// TestHintsForRecordedFailures checks what real programs said when they failed. As much is given to the rules as the
// report gives them.
func TestHintsForRecordedFailures(t *testing.T) {
	files, err := filepath.Glob("testdata/hints/*.txt")
	if err != nil || len(files) < 15 {
		t.Fatalf("%d samples, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			s := readHintSample(t, file)
			f := NewFailure(s.exit, Evidence{})
			if f.Cause != s.want || (f.Hint == "") != (s.want == "") {
				t.Errorf("cause %q, want %q; hint %q", f.Cause, s.want, f.Hint)
			}
			s.exit.Code, s.exit.Signal = 0, 0
			if name, hint := hintFor(symptoms{exit: &s.exit, lines: s.exit.LastLines}); name != "" || hint != "" {
				t.Errorf("a success has the hint %q: %q", name, hint)
			}
			s.exit.Code, s.exit.Stopped = 1, true
			if name, _ := hintFor(symptoms{exit: &s.exit, lines: s.exit.LastLines}); name != "" {
				t.Errorf("a worker that muster stopped has the hint %q", name)
			}
		})
	}
}

// fail runs a program that is expected to fail, and returns how it did.
func failing(t *testing.T, dir, program string, args ...string) Exit {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	var out bytes.Buffer
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &out, &out
	cmd.Env = append(os.Environ(), "LC_ALL=C", "OMP_NUM_THREADS=1")
	err := cmd.Run()
	exited, ok := errors.AsType[*exec.ExitError](err)
	if !ok {
		t.Fatalf("%s %q: %v, want a failure\n%s", program, args, err, out.String())
	}
	e := Exit{LastLines: strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n"), Code: exited.ExitCode()}
	if ws := exited.Sys().(syscall.WaitStatus); ws.Signaled() {
		e.Code, e.Signal = 0, ws.Signal()
	}
	return e
}

func wantHint(t *testing.T, e Exit, cause, words string) {
	t.Helper()
	f := NewFailure(e, Evidence{})
	if f.Cause != cause || !strings.Contains(f.Hint, words) {
		t.Errorf("cause %q, want %q; hint %q lacks %q; the program said:\n%s",
			f.Cause, cause, f.Hint, words, strings.Join(e.LastLines, "\n"))
	}
}

// TestHintsForLiveFailures runs small programs that really fail.
func TestHintsForLiveFailures(t *testing.T) {
	testutil.Long(t)
	python, err := exec.LookPath("python3")
	if err != nil {
		testutil.Missing(t, "python3")
	}
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	write("notexec", "#!/bin/sh\nexit 0\n", 0o644)
	write("lostinterpreter", "#!/nonexistent/python\n", 0o755)
	write("raises.py", `import os, sys, traceback
try:
    raise RuntimeError("no batch")
except RuntimeError:
    traceback.print_exc()
for line in sys.argv[1:]:
    print(line, file=sys.stderr)
os.abort()
`, 0o644)
	for _, c := range []struct {
		name, cause, words string
		argv               []string
	}{
		{"port", "port-in-use", "ss -ltnp", []string{python, "-c", `import socket
a = socket.socket(); a.bind(("127.0.0.1", 0)); a.listen()
b = socket.socket(); b.bind(a.getsockname())`}},
		{"module", "module-missing", "module muster_no_such_module:", []string{python, "-c", "import muster_no_such_module.sub"}},
		{"run module", "module-missing", "muster_no_such_module", []string{python, "-m", "muster_no_such_module"}},
		{"script", "command", "muster_gone.py is not there", []string{python, "muster_gone.py"}},
		{"not executable", "command", "chmod +x", []string{"sh", "-c", "./notexec"}},
		{"command", "command", "PATH", []string{"sh", "-c", "muster_no_such_command"}},
		{"interpreter", "command", "first line", []string{"sh", "-c", "./lostinterpreter"}},
		{"files", "too-many-files", "ulimit -n", []string{"sh", "-c", "ulimit -n 40; exec " + python + ` -c '
held = [open("/dev/null") for _ in range(100)]'`}},
		{"host name", "hostname", "getent", []string{python, "-c", `import socket
socket.create_connection(("node-0.invalid", 1))`}},
		{"killed", "killed", "dmesg", []string{"sh", "-c", "kill -KILL $$"}},
		{
			"exception, then abort", "exception", "raised RuntimeError at raises.py:3, and the process then aborted",
			[]string{python, "raises.py", "terminate called without an active exception"},
		},
		{"exception, then abort without a word", "crash", "native code gave up", []string{python, "raises.py"}},
		{"exception, then one of C++", "crash", "an exception of C++", []string{
			python, "raises.py", "terminate called after throwing an instance of 'std::logic_error'", "  what():  no",
		}},
		{"exception, then more work", "crash", "an exception of C++", []string{
			python, "raises.py", "step 8", "terminate called without an active exception",
		}},
		{"abort alone", "crash", "an exception of C++", []string{
			"sh", "-c", "echo terminate called without an active exception; kill -ABRT $$",
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			wantHint(t, failing(t, dir, c.argv[0], c.argv[1:]...), c.cause, c.words)
		})
	}
	t.Run("disk", func(t *testing.T) {
		if os.Geteuid() != 0 {
			testutil.Missing(t, "root, to mount a small tmpfs")
		}
		// The mount lives in a namespace of its own and ends with the program.
		script := "mount -t tmpfs -o size=64k tmpfs . && cd . && exec " + python + ` -c '
open("'"$PWD"'/full", "wb").write(bytes(1 << 20))'`
		wantHint(t, failing(t, t.TempDir(), "unshare", "-m", "sh", "-c", script), "disk-full", "df -h")
	})
}

// TestLastWord: what libraries say while they end a process is less than the exception that has ended it.
func TestLastWord(t *testing.T) {
	raised := []string{
		"[rank3]: Traceback (most recent call last):",
		`[rank3]:   File "/job/train.py", line 3, in <module>`,
		"[rank3]:     step()",
		"[rank3]: RuntimeError: no batch",
		"[rank3]:[W1128 20:59:05.1 ProcessGroupNCCL.cpp:1496] Warning: WARNING: destroy_process_group() was not called",
		"terminate called without an active exception",
		"",
	}
	ignored := append([]string{"Exception ignored in: <function Loader.__del__ at 0x7f>"}, raised...)
	for _, c := range []struct {
		name   string
		signal syscall.Signal
		said   []string
		want   string
	}{
		{"exception, then abort", syscall.SIGABRT, raised, raised[3]},
		{"exception that was ignored, then abort", syscall.SIGABRT, ignored, raised[5]},
		{"abort alone", syscall.SIGABRT, raised[5:], raised[5]},
		{"another signal", syscall.SIGSEGV, raised, raised[5]},
		{"nothing", syscall.SIGABRT, nil, ""},
	} {
		if f := NewFailure(Exit{Signal: c.signal, LastLines: c.said}, Evidence{}); f.LastWord() != c.want {
			t.Errorf("%s: the last word is %q, want %q; cause %q", c.name, f.LastWord(), c.want, f.Cause)
		}
	}
}

// TestHintsForPyTorch lets PyTorch run into a port in use and into a /dev/shm that is too small.
func TestHintsForPyTorch(t *testing.T) {
	python := testutil.Torch(t)
	t.Run("port", func(t *testing.T) {
		t.Parallel()
		wantHint(t, failing(t, t.TempDir(), python, "-c", `import socket
from torch.distributed import TCPStore
s = socket.socket(); s.bind(("127.0.0.1", 0)); s.listen()
TCPStore("127.0.0.1", s.getsockname()[1], 1, True)`), "port-in-use", "ss -ltnp")
	})
	t.Run("shared memory", func(t *testing.T) {
		t.Parallel()
		if os.Geteuid() != 0 {
			testutil.Missing(t, "root, to mount a small /dev/shm")
		}
		dir := t.TempDir()
		program := `import torch
from torch.utils.data import DataLoader
if __name__ == "__main__":
    for batch in DataLoader([torch.zeros(1 << 19)] * 4, batch_size=4, num_workers=1): pass`
		if err := os.WriteFile(filepath.Join(dir, "load.py"), []byte(program), 0o644); err != nil {
			t.Fatal(err)
		}
		wantHint(t, failing(t, dir, "unshare", "-m", "sh", "-c",
			"mount -t tmpfs -o size=1m tmpfs /dev/shm && exec "+python+" load.py"), "shared-memory", "--shm-size")
	})
}

// TestHintsFromKernel covers what only the kernel can tell.
func TestHintsFromKernel(t *testing.T) {
	killed := Exit{Signal: syscall.SIGKILL}
	bus := Exit{Signal: syscall.SIGBUS}
	loader := Exit{Code: 1, LastLines: []string{"RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed. "}}
	counted := Evidence{OOMKills: 1, OOMGroup: "/job"}
	small := Evidence{ShmSize: 64 << 20, ShmFree: 60 << 20}
	large := Evidence{ShmSize: 16 << 30, ShmFree: 8 << 30}
	full := Evidence{ShmSize: 16 << 30}
	lost := Evidence{FullLogs: "/logs"}
	for _, c := range []struct {
		name   string
		exit   Exit
		kernel Evidence
		want   string
	}{
		{"counted", killed, counted, "oom-killer"},
		{"counted, though the worker spoke of a port", Exit{
			Signal: syscall.SIGKILL, LastLines: []string{"Address already in use, trying the next port"},
		}, counted, "oom-killer"},
		{"a DataLoader worker", loader, counted, "oom-killer"},
		{"a DataLoader worker, nothing counted", loader, Evidence{}, "data-loader"},
		{"not counted", killed, Evidence{}, "killed"},
		{"counted, but the worker failed by itself", Exit{Code: 1}, counted, "exit-status"},
		{"bus error, small", bus, small, "shared-memory"},
		{"bus error, full", bus, full, "shared-memory"},
		{"bus error, large", bus, large, "crash"},
		{"bus error, unknown", bus, Evidence{}, "crash"},
		{"segmentation fault, small", Exit{Signal: syscall.SIGSEGV}, small, "crash"},
		{"no room for the output", Exit{Code: 1, LastLines: []string{"step 7"}}, lost, "disk-full"},
		{"no room for what Python held at its end", Exit{Code: pythonUnflushed}, lost, "disk-full"},
		{
			"no room, but the reason was written before",
			Exit{Code: 1, LastLines: []string{"ModuleNotFoundError: No module named 'x'"}},
			lost,
			"module-missing",
		},
		{"no room, killed", killed, lost, "killed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if f := NewFailure(c.exit, c.kernel); f.Cause != c.want {
				t.Errorf("cause %q, want %q", f.Cause, c.want)
			}
		})
	}
}

// TestHintFromErrorFile: a worker under PyTorch's record decorator may say why it failed in its error file only.
func TestHintFromErrorFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "error.json")
	text := `{"message": {"message": "OSError: [Errno 24] Too many open files", "extraInfo": {"py_callstack": "Traceback"}}}`
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if f := NewFailure(Exit{Code: 1, ErrorFile: file}, Evidence{}); f.Cause != "too-many-files" {
		t.Errorf("cause %q", f.Cause)
	}
}
