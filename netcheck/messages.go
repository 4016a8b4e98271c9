package netcheck

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

	"muster/netcheck/netprobe"
	"muster/rendezvous"
)

// hello is what a node says of itself before a check.
type hello struct {
	Node    string `json:"node"` // host name
	Devices int    `json:"devices"`
	// Cleared says that an earlier check found the node good, and nothing has happened since; Fault is what one found.
	Cleared bool   `json:"cleared,omitempty"`
	Fault   *Fault `json:"fault,omitempty"`
	// Tested says that the node has been tested by itself already, at the door.
	Tested bool `json:"tested,omitempty"`
	// IDs are those of its accelerators.
	IDs []string `json:"ids,omitempty"`
	// Compute is Local.Compute of that earlier check, Kind that of its devices: what the others are compared with.
	Compute time.Duration `json:"compute_ns,omitempty"`
	Kind    string        `json:"kind,omitempty"`
	// Probe is netprobe.Server.Identity of the node's probe server, empty where it offers none.
	Probe string `json:"probe,omitempty"`
}

// Fault is why a node is not to take part. Status is the exit status it leaves with.
type Fault struct {
	Status int    `json:"status"`
	Reason string `json:"reason"`
	// Peers are the nodes without which there would be no fault, where it is of a link; none: it is of the node.
	Peers []string `json:"peers,omitempty"`
}

// stage says what a plan wants.
type stage string

const (
	stageLocal   stage = "local"   // Nodes test themselves
	stagePairs   stage = "pairs"   // Pairs test their link
	stagePerf    stage = "perf"    // Nodes measure their bandwidth together
	stageVerdict stage = "verdict" // the check is over
	stageFailed  stage = "failed"  // so it is, without a verdict
)

// plan is the next step of a check.
type plan struct {
	Stage   stage    `json:"stage"`
	Nodes   []int    `json:"nodes,omitempty"`
	Pairs   [][2]int `json:"pairs,omitempty"`
	Devices []int    `json:"devices,omitempty"` // of every node, by rank
	Probes  []string `json:"probes,omitempty"`  // likewise, hello.Probe
	Names   []string `json:"names,omitempty"`   // likewise, hello.Node
	Verdict *Record  `json:"verdict,omitempty"`
	Err     string   `json:"err,omitempty"` // of stageFailed
}

// has reports whether a node has a part in the plan.
func (p *plan) has(rank int) bool {
	return slices.Contains(p.Nodes, rank) || p.pairOf(rank) != [2]int{}
}

// pairOf returns the pair that a node is in, two zeros for none.
func (p *plan) pairOf(rank int) [2]int {
	for _, pair := range p.Pairs {
		if pair[0] == rank || pair[1] == rank {
			return pair
		}
	}
	return [2]int{}
}

// check refuses a plan that no leader of a round of size nodes would make: it came over the network.
func (p *plan) check(size int) error {
	ranks := slices.Clone(p.Nodes)
	for _, pair := range p.Pairs {
		ranks = append(ranks, pair[0], pair[1])
	}
	if r := p.Verdict; r != nil {
		if len(r.Nodes) != size {
			return fmt.Errorf("the verdict is about %d nodes, and this round has %d", len(r.Nodes), size)
		}
		for _, l := range r.Links {
			ranks = append(ranks, l.A, l.B)
		}
		for _, s := range r.Stragglers {
			ranks = append(ranks, s.Node)
		}
		for _, n := range r.Nodes {
			if f := n.Fault; f != nil && f.Status != statusFaulty && f.Status != statusStraggler && f.Status != statusUndecided {
				return fmt.Errorf("the verdict has a node leave with status %d", f.Status)
			}
		}
	}
	for _, rank := range ranks {
		if rank < 0 || rank >= size {
			return fmt.Errorf("the plan is about node %d, and this round has %d", rank, size)
		}
	}
	if (p.Stage == stageVerdict) != (p.Verdict != nil) || (p.Stage == stagePairs) != (len(p.Pairs) > 0) || (p.Stage == stagePerf) &&
		len(p.Nodes) == 0 {
		return fmt.Errorf("a plan of stage %q has not what belongs to it", p.Stage)
	}
	return nil
}

// result is how a node fared in a step. Err is what failed, empty for nothing.
type result struct {
	Err string `json:"err,omitempty"`
	// Unable says that the test could not be run, which is no failure: its Python has no torch.
	Unable bool `json:"unable,omitempty"`
	// Foreign says that Err is no fault of the nodes: in the place of another one's word stood what no agent of the job
	// has written.
	Foreign bool     `json:"foreign,omitempty"`
	Local   *Local   `json:"local,omitempty"`
	Took    Timing   `json:"took"`
	Perf    []Timing `json:"perf,omitempty"`
	// Probe is what the network between a pair looks like, of the node that asked.
	Probe *netprobe.Facts `json:"probe,omitempty"`
}

// meeting is where the processes of a pair meet, or why the first node of the pair has not opened that.
type meeting struct {
	Addr string `json:"addr,omitempty"`
	Err  string `json:"err,omitempty"`
}

// maxMessage bounds what is decoded from the board, in bytes.
const maxMessage = 8 << 20

// board is where the agents of a check meet.
type board struct{ store rendezvous.Board }

func (b board) put(ctx context.Context, key string, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("internal error: cannot encode %T: %w", v, err)
	}
	return b.store.Set(ctx, key, text)
}

// get waits for a key, no longer than limit where that is more than 0.
func (b board) get(ctx context.Context, limit time.Duration, key string, v any) error {
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, limit, &lateError{limit})
		defer cancel()
	}
	text, err := b.store.Get(ctx, key)
	if err != nil {
		return err
	}
	if len(text) > maxMessage {
		return fmt.Errorf("cannot read %q of the check: %d bytes, at most %d are taken", key, len(text), maxMessage)
	}
	if err := json.Unmarshal(text, v); err != nil {
		return fmt.Errorf("cannot read %q of the check: %w", key, err)
	}
	return nil
}

// lateError says that something did not come in time.
type lateError struct{ limit time.Duration }

func (e *lateError) Error() string { return fmt.Sprintf("nothing was heard for %v", e.limit) }

func keyHello(rank int) string       { return "hello/" + strconv.Itoa(rank) }
func keyPlan(n int) string           { return "plan/" + strconv.Itoa(n) }
func keyResult(n, rank int) string   { return fmt.Sprintf("result/%d/%d", n, rank) }
func keyMeeting(n, first int) string { return fmt.Sprintf("store/%d/%d", n, first) }
func keyReady(n, second int) string  { return fmt.Sprintf("ready/%d/%d", n, second) }
