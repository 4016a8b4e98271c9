package python

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Whoever can write to the working directory, such as another user in /tmp, does not choose what Python imports for
// muster.
func TestPlantedModules(t *testing.T) {
	for name, args := range map[string][]string{
		"about": {"-c", About}, "run path": {"-c", RunPath, "fork", "script.py"},
		"run path by spawn": {"-c", RunPath, "spawn", "script.py"},
	} {
		dir := t.TempDir()
		for _, module := range []string{"json", "multiprocessing", "runpy", "importlib"} {
			if err := os.WriteFile(filepath.Join(dir, module+".py"), []byte("open('planted', 'w').close()\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(dir, "script.py"), []byte("import sys, json\nprint(sys.argv, json.dumps(1))\n"),
			0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), "python3", args...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		if err != nil || len(args) > 2 && !strings.Contains(string(out), "['script.py'] 1") {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
		if _, err := os.Stat(filepath.Join(dir, "planted")); err == nil {
			t.Errorf("%s ran a module of the working directory:\n%s", name, out)
		}
	}
}
