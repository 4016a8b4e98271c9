package checkpointd

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"muster/internal/python"
	"muster/internal/testutil"
)

// TestElasticHelpers gives ours and those of DLRover's own package the same inputs.
func TestElasticHelpers(t *testing.T) {
	t.Parallel()
	packages := t.TempDir()
	if err := python.InstallCheckpoint(packages); err != nil {
		t.Fatal(err)
	}
	if err := python.ShimAlways.Settle(packages); err != nil {
		t.Fatal(err)
	}
	run := func(path string) (told map[string]any) {
		out, err := trainForks(t).Run(t.Context(), append(os.Environ(), "PYTHONPATH="+path, "PYTHONDONTWRITEBYTECODE=1"),
			"-W", "ignore", filepath.Join("testdata", "elastic.py"), t.TempDir())
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		for line := range bytes.Lines(out) { // among what libraries say
			if bytes.HasPrefix(line, []byte("{")) {
				if err := json.Unmarshal(line, &told); err != nil {
					t.Fatalf("%v\n%s", err, out)
				}
			}
		}
		return told
	}
	theirs, ours := run(testutil.PeerPackages(t, "dlrover")), run(packages)
	if len(theirs) < 100 {
		t.Errorf("%d cases only", len(theirs))
	}
	if diff := cmp.Diff(theirs, ours); diff != "" {
		t.Errorf("(-theirs +ours):\n%s", diff)
	}
}

// TestStrategies keeps on disk what strategies say, through the real client.
func TestStrategies(t *testing.T) {
	dir := t.TempDir()
	s, log := testService(t, func(c *Config) { c.Workers = 1 })
	out := runPython(t, s.cfg.Socket, filepath.Join("testdata", "strategy.py"), dir)
	for _, line := range []string{"user's strategy with", "user's strategy without", "DLRover's strategies", "storage"} {
		if !strings.Contains(out, line+"\n") {
			t.Errorf("not done: %s\n%s\n%s", line, out, log.String())
		}
	}
	for name, want := range map[string]int{"with": 4, "with paths": 3} {
		steps, err := List(filepath.Join(dir, name))
		if err != nil || len(steps) != want {
			t.Errorf("%s: %d steps, want %d: %v", name, len(steps), want, err)
		}
		for _, s := range steps {
			if err := s.Verify(); err != nil {
				t.Errorf("%s: step %d: %v", name, s.Step, err)
			}
		}
	}
}
