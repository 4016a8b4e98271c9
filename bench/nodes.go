package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// eachNode is how many workers a node has.
const eachNode = 2

// patience is how long torchrun's nodes are given to notice that one of them is lost.
const patience = 30 * time.Second

// nodesJob is a job of several nodes. Each is an agent on this machine, with a folder and processes of its own; the
// first one hosts the store.
type nodesJob struct {
	bench    *bench
	launcher launcher
	spec     jobSpec
	addr     string // of the store
	nodes    []*job
}

// meet starts the first agent of a job and waits until its store listens. The caller calls end.
func (b *bench) meet(ctx context.Context, l launcher, nodes string, env ...string) (*nodesJob, error) {
	var listen net.ListenConfig
	listener, err := listen.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	addr := listener.Addr().String()
	if err := listener.Close(); err != nil {
		return nil, err
	}
	c := &nodesJob{bench: b, launcher: l, addr: addr, spec: jobSpec{
		args: []string{
			"--nnodes", nodes, "--nproc-per-node", strconv.Itoa(eachNode), "--max-restarts", "3", "--rdzv-backend", "c10d",
			"--rdzv-endpoint", addr, "--rdzv-id", rand.Text(), "--local-addr", "127.0.0.1", "--no-python", b.program("stamp.sh"),
		},
		env: append([]string{"BENCH_HOLD=99"}, env...),
	}}
	if err := c.join(ctx); err != nil {
		return nil, err
	}
	if err := c.nodes[0].waitListening(ctx, addr); err != nil {
		return nil, errors.Join(err, c.end())
	}
	return c, nil
}

// join starts another agent.
func (c *nodesJob) join(ctx context.Context) error {
	j, err := c.bench.start(ctx, c.launcher, c.spec)
	if err == nil {
		c.nodes = append(c.nodes, j)
	}
	return err
}

// end kills what is left of the nodes.
func (c *nodesJob) end() error {
	var errs []error
	for _, j := range slices.Backward(c.nodes) { // the store last: nobody is to elect another host
		errs = append(errs, j.end())
	}
	return errors.Join(errs...)
}

// waitListening waits until somebody listens at addr.
func (j *job) waitListening(ctx context.Context, addr string) error {
	var d net.Dialer
	for deadline := time.Now().Add(time.Minute); ; {
		conn, err := d.DialContext(ctx, "tcp", addr)
		if err == nil {
			return conn.Close()
		}
		select {
		case <-j.done:
			return fmt.Errorf("%s ended before it served a store%s", j.cmd.Args[0], j.lastWords())
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(5 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s serves no store at %s: %w%s", j.cmd.Args[0], addr, err, j.lastWords())
		}
	}
}

// errLate says that workers did not begin in time.
var errLate = errors.New("the workers did not begin in time")

// await waits until all workers of nodes have begun after a moment, as one world, and returns when the last one did.
func await(ctx context.Context, nodes []*job, after time.Time, limit time.Duration) (time.Time, error) {
	for deadline := time.Now().Add(limit); ; {
		var found []stamp
		for _, j := range nodes {
			stamps, err := j.stamps()
			if err != nil {
				return time.Time{}, err
			}
			for _, s := range stamps {
				if s.at.After(after) {
					s.attempt = 0 // launchers do not agree on what counts as a restart
					found = append(found, s)
				}
			}
		}
		if n := len(nodes) * eachNode; len(found) >= n {
			return lastOf(found, 0, n)
		}
		select {
		case <-ctx.Done():
			return time.Time{}, context.Cause(ctx)
		case <-time.After(5 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			var words strings.Builder
			for i, j := range nodes {
				fmt.Fprintf(&words, "\nnode %d%s", i, j.lastWords())
			}
			return time.Time{}, fmt.Errorf("%w: %d of %d within %v%s", errLate, len(found), len(nodes)*eachNode, limit, words.String())
		}
	}
}

// gather starts a job of n nodes and returns when its workers have run for a while.
func (b *bench) gather(ctx context.Context, l launcher, n int, nodes string, env ...string) (_ *nodesJob, err error) {
	c, err := b.meet(ctx, l, nodes, env...)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.end())
		}
	}()
	for len(c.nodes) < n {
		if err := c.join(ctx); err != nil {
			return nil, err
		}
	}
	if _, err := await(ctx, c.nodes, time.Time{}, time.Minute); err != nil {
		return nil, err
	}
	time.Sleep(settling)
	return c, nil
}

// nodes measures jobs of several nodes, which are agents on this machine that meet over loopback.
func nodes(ctx context.Context, b *bench) ([]row, error) {
	joined, err := b.secondAgent(ctx)
	if err != nil {
		return nil, err
	}
	crashed, err := b.crashElsewhere(ctx)
	if err != nil {
		return nil, err
	}
	lost, err := b.lostNodes(ctx)
	return append([]row{joined, crashed}, lost...), err
}

