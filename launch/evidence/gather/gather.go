package gather

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"muster/internal/proc"
	"muster/launch/evidence"
)

// What one look may cost.
const (
	// interval is how long CPU time is counted.
	interval = 300 * time.Millisecond
	// Limit is how long a look takes at the most, but for what the machine takes to do it.
	Limit         = 2500 * time.Millisecond
	mostProcesses = 2048 // of all ranks
	mostOfRank    = 64
	mostThreads   = 256 // of a process
	mostFiles     = 2048
	mostSockets   = 64
	atOnce        = 16
)

// Worker is who is looked at.
type Worker struct {
	Rank, PID int
	Silent    float64
	Spins     float64
	Step      *int64
}

// Options say what is looked at beyond what costs the processes nothing.
type Options struct {
	// Native has py-spy, where it is there, stop each Python process for some hundredths of a second and read its native
	// frames. Without it py-spy reads, and stops nobody, where Python has not answered itself.
	Native bool
}

// Look looks at the workers of a node.
func Look(ctx context.Context, node string, workers []Worker, o Options) evidence.Node {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, Limit)
	defer cancel()
	n := evidence.Node{Node: node, At: began.UTC().Round(time.Millisecond), Ranks: make([]evidence.Rank, len(workers))}
	pids := make([]int, len(workers))
	for i, w := range workers {
		pids[i] = w.PID
		n.Ranks[i] = evidence.Rank{Node: node, Rank: w.Rank, PID: w.PID, Silent: w.Silent, Spins: w.Spins, Step: w.Step, Ended: w.PID == 0}
	}
	trees, err := proc.TreesOf(pids)
	if err != nil {
		n.Notes = append(n.Notes, err.Error())
		return n
	}
	var looked []*look
	for i := range n.Ranks {
		r := &n.Ranks[i]
		tree := trees[r.PID]
		r.Ended = len(tree) == 0
		if len(tree) > mostOfRank {
			n.Notes = append(n.Notes, fmt.Sprintf("rank %d has %d processes: %d of them were looked at", r.Rank, len(tree), mostOfRank))
			tree = tree[:mostOfRank]
		}
		if left := mostProcesses - len(looked); len(tree) > left {
			n.Notes = append(n.Notes,
				fmt.Sprintf("there are more than %d processes: not all of rank %d were looked at", mostProcesses, r.Rank))
			tree = tree[:left]
		}
		r.Processes = make([]evidence.Process, len(tree))
		for j, p := range tree {
			r.Processes[j] = evidence.Process{PID: p.PID, PPID: p.PPID, Name: p.Name, State: string(p.State)}
			looked = append(looked, &look{Seen: p, to: &r.Processes[j]})
		}
	}
	each(looked, (*look).prepare)
	each(looked, (*look).first)
	sleep(ctx, interval)
	each(looked, (*look).last)
	if slices.ContainsFunc(looked, (*look).starved) { // those that only wait for their turn get it meanwhile
		sleep(ctx, 2*interval)
		each(looked, (*look).last)
	}
	// They are asked after that: to answer, threads that sleep have to wait for a core and run, which is none of their own
	// doing. At the same moment: nothing else is done meanwhile.
	for _, l := range looked {
		l.ask()
	}
	tables := readSockets(looked)
	locks := readLocks()
	pipes := pipesOf(looked)
	each(looked, func(l *look) {
		l.stacks(ctx)
		l.flight(ctx)
		l.spy(ctx, o.Native)
		l.sources(ctx)
		l.target(ctx, pipes)
		l.findFull(ctx)
		l.to.Sockets = tables.of(l)
		l.to.Locks = locks.of(ctx, l.PID)
		l.close()
	})
	n.Seconds = time.Since(began).Seconds()
	return n
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// each calls f for all of list, some at once.
func each(list []*look, f func(*look)) {
	var wg sync.WaitGroup
	room := make(chan struct{}, atOnce)
	for _, l := range list {
		room <- struct{}{}
		wg.Go(func() {
			defer func() { <-room }()
			f(l)
		})
	}
	wg.Wait()
}
