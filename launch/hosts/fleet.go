// Package hosts runs a job on machines that muster itself reaches: the launcher starts an agent on each of them, tells
// it what to do, shows what it says, and ends it.
//
// Launcher and agent talk in frames over the agent's standard input and output, so that command lines, variables and
// secrets pass no shell and stand in no list of processes. What the nodes of a job have to agree on they settle among
// themselves as always, at their own meeting: the launcher only brings them there. An agent whose launcher is gone, or
// silent for Patience, ends with all that it has started.
package hosts

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-multierror"
	"github.com/rs/zerolog"

	"muster/internal/errhint"
)

// Machine is one machine of a job.
type Machine struct {
	// Name is what it is called towards people.
	Name string
	// Start reaches it and starts an agent there.
	Start func(ctx context.Context) (Conn, error)
}

// Config says how a Fleet works.
type Config struct {
	// Machines are those of the job by rank, and its spares.
	Machines []Machine
	// Min is how many of them are needed.
	Min int
	// Parallel bounds how many are reached at once, StartTimeout how long those are waited for that are not up yet.
	Parallel     int
	StartTimeout time.Duration
	// Linger is how long nodes may take to end after the first of them has; then they are asked to, as by SIGTERM, and
	// after Grace more their agents are ended. 0 waits for them.
	Linger, Grace time.Duration
	// Transient reports whether an error of Start may go away by itself.
	Transient func(error) bool
	// Output shows what agents say; Logs takes their workers' log files, nil for none.
	Output *Output
	Logs   *LogFiles
	// Status takes the status file of a machine whenever that has changed, Process what becomes of processes that
	// agents were asked to start one by one, Events the events of a node, as JSON; nil where nobody asks.
	Status func(machine int, data []byte)
	// Lost hears of a machine whose agent has gone without a word; nil: nobody does.
	Lost    func(machine int)
	Events  func(node string, line []byte)
	Process func(machine int, e ProcessEvent)
	Log     zerolog.Logger
}

// Fleet is the agents of a job.
type Fleet struct {
	Config
	slots chan struct{} // for those that are reached at once

	mu    sync.Mutex
	nodes []*fleetNode
	begun bool // workers may run
	over  bool // the job has ended on a node
	early bool // because that could not run it
	// hopeless says that too few machines were left for the job, so that the others were asked to end.
	hopeless bool
	// succeeded says that it has been a success there.
	succeeded bool
	let       bool          // all agents were let go: Close was called
	first     time.Time     // when
	ended     chan struct{} // closed with over
	order     func(i int) Order
}

// fleetNode is a machine of the fleet and what became of it.
type fleetNode struct {
	Machine
	index   int
	session *session // nil while it is not reached
	err     error    // why it is not
	result  *Result
	at      time.Time // of the result
	reached bool      // at any time
	out     bool      // nobody tries to reach it any more
	// back has it reached again after it has left the job: it has room for one.
	back chan struct{}
	// wants is how many nodes the job is to have, where it was reached again for that; 0 else.
	wants int
}

// openFleet returns a fleet none of whose machines was reached yet.
func openFleet(cfg Config) *Fleet {
	if cfg.Parallel < 1 {
		cfg.Parallel = 64
	}
	f := &Fleet{Config: cfg, slots: make(chan struct{}, cfg.Parallel), ended: make(chan struct{})}
	for i, m := range cfg.Machines {
		f.nodes = append(f.nodes, &fleetNode{Machine: m, index: i, back: make(chan struct{}, 1)})
	}
	return f
}

const (
	// tellEvery is how often those are listed that are still waited for.
	tellEvery = 5 * time.Second
	// givenUp is how long the others are waited for once there cannot be enough: they may have errors to tell, too.
	givenUp = 5 * time.Second
)

