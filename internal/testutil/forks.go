package testutil

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

//go:embed forks.py
var forksScript string

// Forks runs Python scripts in forks of one process that has imported what they share: an import of torch takes two
// seconds of processor time, one of transformers five. It is for tests in which the start of Python is not the subject.
// The process ends with the test binary.
type Forks struct {
	interpreter, modules, path string
	of                         *Forks // whose fork the process is; nil: it starts by itself

	start    sync.Once
	requests *os.File // a socket of packets
	programs string   // the socket at which programs ask
	held     *os.File // the process is killed when it is closed; nil where it is no fork
	err      error
}

//go:embed forks_program.py
var forksProgram string

var (
	forksLock sync.Mutex
	allForks  = map[forksKey]*Forks{}
)

type forksKey struct {
	of                         *Forks
	interpreter, modules, path string
}

// ForksOf returns the forks of an interpreter that has imported modules, given with commas between; path is its
// PYTHONPATH meanwhile.
func ForksOf(interpreter, modules, path string) *Forks {
	return forksOf(forksKey{interpreter: interpreter, modules: modules, path: path})
}

// With returns forks of a process that is a fork itself, and has imported more modules by a PYTHONPATH of its own: torch
// is imported once for packages that lie in several folders. Scripts find those only where their PYTHONPATH says so.
func (f *Forks) With(modules, path string) *Forks {
	return forksOf(forksKey{of: f, interpreter: f.interpreter, modules: modules, path: path})
}

func forksOf(key forksKey) *Forks {
	forksLock.Lock()
	defer forksLock.Unlock()
	if allForks[key] == nil {
		allForks[key] = &Forks{interpreter: key.interpreter, modules: key.modules, path: key.path, of: key.of}
	}
	return allForks[key]
}

// socketpair returns two sockets that are connected; the first one may be waited for.
func socketpair() (ours, theirs *os.File, err error) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot make sockets: %w", err)
	}
	if err := syscall.SetNonblock(fds[0], true); err != nil {
		return nil, nil, fmt.Errorf("cannot make sockets: %w", err)
	}
	return os.NewFile(uintptr(fds[0]), "ours"), os.NewFile(uintptr(fds[1]), "theirs"), nil
}

// mostSocketDir is how long the path of a folder may be, in bytes, that has the folder of a socket in it: the kernel takes 107 for
// the socket.
const mostSocketDir = 70

// open starts the process. It is not waited for: it ends when the socket is closed, as the end of this process does.
func (f *Forks) open() {
	ours, theirs, err := socketpair()
	if err != nil {
		f.err = err
		return
	}
	defer func() { _ = theirs.Close() }()
	at := os.TempDir()
	if len(at) > mostSocketDir {
		at = "/tmp"
	}
	dir, err := os.MkdirTemp(at, "muster-forks-") // which the process removes
	if err != nil {
		f.err = err
		return
	}
	f.programs = filepath.Join(dir, "socket")
	env := append(os.Environ(), "OMP_NUM_THREADS=1", "OPENBLAS_NUM_THREADS=1", "DS_ACCELERATOR=cpu", "HF_HUB_OFFLINE=1",
		"PYTHONPATH="+f.path, "FORKS_NAME="+f.programs)
	if f.of != nil {
		f.err = f.fork(env, theirs)
	} else {
		cmd := exec.CommandContext(context.Background(), f.interpreter, "-c", forksScript, f.modules)
		cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = env, theirs, os.Stderr, os.Stderr
		f.err = cmd.Start()
	}
	if f.err == nil {
		f.requests = ours
	}
}

// fork has another one's process make that of f.
func (f *Forks) fork(env []string, requests *os.File) error {
	if f.of.start.Do(f.of.open); f.of.err != nil {
		return f.of.err
	}
	text, err := request(env, "modules", f.modules)
	if err != nil {
		return err
	}
	ours, theirs, err := socketpair()
	if err != nil {
		return err
	}
	f.held = ours
	return errors.Join(f.of.send(text, os.Stderr, theirs, requests), theirs.Close())
}

