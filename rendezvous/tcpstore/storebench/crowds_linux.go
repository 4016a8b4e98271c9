package main

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	crowdLimit   = 10 * time.Minute // for one crowd; PyTorch's own figure for 96,000 clients is 100 s
	bigCrowd     = 16_000           // from here on
	bigRuns      = 3                // runs are enough: they are long
	perAddress   = 8_000            // clients of one address: Linux tries 14,116 ports one by one before it takes one of the other 14,116
	perClient    = 2.0              // KiB
	linear       = 1.5              // what the time for a client may grow by from the smallest crowd to the largest
	ownDescs     = 64               // descriptors that a process needs beside those of the clients
	warmingUp    = 16               // clients before the first memory figure: what a server loads once is not theirs
	crowdFigure  = "store: %s clients connect, shake hands, add to init/, then a barrier"
	memoryFigure = "store: memory for a client, of %s"
	growthFigure = "store: time for a client of %s against one of %s"
)

// crowd is what one crowd of clients met.
type crowd struct {
	opened, barred, total float64 // seconds
	memory                float64 // KiB for a client
}

// readSizes reads the sizes of crowds, which grow.
func readSizes(text string) (sizes []int, err error) {
	for item := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(item)
		if err != nil || n < 1 || len(sizes) > 0 && n <= sizes[len(sizes)-1] {
			return nil, fmt.Errorf("cannot make crowds of %q clients: the sizes are growing numbers with commas between", text)
		}
		sizes = append(sizes, n)
	}
	return sizes, nil
}

// benchCrowds measures how a server meets more and more clients.
func benchCrowds(ctx context.Context, o options, dir string) (figures []figure, err error) {
	type both struct{ ours, peer crowd }
	met := make(map[int]both)
	var sizes []int // that were measured
	for _, n := range o.sizes {
		name := fmt.Sprintf(crowdFigure, thousands(n))
		if reason := tooMany(n); reason != "" {
			figures = append(figures, figure{Figure: name, Unit: "s", Budget: "<= 1 x", Skip: reason})
			continue
		}
		runs := o.runs
		if n >= bigCrowd {
			runs = min(runs, bigRuns)
		}
		var ours, peer []crowd
		start := func() (*server, error) { return startMuster(ctx, o.muster) }
		err := o.inTurns(ctx, runs, start, dir, []string{libuv}, func(s *server, backend string) error {
			c, err := meet(s, n)
			if backend == "" {
				ours = append(ours, c)
			} else {
				peer = append(peer, c)
			}
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("%s clients: %w", thousands(n), err)
		}
		a, b := medianCrowd(ours), medianCrowd(peer)
		met[n], sizes = both{a, b}, append(sizes, n)
		f := judge(figure{Figure: name, Unit: "s", Ours: a.total, Peer: b.total}, 1, false)
		f.Note = fmt.Sprintf("connect, handshake and init/ %.3f s, barrier %.3f s", a.opened, a.barred)
		if len(peer) > 0 {
			f.Note += fmt.Sprintf("; libuv %.3f s, %.3f s", b.opened, b.barred)
			if os.Geteuid() != 0 {
				f.Note += "; without root its name look-ups could not be kept from the name servers"
			}
		}
		m := figure{Figure: fmt.Sprintf(memoryFigure, thousands(n)), Unit: "KiB", Ours: a.memory, Peer: b.memory}
		if m.Peer > 0 {
			m.Ratio = m.Ours / m.Peer
		}
		m.Budget, m.Pass = fmt.Sprintf("<= %g KiB", perClient), m.Ours <= perClient
		figures = append(figures, f, m)
	}
	if len(sizes) < 2 {
		return figures, nil
	}
	least, most := sizes[0], sizes[len(sizes)-1]
	growth := func(get func(both) crowd) float64 {
		return get(met[most]).total / get(met[least]).total * float64(least) / float64(most)
	}
	g := figure{
		Figure: fmt.Sprintf(growthFigure, thousands(most), thousands(least)), Unit: "x",
		Ours: growth(func(b both) crowd { return b.ours }),
	}
	if o.python != "" {
		g.Peer = growth(func(b both) crowd { return b.peer })
		g.Ratio = g.Ours / g.Peer
	}
	g.Budget, g.Pass = fmt.Sprintf("<= %g x (linear: 1)", linear), g.Ours <= linear
	return append(figures, g), nil
}

// tooMany says why a crowd of n clients cannot be, or nothing.
func tooMany(n int) string {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return "cannot read the limit of descriptors: " + err.Error()
	}
	if uint64(n+ownDescs) > limit.Max {
		return fmt.Sprintf("a process may have %s descriptors here (ulimit -Hn)", thousands(int(limit.Max)))
	}
	return ""
}

// meet has n clients come to s.
func meet(s *server, n int) (c crowd, err error) {
	deadline := time.Now().Add(crowdLimit)
	come := func(n int, barrier string) error {
		var source func(int) netip.Addr
		if n > perAddress {
			source = func(i int) netip.Addr { return netip.AddrFrom4([4]byte{127, 0, 0, byte(1 + i/perAddress)}) }
		}
		l, err := newLoad(s.addr, source)
		if err != nil {
			return err
		}
		defer l.close()
		before, err := s.memory()
		if err != nil {
			return err
		}
		opened, err := l.open(n, deadline)
		if err != nil {
			return err
		}
		barred, err := l.barrier(barrier, deadline)
		if err != nil {
			return err
		}
		after, err := s.memory()
		c = crowd{opened.Seconds(), barred.Seconds(), (opened + barred).Seconds(), float64(after-before) / 1024 / float64(n)}
		return err
	}
	if err := come(warmingUp, "/warm"); err != nil {
		return c, err
	}
	err = come(n, "/barrier")
	return c, err
}

// medianCrowd returns the median of each figure.
func medianCrowd(list []crowd) crowd {
	of := func(get func(crowd) float64) float64 {
		values := make([]float64, len(list))
		for i, c := range list {
			values[i] = get(c)
		}
		return median(values)
	}
	return crowd{
		opened: of(func(c crowd) float64 { return c.opened }),
		barred: of(func(c crowd) float64 { return c.barred }),
		total:  of(func(c crowd) float64 { return c.total }),
		memory: of(func(c crowd) float64 { return c.memory }),
	}
}

// thousands writes n with a comma before the last three digits.
func thousands(n int) string {
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%d,%03d", n/1000, n%1000)
}
