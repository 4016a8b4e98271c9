package hosts

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"muster/internal/durable"
	"muster/internal/errhint"
	"muster/internal/proc"
	"muster/launch"
	"muster/launch/control"
	"muster/launch/job"
	"muster/launch/node"
	"muster/launch/output"
	"muster/launch/plan"
	"muster/launch/warm"
)

// processes starts and ends processes one by one as the launcher says, until the launcher or a signal ends them all.
func (n *remoteNode) processes(ctx context.Context, here node.Here, in *launch.Interrupts, log zerolog.Logger) (err error) {
	plan, err := n.ready(ctx, here, log)
	if err != nil {
		return err
	}
	room, err := launch.OpenRoom(plan, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, room.Close()) }()
	tree, err := proc.Open(proc.Config{
		Log: log, Marker: plan.Mark(), Guardian: n.config.Guardian, Cgroup: true,
		RemoveOnDeath: []string{room.Dir(), n.dir},
	})
	if err != nil {
		return fmt.Errorf("cannot look after processes: %w", err)
	}
	defer func() { err = errors.Join(err, tree.Close()) }()
	warm, err := warm.Open(plan, tree, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, warm.Close()) }()
	p := &processSet{
		node: n, plan: plan, tree: tree, room: room, warm: warm, log: log, running: map[int]*hostWorker{},
		starting: map[int]*StopProcess{}, places: map[int]*hostWorker{},
	}
	front := p.openFront(log)
	n.link.Accept(front.server.Take)
	defer func() { //nolint:contextcheck // it bounds itself
		n.link.Accept(nil)
		err = errors.Join(err, front.close())
	}()
	for ctx.Err() == nil {
		select {
		case m := <-n.link.Processes():
			switch m := m.(type) {
			case StartProcess:
				p.begin(ctx, m)
			case StopProcess:
				p.wg.Go(func() { p.stop(context.WithoutCancel(ctx), m) })
			case RankProcess:
				p.ranked(m)
			}
		case m := <-n.link.Asks():
			_ = n.link.Answer(p.asked(m)) // a launcher that is lost is met elsewhere
		case s := <-in.Forward:
			for _, running := range p.all() {
				_ = running.Signal(s) // it may have ended meanwhile
			}
		case <-ctx.Done():
		}
	}
	p.starts.Wait() // which do not outlast ctx
	ladder := proc.Ladder{Signal: syscall.SIGTERM, Grace: plan.Job.Stop.Grace, Now: in.Hurry}
	stopped, bySignal := errors.AsType[*launch.SignalError](context.Cause(ctx))
	if bySignal {
		ladder.Signal = stopped.Signal
	} else {
		ladder.Spare = plan.Job.Restart.Clean != job.CleanAll // what ended workers have left behind
	}
	err = tree.Stop(context.WithoutCancel(ctx), ladder, p.all()...)
	p.wg.Wait()
	switch {
	case err != nil:
		return errhint.Code(err, errhint.Internal)
	case bySignal:
		return errhint.StatusError(errhint.FromSignal(int(stopped.Signal)))
	}
	return context.Cause(ctx)
}

// processSet are those that an agent runs.
type processSet struct {
	node *remoteNode
	plan *plan.Plan
	tree *proc.Tree
	room *launch.Room
	warm *warm.Starts
	log  zerolog.Logger
	wg   sync.WaitGroup // one for each, and for each that is being stopped
	// starts are those that wait for the template of warm starts.
	starts sync.WaitGroup

	mu      sync.Mutex
	running map[int]*hostWorker // by the launcher's names for them
	places  map[int]*hostWorker // the newest by local rank, also where it has ended
	// starting are those that do not run yet, with the request to stop that has come meanwhile; nil: none.
	starting map[int]*StopProcess
}

// asked does what somebody has asked the launcher for: this node can be lost.
func (p *processSet) asked(m Ask) Answer {
	a := Answer{ID: m.ID}
	if m.Request.What != control.KillRequested {
		a.Error, a.Status = "this node starts processes one by one", errhint.Usage
		return a
	}
	launch.Die(fmt.Sprintf("%s has asked for the loss of this host", m.Request.By), p.log)
	a.Message = "it kills itself, as if its machine were lost"
	return a
}

// begin starts a process, beside what else the launcher says where that may take some time.
func (p *processSet) begin(ctx context.Context, m StartProcess) {
	if p.warm == nil {
		p.start(ctx, m)
		return
	}
	p.mu.Lock()
	p.starting[m.ID] = nil
	p.mu.Unlock()
	p.starts.Go(func() { p.start(ctx, m) })
}

