package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"muster/checkpointd"
)

// launcher is one of the two programs compared. Torchrun's flags follow argv.
type launcher struct {
	name string
	argv []string
}

// job is one run of a launcher. Its processes are known by a mark in their environment, which the launcher and nearly
// all that it starts inherit, so nothing that happened to be running is ever counted or killed.
type job struct {
	cmd    *exec.Cmd
	dir    string // BENCH_DIR of the workers, removed by end
	memory string // where muster keeps checkpoints, which outlive an agent whose guardian is killed, too
	mark   []byte // "BENCH_DIR=..."
	began  time.Time
	done   chan struct{}
}

// jobSpec says how to run a launcher.
type jobSpec struct {
	args   []string // after the launcher's argv
	env    []string // beside what all jobs get
	stdout *os.File // nil: discarded
}

// start runs a launcher. The caller calls end.
func (b *bench) start(ctx context.Context, l launcher, spec jobSpec) (*job, error) {
	dir, err := os.MkdirTemp(b.dir, l.name+"-")
	if err != nil {
		return nil, err
	}
	memory, err := os.MkdirTemp(checkpointd.DefaultMemory, "bench-")
	if err != nil {
		return nil, err
	}
	j := &job{dir: dir, memory: memory, mark: []byte("BENCH_DIR=" + dir), done: make(chan struct{})}
	stderr, err := os.Create(filepath.Join(dir, "stderr"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = stderr.Close() }() // the launcher has its own copy
	argv := append(append([]string{}, l.argv...), spec.args...)
	j.cmd = exec.CommandContext(ctx, argv[0], argv[1:]...)
	j.cmd.Env = append(os.Environ(), "BENCH_DIR="+dir, "TMPDIR="+dir, "OMP_NUM_THREADS=1", "CUDA_VISIBLE_DEVICES=",
		"GLOO_SOCKET_IFNAME=lo", "PYTHONWARNINGS=ignore", "MUSTER_CKPT_MEMORY="+memory)
	j.cmd.Env = append(j.cmd.Env, spec.env...)
	if spec.stdout != nil {
		j.cmd.Stdout = spec.stdout
	}
	j.cmd.Stderr = stderr
	j.began = time.Now()
	//nolint:forbidigo // started as a shell starts it: internal/proc would make this program part of what it measures
	if err := j.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = j.cmd.Wait() // the status is read from ProcessState
		close(j.done)
	}()
	return j, nil
}

// output runs a program to its end and returns what it printed; what it says on standard error is shown.
func (b *bench) output(ctx context.Context, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output() //nolint:forbidigo // an ordinary child of an ordinary program
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return out, nil
}

// wait returns the launcher's exit status, 128+n after signal n, and an error if it did not end within limit.
func (j *job) wait(limit time.Duration) (int, error) {
	select {
	case <-j.done:
	case <-time.After(limit):
		return 0, fmt.Errorf("%s did not end within %v%s", j.cmd.Args[0], limit, j.lastWords())
	}
	status, ok := j.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if ok && status.Signaled() {
		return 128 + int(status.Signal()), nil
	}
	return j.cmd.ProcessState.ExitCode(), nil
}

// succeed waits for status 0, within a minute.
func (j *job) succeed() error {
	status, err := j.wait(time.Minute)
	if err == nil && status != 0 {
		err = fmt.Errorf("%s ended with status %d%s", j.cmd.Args[0], status, j.lastWords())
	}
	return err
}

// lastWords returns the end of what the launcher said, for an error.
func (j *job) lastWords() string {
	content, err := os.ReadFile(filepath.Join(j.dir, "stderr"))
	if err != nil || len(content) == 0 {
		return ""
	}
	return "; it said:\n" + string(content[max(0, len(content)-2000):])
}

// end kills what is left of the job and removes its files.
func (j *job) end() error {
	for deadline := time.Now().Add(10 * time.Second); ; {
		pids := j.processes()
		if len(pids) == 0 {
			break
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("processes %v survive SIGKILL", pids)
		}
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL) // gone already is as good
		}
		time.Sleep(10 * time.Millisecond)
	}
	<-j.done
	return errors.Join(os.RemoveAll(j.memory), os.RemoveAll(j.dir))
}

// processes returns all live processes of the job: the launcher, its helpers, the workers. Those are the processes with
// the mark, and what descends from one of them: a helper may have an environment of its own.
func (j *job) processes() []int {
	children := map[int][]int{}
	var open, found []int
	stats, _ := filepath.Glob("/proc/[0-9]*/stat") // the pattern is well-formed
	for _, path := range stats {
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path))) // digits by the pattern
		stat, err := os.ReadFile(path)
		if err != nil { // it ended meanwhile
			continue
		}
		// "PID (NAME) STATE PARENT ...", where NAME may hold anything.
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		if len(fields) < 2 || fields[0] == "Z" { // a zombie is its parent's business
			continue
		}
		parent, _ := strconv.Atoi(fields[1]) // the kernel writes a number
		children[parent] = append(children[parent], pid)
		environ, err := os.ReadFile(filepath.Join(filepath.Dir(path), "environ"))
		if err == nil && slices.ContainsFunc(bytes.Split(environ, []byte{0}), func(v []byte) bool { return bytes.Equal(v, j.mark) }) {
			open = append(open, pid)
		}
	}
	for len(open) > 0 {
		pid := open[0]
		open = open[1:]
		if !slices.Contains(found, pid) {
			found = append(found, pid)
			open = append(open, children[pid]...)
		}
	}
	return found
}

// stamp is what one worker wrote when it began.
type stamp struct {
	at      time.Time
	rank    int
	attempt int
	pid     int
}

// stamps returns what the workers have written so far.
func (j *job) stamps() ([]stamp, error) {
	content, err := os.ReadFile(filepath.Join(j.dir, "stamps"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	var found []stamp
	for line := range strings.Lines(string(content)) {
		var s stamp
		var seconds, nanoseconds int64
		if _, err := fmt.Sscanf(line, "%d.%d %d %d %d\n", &seconds, &nanoseconds, &s.rank, &s.attempt, &s.pid); err != nil {
			return nil, fmt.Errorf("cannot read stamp %q: %w", line, err)
		}
		s.at = time.Unix(seconds, nanoseconds)
		found = append(found, s)
	}
	return found, nil
}

// survive kills a worker, waits until the job has ended well nevertheless, and returns when it did so and all stamps.
func (j *job) survive(victim stamp) (killed time.Time, all []stamp, err error) {
	killed = time.Now()
	if err := syscall.Kill(victim.pid, syscall.SIGKILL); err != nil {
		return killed, nil, err
	}
	if err := j.succeed(); err != nil {
		return killed, nil, err
	}
	all, err = j.stamps()
	return killed, all, err
}

// waitStamps waits until n workers have begun.
func (j *job) waitStamps(ctx context.Context, n int) ([]stamp, error) {
	for deadline := time.Now().Add(60 * time.Second); ; {
		found, err := j.stamps()
		if err != nil || len(found) >= n {
			return found, err
		}
		select {
		case <-j.done:
			return nil, fmt.Errorf("%s ended before its workers began%s", j.cmd.Args[0], j.lastWords())
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(5 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("%d of %d workers began within a minute%s", len(found), n, j.lastWords())
		}
	}
}
