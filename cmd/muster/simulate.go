package main

import (
	"bufio"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"muster/cmd/dialect"
	"muster/internal/errhint"
	"muster/internal/logtext"
	"muster/internal/proc"
	"muster/launch"
	"muster/launch/job"
)

// simulatedNode is set for a muster that is one of the nodes of a simulation: it starts no more of them.
const simulatedNode = "MUSTER_SIMULATED"

// simulated reports whether this is one of the nodes of a simulation.
func (a *app) simulated() bool { return a.getenv(simulatedNode) != "" }

// simulatedName is what the i-th simulated node is called, in specs and reports.
func simulatedName(i int) string { return "node-" + strconv.Itoa(i) }

// simulate runs the agents of a job's nodes on this machine: each is a muster of its own, started with this command line,
// that takes itself for another node of the spec. The job has succeeded where one of them has: those that had to leave it
// say so themselves.
func (a *app) simulate(ctx context.Context, req dialect.Request, log zerolog.Logger) (err error) {
	if req.Job.StatusFile != "" {
		return errhint.Usagef("cannot use --status-file with --simulate-nodes: all nodes would write the same file")
	}
	ctx, in := launch.WatchSignals(ctx, req.Job.Stop.Handled, req.Job.Checkpoint.Signal)
	defer in.Close()
	marker := "MUSTER_SIMULATION=" + strings.ToLower(rand.Text()[:12])
	tree, err := proc.Open(proc.Config{Log: log, Marker: marker, Guardian: []string{"/proc/self/exe", guardianArg}})
	if err != nil {
		return fmt.Errorf("cannot look after processes: %w", err)
	}
	defer func() {
		if closeErr := tree.Close(); err == nil {
			err = closeErr
		}
	}()
	environ, chosen, err := a.simulatedEnviron(ctx, req)
	if err != nil {
		return err
	}
	environ = append(environ, marker)
	log.Warn().Int("nodes", req.SimulateNodes).Str("spec", req.Job.Fake).Msg("all nodes of this job and their accelerators are simulated on this machine: accelerator=fake")
	s := simulation{app: a, tree: tree, min: req.Job.Nodes.Min, log: a.NodesLog(req.SimulateNodes), own: log}
	defer s.ended()
	for i := range req.SimulateNodes {
		own := withVariable(environ, fakeNodeName, simulatedName(i))
		if chosen { // the address is everybody's: the same rehearsal has the same host each time
			own = append(own, "MUSTER_RDZV_CONF=is_host="+strconv.FormatBool(i == 0))
		}
		if err := s.start(i, own); err != nil {
			stopErr := tree.Stop(context.WithoutCancel(ctx), proc.Ladder{Signal: syscall.SIGTERM, Grace: time.Second}, s.procs...)
			if stopErr != nil {
				log.Error().Err(stopErr).Msg("nodes started so far could not be ended")
			}
			return err
		}
	}
	s.follow(ctx, in)
	if err := tree.Stop(context.WithoutCancel(ctx), proc.Ladder{Signal: syscall.SIGTERM, Grace: req.Job.Stop.Grace}, s.procs...); err != nil {
		return errhint.Code(err, errhint.Internal)
	}
	s.ended()
	defer s.app.Flush()
	return s.outcome(log)
}

// simulatedEnviron is the environment of the simulated nodes: where they meet, unless the command line says that. chosen
// reports that it does not.
func (a *app) simulatedEnviron(ctx context.Context, req dialect.Request) (environ []string, chosen bool, err error) {
	environ = append(slices.Clone(a.environ), simulatedNode+"=1")
	if req.Job.RunID == "" {
		environ = append(environ, "MUSTER_RDZV_ID=simulated-"+strconv.Itoa(os.Getpid()))
	}
	if len(req.Job.Meeting.Endpoints) > 0 {
		return environ, false, nil
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, false, fmt.Errorf("cannot find a port at which the simulated nodes meet: %w", err)
	}
	at := l.Addr().String()
	if err := l.Close(); err != nil {
		return nil, false, err
	}
	return append(environ, "MUSTER_RDZV=muster://"+at), true, nil
}

// simulation is the nodes that run on this machine.
type simulation struct {
	app   *app
	tree  *proc.Tree
	log   io.Writer // takes the nodes' logs
	procs []*proc.Process
	wg    sync.WaitGroup // readers of their output
	mu    sync.Mutex     // held while a line is shown
	// min is how many nodes a round needs, tooFew says that fewer were left.
	min    int
	tooFew bool
	own    zerolog.Logger // what muster says itself
}

// ended waits until all is shown that the nodes have said.
func (s *simulation) ended() {
	s.wg.Wait()
	s.app.Flush()
}

