package drive

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// SpecFile writes a spec whose defaults have these lines.
func SpecFile(t *testing.T, lines ...string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "spec.yaml")
	if err := os.WriteFile(file, []byte("version: 1\ndefaults:\n  "+strings.Join(lines, "\n  ")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// SaidOn returns what workers printed as lines "on ...", sorted, without what muster puts in front.
func SaidOn(o Outcome) []string {
	var all []string
	for line := range strings.Lines(o.Stdout) {
		if _, text, ok := strings.Cut(line, "on "); ok {
			all = append(all, strings.TrimSpace(text))
		}
	}
	slices.Sort(all)
	return all
}

// SayCPUs prints the CPUs that a child of a worker may use.
const SayCPUs = `echo on $LOCAL_RANK $(sed -n 's/^Cpus_allowed_list:.//p' /proc/self/status)`
