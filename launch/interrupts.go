package launch

import (
	"context"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"
)

// Interrupts are the signals that reach muster, as those hear of them who run a job.
type Interrupts struct {
	// Hurry is closed by the second signal that is to end the job: no more grace. Abandon is closed by the third:
	// nobody is waited for.
	Hurry, Abandon <-chan struct{}
	// Forward delivers the signals for the workers that end nothing, Save those of them that have checkpoints saved.
	Forward, Save <-chan syscall.Signal

	raw  chan os.Signal
	done chan struct{}
}

// forwarded are the signals that go to the workers and end nothing: batch systems announce preemption with them.
var forwarded = []os.Signal{syscall.SIGUSR1, syscall.SIGUSR2}

// sameSignal is how soon a signal that comes again is the same one: timeout of coreutils sends it to its child and to
// its child's group, and nobody types as fast.
const sameSignal = 5 * time.Millisecond

// WatchSignals receives signals until Close. The first of handled ends the returned context with a SignalError as its
// cause, the second closes Hurry. SIGHUP stays ignored where nohup had it ignored when muster started; SIGINT and
// SIGQUIT do not: a shell's background jobs begin with those ignored, and are to end when somebody sends them. save is
// the signal that has checkpoints saved, 0 for none; it is none of handled.
func WatchSignals(parent context.Context, handled []syscall.Signal, save syscall.Signal) (context.Context, *Interrupts) {
	ctx, cancel := context.WithCancelCause(parent)
	hurry, abandon := make(chan struct{}), make(chan struct{})
	forward, saves := make(chan syscall.Signal, 16), make(chan syscall.Signal, 1)
	in := &Interrupts{
		Hurry: hurry, Abandon: abandon, Forward: forward, Save: saves, raw: make(chan os.Signal, 16),
		done: make(chan struct{}),
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
			if r, is := s.(request); is {
				if stopping == 0 {
					stopping = 1
					cancel(&SignalError{Signal: syscall.SIGTERM, Asked: r.text})
				}
				if stopping == 1 && r.now {
					stopping = 2
					close(hurry)
				}
				continue
			}
			passed, is := s.(delivered) // whoever has received it knows which ones are the same
			if is {
				s = syscall.Signal(passed)
			}
			n, _ := s.(syscall.Signal)
			if n == last && time.Since(at) < sameSignal && !is {
				continue
			}
			last = n
			switch {
			case n == syscall.SIGPIPE:
			case n == save, slices.Contains(forwarded, s) && !slices.Contains(handled, n):
				if n == save {
					select {
					case saves <- n:
					default: // one is on its way already
					}
				}
				select {
				case forward <- n:
				default: // sixteen are on their way already; the workers cannot tell more apart
				}
			default:
				switch stopping++; stopping {
				case 1:
					cancel(&SignalError{Signal: n})
				case 2:
					close(hurry)
				case 3:
					close(abandon)
				}
			}
			at = time.Now() // whatever that took: it wakes many, who may all want this processor
		}
	}()
	return ctx, in
}

// delivered is a signal that somebody else has received.
type delivered syscall.Signal

// String implements os.Signal.
func (d delivered) String() string { return syscall.Signal(d).String() }

// Signal implements os.Signal.
func (delivered) Signal() {}

// Deliver takes a signal that somebody else has received, as if it had reached this process; each counts, however soon
// it comes. It gives up when over is closed. It must not be called after Close.
func (in *Interrupts) Deliver(s syscall.Signal, over <-chan struct{}) {
	select {
	case in.raw <- delivered(s):
	case <-over:
	}
}

// request is what Ask asks for, among the signals.
type request struct {
	text string
	now  bool
}

// String implements os.Signal.
func (r request) String() string { return r.text }

// Signal implements os.Signal.
func (request) Signal() {}

// Ask has the job end as the first signal does, and with now as the second; text says who wants that. It must not be
// called after Close. It reports whether that was taken: where too many signals are on their way it was not.
func (in *Interrupts) Ask(text string, now bool) bool {
	select {
	case in.raw <- request{text, now}:
		return true
	default:
		return false
	}
}

// Close stops receiving and waits for the receiver.
func (in *Interrupts) Close() {
	signal.Stop(in.raw)
	close(in.raw)
	<-in.done
}
