package c10d

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"muster/rendezvous"
	"muster/rendezvous/tcpstore"
)

// maxRounds is how many rounds back an address is looked for. Where a bridge takes part it stands in the last one.
const maxRounds = 1000

// askMaster asks the caller where the workers meet.
func (x *exchange) askMaster(ctx context.Context, f Peer, served bool) error {
	addr, port, err := x.where(ctx, f, served)
	if err != nil {
		return fmt.Errorf("cannot have the workers meet at node %s: %w", f.Node, err)
	}
	x.own = ownMaster{master{addr, port}, f.Node}
	return nil
}

// chooseMaster says where the workers meet when rank 0 is ours. Agents of torchrun from 2.6 on send their workers where
// they met the first time, so that is where it was, as long as somebody serves the store there: our node that did if it
// takes part, or an agent of torchrun that was rank 0 before, or a node of ours that is a spare now.
func (x *exchange) chooseMaster(ctx context.Context, first Peer) error {
	if x.round.others() > 0 {
		old, err := x.earlierMaster(ctx)
		if err != nil {
			return err
		}
		before, here := x.round.peers[x.own.node]
		switch {
		case old == (master{}):
		case old == x.own.master && here:
			first = before
		default:
			if err := x.sweep(ctx, old); err == nil {
				x.master = old
				return nil
			}
		}
	}
	if err := x.askMaster(ctx, first, true); err != nil {
		return err
	}
	x.master = x.own.master
	return nil
}

// findMaster learns where the workers meet when rank 0 is torchrun's and has said all that it will say of it.
func (x *exchange) findMaster(ctx context.Context) error {
	said, err := x.has(ctx, x.round.prefix+keyMasterAddr)
	if err != nil {
		return err
	}
	if said {
		if x.master, err = x.readMaster(ctx, x.round.prefix); err != nil {
			return err
		}
		if x.before != (master{}) && x.before != x.master {
			x.moved(ctx)
			return nil
		}
	} else {
		if x.master, err = x.earlierMaster(ctx); err != nil {
			return err
		}
		if x.master == (master{}) {
			return x.over(fmt.Sprintf("node %s (group rank 0) has not said where the workers meet, in this round or an earlier one",
				x.round.order[0]))
		}
		x.log.Debug().Int("round", x.round.Number).Stringer("addr", x.master).Msg("said again where the workers meet")
		if err := x.publishMaster(ctx); err != nil {
			return err
		}
	}
	if x.master == x.before {
		// Keys of the last round's workers are still there, and would lead the new ones to addresses where nobody
		// listens. Nobody starts workers before we say what we bring.
		if err := x.sweep(ctx, x.master); err != nil {
			x.log.Debug().Err(err).Stringer("addr", x.master).Msg("cannot empty the store of torchrun's workers")
		}
	}
	return nil
}

// moved warns when agents that were there before may not see that rank 0 is another one.
func (x *exchange) moved(ctx context.Context) {
	stayed := 0
	for rank, n := range x.round.order {
		if _, ours := x.round.peers[n]; !ours && rank > 0 {
			stayed++
		}
	}
	if stayed == 0 || x.before != x.own.master && !served(ctx, x.before) {
		return // agents that do not share their store ask each time: the old one was served by worker 0, and is gone
	}
	x.log.Warn().Int("round", x.round.Number).Stringer("addr", x.master).Stringer("before", x.before).
		Msg("rank 0 is another agent of torchrun now: the others may send their workers to the old one " +
			"(TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 avoids it)")
}

// publishMaster says in this round where the workers meet.
func (x *exchange) publishMaster(ctx context.Context) error {
	return x.setAll(ctx, []rendezvous.Pair{
		{Key: x.round.prefix + keyMasterAddr, Value: []byte(x.master.addr)},
		{Key: x.round.prefix + keyMasterPort, Value: []byte(strconv.Itoa(x.master.port))},
	})
}

// earlierMaster returns where the workers of the newest earlier round met of which that is known, zero for nowhere.
func (x *exchange) earlierMaster(ctx context.Context) (master, error) {
	for r := x.round.Number - 1; r >= max(0, x.round.Number-maxRounds); r-- {
		said, err := x.has(ctx, x.prefix(r)+keyMasterPort) // which is set after the address
		if err != nil {
			return master{}, err
		}
		if said {
			return x.readMaster(ctx, x.prefix(r))
		}
	}
	return master{}, nil
}

func (x *exchange) readMaster(ctx context.Context, prefix string) (master, error) {
	addr, err := x.get(ctx, prefix+keyMasterAddr)
	if err != nil {
		return master{}, err
	}
	text, err := x.get(ctx, prefix+keyMasterPort)
	if err != nil {
		return master{}, err
	}
	port, err := strconv.ParseUint(string(text), 10, 16)
	if err != nil || port == 0 {
		return master{}, x.nonsense(prefix+keyMasterPort, text)
	}
	if len(addr) == 0 || len(addr) > maxAddr || strings.ContainsFunc(string(addr), func(r rune) bool { return r <= ' ' || r == 0x7f }) {
		return master{}, x.nonsense(prefix+keyMasterAddr, addr)
	}
	return master{string(addr), int(port)}, nil
}

// reachable is how long we try to reach a store of workers.
const reachable = 3 * time.Second

// served reports whether something listens at m.
func served(ctx context.Context, m master) bool {
	ctx, cancel := context.WithTimeout(ctx, reachable)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", m.String())
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

// sweep empties the store that an agent of torchrun serves to the workers at m. The error means that nobody does, or,
// where some keys are left, that it is of 2.9 or older, which cannot list them.
func (x *exchange) sweep(ctx context.Context, m master) error {
	if !served(ctx, m) { // asked apart, because Dial does not give up
		return fmt.Errorf("nobody listens at %v", m)
	}
	ctx, cancel := context.WithTimeout(ctx, reachable)
	defer cancel()
	c, err := tcpstore.Dial(ctx, m.String(), tcpstore.ClientConfig{Log: x.log})
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	keys, err := c.ListKeys(ctx)
	if err != nil {
		x.log.Debug().Err(err).Stringer("addr", m).Msg("cannot list the keys of the workers of the last round")
		return nil
	}
	if slices.Contains(keys, x.rendezvous) {
		return nil // 2.5 shares the very store that we meet in
	}
	for _, key := range keys {
		if _, err := c.Delete(ctx, key); err != nil {
			return err
		}
	}
	return nil
}
