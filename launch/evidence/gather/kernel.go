package gather

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// majorFaults is how often the process has waited for memory that was read from a disk.
func (l *look) majorFaults() uint64 {
	stat, err := os.ReadFile(l.path("stat"))
	if err != nil {
		return 0
	}
	f := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(f) < 10 {
		return 0
	}
	n, _ := strconv.ParseUint(string(f[9]), 10, 64) // what is no number counts as 0
	return n
}

// throttledFor is for how long limits of its control groups have kept the process from every core: of the group, and of
// those around it, the one that has the most.
func (l *look) throttledFor() (most nanoseconds) {
	text, err := os.ReadFile(l.path("cgroup"))
	if err != nil {
		return 0
	}
	for _, dir := range cpuGroups(string(text)) {
		for ; strings.HasPrefix(dir, groupsRoot+"/"); dir = path.Dir(dir) {
			if stat, err := os.ReadFile(dir + "/cpu.stat"); err == nil {
				most = max(most, throttledIn(string(stat)))
			}
		}
	}
	return most
}

const groupsRoot = "/sys/fs/cgroup"

// cpuGroups are the directories of the control groups that a process's /proc/PID/cgroup names and that may limit its
// cores, of version 1 and 2.
func cpuGroups(text string) (dirs []string) {
	for l := range strings.Lines(text) {
		parts := strings.SplitN(strings.TrimSpace(l), ":", 3)
		if len(parts) != 3 {
			continue
		}
		switch of := strings.Split(parts[1], ","); {
		case parts[0] == "0" && parts[1] == "":
			dirs = append(dirs, path.Join(groupsRoot, parts[2]), path.Join(groupsRoot, "unified", parts[2]))
		case slices.Contains(of, "cpu"):
			dirs = append(dirs, path.Join(groupsRoot, parts[1], parts[2]), path.Join(groupsRoot, "cpu", parts[2]))
		}
	}
	return dirs
}

// throttledIn reads cpu.stat: throttled_usec of version 2, throttled_time of version 1.
func throttledIn(stat string) nanoseconds {
	for l := range strings.Lines(stat) {
		name, value, _ := strings.Cut(strings.TrimSpace(l), " ")
		n, err := strconv.ParseUint(value, 10, 64)
		switch {
		case err != nil:
		case name == "throttled_usec":
			return nanoseconds(n * 1000)
		case name == "throttled_time":
			return nanoseconds(n)
		}
	}
	return 0
}

// pipesOf are the processes that have a pipe, by its name.
func pipesOf(looked []*look) map[string][]*look {
	all := map[string][]*look{}
	for _, l := range looked {
		for _, name := range l.pipes {
			if has := all[name]; !slices.Contains(has, l) {
				all[name] = append(has, l)
			}
		}
	}
	return all
}

// target finds out what the system call of the main thread is about.
func (l *look) target(ctx context.Context, pipes map[string][]*look) {
	for i := range l.to.Threads {
		t := &l.to.Threads[i]
		if t.TID != l.PID || t.Syscall == "" {
			continue
		}
		arguments := strings.Fields(line(l.path("task/" + strconv.Itoa(t.TID) + "/syscall")))
		if len(arguments) < 3 || syscallName(arguments[0]) != t.Syscall {
			return // it has gone on
		}
		switch t.Syscall {
		case "read", "readv", "write", "writev", "recvfrom", "recvmsg", "sendto", "sendmsg", "flock", "fcntl", "fsync", "fdatasync",
			"fallocate", "ioctl":
			t.Target = l.descriptor(arguments[1], pipes)
		case "open", "stat", "unlink", "rename", "mkdir", "execve", "statfs":
			t.Target = l.pathAt(ctx, arguments[1])
		case "openat", "newfstatat", "statx", "unlinkat", "renameat", "mkdirat":
			t.Target = l.pathAt(ctx, arguments[2])
		case "wait4":
			t.Target = awaited(arguments[1])
		}
		return
	}
}

// awaited is the process for which wait4 waits, by its first argument: a process group and "any child" are negative
// numbers of 32 bits, of which the kernel tells the register.
func awaited(argument string) string {
	register, err := strconv.ParseUint(strings.TrimPrefix(argument, "0x"), 16, 64)
	switch pid := int32(register); { // the kernel takes the lower half, too
	case err != nil:
		return ""
	case pid > 0:
		return fmt.Sprintf("process %d", pid)
	case pid < -1:
		return fmt.Sprintf("a process of group %d", -int64(pid))
	}
	return "any child"
}

// descriptor is what a descriptor of the process leads to.
func (l *look) descriptor(argument string, pipes map[string][]*look) string {
	fd, err := strconv.ParseUint(strings.TrimPrefix(argument, "0x"), 16, 32)
	if err != nil {
		return ""
	}
	link, err := os.Readlink(l.path("fd/" + strconv.FormatUint(fd, 10)))
	switch {
	case err != nil:
		return ""
	case strings.HasPrefix(link, "socket:"):
		return "a connection"
	case !strings.HasPrefix(link, "pipe:"):
		return link
	}
	for _, o := range pipes[link] {
		if o != l {
			return fmt.Sprintf("a pipe that process %d (%s) has, too", o.PID, o.Name)
		}
	}
	return "a pipe"
}

// pathAt is a path in the memory of the process, empty where it cannot be read.
func (l *look) pathAt(ctx context.Context, argument string) string {
	at, err := strconv.ParseUint(strings.TrimPrefix(argument, "0x"), 16, 63)
	if err != nil {
		return ""
	}
	read := make(chan string, 1)
	risky(ctx, func() { // a process may have its memory locked while it waits
		mem, err := os.Open(l.path("mem"))
		if err != nil {
			return
		}
		defer func() { _ = mem.Close() }()
		text := make([]byte, 512)
		n, _ := mem.ReadAt(text, int64(at)) // as far as there is memory
		if end := bytes.IndexByte(text[:n], 0); end > 0 {
			read <- string(text[:end])
		}
	})
	select {
	case text := <-read:
		return text
	default:
		return ""
	}
}

// findFull finds files that the process has open to write, and directories that it uses, on file systems without space.
func (l *look) findFull(ctx context.Context) {
	found := make(chan []string, 1)
	risky(ctx, func() {
		var full []string
		had := map[unix.Fsid]bool{}
		try := func(name string) {
			var st unix.Statfs_t
			if unix.Statfs(l.path(name), &st) != nil || had[st.Fsid] || st.Flags&unix.ST_RDONLY != 0 || st.Blocks == 0 {
				return
			}
			had[st.Fsid] = true
			const little = 16 << 10
			if link, err := os.Readlink(l.path(name)); err == nil &&
				(st.Bavail*uint64(st.Bsize) < little || st.Files > 0 && st.Ffree == 0) {
				full = append(full, link)
			}
		}
		for _, fd := range l.files {
			if l.writes(fd) {
				try("fd/" + fd)
			}
		}
		try("cwd")
		found <- full
	})
	select {
	case l.to.Full = <-found:
	default:
	}
}

// writes reports whether a descriptor of the process is there to write.
func (l *look) writes(fd string) bool {
	_, rest, _ := strings.Cut(line64k(l.path("fdinfo/"+fd)), "flags:")
	text, _, _ := strings.Cut(strings.TrimSpace(rest), "\n")
	flags, err := strconv.ParseUint(text, 8, 64)
	return err == nil && flags&unix.O_ACCMODE != unix.O_RDONLY
}
