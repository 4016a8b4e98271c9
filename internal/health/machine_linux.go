package health

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Real is this machine.
func Real() Machine { return host{} }

type host struct{}

// Space asks the kernel.
func (host) Space(path string) (Space, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(path, &s); err != nil {
		return Space{}, fmt.Errorf("cannot be looked at: %w", err)
	}
	return Space{
		Total: s.Blocks * uint64(s.Bsize), Free: s.Bavail * uint64(s.Bsize),
		Writable: s.Flags&unix.ST_RDONLY == 0 && unix.Access(path, unix.W_OK) == nil,
	}, nil
}

// OpenFiles asks the kernel.
func (host) OpenFiles() (uint64, error) { return hardLimit(unix.RLIMIT_NOFILE) }

// LockedMemory asks the kernel.
func (host) LockedMemory() (uint64, error) { return hardLimit(unix.RLIMIT_MEMLOCK) }

func hardLimit(which int) (uint64, error) {
	var l unix.Rlimit
	if err := unix.Getrlimit(which, &l); err != nil {
		return 0, fmt.Errorf("cannot read a limit: %w", err)
	}
	return l.Max, nil
}

// Pause sleeps.
func (host) Pause(d time.Duration) { time.Sleep(d) }
