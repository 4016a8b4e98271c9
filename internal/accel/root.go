package accel

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
)

// Root is where detection looks: a tree of files with symbolic links (names as in fs.FS, without the leading slash),
// plus the two questions about it that reading files does not answer. The real machine and a fake one both come as a
// Root.
type Root interface {
	fs.ReadLinkFS
	// Access returns nil when this process may read and write the file name. It never opens the file: opening a device
	// node can wake a sleeping accelerator for seconds, or hang on a sick one. Errors wrap fs.ErrNotExist or
	// fs.ErrPermission.
	Access(name string) error
	// Readable is Access without the permission to write.
	Readable(name string) error
	// Affinity returns the numbers of the CPUs that this process may run on, ascending.
	Affinity() ([]int, error)
}

// Real returns the root of this machine.
func Real() Root { return dirRoot("/") }

// dirRoot is a Root over a directory: "/" or, in tests, a rendered tree.
type dirRoot string

// os.DirFS documents that its result implements fs.ReadLinkFS.
func (d dirRoot) dir() fs.ReadLinkFS { return os.DirFS(string(d)).(fs.ReadLinkFS) }

// Open opens the file name.
func (d dirRoot) Open(name string) (fs.File, error) { return d.dir().Open(name) }

// ReadLink returns the target of the symbolic link name.
func (d dirRoot) ReadLink(name string) (string, error) { return d.dir().ReadLink(name) }

// Lstat describes the file name without following a last link.
func (d dirRoot) Lstat(name string) (fs.FileInfo, error) { return d.dir().Lstat(name) }

// maxText bounds what is read of one file of /proc or /sys, in bytes. The largest is mountinfo, some 200 bytes a mount.
const maxText = 16 << 20

// readText returns the content of a small text file without surrounding white space.
func readText(root fs.FS, name string) (string, error) {
	f, err := root.Open(name)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, maxText+1))
	if err != nil {
		return "", err
	}
	if len(b) > maxText {
		return "", fmt.Errorf("%s is longer than %d bytes", name, maxText)
	}
	return strings.TrimSpace(string(b)), nil
}
