package health

import (
	"time"

	"muster/internal/accel/rehearsal"
)

// Faked is a machine with what a spec says in the place of its own file systems, limits and kernel log. One of several
// that are simulated has no limits but the spec's: those of the process are no node's, and the same for all.
func Faked(machine Machine, fake *rehearsal.Fake, simulated bool) Machine {
	return faked{machine, fake, fake.Limits(), simulated}
}

type faked struct {
	Machine
	fake   *rehearsal.Fake
	limits rehearsal.FakeLimits
	// simulated says that the node is one of several on this machine.
	simulated bool
}

// Space is the machine's, with the spec's sizes.
func (f faked) Space(path string) (Space, error) {
	s, err := f.Machine.Space(path)
	if path != "/dev/shm" {
		if free := f.limits.DiskFreeMiB; free != nil {
			s.Free = uint64(*free) * mib
			s.Total, err = max(s.Total, s.Free), nil
		}
		return s, err
	}
	if size := f.limits.ShmMiB; size != nil {
		s.Total, s.Free, s.Writable, err = uint64(*size)*mib, uint64(*size)*mib, true, nil
	}
	if f.limits.ShmReadOnly {
		s.Writable = false
	}
	return s, err
}

// OpenFiles is the spec's limit, or the process's.
func (f faked) OpenFiles() (uint64, error) {
	if files := f.limits.OpenFiles; files != nil {
		return uint64(*files), nil
	}
	if f.simulated {
		return noLimit, nil
	}
	return f.Machine.OpenFiles()
}

// LockedMemory is the spec's limit, or the process's.
func (f faked) LockedMemory() (uint64, error) {
	switch kib := f.limits.LockedKiB; {
	case kib != nil && *kib < 0:
		return noLimit, nil
	case kib != nil:
		return uint64(*kib) << 10, nil
	case f.simulated:
		return noLimit, nil
	}
	return f.Machine.LockedMemory()
}

// KernelLog is what the spec's kernel has said: errors of GPUs that the machine has are no fake's.
func (f faked) KernelLog() (KernelLog, error) {
	lines, err := f.fake.KernelLog()
	log := KernelLog{From: "fake"}
	for _, l := range lines {
		log.Lines = append(log.Lines, LogLine(l))
	}
	return log, err
}

// Pause does not wait: a fake does not change.
func (f faked) Pause(time.Duration) {}
