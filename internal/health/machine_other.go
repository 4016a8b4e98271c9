//go:build !linux

package health

import (
	"errors"
	"time"
)

// Real is this machine, of which nothing can be said.
func Real() Machine { return host{} }

type host struct{}

var errOther = errors.New("known on Linux only")

// Space is not known here.
func (host) Space(string) (Space, error) { return Space{}, errOther }

// OpenFiles is not known here.
func (host) OpenFiles() (uint64, error) { return 0, errOther }

// LockedMemory is not known here.
func (host) LockedMemory() (uint64, error) { return 0, errOther }

// KernelLog is not known here.
func (host) KernelLog() (KernelLog, error) { return KernelLog{}, errOther }

// Pause sleeps.
func (host) Pause(d time.Duration) { time.Sleep(d) }
