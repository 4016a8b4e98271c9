package netcheck

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"muster/netcheck/blame"
	"muster/netcheck/netprobe"
	"muster/rendezvous"
)

// leader is the part of the node with group rank 0 in one check: it decides what is tested.
type leader struct {
	cfg    *Config
	size   int
	board  board
	door   bool     // the nodes are in no round yet
	others standard // the nodes that train, for those at the door

	measured *[]string // the nodes that were measured together last
	nodes    []hello
	facts    []netprobe.Facts
	next     int // number of the next plan
	rec      Record
	judged   bool // rec is complete
}

// lead runs the check. Where that fails the others hear of it: they wait for nobody else.
func (l *leader) lead(ctx context.Context) error {
	err := l.run(ctx)
	if err == nil || ctx.Err() != nil {
		return err
	}
	return errors.Join(err, l.publish(ctx, plan{Stage: stageFailed, Err: "the node that leads the check cannot go on: " + err.Error()}))
}

// run leads a check from the first word of every node to the verdict.
func (l *leader) run(ctx context.Context) error {
	began := time.Now()
	if err := l.hear(ctx); err != nil {
		return err
	}
	b, err := l.begin()
	if err != nil {
		return err
	}
	if err := l.locals(ctx, b); err != nil {
		return err
	}
	for l.cfg.Rules.Network && !l.unable() {
		r, more := b.Next()
		if !more {
			break
		}
		if err := l.pairs(ctx, b, r); err != nil {
			return err
		}
	}
	l.judge(b)
	l.judgeProbes()
	l.compare()
	if l.cfg.Rules.CommPerf && l.rec.Fit() && !l.unable() && !slices.Equal(*l.measured, l.names()) {
		if err := l.perf(ctx); err != nil {
			return err
		}
	}
	l.rec.Began, l.rec.Took, l.rec.Fake = began, time.Since(began), l.cfg.Fake
	l.judged = true
	if err := l.leaveStandard(ctx); err != nil {
		return err
	}
	return l.publish(ctx, plan{Stage: stageVerdict, Verdict: &l.rec})
}

// hear waits for the first word of every node. One that never speaks is at fault: it is in the round, and does not
// come.
func (l *leader) hear(ctx context.Context) error {
	l.nodes = make([]hello, l.size)
	l.rec.Nodes = make([]NodeRecord, l.size)
	limit := l.cfg.Rules.Budget + margin
	return l.all(ctx, everybody(l.size), func(ctx context.Context, rank int) error {
		h := &l.nodes[rank]
		err := l.board.get(ctx, limit, keyHello(rank), h)
		if nobodysSilence(err) {
			return err
		}
		if err != nil {
			h.Node, h.Cleared = fmt.Sprintf("with group rank %d", rank), false
			h.Fault = &Fault{Status: statusFaulty, Reason: "it did not come to the check: " + err.Error()}
		}
		if h.Devices < 1 || h.Devices > maxDevices {
			h.Devices = 1 // what follows of that fails on the node itself
		}
		return nil
	})
}

// nobodysSilence reports whether a word is missing because the store is lost, or because somebody who is no agent of
// the job has written in its place: the node that was to say it is not to blame.
func nobodysSilence(err error) bool {
	return errors.Is(err, rendezvous.ErrStoreClosed) || errors.Is(err, rendezvous.ErrUntrusted)
}

// maxDevices bounds what a node may claim to have.
const maxDevices = 4096

func everybody(n int) []int {
	ranks := make([]int, n)
	for i := range ranks {
		ranks[i] = i
	}
	return ranks
}

// all calls f for each of ranks at the same time, and returns an error where ctx ended.
func (l *leader) all(ctx context.Context, ranks []int, f func(ctx context.Context, rank int) error) error {
	var wg sync.WaitGroup
	errs := make([]error, len(ranks))
	for i, rank := range ranks {
		wg.Go(func() { errs[i] = f(ctx, rank) })
	}
	wg.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return errors.Join(errs...)
}

func (l *leader) publish(ctx context.Context, p plan) error {
	err := l.board.put(ctx, keyPlan(l.next), p)
	if err == nil {
		l.next++
	}
	return err
}

