package drive

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// WarmDir makes a directory with files, given as name and content in turn, and returns its path.
func WarmDir(t *testing.T, files ...string) string {
	t.Helper()
	dir := t.TempDir()
	for i := 0; i < len(files); i += 2 {
		if err := os.WriteFile(filepath.Join(dir, files[i]), []byte(files[i+1]), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// StartWarm starts two workers of script.py in dir, where modules of their own may be. args come before the command.
func StartWarm(t *testing.T, dir string, env []string, args ...string) *Job {
	t.Helper()
	args = slices.Concat([]string{"run", "-n", "2", "--log-level", "debug"}, args,
		[]string{"--", "python3", filepath.Join(dir, "script.py")})
	return Start(t, append(env, "PYTHONPATH="+dir, "PATH=/usr/bin:"+os.Getenv("PATH"), "DIR="+dir), args...)
}

// Forked counts the workers that came from a template.
func Forked(o Outcome) int { return strings.Count(o.Stderr, "worker forked from the template") }

// WantWarm fails the test unless a job has ended with a status, with so many workers from a template, and said all of
// output.
func WantWarm(t *testing.T, o Outcome, status, workers int, output ...string) {
	t.Helper()
	if o.Status != status || Forked(o) != workers {
		t.Errorf("status %d with %d forked workers, want %d with %d", o.Status, Forked(o), status, workers)
	}
	for _, want := range output {
		if !strings.Contains(o.Stdout+o.Stderr, want) {
			t.Errorf("missing in the output: %s", want)
		}
	}
	if t.Failed() {
		t.Logf("%s%s", o.Stdout, o.Stderr)
	}
}
