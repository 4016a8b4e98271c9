package gather

import (
	"maps"

	"golang.org/x/sys/unix"
)

func init() {
	maps.Copy(syscalls, map[int]string{
		unix.SYS_POLL: "poll", unix.SYS_SELECT: "select", unix.SYS_EPOLL_WAIT: "epoll_wait", unix.SYS_OPEN: "open",
		unix.SYS_ACCEPT: "accept",
	})
}
