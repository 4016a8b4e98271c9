package proc

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// guardianState is all that the guardian needs to know. It is sent whole whenever it changes, as one line of JSON: a
// new guardian is brought up to date by the same message, and a torn last one leaves the one before it.
type guardianState struct {
	Agent    ident   `json:"agent"`
	Marker   string  `json:"marker,omitempty"`
	Cgroup   string  `json:"cgroup,omitempty"`
	Sessions []ident `json:"sessions,omitempty"` // workers, running or ended; pid = group = session
	// the same of templates, spare workers and what runs beside, which a lease does not concern
	Others   []ident  `json:"others,omitempty"`
	Escaped  []ident  `json:"escaped,omitempty"` // what left those sessions
	Remove   []string `json:"remove,omitempty"`
	Lease    int64    `json:"lease,omitempty"` // see Tree.SetLease; in ns of the monotonic clock, 0: none
	Run      []string `json:"run,omitempty"`   // see Tree.RunOnDeath
	RunLimit int64    `json:"run_limit,omitempty"`
}

// guardian is the agent's side of it.
type guardian struct {
	proc *Process
	conn *os.File
	sent string // the last state it was sent
}

const (
	// guardianFD is where the guardian finds its end of the socket pair.
	guardianFD = 3
	// guardianStall is how long a message may take before the guardian counts as broken. It normally takes
	// microseconds; a stopped guardian still has a socket buffer of some hundred messages.
	guardianStall = time.Second
	// guardianRetry is the first pause before a guardian that did not last is replaced again; it doubles up to the
	// limit.
	guardianRetry      = 50 * time.Millisecond
	guardianRetryLimit = 5 * time.Second
)

// startGuardian starts a guardian and tells it all.
func (t *Tree) startGuardian() error {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("cannot start the guardian: %w", err)
	}
	conn, theirs := os.NewFile(uintptr(pair[0]), "guardian"), os.NewFile(uintptr(pair[1]), "guardian")
	defer func() { _ = theirs.Close() }()
	p, err := t.start(Spec{
		Path: t.cfg.Guardian[0], Args: t.cfg.Guardian, Dir: "/", Label: "the guardian",
		// One processor is all it needs, whatever the cgroup allows. Nothing of our environment: neither the marker,
		// nor what we were told in secret.
		Env:   []string{"GOMAXPROCS=1", "GODEBUG=containermaxprocs=0,updatemaxprocs=0", "GOTRACEBACK=none"},
		Files: []*os.File{nil, nil, t.cfg.GuardianOutput, theirs},
	}, asGuardian)
	if err != nil {
		_ = conn.Close()
		return err
	}
	g := &guardian{proc: p, conn: conn}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.guard = g
	if t.leaving { // Close did not see this one
		t.guard = nil
		_ = p.Signal(unix.SIGKILL)
	}
	t.pushLocked()
	t.wg.Go(func() { t.watchGuardian(g, time.Now()) })
	return nil
}

// watchGuardian replaces the guardian when it dies; the job does not notice.
func (t *Tree) watchGuardian(g *guardian, since time.Time) {
	<-g.proc.done
	_ = g.conn.Close()
	t.mu.Lock()
	if t.guard == g {
		t.guard = nil
	}
	leaving := t.leaving
	t.mu.Unlock()
	if leaving {
		return
	}
	t.log.Warn().Int("pid", g.proc.PID()).Str("exit", g.proc.exit.String()).Msg("guardian ended, starting a new one")
	pause := time.Duration(0)
	if time.Since(since) < guardianRetryLimit {
		pause = guardianRetry
	}
	for {
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-t.closing:
			timer.Stop()
			return
		}
		err := t.startGuardian()
		if err == nil || errors.Is(err, ErrClosed) {
			return
		}
		t.log.Warn().Err(err).Msg("no guardian")
		pause = min(max(2*pause, guardianRetry), guardianRetryLimit)
	}
}

// pushLocked sends the guardian the present state if it has another one. A guardian that does not read is killed, and
// its successor gets the state.
func (t *Tree) pushLocked() {
	g := t.guard
	if g == nil {
		return
	}
	line, err := json.Marshal(t.guardianStateLocked())
	if err != nil {
		panic("internal error: guardian state: " + err.Error()) // plain numbers and strings
	}
	if string(line) == g.sent {
		return
	}
	g.sent = string(line)
	err = g.conn.SetWriteDeadline(time.Now().Add(guardianStall))
	if err == nil {
		_, err = g.conn.Write(append(line, '\n'))
	}
	if err != nil {
		t.log.Debug().Err(err).Msg("guardian does not listen")
		t.guard = nil
		_ = g.proc.Signal(unix.SIGKILL)
	}
}

func (t *Tree) guardianStateLocked() guardianState {
	st := guardianState{
		Agent: t.self, Marker: t.cfg.Marker, Cgroup: t.cgroupPathLocked(), Remove: t.remove, Lease: t.lease, Run: t.run,
		RunLimit: int64(t.runLimit),
	}
	for _, p := range t.live {
		switch p.role {
		case asWorker:
			st.Sessions = append(st.Sessions, p.id)
		case asTemplate, asBeside:
			st.Others = append(st.Others, p.id)
		case asGuardian:
		}
	}
	for _, p := range t.past {
		st.Sessions = append(st.Sessions, p.id)
	}
	for id := range t.seen {
		st.Escaped = append(st.Escaped, id)
	}
	byPID := func(a, b ident) int { return a.PID - b.PID }
	slices.SortFunc(st.Sessions, byPID)
	slices.SortFunc(st.Others, byPID)
	slices.SortFunc(st.Escaped, byPID)
	return st
}

// SetLease has the guardian kill all workers, by SIGKILL, if it hears of no later time until then: where
// others go on without this node, nothing may be left of its workers, though the agent stands still. The zero time ends
// that. A tree without a guardian cannot do it.
func (t *Tree) SetLease(until time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lease = 0
	if !until.IsZero() {
		t.lease = max(monotonic()+int64(time.Until(until)), 1)
	}
	t.pushLocked()
}

// monotonic is the time of a clock that all processes of the machine share, in nanoseconds.
func monotonic() int64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) // it cannot fail
	return ts.Nano()
}

// RemoveOnDeath adds to what the guardian removes after the agent was killed: absolute paths of files and directories,
// with all that is in them. A normal end removes nothing.
func (t *Tree) RemoveOnDeath(paths ...string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.addRemovals(paths); err != nil {
		return err
	}
	t.pushLocked()
	return nil
}

// RunOnDeath has the guardian run a command after the agent was killed and nothing of the job is left: argv[0] is a
// path, the environment is empty, and output goes to Config.GuardianOutput. It is killed after limit, and if the
// guardian is. A normal end runs nothing, and a later call replaces the command.
func (t *Tree) RunOnDeath(argv []string, limit time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.run, t.runLimit = slices.Clone(argv), limit
	t.pushLocked()
}

func (t *Tree) addRemovals(paths []string) error {
	for _, p := range paths {
		if !filepath.IsAbs(p) || p != filepath.Clean(p) || filepath.Dir(p) == p {
			return fmt.Errorf("cannot promise to remove %q: want a clean absolute path", p)
		}
	}
	t.remove = append(slices.Clip(t.remove), paths...)
	return nil
}