// secondAgent measures from the start of the agent that completes a job of two nodes until the workers of both run, in
// ms.
func (b *bench) secondAgent(ctx context.Context) (row, error) {
	log.Printf("nodes: the second of two agents starts, 5 times each, %d shell workers a node", eachNode)
	ours, peers, err := b.alternate(5, func(l launcher) (_ float64, err error) {
		c, err := b.meet(ctx, l, "2")
		if err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, c.end()) }()
		time.Sleep(settling) // the first agent waits for the second
		if err := c.join(ctx); err != nil {
			return 0, err
		}
		last, err := await(ctx, c.nodes, time.Time{}, time.Minute)
		return ms(last.Sub(c.nodes[1].began)), err
	})
	if err != nil {
		return row{}, err
	}
	return compare("2 nodes: start of the second agent to the first instruction of all workers", "ms", median(ours), median(peers),
		"≤ 100 ms and ≤ 1/20", func(ours, ratio float64) bool { return ours <= 100 && ratio <= 1.0/20 }), nil
}

// crashElsewhere measures from the SIGKILL of a worker on one of two nodes until the new workers of both run, in ms.
func (b *bench) crashElsewhere(ctx context.Context) (row, error) {
	log.Printf("nodes: a worker is killed on one of two nodes, 5 times each, %d shell workers a node", eachNode)
	turn := 0
	ours, peers, err := b.alternate(5, func(l launcher) (_ float64, err error) {
		c, err := b.gather(ctx, l, 2, "2")
		if err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, c.end()) }()
		victims, err := c.nodes[turn/2%2].stamps() // the node that hosts the store and the other one, in turn
		if err != nil {
			return 0, err
		}
		turn++
		killed := time.Now()
		if err := syscall.Kill(victims[0].pid, syscall.SIGKILL); err != nil {
			return 0, err
		}
		last, err := await(ctx, c.nodes, killed, time.Minute)
		return ms(last.Sub(killed)), err
	})
	if err != nil {
		return row{}, err
	}
	return compare("2 nodes: SIGKILL of a worker to the first instruction of all new workers", "ms", median(ours), median(peers), "≤ 1/5",
		ratioAtMost(1.0/5)), nil
}

// lostNodes measures from when one of three nodes falls silent until the workers of the next round run, in s.
func (b *bench) lostNodes(ctx context.Context) ([]row, error) {
	log.Printf("nodes: one of three is lost, 3 times in each of 3 ways, torchrun once, %d shell workers a node", eachNode)
	const host, other = 0, 2
	peer, err := b.loseNode(ctx, b.torchrun, other, patience)
	never := errors.Is(err, errLate)
	if err != nil && !never {
		return nil, err
	}
	measure := func(figure string, victim int, most float64, env ...string) (row, error) {
		var ours []float64
		for range 3 {
			took, err := b.loseNode(ctx, b.muster, victim, time.Minute, env...)
			if err != nil {
				return row{}, err
			}
			ours = append(ours, took)
		}
		r := row{Figure: figure, Ours: median(ours), Unit: "s", Budget: fmt.Sprintf("≤ %v s", most)}
		r.Pass = r.Ours <= most
		r.Note = spread(measured{b.muster.name, ours}, r.Unit)
		return r, nil
	}
	var rows []row
	for _, way := range []struct {
		figure string
		victim int
		most   float64
		env    []string
	}{
		{"3 nodes: one is lost, to the workers of the next round", other, 10, nil},
		{"the same with --keep-alive 1", other, 3, []string{"MUSTER_KEEP_ALIVE=1"}},
		{"the same, the node that hosts the store is lost", host, 10, nil},
	} {
		r, err := measure(way.figure, way.victim, way.most, way.env...)
		if err != nil {
			return nil, err
		}
		switch {
		case way.victim != other: // torchrun's job ends with its store
		case never:
			r.PeerText = fmt.Sprintf("> %.0f s", patience.Seconds())
		default:
			r.Peer, r.Ratio = &peer, r.Ours/peer
		}
		rows = append(rows, r)
	}
	return rows, nil
}

// loseNode measures one loss.
func (b *bench) loseNode(ctx context.Context, l launcher, victim int, limit time.Duration, env ...string) (_ float64, err error) {
	c, err := b.gather(ctx, l, 3, "2:3", env...)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, c.end()) }()
	lost := time.Now()
	if err := c.nodes[victim].freeze(); err != nil {
		return 0, err
	}
	survivors := slices.Concat(c.nodes[:victim], c.nodes[victim+1:])
	last, err := await(ctx, survivors, lost, limit)
	return last.Sub(lost).Seconds(), err
}

// freeze stops every process of a node for good: it says no word more, and no connection of its is closed, as when a
// machine loses its power. What a SIGKILL would close tells the others.
func (j *job) freeze() error {
	told := map[int]bool{}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		pids := slices.DeleteFunc(j.processes(), func(pid int) bool { return told[pid] && still(pid) })
		if len(pids) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("processes %v go on after SIGSTOP", pids)
		}
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGSTOP) // gone already is as good
			told[pid] = true
		}
	}
}

// stopped reports whether a process does nothing any more.
func stopped(pid int) bool { return inState(pid, "TZX") }

// still reports whether a process that was sent SIGSTOP does nothing any more. One that waits in the kernel stops before it
// goes on: the parent in a vfork does so for as long as its child is stopped.
func still(pid int) bool { return inState(pid, "DTZX") }

// inState reports whether a process is in one of some states, or gone.
func inState(pid int, states string) bool {
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return true // it ended
	}
	_, rest, _ := strings.Cut(string(stat[strings.LastIndexByte(string(stat), ')'):]), " ")
	return rest != "" && strings.ContainsRune(states, rune(rest[0]))
}
