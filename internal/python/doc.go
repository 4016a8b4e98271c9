// Package python holds the Python that muster runs in the user's interpreter, as real .py files that Python's own
// tools can read. Nothing here is executed by the launcher itself.
package python

import _ "embed"

// RunPath is a program for "python -c": it runs the script sys.argv[2] as torchrun's --run-path does, in a process
// whose multiprocessing start method is sys.argv[1].
//
//go:embed run_path.py
var RunPath string
