package proc

import (
	"errors"
	"os"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// siginfo is the part of siginfo_t that waitid fills in on 64-bit Linux; golang.org/x/sys keeps it opaque.
type siginfo struct {
	_   [3]int32 // signo, errno, code
	_   int32
	pid int32
	_   [108]byte
}

// peekDead returns a child that is dead and leaves it as it is; 0 when there is none.
func peekDead() (int, error) {
	for {
		var info siginfo
		err := unix.Waitid(unix.P_ALL, 0, (*unix.Siginfo)(unsafe.Pointer(&info)), unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		return int(info.pid), err
	}
}

func ptr(p *int32) uintptr { return uintptr(unsafe.Pointer(p)) }

// closeOnExec marks every descriptor above 2. Go opens its own that way; this is about inherited ones.
func closeOnExec() {
	if unix.CloseRange(3, ^uint(0), unix.CLOSE_RANGE_CLOEXEC) == nil {
		return
	}
	entries, err := os.ReadDir("/proc/self/fd") // before Linux 5.11
	if err != nil {
		return
	}
	for _, e := range entries {
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd > 2 {
			unix.CloseOnExec(fd)
		}
	}
}
