package accel

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"muster/internal/wording"
)

// CPUs returns how many CPUs this process may really use, at least 1, and says how: the smaller of its affinity mask
// and its cgroup's quota (rounded up), version 1 or 2, the tightest of all ancestors. PyTorch counts the mask alone.
func CPUs(root Root) (n int, why string) {
	list, err := root.Affinity()
	if err != nil || len(list) == 0 {
		list = make([]int, runtime.NumCPU()) // only their number matters below
	}
	n = len(list)
	quota, file := cpuQuota(root)
	if quota > 0 && quota < n {
		return quota, fmt.Sprintf("%s by the quota in /%s (the affinity mask has %d)", wording.Plural(quota, "CPU"), file, n)
	}
	return n, fmt.Sprintf("%s in the affinity mask", wording.Plural(n, "CPU"))
}

// cgroupMount is one mounted cgroup file system.
type cgroupMount struct {
	root  string // the cgroup that the mount point shows, "/" for all
	point string // where it is mounted, without the leading slash
}

// cpuQuota returns the tightest CPU quota of this process's cgroup and its ancestors in whole CPUs, rounded up, and the
// file that holds it; 0 where there is none.
func cpuQuota(root fs.FS) (cpus int, file string) {
	text, err := readText(root, "proc/self/cgroup")
	if err != nil {
		return 0, ""
	}
	mounts, err := readText(root, "proc/self/mountinfo")
	if err != nil {
		return 0, ""
	}
	unified := ""
	for line := range strings.Lines(text) {
		// hierarchy:controllers:path; the path may hold colons.
		f := strings.SplitN(strings.TrimRight(line, "\n"), ":", 3)
		if len(f) != 3 {
			continue
		}
		if f[0] == "0" && f[1] == "" {
			unified = f[2]
			continue
		}
		// On hybrid systems a controller of version 1 is not in the unified tree.
		if slices.Contains(strings.Split(f[1], ","), "cpu") {
			if m, ok := findCgroupMount(mounts, "cgroup", "cpu"); ok {
				return tightest(root, m, f[2], readQuotaV1)
			}
		}
	}
	if m, ok := findCgroupMount(mounts, "cgroup2", ""); ok && unified != "" {
		return tightest(root, m, unified, readQuotaV2)
	}
	return 0, ""
}

// findCgroupMount looks through /proc/self/mountinfo (proc(5)) for a file system of type kind whose super options hold
// controller, if one is asked for.
func findCgroupMount(mountinfo, kind, controller string) (cgroupMount, bool) {
	for line := range strings.Lines(mountinfo) {
		head, tail, ok := strings.Cut(line, " - ")
		before, after := strings.Fields(head), strings.Fields(tail)
		if !ok || len(before) < 5 || len(after) < 3 || after[0] != kind {
			continue
		}
		if controller != "" && !slices.Contains(strings.Split(after[2], ","), controller) {
			continue
		}
		return cgroupMount{root: unescapeMount(before[3]), point: strings.TrimPrefix(unescapeMount(before[4]), "/")}, true
	}
	return cgroupMount{}, false
}

// unescapeMount undoes the octal escapes that mountinfo uses for white space and backslashes.
func unescapeMount(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// tightest walks from cgroup up to the mount point. A cgroup outside of what the mount shows ("/../..", in a container
// with its own view) is looked for at the mount point itself.
func tightest(root fs.FS, m cgroupMount, cgroup string, read func(fs.FS, string) (int, string)) (cpus int, file string) {
	rel, ok := strings.CutPrefix(cgroup, strings.TrimSuffix(m.root, "/"))
	if !ok || rel != "" && !strings.HasPrefix(rel, "/") || strings.Contains(rel, "/..") {
		rel = ""
	}
	for dir := strings.Trim(rel, "/"); ; dir = path.Dir(dir) {
		if dir == "." {
			dir = ""
		}
		if n, f := read(root, path.Join(m.point, dir)); n > 0 && (cpus == 0 || n < cpus) {
			cpus, file = n, f
		}
		if dir == "" {
			return cpus, file
		}
	}
}

// readQuotaV2 reads "<quota|max> <period>", both in microseconds.
func readQuotaV2(root fs.FS, dir string) (cpus int, file string) {
	file = path.Join(dir, "cpu.max")
	text, err := readText(root, file)
	if err != nil {
		return 0, ""
	}
	f := strings.Fields(text)
	if len(f) != 2 {
		return 0, ""
	}
	return roundUp(f[0], f[1]), file
}

// readQuotaV1 reads the two files of version 1; a quota of -1 means none.
func readQuotaV1(root fs.FS, dir string) (cpus int, file string) {
	file = path.Join(dir, "cpu.cfs_quota_us")
	quota, err1 := readText(root, file)
	period, err2 := readText(root, path.Join(dir, "cpu.cfs_period_us"))
	if errors.Join(err1, err2) != nil {
		return 0, ""
	}
	return roundUp(quota, period), file
}

// roundUp returns quota/period rounded up, 0 for "max", -1 and anything that is no positive number.
func roundUp(quota, period string) int {
	q, err1 := strconv.ParseUint(quota, 10, 48)
	p, err2 := strconv.ParseUint(period, 10, 48)
	if errors.Join(err1, err2) != nil || p == 0 {
		return 0
	}
	return int((q + p - 1) / p)
}
