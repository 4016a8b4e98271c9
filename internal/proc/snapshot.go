package proc

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// ident names one process for ever: a pid alone is used again once its process is gone.
type ident struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // clock ticks since boot, field 22 of /proc/PID/stat
}

// procInfo is what /proc/PID/stat said at one moment.
type procInfo struct {
	ident
	ppid, pgrp, sid, threads int
	state                    byte
	comm                     string
	// ticks are clock ticks of CPU time, with those of children that it has waited for; pages are resident.
	ticks, pages int64
	// own are the clock ticks of the process alone.
	own int64
}

// dead reports a zombie none of whose threads runs any more: only its parent can remove it.
func (p *procInfo) dead() bool { return p.state == 'X' || p.state == 'Z' && p.threads <= 1 }

// snapshot is one reading of the process table. It is not atomic: what is forked while it is taken may be missing, so
// callers that act on an empty answer take two.
type snapshot struct {
	procs  map[int]*procInfo
	kids   map[int][]*procInfo
	cgroup map[int]bool // pids in the job's cgroup, where the caller filled it in
	// vanished says that a process was listed, and gone before it was read: what it has forked may be missing.
	vanished bool
}

// readSnapshot reads the whole process table. One pass over all of /proc is preferred to the children files below
// /proc/PID/task: those need CONFIG_PROC_CHILDREN, and proc(5) calls them unreliable while processes end.
func readSnapshot() (snapshot, error) {
	s := snapshot{procs: map[int]*procInfo{}, kids: map[int][]*procInfo{}, cgroup: map[int]bool{}}
	dir, err := os.Open("/proc")
	if err != nil {
		return s, fmt.Errorf("cannot list processes: %w", err)
	}
	defer func() { _ = dir.Close() }()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return s, fmt.Errorf("cannot list processes: %w", err)
	}
	var buf [1024]byte
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		p, err := readStat(int(dir.Fd()), pid, buf[:])
		if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ENOMEM) {
			return s, fmt.Errorf("cannot list processes: %w", err) // "nothing there" must not mean "nothing to be seen"
		}
		if err != nil { // it ended while we were reading, or is hidden from us
			s.vanished = s.vanished || isGone(err)
			continue
		}
		s.procs[pid] = p
		s.kids[p.ppid] = append(s.kids[p.ppid], p)
	}
	return s, nil
}

// readStat reads /proc/PID/stat below the directory dirfd, using buf for the text (400 bytes are the most there can
// be).
func readStat(dirfd, pid int, buf []byte) (*procInfo, error) {
	fd, err := unix.Openat(dirfd, strconv.Itoa(pid)+"/stat", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(fd) }()
	n, err := unix.Read(fd, buf)
	if err != nil {
		return nil, err
	}
	return parseStat(pid, buf[:n])
}

// statOf reads the state of one process.
func statOf(pid int) (*procInfo, error) {
	dirfd, err := unix.Open("/proc", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(dirfd) }()
	var buf [1024]byte
	return readStat(dirfd, pid, buf[:])
}

var errStat = errors.New("malformed /proc/PID/stat")

// parseStat reads the fields of proc(5). The name in parentheses is the process's own choice and may hold spaces,
// parentheses and line ends, so the fields are counted from the last closing one.
func parseStat(pid int, b []byte) (*procInfo, error) {
	open, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if open < 0 || end < open {
		return nil, errStat
	}
	var f [22][]byte // those behind them say nothing that is asked for
	n := 0
	for field := range bytes.FieldsSeq(b[end+1:]) {
		if f[n], n = field, n+1; n == len(f) {
			break
		}
	}
	if n < 20 || len(f[0]) != 1 {
		return nil, errStat
	}
	p := &procInfo{ident: ident{PID: pid}, comm: string(b[open+1 : end]), state: f[0][0]}
	for _, v := range []struct {
		to *int
		at int
	}{{&p.ppid, 1}, {&p.pgrp, 2}, {&p.sid, 3}, {&p.threads, 17}} {
		n, err := strconv.Atoi(string(f[v.at]))
		if err != nil {
			return nil, errStat
		}
		*v.to = n
	}
	start, err := strconv.ParseUint(string(f[19]), 10, 64)
	if err != nil {
		return nil, errStat
	}
	p.Start = start
	if n == len(f) {
		for _, at := range []int{11, 12, 13, 14} {
			n, _ := strconv.ParseInt(string(f[at]), 10, 64) // what is no number counts as 0
			p.ticks += n
			if at < 13 {
				p.own += n
			}
		}
		p.pages, _ = strconv.ParseInt(string(f[21]), 10, 64)
	}
	return p, nil
}

// signal sends sig to exactly this process, and where group is set to its whole process group. It does nothing when
// the process is gone, even if its pid was given to another one in the meantime.
func (id ident) signal(sig syscall.Signal, group bool) error {
	fd, err := unix.PidfdOpen(id.PID, 0)
	if err == nil {
		defer func() { _ = unix.Close(fd) }()
	} else if errors.Is(err, unix.ESRCH) {
		return nil
	}
	now, serr := statOf(id.PID)
	if serr != nil || now.Start != id.Start {
		return nil // unreadable means gone
	}
	switch {
	case err != nil: // no pidfd on this kernel (before 5.3) or in this sandbox: the check above is all there is
		err = unix.Kill(id.PID, sig)
	case group && now.pgrp != unix.Getpgrp():
		// The flag is Linux 6.9; the whole group at once leaves no member time to fork.
		if err = unix.PidfdSendSignal(fd, sig, nil, unix.PIDFD_SIGNAL_PROCESS_GROUP); err == nil {
			return nil
		}
		fallthrough
	default:
		err = unix.PidfdSendSignal(fd, sig, nil, 0)
	}
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}

// isGone reports whether a file of /proc could not be read because its process has ended.
func isGone(err error) bool { return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) }

// hasEnv reports whether the environment that the process was started with holds the entry marker ("NAME=VALUE").
// It is false for processes of other users, whose environment cannot be read or is not ours to judge by. unsure says that
// the process has ended, or that there is nothing in its environment: so the kernel has it also while a program is being
// started, which on a busy machine takes long.
func hasEnv(pid int, marker string) (has, unsure bool) {
	if marker == "" {
		return false, false
	}
	var st unix.Stat_t
	name := "/proc/" + strconv.Itoa(pid)
	if err := unix.Stat(name, &st); err != nil {
		return false, isGone(err)
	}
	if int(st.Uid) != os.Geteuid() {
		return false, false
	}
	env, err := os.ReadFile(name + "/environ")
	if err != nil {
		return false, isGone(err)
	}
	for entry := range bytes.SplitSeq(env, []byte{0}) {
		if string(entry) == marker {
			return true, false
		}
	}
	return false, len(env) == 0
}

// wchan returns the kernel function that the process waits in, or "" where the kernel does not say.
func wchan(pid int) string {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/wchan")
	if err != nil || string(b) == "0" {
		return ""
	}
	return string(b)
}
