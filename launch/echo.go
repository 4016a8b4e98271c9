package launch

import (
	"context"
	"slices"
	"strings"
	"time"

	"muster/internal/python"
	"muster/launch/report"
)

const (
	// wordSlack is how much longer than a handler needs to notice a lost node word of it is waited for.
	wordSlack = time.Second
	// catchUpTime bounds the waiting for the last lines of a worker whose output is being held up.
	catchUpTime = 500 * time.Millisecond
)

// wordTime is how long it takes at most until word has come of what became of the other nodes; 0 where nobody would
// say.
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
	if a.meeting.wordTime() == 0 || w.stopped || exit.Success() || !a.policy.EchoesOnly(exit.Ended) {
		return false
	}
	f := a.failureNow(ctx, w)
	return f.IsEcho()
}

// isHopeless reports whether a worker failed because our package dlrover has refused an import, as it would again.
func (a *Agent) isHopeless(ctx context.Context, w *worker) bool {
	if a.Plan.Job.Checkpoint.Shim != python.ShimBarred || w.stopped || w.proc.Exit().Success() {
		return false
	}
	f := a.failureNow(ctx, w)
	return slices.ContainsFunc(f.Words(), func(line string) bool { return strings.Contains(line, python.Barred) })
}

// failureNow is what is known of the failure of a worker that has just ended.
func (a *Agent) failureNow(ctx context.Context, w *worker) report.Failure {
	ctx, cancel := context.WithTimeout(ctx, catchUpTime)
	defer cancel()
	w.logs.CatchUp(ctx)
	return report.NewFailure(w.exit(), a.evidence())
}

// awaitWord returns a channel that delivers when word of the other nodes is not to be waited for any longer.
func (a *Agent) awaitWord() <-chan time.Time {
	wait := a.meeting.wordTime()
	a.Log.Info().Dur("limit_ms", wait).Msg("a connection was lost: waiting for word of what became of the other nodes")
	return time.After(wait)
}
