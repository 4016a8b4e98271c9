package hosts

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hashicorp/go-multierror"

	"muster/horovod/elastic"
	"muster/internal/errhint"
	hostlist "muster/internal/hosts"
	"muster/launch/job"
	"muster/launch/report"
	"muster/sshexec"
)

// elasticHost is the agent of a host.
type elasticHost struct {
	fleet *Fleet
	ready chan struct{} // closed when err is known
	err   error
	ended chan struct{} // closed when the agent is gone
	away  atomic.Bool   // it is not this machine
	// loopback says that its workers use the loopback interface.
	loopback bool

	mu        sync.Mutex
	processes map[int]*elasticProcess
}

// elasticProcess is a worker.
type elasticProcess struct {
	host   *elasticHost
	id     int
	local  int // its local rank
	pid    int // under the host's mutex; 0: not known yet
	done   chan struct{}
	once   sync.Once
	status int
	lost   bool // with its host
	// stopped says that the driver has asked for its end.
	stopped atomic.Bool
}

// Done implements elastic.Process.
func (p *elasticProcess) Done() <-chan struct{} { return p.done }

// Status implements elastic.Process.
func (p *elasticProcess) Status() int { return p.status }

// Lost implements elastic.Process.
func (p *elasticProcess) Lost() bool { return p.lost }

// Stop implements elastic.Process.
func (p *elasticProcess) Stop(grace time.Duration) {
	p.stopped.Store(true)
	if p.host.fleet.StopProcess(0, StopProcess{ID: p.id, Grace: grace}) != nil {
		p.end(errhint.TryAgain, true) // with its agent
	}
}

func (p *elasticProcess) end(status int, lost bool) {
	p.once.Do(func() {
		p.status, p.lost = status, lost
		close(p.done)
	})
}

