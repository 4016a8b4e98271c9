package launch

import (
	"context"
	"time"

	"muster/launch/report"
)

// Input is what a report about the round is made of.
func (a *Agent) failureInput(exits []report.Exit, kernel report.Evidence, blamed int) *report.Input {
	m := a.meeting
	return &report.Input{
		Title: a.Plan.Title(), Host: a.Plan.Hostname, GroupRank: m.GroupRank, Nodes: m.GroupWorldSize,
		Exits: exits, Kernel: kernel, Blamed: blamed, Waited: m.wordTime(), HeldUp: m.heldUp,
	}
}

// tellPeers leaves the failures on this node for the other nodes, once in a round. They may do without it: an error is
// no reason to end anything.
func (a *Agent) tellPeers(ctx context.Context, failures []report.Failure) {
	m := a.meeting
	if m.alone() || m.reported {
		return
	}
	m.reported = true
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTime)
	defer cancel()
	if err := a.meeting.Report(ctx, report.EncodeFailures(failures, m.began)); err != nil {
		a.Log.Warn().Err(err).Msg("the other nodes could not be told of the failures here")
	}
}

// gather waits until all nodes have told of their failures, for as long as limit, the end of ctx and Hurry allow.
func (a *Agent) gather(ctx context.Context, limit time.Duration) (elsewhere []report.Failure) {
	m := a.meeting
	if m.alone() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	stop := a.onHurry(cancel)
	defer stop()
	reports, err := a.meeting.Reports(ctx)
	if err != nil {
		a.Log.Warn().Err(err).Msg("failures on other nodes are not known")
		return nil
	}
	seen := map[int]bool{m.GroupRank: true}
	for _, text := range reports {
		if len(text) == 0 {
			continue
		}
		from, failures, err := report.DecodeFailures(text, &m.Round, m.began)
		if err != nil {
			a.Log.Warn().Err(err).Msg("failures on another node are not known")
			continue
		}
		if !seen[from] {
			seen[from] = true
			elsewhere = append(elsewhere, failures...)
		}
	}
	return elsewhere
}
