package proc

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"muster/internal/errhint"
)

// maxCPUs is how many CPUs Linux can be built for.
const maxCPUs = 8192

var errUnbound = errors.New("cannot bind it")

// bindThread lets this thread, and what it forks, run on cpus alone until unbind is called; no CPUs change nothing. The
// caller is locked to the thread. Go starts no other thread from a locked one, so that no thread of ours inherits it.
func (t *Tree) bindThread(cpus []int) (unbind func(), err error) {
	if len(cpus) == 0 {
		return func() {}, nil
	}
	before, set := unix.NewCPUSet(maxCPUs), unix.NewCPUSet(slices.Max(cpus)+1)
	if err := unix.SchedGetaffinityDynamic(0, before); err != nil {
		return nil, fmt.Errorf("%w to CPUs: cannot read our own: %w", errUnbound, err)
	}
	for _, c := range cpus {
		set.Set(c)
	}
	if err := unix.SchedSetaffinityDynamic(0, set); err != nil {
		err = fmt.Errorf("%w to CPUs (%d, from %d to %d): %w", errUnbound, len(cpus), slices.Min(cpus), slices.Max(cpus), err)
		if errors.Is(err, unix.EINVAL) {
			err = errhint.With(err, "were they taken from this container since muster was started?")
		}
		return nil, err
	}
	return func() {
		// Where those of before are gone, all that the kernel will give. Processes that are not bound start from here.
		if unix.SchedSetaffinityDynamic(0, before) == nil {
			return
		}
		before.Fill()
		if err := unix.SchedSetaffinityDynamic(0, before); err != nil {
			t.log.Warn().Err(err).Msg("the thread that starts processes is still bound to CPUs")
		}
	}, nil
}
