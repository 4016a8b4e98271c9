package netprobe

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	"muster/internal/errhint"
	"muster/internal/peertls"
)

// Pair probes the network between this node and the server that was announced as identity, "host:port/nonce". What
// could not be measured is in the facts, with the reason; an error means that nothing was tried (the settings are
// wrong), or that ctx has ended.
func Pair(ctx context.Context, cfg Config, identity string) (Facts, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return Facts{}, err
	}
	began := time.Now()
	within, cancel := context.WithTimeoutCause(ctx, cfg.Budget, fmt.Errorf("the budget of %v is used up", cfg.Budget))
	defer cancel()
	id := peertls.Identity(identity)
	addr := clean(id.Addr(), nameLength)
	p := &prober{cfg: cfg, id: id, addr: addr, facts: Facts{From: cfg.Node, To: Node{Name: addr}}, began: began}
	p.dialer = dialer{domain: cfg.domain(), patience: cfg.Patience, way: cfg.Medium.way(cfg.Peer)}
	p.probe(within)
	p.facts.Took = time.Since(began)
	if ctx.Err() != nil {
		return p.facts, fmt.Errorf("cannot probe %s: %w", addr, context.Cause(ctx))
	}
	return p.facts, nil
}

// prober is one call of Pair.
type prober struct {
	cfg    Config
	id     peertls.Identity
	addr   string
	began  time.Time
	dialer dialer
	facts  Facts
	conn   *client // that requests go over
}

const (
	// fruitless is after how many tries a port is given up that connects and does not speak our language.
	fruitless = 3
	// askTime bounds the wait for an answer that costs the server nothing.
	askTime = 2 * time.Second
	// backShare is which part of the budget the way back may take: it is tried while other probes run.
	backShare = 0.6
	// leastShare is how much a run may be shortened before it says nothing any more.
	leastShare = 0.25
)

func (p *prober) probe(ctx context.Context) {
	f := &p.facts
	defer func() {
		if p.conn != nil {
			_ = p.conn.Close()
		}
	}()
	err := p.id.Check()
	if err == nil {
		err = p.connect(ctx)
	}
	if err != nil {
		p.giveUp(err)
		return
	}
	var wg sync.WaitGroup
	back := Tries{Skip: "this node offers no probes itself"}
	if p.cfg.Serve != "" {
		wg.Go(func() { back = p.reachBack(ctx) })
	}
	p.tryAgain(ctx)
	err = p.about(ctx)
	if err == nil {
		err = p.echo(ctx)
	}
	if err == nil {
		p.trySizes(ctx)
		p.bulk(ctx)
	} else {
		f.Error, f.Hint = clean(err.Error(), 300), "is the agent there alive, and not stopped?"
	}
	wg.Wait()
	f.Reach.Back = back
}

// giveUp notes that the other node could not be reached at all.
func (p *prober) giveUp(err error) {
	err = unreachable(p.addr, err)
	f := &p.facts
	f.Error, f.Hint = clean(err.Error(), 300), errhint.Of(err)
	why := "the other node was not reached"
	f.Reach.Back.Skip, f.RTT.Skip, f.Clock.Skip, f.MTU.Skip, f.NoBulk = why, why, why, why, why
}

// connect opens the first connection. From then on the address is the one that was found.
func (p *prober) connect(ctx context.Context) error {
	tries, barren := &p.facts.Reach.Out, 0
	for {
		conn, err := p.dialer.dial(ctx, p.addr, p.id)
		tries.count(err)
		if err == nil {
			p.conn = conn
			p.addr = addrPort(conn.RemoteAddr()).String()
			return nil
		}
		if errors.Is(err, peertls.ErrNotUs) || errors.Is(err, peertls.ErrSilent) {
			barren++
		}
		if errors.Is(err, peertls.ErrToken) || errors.Is(err, peertls.ErrOther) || barren == fruitless || tries.Done >= p.cfg.Tries ||
			!pause(ctx, p.cfg.Gap) {
			return err
		}
	}
}

