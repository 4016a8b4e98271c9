package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hashicorp/go-multierror"
	"github.com/rs/zerolog"

	"muster/cmd/dialect"
	"muster/horovod"
	"muster/horovod/discovery"
	"muster/horovod/elastic"
	"muster/horovod/kv"
	"muster/internal/errhint"
	"muster/internal/hostaddr"
	hostlist "muster/internal/hosts"
	"muster/launch"
	"muster/launch/hosts"
	"muster/launch/job"
	"muster/sshexec"
)

// elasticJob is an elastic Horovod job: its driver runs here, its workers on hosts that come and go.
type elasticJob struct {
	*launcher
	dialer *sshexec.Dialer
	marker string
	// reaching ends when hosts are no longer needed: those that are being reached then, too.
	reaching context.Context
	stop     context.CancelFunc
	logs     *hosts.LogFiles // of all hosts
	doors    *kv.Doors       // where the driver listens: on what the hosts reach, and on nothing else
	clients  *kv.Clients

	mu    sync.Mutex
	hosts map[string]*elasticHost
	ids   int // of processes
}

// horovodElastic runs an elastic Horovod job. Its error, which is printed last, says how the job has ended.
func (a *app) horovodElastic(ctx context.Context, req dialect.Request, log zerolog.Logger) error {
	err := a.elasticJob(ctx, req, log)
	if _, told := errors.AsType[errhint.StatusError](err); told {
		return err
	}
	return a.compat(req.Job, err)
}

