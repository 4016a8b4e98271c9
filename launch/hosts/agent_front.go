package hosts

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"muster/internal/errhint"
	"muster/internal/proc"
	"muster/launch"
	"muster/launch/control"
	"muster/launch/evidence"
	"muster/launch/evidence/gather"
	"muster/launch/output"
	"muster/launch/plan"
	"muster/launch/report"
)

// hostWorker is a process that the launcher of an elastic job has had started on this host.
type hostWorker struct {
	plan.Worker
	proc  *proc.Process
	local int // its local rank, which it keeps
	began time.Time
	logs  []control.LogFiles
	last  [2]output.Last // lines of standard output and error
	// rank is the one that it has in the world with this number.
	rank, world int
	used        launch.Usage
}

// runs reports whether it has not ended.
func (w *hostWorker) runs() bool {
	select {
	case <-w.proc.Done():
		return false
	default:
		return true
	}
}

// hostServed answers for the workers on a host of an elastic job, as an agent does for those of its node. The launcher
// answers for the job.
type hostServed struct {
	set     *processSet
	server  *control.Server // nil: nobody can ask
	events  control.Events
	looking chan struct{} // has room for one look at a time
	guests  launch.Guests

	watching sync.WaitGroup
	closed   chan struct{}
	traffic  launch.Traffic
	// carried is what was seen of it last, under the mutex of set.
	carried []report.Traffic
}

var (
	_ control.Served     = (*hostServed)(nil)
	_ control.Rememberer = (*hostServed)(nil)
	_ control.Looker     = (*hostServed)(nil)
	_ control.Executor   = (*hostServed)(nil)
)

// openFront begins to answer at the run directory, where there is one. The workers run without answers, too.
func (p *processSet) openFront(log zerolog.Logger) *hostServed {
	h := &hostServed{set: p, looking: make(chan struct{}, 1), closed: make(chan struct{})}
	h.watching.Go(func() {
		h.traffic.Start()
		launch.WatchUsage(h.closed, h.unseen, h.noteUsage)
	})
	h.guests = launch.Guests{Node: p.node.order.Name, Vars: p.plan.Job.Vars(), Log: log, Tell: h.happened}
	dir := p.room.Dir()
	if dir == "" {
		return h
	}
	var err error
	if h.server, err = control.Serve(control.Config{
		Dir: dir, Served: h, Log: log, Muster: control.Muster{Role: control.Agent, Part: true},
	}); err != nil {
		log.Warn().Err(err).Str("path", dir).Msg("the job runs, but its workers on this host cannot be looked into from outside")
	}
	return h
}

// close ends the answers.
func (h *hostServed) close() error {
	close(h.closed)
	h.watching.Wait()
	err := h.server.Close()
	h.guests.Close()
	return err
}

// happened records an event of this host.
func (h *hostServed) happened(kind control.EventType, fill func(*control.Event)) {
	e := control.Event{Type: kind, RunID: h.set.plan.RunID, Node: h.set.node.order.Name}
	fill(&e)
	h.events.Add(e)
}

// newest are the workers of this host by local rank, of each the newest.
func (p *processSet) newest() []*hostWorker {
	p.mu.Lock()
	defer p.mu.Unlock()
	var list []*hostWorker
	for _, w := range p.places {
		list = append(list, w)
	}
	slices.SortFunc(list, func(x, y *hostWorker) int { return cmp.Compare(x.local, y.local) })
	return list
}

// ranked notes which rank a worker has in a new world.
func (p *processSet) ranked(m RankProcess) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w := p.running[m.ID]; w != nil && m.World >= w.world {
		w.rank, w.world = m.Rank, m.World
	}
}

// worker is the one with a rank: of two that had it the one that had it last.
func (h *hostServed) worker(rank int) (*hostWorker, error) {
	var here []string
	var found *hostWorker
	newest := h.set.newest()
	h.set.mu.Lock()
	defer h.set.mu.Unlock()
	for _, w := range newest {
		here = append(here, strconv.Itoa(w.rank))
		if w.rank == rank && (found == nil || w.world > found.world) {
			found = w
		}
	}
	if found == nil {
		return nil, errhint.With(errhint.Usagef("rank %d does not run on host %s: it has %s", rank, h.set.node.order.Name,
			cmp.Or(strings.Join(here, ", "), "no worker")), "muster status shows on which host each rank is")
	}
	return found, nil
}

// Status implements control.Served: the workers of this host.
func (h *hostServed) Status(context.Context, control.Scope) (report.Status, error) {
	name := h.set.node.order.Name
	d := report.Status{
		Version: 1, RunID: h.set.plan.RunID, Name: h.set.plan.Title(), Phase: report.PhaseRunning, Nodes: 1,
		Conditions: []report.Condition{}, Tasks: []report.Task{},
	}
	var ranks []string
	for _, w := range h.set.newest() {
		h.set.mu.Lock()
		r := report.Rank{
			Node: name, Rank: w.rank, LocalRank: w.local, PID: w.proc.PID(), Phase: report.PhaseRunning, StartTime: new(w.began),
		}
		if w.used.PID == r.PID {
			w.used.Tell(&r)
		}
		h.set.mu.Unlock()
		if w.runs() { // the rank of one that has ended may be another's by now
			ranks, d.Ranks = append(ranks, strconv.Itoa(r.Rank)), append(d.Ranks, r)
		}
	}
	if len(ranks) > 0 {
		h.set.mu.Lock()
		d.Tasks = append(d.Tasks,
			report.Task{Node: name, Ranks: strings.Join(ranks, ","), Phase: report.PhaseRunning, Traffic: h.carried})
		h.set.mu.Unlock()
	}
	return d, nil
}