// results publishes a plan for ranks, and gathers what becomes of it.
func (l *leader) results(ctx context.Context, p plan, ranks []int) ([]result, error) {
	n := l.next
	if err := l.publish(ctx, p); err != nil {
		return nil, err
	}
	limit := l.cfg.Rules.limit(p.Stage) + margin
	res := make([]result, l.size)
	err := l.all(ctx, ranks, func(ctx context.Context, rank int) error {
		err := l.board.get(ctx, limit, keyResult(n, rank), &res[rank])
		if nobodysSilence(err) {
			return err
		}
		if err == nil && res[rank].Foreign {
			return fmt.Errorf("node %d could not hear another one: %s", rank, res[rank].Err)
		}
		if err != nil {
			res[rank] = result{Err: "it reported nothing: " + err.Error()}
		}
		return nil
	})
	return res, err
}

// begin sets up the plan with what is known already.
func (l *leader) begin() (*blame.Check, error) {
	opts := blame.Options{Full: l.cfg.Rules.Full, Factor: l.cfg.Rules.Factor}
	if l.cfg.Rules.Median {
		opts.Rule = blame.MedianOfAll
	}
	ids, named := make([]string, l.size), map[string]int{}
	for _, h := range l.nodes {
		named[h.Node]++
	}
	for i, h := range l.nodes {
		if ids[i] = h.Node; named[h.Node] > 1 { // several agents on one machine
			ids[i] = fmt.Sprintf("%s#%d", h.Node, i)
		}
		if f := l.nodes[i].Fault; f != nil && len(f.Peers) > 0 &&
			!slices.ContainsFunc(f.Peers, func(p string) bool { return named[p] > 0 }) {
			l.nodes[i].Fault = nil // the other end of the bad link has left
		}
		l.rec.Nodes[i].Node, l.rec.Nodes[i].IDs = ids[i], h.IDs
		if h.Cleared {
			opts.Cleared = append(opts.Cleared, ids[i])
		}
	}
	return blame.New(ids, opts)
}

// locals has every node test itself that is not cleared.
func (l *leader) locals(ctx context.Context, b *blame.Check) error {
	var ranks []int
	var locals []blame.Local
	able := l.others.able() // a node has been tested already
	for i, h := range l.nodes {
		switch {
		case h.Fault != nil:
			locals = append(locals, blame.Local{Node: i, Err: h.Fault.Reason})
		case !h.Cleared && !h.Tested || l.cfg.Rules.Full:
			ranks = append(ranks, i)
		default:
			able, l.rec.Nodes[i].Local = true, Local{Compute: h.Compute, Kind: h.Kind}
			locals = append(locals, blame.Local{Node: i, Compute: h.Compute})
		}
	}
	if len(ranks) > 0 {
		res, err := l.results(ctx, plan{Stage: stageLocal, Nodes: ranks}, ranks)
		if err != nil {
			return err
		}
		// What no node can do has one cause, which is none of theirs. One that failed before its devices were tested,
		// as by a look at its files, does not speak for the others' being able.
		tested := func(rank int) bool { return res[rank].Err == "" && res[rank].Local != nil }
		everywhere := !able && !slices.ContainsFunc(ranks, tested)
		for _, rank := range ranks {
			n := &l.rec.Nodes[rank]
			switch r := res[rank]; {
			case r.Unable && everywhere:
				n.Unable = r.Err
			case r.Err != "":
				locals = append(locals, blame.Local{Node: rank, Err: r.Err})
			case r.Local != nil:
				n.Local = *r.Local
				locals = append(locals, blame.Local{Node: rank, Compute: r.Local.Compute})
			}
		}
	}
	if err := b.RecordLocal(l.odd(locals)); err != nil {
		return err
	}
	return l.again(ctx, b)
}

