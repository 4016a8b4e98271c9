package python

import (
	"embed"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// checkpoint is the package muster, and a package dlrover for scripts that import DLRover's. The pattern takes names
// with an underscore in front, too.
//
//go:embed all:checkpoint
var checkpoint embed.FS

// Shim says when our package dlrover is the one that a program imports.
type Shim string

// ShimAuto is for where none is installed. ShimBarred leaves an installed one alone, but has it refuse at once what
// would wait for the saver of DLRover's agent; there is nothing else of ours in its directory unless InstallCheckpoint
// has put it there.
const (
	ShimAuto   Shim = ""
	ShimAlways Shim = "on"
	ShimNever  Shim = "off"
	ShimBarred Shim = "barred"
)

// Barred is what the error of an import that ShimBarred refuses says in any case.
const Barred = "it waits for the saver of DLRover's agent, and muster has none for it"

// First reports whether the directory belongs in front of the user's own entries on Python's path.
func (s Shim) First() bool { return s == ShimAlways || s == ShimBarred }

// Settle changes what InstallCheckpoint wrote to dir so that it is as s says.
func (s Shim) Settle(dir string) error {
	dir = filepath.Join(dir, "dlrover")
	switch s {
	case ShimAlways, ShimBarred:
		return os.WriteFile(filepath.Join(dir, "_mode.py"), fmt.Appendf(nil, "MODE = %q\n", string(s)), 0o600)
	case ShimAuto:
	case ShimNever:
		return os.RemoveAll(dir)
	}
	return nil
}

// InstallCheckpoint writes the packages that save checkpoints through muster to dir, which it makes. dir then belongs
// on Python's path, behind the user's own entries.
func InstallCheckpoint(dir string) error {
	if strings.Contains(dir, ":") {
		return fmt.Errorf("cannot put %q on Python's path: it contains a colon", dir)
	}
	return fs.WalkDir(checkpoint, "checkpoint", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel("checkpoint", path)
		if err != nil || strings.Contains(path, "__pycache__") {
			return err
		}
		to := filepath.Join(dir, rel)
		if d.IsDir() {
			return os.MkdirAll(to, 0o700)
		}
		content, err := checkpoint.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(to, content, 0o600)
	})
}
