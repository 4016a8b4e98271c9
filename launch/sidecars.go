package launch

import (
	"cmp"
	"context"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"muster/internal/errhint"
	"muster/internal/printable"
	"muster/internal/proc"
	"muster/launch/control"
	"muster/launch/evidence/gather"
	"muster/launch/output"
	"muster/launch/plan"
	"muster/launch/report"
)

const (
	// sidecarPause is the pause before the first restart of a sidecar. It doubles up to sidecarPauseMost, and begins
	// anew after a process that ran for that long.
	sidecarPause     = time.Second
	sidecarPauseMost = time.Minute
	// sidecarGrace is how long a sidecar may take to end after SIGTERM, sidecarShow how long its last output is waited
	// for.
	sidecarGrace = 5 * time.Second
	sidecarShow  = time.Second
	// sidecarSoon is how often a sidecar is looked at that has just been started, for sidecarYoung; sidecarEvery later.
	// sidecarDial bounds a connection to it.
	sidecarSoon  = 500 * time.Millisecond
	sidecarYoung = 30 * time.Second
	sidecarEvery = 5 * time.Second
	sidecarDial  = time.Second
)

// sidecars are the processes that run beside the workers while this node has group rank 0. Rounds come and go without
// them, and nothing of the agent waits for them before the end of the job. A nil sidecars has none.
type sidecars struct {
	tree     *proc.Tree
	logs     *output.Logs
	log      zerolog.Logger
	steering *Steering
	node     string
	hurry    <-chan struct{}
	list     []*sidecar
	wg       sync.WaitGroup

	// cancel ends those that run; nil: none do. Only the agent's own goroutine uses it.
	cancel context.CancelFunc
	ending bool
}

// sidecar is one of them.
type sidecar struct {
	plan.Sidecar
	index int
	// turn is held while it runs: who starts it anew waits until the last one has ended.
	turn sync.Mutex

	mu    sync.Mutex
	state report.Sidecar // without a State it is not told
}

// openSidecars makes what looks after the job's sidecars. None runs before the first round.
func (a *Agent) openSidecars() {
	list := a.Plan.Sidecars()
	if len(list) == 0 {
		return
	}
	s := &sidecars{
		tree: a.tree, logs: a.logs, log: a.Log, steering: a.Steering, node: a.Plan.Hostname, hurry: a.Hurry,
	}
	for i, p := range list {
		c := &sidecar{Sidecar: p, index: i}
		c.state = report.Sidecar{Node: s.node, Index: i, Command: p.Shown}
		s.list = append(s.list, c)
	}
	a.beside = s
	a.Steering.mu.Lock()
	a.Steering.beside = s
	a.Steering.mu.Unlock()
}

// sidecars are those that run here, as they are told.
func (s *Steering) sidecars() []report.Sidecar {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.beside.told()
}

// told are the sidecars of this node.
func (s *sidecars) told() (list []report.Sidecar) {
	if s == nil {
		return nil
	}
	for _, c := range s.list {
		c.mu.Lock()
		if c.state.State != "" {
			list = append(list, c.state)
		}
		c.mu.Unlock()
	}
	return list
}

// follow has the sidecars run where this node has group rank 0 in the round that was met, and end elsewhere. It waits
// for neither.
func (s *sidecars) follow(ctx context.Context, first bool) {
	switch {
	case s == nil || s.ending || first == (s.cancel != nil):
	case first:
		ctx, s.cancel = context.WithCancel(context.WithoutCancel(ctx)) // they end after the workers
		for _, c := range s.list {
			s.wg.Go(func() { s.run(ctx, c) })
		}
	default:
		s.log.Info().Msg("another node has group rank 0 now: the sidecars end here and start there")
		s.cancel()
		s.cancel = nil
	}
}

// end ends the sidecars with the job, and waits for that. Later calls do nothing.
func (s *sidecars) end() {
	if s == nil || s.ending {
		return
	}
	s.ending = true
	if s.cancel != nil {
		for _, c := range s.list {
			s.set(c, func(d *report.Sidecar) { d.State = report.PhaseTerminating })
		}
		s.cancel()
	}
	s.wg.Wait()
}

// set changes what is told of a sidecar.
func (s *sidecars) set(c *sidecar, change func(d *report.Sidecar)) {
	c.mu.Lock()
	change(&c.state)
	c.mu.Unlock()
	s.steering.publishSoon()
}

