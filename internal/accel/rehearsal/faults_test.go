package rehearsal_test

import (
	"os"
	"strings"
	"testing"

	"muster/internal/accel/rehearsal"
)

// TestDocsNameEveryFault: docs/fake-accelerator.md tells of each kind.
func TestDocsNameEveryFault(t *testing.T) {
	text, err := os.ReadFile("../../../docs/fake-accelerator.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "\n## Faults\n")
	for _, kind := range rehearsal.FaultKinds() {
		if !strings.Contains(table, "`"+kind+"`") {
			t.Errorf("%s is not there", kind)
		}
	}
}

// TestDocsSpec: the spec that the documentation shows is one.
func TestDocsSpec(t *testing.T) {
	text, err := os.ReadFile("../../../docs/fake-accelerator.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "```yaml\n")
	spec, _, _ := strings.Cut(rest, "```")
	if _, err := rehearsal.ReadSpec(strings.NewReader(spec)); err != nil || !strings.Contains(spec, "faults:") {
		t.Errorf("%v\n%s", err, spec)
	}
}
