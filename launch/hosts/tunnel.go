package hosts

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"

	"muster/internal/errhint"
	"muster/launch/control"
)

// What a tunnel's frame says, in front of which stands the number of its tunnel.
const (
	tunnelOpen  = 1 // the launcher begins one
	tunnelData  = 2 // bytes
	tunnelTaken = 3 // four bytes: so many of them were taken
	tunnelClose = 4 // this end is closed

	tunnelHeader = 5
)

// The bounds of tunnels.
const (
	// tunnelWindow is how many bytes may be on their way that the other end has not taken.
	tunnelWindow = 256 << 10
	// tunnelPart is how many of them a frame has.
	tunnelPart  = 16 << 10
	mostTunnels = 32
)

var errTunnels = fmt.Errorf("there are %d connections to the node already", mostTunnels)

// tunnels are connections between launcher and agent within their frames. What comes is taken at once, or its tunnel is
// closed: who reads frames waits for nobody.
type tunnels struct {
	send func(payload []byte) error
	// accept takes a connection that the launcher has begun; nil: there is nobody to take one.
	accept func(net.Conn)

	mu     sync.Mutex
	open   map[uint32]*tunnel
	last   uint32
	closed bool
}

// tunnel is one of them: what is written to its user's end of a pipe goes to the other side.
type tunnel struct {
	id   uint32
	of   *tunnels
	pipe net.Conn // our end

	mu     sync.Mutex
	change *sync.Cond
	room   int      // bytes that the other side takes
	queue  [][]byte // that have come
	bytes  int
	closed bool // nothing goes any more
	ended  bool // nothing comes any more
}

// newLocked makes a tunnel, and returns the user's end.
func (t *tunnels) newLocked(id uint32) (*tunnel, net.Conn) {
	if t.open == nil {
		t.open = map[uint32]*tunnel{}
	}
	ours, theirs := net.Pipe()
	n := &tunnel{id: id, of: t, pipe: ours, room: tunnelWindow}
	n.change = sync.NewCond(&n.mu)
	t.open[id] = n
	return n, theirs
}

// dial begins a tunnel.
func (t *tunnels) dial() (net.Conn, error) {
	t.mu.Lock()
	if t.closed {
		t.mu.Unlock()
		return nil, errNotThere
	}
	if len(t.open) >= mostTunnels {
		t.mu.Unlock()
		return nil, errTunnels
	}
	t.last++
	n, conn := t.newLocked(t.last)
	t.mu.Unlock()
	if err := n.say(tunnelOpen, nil); err != nil {
		t.forget(n)
		return nil, errors.Join(err, conn.Close())
	}
	n.run()
	return conn, nil
}

// take takes a frame.
func (t *tunnels) take(payload []byte) error {
	if len(payload) < tunnelHeader || len(payload) > tunnelHeader+tunnelPart {
		return fmt.Errorf("%w: a tunnel's has %d bytes", errNoise, len(payload))
	}
	id, what, data := binary.BigEndian.Uint32(payload), payload[4], payload[tunnelHeader:]
	t.mu.Lock()
	n := t.open[id]
	accept := t.accept
	var conn net.Conn
	refused := false
	if what == tunnelOpen && n == nil {
		if refused = t.closed || accept == nil || len(t.open) >= mostTunnels; !refused {
			n, conn = t.newLocked(id)
		}
	}
	t.mu.Unlock()
	switch {
	case refused:
		go func() { _ = t.send(append(binary.BigEndian.AppendUint32(nil, id), tunnelClose)) }() // who reads waits for nobody
	case n == nil: // it has ended here
	case conn != nil:
		n.run()
		accept(conn)
	case what == tunnelData:
		n.come(data)
	case what == tunnelTaken && len(data) == 4:
		n.mu.Lock()
		n.room = min(n.room+int(binary.BigEndian.Uint32(data)), tunnelWindow)
		n.change.Broadcast()
		n.mu.Unlock()
	case what == tunnelClose:
		n.end()
	default:
		return fmt.Errorf("%w: a tunnel's says %d", errNoise, what)
	}
	return nil
}

// forget takes a tunnel that has ended from the list.
func (t *tunnels) forget(n *tunnel) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.open, n.id)
}

// close ends all tunnels.
func (t *tunnels) close() {
	t.mu.Lock()
	t.closed = true
	var all []*tunnel
	for _, n := range t.open {
		all = append(all, n)
	}
	t.mu.Unlock()
	for _, n := range all {
		n.end()
		_ = n.pipe.Close()
	}
}

func (n *tunnel) say(what byte, data []byte) error {
	return n.of.send(append(append(binary.BigEndian.AppendUint32(make([]byte, 0, tunnelHeader+len(data)), n.id), what), data...))
}

// come takes bytes that have come.
func (n *tunnel) come(data []byte) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.bytes += len(data); n.bytes > tunnelWindow {
		n.ended, n.closed, n.queue = true, true, nil // the other side does not keep to what it was told
	} else if !n.ended {
		n.queue = append(n.queue, slices.Clone(data))
	}
	n.change.Broadcast()
}

