package hosts

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"muster/internal/errhint"
	"muster/internal/logtext"
	"muster/launch"
	"muster/launch/job"
)

// hurryPause is how long after a signal nodes get it again, where somebody wants both at once: processes, and muster, take
// two that come together for one.
const hurryPause = 200 * time.Millisecond

// follow waits until all nodes have ended. Signals to us go to each of them.
func (s *simulation) follow(ctx context.Context, in *launch.Interrupts) {
	tell := func(n syscall.Signal) {
		for _, p := range s.processes() {
			_ = p.Signal(n) // it may have ended
		}
	}
	end := func(n syscall.Signal, reason job.Reason, why string) {
		s.told.ends(reason, why)
		_ = s.stop.Close() // nobody can be told anything else by it
		tell(n)
	}
	stopped, hurry := ctx.Done(), in.Hurry
	var again <-chan time.Time
	var signal syscall.Signal
	for left := s.left(nil); left > 0; {
		select {
		case n := <-s.ends:
			if left = s.left(n); left > 0 && !s.tooFew && signal == 0 && s.hopeless() {
				s.tooFew = true
				const why = "too few simulated nodes are left for a round, and nobody can join"
				s.config.Log.Error().Int("nodes", left).Int("needed", s.config.Job.Nodes.Min).Msg(why + ": the job ends")
				end(syscall.SIGTERM, job.ReasonNotMet, why)
			}
		case <-stopped:
			stopped, signal = nil, syscall.SIGTERM
			if by, ok := errors.AsType[*launch.SignalError](context.Cause(ctx)); ok {
				signal = by.Signal
			}
			end(signal, job.ReasonStopped, context.Cause(ctx).Error())
		case <-hurry:
			hurry, again = nil, time.After(hurryPause)
		case <-again:
			again = nil
			tell(signal)
		case n := <-in.Forward:
			tell(n)
		}
	}
}

// left is how many nodes run, one of which has just ended. Once none does, none is started any more.
func (s *simulation) left(ended *simulatedNode) (n int) {
	if ended != nil {
		d, said := s.stateOf(ended)
		ended.left = said && d.Reason == job.ReasonSurplus && ended.Exit().Success()
	}
	s.nodesMu.Lock()
	defer s.nodesMu.Unlock()
	if ended != nil {
		s.seen++
	}
	n = len(s.nodes) - s.seen
	s.closed = n == 0
	return n
}

// hopeless reports whether the nodes that are left are too few for a round, because others had to leave or were killed.
// A job that ends by itself is not.
func (s *simulation) hopeless() bool {
	running := 0
	for _, n := range s.started() {
		switch {
		case n.runs():
			running++
		case n.left:
		default:
			if e := n.Exit(); e.Signal == 0 && !leaves(e.Status()) {
				return false
			}
		}
	}
	return running < s.config.Job.Nodes.Min
}

// leaves reports whether a node's exit status says that a check has sent it away, and not how the job ended.
func leaves(status int) bool {
	return status == errhint.Faulty || status == errhint.Straggler || status == errhint.Undecided
}

// outcome is the status of the job: that of a node which has succeeded, else of the first one that has said how the job
// itself ended. Where all were killed, and nobody has asked for the end of the job, nobody has said that: somebody may try
// again.
func (s *simulation) outcome(ctx context.Context) error {
	status, word := errhint.OK, wordNone
	for _, node := range s.started() {
		if node.left {
			continue
		}
		n := node.Exit().Status()
		if n == errhint.OK {
			return nil
		}
		if of := node.word(); of > word {
			status, word = n, of
		}
	}
	switch {
	case word == wordNone:
		return nil
	case s.tooFew:
		status = errhint.TryAgain
	case word == wordLost && ctx.Err() == nil:
		return errhint.With(errhint.Code(errors.New("no simulated node is left: all were killed before one could say how the job ended"),
			errhint.TryAgain), "start the job again; to rehearse the loss of a node with muster kill-node, leave at least one that runs")
	}
	return errhint.StatusError(status)
}

// nodeWord is what the exit status of a node that has not succeeded says of the job, the least first.
type nodeWord int

const (
	wordNone nodeWord = iota
	wordLost          // it was killed, as by muster kill-node: nothing
	wordLeft          // a check has sent it away, or the others went on without it
	wordJob           // how the job has ended
)

func (n *simulatedNode) word() nodeWord {
	switch status := n.Exit().Status(); {
	case n.Exit().Signal != 0:
		return wordLost
	case leaves(status) || status == errhint.TryAgain:
		return wordLeft
	}
	return wordJob
}

// tellEnd says why the job has ended, where no other node has said so, and with which status this one has.
func (s *simulation) tellEnd(n *simulatedNode) {
	level, status := zerolog.InfoLevel, n.Exit().Status()
	if status == errhint.OK {
		level = zerolog.DebugLevel
	}
	log := zerolog.New(s.log).Level(s.config.Log.GetLevel()).With().Timestamp().Str(logtext.NodeKey, SimulatedName(n.index)).Logger()
	s.mu.Lock()
	defer s.mu.Unlock()
	if n.report != "" && !slices.Contains(s.why, status) {
		prefix := ""
		if n.word() == wordJob { // the others say the same
			s.why = append(s.why, status)
		} else {
			prefix = "[" + SimulatedName(n.index) + "] "
		}
		s.config.Console.EndWaiting()
		for text := range strings.Lines(n.report) {
			_, _ = fmt.Fprint(s.config.Stderr, prefix, text) // nobody could be told
		}
	}
	log.WithLevel(level).Int("exit_code", status).Msg("simulated node has ended")
}
