package drive

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"muster/internal/testutil"
)

// Processes returns the ids of the processes whose command line holds mark, zombies excluded: they have none.
func Processes(t *testing.T, mark string) []int {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		cmdline, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err == nil && bytes.Contains(cmdline, []byte(mark)) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// Children returns the ids and states of the direct children of pid.
func Children(t *testing.T, pid int) map[int]string {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	found := map[int]string{}
	for _, e := range entries {
		stat, err := os.ReadFile(filepath.Join("/proc", e.Name(), "stat"))
		if err != nil {
			continue
		}
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		if child, err := strconv.Atoi(e.Name()); err == nil && len(fields) > 1 && fields[1] == strconv.Itoa(pid) {
			found[child] = fields[0]
		}
	}
	return found
}

// standing describes a process and what it has started, for who has to tell a job that stands still from one that is
// slow.
func standing(t *testing.T, pid int) string {
	t.Helper()
	read := func(name string) string {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, name))
		return strings.TrimSpace(string(text))
	}
	stat := read("stat")
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(fields) < 15 {
		return "" // it is gone
	}
	text := []string{
		fmt.Sprintln(pid, read("comm"), fields[0], read("wchan"), fields[11:15], strings.ReplaceAll(read("cmdline"), "\x00", " ")),
	}
	for child := range Children(t, pid) {
		text = append(text, standing(t, child))
	}
	return strings.Join(text, "")
}

// NothingLeft fails the test unless every process marked with mark, and every file of the job, is gone soon.
func (j *Job) NothingLeft(mark string) {
	j.t.Helper()
	testutil.Eventually(j.t, 20*time.Second, "every process of the job is gone", func() bool { return len(Processes(j.t, mark)) == 0 })
	testutil.Eventually(j.t, 20*time.Second, "the run directory is gone", func() bool {
		left, _ := filepath.Glob(filepath.Join(j.RuntimeDir, "muster", "job-*"))
		return len(left) == 0
	})
	testutil.Eventually(j.t, 20*time.Second, "muster and its guardian are gone", func() bool {
		return len(Processes(j.t, j.RuntimeDir)) == 0
	})
	if left, err := os.ReadDir(j.Memory); err != nil || len(left) > 0 {
		j.t.Errorf("left in shared memory: %v, %v", left, err)
	}
}
