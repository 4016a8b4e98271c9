package proc

import (
	"io"
	"os"
	"syscall"
)

// GuardianPID returns the guardian's pid, 0 while there is none.
func (t *Tree) GuardianPID() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.guard == nil {
		return 0
	}
	return t.guard.proc.PID()
}

// Scan records escaped processes now, as the scanner does from time to time.
func (t *Tree) Scan() { t.scan() }

// Stat is what parseStat reads.
type Stat struct {
	PPID, PGRP, SID, Threads int
	Start                    uint64
	State                    byte
	Comm                     string
	Dead                     bool
}

func ParseStat(pid int, b []byte) (Stat, error) {
	p, err := parseStat(pid, b)
	if err != nil {
		return Stat{}, err
	}
	return Stat{p.ppid, p.pgrp, p.sid, p.threads, p.Start, p.state, p.comm, p.dead()}, nil
}

// SignalIfSame signals pid as a process that started start ticks after boot, off by the given number.
func SignalIfSame(pid int, off uint64, sig syscall.Signal) error {
	p, err := statOf(pid)
	if err != nil {
		return err
	}
	id := p.ident
	id.Start += off
	return id.signal(sig, false)
}

// WithoutPidfd makes the tree work as on a kernel that has no pidfd.
func (t *Tree) WithoutPidfd() { t.noPidfd = true }

func OOMKillsBelow(root string) (int64, string, error) { return oomKills(root) }

func FreeMemoryBelow(root string) (int64, bool) { return freeMemory(root) }

func CheckELF(path string, f io.ReaderAt, head []byte) error { return checkELF(path, f, head) }

// Children returns how many children we have, and how many of them are dead and not reaped.
func Children() (all, zombies int, err error) {
	s, err := readSnapshot()
	for _, p := range s.kids[os.Getpid()] {
		all++
		if p.state == 'Z' {
			zombies++
		}
	}
	return all, zombies, err
}

// SpareConfined makes Confine's SIGKILL do nothing, as if the process hung in the kernel, until restore is called.
func SpareConfined() (restore func()) {
	killConfined = func(int, syscall.Signal) error { return nil }
	return func() { killConfined = syscall.Kill }
}

// Whereabouts is where a process hangs.
func Whereabouts(pid int) *Abandoned { return whereabouts(pid) }
