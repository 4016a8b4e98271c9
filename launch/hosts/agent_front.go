package hosts

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
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
	events  control.Events
	looking chan struct{} // has room for one look at a time
	entered chan struct{} // an item for each command in the place of a worker
}

var (
	_ control.Served     = (*hostServed)(nil)
	_ control.Rememberer = (*hostServed)(nil)
	_ control.Looker     = (*hostServed)(nil)
	_ control.Executor   = (*hostServed)(nil)
)

// openFront begins to answer at the run directory. A nil server is none: the workers run all the same.
func (p *processSet) openFront(log zerolog.Logger) *control.Server {
	if p.room.Dir() == "" {
		return nil
	}
	served := &hostServed{set: p, looking: make(chan struct{}, 1), entered: make(chan struct{}, mostEntered)}
	server, err := control.Serve(control.Config{
		Dir: p.plan.RunDir, Served: served, Log: log, Muster: control.Muster{Role: control.Agent, Part: true},
	})
	if err != nil {
		log.Warn().Err(err).Str("path", p.plan.RunDir).Msg("the job runs, but its workers on this host cannot be looked into from outside")
		return nil
	}
	return server
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
		h.set.mu.Unlock()
		if w.runs() { // the rank of one that has ended may be another's by now
			ranks, d.Ranks = append(ranks, strconv.Itoa(r.Rank)), append(d.Ranks, r)
		}
	}
	if len(ranks) > 0 {
		d.Tasks = append(d.Tasks, report.Task{Node: name, Ranks: strings.Join(ranks, ","), Phase: report.PhaseRunning})
	}
	return d, nil
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

// mostEntered is how many commands run on a host in the places of its workers.
const mostEntered = 16

// Exec implements control.Executor.
func (h *hostServed) Exec(ctx context.Context, by control.Peer, w control.ExecWanted, files [3]*os.File) (control.Command, error) {
	name := h.set.node.order.Name
	rank, err := h.Rank(ctx, w.Rank)
	if err == nil && !rank.Running {
		err = errhint.Usagef("rank %d on host %s has ended: there is nothing to enter", w.Rank, name)
	}
	if err != nil {
		return nil, err
	}
	select {
	case h.entered <- struct{}{}:
	default:
		return nil, errhint.Code(errhint.With(fmt.Errorf("host %s runs %d commands in places of its ranks already", name, mostEntered),
			"end one of them"), errhint.TryAgain)
	}
	p, err := launch.Enter(h.set.tree, rank, nil, w, files)
	if err != nil {
		<-h.entered
		return nil, err
	}
	h.noteExec(control.ExecStarted, by, w, p.PID(), nil)
	go func() { // who has started it ends it
		<-p.Done()
		<-h.entered
		h.noteExec(control.ExecEnded, by, w, p.PID(), launch.EndedAs(p.Exit(), true))
	}()
	return p, nil
}

// Entered implements control.Executor.
func (h *hostServed) Entered(by control.Peer, w control.ExecWanted) {
	h.noteExec(control.ExecStarted, by, w, by.PID, nil)
}

// LogsRead implements control.Executor.
func (h *hostServed) LogsRead(by control.Peer, ranks []int) {
	h.events.Add(control.Event{Type: control.LogsRead, RunID: h.set.plan.RunID, Rank: &ranks[0], By: &by})
}

// noteExec records that somebody runs a command in a rank's place.
func (h *hostServed) noteExec(kind control.EventType, by control.Peer, w control.ExecWanted, pid int, fill func(*control.Event)) {
	e := control.Event{Type: kind, RunID: h.set.plan.RunID, Node: h.set.node.order.Name}
	launch.DescribeExec(&e, by, w, pid, h.set.plan.Job.Vars())
	if fill != nil {
		fill(&e)
	}
	h.events.Add(e)
	if kind == control.ExecStarted {
		h.set.log.Warn().Int("uid", by.UID).Str("from", by.Node).Int("rank", w.Rank).Int("pid", pid).
			Msg("somebody runs a command in the place of a rank")
	}
}

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
	h.set.log.Warn().Int("uid", r.By.UID).Int("pid", r.By.PID).Msg("asked to " + r.String())
}

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