// tryAgain connects as often as the tries that are left: once is not always.
func (p *prober) tryAgain(ctx context.Context) {
	tries := &p.facts.Reach.Out
	var err error
	for tries.Done < p.cfg.Tries && pause(ctx, gap(p.cfg.Gap, err)) {
		var conn *client
		conn, err = p.dialer.dial(ctx, p.addr, p.id)
		if err != nil && ctx.Err() != nil {
			return
		}
		tries.count(err)
		if err == nil {
			_ = conn.Close()
		}
	}
}

// reachBack has the other node connect to ours, asking over a connection of its own.
func (p *prober) reachBack(ctx context.Context) Tries {
	limit := time.Duration(float64(p.cfg.Budget) * backShare)
	conn, err := p.dialer.dial(ctx, p.addr, p.id)
	if err != nil {
		return Tries{Skip: fmt.Sprintf("the other node could not be asked: %v", err)}
	}
	defer func() { _ = conn.Close() }()
	a, err := conn.ask(ctx, request{
		Op: opReach, From: peertls.Identity(p.cfg.Serve), Port: portOf(p.cfg.Serve), Tries: p.cfg.Tries, Patience: p.cfg.Patience,
		Gap: max(1, p.cfg.Gap), Limit: limit,
	}, limit+askTime)
	switch {
	case err != nil:
		return Tries{Skip: fmt.Sprintf("the other node did not say: %v", err)}
	case a.Tries == nil || a.Tries.Done < 1 || a.Tries.Done > p.cfg.Tries || a.Tries.Failed < 0 || a.Tries.Failed > a.Tries.Done:
		return Tries{Skip: "the other node gave no answer that makes sense"}
	}
	a.Tries.Last, a.Tries.Skip = clean(a.Tries.Last, 200), ""
	return *a.Tries
}

// about asks the other node about itself.
func (p *prober) about(ctx context.Context) error {
	a, err := p.conn.ask(ctx, request{Op: opAbout}, askTime)
	if err != nil {
		return err
	}
	f := &p.facts
	if a.Node != nil {
		a.Node.clean()
		f.To = *a.Node
		if f.To.Name == "" {
			f.To.Name = p.addr
		}
	}
	f.Local = p.cfg.Medium.end(endOf(addrPort(p.conn.LocalAddr()).Addr()))
	f.Remote = End{Addr: addrPort(p.conn.RemoteAddr()).Addr()}
	if a.End != nil {
		f.Remote.Iface, f.Remote.MTU, f.Remote.Speed = clean(a.End.Iface, 64), max(0, a.End.MTU), max(0, a.End.Speed)
	}
	return nil
}

// echo measures round trips, and the clocks with them: every frame comes back with the times at the other node, and the
// fastest one says most.
func (p *prober) echo(ctx context.Context) error {
	c, f := p.conn, &p.facts
	began := time.Now()
	_ = c.SetDeadline(began.Add(p.cfg.EchoTime + askTime))
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := writeMessage(c, request{Op: opEcho, Echoes: p.cfg.Echoes}); err != nil {
		return fmt.Errorf("no echo: %w", err)
	}
	var took []time.Duration
	var offset, best time.Duration = 0, math.MaxInt64
	var frame, answered [echoBytes]byte
	for i := range p.cfg.Echoes {
		last := i == p.cfg.Echoes-1 || time.Since(began) > p.cfg.EchoTime
		frame[0] = frameMore
		if last {
			frame[0] = frameLast
		}
		binary.BigEndian.PutUint64(frame[atNumber:], uint64(i))
		sent := time.Now()
		_, err := c.Write(frame[:])
		if err == nil {
			_, err = io.ReadFull(c, answered[:])
		}
		rtt := time.Since(sent)
		if err != nil {
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			return fmt.Errorf("echo %d did not come back: %w", i, err)
		}
		if binary.BigEndian.Uint64(answered[atNumber:]) != uint64(i) {
			return fmt.Errorf("echo %d came back as another one", i)
		}
		took = append(took, rtt)
		came := time.Unix(0, int64(binary.BigEndian.Uint64(answered[atCame:])))
		went := time.Unix(0, int64(binary.BigEndian.Uint64(answered[atWent:])))
		if d := rtt - went.Sub(came); d < best && d >= 0 {
			// The mean of what the clocks differ by on the way there and on the way back.
			sent := p.cfg.Medium.wall(sent) // as the other's
			there, back := came.Sub(sent), went.Sub(sent.Add(rtt))
			best, offset = d, there/2+back/2
		}
		if last {
			break
		}
	}
	f.RTT = roundTrips(took)
	if best == math.MaxInt64 {
		f.Clock.Skip = "the other node's clock ran backwards"
		return nil
	}
	f.Clock.Offset, f.Clock.Error = offset, best/2
	return nil
}

