package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"muster/internal/errhint"
)

// savePID writes our process id to a file that is named by it, as deepspeed does for whoever started it, and returns what
// removes the file. A file that an earlier process with our number has left behind is replaced.
func savePID() (forget func(), err error) {
	text := strconv.Itoa(os.Getpid())
	path := filepath.Join("/tmp", text+".deepspeed")
	if err = os.Remove(path); err == nil || os.IsNotExist(err) { // O_EXCL below does not follow what others may put there
		var f *os.File
		if f, err = os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644); err == nil {
			_, err = f.WriteString(text)
			if closed := f.Close(); err == nil {
				err = closed
			}
		}
	}
	if err != nil {
		return nil, errhint.Code(fmt.Errorf("cannot save the process id (--save_pid): %w", err), errhint.Usage)
	}
	return func() { _ = os.Remove(path) }, nil
}
