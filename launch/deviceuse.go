package launch

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"muster/internal/accel/probe"
	"muster/internal/proc"
	"muster/launch/plan"
	"muster/launch/report"
)

// How accelerators are looked at: every so often while somebody has looked at the job within devicesFor. An answer waits
// devicesTime for the first look. Who asks for it is told to the other nodes once in devicesAsk. After devicesFailures
// failures with pauses between them nobody tries again.
const (
	devicesEvery    = 5 * time.Second
	devicesFor      = 30 * time.Second
	devicesAsk      = 10 * time.Second
	devicesTime     = 1500 * time.Millisecond
	devicesPause    = time.Minute
	devicesFailures = 3
)

// deviceWatch is what the workers' accelerators are used for, as long as somebody looks at the job. Nothing of the job
// waits for it: what asks the driver is a process of its own, which may hang.
type deviceWatch struct {
	source  plan.DeviceWatch // nil: nobody can tell
	workers func() []*worker // that run
	procs   int
	log     zerolog.Logger
	wake    chan struct{} // somebody looks; has room for one

	mu     sync.Mutex
	wanted time.Time     // until when
	first  chan struct{} // closed when something is known, or when nothing will be soon
	all    []plan.DeviceUse
	owner  map[int]int // of the processes in all, by process id: the worker
	at     time.Time   // of all
	news   uint64      // counts what was read
}

func newDeviceWatch(p *plan.Plan, workers func() []*worker, log zerolog.Logger) *deviceWatch {
	return &deviceWatch{
		source: p.DeviceUse(), workers: workers, procs: p.Procs, log: log, wake: make(chan struct{}, 1), first: make(chan struct{}),
	}
}

// tells reports whether anybody can tell at all.
func (d *deviceWatch) tells() bool { return d != nil && d.source != nil }

// want says that somebody looks. What it returns is closed when there is something to be seen, or will be nothing.
func (d *deviceWatch) want() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.wanted = time.Now().Add(devicesFor)
	select {
	case d.wake <- struct{}{}:
	default: // it is known
	}
	return d.first
}

// await waits until there is something to be seen, for a while.
func (d *deviceWatch) await(ctx context.Context) {
	if !d.tells() {
		return
	}
	seen := d.want()
	late := time.NewTimer(devicesTime)
	defer late.Stop()
	select {
	case <-seen:
	case <-late.C:
	case <-ctx.Done():
	}
}

func (d *deviceWatch) isWanted(now time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return now.Before(d.wanted)
}

// run looks at the accelerators whenever somebody wants it, until closed is.
func (d *deviceWatch) run(closed <-chan struct{}) {
	if !d.tells() {
		return
	}
	for failures := 0; ; {
		select {
		case <-closed:
			return
		case <-d.wake:
		}
		if !d.isWanted(time.Now()) {
			continue // that was said before the last look ended
		}
		if !d.source.Watchable() {
			d.set(nil, nil)
			return
		}
		err := d.watch(closed)
		d.set(nil, nil)
		if err == nil {
			failures = 0
			d.mu.Lock()
			d.first = make(chan struct{})
			d.mu.Unlock()
			continue
		}
		again := !errors.Is(err, probe.ErrAbandoned) && !errors.Is(err, probe.ErrUnavailable)
		if failures++; failures == devicesFailures {
			again = false
		}
		level := zerolog.InfoLevel
		if errors.Is(err, probe.ErrHung) {
			level = zerolog.WarnLevel
		}
		d.log.WithLevel(level).Err(err).Bool("tried_again", again).Msg("memory and use of the accelerators are not known")
		if !again {
			return
		}
		select {
		case <-closed:
			return
		case <-time.After(devicesPause):
		}
	}
}

// watch looks at the accelerators until nobody wants it any more. The error says why it has ended before that.
func (d *deviceWatch) watch(closed <-chan struct{}) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- d.source.Watch(ctx, devicesEvery, d.take) }()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case err := <-ended:
			return err
		case <-closed:
		case now := <-tick.C:
			if d.isWanted(now) {
				continue
			}
		}
		cancel()
		return <-ended
	}
}

