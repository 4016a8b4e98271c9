package drive

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// Signal sends a signal to muster itself.
func (j *Job) Signal(s syscall.Signal) {
	j.t.Helper()
	if err := j.Process.Signal(s); err != nil {
		j.t.Fatal(err)
	}
}

// Guardians returns the ids of the job's guardian processes.
func (j *Job) Guardians() []int {
	var found []int
	for pid := range Children(j.t, j.Process.Pid) {
		cmdline, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
		if err == nil && strings.Contains(string(cmdline), "_guardian") {
			found = append(found, pid)
		}
	}
	return found
}

// Workers returns the ids of the job's workers: shells that are children of the agent, the oldest first. A shell that a
// worker has forked and left is one for a moment, too, but a younger one.
func (j *Job) Workers(t *testing.T) []int {
	t.Helper()
	var found []int
	for pid := range Children(t, j.Process.Pid) {
		cmdline, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
		if err == nil && strings.HasPrefix(string(cmdline), "sh\x00") {
			found = append(found, pid)
		}
	}
	if len(found) == 0 {
		t.Fatal("no worker runs")
	}
	slices.Sort(found)
	return found
}

// KillWithGuardian leaves nobody who could write what is in memory, or remove it.
func (j *Job) KillWithGuardian() {
	j.t.Helper()
	guardian := j.Guardians()
	for _, hit := range []struct {
		pid int
		sig syscall.Signal
	}{{j.Process.Pid, syscall.SIGSTOP}, {guardian[0], syscall.SIGKILL}, {j.Process.Pid, syscall.SIGKILL}} {
		if err := syscall.Kill(hit.pid, hit.sig); err != nil {
			j.t.Fatal(err)
		}
	}
	j.End()
}
