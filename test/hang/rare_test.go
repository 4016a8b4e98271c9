package hang

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"muster/launch/diagnose"
)

// rareWays are those that need what a kernel or a machine may not allow: a limit of cores and of memory by control
// groups, and a file system that stands still. What is not allowed is told, and left out.
func rareWays(t *testing.T) (ways []hangWay) {
	t.Helper()
	if dir := controlGroup(t, "cpu", "cpu.cfs_quota_us", "1000", "cpu.max", "1000 100000"); dir != "" {
		ways = append(ways, hangWay{
			way: "throttled", kind: diagnose.Starved,
			says: []string{
				"it is throttled: a limit of its control group kept it from every core for ", "; it is at hang.py:",
				"in loops",
			},
			during: func(t *testing.T, pid int) { moved(t, dir, pid) },
			undo: func(t *testing.T, _ string, pid int, _ diagnose.Verdict) {
				moved(t, filepath.Dir(dir), pid)
				signalled(t, pid, syscall.SIGUSR1)
			},
		})
	}
	if dir := controlGroup(t, "memory", "memory.limit_in_bytes", "16M", "memory.max", "16M"); dir != "" {
		ways = append(ways, hangWay{
			way: "thrash", kind: diagnose.Memory,
			says: []string{"it waits for pages of its memory, which are read from a disk (", "or it reads a file that it has mapped"},
			prepare: func(t *testing.T, ready string) {
				text := make([]byte, 1<<20)
				f, err := os.Create(ready + ".big")
				for range 256 {
					if err == nil {
						_, err = f.Write(text)
					}
				}
				if err == nil {
					err = f.Sync()
				}
				if err == nil { // pages that are in memory already belong to this process, and are under no limit
					err = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
				}
				if err != nil {
					t.Fatal(err)
				}
				f.Close()
			},
			during: func(t *testing.T, pid int) { moved(t, dir, pid) },
			undo: func(t *testing.T, _ string, pid int, _ diagnose.Verdict) {
				moved(t, filepath.Dir(dir), pid)
				signalled(t, pid, syscall.SIGUSR1)
			},
		})
	}
	if image, loop := filepath.Join(t.TempDir(), "image"), ""; ran(t, "truncate", "-s", "16M", image) && ran(t, "mkfs.ext4", "-q", image) {
		ways = append(ways, hangWay{
			way: "frozen", kind: diagnose.Blocked,
			says: []string{"it waits in the kernel, where no signal reaches it (process ", "state D"},
			prepare: func(t *testing.T, ready string) {
				dir := ready + ".frozen"
				if err := os.Mkdir(dir, 0o700); err != nil {
					t.Fatal(err)
				}
				if !ran(t, "mount", "-o", "loop", image, dir) || !ran(t, "fsfreeze", "-f", dir) {
					t.Fatal("a file system in a file could be made, and not be frozen")
				}
				loop = dir
				t.Cleanup(func() { ran(t, "umount", "-l", dir) })
			},
			undo: func(t *testing.T, _ string, _ int, _ diagnose.Verdict) { ran(t, "fsfreeze", "-u", loop) },
		})
	}
	return ways
}

// ran runs a command, and says why it has failed.
func ran(t *testing.T, name string, args ...string) bool {
	t.Helper()
	out, err := exec.CommandContext(context.WithoutCancel(t.Context()), name, args...).CombinedOutput() // in a clean-up, too
	if err != nil {
		t.Logf("left out: %s: %v\n%s", name, err, out)
	}
	return err == nil
}

// controlGroup makes a control group with a limit, of version 1 or 2; it is empty where the kernel does not allow that.
func controlGroup(t *testing.T, controller, v1, limit1, v2, limit2 string) string {
	t.Helper()
	for _, c := range []struct{ dir, file, limit string }{
		{filepath.Join("/sys/fs/cgroup", controller), v1, limit1}, {"/sys/fs/cgroup", v2, limit2}, {"/sys/fs/cgroup/unified", v2, limit2},
	} {
		dir := filepath.Join(c.dir, "muster-test-"+controller+"-"+strconv.Itoa(os.Getpid()))
		if os.Mkdir(dir, 0o700) != nil && !exists(dir) {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, c.file), []byte(c.limit), 0o600); err == nil {
			t.Cleanup(func() { _ = syscall.Rmdir(dir) })
			return dir
		}
		_ = syscall.Rmdir(dir)
	}
	t.Logf("left out: no control group with a limit of %s can be made here", controller)
	return ""
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// moved moves a process into a control group.
func moved(t *testing.T, dir string, pid int) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0o600); err != nil {
		t.Fatal(err)
	}
}
