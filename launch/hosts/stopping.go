package hosts

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"muster/internal/logtext"
	"muster/internal/proc"
	"muster/internal/wording"
	"muster/launch"
)

// passSignals tells the agents of signals that reach the launcher: the first stops the workers, the second kills them,
// the third gives the machines up.
func (l *launcher) passSignals(ctx context.Context, in *launch.Interrupts, abandon func(), over <-chan struct{}) {
	for stopping := false; !stopping; {
		select {
		case <-over:
			return
		case s := <-in.Forward:
			l.fleet.Signal(s)
		case <-ctx.Done():
			stopping = true
		}
	}
	signal := syscall.SIGTERM
	if stopped, ok := errors.AsType[*launch.SignalError](context.Cause(ctx)); ok {
		signal = stopped.Signal
	}
	l.fleet.Signal(signal)
	until := time.Now().Add(l.job.Stop.Grace)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	hurry, kill := in.Hurry, true
	tell := 0 // after how many seconds it is said in the log again
	for seconds := 0; ; seconds++ {
		nodes := l.fleet.Running()
		text := fmt.Sprintf("stopping the workers of %s with %s: SIGKILL in %v, or with another signal at once",
			wording.Plural(len(nodes), "node"), proc.SignalName(signal),
			logtext.Duration(max(time.Until(until), 0).Round(time.Second)))
		if !kill {
			text = fmt.Sprintf("killing the workers of %s; another signal gives them up", wording.Plural(len(nodes), "node"))
		}
		if len(nodes) > 0 && !l.config.Console.Show(text) && seconds >= tell {
			tell = 2*tell + int(logtext.RepeatFirst.Seconds())
			l.config.Log.Warn().Strs("nodes", nodes).Msg(text)
		}
		select {
		case <-tick.C:
		case <-hurry:
			hurry, kill, seconds, tell = nil, false, -1, 0
			l.fleet.Signal(signal)
		case <-in.Abandon:
			abandon()
			return
		case <-over:
			return
		}
	}
}