// Reach starts an agent on every machine and waits until all have said hello, or StartTimeout is over and Min have. Its
// error holds one error for each machine that could not be reached, by rank.
func (f *Fleet) Reach(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, f.StartTimeout, errStartTimeout)
	defer cancel()
	began := time.Now()
	done := make(chan *fleetNode, len(f.nodes))
	for _, n := range f.nodes {
		go func() {
			f.reach(ctx, n)
			done <- n
		}()
	}
	tell := time.NewTicker(tellEvery)
	defer tell.Stop()
	reached, failed := 0, 0
	for reached+failed < len(f.nodes) {
		select {
		case n := <-done:
			if n.err == nil {
				reached++
				f.Log.Debug().Str("node", n.Name).Dur("dur_ms", time.Since(began)).Msg("node reached")
				continue
			}
			if failed++; len(f.nodes)-failed == f.Min-1 && ctx.Err() == nil {
				time.AfterFunc(givenUp, cancel)
			}
		case <-tell.C:
			f.Log.Warn().Strs("nodes", f.missing()).Int("reached", reached).Dur("dur_ms", time.Since(began)).Dur("timeout_ms",
				f.StartTimeout).
				Msg("waiting for nodes of the job")
		}
	}
	if reached >= f.Min {
		for _, n := range f.nodes {
			if n.err != nil {
				f.Log.Warn().Err(n.err).Str("node", n.Name).Msg("the job begins without this node")
			}
		}
		return nil
	}
	return f.unreached(ctx)
}

var errStartTimeout = errors.New("it was not there in time")

// unreached is the error about machines that could not be reached.
func (f *Fleet) unreached(ctx context.Context) error {
	if cause := context.Cause(ctx); ctx.Err() != nil && !errors.Is(cause, errStartTimeout) && !errors.Is(cause, context.Canceled) {
		f.Log.Warn().Strs("nodes", f.missing()).Msg("stopped while nodes were waited for")
		return cause // a signal
	}
	var all *multierror.Error
	given := errhint.TryAgain
	for _, n := range f.nodes {
		if n.err == nil || errors.Is(n.err, context.Canceled) {
			continue
		}
		if errhint.CodeOf(n.err) == errhint.Usage {
			given = errhint.Usage
		}
		all = multierror.Append(all, errhint.With(fmt.Errorf("cannot start a node on %s: %w", n.Name, n.err), errhint.Of(n.err)))
	}
	if all == nil {
		return errhint.Code(context.Cause(ctx), given)
	}
	return errhint.Code(all.ErrorOrNil(), given)
}

// missing are the machines that were not reached yet, each with the last reason.
func (f *Fleet) missing() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []string
	for _, n := range f.nodes {
		switch {
		case n.session != nil:
		case n.err != nil:
			all = append(all, n.Name+": "+n.err.Error())
		default:
			all = append(all, n.Name)
		}
	}
	return all
}

// reach starts an agent on a machine, and tries again while the reason may go away.
func (f *Fleet) reach(ctx context.Context, n *fleetNode) {
	pause := 200 * time.Millisecond
	for {
		s, err := f.start(ctx, n)
		f.mu.Lock()
		if n.session = s; err == nil || n.err == nil || ctx.Err() == nil { // why it was not there before says more than that time is up
			n.err = err
		}
		n.reached = n.reached || err == nil
		f.mu.Unlock()
		if err == nil || !f.Transient(err) {
			return
		}
		f.Log.Debug().Err(err).Str("node", n.Name).Msg("node not reached yet")
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
			pause = min(2*pause, 3*time.Second)
		}
	}
}