// start starts a node. Its lines are shown behind its name.
func (s *simulation) start(i int, environ []string) (err error) {
	var theirs []*os.File
	defer func() {
		for _, f := range theirs {
			_ = f.Close()
		}
	}()
	for _, to := range []*os.File{s.app.stdout, s.app.stderr} {
		r, w, err := os.Pipe()
		if err != nil {
			return fmt.Errorf("cannot read what node %s says: %w", simulatedName(i), err)
		}
		theirs = append(theirs, w)
		s.wg.Go(func() { s.show(r, to, simulatedName(i)) })
	}
	p, err := s.tree.Start(proc.Spec{
		Path: "/proc/self/exe", Args: s.app.argv, Env: environ, Files: append([]*os.File{s.app.stdin}, theirs...), Label: simulatedName(i),
	})
	if err != nil {
		return fmt.Errorf("cannot start node %s: %w", simulatedName(i), err)
	}
	s.procs = append(s.procs, p)
	return nil
}

func (s *simulation) show(from *os.File, to io.Writer, name string) {
	defer func() { _ = from.Close() }()
	lines := bufio.NewReader(from)
	for {
		line, err := lines.ReadString('\n')
		if line != "" {
			s.line(line, to, name)
		}
		if err != nil {
			return
		}
	}
}

// workerMark stands in front of the lines of a simulated node's workers, which have a prefix of their own.
const workerMark = "\x1f"

// markWorkers has the lines of a simulated node's workers say whose they are, as those of a job on hosts do.
func markWorkers(logs *job.LogRules) {
	logs.Prefix = workerMark + cmp.Or(logs.Prefix, job.HostRankPrefix)
}

// line shows one line of a node, behind its name where no prefix of a worker says whose it is.
func (s *simulation) line(line string, to io.Writer, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if entry, ours := strings.CutPrefix(line, logMark+"{"); ours {
		_, _ = fmt.Fprintf(s.log, `{"%s":%q,%s`, logtext.NodeKey, name, entry) // nobody could be told
		return
	}
	s.app.EndWaiting()
	if of, marked := strings.CutPrefix(line, workerMark); marked {
		say(to, "%s\n", strings.TrimSuffix(of, "\n"))
		return
	}
	say(to, "[%s] %s\n", name, strings.TrimSuffix(line, "\n"))
}

// follow waits until all nodes have ended. Signals to us go to each of them.
func (s *simulation) follow(ctx context.Context, in *launch.Interrupts) {
	ends := make(chan struct{}, len(s.procs))
	for _, p := range s.procs {
		go func() {
			<-p.Done()
			ends <- struct{}{}
		}()
	}
	tell := func(n syscall.Signal) {
		for _, p := range s.procs {
			_ = p.Signal(n) // it may have ended
		}
	}
	stopped, hurry := ctx.Done(), in.Hurry
	var signal syscall.Signal
	for left := len(s.procs); left > 0; {
		select {
		case <-ends:
			if left--; left > 0 && !s.tooFew && signal == 0 && s.hopeless() {
				s.tooFew = true
				s.own.Error().Int("nodes", left).Int("needed", s.min).Msg("too few simulated nodes are left for a round, and nobody can join: the job ends")
				tell(syscall.SIGTERM)
			}
		case <-stopped:
			stopped, signal = nil, syscall.SIGTERM
			if by, ok := errors.AsType[*launch.SignalError](context.Cause(ctx)); ok {
				signal = by.Signal
			}
			tell(signal)
		case <-hurry:
			hurry = nil
			tell(signal)
		case n := <-in.Forward:
			tell(n)
		}
	}
}

// hopeless reports whether the nodes that are left are too few for a round, because others had to leave or were killed. A job
// that ends by itself is not.
func (s *simulation) hopeless() bool {
	running := 0
	for _, p := range s.procs {
		select {
		case <-p.Done():
			if e := p.Exit(); e.Signal == 0 && !leaves(e.Status()) {
				return false
			}
		default:
			running++
		}
	}
	return running < s.min
}

// leaves reports whether a node's exit status says that a check has sent it away, and not how the job ended.
func leaves(status int) bool {
	return status == errhint.Faulty || status == errhint.Straggler || status == errhint.Undecided
}

// outcome is the status of the job: that of a node which has succeeded, else of the first one that the job itself ended.
func (s *simulation) outcome(log zerolog.Logger) error {
	status := errhint.OK
	succeeded, decided := false, false // decided: the status is not that of a node that left
	for i, p := range s.procs {
		n := p.Exit().Status()
		level := zerolog.InfoLevel
		if n == errhint.OK {
			level = zerolog.DebugLevel
		}
		ended := zerolog.New(s.log).Level(log.GetLevel()).With().Timestamp().Str(logtext.NodeKey, simulatedName(i)).Logger()
		ended.WithLevel(level).Int("exit_code", n).Msg("simulated node has ended")
		left := leaves(n)
		switch {
		case n == errhint.OK:
			succeeded = true
		case status == errhint.OK || !left && !decided:
			status, decided = n, !left
		}
	}
	switch {
	case succeeded || status == errhint.OK:
		return nil
	case s.tooFew:
		status = errhint.TryAgain
	}
	return errhint.StatusError(status)
}
