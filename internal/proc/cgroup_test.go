package proc_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"muster/internal/errhint"
	"muster/internal/proc"
	"muster/internal/testutil"
)

func writeTree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestOOMKillsIsFoundWhereverItIs(t *testing.T) {
	const (
		v1    = "36 32 0:33 / /sys/fs/cgroup/memory rw,nosuid - cgroup cgroup rw,memory\n"
		v1two = "35 32 0:32 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
		v2    = "30 25 0:27 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
	)
	for name, c := range map[string]struct {
		files map[string]string
		n     int64
		where string
	}{
		"v1": {map[string]string{
			"proc/self/cgroup": "5:devices:/\n4:memory:/job/a\n0::/\n", "proc/self/mountinfo": v1two + v1,
			"sys/fs/cgroup/memory/job/a/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
		}, 3, "sys/fs/cgroup/memory/job/a/memory.oom_control"},
		"v1 in a container that sees its own part only": {map[string]string{
			"proc/self/cgroup":                        "4:memory:/docker/abc\n",
			"proc/self/mountinfo":                     "36 32 0:33 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
			"sys/fs/cgroup/memory/memory.oom_control": "oom_kill 4\n",
		}, 4, "sys/fs/cgroup/memory/memory.oom_control"},
		"v1 path outside of what is mounted": {map[string]string{
			"proc/self/cgroup":                        "4:memory:/other\n",
			"proc/self/mountinfo":                     "36 32 0:33 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
			"sys/fs/cgroup/memory/memory.oom_control": "oom_kill 5\n",
		}, 5, "sys/fs/cgroup/memory/memory.oom_control"},
		"v2": {map[string]string{
			"proc/self/cgroup": "0::/user.slice/job\n", "proc/self/mountinfo": v2,
			"sys/fs/cgroup/user.slice/job/memory.events": "low 0\nhigh 0\nmax 7\noom 1\noom_kill 6\noom_group_kill 0\n",
		}, 6, "sys/fs/cgroup/user.slice/job/memory.events"},
		"v2, controller enabled further up": {map[string]string{
			"proc/self/cgroup": "0::/user.slice/job\n", "proc/self/mountinfo": v2,
			"sys/fs/cgroup/user.slice/memory.events": "oom_kill 7\n",
		}, 7, "sys/fs/cgroup/user.slice/memory.events"},
		"v2, mount point with a space": {map[string]string{
			"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": `30 25 0:27 / /my\040cgroups rw - cgroup2 cgroup2 rw` + "\n",
			"my cgroups/memory.events": "oom_kill 8\n",
		}, 8, "my cgroups/memory.events"},
		"v2 root has no counter": {map[string]string{
			"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": v2, "proc/vmstat": "nr_free_pages 1\noom_kill 9\n",
		}, 9, "proc/vmstat"},
		"no cgroups at all": {map[string]string{"proc/vmstat": "oom_kill 10\n"}, 10, "proc/vmstat"},
	} {
		t.Run(name, func(t *testing.T) {
			root := writeTree(t, c.files)
			n, where, err := proc.OOMKillsBelow(root)
			if err != nil || n != c.n || where != filepath.Join(root, c.where) {
				t.Errorf("%d in %s (%v), want %d in %s", n, where, err, c.n, c.where)
			}
		})
	}
	for name, files := range map[string]map[string]string{
		"nothing to read": {},
		"old kernel":      {"proc/vmstat": "nr_free_pages 1\n"},
		"malformed":       {"proc/vmstat": "oom_kill x\n", "proc/self/cgroup": "x\n:::\n", "proc/self/mountinfo": "1 - 2\n - \n"},
	} {
		if n, where, err := proc.OOMKillsBelow(writeTree(t, files)); err == nil || errhint.Of(err) == "" {
			t.Errorf("%s: %d in %q, error %v, want one with a hint", name, n, where, err)
		}
	}
}

// With a real limit and the real OOM killer, where a memory cgroup can be made.
func TestOOMKillIsCounted(t *testing.T) {
	dir, limit := "/sys/fs/cgroup/memory/muster-test-"+newMark(), "memory.limit_in_bytes"
	if err := os.Mkdir(dir, 0o755); err != nil {
		dir, limit = "/sys/fs/cgroup/muster-test-"+newMark(), "memory.max"
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Skipf("no memory cgroup can be made: %v", err)
		}
	}
	t.Cleanup(func() {
		testutil.Eventually(t, 20*time.Second, "cgroup removed", func() bool { return os.Remove(dir) == nil })
	})
	if err := os.WriteFile(filepath.Join(dir, limit), []byte("200M"), 0); err != nil {
		t.Skipf("no memory limit can be set: %v", err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("/bin/sh", "-c", `echo $$ >"$0"/cgroup.procs && exec "$@"`, dir, self, roleArg, "oom").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if want := "killed 1 was killed by SIGKILL " + dir; !strings.HasPrefix(string(out), want) ||
		!strings.HasSuffix(string(out), "<nil> <nil>\n") {
		t.Errorf("%s, want %s...", out, want)
	}
}
