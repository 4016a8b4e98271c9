package gather

import (
	"maps"

	"golang.org/x/sys/unix"
)

func init() {
	maps.Copy(syscalls, map[int]string{
		unix.SYS_POLL: "poll", unix.SYS_SELECT: "select", unix.SYS_EPOLL_WAIT: "epoll_wait", unix.SYS_OPEN: "open",
		unix.SYS_ACCEPT: "accept", unix.SYS_VFORK: "vfork", unix.SYS_STAT: "stat", unix.SYS_RENAME: "rename", unix.SYS_UNLINK: "unlink",
		unix.SYS_MKDIR: "mkdir", unix.SYS_NEWFSTATAT: "newfstatat",
	})
}
