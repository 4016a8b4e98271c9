package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"muster/internal/durable"
	"muster/internal/errhint"
)

// savePID writes our process id to a file that is named by it, as deepspeed does for whoever started it, and returns
// what removes the file. A file that an earlier process with our number has left behind is replaced.
func savePID() (forget func(), err error) {
	text := strconv.Itoa(os.Getpid())
	name := text + ".deepspeed"
	dir, err := os.OpenRoot("/tmp")
	if err == nil {
		err = errors.Join(durable.ReplaceIn(dir, name, []byte(text), 0o644), dir.Close()) // what others may put there is not followed
	}
	if err != nil {
		return nil, errhint.Code(fmt.Errorf("cannot save the process id (--save_pid): %w", err), errhint.Usage)
	}
	return func() { _ = os.Remove(filepath.Join("/tmp", name)) }, nil
}
