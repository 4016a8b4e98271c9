package job

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// docs/environment.md names all variables that stay on their machine.
func TestEnvironmentDocs(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/environment.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.Concat(hostNames, deviceNames) {
		if !strings.Contains(string(text), "`"+name+"`") {
			t.Errorf("%s is missing", name)
		}
	}
}