// run starts a sidecar again and again until ctx ends.
func (s *sidecars) run(ctx context.Context, c *sidecar) {
	c.turn.Lock()
	defer c.turn.Unlock()
	pause := sidecarPause
	for again := false; ctx.Err() == nil; again = true {
		s.set(c, func(d *report.Sidecar) {
			d.State = report.PhaseCreating
			if again {
				d.Restarts++
			}
		})
		s.once(ctx, c, &pause)
		if ctx.Err() != nil {
			break
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
		pause = min(2*pause, sidecarPauseMost)
	}
	s.set(c, func(d *report.Sidecar) {
		if d.State == report.PhaseTerminating || d.State == report.PhaseStopped {
			d.State = report.PhaseStopped
			return
		}
		d.State = "" // it runs elsewhere
	})
}

// once runs a sidecar until it ends, or ctx does. pause is that before the next start.
func (s *sidecars) once(ctx context.Context, c *sidecar, pause *time.Duration) {
	out, err := s.logs.Sidecar(c.index, s.node)
	if err != nil {
		s.failed(c, err, *pause)
		return
	}
	stdout, stderr := out.Files()
	p, err := s.tree.StartBeside(proc.Spec{
		Path: c.Path, Args: c.Argv, Env: c.Env, Dir: c.Dir, Files: []*os.File{nil, stdout, stderr},
		Label: "sidecar " + strconv.Itoa(c.index),
	})
	out.Started()
	show := func() {
		shown, cancel := context.WithTimeout(context.WithoutCancel(ctx), sidecarShow)
		defer cancel()
		out.Finish(shown) // a console that nobody reads is not waited for
	}
	if err != nil {
		show()
		s.failed(c, err, *pause)
		return
	}
	s.started(c, p)
	s.watch(ctx, c, p)
	stopped := ctx.Err() != nil
	if stopped {
		select {
		case <-p.Done():
			stopped = false
		default:
		}
	}
	ladder := proc.Ladder{Now: s.hurry}
	if stopped {
		ladder.Grace = sidecarGrace
	}
	if err := s.tree.StopBeside(context.WithoutCancel(ctx), ladder, p); err != nil {
		s.log.Error().Err(err).Int("sidecar", c.index).Msg("what the sidecar has started could not be ended")
	}
	show()
	select {
	case <-p.Done():
		if time.Since(p.Began()) >= sidecarPauseMost {
			*pause = sidecarPause
		}
		s.ended(c, p.Exit(), p.PID(), stopped, ctx.Err() != nil, out, *pause)
	default: // it could not be killed, and that was said
	}
}

// failed tells that a sidecar could not be started.
func (s *sidecars) failed(c *sidecar, err error, pause time.Duration) {
	text := err.Error()
	s.set(c, func(d *report.Sidecar) {
		d.State, d.PID, d.StartTime, d.Port, d.Healthy, d.Problem = report.PhaseRestarting, 0, nil, 0, nil, text
	})
	s.log.Error().Err(err).Int("sidecar", c.index).Str("command", c.Shown).Dur("delay_ms", pause).
		Msg("the sidecar could not be started, trying again")
	s.steering.happened(control.SidecarExited, func(e *control.Event) {
		code := errhint.CodeOf(err)
		e.ExitCode, e.Message = &code, c.Shown+": "+text
	})
}

// started tells that the process of a sidecar runs.
func (s *sidecars) started(c *sidecar, p *proc.Process) {
	at := moment(p.Began())
	s.set(c, func(d *report.Sidecar) {
		if d.State == report.PhaseCreating {
			d.State = report.PhaseRunning
		}
		d.PID, d.StartTime, d.Port, d.Healthy, d.Problem = p.PID(), &at, 0, nil, ""
	})
	s.log.Info().Int("sidecar", c.index).Str("command", c.Shown).Int("pid", p.PID()).Msg("sidecar started")
	s.steering.happened(control.SidecarStarted, func(e *control.Event) { e.PID, e.Message = p.PID(), c.Shown })
}

// ended tells that the process of a sidecar has ended; stopped says that muster has ended it, over that none follows
// here.
func (s *sidecars) ended(c *sidecar, exit proc.Exit, pid int, stopped, over bool, out *output.Worker, pause time.Duration) {
	last := &report.RankExit{PID: pid, ExitCode: exit.Status(), Stopped: stopped, Time: moment(exit.Ended)}
	if exit.Signal != 0 {
		last.Signal = proc.SignalName(exit.Signal)
	}
	s.set(c, func(d *report.Sidecar) {
		if d.State == report.PhaseRunning {
			d.State = report.PhaseRestarting
		}
		d.PID, d.StartTime, d.Port, d.Healthy, d.LastExit = 0, nil, 0, nil, last
	})
	level := zerolog.WarnLevel
	if over {
		level = zerolog.DebugLevel
	}
	s.log.WithLevel(level).Int("sidecar", c.index).Str("command", c.Shown).Int("pid", pid).
		Int("exit_code", exit.Status()).
		Func(func(e *zerolog.Event) {
			if last.Signal != "" {
				e.Str("signal", last.Signal)
			}
			if lines := out.LastLines(1); len(lines) > 0 && !stopped {
				e.Str("last_line", printable.Output(lines[len(lines)-1]))
			}
			if !over {
				e.Dur("delay_ms", pause)
			}
		}).Msg(map[bool]string{true: "sidecar ended", false: "sidecar ended, starting it again"}[over])
	s.steering.happened(control.SidecarExited, func(e *control.Event) {
		e.Time, e.PID, e.ExitCode, e.Signal, e.Stopped, e.Message = exit.Ended, pid, &last.ExitCode, last.Signal, stopped, c.Shown
	})
}

// watch looks at the process of a sidecar until it ends, or ctx does.
func (s *sidecars) watch(ctx context.Context, c *sidecar, p *proc.Process) {
	var at netip.AddrPort // where it takes connections
	for {
		every := sidecarEvery
		young := time.Since(p.Began()) < sidecarYoung
		if young {
			every = sidecarSoon
		}
		timer := time.NewTimer(every)
		select {
		case <-p.Done():
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
		if ctx.Err() != nil || isDone(p) {
			return
		}
		healthy := at.IsValid() && takes(ctx, at)
		if !healthy || young && !named(c.Argv, at.Port()) { // it may have got another port
			if now, found := listening(c.Argv, p.PID()); found {
				at, healthy = now, takes(ctx, now)
			}
		}
		healthy = healthy && !p.Stopped()
		s.looked(c, at, healthy)
	}
}

func isDone(p *proc.Process) bool {
	select {
	case <-p.Done():
		return true
	default:
		return false
	}
}

// looked tells where a sidecar takes connections, and whether it does.
func (s *sidecars) looked(c *sidecar, at netip.AddrPort, healthy bool) {
	if !at.IsValid() {
		return
	}
	c.mu.Lock()
	before, was := c.state.Port, c.state.Healthy
	c.mu.Unlock()
	if before == int(at.Port()) && was != nil && *was == healthy {
		return
	}
	s.set(c, func(d *report.Sidecar) { d.Port, d.Healthy = int(at.Port()), &healthy })
	switch {
	case before != int(at.Port()):
		s.log.Info().Int("sidecar", c.index).Str("command", c.Shown).Stringer("address", at).Msg("the sidecar takes connections")
	case !healthy:
		s.log.Warn().Int("sidecar", c.index).Str("command", c.Shown).Stringer("address", at).Msg("the sidecar takes no connections")
	default:
		s.log.Info().Int("sidecar", c.index).Str("command", c.Shown).Stringer("address", at).Msg("the sidecar takes connections again")
	}
}

// listening is where a process, or one below it, takes connections: at a port that its command names, else at the
// lowest.
func listening(words []string, pid int) (at netip.AddrPort, found bool) {
	trees, err := proc.TreesOf([]int{pid})
	if err != nil {
		return at, false
	}
	list := gather.Listening(trees[pid])
	if len(list) == 0 {
		return at, false
	}
	return slices.MinFunc(list, func(x, y netip.AddrPort) int {
		if n := cmp.Compare(rank(words, x), rank(words, y)); n != 0 {
			return n
		}
		return x.Compare(y)
	}), true
}

// rank orders the ports of a process: those that its command names come first.
func rank(words []string, at netip.AddrPort) int {
	if named(words, at.Port()) {
		return 0
	}
	return int(at.Port())
}

// named reports whether a command names a port, as in 6006, --port=6006 or localhost:6006.
func named(words []string, port uint16) bool {
	text := strconv.Itoa(int(port))
	return slices.ContainsFunc(words, func(w string) bool {
		return w == text || strings.HasSuffix(w, "="+text) || strings.HasSuffix(w, ":"+text)
	})
}

// takes reports whether a connection can be had.
func takes(ctx context.Context, at netip.AddrPort) bool {
	host := at.Addr().String()
	if at.Addr().IsUnspecified() {
		host = "localhost" // of both families
	}
	conn, err := (&net.Dialer{Timeout: sidecarDial}).DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(int(at.Port()))))
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}
