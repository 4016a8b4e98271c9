package netcheck

import (
	"context"
	"testing"
)

// text is a board on which there is one text.
type text []byte

func (b text) Get(context.Context, string) ([]byte, error) { return b, nil }
func (text) Set(context.Context, string, []byte) error     { return nil }

// FuzzPlan: a plan that is taken is about nodes of the round, whoever has written it, and the node finds its part in
// it.
func FuzzPlan(f *testing.F) {
	f.Add([]byte(`{"stage":"pairs","pairs":[[0,1]],"devices":[1,1],"probes":["a","b"],"names":["a","b"]}`), 2)
	f.Add([]byte(`{"stage":"verdict","verdict":{"nodes":[{"node":"a"},{"node":"b","fault":{"status":80}}],`+
		`"links":[{"a":0,"b":1}],"stragglers":[{"node":1}]}}`), 2)
	f.Add([]byte(`{"stage":"perf","nodes":[-1,9]}`), 3)
	f.Fuzz(func(t *testing.T, data []byte, size int) {
		size = 1 + (size&0xffff)%64
		var p plan
		if (board{text(data)}).get(t.Context(), 0, "plan", &p) != nil || p.check(size) != nil {
			return
		}
		for rank := range size {
			p.has(rank)
			for _, of := range p.pairOf(rank) {
				if of < 0 || of >= size {
					t.Errorf("node %d is paired with %d of %d", rank, of, size)
				}
			}
		}
		if p.Verdict != nil {
			for _, n := range p.Verdict.Nodes {
				if n.Fault != nil && n.Fault.Status == 0 {
					t.Error("a node leaves with 0")
				}
			}
			p.Verdict.Fit()
		}
	})
}

// FuzzHello: what a node says of itself and of its tests is read, or refused.
func FuzzHello(f *testing.F) {
	f.Add([]byte(`{"node":"a","devices":8,"fault":{"status":80,"reason":"x","peers":["b"]}}`))
	f.Add([]byte(`{"err":"x","took":{"took":-1},"local":{"compute":-1},"probe":{}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		own := hello{Node: "own", Devices: 1}
		l := leader{cfg: &Config{}, size: 2, nodes: []hello{own, {}}, rec: Record{Nodes: make([]NodeRecord, 2)}}
		if (board{text(data)}).get(t.Context(), 0, "hello", &l.nodes[1]) == nil {
			if b, err := l.begin(); err == nil {
				l.judge(b)
			}
		}
		var r result
		if (board{text(data)}).get(t.Context(), 0, "result", &r) == nil {
			report(r)
		}
	})
}

// TestStepText: a step is told in words, and of a pair the other node and the round.
func TestStepText(t *testing.T) {
	t.Parallel()
	for want, step := range map[string]Step{
		"testing the link to the node with group rank 2, round 1 of pairs": {Doing: TestsPair, Peer: 2, Pairs: 1},
		"waiting for the other nodes":                                      {Doing: Waits},
	} {
		if got := step.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
