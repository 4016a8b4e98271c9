package plan

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-multierror"

	"muster/internal/errhint"
	"muster/launch/job"
)

// maxSkew is by how much clocks may differ before it is told. Certificates, log files and time-outs that are compared
// between machines suffer from more.
const maxSkew = 2 * time.Second

// ComparePreflight judges what the nodes of a job have, which have these names, in the order of their ranks. The error
// names everything because of which the job cannot run, and carries an exit status; warnings are sentences.
func ComparePreflight(names []string, all []job.Preflight) (warnings []string, err error) {
	var wrong *multierror.Error
	for i, f := range all {
		if f.Problem != "" {
			problem := fmt.Errorf("%s: %s", names[i], f.Problem)
			wrong = multierror.Append(wrong, errhint.Code(errhint.With(problem, f.Hint), cmp.Or(f.Status, errhint.Usage)))
		}
		if f.PythonProblem != "" {
			wrong = multierror.Append(wrong, errhint.Usagef("%s: cannot ask %s for its version: %s", names[i], f.Python, f.PythonProblem))
		}
	}
	const fix = "install the same on all machines, or choose one with --python, --venv or --conda"
	differ := func(what string, value func(job.Preflight) string) bool {
		text, different := tellApart(names, all, value)
		if different {
			wrong = multierror.Append(wrong, errhint.With(errhint.Usagef("the machines have different %s: %s", what, text), fix))
		}
		return different
	}
	warn := func(what string, value func(job.Preflight) string) {
		if text, different := tellApart(names, all, value); different {
			warnings = append(warnings, fmt.Sprintf("the machines have different %s: %s", what, text))
		}
	}
	if !differ("versions of Python", func(f job.Preflight) string { return minorVersion(f.PythonVersion) }) {
		warn("versions of Python", func(f job.Preflight) string { return f.PythonVersion })
	}
	noted := func(torch string) string { // what has no torch is told only beside what has
		return cmp.Or(torch, "none")
	}
	if !differ("versions of torch", func(f job.Preflight) string {
		if f.PythonVersion == "" {
			return ""
		}
		version, _, _ := strings.Cut(f.Torch, "+")
		return noted(version)
	}) {
		warn("builds of torch", func(f job.Preflight) string { return f.Torch })
	}
	warn("architectures", func(f job.Preflight) string { return f.Arch })
	warn("working directories", func(f job.Preflight) string { return filepath.Clean(f.Dir) })
	for i, f := range all {
		switch {
		case f.Problem != "":
		case f.Accelerators > 0 && f.Workers > f.Accelerators:
			warnings = append(warnings, fmt.Sprintf("%s: %d workers share %d accelerators", names[i], f.Workers, f.Accelerators))
		case f.Accelerators == 0 && slices.ContainsFunc(all, func(o job.Preflight) bool { return o.Accelerators > 0 }):
			warnings = append(warnings, fmt.Sprintf("%s: no accelerator is found there, and others have some", names[i]))
		}
		if f.SharedMemory < job.SmallSharedMemory && f.Workers > 0 {
			warnings = append(warnings,
				fmt.Sprintf("%s: /dev/shm has %d MiB, which data loaders soon fill: docker --shm-size, in Kubernetes an emptyDir with "+
					"medium: Memory", names[i], f.SharedMemory>>20))
		}
	}
	warnings = append(warnings, compareLimits(names, all)...)
	return append(warnings, compareClocks(names, all)...), wrong.ErrorOrNil()
}

// tellApart says which machines have which value, where they have several; empty ones do not count.
func tellApart(names []string, all []job.Preflight, value func(job.Preflight) string) (text string, different bool) {
	hosts := map[string][]string{}
	for i, f := range all {
		if v := value(f); v != "" {
			hosts[v] = append(hosts[v], names[i])
		}
	}
	if len(hosts) < 2 {
		return "", false
	}
	values := slices.Sorted(maps.Keys(hosts))
	slices.SortStableFunc(values, func(a, b string) int { return len(hosts[b]) - len(hosts[a]) })
	for i, v := range values {
		values[i] = v + " on " + someNames(hosts[v])
	}
	return strings.Join(values, "; "), true
}

// someNames lists hosts, and counts those behind the first few.
func someNames(names []string) string {
	const most = 8
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

// minorVersion is the part of a version of Python up to which extension modules fit.
func minorVersion(version string) string {
	parts := strings.SplitN(version, ".", 3)
	return strings.Join(parts[:min(2, len(parts))], ".")
}

// compareLimits tells of machines where a limit is less than half of what it is elsewhere.
func compareLimits(names []string, all []job.Preflight) (warnings []string) {
	for _, limit := range []struct {
		what  string
		value func(job.Preflight) uint64
	}{
		{"open files (ulimit -n)", func(f job.Preflight) uint64 { return f.OpenFiles }},
		{"bytes of locked memory (ulimit -l)", func(f job.Preflight) uint64 { return f.LockedMemory }},
		{"bytes of /dev/shm", func(f job.Preflight) uint64 { return f.SharedMemory }},
	} {
		highest := uint64(0)
		for _, f := range all {
			highest = max(highest, limit.value(f))
		}
		for i, f := range all {
			if v := limit.value(f); v < highest/2 {
				most := fmt.Sprint(highest)
				if highest == math.MaxUint64 {
					most = "no limit"
				}
				warnings = append(warnings, fmt.Sprintf("%s: %d %s, elsewhere %s", names[i], v, limit.what, most))
			}
		}
	}
	return warnings
}

// compareClocks tells of clocks that differ. How long an answer was under way counts as a difference: it is far
// shorter.
func compareClocks(names []string, all []job.Preflight) (warnings []string) {
	offset := func(f job.Preflight) time.Duration { return f.Time.Sub(f.Received) }
	first := -1
	for i, f := range all {
		if f.Received.IsZero() || f.Time.IsZero() {
			continue
		}
		if first < 0 {
			first = i
			continue
		}
		if skew := offset(f) - offset(all[first]); skew.Abs() > maxSkew {
			direction := "ahead of"
			if skew < 0 {
				direction = "behind"
			}
			warnings = append(warnings, fmt.Sprintf("the clock of %s is %v %s that of %s", names[i], skew.Abs().Round(100*time.Millisecond),
				direction, names[first]))
		}
	}
	return warnings
}
