// Package elastic is the driver of an elastic Horovod job (horovod 0.28.1, horovod/runner/elastic/driver.py and
// registration.py): it finds hosts, starts a worker in every slot, tells workers of new hosts, and when all workers of
// a world have ended or ask for their places in the next one, makes that world of the hosts there are. Workers that
// stay keep their processes and their state.
//
// A machine decides (machine.go; pure), a Driver listens and acts. Where it is different from Horovod's, and why,
// stands in docs/compat/horovodrun.md.
package elastic

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"muster/horovod"
	"muster/horovod/discovery"
	"muster/horovod/kv"
	"muster/horovod/notify"
	"muster/internal/errhint"
)

// Spawner starts processes on hosts.
type Spawner interface {
	// Start starts the job's command on a host as its worker with this local rank, with the variables env over what it
	// inherits there. label, its rank at its start, names it in its output. It may take as long as the host is far
	// away.
	Start(ctx context.Context, host string, local int, env []string, label string) (Process, error)
}

// Process is a worker's process.
type Process interface {
	// Done is closed when it has ended.
	Done() <-chan struct{}
	// Status is its exit status then, 128+n after signal n.
	Status() int
	// Lost reports whether it has ended with its host, and not by itself.
	Lost() bool
	// Stop asks it to end, kills it after the grace, and returns at once. Done is closed in any case then, also where
	// the host is lost.
	Stop(grace time.Duration)
}

// Defaults of Config.
const (
	DefaultTimeout  = 600 * time.Second
	DefaultInterval = time.Second
	DefaultGrace    = 5 * time.Second
	// leaveTime is what a worker without a place gets to end by itself.
	leaveTime = 10 * time.Second
	// tickTime is the pace at which time-outs and cool-downs are looked at, and a message is tried again.
	tickTime = 500 * time.Millisecond
)

// Config is an elastic job.
type Config struct {
	Rules
	Log zerolog.Logger
	// Source finds the hosts, every Interval after it has returned. 0: 1 s. Where MinInterval is less, the pause is ten
	// times what finding them took, between the two: a script that only reads a file costs little.
	Source                discovery.Source
	Interval, MinInterval time.Duration
	Spawner               Spawner
	// Listener is where workers ask, Advertise the host by which they reach it: an IPv4 address or a name of one.
	Listener  net.Listener
	Advertise string
	// Clients are whose workers are answered; nil: everybody's.
	Clients *kv.Clients
	// Env returns variables for the workers of a host, such as HOROVOD_GLOO_IFACE; nil for none. An error says why no
	// worker may start there.
	Env func(host string) ([]string, error)
	// Began is told of each world that begins: its number, from 1, and its slots. It may not wait. nil: nobody is.
	Began func(number int, slots []horovod.Slot)
	// Grace is the time between the first signal to a worker and SIGKILL. 0: 5 s.
	Grace time.Duration
	// Dialer reaches workers; nil: a plain one.
	Dialer notify.Dialer
}

// Result tells how a job ended.
type Result struct {
	Verdict
	// Worlds is how many there were; Size is the number of workers of the last, Failures those of them that have
	// failed, the first one first.
	Worlds, Size int
	Failures     []Failure
}

// Driver runs one job.
type Driver struct {
	cfg    Config
	server *kv.Server
	m      *machine
	tell   *notifier

	events  chan func() // handled by the loop, one at a time
	stopped chan struct{}

	// The rest belongs to the loop.
	parked map[string][]chan string // requests that wait, by slot, the oldest first; a closed one is given up
	procs  map[int]*process
	failed error // what ended the job beside its workers
	wg     sync.WaitGroup
}