// unseen reports whether a worker runs that was not looked at.
func (h *hostServed) unseen(now time.Time) bool {
	workers := h.set.newest()
	h.set.mu.Lock()
	defer h.set.mu.Unlock()
	return slices.ContainsFunc(workers, func(w *hostWorker) bool {
		return w.runs() && w.used.Unseen(w.proc.PID(), w.proc.Began(), now)
	})
}

// noteUsage reads what the workers use, and tells the launcher where that is news.
func (h *hostServed) noteUsage(now time.Time) {
	workers := slices.DeleteFunc(h.set.newest(), func(w *hostWorker) bool { return !w.runs() })
	if len(workers) == 0 {
		return
	}
	pids := make([]int, len(workers))
	for i, w := range workers {
		pids[i] = w.proc.PID()
	}
	used, err := proc.UsageOf(pids)
	if err != nil {
		h.set.log.Debug().Err(err).Msg("what the workers use cannot be told")
		return
	}
	carried, news := h.traffic.Read(), false
	h.set.mu.Lock()
	if launch.MoreTraffic(h.carried, carried) {
		h.carried, news = carried, true
	}
	for i, w := range workers {
		if u, is := used[pids[i]]; is {
			last := w.last[0].At()
			if other := w.last[1].At(); other.After(last) {
				last = other
			}
			news = w.used.Take(launch.Usage{PID: pids[i], Usage: u, Output: last, At: now}) || news
		}
	}
	h.set.mu.Unlock()
	if !news {
		return
	}
	d, _ := h.Status(context.Background(), control.Node)
	text, err := json.Marshal(d)
	if err != nil {
		panic(fmt.Sprintf("internal error: cannot encode a status: %v", err)) // strings, numbers and times only
	}
	_ = h.set.node.link.Status(text) // a launcher that is lost is met elsewhere
}

// Rank implements control.Served.
func (h *hostServed) Rank(_ context.Context, rank int) (control.Rank, error) {
	w, err := h.worker(rank)
	if err != nil {
		return control.Rank{}, err
	}
	r := control.Rank{
		RunID: h.set.plan.RunID, Node: h.set.node.order.Name, Rank: rank, LocalRank: w.local, PID: w.proc.PID(), Running: w.runs(),
		Logs: slices.Clone(w.logs),
	}
	if r.Running {
		r.Dir, r.Env = w.Dir, w.Env.Strings()
	}
	return r, nil
}

// Recent implements control.Rememberer.
func (h *hostServed) Recent(rank int) (control.Recent, error) {
	w, err := h.worker(rank)
	if err != nil {
		return control.Recent{}, err
	}
	return control.Recent{
		PID: w.proc.PID(), Running: w.runs(),
		Stdout: w.last[0].Lines(launch.RecentLines), Stderr: w.last[1].Lines(launch.RecentLines),
	}, nil
}

// Exec implements control.Executor.
func (h *hostServed) Exec(ctx context.Context, by control.Peer, w control.ExecWanted, files [3]*os.File) (control.Command, error) {
	rank, err := h.Rank(ctx, w.Rank)
	if err != nil {
		return nil, err
	}
	return h.guests.Exec(h.set.tree, rank, nil, by, w, files)
}

// Entered implements control.Executor.
func (h *hostServed) Entered(by control.Peer, w control.ExecWanted) { h.guests.Entered(by, w) }

// LogsRead implements control.Executor.
func (h *hostServed) LogsRead(by control.Peer, ranks []int) { h.guests.LogsRead(by, ranks) }

// Look implements control.Looker.
func (h *hostServed) Look(ctx context.Context, _ control.Scope, native bool) (control.Looked, error) {
	name := h.set.node.order.Name
	select {
	case h.looking <- struct{}{}:
		defer func() { <-h.looking }()
	case <-time.After(gather.Limit / 2):
		return control.Looked{}, errhint.Code(errhint.With(fmt.Errorf("others look at the workers of host %s", name), "try again"),
			errhint.TryAgain)
	}
	var list []gather.Worker
	for _, w := range h.set.newest() {
		if w.runs() {
			h.set.mu.Lock()
			list = append(list, gather.Worker{Rank: w.rank, PID: w.proc.PID(), Silent: -1})
			h.set.mu.Unlock()
		}
	}
	if len(list) == 0 {
		return control.Looked{}, errhint.Code(errhint.With(fmt.Errorf("no worker runs on host %s", name),
			"muster status shows how the job stands"), errhint.TryAgain)
	}
	return control.Looked{Nodes: []evidence.Node{gather.Look(ctx, name, list, gather.Options{Native: native})}}, nil
}

// Events implements control.Served.
func (h *hostServed) Events() *control.Events { return &h.events }

// Asked implements control.Served.
func (h *hostServed) Asked(r control.Request) {
	r.Log(&h.set.log)
}

// Refused implements control.Served: events are told by the launcher alone.
func (h *hostServed) Refused(r control.Request, err error) { r.LogRefusal(&h.set.log, err) }

// Do implements control.Served.
func (h *hostServed) Do(_ context.Context, r control.Request) (string, error) {
	return "", errhint.With(errhint.Usagef("cannot %s the job from one of its hosts: its launcher starts each worker", r.Verb()),
		"ask on the machine of the launcher")
}

// logFilesOf are the files that a worker's output is copied to; none where none was asked for.
func (p *processSet) logFilesOf(rank int, began time.Time) []control.LogFiles {
	logs := &p.plan.Job.Logs
	if logs.RankFiles == "" {
		return nil
	}
	dir, err := filepath.Abs(logs.RankFilesOf(rank))
	if err != nil {
		return nil
	}
	return []control.LogFiles{{Began: began, Stdout: filepath.Join(dir, "stdout"), Stderr: filepath.Join(dir, "stderr")}}
}
