package checkpointd

import (
	"os"
	"strconv"
	"strings"
)

// meminfo reads a line of /proc/meminfo, in bytes.
func meminfo(name string) (int64, bool) {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(text)) {
		rest, ok := strings.CutPrefix(line, name+":")
		if fields := strings.Fields(rest); ok && len(fields) == 2 && fields[1] == "kB" {
			n, err := strconv.ParseInt(fields[0], 10, 64)
			return n << 10, err == nil
		}
	}
	return 0, false
}

// readNumber reads a file with one number in it.
func readNumber(path string) (int64, bool) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	return n, err == nil
}
