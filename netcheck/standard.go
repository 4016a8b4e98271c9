package netcheck

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"muster/netcheck/blame"
	"muster/rendezvous"
)

// standard is what the check of a round says of its nodes for those that come while it runs: a node that could do
// nothing, or is slow, looks like every other one as long as it is alone.
type standard struct {
	// Compute is what a node's own test took on average, 0 where nothing could be tested. Kind is what it ran on.
	Compute time.Duration `json:"compute_ns"`
	Kind    string        `json:"kind,omitempty"`
}

// onCPU is the kind of devices of a node on which torch finds no accelerator.
const onCPU = "cpu"

// readStandard reads what leaveStandard wrote. What it does not understand says nothing.
func readStandard(text []byte) standard {
	var s standard
	if len(text) > rendezvous.MaxStandard || json.Unmarshal(text, &s) != nil || s.Compute < 0 {
		return standard{}
	}
	return s
}

// able reports whether those nodes could be tested.
func (s standard) able() bool { return s.Compute > 0 }

// leaveStandard says on the board of a round what newcomers are compared with.
func (l *leader) leaveStandard(ctx context.Context) error {
	if l.door || !l.rec.Fit() {
		return nil
	}
	var s standard
	n := time.Duration(0)
	for _, r := range l.rec.Nodes {
		if r.Local.Compute <= 0 {
			continue
		}
		s.Compute += r.Local.Compute
		if n++; s.Kind == "" || s.Kind == onCPU {
			s.Kind = r.Local.Kind
		}
	}
	if n == 0 || len(s.Kind) > rendezvous.MaxStandard/2 {
		return nil
	}
	s.Compute /= n
	return l.board.put(ctx, rendezvous.StandardKey, s)
}

// lags reports whether a node at the door is slower by itself than those that train, where those would exclude it.
func (l *leader) lags(rank int) bool {
	n, factor := &l.rec.Nodes[rank], cmp.Or(l.cfg.Rules.Factor, blame.DefaultFactor)
	return l.door && l.cfg.Rules.ExcludeStraggler && l.others.able() && n.Local.Kind == l.others.Kind &&
		float64(n.Local.Compute) > factor*float64(l.others.Compute)
}

// compare finds nodes that lag at fault.
func (l *leader) compare() {
	for i := range l.rec.Nodes {
		if n := &l.rec.Nodes[i]; n.Fault == nil && l.lags(i) {
			n.Fault = &Fault{
				Status: statusStraggler,
				Reason: fmt.Sprintf("a straggler: its compute test took %v, that of the nodes that train %v",
					n.Local.Compute.Round(time.Microsecond), l.others.Compute.Round(time.Microsecond)),
			}
		}
	}
}
