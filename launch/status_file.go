package launch

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// replaceable returns where path leads to, and refuses what durable.Replace would damage: it would put a regular file in the
// place of a device or a FIFO, and take outputs, which others still write to, away from under them.
func replaceable(path string, outputs []*os.File) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	target, err := filepath.EvalSymlinks(path)
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Lstat(path); err == nil {
			return "", fmt.Errorf("%s is a symbolic link to nothing", path)
		}
		return path, nil // its directory is looked at when it is written
	}
	if err != nil {
		return "", err
	}
	info, err := os.Stat(target)
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
