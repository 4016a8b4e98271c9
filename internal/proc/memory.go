package proc

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// FreeMemory is how many bytes a new process can have without swapping, and without the OOM killer: what the machine
// has, and what the cgroups that we are in leave. It reports false where nothing says so.
func FreeMemory() (int64, bool) { return freeMemory("/") }

func freeMemory(root string) (free int64, known bool) {
	less := func(n int64, ok bool) {
		if ok && (!known || n < free) {
			free, known = n, true
		}
	}
	kib, ok := namedNumber(filepath.Join(root, "proc/meminfo"), "MemAvailable:")
	less(kib<<10, ok)
	for _, kind := range []struct{ controller, limit, used, cache string }{
		{"", "memory.max", "memory.current", "inactive_file"},
		{"memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"},
	} {
		dir, mount, err := cgroupDir(root, kind.controller)
		for err == nil {
			limit, limited := number(filepath.Join(dir, kind.limit))
			used, counted := number(filepath.Join(dir, kind.used))
			cache, _ := namedNumber(filepath.Join(dir, "memory.stat"), kind.cache) // the kernel drops it first
			less(max(0, limit-used+cache), limited && counted)
			if dir == mount || dir == filepath.Dir(dir) {
				break
			}
			dir = filepath.Dir(dir)
		}
	}
	return free, known
}

// number reads a file that is one number; "max" is none.
func number(path string) (int64, bool) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	return n, err == nil
}

// namedNumber finds the line of a name in a file of names and numbers.
func namedNumber(path, name string) (int64, bool) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(text)) {
		if words := strings.Fields(line); len(words) >= 2 && words[0] == name {
			n, err := strconv.ParseInt(words[1], 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}
