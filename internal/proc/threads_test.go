package proc

import (
	"maps"
	"os"
	"path/filepath"
	"testing"
	"time"

	"muster/internal/testutil"
)

// The threads of a process are found, and what they do is counted.
func TestThreadsOf(t *testing.T) {
	pid := os.Getpid()
	busy := func() (most time.Duration) {
		all, err := ThreadsOf([]int{pid, 1 << 30})
		if err != nil || len(all) != 1 {
			t.Fatalf("%v %v", all, err)
		}
		for _, th := range all[pid] {
			most += th.Ran + th.Queued
		}
		return most
	}
	before, n := busy(), 0
	testutil.Eventually(t, time.Minute, "time on a processor is counted", func() bool {
		for range 10_000_000 {
			n++
		}
		return busy() > before+20*time.Millisecond
	})
}

// Counters of a machine are read of whichever version of control groups there is.
func TestStrain(t *testing.T) {
	for name, groups := range map[string]map[string]string{
		"version 2": {
			"proc/self/cgroup":               "0::/pod/job\n",
			"proc/self/mountinfo":            "30 24 0:27 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
			"sys/fs/cgroup/pod/cpu.stat":     "usage_usec 9\nnr_throttled 3\nthrottled_usec 2500000\n",
			"sys/fs/cgroup/pod/job/cpu.stat": "usage_usec 9\nthrottled_usec 1000\n",
		},
		"version 1": {
			"proc/self/cgroup":               "5:cpu,cpuacct:/job\n",
			"proc/self/mountinfo":            "30 24 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n",
			"sys/fs/cgroup/cpu/job/cpu.stat": "nr_throttled 3\nthrottled_time 2500000000\n",
		},
	} {
		root := t.TempDir()
		maps.Copy(groups, map[string]string{
			"proc/vmstat": "pswpout 7\npswpin 42\n",
			"proc/stat":   "cpu  1 2 3 4 5 6 7 400 0 0\ncpu0 1 2 3 4 5 6 7 300 0 0\ncpu1 1 2 3 4 5 6 7 100 0 0\nintr 5\n",
			"sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_total_time_ms": "10\n",
			"sys/devices/system/cpu/cpu1/thermal_throttle/core_throttle_total_time_ms": "3000\n",
		})
		for path, text := range groups {
			path = filepath.Join(root, path)
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		want := Strain{Throttled: 2500 * time.Millisecond, Hot: 3 * time.Second, Stolen: 2 * time.Second, Swapped: 42}
		if got := strainIn(root); got != want {
			t.Errorf("%s: %+v", name, got)
		}
	}
	if got := strainIn(t.TempDir()); got != (Strain{}) {
		t.Errorf("of nothing: %+v", got)
	}
}
