package proc_test

import (
	"testing"

	"muster/internal/proc"
)

// TestFreeMemory takes the least of what the machine and each cgroup above us leave.
func TestFreeMemory(t *testing.T) {
	t.Parallel()
	const (
		machine = "MemTotal:   999 kB\nMemAvailable:   100 kB\n"
		v2      = "0::/pod/own\n"
		v2Mount = "30 29 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
		v1      = "7:memory:/job\n"
		v1Mount = "31 29 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
	)
	for name, c := range map[string]struct {
		files map[string]string
		want  int64
	}{
		"no cgroup": {map[string]string{"proc/meminfo": machine}, 100 << 10},
		"unlimited": {map[string]string{
			"proc/meminfo": machine, "proc/self/cgroup": v2, "proc/self/mountinfo": v2Mount,
			"sys/fs/cgroup/pod/own/memory.max": "max\n", "sys/fs/cgroup/pod/own/memory.current": "50000\n",
		}, 100 << 10},
		"own": {map[string]string{
			"proc/meminfo": machine, "proc/self/cgroup": v2, "proc/self/mountinfo": v2Mount,
			"sys/fs/cgroup/pod/own/memory.max": "60000\n", "sys/fs/cgroup/pod/own/memory.current": "50000\n",
			"sys/fs/cgroup/pod/own/memory.stat": "anon 1\ninactive_file 3000\n",
		}, 13000},
		"above": {map[string]string{
			"proc/meminfo": machine, "proc/self/cgroup": v2, "proc/self/mountinfo": v2Mount,
			"sys/fs/cgroup/pod/own/memory.max": "60000\n", "sys/fs/cgroup/pod/own/memory.current": "50000\n",
			"sys/fs/cgroup/pod/memory.max": "55000\n", "sys/fs/cgroup/pod/memory.current": "56000\n",
		}, 0},
		"version 1": {map[string]string{
			"proc/meminfo": machine, "proc/self/cgroup": v1, "proc/self/mountinfo": v1Mount,
			"sys/fs/cgroup/memory/job/memory.limit_in_bytes": "20000\n", "sys/fs/cgroup/memory/job/memory.usage_in_bytes": "15000\n",
		}, 5000},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got, ok := proc.FreeMemoryBelow(writeTree(t, c.files)); !ok || got != c.want {
				t.Errorf("%d, %v, want %d", got, ok, c.want)
			}
		})
	}
	if n, ok := proc.FreeMemoryBelow(writeTree(t, map[string]string{"proc/meminfo": "MemAvailable: x kB\n"})); ok {
		t.Errorf("%d bytes of nobody knows how many", n)
	}
	if n, ok := proc.FreeMemory(); !ok || n <= 0 {
		t.Errorf("this machine has %d bytes, %v", n, ok)
	}
}
