package show

import (
	"fmt"
	"strconv"
	"time"
)

// ago is when something was.
func ago(t *time.Time, now time.Time) string {
	if t == nil {
		return "-"
	}
	return since(t, now) + " ago"
}

func cpuText(seconds *float64) string {
	if seconds == nil {
		return "-"
	}
	d := time.Duration(*seconds * float64(time.Second))
	if d < time.Minute {
		return fmt.Sprintf("%.1fs", *seconds)
	}
	return shortTime(d)
}

// cutTo cuts a line to a number of characters.
func cutTo(line string, most int) string {
	for i := range line {
		if most == 0 {
			return line[:i]
		}
		most--
	}
	return line
}

// cell is a number in a table, 0 for one that is not known.
func cell(n int) string {
	if n == 0 {
		return "-"
	}
	return strconv.Itoa(n)
}

// since is how long ago something was, to the second.
func since(t *time.Time, now time.Time) string {
	if t == nil {
		return "-"
	}
	return shortTime(now.Sub(*t))
}

// shortTime is a time in a table, with its two largest units: 3d4h, 2h5m, 12s.
func shortTime(d time.Duration) string {
	seconds := int(max(d, 0) / time.Second)
	units := []struct {
		size int
		name string
	}{{24 * 60 * 60, "d"}, {60 * 60, "h"}, {60, "m"}, {1, "s"}}
	for i, u := range units {
		if seconds < u.size && u.size > 1 {
			continue
		}
		text := strconv.Itoa(seconds/u.size) + u.name
		if i+1 < len(units) {
			text += strconv.Itoa(seconds%u.size/units[i+1].size) + units[i+1].name
		}
		return text
	}
	return ""
}

// secondsText is how long something took, with three digits and without an exponent.
func secondsText(seconds float64) string {
	switch {
	case seconds < 0.001:
		return "less than 1 ms"
	case seconds < 100:
		return fmt.Sprintf("%.3g s", seconds)
	}
	return fmt.Sprintf("%.0f s", seconds)
}

// bytesText is a size in a table.
func bytesText(n *int64) string {
	if n == nil {
		return "-"
	}
	size, unit := float64(*n), "B"
	for _, u := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if size < 1000 {
			break
		}
		size, unit = size/1024, u
	}
	if size < 10 && unit != "B" {
		return fmt.Sprintf("%.1f%s", size, unit)
	}
	return fmt.Sprintf("%.0f%s", size, unit)
}
