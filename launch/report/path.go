package report

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"muster/internal/durable"
)

// replaceable returns where path leads to, and refuses what must not be replaced: links of other users, what is no
// regular file, and outputs, which others still write to.
func replaceable(path string, outputs []*os.File) (string, error) {
	target, err := durable.Target(path)
	if err != nil {
		return "", err
	}
	info, err := os.Lstat(target)
	if errors.Is(err, fs.ErrNotExist) {
		return target, nil // its directory is looked at when it is written
	}
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("%s is no regular file", path)
	}
	for _, f := range outputs {
		if out, err := f.Stat(); err == nil && os.SameFile(info, out) {
			return "", fmt.Errorf("%s is where muster's own output goes", path)
		}
	}
	return target, nil
}
