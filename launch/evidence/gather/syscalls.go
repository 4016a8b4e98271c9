package gather

import (
	"encoding/binary"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

var littleEndian = binary.NativeEndian.Uint16([]byte{1, 0}) == 1

// syscalls are those in which processes wait; the rest is told by its number.
var syscalls = map[int]string{
	unix.SYS_FUTEX: "futex", unix.SYS_READ: "read", unix.SYS_READV: "readv", unix.SYS_WRITE: "write", unix.SYS_WRITEV: "writev",
	unix.SYS_PPOLL: "ppoll", unix.SYS_PSELECT6: "pselect6", unix.SYS_EPOLL_PWAIT: "epoll_pwait", unix.SYS_FLOCK: "flock",
	unix.SYS_FCNTL: "fcntl", unix.SYS_CLOCK_NANOSLEEP: "clock_nanosleep", unix.SYS_NANOSLEEP: "nanosleep",
	unix.SYS_RECVFROM: "recvfrom", unix.SYS_RECVMSG: "recvmsg", unix.SYS_SENDTO: "sendto", unix.SYS_SENDMSG: "sendmsg",
	unix.SYS_WAIT4: "wait4", unix.SYS_WAITID: "waitid", unix.SYS_CONNECT: "connect", unix.SYS_ACCEPT4: "accept4",
	unix.SYS_FSYNC: "fsync", unix.SYS_FDATASYNC: "fdatasync", unix.SYS_OPENAT: "openat", unix.SYS_FALLOCATE: "fallocate",
	unix.SYS_IOCTL: "ioctl", unix.SYS_MADVISE: "madvise", unix.SYS_MMAP: "mmap", unix.SYS_MUNMAP: "munmap",
	unix.SYS_CLONE: "clone", unix.SYS_CLONE3: "clone3", unix.SYS_EXECVE: "execve", unix.SYS_STATFS: "statfs", unix.SYS_SYNC: "sync",
	unix.SYS_RENAMEAT: "renameat", unix.SYS_UNLINKAT: "unlinkat", unix.SYS_MKDIRAT: "mkdirat", unix.SYS_STATX: "statx",
}

// syscallName reads /proc/PID/syscall.
func syscallName(line string) string {
	number, _, _ := strings.Cut(line, " ")
	n, err := strconv.Atoi(number)
	if err != nil || n < 0 { // "running", or nothing
		return ""
	}
	if name := syscalls[n]; name != "" {
		return name
	}
	return "syscall " + number
}