func (p *processSet) all() []*proc.Process {
	p.mu.Lock()
	defer p.mu.Unlock()
	var list []*proc.Process
	for _, running := range p.running {
		list = append(list, running.proc)
	}
	return list
}

// start starts a process, whose output goes to the launcher behind its prefixes.
func (p *processSet) start(ctx context.Context, m StartProcess) {
	w := p.plan.Process(m.Env)
	w.Rank = m.Rank
	worker := &hostWorker{Worker: w, local: m.Local, began: time.Now(), rank: m.Rank, world: m.World}
	worker.logs = p.logFilesOf(m.Rank, worker.began)
	var theirs []*os.File
	var shown sync.WaitGroup
	defer func() {
		for _, f := range theirs {
			_ = f.Close()
		}
	}()
	failed := func(err error) {
		p.mu.Lock()
		delete(p.starting, m.ID)
		p.mu.Unlock()
		p.tell(ProcessEvent{ID: m.ID, Error: err.Error(), Status: errhint.CodeOf(err), Ended: true})
	}
	logs := &p.plan.Job.Logs
	for i, to := range []io.Writer{p.node.link.Stdout(), p.node.link.Stderr()} {
		stream := []string{"stdout", "stderr"}[i]
		var copies *os.File // Close of a nil file does nothing
		if logs.RankFiles != "" {
			f, err := rankFile(logs.RankFilesOf(m.Rank), stream)
			if err != nil {
				failed(err)
				return
			}
			copies = f
		}
		r, w, err := os.Pipe()
		if err != nil {
			failed(err)
			return
		}
		theirs = append(theirs, w)
		shown.Go(func() {
			defer func() { _, _ = r.Close(), copies.Close() }()
			from := io.TeeReader(r, &worker.last[i])
			if copies != nil {
				from = io.TeeReader(from, copies)
			}
			prefixLines(to, from, func() string { return output.ProcessPrefix(logs, m.Rank, p.node.order.Name, stream, time.Now()) })
		})
	}
	if err := p.room.Tell(w); err != nil {
		failed(err)
		return
	}
	started, err := p.warm.Start(ctx, p.tree, w, proc.Spec{
		Path: w.Path, Args: w.Argv, Env: w.Env.Strings(), Dir: w.Dir, Files: slices.Concat([]*os.File{nil}, theirs), Label: m.Label,
	})
	if err != nil {
		failed(err)
		return
	}
	worker.proc = started
	p.mu.Lock()
	p.running[m.ID], p.places[m.Local] = worker, worker
	stop := p.starting[m.ID]
	delete(p.starting, m.ID)
	p.mu.Unlock()
	if stop != nil {
		p.wg.Go(func() { p.stop(context.WithoutCancel(ctx), *stop) })
	}
	p.tell(ProcessEvent{ID: m.ID, PID: started.PID()})
	p.wg.Go(func() {
		<-started.Done()
		if err := p.room.Forget(w); err != nil {
			p.log.Error().Err(err).Msg("the room of a process that has ended is left behind")
		}
		p.mu.Lock()
		delete(p.running, m.ID)
		p.mu.Unlock()
		all := make(chan struct{})
		go func() {
			shown.Wait()
			close(all)
		}()
		select { // what it has started may hold its output open
		case <-all:
		case <-time.After(time.Second):
		}
		p.tell(ProcessEvent{ID: m.ID, Status: started.Exit().Status(), Ended: true})
	})
}

// tell tells the launcher of a process. One that is gone is noticed elsewhere.
func (p *processSet) tell(e ProcessEvent) { _ = p.node.link.Process(e) }

// stop ends a process with all that it has started. It is told when it has.
func (p *processSet) stop(ctx context.Context, m StopProcess) {
	p.mu.Lock()
	running := p.running[m.ID]
	if _, starts := p.starting[m.ID]; starts {
		p.starting[m.ID] = &m
	}
	p.mu.Unlock()
	if running == nil {
		return
	}
	if err := p.tree.Stop(ctx, proc.Ladder{Signal: syscall.SIGTERM, Grace: m.Grace, Spare: true}, running.proc); err != nil {
		p.log.Error().Err(err).Int("pid", running.proc.PID()).Msg("a process could not be ended")
	}
}

// rankFile makes the file of one stream of a rank, anew.
func rankFile(dir, stream string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, err
	}
	return durable.Create(filepath.Join(dir, stream), os.O_TRUNC, 0o666)
}
