package accel

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"muster/internal/wording"
)

// MaxCPUs is one more than the largest number of a CPU or a NUMA node that is taken for one; Linux is built for at most
// 8192 CPUs.
const MaxCPUs = 8192

// readList reads a file of /sys that holds a list of CPUs or NUMA nodes.
func readList(root fs.FS, name string) ([]int, error) {
	text, err := readText(root, name)
	if err != nil {
		return nil, err
	}
	list, err := parseList(text)
	if err != nil {
		return nil, fmt.Errorf("cannot read /%s: %w", name, err)
	}
	return list, nil
}

// parseList reads numbers and ranges with commas between, such as "0-3,8" (Linux, lib/bitmap.c), and returns the
// numbers ascending, each once. An empty text is an empty list.
func parseList(text string) ([]int, error) {
	var list []int
	for item := range strings.SplitSeq(text, ",") {
		item = strings.TrimSpace(item)
		if item == "" {
			continue
		}
		low, high, isRange := strings.Cut(item, "-")
		if !isRange {
			high = low
		}
		first, err1 := strconv.ParseUint(low, 10, 32)
		last, err2 := strconv.ParseUint(high, 10, 32)
		switch {
		case errors.Join(err1, err2) != nil || first > last:
			return nil, fmt.Errorf("%q is neither a number nor a range of numbers", wording.Clip(item))
		case last >= MaxCPUs:
			return nil, fmt.Errorf("%q is above the limit of %d", wording.Clip(item), MaxCPUs-1)
		case len(list) > MaxCPUs:
			return nil, errors.New("numbers are repeated")
		}
		for n := first; n <= last; n++ {
			list = append(list, int(n))
		}
	}
	slices.Sort(list)
	return slices.Compact(list), nil
}

// FormatLists writes each of several lists.
func FormatLists(lists [][]int) []string {
	texts := make([]string, len(lists))
	for i, list := range lists {
		texts[i] = FormatList(list)
	}
	return texts
}

// FormatList writes ascending numbers in the way that /sys does: "0-3,8".
func FormatList(list []int) string {
	var b strings.Builder
	for i := 0; i < len(list); {
		end := i
		for end+1 < len(list) && list[end+1] == list[end]+1 {
			end++
		}
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, "%d", list[i])
		if end > i {
			fmt.Fprintf(&b, "-%d", list[end])
		}
		i = end + 1
	}
	return b.String()
}
