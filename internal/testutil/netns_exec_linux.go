package testutil

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// everything is all that a host has for itself.
const everything = unix.CLONE_NEWNET | unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWCGROUP

// enter runs f on a thread that is in the namespaces of the host, or in those of them that what names. The process ids
// of the host are for f's children only.
func (h *Host) enter(what int, f func() error) error {
	return onOwnThread(func() error {
		if h.init == nil {
			return fmt.Errorf("%s is off", h.Name)
		}
		pidfd, err := unix.PidfdOpen(h.init.Process.Pid, 0)
		if err != nil {
			return fmt.Errorf("cannot enter %s: %w", h.Name, err)
		}
		defer func() { _ = unix.Close(pidfd) }()
		if what&unix.CLONE_NEWNS != 0 {
			if err := unix.Unshare(unix.CLONE_FS); err != nil { // threads share their root otherwise
				return err
			}
		}
		if err := unix.Setns(pidfd, what); err != nil {
			return fmt.Errorf("cannot enter %s: %w", h.Name, err)
		}
		return f()
	})
}

// Do runs f on a thread in the network of the host: sockets that f makes belong there, unless it makes them on another
// goroutine.
func (h *Host) Do(f func() error) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.enter(unix.CLONE_NEWNET, f)
}

// HostCommand is a program that runs on a Host, as a child of the test. It is waited for from its start, whether Wait
// is called or not: a dead child that nobody waits for would keep its host from ending.
type HostCommand struct {
	*exec.Cmd
	host  *Host
	ended chan struct{}
	err   error
}

// Command returns a program to run on the host, in the environment of the test but for the host's own temporary
// folders.
func (h *Host) Command(name string, args ...string) *HostCommand {
	return h.CommandContext(context.Background(), name, args...)
}

// CommandContext is Command with a program that is killed when ctx ends.
func (h *Host) CommandContext(ctx context.Context, name string, args ...string) *HostCommand {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, _ = os.Getwd()
	cmd.Env = append(os.Environ(), h.Environ()...)
	return &HostCommand{Cmd: cmd, host: h, ended: make(chan struct{})}
}

// Environ is what points programs to the host's own folders.
func (h *Host) Environ() []string {
	return []string{"TMPDIR=" + filepath.Join(h.Dir, "tmp"), "XDG_RUNTIME_DIR=" + filepath.Join(h.Dir, "run")}
}

// Start starts the program.
func (c *HostCommand) Start() error {
	c.host.mu.Lock()
	defer c.host.mu.Unlock()
	if dir := c.host.cgroup; dir != nil {
		if c.SysProcAttr == nil {
			c.SysProcAttr = &unix.SysProcAttr{}
		}
		c.SysProcAttr.UseCgroupFD, c.SysProcAttr.CgroupFD = true, int(dir.Fd())
	}
	if err := c.host.enter(everything, c.Cmd.Start); err != nil {
		return err
	}
	go func() { // ends with the program, which ends with its host
		c.err = c.Cmd.Wait()
		close(c.ended)
	}()
	return nil
}

// Host returns where the program runs.
func (c *HostCommand) Host() *Host { return c.host }

// Ended is closed when the program has ended.
func (c *HostCommand) Ended() <-chan struct{} { return c.ended }

// Wait waits for the end of the program, any number of times.
func (c *HostCommand) Wait() error {
	<-c.ended
	return c.err
}

// Status waits for the end of the program and returns its exit status, 128+n where signal n killed it.
func (c *HostCommand) Status() int {
	<-c.ended
	status := c.ProcessState.Sys().(syscall.WaitStatus)
	if status.Signaled() {
		return 128 + int(status.Signal())
	}
	return status.ExitStatus()
}

// Run starts the program and waits for its end.
func (c *HostCommand) Run() error {
	if err := c.Start(); err != nil {
		return err
	}
	return c.Wait()
}

// Output runs the program and returns what it wrote to its standard output.
func (c *HostCommand) Output() ([]byte, error) {
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	err := c.Run()
	if err != nil {
		err = fmt.Errorf("%s: %w\n%s", strings.Join(c.Args, " "), err, errs.String())
	}
	return out.Bytes(), err
}

// CombinedOutput runs the program and returns all that it wrote.
func (c *HostCommand) CombinedOutput() ([]byte, error) {
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	err := c.Run()
	return out.Bytes(), err
}

// Process is one process of a host.
type Process struct {
	// PID is its id outside, Inside the one it has on its host.
	PID, Inside int
	// Args is its command line; a zombie has none.
	Args []string
}

// Processes returns what runs on the host, without the process that holds it.
func (h *Host) Processes() []Process {
	h.t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.init == nil {
		return nil
	}
	mine, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", h.init.Process.Pid))
	if err != nil {
		h.t.Fatal(err)
	}
	all, err := filepath.Glob("/proc/[0-9]*/ns/pid")
	if err != nil {
		h.t.Fatal(err)
	}
	var found []Process
	for _, path := range all {
		if ns, err := os.Readlink(path); err != nil || ns != mine {
			continue
		}
		dir := strings.TrimSuffix(path, "/ns/pid")
		status, err := os.ReadFile(dir + "/status")
		if err != nil {
			continue
		}
		p := Process{}
		_, ids, _ := strings.Cut(string(status), "\nNSpid:")
		if _, err := fmt.Sscan(ids, &p.PID, &p.Inside); err != nil || p.Inside == 1 {
			continue
		}
		cmdline, _ := os.ReadFile(dir + "/cmdline")
		if len(cmdline) > 0 {
			p.Args = strings.Split(strings.TrimSuffix(string(cmdline), "\x00"), "\x00")
		}
		found = append(found, p)
	}
	return found
}

// Signal sends a signal to the process that has this id on the host, and reports whether there is one.
func (h *Host) Signal(inside int, sig syscall.Signal) bool {
	h.t.Helper()
	for _, p := range h.Processes() {
		if p.Inside != inside {
			continue
		}
		if err := unix.Kill(p.PID, sig); err != nil && !errors.Is(err, unix.ESRCH) {
			h.t.Fatalf("cannot signal process %d of %s: %v", inside, h.Name, err)
		}
		return true
	}
	return false
}

// String returns the id that the process has on its host, and its command line.
func (p Process) String() string { return strconv.Itoa(p.Inside) + " " + strings.Join(p.Args, " ") }