// start is one attempt of reach.
func (f *Fleet) start(ctx context.Context, n *fleetNode) (*session, error) {
	select {
	case f.slots <- struct{}{}:
		defer func() { <-f.slots }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	conn, err := n.Start(ctx)
	if err != nil {
		return nil, err
	}
	return f.greet(ctx, n, conn)
}

// Hello returns what the agent of a machine has said of itself; ok is false for one that was not reached.
func (f *Fleet) Hello(i int) (h Hello, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s := f.nodes[i].session; s != nil {
		return s.hello, true
	}
	return Hello{}, false
}

// Prepare gives every agent its order, and waits until all could start. The answers are by machine, nil for those that
// were not reached. An agent that cannot is an error: so far nothing was started.
func (f *Fleet) Prepare(ctx context.Context, order func(i int) Order) ([]*Ready, error) {
	f.order = order
	answers, errs := make([]*Ready, len(f.nodes)), make([]error, len(f.nodes))
	var wg sync.WaitGroup
	for _, n := range f.nodes {
		if n.session != nil {
			wg.Go(func() { answers[n.index], errs[n.index] = f.prepare(ctx, n) })
		}
	}
	wg.Wait()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	var all *multierror.Error
	status := errhint.TryAgain
	for i, err := range errs {
		if err == nil {
			continue
		}
		if status == errhint.TryAgain {
			status = errhint.CodeOf(err)
		}
		all = multierror.Append(all,
			errhint.With(fmt.Errorf("cannot start the workers of node %s: %w", f.nodes[i].Name, err), errhint.Of(err)))
	}
	return answers, errhint.Code(all.ErrorOrNil(), status)
}

// prepare gives one agent its order.
func (f *Fleet) prepare(ctx context.Context, n *fleetNode) (*Ready, error) {
	s := n.session
	order := f.order(n.index)
	f.mu.Lock()
	order.Job.Meeting.Wants = n.wants
	f.mu.Unlock()
	if err := s.wire.sendJSON(kindOrder, order); errors.Is(err, errTooLong) {
		return nil, errhint.Code(err, errhint.Usage)
	} // any other error is the end of the session, which says why
	select {
	case r := <-s.ready:
		return &r, nil
	case <-s.ended:
		if r := s.result; r != nil {
			err := errors.New(r.Error)
			if r.Error == "" {
				err = fmt.Errorf("it has ended with status %d", r.Status)
			}
			return nil, errhint.Code(errhint.With(err, r.Hint), r.Status)
		}
		return nil, errhint.Code(s.why, errhint.TryAgain)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Signal tells all agents of a signal that the launcher has received: the first one stops the workers, the second ends
// their grace.
func (f *Fleet) Signal(n syscall.Signal) {
	for _, s := range f.running() {
		go func() { _ = s.signal(n) }() // one that takes nothing is found out
	}
}

// Ask has one of the agents do something with the job of all nodes, and returns what it says about that. Where one has
// no round, or does not answer, the next one is asked; only when none has a round, one that has none.
func (f *Fleet) Ask(ctx context.Context, m Ask) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	err := errhint.Code(errors.New("no node can be told now"), errhint.TryAgain)
	for _, m.InRound = range []bool{true, false} {
		for _, s := range f.running() {
			one, cancel := context.WithTimeout(ctx, agentTime)
			message, said := s.ask(one, m)
			cancel()
			if said == nil {
				return message, nil
			}
			if err = said; errhint.CodeOf(err) != errhint.TryAgain || ctx.Err() != nil {
				return "", err
			}
		}
	}
	return "", err
}

// running are the sessions of agents that have not ended.
func (f *Fleet) running() []*session {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []*session
	for _, n := range f.nodes {
		if n.session != nil && n.result == nil {
			all = append(all, n.session)
		}
	}
	return all
}

// Running returns the names of machines whose agents have not said that they ended.
func (f *Fleet) Running() []string {
	var names []string
	for _, s := range f.running() {
		names = append(names, s.name)
	}
	return names
}

// Close ends all agents that have not ended.
func (f *Fleet) Close() {
	f.mu.Lock()
	f.let = true
	f.mu.Unlock()
	var wg sync.WaitGroup
	for _, s := range f.running() {
		wg.Go(s.close)
	}
	wg.Wait()
}

// askTime is how long all agents may take for an answer, agentTime how long one of them may.
const askTime, agentTime = 4 * time.Second, 2 * time.Second