// odd blames the nodes on which torch found no accelerator, where it found one on others: they cannot sum together, and
// their times cannot be compared.
func (l *leader) odd(locals []blame.Local) []blame.Local {
	kind := l.others.Kind
	if kind == onCPU {
		kind = ""
	}
	for _, n := range l.rec.Nodes {
		if k := n.Local.Kind; k != "" && k != onCPU {
			kind = k
		}
	}
	for i := range locals {
		if local := &locals[i]; local.Err == "" && kind != "" && l.rec.Nodes[local.Node].Local.Kind == onCPU {
			local.Err = "torch finds no accelerator here, and on other nodes it finds " + kind
		}
	}
	return locals
}

// again has the nodes that were slow by themselves measure once more: something else may have run there just then.
func (l *leader) again(ctx context.Context, b *blame.Check) error {
	var ranks []int
	for _, s := range b.Verdict().Stragglers {
		if s.Resource == blame.Compute {
			ranks = append(ranks, s.Node)
		}
	}
	for i := range l.rec.Nodes {
		if l.lags(i) && !slices.Contains(ranks, i) {
			ranks = append(ranks, i)
		}
	}
	if len(ranks) == 0 {
		return nil
	}
	res, err := l.results(ctx, plan{Stage: stageLocal, Nodes: ranks}, ranks)
	if err != nil {
		return err
	}
	var locals []blame.Local
	for _, rank := range ranks {
		own := &l.rec.Nodes[rank].Local
		if r := res[rank]; r.Err != "" {
			locals = append(locals, blame.Local{Node: rank, Err: r.Err})
		} else if r.Local != nil && r.Local.Compute < own.Compute {
			*own = *r.Local
			locals = append(locals, blame.Local{Node: rank, Compute: own.Compute})
		}
	}
	return b.RecordLocal(locals)
}

// unable reports whether nothing can be tested on any node.
func (l *leader) unable() bool {
	return slices.ContainsFunc(l.rec.Nodes, func(n NodeRecord) bool { return n.Unable != "" })
}

// names are those of the nodes by rank.
func (l *leader) names() []string {
	names := make([]string, len(l.rec.Nodes))
	for i, n := range l.rec.Nodes {
		names[i] = n.Node
	}
	return names
}

// pairs runs a round of pairs.
func (l *leader) pairs(ctx context.Context, b *blame.Check, r blame.Round) error {
	p := plan{Stage: stagePairs, Devices: l.devices()}
	for _, h := range l.nodes {
		p.Probes, p.Names = append(p.Probes, h.Probe), append(p.Names, h.Node)
	}
	var ranks []int
	for _, pair := range r.Pairs {
		p.Pairs = append(p.Pairs, [2]int{pair.A, pair.B})
		ranks = append(ranks, pair.A, pair.B)
	}
	res, err := l.results(ctx, p, ranks)
	if err != nil {
		return err
	}
	var results []blame.Result
	for _, pair := range r.Pairs {
		if f := res[pair.A].Probe; f != nil {
			l.facts = append(l.facts, *f)
			res[pair.A].Err = l.explained(res[pair.A].Err, f)
		}
		of := blame.Result{Pair: pair, A: report(res[pair.A]), B: report(res[pair.B])}
		results = append(results, of)
		l.rec.take(of, res[pair.A].Took, res[pair.B].Took)
	}
	return b.Record(results)
}

func report(r result) blame.Report {
	if r.Err != "" {
		return blame.Report{Outcome: blame.Failed, Err: r.Err}
	}
	return blame.Report{Outcome: blame.OK, Took: r.Took.Took}
}

func (l *leader) devices() []int {
	n := make([]int, l.size)
	for i, h := range l.nodes {
		n[i] = h.Devices
	}
	return n
}

// perf measures all nodes together, once for the same nodes: a restart changes nothing of it. That it fails is no
// verdict on a node: it is told, and the workers will meet the same.
func (l *leader) perf(ctx context.Context) error {
	ranks := everybody(l.size)
	res, err := l.results(ctx, plan{Stage: stagePerf, Nodes: ranks, Devices: l.devices()}, ranks)
	if err != nil {
		return err
	}
	l.rec.Perf, *l.measured = res[0].Perf, l.names()
	for rank, r := range res {
		if r.Err != "" {
			l.rec.PerfErr = fmt.Sprintf("node %s: %s", l.rec.Nodes[rank].Node, r.Err)
			break
		}
	}
	return nil
}
