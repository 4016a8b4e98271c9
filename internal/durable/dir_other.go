//go:build !linux

package durable

import (
	"io/fs"
	"os"
	"syscall"
)

// openDir opens a directory. Without O_PATH nobody can tell whether somebody has put a link there meanwhile.
func openDir(path string) (*os.Root, error) { return os.OpenRoot(path) }

// openFile opens a file that is no link.
func openFile(path string, flags int, mode fs.FileMode) (*os.File, error) {
	return os.OpenFile(path, flags|syscall.O_NOFOLLOW, mode)
}
