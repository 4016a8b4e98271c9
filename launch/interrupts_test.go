package launch

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"time"
)

// TestDeliveredAtOnce: a launcher that is asked for an end without grace passes on the signal twice in the same moment.
// The second one counts, unlike that of a program which sends one signal to a process and to its group.
func TestDeliveredAtOnce(t *testing.T) {
	t.Parallel()
	ctx, in := WatchSignals(t.Context(), nil, 0)
	defer in.Close()
	in.Deliver(syscall.SIGTERM, nil)
	in.Deliver(syscall.SIGTERM, nil)
	select {
	case <-in.Hurry:
	case <-time.After(time.Minute):
		t.Error("the second signal does not end the grace")
	}
	if s, is := errors.AsType[*SignalError](context.Cause(ctx)); !is || s.Signal != syscall.SIGTERM {
		t.Errorf("%v", context.Cause(ctx))
	}
}

// TestSameSignalTwice: of one signal that arrives by two ways in the same moment one counts. A busy machine may take them at
// different moments, so that there are some tries.
func TestSameSignalTwice(t *testing.T) {
	t.Parallel()
	twice := func() bool {
		_, in := WatchSignals(t.Context(), nil, 0)
		in.raw <- syscall.SIGTERM
		in.raw <- syscall.SIGTERM
		in.raw <- syscall.SIGPIPE // taken behind both
		in.Close()
		select {
		case <-in.Hurry:
			return true
		default:
			return false
		}
	}
	for range 5 {
		if !twice() {
			return
		}
	}
	t.Error("it counts twice")
}
