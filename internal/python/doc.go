// Package python holds the Python that muster runs in the user's interpreter, as real .py files that Python's own
// tools can read. Nothing here is executed by the launcher itself.
package python

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// RunPath is a program for "python -c": it runs the script sys.argv[2] as torchrun's --run-path does, in a process
// whose multiprocessing start method is sys.argv[1].
//
//go:embed run_path.py
var RunPath string

// About is a program for "python -c": it prints a line of JSON with the versions of Python and of torch, empty for
// none, which it does not import.
//
//go:embed about.py
var About string

//go:embed template/*.py
var template embed.FS

// Hook writes the template of warm starts to dir, which it makes, and returns the entries of the environment that bring
// an interpreter to run it, given the entries it would have. Its command line stays the worker's.
func Hook(dir string, env []string) ([]string, error) {
	if strings.Contains(dir, ":") {
		return nil, fmt.Errorf("cannot put %q on Python's path: it contains a colon", dir)
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	files, err := template.ReadDir("template")
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		content, err := template.ReadFile("template/" + f.Name())
		if err != nil {
			return nil, err
		}
		path := filepath.Join(dir, f.Name())
		if there, err := os.ReadFile(path); err == nil && bytes.Equal(there, content) {
			continue // another template may be reading it
		}
		if err := os.WriteFile(path, content, 0o600); err != nil {
			return nil, err
		}
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
