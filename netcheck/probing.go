package netcheck

import (
	"context"
	"strings"
	"sync"

	"muster/internal/check"
	"muster/netcheck/netprobe"
)

// serve offers this node to the others' probes, until ended is called. Without them the check is done all the same.
func (m *member) serve(ctx context.Context) (identity string, ended func()) {
	m.probe = *m.cfg.Probe
	m.probe.Medium = m.round.Medium
	m.probe.Node, m.probe.Host = m.cfg.Look(ctx), m.cfg.Addr
	server, err := netprobe.Listen(ctx, m.probe)
	if err != nil {
		m.cfg.Log.Warn().Err(err).Msg("the network is not probed")
		return "", func() {}
	}
	m.probe.Serve = server.Identity()
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := server.Serve(ctx); err != nil && ctx.Err() == nil {
			m.cfg.Log.Warn().Err(err).Msg("this node offers no more probes")
		}
	})
	return m.probe.Serve, func() { cancel(); wg.Wait() }
}

// ask probes the network to the other node of the pair, if it is for this one to ask.
func (m *member) ask(ctx context.Context, p *plan) *netprobe.Facts {
	pair := p.pairOf(m.round.Rank)
	if pair[0] != m.round.Rank || pair[1] >= len(p.Probes) || p.Probes[pair[1]] == "" || m.probe.Serve == "" {
		return nil
	}
	if pair[1] < len(p.Names) {
		m.probe.Peer = p.Names[pair[1]]
	}
	m.probe.Node = m.cfg.Look(ctx) // what has been counted since the last time shows
	f, err := netprobe.Pair(ctx, m.probe, p.Probes[pair[1]])
	if err != nil {
		m.cfg.Log.Debug().Err(err).Msg("network not probed")
		return nil
	}
	return &f
}

// judgeProbes says what the probes of all pairs have shown: what is no more than in order is left out.
func (l *leader) judgeProbes() {
	results := netprobe.Judge(l.facts, l.cfg.Rules.Limits)
	results = append(results, netprobe.JudgeNodes(netprobe.Nodes(l.facts))...)
	for _, r := range results {
		if r.Status > check.Pass {
			l.rec.Probes = append(l.rec.Probes, r)
		}
	}
}

// explained adds to why a test failed what the probe of the same pair has seen.
func (l *leader) explained(err string, f *netprobe.Facts) string {
	if err == "" || f == nil {
		return err
	}
	var seen []string
	for _, r := range netprobe.Judge([]netprobe.Facts{*f}, l.cfg.Rules.Limits) {
		if r.Status == check.Fail {
			seen = append(seen, r.ID+": "+r.Reason)
		}
	}
	if len(seen) == 0 {
		return err
	}
	return err + " (" + strings.Join(seen, "; ") + ")"
}