// New returns a driver of a job that Run begins.
func New(cfg Config) (*Driver, error) {
	if cfg.Timeout == 0 {
		cfg.Timeout = DefaultTimeout
	}
	if cfg.Interval == 0 {
		cfg.Interval = DefaultInterval
	}
	if cfg.Grace == 0 {
		cfg.Grace = DefaultGrace
	}
	if cfg.Dialer == nil {
		cfg.Dialer = &net.Dialer{}
	}
	if cfg.Env == nil {
		cfg.Env = func(string) ([]string, error) { return nil, nil }
	}
	if cfg.MinNP < 1 || cfg.NP < cfg.MinNP || cfg.MaxNP > 0 && cfg.MaxNP < cfg.NP {
		return nil, errhint.Usagef("cannot have worlds of %d to %d workers and begin with %d", cfg.MinNP, cfg.MaxNP, cfg.NP)
	}
	d := &Driver{
		cfg: cfg, m: newMachine(cfg.Rules, time.Now()), events: make(chan func()), stopped: make(chan struct{}),
		parked: map[string][]chan string{}, procs: map[int]*process{},
	}
	d.tell = newNotifier(cfg.Log, cfg.Dialer)
	d.server = kv.New(asked{d})
	if cfg.Clients != nil {
		d.server.Only(cfg.Clients)
	}
	return d, nil
}

// Run begins the job and returns when it is over and none of its processes runs. It closes the listener. The error is
// not nil where something else than workers ended the job: ctx, or hosts that cannot be found from the beginning.
func (d *Driver) Run(ctx context.Context) (Result, error) {
	// Workers may ask until the last of them has ended.
	serving, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var services sync.WaitGroup
	defer services.Wait()
	defer cancel()
	services.Go(func() {
		if err := d.server.Serve(serving, d.cfg.Listener); err != nil {
			d.post(func() { d.abandon(err) })
		}
	})
	services.Go(func() { d.tell.run(serving) })
	searching, stop := context.WithCancel(ctx)
	defer stop()
	services.Go(func() { d.search(searching) })

	d.loop(ctx, stop)
	close(d.stopped)
	d.wg.Wait()
	r := Result{Verdict: d.m.verdict, Worlds: d.m.generation, Size: len(d.m.order), Failures: d.m.failures}
	if d.failed != nil {
		r.Verdict = Verdict{Status: errhint.CodeOf(d.failed), Reason: d.failed.Error()}
	}
	return r, d.failed
}

// loop handles events until the job is over. It calls stop when no more hosts are needed.
func (d *Driver) loop(ctx context.Context, stop func()) {
	tick := time.NewTicker(tickTime)
	defer tick.Stop()
	end := ctx.Done()
	for !d.m.done() || len(d.procs) > 0 {
		select {
		case f := <-d.events:
			f()
		case <-tick.C:
			d.perform(d.m.tick(time.Now()))
		case <-end:
			end = nil
			d.abandon(context.Cause(ctx))
		}
		if d.m.phase == over {
			stop()
		}
	}
}

// post hands f to the loop, and reports whether there still is one.
func (d *Driver) post(f func()) bool {
	select {
	case d.events <- f:
		return true
	case <-d.stopped:
		return false
	}
}

// abandon ends the job because of something that no worker did.
func (d *Driver) abandon(err error) {
	if d.failed == nil && d.m.phase != over {
		d.failed = err
	}
	d.perform(d.m.finish(Verdict{Status: errhint.CodeOf(err), Reason: err.Error()}))
	d.perform(d.m.stopAll())
}

