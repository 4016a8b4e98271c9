package python

import (
	"path"
	"strings"
)

// IsLibrary reports whether a source file, as Python names it, is of Python's library or of an installed package, and
// not of the user's program.
func IsLibrary(file string) bool {
	if strings.Contains(file, "-packages/") || strings.HasPrefix(file, "<") {
		return true
	}
	for dir := path.Dir(file); dir != "/" && dir != "."; dir = path.Dir(dir) { // such as lib/python3.11
		if strings.HasPrefix(path.Base(dir), "python3") && strings.HasPrefix(path.Base(path.Dir(dir)), "lib") {
			return true
		}
	}
	return false
}
