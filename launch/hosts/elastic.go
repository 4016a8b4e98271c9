package hosts

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hashicorp/go-multierror"

	"muster/horovod"
	"muster/horovod/discovery"
	"muster/horovod/elastic"
	"muster/horovod/kv"
	"muster/internal/errhint"
	"muster/internal/hostaddr"
	hostlist "muster/internal/hosts"
	"muster/launch"
	"muster/launch/control"
	"muster/launch/job"
	"muster/launch/report"
	"muster/sshexec"
)

// elasticJob is an elastic Horovod job: its driver runs here, its workers on hosts that come and go.
type elasticJob struct {
	config   ElasticConfig
	launcher *launcher
	dialer   *sshexec.Dialer
	marker   string
	// reaching ends when hosts are no longer needed: those that are being reached then, too.
	reaching context.Context
	stop     context.CancelFunc
	logs     *LogFiles // of all hosts
	doors    *kv.Doors // where the driver listens: on what the hosts reach, and on nothing else
	clients  *kv.Clients
	told     drivenStatus // how the job stands

	mu    sync.Mutex
	hosts map[string]*elasticHost
	ids   int           // of processes
	world int           // the number of the newest one
	rules *elasticRules // set before the driver runs
}

// ElasticConfig is an elastic Horovod job.
type ElasticConfig struct {
	// Launcher has the job; its Horovod has no slots.
	Launcher LauncherConfig
	// Rules are those of the world, as far as Horovod has them.
	Rules elastic.Rules
	// Source has the hosts, which are looked for no more often than once in MinInterval; 0: as often as Horovod does.
	Source      discovery.Source
	MinInterval time.Duration
	// CheckJob returns a job on hosts that does nothing.
	CheckJob func(found []horovod.Host) (job.Job, error)
}

// LaunchElastic runs an elastic Horovod job. Its error, which is printed last, says how the job has ended.
func LaunchElastic(ctx context.Context, c ElasticConfig) error {
	j := &elasticJob{config: c, launcher: newLauncher(c.Launcher), marker: launcherMarker(), hosts: map[string]*elasticHost{}}
	err := j.run(ctx)
	if _, told := errors.AsType[errhint.StatusError](err); told {
		return err
	}
	return j.launcher.compat(err)
}