func (a *app) elasticJob(ctx context.Context, req dialect.Request, log zerolog.Logger) (err error) {
	l := &launcher{app: a, req: req, log: log}
	j := &elasticJob{launcher: l, marker: launcherMarker(), hosts: map[string]*elasticHost{}}
	j.logs = hosts.CollectLogs(req.Job.Hosts.CollectLogs, req.Job.Hosts.CollectLimit, log)
	if req.DryRun {
		return j.showElastic()
	}
	if err := l.prepare(); err != nil {
		return a.refused(req, hostname(), err)
	}
	ctx, in := launch.WatchSignals(ctx, req.Job.Stop.Handled, 0)
	defer in.Close()
	j.reaching, j.stop = context.WithCancel(context.WithoutCancel(ctx))
	defer j.stop()
	source, err := j.checked(ctx, j.source())
	if stopped, ok := errors.AsType[*launch.SignalError](err); ok {
		return errhint.Code(fmt.Errorf("the job was stopped: muster %w", stopped), errhint.FromSignal(int(stopped.Signal)))
	}
	if err != nil {
		return a.refused(req, hostname(), err)
	}
	if err := l.openTree(j.marker); err != nil {
		return err
	}
	defer l.closeTree(&err)
	if j.dialer, err = l.dialer(j.marker); err != nil {
		return a.refused(req, hostname(), err)
	}
	defer func() { _ = j.dialer.Close() }()
	defer j.closeHosts()
	if j.doors, err = kv.NewDoors(); err != nil {
		return errhint.Code(err, errhint.Usage)
	}
	defer func() { _ = j.doors.Close() }()
	j.clients = kv.NewClients(req.Job.Meeting.StoreAllow, log)
	running, rules, err := j.rules(ctx)
	if err != nil {
		return err
	}
	cfg := j.config(source)
	cfg.Began = rules.began
	judged(&cfg.Rules, j.req.Job.Restart)
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
	if asked := &j.req.Job; asked.Restart.Clean != job.CleanAll && (bySignal || err != nil) {
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

// source is where the hosts come from.
func (j *elasticJob) source() discovery.Source {
	h := j.req.Horovod
	switch {
	case h.Script != "":
		shell := discovery.Shell{Env: j.environ, Stderr: func(line string) { say(j.stderr, "%s\n", line) }}
		return discovery.Script{Command: h.Script, Shown: job.ShownText(h.Script), Runner: shell, Slots: h.SlotsPerHost}
	case h.Hostfile != "":
		return discovery.File{Name: h.Hostfile, Read: os.ReadFile, Parse: func(text string) ([]horovod.Host, error) {
			list, _, err := discovery.ParseHostfile(h.Hostfile, []byte(text))
			return list, err
		}}
	case h.DNS != "":
		return discovery.DNS{Name: h.DNS, Resolver: net.DefaultResolver, Slots: h.SlotsPerHost}
	}
	return discovery.Fixed(h.Hosts)
}

// config is what the driver works by.
func (j *elasticJob) config(source discovery.Source) elastic.Config {
	h := j.req.Horovod
	var soonest time.Duration // of two discoveries
	if h.DNS == "" {          // whose server others need too
		soonest = 100 * time.Millisecond
	}
	return elastic.Config{
		Rules:  elastic.Rules{NP: h.NP, MinNP: h.MinNP, MaxNP: h.MaxNP, ResetLimit: h.ResetLimit, Timeout: h.ElasticTimeout, Cooldown: h.Cooldown},
		Source: source, MinInterval: soonest, Spawner: j, Listener: j.doors, Clients: j.clients, Advertise: "127.0.0.1", Env: j.env, Log: j.log,
		Grace: j.req.Job.Stop.Grace,
	}
}

// env are a host's own variables: where it reaches the driver, and the interfaces that were named. No worker starts where the driver
// cannot listen at its address: somebody else may.
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
	if nics := j.req.Horovod.NICs; len(nics) > 0 {
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
		return cmp.Or(ownAddr(), "127.0.0.1")
	}
	for _, addr := range addrs {
		if !addr.Is4() {
			continue // Horovod's workers speak IPv4
		}
		if own, err := hostaddr.ToReach(netip.AddrPortFrom(addr, 22)); err == nil {
			return own.String()
		}
	}
	return cmp.Or(ownAddr(), "127.0.0.1")
}

// elasticHost is the agent of a host.
type elasticHost struct {
	fleet *hosts.Fleet
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
	done   chan struct{}
	once   sync.Once
	status int
	lost   bool // with its host
}

// Done implements elastic.Process.
func (p *elasticProcess) Done() <-chan struct{} { return p.done }

// Status implements elastic.Process.
func (p *elasticProcess) Status() int { return p.status }

// Lost implements elastic.Process.
func (p *elasticProcess) Lost() bool { return p.lost }

// Stop implements elastic.Process.
func (p *elasticProcess) Stop(grace time.Duration) {
	if p.host.fleet.StopProcess(0, hosts.StopProcess{ID: p.id, Grace: grace}) != nil {
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
func (j *elasticJob) Start(ctx context.Context, host string, _ int, env []string, label string) (elastic.Process, error) {
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
		return nil, errhint.With(fmt.Errorf("cannot use %s beside %s: one of them is this machine, whose workers use the loopback interface", host, other),
			"name this machine by an address that others reach, or the interfaces with --network-interfaces")
	}
	j.mu.Lock()
	j.ids++
	p := &elasticProcess{host: h, id: j.ids, done: make(chan struct{})}
	j.mu.Unlock()
	h.mu.Lock()
	h.processes[p.id] = p
	h.mu.Unlock()
	rank, err := strconv.Atoi(label)
	if err == nil {
		err = h.fleet.StartProcess(0, hosts.StartProcess{ID: p.id, Env: env, Label: "rank " + label + " on " + host, Rank: rank})
	}
	if err != nil {
		return nil, fmt.Errorf("cannot start a worker on %s: %w", host, err)
	}
	return p, nil
}

// apart returns a host that the workers of h would not reach, because one of both uses the loopback interface; empty for none.
func (j *elasticJob) apart(h *elasticHost) string {
	if len(j.req.Horovod.NICs) > 0 {
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
	job := &j.req.Job
	h.fleet = hosts.New(hosts.Config{
		Machines: []hosts.Machine{{Name: name, Start: func(ctx context.Context) (hosts.Conn, error) {
			if here(ctx, target) {
				return j.startHere(j.marker, name)
			}
			h.away.Store(true)
			return j.dialer.Start(ctx, target, []string{agentName})
		}}},
		Min: 1, StartTimeout: job.Hosts.StartTimeout, Linger: job.Stop.Grace, Transient: sshexec.Transient,
		Output: &hosts.Output{Stdout: j.stdout, Stderr: j.stderr, Log: j.logOutput()},
		Logs:   j.logs, Log: j.log, Process: func(_ int, e hosts.ProcessEvent) { h.event(e) },
	})
	j.hosts[name] = h
	go func() {
		defer close(h.ended)
		h.err = j.reach(h, name)
		close(h.ready)
		if h.err == nil {
			h.fleet.Run(j.reaching)
		}
		h.fleet.Close()
		h.gone()
		j.forget(name, h)
	}()
	return h
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
	ctx, cancel := context.WithTimeoutCause(j.reaching, j.req.Job.Hosts.StartTimeout, errhint.Code(errors.New("it has not taken its order in time"), errhint.TryAgain))
	defer cancel()
	hello, _ := h.fleet.Hello(0)
	j.clients.Set(name, cameFrom(ctx, name, hello, h.away.Load()), whoseOn(h.fleet, 0, h.away.Load()))
	_, err := h.fleet.Prepare(ctx, func(int) hosts.Order {
		asked := j.req.Job
		asked.Hosts, asked.Environ, asked.Procs = job.Hosts{}, nil, "1"
		asked.Meeting.Backend = "standalone"
		o := hosts.Order{
			Job: asked, Name: name, Dir: j.dir, LogLevel: j.req.LogLevel, LogFormat: j.req.LogFormat, Files: j.files, Processes: true,
			Environ: job.Passed(asked.Env, j.environ),
		}
		if dir := j.req.Job.Hosts.Dir; dir != "" {
			o.Dir = dir
		}
		if len(j.req.Horovod.NICs) == 0 {
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

// event takes what became of a process.
func (h *elasticHost) event(e hosts.ProcessEvent) {
	if !e.Ended {
		return
	}
	h.mu.Lock()
	p := h.processes[e.ID]
	delete(h.processes, e.ID)
	h.mu.Unlock()
	if p != nil {
		p.end(e.Status, false)
	}
}

// gone ends all processes of a host that is lost.
func (h *elasticHost) gone() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for id, p := range h.processes {
		p.end(errhint.FromSignal(9), true) // as its host was
		delete(h.processes, id)
	}
}

// sweep has all agents end what workers have left behind, as of a job that is stopped from outside, whatever its clean policy is.
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
