// Package python holds the Python that muster runs in the user's interpreter, as real .py files that Python's own
// tools can read. Nothing here is executed by the launcher itself.
package python

import (
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// RunPath is a program for "python -c": it runs the script sys.argv[2] as torchrun's --run-path does, in a process
// whose multiprocessing start method is sys.argv[1].
//
//go:embed run_path.py
var RunPath string

//go:embed template.py
var template string

// Hook writes the template of warm starts to dir, which it makes, and returns the entries of the environment that bring
// an interpreter to run it, given the entries it would have. Its command line stays the worker's.
func Hook(dir string, env []string) ([]string, error) {
	if strings.Contains(dir, ":") {
		return nil, fmt.Errorf("cannot put %q on Python's path: it contains a colon", dir)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, "sitecustomize.py"), []byte(template), 0o600); err != nil {
		return nil, err
	}
	path := dir
	hooked := make([]string, 0, len(env)+2)
	for _, entry := range env {
		if old, ok := strings.CutPrefix(entry, "PYTHONPATH="); ok {
			if old != "" {
				path = dir + ":" + old
			}
			continue
		}
		hooked = append(hooked, entry)
	}
	return append(hooked, "PYTHONPATH="+path, "MUSTER_TEMPLATE=3"), nil
}
