package accel

import (
	"fmt"
	"io/fs"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Access asks the kernel with this process's effective ids; for device nodes the answer includes the device cgroup.
func (d dirRoot) Access(name string) error {
	path := filepath.Join(string(d), name)
	if err := unix.Faccessat(unix.AT_FDCWD, path, unix.R_OK|unix.W_OK, unix.AT_EACCESS); err != nil {
		return &fs.PathError{Op: "access", Path: path, Err: err}
	}
	return nil
}

// maxCPUs is the largest CPU number asked for; Linux is built for at most 8192 CPUs.
const maxCPUs = 8192

// Affinity asks the kernel for this thread's set, which workers inherit.
func (d dirRoot) Affinity() ([]int, error) {
	set := unix.NewCPUSet(maxCPUs)
	if err := unix.SchedGetaffinityDynamic(0, set); err != nil {
		return nil, fmt.Errorf("cannot read the CPU affinity: %w", err)
	}
	var cpus []int
	for c := range maxCPUs {
		if set.IsSet(c) {
			cpus = append(cpus, c)
		}
	}
	return cpus, nil
}
