package gather

import (
	"context"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"muster/launch/evidence"
)

// fileLocks are the locks that processes wait for, with files as the kernel names them.
type fileLocks map[int][]evidence.FileLock

// of are those of a process, with the names of the files.
func (f fileLocks) of(ctx context.Context, pid int) []evidence.FileLock {
	list := f[pid]
	names := make([]string, len(list))
	if len(list) == 0 || !risky(ctx, func() {
		for i := range list {
			names[i] = lockedFile(pid, list[i].File)
		}
	}) {
		return list
	}
	for i := range list {
		list[i].File = names[i]
	}
	return list
}

// readLocks reads which processes wait for locks on files.
func readLocks() fileLocks {
	text, err := os.ReadFile("/proc/locks")
	if err != nil {
		return nil
	}
	waiting, holder := fileLocks{}, 0
	for l := range strings.Lines(string(text)) {
		f := strings.Fields(l)
		waits := len(f) > 1 && f[1] == "->"
		if waits {
			f = f[1:]
		}
		if len(f) < 6 {
			continue
		}
		pid, err := strconv.Atoi(f[4])
		if err != nil {
			continue
		}
		if !waits {
			holder = pid
		} else if pid > 0 {
			waiting[pid] = append(waiting[pid], evidence.FileLock{File: f[5], Holder: max(holder, 0)})
		}
	}
	return waiting
}

// lockedFile is the path of a file that a process waits for, or its device and inode.
func lockedFile(pid int, id string) string {
	parts := strings.Split(id, ":") // 08:02:12345
	if len(parts) != 3 {
		return id
	}
	inode, _ := strconv.ParseUint(parts[2], 10, 64)
	dir := "/proc/" + strconv.Itoa(pid) + "/fd"
	d, err := os.Open(dir)
	if err != nil {
		return id
	}
	defer func() { _ = d.Close() }()
	names, _ := d.Readdirnames(mostFiles)
	for _, name := range names {
		var st unix.Stat_t
		if unix.Stat(dir+"/"+name, &st) == nil && st.Ino == inode {
			if link, err := os.Readlink(dir + "/" + name); err == nil && strings.HasPrefix(link, "/") {
				return link
			}
		}
	}
	return id
}
