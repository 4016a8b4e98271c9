package accel

import (
	"fmt"
	"io/fs"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Access asks the kernel with this process's effective ids; for device nodes the answer includes the device cgroup.
func (d dirRoot) Access(name string) error { return d.access(name, unix.R_OK|unix.W_OK) }

// Readable asks the kernel as Access does.
func (d dirRoot) Readable(name string) error { return d.access(name, unix.R_OK) }

func (d dirRoot) access(name string, mode uint32) error {
	path := filepath.Join(string(d), name)
	if err := unix.Faccessat(unix.AT_FDCWD, path, mode, unix.AT_EACCESS); err != nil {
		return &fs.PathError{Op: "access", Path: path, Err: err}
	}
	return nil
}

// Affinity asks the kernel for this thread's set, which workers inherit.
func (d dirRoot) Affinity() ([]int, error) {
	set := unix.NewCPUSet(MaxCPUs)
	if err := unix.SchedGetaffinityDynamic(0, set); err != nil {
		return nil, fmt.Errorf("cannot read the CPU affinity: %w", err)
	}
	var cpus []int
	for c := range MaxCPUs {
		if set.IsSet(c) {
			cpus = append(cpus, c)
		}
	}
	return cpus, nil
}
