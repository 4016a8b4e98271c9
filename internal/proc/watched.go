package proc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Watched is a process that somebody else has started, and waits for.
type Watched struct {
	pidfd *os.File
	began time.Time
}

// Watch begins to watch a process that lives. Close ends it. There is an error where the kernel has no pidfd (before 5.3).
func Watch(pid int) (*Watched, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot watch process %d: %w", pid, err)
	}
	if err := syscall.SetNonblock(fd, true); err != nil {
		return nil, errors.Join(err, syscall.Close(fd))
	}
	return &Watched{os.NewFile(uintptr(fd), "pidfd"), time.Now()}, nil
}

// Close ends the watching.
func (w *Watched) Close() error { return w.pidfd.Close() }

// ErrStatusUnknown says that a process has ended, and the kernel does not say how: it does so since Linux 6.15.
var ErrStatusUnknown = errors.New("the kernel does not say with which status the process has ended")

// Wait waits for the end of the process until ctx ends. What it returns has no processor time and no memory. With
// ErrStatusUnknown it has the times alone.
func (w *Watched) Wait(ctx context.Context) (Exit, error) {
	exit := Exit{Code: -1, Started: w.began}
	raw, err := w.pidfd.SyscallConn()
	if err != nil {
		return exit, err
	}
	defer context.AfterFunc(ctx, func() { _ = w.pidfd.SetReadDeadline(time.Now()) })()
	err = raw.Read(func(fd uintptr) bool {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, _ := unix.Poll(fds, 0)
		return n > 0
	})
	switch {
	case ctx.Err() != nil:
		return exit, context.Cause(ctx)
	case err != nil:
		return exit, err
	}
	exit.Ended = time.Now()
	status, err := w.status(ctx, raw)
	if err != nil {
		return exit, err
	}
	switch {
	case status.Exited():
		exit.Code = status.ExitStatus()
	case status.Signaled():
		exit.Signal, exit.CoreDumped = status.Signal(), status.CoreDump()
	}
	return exit, nil
}

// Who has started a process takes its status soon after its end, or nobody may know it for a long time.
const (
	statusTime = 10 * time.Second
	statusPace = 20 * time.Millisecond
)

// status is how the process has ended. The kernel tells it once who has started the process has taken it.
func (w *Watched) status(ctx context.Context, raw syscall.RawConn) (unix.WaitStatus, error) {
	tick := time.NewTicker(statusPace)
	defer tick.Stop()
	for late := time.Now().Add(statusTime); ; {
		var info pidfdInfo
		var errno syscall.Errno
		if err := raw.Control(func(fd uintptr) { info, errno = infoOf(fd) }); err != nil {
			return 0, err
		}
		switch {
		case errno == 0 && info.mask&pidfdInfoExit != 0:
			return unix.WaitStatus(info.exitCode), nil
		case errno != 0 && errno != unix.EINTR, time.Now().After(late):
			return 0, ErrStatusUnknown
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
}

// pidfdInfo is struct pidfd_info of linux/pidfd.h as Linux 6.15 has it, in 64 bytes.
type pidfdInfo struct {
	mask, _  uint64
	_        [11]uint32 // process ids, users and groups
	exitCode int32
}

// The numbers of linux/pidfd.h.
const (
	pidfdGetInfo  = 0xc040ff0b // _IOWR(0xff, 11, struct pidfd_info)
	pidfdInfoExit = 1 << 3
)

func infoOf(fd uintptr) (pidfdInfo, syscall.Errno) {
	info := pidfdInfo{mask: pidfdInfoExit}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, pidfdGetInfo, uintptr(unsafe.Pointer(&info)))
	return info, errno
}
