package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"slices"
	"strconv"
	"strings"
	"time"
)

// settling is how long workers go on before one is killed or their memory is read: what a launcher does beside a start
// is over by then.
const settling = 2 * time.Second

// way is a launcher in one of the ways in which warm starts compare it.
type way struct {
	launcher
	label string
	env   []string
}

// measured are the figures of the runs of one way.
type measured struct {
	label  string
	values []float64
}

// warm measures what a template that has PyTorch imported saves: time at the start and at a restart, memory in between.
func warm(ctx context.Context, b *bench) ([]row, error) {
	template := way{b.muster, "warm", []string{"MUSTER_WARM=auto"}}
	cold := way{b.muster, "cold", []string{"MUSTER_WARM=off"}}
	peer := way{b.torchrun, "torchrun", nil}
	// With the agent's store, which keeps the keys of the dead workers, torchrun's restart fails; with this variable
	// the first worker of each attempt serves a store.
	restartable := way{b.torchrun, "torchrun", []string{"TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"}}

	start8, err := inTurn("start of 8 workers", 3, b.untilReduced(ctx, 8), peer, template)
	if err != nil {
		return nil, err
	}
	restart8, err := inTurn("restart of 8 workers", 3, b.untilReducedAgain(ctx, 8), restartable, template)
	if err != nil {
		return nil, err
	}
	start2, err := inTurn("start of 2 workers", 5, b.untilReduced(ctx, 2), peer, cold, template)
	if err != nil {
		return nil, err
	}
	restart2, err := inTurn("restart of 2 workers", 5, b.untilReducedAgain(ctx, 2), restartable, template)
	if err != nil {
		return nil, err
	}
	memory8, err := inTurn("memory of 8 workers", 3, b.wholeMemory(ctx, 8), peer, cold, template)
	if err != nil {
		return nil, err
	}
	start1, err := inTurn("start of 1 worker", 5, b.untilReduced(ctx, 1), cold, template)
	if err != nil {
		return nil, err
	}

	const store = "torchrun with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, without which its restart fails"
	return []row{
		atMost(4, "command start to the all-reduce of 8 workers, warm", "s", start8[1], start8[0]),
		atMost(25, "SIGKILL of one of 8 workers to the next all-reduce of 8, warm", "ms", restart8[1], restart8[0], store),
		atMost(2, "command start to the all-reduce of 2 workers, warm", "s", start2[2], start2[0]),
		atMost(20, "SIGKILL of one of 2 workers to the next all-reduce of 2, warm", "ms", restart2[1], restart2[0], store),
		atMost(1, "command start to the all-reduce of 2 workers, cold", "s", start2[1], start2[0]),
		atMost(2, "memory of the whole job, 8 workers that all-reduce, warm", "MB", memory8[2], memory8[1],
			"the peer is muster with --warm off; launcher, guardian and template count",
			spread(memory8[0], "MB")),
		// With a lone worker there is nothing to share: this is what the template costs.
		atMost(0, "command start to the all-reduce of a lone worker, warm", "s", start1[1], start1[0],
			"the peer is muster with --warm off"),
	}, nil
}

// untilReduced measures from the start of the command until the last of n workers has done its first all-reduce, in s.
func (b *bench) untilReduced(ctx context.Context, n int) func(way) (float64, error) {
	return func(w way) (_ float64, err error) {
		j, err := b.start(ctx, w.launcher, b.reducing(w, n, 0))
		if err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, j.end()) }()
		reduced, err := j.waitStamps(ctx, n)
		if err != nil {
			return 0, err
		}
		last, err := lastOf(reduced, 0, n)
		if err != nil {
			return 0, err
		}
		return last.Sub(j.began).Seconds(), j.succeed()
	}
}

// untilReducedAgain measures from the SIGKILL of one of n workers that are reducing until the last of their successors
// has done its first all-reduce, in ms.
func (b *bench) untilReducedAgain(ctx context.Context, n int) func(way) (float64, error) {
	return func(w way) (_ float64, err error) {
		j, reduced, err := b.hold(ctx, w, n)
		if err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, j.end()) }()
		victim := reduced[slices.IndexFunc(reduced, func(s stamp) bool { return s.rank == n-1 })]
		killed, all, err := j.survive(victim)
		if err != nil {
			return 0, err
		}
		last, err := lastOf(all, 1, n)
		return ms(last.Sub(killed)), err
	}
}

