package tokenfile

import (
	"os"

	"golang.org/x/sys/unix"
)

// mounted reports whether a file lies in memory or where nothing can be written, as secrets do that are mounted into a
// container.
func mounted(f *os.File) bool {
	var stat unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &stat); err != nil {
		return false
	}
	return stat.Type == unix.TMPFS_MAGIC || stat.Type == unix.RAMFS_MAGIC || stat.Flags&unix.ST_RDONLY != 0
}
