package launch

import (
	"context"
	"time"
)

const (
	// wordSlack is how much longer than a handler needs to notice a lost node word of it is waited for.
	wordSlack = time.Second
	// catchUpTime bounds the waiting for the last lines of a worker whose output is being held up.
	catchUpTime = 500 * time.Millisecond
)

// wordTime is how long it takes at most until word has come of what became of the other nodes; 0 where nobody would say.
func (m *meeting) wordTime() time.Duration {
	if m.LossNotice <= 0 {
		return 0
	}
	return m.LossNotice + wordSlack
}

// isEcho reports whether a worker failed because a connection of it broke, as far as that matters to the policy. When a
// node dies, the workers of the others fail within milliseconds, seconds before anybody can know why.
func (a *Agent) isEcho(ctx context.Context, w *worker) bool {
	exit := w.proc.Exit()
	if a.meeting.wordTime() == 0 || w.stopped || exit.Success() || !a.policy.echoesOnly(exit.Ended) {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, catchUpTime)
	defer cancel()
	w.logs.catchUp(ctx)
	f := newWorkerFailure(w.exit(), a.evidence())
	return echo(&f) == 1
}

// awaitWord returns a channel that delivers when word of the other nodes is not to be waited for any longer.
func (a *Agent) awaitWord() <-chan time.Time {
	wait := a.meeting.wordTime()
	a.Log.Info().Dur("limit_ms", wait).Msg("a connection was lost: waiting for word of what became of the other nodes")
	return time.After(wait)
}
