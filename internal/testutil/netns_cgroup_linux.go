package testutil

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// A host is the root of cgroups of its own, as agents on different machines may well use one name. Where there is no
// cgroup v2 that may be written to, the hosts share what there is.
//
// Cgroups are directories, and outlive a test that was killed: they are empty then, carry its process id, and the next
// test removes them.

const cgroupMark = "hosts-"

// cgroupRoot returns the cgroup v2 directory that this process is in.
func cgroupRoot() (string, error) {
	mounts, err := os.Open("/proc/self/mounts")
	if err != nil {
		return "", err
	}
	defer func() { _ = mounts.Close() }()
	lines := bufio.NewScanner(mounts)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 3 || fields[2] != "cgroup2" {
			continue
		}
		own, err := os.ReadFile("/proc/self/cgroup")
		if err != nil {
			return "", err
		}
		for line := range strings.Lines(string(own)) {
			if path, ok := strings.CutPrefix(line, "0::"); ok {
				return filepath.Join(fields[1], strings.TrimSpace(path)), nil
			}
		}
	}
	return "", errors.New("no cgroup v2")
}

// openCgroup makes a cgroup for the host and returns its directory, nil where that cannot be.
func (h *Host) openCgroup() *os.File {
	root, err := cgroupRoot()
	if err != nil {
		return nil
	}
	stale, _ := filepath.Glob(filepath.Join(root, cgroupMark+"*"))
	for _, dir := range stale {
		var pid int
		if _, err := fmt.Sscanf(filepath.Base(dir), cgroupMark+"%d-", &pid); err == nil && errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
			removeCgroup(dir)
		}
	}
	dir, err := os.MkdirTemp(root, fmt.Sprintf("%s%d-%s-", cgroupMark, os.Getpid(), h.Name))
	if err != nil {
		return nil
	}
	file, err := os.Open(dir)
	if err != nil {
		return nil
	}
	return file
}

func (h *Host) dropCgroup() {
	if h.cgroup != nil {
		removeCgroup(h.cgroup.Name())
		_ = h.cgroup.Close()
		h.cgroup = nil
	}
}

// removeCgroup removes a cgroup and those below it, in so far as they are empty.
func removeCgroup(dir string) {
	below, _ := os.ReadDir(dir)
	for _, e := range below {
		if e.IsDir() {
			removeCgroup(filepath.Join(dir, e.Name()))
		}
	}
	_ = os.Remove(dir)
}
