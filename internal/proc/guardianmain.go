package proc

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// buryPolite is how long what is left of the job may take to end after SIGTERM; all of it is to be gone within 2 s.
	buryPolite = time.Second
	// buryLimit ends the attempts to kill what does not die of SIGKILL.
	buryLimit = 30 * time.Second
	buryPause = 10 * time.Millisecond
)

// RunGuardian is the whole life of the guardian process, and returns its exit status. It listens on descriptor 3 until
// the agent is gone, kills what is left of the job, removes what the agent named, runs the command that it named, and
// ends. cmd calls it before anything else when it finds that it was started as a guardian. It runs on one goroutine:
// the less there is of it, the less memory it costs each job.
func RunGuardian() int {
	signal.Ignore(unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT)
	var kind int
	if kind, _ = unix.GetsockoptInt(guardianFD, unix.SOL_SOCKET, unix.SO_TYPE); kind != unix.SOCK_STREAM {
		return 2 // started by hand
	}
	if err := unix.SetNonblock(guardianFD, false); err != nil {
		return 2
	}
	unix.CloseOnExec(guardianFD)
	st, err := listen(guardianFD)
	if err != nil || st.Agent.PID == 0 {
		return 2
	}
	b := newBurial(st)
	b.st.Sessions = append(b.st.Sessions, st.Others...)
	ok := b.killAll()
	removeCgroupSoon(st.Cgroup)
	for _, path := range st.Remove {
		ok = os.RemoveAll(path) == nil && ok
	}
	if len(st.Run) > 0 {
		ok = runLast(st.Run, time.Duration(st.RunLimit)) && ok
	}
	if !ok {
		return 1
	}
	return 0
}

// listen reads states until the agent's end is closed, and returns the last whole one. What runs when a lease has ended
// is killed meanwhile.
func listen(fd int) (guardianState, error) {
	var st guardianState
	var pending []byte
	buf := make([]byte, 4096)
	for {
		if st.Lease > 0 && !readable(fd, time.Duration(st.Lease-monotonic())) {
			newBurial(st).fence(fd)
			st.Lease = 0
		}
		n, err := unix.Read(fd, buf)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.ECONNRESET):
			n = 0 // the agent died with something of ours unread
		case err != nil:
			return st, err
		}
		if n == 0 {
			return st, nil
		}
		pending = append(pending, buf[:n]...)
		end := bytes.LastIndexByte(pending, '\n')
		if end < 0 {
			continue
		}
		last := pending[bytes.LastIndexByte(pending[:end], '\n')+1 : end]
		var next guardianState
		if err := json.Unmarshal(last, &next); err != nil {
			return st, err
		}
		st, pending = next, append(pending[:0], pending[end+1:]...)
	}
}

// readable waits until fd has something to read, but no longer than limit, and reports whether it has.
func readable(fd int, limit time.Duration) bool {
	for end := time.Now().Add(limit); ; {
		ms := max(time.Until(end).Milliseconds(), 0)
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(ms)+1)
		if n > 0 || err != nil && !errors.Is(err, unix.EINTR) {
			return true
		}
		if !time.Now().Before(end) {
			return false
		}
	}
}

// burial kills what an agent left behind.
type burial struct {
	st      guardianState
	ours    map[ident]bool
	spared  []ident        // whose sessions are left alone
	checked map[ident]bool // environment read: no marker
	asked   map[ident]bool
	// unsure says that the last find met a process that may be about to begin a program of the job, or has just done so in
	// another one and ended.
	unsure bool
}

func newBurial(st guardianState) *burial {
	b := &burial{st: st, ours: map[ident]bool{}, checked: map[ident]bool{}, asked: map[ident]bool{}}
	for _, id := range st.Escaped {
		b.ours[id] = true
	}
	return b
}

// killAll asks everything once, kills after buryPolite, and returns true when nothing is left.
func (b *burial) killAll() bool {
	start := time.Now()
	var quiet time.Time // when the last one was gone
	for empty := 0; ; {
		snap, err := readSnapshot()
		if err != nil {
			return false
		}
		found := b.find(snap)
		if len(found) == 0 {
			if quiet.IsZero() {
				quiet = time.Now()
			}
			// What a handler of SIGTERM starts may be forked from one process to the next while each is looked for.
			if (b.unsure || snap.vanished) && time.Since(quiet) < buryPolite {
				empty = 0
				time.Sleep(buryPause)
				continue
			}
			// Twice, since a snapshot can miss what is forked while it is taken.
			if empty++; empty == 2 {
				return true
			}
			continue
		}
		empty, quiet = 0, time.Time{}
		late := time.Since(start)
		if late > buryLimit {
			return false
		}
		if late > buryPolite {
			killCgroup(b.st.Cgroup)
		}
		for _, p := range found {
			switch {
			case late > buryPolite:
				_ = p.signal(unix.SIGKILL, true) // looked for again in the next round
			case !b.asked[p.ident]:
				b.asked[p.ident] = true
				_ = p.signal(unix.SIGTERM, false)
				_ = p.signal(unix.SIGCONT, false)
			}
		}
		time.Sleep(buryPause)
	}
}