// request is what a process is told: the environment, the folder, and a word more.
func request(env []string, name string, value any) ([]byte, error) {
	dir, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	environ := map[string]string{}
	for _, kv := range env {
		name, value, _ := strings.Cut(kv, "=")
		environ[name] = value
	}
	return json.Marshal(map[string]any{name: value, "env": environ, "dir": dir})
}

// Program writes a program at path that runs as Python would with args before its own arguments, in a fork: for what is
// started by somebody else, as a launcher's second half is. It may be started on a Host, where the fork is then, too. The
// fork has the program's files, gets the signals that end processes, and is killed when the program is, a moment later; the
// program ends as the fork does. The fork is no child of the program: it has a session of its own, its umask, limits, nice
// value and processors are those of the process that forks it, and who looks at what the program uses sees nothing.
func (f *Forks) Program(path string, args ...string) error {
	f.start.Do(f.open)
	if f.err != nil {
		return f.err
	}
	text, err := json.Marshal(append([]string{}, args...)) // [] for none
	if err != nil {
		return err
	}
	syscall.ForkLock.RLock() // a process that is started meanwhile would have the file open, and nobody can run it then
	defer syscall.ForkLock.RUnlock()
	return os.WriteFile(path, fmt.Appendf(nil, forksProgram, f.programs, text, f.interpreter), 0o700)
}

// Run runs a script with args, -c and -W among them, as Python would, and returns what it prints to both streams.
// Where ctx ends before, the script is killed; Run returns when it has ended. Its error says how it has ended.
func (f *Forks) Run(ctx context.Context, env []string, args ...string) ([]byte, error) {
	f.start.Do(f.open)
	if f.err != nil {
		return nil, f.err
	}
	output, err := os.CreateTemp("", "forks-")
	if err != nil {
		return nil, err
	}
	defer func() { _, _ = output.Close(), os.Remove(output.Name()) }()
	text, err := request(env, "argv", args)
	if err != nil {
		return nil, err
	}
	status, err := f.ask(ctx, text, output)
	if err != nil {
		return nil, err
	}
	out, err := os.ReadFile(output.Name())
	if err == nil && status != 0 {
		err = fmt.Errorf("exit status %d", status)
	}
	return out, err
}

// ask sends a request and returns the status of the script.
func (f *Forks) ask(ctx context.Context, request []byte, output *os.File) (int, error) {
	ours, theirs, err := socketpair()
	if err != nil {
		return 0, err
	}
	defer func() { _ = ours.Close() }()
	err = f.send(request, output, theirs)
	if err = errors.Join(err, theirs.Close()); err != nil {
		return 0, err
	}
	defer context.AfterFunc(ctx, func() { hangUp(ours) })()
	answer := make([]byte, 16)
	n, err := ours.Read(answer)
	if err != nil {
		return 0, fmt.Errorf("cannot wait for a script in a fork of %s: %w", f.interpreter, errors.Join(err, context.Cause(ctx)))
	}
	return strconv.Atoi(string(answer[:n]))
}

// hangUp has the script of a socket killed. How it has ended can still be read.
func hangUp(file *os.File) {
	if conn, err := file.SyscallConn(); err == nil {
		_ = conn.Control(func(fd uintptr) { _ = syscall.Shutdown(int(fd), syscall.SHUT_WR) })
	}
}

func (f *Forks) send(request []byte, files ...*os.File) error {
	conn, err := f.requests.SyscallConn()
	if err != nil {
		return err
	}
	var fds []int
	for _, file := range files {
		fds = append(fds, int(file.Fd()))
	}
	var sent error
	err = conn.Write(func(fd uintptr) bool {
		sent = syscall.Sendmsg(int(fd), request, syscall.UnixRights(fds...), nil, 0)
		return !errors.Is(sent, syscall.EAGAIN)
	})
	if err = errors.Join(err, sent); err != nil {
		return fmt.Errorf("cannot ask %s for a fork: %w", f.interpreter, err)
	}
	return nil
}
