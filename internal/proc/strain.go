package proc

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Strain are counters of this machine that show what slows processes down. What the kernel does not count is 0.
type Strain struct {
	// Throttled is for how long a limit of our control groups has kept processes from every core, Hot for how long a core
	// had a lower clock because of heat, of that which has the most.
	Throttled, Hot time.Duration
	// Stolen is the share of the processors that the hypervisor has given to others, times time.
	Stolen time.Duration
	// Swapped counts pages that were read back from swap.
	Swapped int64
}

// StrainNow reads the counters.
func StrainNow() Strain { return strainIn("/") }

// strainIn is StrainNow with another root, for tests.
func strainIn(root string) (s Strain) {
	for _, kind := range []struct {
		controller, name string
		unit             time.Duration
	}{{"", "throttled_usec", time.Microsecond}, {"cpu", "throttled_time", time.Nanosecond}} {
		dir, mount, err := cgroupDir(root, kind.controller)
		for err == nil {
			n, _ := namedNumber(filepath.Join(dir, "cpu.stat"), kind.name)
			s.Throttled = max(s.Throttled, time.Duration(n)*kind.unit)
			if dir == mount || dir == filepath.Dir(dir) {
				break
			}
			dir = filepath.Dir(dir)
		}
	}
	cores, _ := filepath.Glob(filepath.Join(root, "sys/devices/system/cpu/cpu[0-9]*/thermal_throttle/core_throttle_total_time_ms"))
	for _, path := range cores {
		n, _ := number(path)
		s.Hot = max(s.Hot, time.Duration(n)*time.Millisecond)
	}
	s.Swapped, _ = namedNumber(filepath.Join(root, "proc/vmstat"), "pswpin")
	s.Stolen = stolenIn(root)
	return s
}

// stolenIn reads proc_stat(5): the eighth number of the first line, of all processors together.
func stolenIn(root string) time.Duration {
	text, err := os.ReadFile(filepath.Join(root, "proc/stat"))
	if err != nil {
		return 0
	}
	ticks, cores := int64(0), int64(0)
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		switch {
		case len(f) < 9 || !strings.HasPrefix(f[0], "cpu"):
		case f[0] == "cpu":
			ticks, _ = strconv.ParseInt(f[8], 10, 64) // what is no number counts as 0
		default:
			cores++
		}
	}
	return time.Duration(ticks/max(cores, 1)) * Tick
}