func (j *elasticJob) run(ctx context.Context) (err error) {
	l, log, asked := j.launcher, j.launcher.config.Log, &j.launcher.config.Job
	j.logs = collectLogs(asked.Hosts.CollectLogs, asked.Hosts.CollectLimit, log)
	if err := l.prepare(); err != nil {
		return l.refused(asked, err)
	}
	ctx, in := launch.WatchSignals(ctx, asked.Stop.Handled, 0)
	defer in.Close()
	j.reaching, j.stop = context.WithCancel(context.WithoutCancel(ctx))
	defer j.stop()
	source, err := j.checked(ctx)
	if stopped, ok := errors.AsType[*launch.SignalError](err); ok {
		return errhint.Code(fmt.Errorf("the job was stopped: muster %w", stopped), errhint.FromSignal(int(stopped.Signal)))
	}
	if err != nil {
		return l.refused(asked, err)
	}
	view, err := l.openView(ctx)
	if err != nil {
		return l.refused(asked, err)
	}
	defer view.Close() //nolint:contextcheck // it bounds itself
	if err := l.openTree(j.marker); err != nil {
		return err
	}
	defer l.closeTree(&err)
	for _, own := range []*job.Job{&l.job, asked} {
		own.RunID = cmp.Or(own.RunID, variable(l.config.Environ, job.ReachedVariable), strings.TrimPrefix(j.marker, launcherMark))
	}
	defer openFront(frontConfig{ //nolint:contextcheck // its end bounds itself
		RunID: asked.RunID, Name: asked.Command.Name, Role: control.Driver, Environ: l.config.Environ, Grace: asked.Stop.Grace,
		Interrupts: in, Status: j.told.now, Events: &j.told.events, Ask: j.ask, Reach: j.reachRanks, Evidence: j.look,
		Guard: l.tree.RemoveOnDeath, View: view, Log: log,
	}).close()
	if j.dialer, err = l.dialer(j.marker); err != nil {
		return l.refused(asked, err)
	}
	defer func() { _ = j.dialer.Close() }()
	defer j.closeHosts()
	if j.doors, err = kv.NewDoors(); err != nil {
		return errhint.Code(err, errhint.Usage)
	}
	defer func() { _ = j.doors.Close() }()
	j.clients = kv.NewClients(asked.Meeting.StoreAllow, log)
	running, rules, err := j.openRules(ctx)
	if err != nil {
		return err
	}
	j.rules = rules
	cfg := j.driverConfig(source)
	cfg.Began = j.began
	judged(&cfg.Rules, j.launcher.job.Restart)
	driver, err := elastic.New(cfg)
	if err != nil {
		return err
	}
	over := make(chan struct{})
	var hurrying sync.WaitGroup
	hurrying.Go(func() {
		select {
		case <-in.Hurry:
			j.closeHosts() // with all that runs there
		case <-over:
		}
	})
	result, err := driver.Run(running)
	close(over)
	hurrying.Wait()
	rules.result = result
	stopped, bySignal := errors.AsType[*launch.SignalError](context.Cause(ctx))
	if asked.Restart.Clean != job.CleanAll && (bySignal || err != nil) {
		j.sweep(asked.Stop.Grace)
	}
	if bySignal {
		rules.stopped(stopped)
		return errhint.Code(fmt.Errorf("the job was stopped: muster %w", stopped), errhint.FromSignal(int(stopped.Signal)))
	}
	if err == nil && result.Status != errhint.OK {
		err = errhint.Code(errors.New(result.Reason), result.Status)
	}
	rules.ended(err)
	if err == nil {
		log.Info().Int("worlds", result.Worlds).Msg("the job has succeeded")
	}
	return err
}

// driverConfig is what the driver works by.
func (j *elasticJob) driverConfig(source discovery.Source) elastic.Config {
	return elastic.Config{
		Rules: j.config.Rules, Source: source, MinInterval: j.config.MinInterval, Spawner: j, Listener: j.doors, Clients: j.clients,
		Advertise: "127.0.0.1", Env: j.env, Log: j.launcher.config.Log, Grace: j.launcher.job.Stop.Grace,
	}
}

// env are a host's own variables: where it reaches the driver, and the interfaces that were named. No worker starts
// where the driver cannot listen at its address: somebody else may.
func (j *elasticJob) env(host string) ([]string, error) {
	at := driverAddr(host)
	addr, err := netip.ParseAddr(at)
	if err == nil {
		err = j.doors.Open(j.reaching, addr)
	}
	if err != nil {
		return nil, fmt.Errorf("workers of %s cannot reach the rendezvous: %w", host, err)
	}
	env := []string{"HOROVOD_GLOO_RENDEZVOUS_ADDR=" + at}
	if nics := j.launcher.config.Horovod.NICs; len(nics) > 0 {
		env = append(env, ifaceVars[0]+"="+nics[0], ifaceVars[1]+"="+strings.Join(nics, ","))
	}
	return env, nil
}

// driverAddr is the address of this machine by which a host reaches it.
func driverAddr(host string) string {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	addrs, _, err := hostaddr.Ours(ctx, host)
	if err != nil || len(addrs) == 0 {
		return cmp.Or(hostaddr.Outward(), "127.0.0.1")
	}
	for _, addr := range addrs {
		if !addr.Is4() {
			continue // Horovod's workers speak IPv4
		}
		if own, err := hostaddr.ToReach(netip.AddrPortFrom(addr, 22)); err == nil {
			return own.String()
		}
	}
	return cmp.Or(hostaddr.Outward(), "127.0.0.1")
}

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