// roundTrips sums up what was measured, without the first tenth, and without the first in any case but that there is no
// other: caches are cold, the connection is new, and what comes before the first frame goes the same way.
func roundTrips(took []time.Duration) RTT {
	took = slices.Clone(took[min((len(took)+9)/10, len(took)-1):])
	slices.Sort(took)
	n := len(took)
	return RTT{Count: n, Min: took[0], P50: took[n/2], P99: took[(n*99)/100], Max: took[n-1]}
}

// trySizes tries datagrams of several sizes.
func (p *prober) trySizes(ctx context.Context) {
	f := &p.facts
	skip := func(err error) { f.MTU.Skip = clean(err.Error(), 200) }
	local := addrPort(p.conn.LocalAddr()).Addr()
	s, port, err := openSizer(ctx, local, p.conn.key)
	if err != nil {
		skip(err)
		return
	}
	defer func() { _ = s.conn.Close() }()
	s.way = p.dialer.way
	a, err := p.conn.ask(ctx, request{Op: opSizes, Port: port}, askTime)
	if err != nil {
		skip(err)
		return
	}
	if a.Port == 0 {
		skip(errors.New("the other node names no port for datagrams"))
		return
	}
	if err := connect(s.conn, netip.AddrPortFrom(addrPort(p.conn.RemoteAddr()).Addr(), a.Port)); err != nil {
		skip(fmt.Errorf("cannot send datagrams to port %d: %w", a.Port, err))
		return
	}
	s.tries, s.patience = p.cfg.SizeTries, p.cfg.SizePatience+2*f.RTT.P50
	for i, size := range sizesFor(p.cfg.Sizes, f.Local.MTU) {
		got, err := s.try(ctx, size)
		if err == nil && i == 0 && got.Back != Passed {
			err = fmt.Errorf("not even datagrams of %d bytes are answered: is UDP to and from port %d filtered?", size, a.Port)
		}
		if err != nil {
			skip(err)
			return
		}
		f.MTU.Sizes = append(f.MTU.Sizes, got)
		if got.Out != Passed || got.Back != Passed {
			return // larger ones would take their time, and say no more
		}
	}
}

// bulk measures streams. Where large packets vanish they would stand still, which says nothing more.
func (p *prober) bulk(ctx context.Context) {
	f := &p.facts
	if bad := f.vanished(); bad != nil {
		f.NoBulk = fmt.Sprintf("packets of %d bytes vanish", bad.Bytes)
		return
	}
	left := 2 * len(p.cfg.Streams)
	for _, n := range p.cfg.Streams {
		for _, dir := range []Direction{Out, Back} {
			warmUp, timed, fits := p.fit(ctx, left)
			if !fits {
				f.NoBulk = fmt.Sprintf("the budget of %v does not hold %d more runs of streams", p.cfg.Budget, left)
				return
			}
			b, err := p.oneRun(ctx, dir, n, warmUp, timed)
			if err != nil {
				f.NoBulk = clean(fmt.Sprintf("%d streams %s: %v", n, dir, err), 300)
				return
			}
			f.Bulk = append(f.Bulk, b)
			left--
		}
	}
}