// end says that the other side is closed.
func (n *tunnel) end() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ended, n.closed = true, true
	n.change.Broadcast()
}

// run carries bytes in both directions until one side is closed.
func (n *tunnel) run() {
	go n.deliver()
	go n.carry()
}

// deliver gives to the user what has come.
func (n *tunnel) deliver() {
	defer func() { _ = n.pipe.Close() }()
	for {
		n.mu.Lock()
		for len(n.queue) == 0 && !n.ended {
			n.change.Wait()
		}
		if len(n.queue) == 0 {
			n.mu.Unlock()
			return
		}
		data := n.queue[0]
		n.queue = n.queue[1:]
		n.mu.Unlock()
		_, err := n.pipe.Write(data)
		n.mu.Lock()
		n.bytes -= len(data)
		n.mu.Unlock()
		if err == nil {
			err = n.say(tunnelTaken, binary.BigEndian.AppendUint32(nil, uint32(len(data))))
		}
		if err != nil {
			n.end()
			return
		}
	}
}

// carry gives to the other side what the user writes.
func (n *tunnel) carry() {
	buf := make([]byte, tunnelPart)
	for n.awaitRoom() {
		size, err := n.pipe.Read(buf)
		if size > 0 {
			n.mu.Lock()
			n.room -= size
			n.mu.Unlock()
			if n.say(tunnelData, buf[:size]) != nil {
				break
			}
		}
		if err != nil {
			break
		}
	}
	n.of.forget(n)
	n.end()
	_ = n.say(tunnelClose, nil) // a launcher or agent that is lost hears nothing
}

// awaitRoom waits until the other side takes as much as a frame has, false: it never will.
func (n *tunnel) awaitRoom() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	for n.room < tunnelPart && !n.closed {
		n.change.Wait()
	}
	return !n.closed
}

// reachMuster says how the muster of a machine is asked, for control.
func (f *Fleet) reachMuster(machine int, from string) (*control.Far, error) {
	f.mu.Lock()
	n := f.nodes[machine]
	s := n.session
	f.mu.Unlock()
	if s == nil {
		return nil, errhint.Code(fmt.Errorf("the agent on %s is not reached now", n.Name), errhint.TryAgain)
	}
	return &control.Far{Node: n.Name, From: from, Dial: func(context.Context) (net.Conn, error) { return s.tunnels.dial() }}, nil
}

// look has all nodes look at their workers at the same moment. An error says why nothing at all could be looked at.
func (f *Fleet) look(ctx context.Context, from string, native bool) (all control.Looked, err error) {
	seen, errs := make([]control.Looked, len(f.nodes)), make([]error, len(f.nodes))
	var wg sync.WaitGroup
	for i := range f.nodes {
		wg.Go(func() {
			far, err := f.reachMuster(i, from)
			if err == nil {
				seen[i], err = far.Evidence(ctx, native, control.Peer{UID: os.Getuid(), PID: os.Getpid()})
			}
			errs[i] = err
		})
	}
	wg.Wait()
	for i, n := range f.nodes {
		all.Nodes = append(all.Nodes, seen[i].Nodes...)
		if errs[i] != nil {
			all.Missing = append(all.Missing, n.Name)
		}
	}
	if len(all.Nodes) == 0 {
		return all, cmp.Or(errs...) // what the others say is much the same
	}
	return all, nil
}

// reachRanks says how the muster is asked that runs ranks.
func (l *launcher) reachRanks(ranks []int) (*control.Far, error) {
	machine, err := l.told.nodeOf(ranks)
	if err != nil {
		return nil, err
	}
	return l.fleet.reachMuster(machine, "the launcher on "+l.config.Hostname)
}

// look has all nodes look at their workers.
func (l *launcher) look(ctx context.Context, native bool) (control.Looked, error) {
	return l.fleet.look(ctx, "the launcher on "+l.config.Hostname, native)
}

// nodeOf is the machine that runs ranks.
func (w *worldStatus) nodeOf(ranks []int) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	d, said := w.status.Status()
	machine, one := w.status.NodeOf(ranks[0])
	if !one {
		if said && d.WorldSize > 0 && ranks[0] >= d.WorldSize {
			return 0, errhint.Usagef("the job has no rank %d: its ranks are 0 to %d", ranks[0], d.WorldSize-1)
		}
		return 0, errhint.Code(errhint.With(fmt.Errorf("no node has said that it runs rank %d", ranks[0]),
			"try again when muster status shows the rank: nodes tell of their workers once they run"), errhint.TryAgain)
	}
	for _, rank := range ranks {
		if other, known := w.status.NodeOf(rank); !known || other != machine {
			words := strings.Trim(fmt.Sprint(ranks), "[]")
			return 0, errhint.Code(errhint.With(fmt.Errorf("the ranks %s are on several nodes now", words),
				"the job has started its workers again: look at muster status, and try again"), errhint.TryAgain)
		}
	}
	return machine, nil
}