// fence kills all at once, while the agent stands still. When it is heard of again the rest is its own affair.
func (b *burial) fence(fd int) {
	b.spared = b.st.Others
	for empty, end := 0, time.Now().Add(buryLimit); empty < 2 && time.Now().Before(end); {
		snap, err := readSnapshot()
		if err != nil {
			return
		}
		found := b.find(snap)
		if empty++; len(found) > 0 {
			empty = 0
		}
		// Workers first: one that sees its child die could still end with status 0, and pass for one whose work is
		// done.
		slices.SortStableFunc(found, func(x, y *procInfo) int { return b.rank(x) - b.rank(y) })
		if readable(fd, 0) { // it goes on, and among those found may be workers that it has started since
			return
		}
		for _, p := range found {
			_ = p.signal(unix.SIGKILL, true) // looked for again in the next round
		}
		if len(found) > 0 && readable(fd, buryPause) {
			return
		}
	}
}

// rank is 0 for a worker and 1 for what descends from one.
func (b *burial) rank(p *procInfo) int {
	if slices.Contains(b.st.Sessions, p.ident) {
		return 0
	}
	return 1
}

// find returns the processes of the job that still run: those seen to be its own while the agent lived, members of a
// worker's session or group, those with the marker, those in the cgroup, and what descends from any of them.
func (b *burial) find(s snapshot) []*procInfo {
	sessions := map[int]bool{}
	for _, w := range b.st.Sessions {
		// A session id stays taken while the session has a member. If its leader is another process than the worker,
		// it is another session.
		if p := s.procs[w.PID]; p == nil || p.ident == w {
			sessions[w.PID] = true
		}
	}
	cgroupMembers(b.st.Cgroup, s.cgroup)
	b.unsure = false
	for _, p := range s.procs {
		if sessions[p.sid] || sessions[p.pgrp] || s.cgroup[p.PID] || b.marked(p) {
			b.ours[p.ident] = true
		}
	}
	var found []*procInfo
	done := map[int]bool{os.Getpid(): true}
	for _, p := range s.procs {
		if leader := s.procs[p.sid]; leader != nil && slices.Contains(b.spared, leader.ident) {
			done[p.PID] = true
		}
	}
	if p := s.procs[b.st.Agent.PID]; p != nil && p.ident == b.st.Agent {
		done[p.PID] = true
	}
	var walk func(p *procInfo)
	walk = func(p *procInfo) {
		if done[p.PID] {
			return
		}
		done[p.PID] = true
		b.ours[p.ident] = true
		if !p.dead() { // a zombie is for its new parent to remove
			found = append(found, p)
		}
		for _, kid := range s.kids[p.PID] {
			walk(kid)
		}
	}
	for _, p := range s.procs {
		if b.ours[p.ident] {
			walk(p)
		}
	}
	return found
}

// marked reports whether p carries the agent's marker. Its age says nothing: what handles SIGTERM by starting a daemon
// is younger than the agent's death.
func (b *burial) marked(p *procInfo) bool {
	if b.ours[p.ident] || b.checked[p.ident] {
		return false
	}
	has, unsure := hasEnv(p.PID, b.st.Marker)
	switch {
	case has:
		return true
	case !unsure || p.dead() || p.PID == kthreadd || p.ppid == kthreadd:
		b.checked[p.ident] = true
	case p.Start >= b.st.Agent.Start: // it is looked at again
		b.unsure = true
	}
	return false
}

// kthreadd is the parent of the kernel's threads, which have no environment.
const kthreadd = 2

// removeCgroupSoon removes the cgroup, which is busy until the last zombie in it was reaped by its new parent.
func removeCgroupSoon(path string) {
	if path == "" {
		return
	}
	for end := time.Now().Add(buryPolite); removeCgroup(path) != nil && time.Now().Before(end); {
		time.Sleep(buryPause)
	}
}

// runLast runs a command, and reports whether it ended well and in time. The kernel kills it with us.
func runLast(argv []string, limit time.Duration) bool {
	runtime.LockOSThread() // the thread's end, not the process's, sends the parent-death signal
	defer runtime.UnlockOSThread()
	pid, err := syscall.ForkExec(argv[0], argv, &syscall.ProcAttr{
		Dir: "/", Env: []string{}, Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL},
	})
	if err != nil {
		return false
	}
	end := time.Now().Add(limit)
	for killed := false; ; {
		var status unix.WaitStatus
		got, err := unix.Wait4(pid, &status, unix.WNOHANG, nil)
		switch {
		case got == pid:
			return status.Exited() && status.ExitStatus() == 0
		case err != nil && !errors.Is(err, unix.EINTR):
			return false
		case !killed && time.Now().After(end):
			killed = true
			_ = unix.Kill(pid, unix.SIGKILL) // ours, and not waited for
		case time.Now().After(end.Add(buryPolite)): // it hangs in a call of the kernel
			return false
		}
		time.Sleep(buryPause)
	}
}