// search finds hosts again and again. The first time it must succeed; later what was found before stays.
func (d *Driver) search(ctx context.Context) {
	first, was := true, ""
	for ctx.Err() == nil {
		began := time.Now()
		hosts, warnings, err := d.cfg.Source.Find(ctx)
		pause := d.cfg.Interval
		if d.cfg.MinInterval > 0 {
			pause = min(pause, max(d.cfg.MinInterval, 10*time.Since(began)))
		}
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && first:
			d.post(func() { d.abandon(errhint.Code(err, errhint.Usage)) })
			return
		case err != nil:
			if was != err.Error() {
				was = err.Error()
				d.cfg.Log.Warn().Err(err).Msg("the hosts that were found before stay")
			}
		default:
			if text := strings.Join(warnings, "; "); text != was {
				if was = text; text != "" {
					d.cfg.Log.Warn().Str("source", d.cfg.Source.String()).Strs("warnings", warnings).Msg("odd hosts")
				}
			}
			first = false
			d.post(func() { d.perform(d.m.hosts(hosts, time.Now())) })
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// perform does what the machine has decided.
func (d *Driver) perform(effects []effect) {
	for _, e := range effects {
		switch e := e.(type) {
		case beginWorld:
			d.server.Begin(horovod.Scopes(e.slots))
			if d.cfg.Began != nil {
				d.cfg.Began(e.generation, e.slots)
			}
			d.cfg.Log.Info().Int("world", e.generation).Int("size", len(e.slots)).Str("hosts", shape(e.slots)).Msg("new world")
		case startWorker:
			d.start(e)
		case stopWorker:
			d.procs[e.id].leave(e.told)
		case release:
			for _, to := range d.parked[e.key] {
				to <- e.place // has room for it
			}
			delete(d.parked, e.key)
		case tell:
			d.cfg.Log.Info().Stringer("change", e.change).Str("to", e.key).Msg("hosts changed: the workers are told")
			d.tell.set(e.key, e.change)
		case untell:
			d.tell.set("", notify.NoChange)
		case blacklist:
			line := d.cfg.Log.Warn().Str("host", e.host)
			if e.until.IsZero() {
				line.Msg("a worker failed: the host is not used any more")
				continue
			}
			line.Dur("for_ms", time.Until(e.until)).Msg("a worker failed: the host is not used for some time")
		case outlasting:
			d.cfg.Log.Warn().Int("workers",
				e.workers).Msg("the job is decided; waiting for workers to end by themselves (--clean-policy none)")
		case waiting:
			d.cfg.Log.Info().Int("slots", e.have).Int("needed", e.need).Dur("timeout_ms", d.cfg.Timeout).Msg("waiting for slots")
		}
	}
}

// env are the variables of a worker that starts in slot.
func (d *Driver) env(slot horovod.Slot) ([]string, error) {
	own, err := d.cfg.Env(slot.Host)
	if err != nil {
		return nil, err
	}
	_, port, _ := net.SplitHostPort(d.cfg.Listener.Addr().String())
	env := append(Env(d.cfg.Advertise, port), "HOROVOD_ELASTIC=1")
	return slices.Concat(env, own, slot.Env()), nil
}

// Env are the variables by which all workers find the rendezvous.
func Env(host, port string) []string {
	return []string{
		"HOROVOD_GLOO_RENDEZVOUS_ADDR=" + host, "HOROVOD_GLOO_RENDEZVOUS_PORT=" + port, "HOROVOD_CONTROLLER=gloo",
		"HOROVOD_CPU_OPERATIONS=gloo", "PYTHONUNBUFFERED=1",
	}
}

// start starts a worker beside the loop.
func (d *Driver) start(e startWorker) {
	p := newProcess(d.cfg.Grace)
	before := d.procs[e.after]
	d.procs[e.id] = p
	log := d.cfg.Log.With().Int("rank", e.slot.Rank).Str("host", e.slot.Host).Int("local_rank", e.slot.LocalRank).Logger()
	d.wg.Go(func() {
		if before != nil { // a slot has one worker at a time: it may hold the accelerator
			before.leave(false)
			<-before.ended
		}
		status, gone, err := p.run(d.cfg.Spawner, e.slot, d.env)
		lost := ""
		if gone {
			lost = "the host is gone"
		}
		if err != nil {
			lost = err.Error()
			log.Warn().Err(err).Msg("worker cannot be started")
		}
		close(p.ended)
		d.post(func() {
			delete(d.procs, e.id)
			if w := d.m.workers[e.slot.Key()]; err == nil && w.id == e.id && !w.leaving && status != 0 {
				log.Warn().Int("exit_code", status).Msg("worker failed")
			}
			d.perform(d.m.ended(e.slot.Key(), e.id, status, lost, time.Now()))
		})
	})
}

// process is a worker from before its start until after its end.
type process struct {
	leaving context.Context // ends when it was told to end, and may do so by itself for a while
	tell    context.CancelFunc
	unasked context.Context // ends when it is to end at once
	cut     context.CancelFunc
	grace   time.Duration
	ended   chan struct{}
}

func newProcess(grace time.Duration) *process {
	p := &process{grace: grace, ended: make(chan struct{})}
	p.unasked, p.cut = context.WithCancel(context.Background())
	p.leaving, p.tell = context.WithCancel(p.unasked)
	return p
}

// leave ends the process. told says that it knows and may end by itself for a while.
func (p *process) leave(told bool) {
	switch {
	case p == nil:
	case told:
		p.tell()
	default:
		p.cut()
	}
}

// run starts the process and waits for its end. lost says that its host was lost, or nothing could be started there.
func (p *process) run(s Spawner, slot horovod.Slot, env func(horovod.Slot) ([]string, error)) (status int, lost bool, err error) {
	defer p.cut()
	if p.leaving.Err() != nil {
		return errhint.FromSignal(int(unix.SIGTERM)), false, nil
	}
	var started Process
	vars, err := env(slot)
	if err == nil {
		started, err = s.Start(p.leaving, slot.Host, slot.LocalRank, vars, strconv.Itoa(slot.Rank))
	}
	if err != nil {
		if p.leaving.Err() != nil {
			err = nil // it was not wanted any more
		}
		return max(1, errhint.CodeOf(err)), true, err
	}
	select {
	case <-started.Done():
		return started.Status(), started.Lost(), nil
	case <-p.leaving.Done():
	}
	select {
	case <-started.Done():
		return started.Status(), started.Lost(), nil
	case <-p.unasked.Done():
	case <-time.After(leaveTime):
	}
	started.Stop(p.grace)
	<-started.Done()
	return started.Status(), started.Lost(), nil
}

// asked is the driver as the store's clients see it.
type asked struct{ d *Driver }

// Register implements kv.Driver.
func (a asked) Register(slot string, body []byte) error {
	reg, err := notify.ParseRegistration(body)
	if err != nil {
		return err
	}
	a.d.post(func() {
		if _, ours := a.d.m.plan[slot]; ours { // nobody else is ever told of anything
			a.d.tell.register(slot, reg)
		}
	})
	return nil
}

// parkedMost is how many requests for one slot's place may wait: its worker has one, and others whose connections broke
// unnoticed. The oldest is given up for one more.
const parkedMost = 16

// Place implements kv.Driver.
func (a asked) Place(ctx context.Context, key string) (string, error) {
	answer := make(chan string, 1)
	ok := a.d.post(func() {
		place, effects := a.d.m.ask(key, time.Now())
		if place != "" {
			answer <- place
		} else {
			// Parked before the effects are done: they may release it.
			waiting := append(a.d.parked[key], answer)
			if len(waiting) > parkedMost {
				close(waiting[0])
				waiting = waiting[1:]
			}
			a.d.parked[key] = waiting
		}
		a.d.perform(effects)
	})
	if !ok {
		return horovod.NoPlace, nil
	}
	select {
	case place, ok := <-answer:
		if !ok {
			return "", errGone
		}
		return place, nil
	case <-ctx.Done():
		select {
		case place, ok := <-answer: // both came at once
			if ok {
				return place, nil
			}
		case <-a.d.stopped: // it is the job that ended, and not the worker
			return horovod.NoPlace, nil
		default:
			a.d.post(func() { a.d.unpark(key, answer) })
		}
		return "", errGone
	}
}

var errGone = errors.New("the worker has hung up")

func (d *Driver) unpark(key string, gone chan string) {
	var left []chan string
	for _, c := range d.parked[key] {
		if c != gone {
			left = append(left, c)
		}
	}
	if d.parked[key] = left; len(left) == 0 {
		delete(d.parked, key)
	}
}

// Seen implements kv.Driver.
func (a asked) Seen(rank int) { a.d.post(func() { a.d.perform(a.d.m.seen(rank)) }) }

// String names the result for people.
func (r Result) String() string {
	if r.Status == errhint.OK {
		return fmt.Sprintf("the job succeeded after %d worlds", r.Worlds)
	}
	return fmt.Sprintf("status %d: %s", r.Status, r.Reason)
}