// take takes in what the accelerators are used for, and finds out by whom.
func (d *deviceWatch) take(all []plan.DeviceUse) {
	workers := d.workers()
	pids, users := make([]int, len(workers)), []int{}
	for i, w := range workers {
		pids[i] = w.proc.PID()
	}
	for i := range all {
		users = slices.AppendSeq(users, maps.Keys(all[i].Processes))
	}
	d.set(all, proc.Owners(users, pids))
}

// useOfLocked is what a worker's accelerators are used for: those in which its processes have memory, as far as the
// driver tells that, and else those that are meant for it.
func (d *deviceWatch) useOfLocked(pid, localRank int) []report.DeviceUse {
	if len(d.all) == 0 {
		return nil // to detect devices takes time, and a driver that hangs takes for ever
	}
	var seen, meant []report.DeviceUse
	devices := d.source.DevicesOf(localRank, d.procs)
	for i := range d.all {
		u := &d.all[i]
		r := report.DeviceUse{Index: u.Index, MemoryBytes: u.Memory, MemoryTotalBytes: u.MemoryTotal, Utilization: u.Busy}
		if slices.Contains(devices, u.Index) {
			meant = append(meant, r)
		}
		own, is := int64(0), false
		for user, bytes := range u.Processes {
			if d.owner[user] == pid {
				own, is = own+bytes, true
			}
		}
		if own > 0 {
			r.OwnMemoryBytes = &own
		}
		if is {
			seen = append(seen, r)
		}
	}
	if len(seen) > 0 {
		return seen
	}
	return meant
}

// set takes what is known from now on; nil for nothing.
func (d *deviceWatch) set(all []plan.DeviceUse, owner map[int]int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.all, d.owner, d.at = all, owner, moment(time.Now())
	d.news++
	select {
	case <-d.first:
	default:
		close(d.first)
	}
}

// tell says in the ranks of a status what their accelerators are used for.
func (d *deviceWatch) tell(ranks []report.Rank) {
	if !d.tells() {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range ranks {
		r := &ranks[i]
		if r.Phase != report.PhaseRunning && r.Phase != report.PhaseTerminating {
			continue
		}
		if use := d.useOfLocked(r.PID, r.LocalRank); len(use) > 0 {
			at := d.at
			r.Devices, r.DevicesTime = use, &at
		}
	}
}

// told counts what was read.
func (d *deviceWatch) told() uint64 {
	if d == nil {
		return 0
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.news
}

// The nodes of a round hear that somebody looks at the job by a note under wantKey, with a number that grows.
func wantKey(n int) string { return "control/want/" + strconv.Itoa(n) }

// Looked says that somebody looks at the job, here or elsewhere.
func (s *Steering) Looked() {
	if s == nil || !s.devices.tells() {
		return
	}
	s.devices.want()
}

// LookedAt says that somebody looks at the job as a whole.
func (s *Steering) LookedAt(ctx context.Context) { s.lookedAt(ctx, true) }

// lookedAt says that somebody asks this node for how the job stands, and waits for what there is to be seen first; where
// it is the whole world that is looked at, the other nodes hear of it.
func (s *Steering) lookedAt(ctx context.Context, world bool) {
	if !world {
		s.Looked()
		return
	}
	s.mu.Lock()
	b, n := s.board, s.nextWant
	tell := s.devices.tells() && b.Board != nil && b.nodes > 1 && time.Since(s.wantAsked) > devicesAsk
	if tell {
		s.wantAsked = time.Now()
	}
	s.mu.Unlock()
	if tell {
		if err := ask(ctx, b.Board, wantKey(n), []byte("{}")); err != nil {
			s.log.Debug().Err(err).Msg("the other nodes do not hear that somebody looks at the job")
		}
	}
	s.devices.await(ctx)
}

// listenWants hears that somebody looks at the job at another node of the round.
func (s *Steering) listenWants(ctx context.Context, b roundBoard) {
	if !s.devices.tells() {
		return
	}
	for n := 0; ; n++ {
		s.mu.Lock()
		s.nextWant = n
		s.mu.Unlock()
		if !awaitNote(ctx, b.Board, wantKey(n), json.Valid) {
			return
		}
		s.Looked()
	}
}