// fit shortens runs until so many of them are within the budget.
func (p *prober) fit(ctx context.Context, runs int) (warmUp, timed time.Duration, fits bool) {
	warmUp, timed = p.cfg.WarmUp, p.cfg.Timed
	end, _ := ctx.Deadline()
	// Connecting, saying hello and asking take some round trips of each run.
	each := time.Until(end)/time.Duration(runs) - 50*time.Millisecond - 8*p.facts.RTT.P50
	if whole := warmUp + timed; whole > each {
		share := float64(each) / float64(whole)
		if share < leastShare {
			return 0, 0, false
		}
		warmUp, timed = time.Duration(share*float64(warmUp)), time.Duration(share*float64(timed))
	}
	return warmUp, timed, true
}

// oneRun does one run of streams.
func (p *prober) oneRun(ctx context.Context, dir Direction, streams int, warmUp, timed time.Duration) (Bulk, error) {
	b := Bulk{Direction: dir, Streams: streams}
	var opened answer
	for { // another node may be in a run with it
		var err error
		opened, err = p.conn.ask(ctx, request{Op: opRun, Direction: dir, Streams: streams, WarmUp: warmUp, Timed: timed}, askTime)
		if err == nil {
			break
		}
		if !errors.Is(err, peertls.ErrBusy) || !pause(ctx, p.cfg.Gap) {
			return b, err
		}
	}
	within, r := newRun(ctx, plan{dir == Out, streams, warmUp, timed, p.cfg.MaxBytes})
	defer r.end()
	for range streams {
		r.enter()
		go func() { // end waits for it
			defer r.leave()
			if err := p.join(within, r, opened.Run); err != nil {
				r.fail(err)
				r.cancel(err)
			}
		}()
	}
	ours, err := r.outcome(ctx)
	if err != nil {
		return b, err
	}
	theirs, err := p.conn.ask(ctx, request{Op: opResult}, askTime+2*slack)
	if err != nil {
		return b, err
	}
	if dir == Out {
		b.Bytes, b.Window, b.Sent = theirs.Bytes, theirs.Window, ours.Sent
	} else {
		b.Bytes, b.Window, b.Sent = ours.Bytes, ours.Window, theirs.Sent
	}
	if b.Bytes < 0 || b.Window < 0 || b.Window > maxRun {
		return b, fmt.Errorf("the other node says that %d bytes came in %v", b.Bytes, b.Window)
	}
	if b.Sent != nil && (b.Sent.Segments == 0 || !b.Sent.sane()) {
		b.Sent = nil // that kernel does not say
	}
	return b, nil
}

// join opens one stream of a run and does its work.
func (p *prober) join(ctx context.Context, r *run, id string) error {
	conn, err := p.dialer.dial(ctx, p.addr, p.id)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if _, err := conn.ask(ctx, request{Op: opJoin, Run: id}, joinTime); err != nil {
		return err
	}
	_ = conn.SetDeadline(time.Time{})
	r.stream(plainOf(conn.Conn))
	return nil
}

// portOf is the port of an identity, 0 for none.
func portOf(id string) uint16 {
	_, port, _ := net.SplitHostPort(peertls.Identity(id).Addr())
	n, _ := strconv.ParseUint(port, 10, 16)
	return uint16(n)
}

// endOf describes this node's end of a path.
func endOf(addr netip.Addr) End {
	e := End{Addr: addr}
	ifaces, err := net.Interfaces()
	if err != nil {
		return e
	}
	for _, i := range ifaces {
		if zone := addr.Zone(); zone != "" && zone != i.Name {
			continue
		}
		addrs, err := i.Addrs()
		if err != nil {
			continue // it has gone
		}
		for _, a := range addrs {
			own, ok := a.(*net.IPNet)
			if !ok {
				continue
			}
			// All of 127.0.0.0/8 is lo's.
			if ip, ok := netip.AddrFromSlice(own.IP); ok && ip.Unmap() == addr.WithZone("") || addr.IsLoopback() &&
				own.Contains(addr.AsSlice()) {
				e.Iface, e.MTU, e.Speed = i.Name, i.MTU, speedOf(i.Name)
				return e
			}
		}
	}
	return e
}