// Start implements elastic.Spawner.
func (j *elasticJob) Start(ctx context.Context, host string, local int, env []string, label string) (elastic.Process, error) {
	h := j.host(host) //nolint:contextcheck // who asks first may give up; the agent is for all of the host's workers
	select {
	case <-h.ready:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if h.err != nil {
		return nil, h.err
	}
	if other := j.apart(h); other != "" {
		return nil,
			errhint.With(fmt.Errorf("cannot use %s beside %s: one of them is this machine, whose workers use the loopback interface",
				host, other),
				"name this machine by an address that others reach, or the interfaces with --network-interfaces")
	}
	j.mu.Lock()
	j.ids++
	p, world := &elasticProcess{host: h, id: j.ids, local: local, done: make(chan struct{})}, j.world
	j.mu.Unlock()
	h.mu.Lock()
	h.processes[p.id] = p
	h.mu.Unlock()
	rank, err := strconv.Atoi(label)
	if err == nil {
		err = h.fleet.StartProcess(0, StartProcess{
			ID: p.id, Env: env, Label: "rank " + label + " on " + host, Rank: rank, Local: local, World: world,
		})
	}
	if err != nil {
		return nil, fmt.Errorf("cannot start a worker on %s: %w", host, err)
	}
	return p, nil
}

// apart returns a host that the workers of h would not reach, because one of both uses the loopback interface; empty
// for none.
func (j *elasticJob) apart(h *elasticHost) string {
	if len(j.launcher.config.Horovod.NICs) > 0 {
		return ""
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	for name, other := range j.hosts {
		select {
		case <-other.ended:
		case <-other.ready:
			if other.err == nil && other.loopback != h.loopback {
				return name
			}
		default:
		}
	}
	return ""
}

// host returns the agent of a host, which is started where there is none.
func (j *elasticJob) host(name string) *elasticHost {
	j.mu.Lock()
	defer j.mu.Unlock()
	if h := j.hosts[name]; h != nil {
		select {
		case <-h.ended: // it is tried anew
		default:
			return h
		}
	}
	h := &elasticHost{ready: make(chan struct{}), ended: make(chan struct{}), processes: map[int]*elasticProcess{}}
	target := hostlist.Host{Name: name}
	job := &j.launcher.job
	h.fleet = openFleet(Config{
		Machines: []Machine{{Name: name, Start: func(ctx context.Context) (Conn, error) {
			if here(ctx, target) {
				return j.launcher.startHere(j.marker, name)
			}
			h.away.Store(true)
			return j.dialer.Start(ctx, target, []string{AgentCommand})
		}}},
		Min: 1, StartTimeout: job.Hosts.StartTimeout, Linger: job.Stop.Grace, Transient: sshexec.Transient,
		Output: &Output{Stdout: j.launcher.config.Stdout, Stderr: j.launcher.config.Stderr, Log: j.launcher.config.Console.HostsLog()},
		Logs:   j.logs, Log: j.launcher.config.Log, Process: func(_ int, e ProcessEvent) { j.event(name, h, e) },
		Status: func(_ int, data []byte) { j.used(name, data) },
	})
	j.hosts[name] = h
	go func() {
		defer close(h.ended)
		h.err = j.reach(h, name)
		close(h.ready)
		if h.err == nil {
			if o := h.fleet.Run(j.reaching); len(o.Unclean) > 0 && j.reaching.Err() == nil {
				j.tellLost(name)
			}
		}
		h.fleet.Close()
		j.lost(name, h)
		j.forget(name, h)
	}()
	return h
}

// tellLost tells the job whose command this launcher is that a host is lost, where it can have others take its place.
func (j *elasticJob) tellLost(name string) {
	dir := job.RunDirIn(j.launcher.config.Environ)
	if dir == "" || variable(j.launcher.config.Environ, job.ReachedVariable) == "" {
		return
	}
	f, err := os.OpenFile(filepath.Join(dir, job.PodDir, job.LostFile), os.O_APPEND|os.O_CREATE|os.O_WRONLY|syscall.O_NOFOLLOW, 0o600)
	if err == nil {
		_, err = f.WriteString(name + "\n")
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		j.launcher.config.Log.Warn().Err(err).Str("node", name).Msg("the job was not told of a host that is lost: nothing takes its place")
	}
}

// forget has the driver listen no more to a host that is gone, unless it has come back meanwhile.
func (j *elasticJob) forget(name string, h *elasticHost) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.hosts[name] == h {
		j.clients.Drop(name)
	}
}

// reach starts a host's agent, and tells it what its processes have in common.
func (j *elasticJob) reach(h *elasticHost, name string) error {
	if err := h.fleet.Reach(j.reaching); err != nil { // it knows how long it may take, and says why a host was not there
		if many, ok := errors.AsType[*multierror.Error](err); ok && len(many.Errors) == 1 {
			err = errhint.Code(many.Errors[0], errhint.CodeOf(err))
		}
		return err
	}
	ctx, cancel := context.WithTimeoutCause(j.reaching, j.launcher.job.Hosts.StartTimeout,
		errhint.Code(errors.New("it has not taken its order in time"), errhint.TryAgain))
	defer cancel()
	hello, _ := h.fleet.Hello(0)
	j.clients.Set(name, cameFrom(ctx, name, hello, h.away.Load()), whoseOn(h.fleet, 0, h.away.Load()))
	_, err := h.fleet.Prepare(ctx, func(int) Order {
		asked := j.launcher.job
		asked.Hosts, asked.Environ, asked.Procs = job.Hosts{}, nil, "1"
		asked.Meeting.Backend = "standalone"
		o := Order{
			Job: asked, Name: name, Dir: j.launcher.dir, LogLevel: j.launcher.config.LogLevel, LogFormat: j.launcher.config.LogFormat,
			Files: j.launcher.files, Processes: true,
			Environ: job.Passed(asked.Env, j.launcher.config.Environ),
		}
		if dir := j.launcher.job.Hosts.Dir; dir != "" {
			o.Dir = dir
		}
		if len(j.launcher.config.Horovod.NICs) == 0 {
			o.Interfaces, o.Addr = ifaceVars, hello.Addr
			if o.Addr == "" && h.away.Load() {
				o.Addr = hello.Own
			}
			if o.Addr == "" {
				o.Addr = driverAddr(name) // this machine
			}
			addr, err := netip.ParseAddr(o.Addr)
			h.loopback = err == nil && addr.IsLoopback()
		}
		return o
	})
	return err
}

// event takes what became of a process of the host with a name.
func (j *elasticJob) event(name string, h *elasticHost, e ProcessEvent) {
	h.mu.Lock()
	p := h.processes[e.ID]
	switch {
	case p == nil:
	case e.Ended:
		delete(h.processes, e.ID)
	default:
		p.pid = e.PID
	}
	h.mu.Unlock()
	switch {
	case p == nil:
	case e.Ended:
		how := report.PhaseFailed
		if p.stopped.Load() {
			how = report.PhaseStopped
		} else if e.Status == errhint.OK {
			how = report.PhaseSucceeded
		}
		j.rules.gone(name, p.local, p.pid, how)
		p.end(e.Status, false)
	default:
		j.rules.started(name, p.local, e.PID)
	}
}

// lost ends all processes of a host that is gone.
func (j *elasticJob) lost(name string, h *elasticHost) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for id, p := range h.processes {
		j.rules.gone(name, p.local, p.pid, report.PhaseUnknown)
		p.end(errhint.FromSignal(9), true) // as its host was
		delete(h.processes, id)
	}
}

// sweep has all agents end what workers have left behind, as of a job that is stopped from outside, whatever its clean
// policy is.
func (j *elasticJob) sweep(grace time.Duration) {
	late := time.After(grace + 10*time.Second)
	j.mu.Lock()
	all := slices.Collect(maps.Values(j.hosts))
	j.mu.Unlock()
	for _, h := range all {
		h.fleet.Signal(syscall.SIGTERM)
	}
	for _, h := range all {
		select {
		case <-h.ended:
		case <-late:
			return
		}
	}
}

// closeHosts ends all agents, and waits for them. No more are started then.
func (j *elasticJob) closeHosts() {
	j.stop()
	j.mu.Lock()
	all := slices.Collect(maps.Values(j.hosts))
	j.mu.Unlock()
	for _, h := range all {
		h.fleet.Close()
	}
	for _, h := range all {
		<-h.ended
	}
}
