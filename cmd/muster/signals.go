package main

import (
	"context"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"muster/launch"
)

// interrupts carries the signals that reach muster to the agent.
type interrupts struct {
	hurry   chan struct{}       // closed by the second signal: no more grace
	abandon chan struct{}       // closed by the third: nobody is waited for
	forward chan syscall.Signal // signals for the workers that end nothing
	save    chan syscall.Signal // those that have checkpoints saved; they are forwarded, too
	raw     chan os.Signal
	done    chan struct{}
}

// forwarded are the signals that go to the workers and end nothing: batch systems announce preemption with them.
var forwarded = []os.Signal{syscall.SIGUSR1, syscall.SIGUSR2}

// sameSignal is how soon a signal that comes again is the same one: timeout of coreutils sends it to its child and to its
// child's group, and nobody types as fast.
const sameSignal = 5 * time.Millisecond

// watchSignals receives signals until close. The first of handled ends the returned context with a launch.SignalError as
// its cause, the second closes hurry. SIGHUP stays ignored where nohup had it ignored when muster started; SIGINT and
// SIGQUIT do not: a shell's background jobs begin with those ignored, and are to end when somebody sends them. save is the
// signal that has checkpoints saved, 0 for none; it is none of handled.
func watchSignals(parent context.Context, handled []syscall.Signal, save syscall.Signal) (context.Context, *interrupts) {
	ctx, cancel := context.WithCancelCause(parent)
	in := &interrupts{
		hurry: make(chan struct{}), abandon: make(chan struct{}), forward: make(chan syscall.Signal, 16), save: make(chan syscall.Signal, 1),
		raw: make(chan os.Signal, 16), done: make(chan struct{}),
	}
	for _, s := range handled {
		if s != syscall.SIGHUP || !signal.Ignored(s) {
			signal.Notify(in.raw, s)
		}
	}
	signal.Notify(in.raw, forwarded...)
	if save != 0 {
		signal.Notify(in.raw, save)
	}
	// A reader of our output that went away must not end the job. Receiving the signal, instead of ignoring it, keeps
	// the workers' own disposition at its default.
	signal.Notify(in.raw, syscall.SIGPIPE)
	go func() {
		defer close(in.done)
		defer cancel(nil)
		stopping, last, at := 0, syscall.Signal(0), time.Time{}
		for s := range in.raw {
			n, _ := s.(syscall.Signal)
			if n == last && time.Since(at) < sameSignal {
				continue
			}
			last, at = n, time.Now()
			switch {
			case n == syscall.SIGPIPE:
			case n == save, slices.Contains(forwarded, s) && !slices.Contains(handled, n):
				if n == save {
					select {
					case in.save <- n:
					default: // one is on its way already
					}
				}
				select {
				case in.forward <- n:
				default: // sixteen are on their way already; the workers cannot tell more apart
				}
			default:
				switch stopping++; stopping {
				case 1:
					cancel(&launch.SignalError{Signal: n})
				case 2:
					close(in.hurry)
				case 3:
					close(in.abandon)
				}
			}
		}
	}()
	return ctx, in
}

// close stops receiving and waits for the receiver.
func (in *interrupts) close() {
	signal.Stop(in.raw)
	close(in.raw)
	<-in.done
}