// wholeMemory sums the proportional set sizes of all processes of a job whose n workers are reducing, in MB.
func (b *bench) wholeMemory(ctx context.Context, n int) func(way) (float64, error) {
	return func(w way) (_ float64, err error) {
		j, _, err := b.hold(ctx, w, n)
		if err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, j.end()) }()
		return j.ownMemory(nil)
	}
}

// hold starts a job of n workers and returns when all of them have been reducing for a while. The caller calls end.
func (b *bench) hold(ctx context.Context, w way, n int) (_ *job, _ []stamp, err error) {
	j, err := b.start(ctx, w.launcher, b.reducing(w, n, 1))
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, j.end())
		}
	}()
	reduced, err := j.waitStamps(ctx, n)
	if err != nil {
		return nil, nil, err
	}
	if _, err := lastOf(reduced, 0, n); err != nil {
		return nil, nil, err
	}
	time.Sleep(settling)
	return j, reduced, nil
}

// reducing is a job of n gloo workers that go on reducing, in attempts below hold, until they are killed; it is
// restarted as often as that.
func (b *bench) reducing(w way, n, hold int) jobSpec {
	return jobSpec{
		args: []string{
			"--standalone", "--nproc-per-node", strconv.Itoa(n), "--max-restarts", strconv.Itoa(hold), b.program("warm_allreduce.py"),
		},
		env: append([]string{
			"BENCH_HOLD=" + strconv.Itoa(hold),
			b.withTorch(),
		}, w.env...),
	}
}

// inTurn runs once for each way in turn, n times, and returns the figures in the order of the ways.
func inTurn(what string, n int, once func(way) (float64, error), ways ...way) ([]measured, error) {
	log.Printf("warm: %s, %d times each", what, n)
	all := make([]measured, len(ways))
	for range n {
		for i, w := range ways {
			figure, err := once(w)
			if err != nil {
				return nil, fmt.Errorf("%s, %s: %w", what, w.label, err)
			}
			all[i].label = w.label
			all[i].values = append(all[i].values, figure)
		}
	}
	return all, nil
}

// atMost returns the row of a figure that may be one part-th of the peer's; 0 stands for no budget. Its note tells
// between which values the runs lay, and what else there is to say.
func atMost(part int, figure, unit string, ours, peer measured, notes ...string) row {
	budget := "information"
	switch {
	case part == 1:
		budget = "≤ 1.0"
	case part > 1:
		budget = fmt.Sprintf("≤ 1/%d", part)
	}
	r := compare(figure, unit, median(ours.values), median(peer.values), budget,
		func(_, ratio float64) bool { return ratio*float64(part) <= 1 })
	r.Note = strings.Join(append([]string{spread(ours, unit), spread(peer, unit)}, notes...), "; ")
	return r
}

// spread says between which values the runs of one way lay.
func spread(m measured, unit string) string {
	return fmt.Sprintf("%s %s to %s %s", m.label, number(slices.Min(m.values)), number(slices.Max(m.values)), unit)
}

// lastOf returns when the last worker of an attempt wrote its stamp; each of its n ranks must have written one.
func lastOf(stamps []stamp, attempt, n int) (time.Time, error) {
	var last time.Time
	seen := make([]bool, n)
	for _, s := range stamps {
		if s.attempt != attempt {
			continue
		}
		if s.rank < 0 || s.rank >= n || seen[s.rank] {
			return time.Time{}, fmt.Errorf("attempt %d: rank %d of %d has a stamp too many", attempt, s.rank, n)
		}
		seen[s.rank] = true
		if s.at.After(last) {
			last = s.at
		}
	}
	if missing := slices.Index(seen, false); missing >= 0 {
		return time.Time{}, fmt.Errorf("attempt %d: rank %d of %d has no stamp", attempt, missing, n)
	}
	return last, nil
}
