package launch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"muster/internal/errhint"
	"muster/launch/plan"
	"muster/rendezvous"
)

// The keys on the board of a round: what each node offers its workers, and what the first node has made of all that.
const (
	offerKey  = "places/"
	placesKey = "places"
)

// offer is where a node's workers can listen.
type offer struct {
	// Host is the address by which other nodes reach this one, Base the rank of its first worker.
	Host string `json:"host"`
	Base int    `json:"base"`
	// Ports are one for each worker, and a last one for the coordinator.
	Ports []int `json:"ports"`
}

// choosePlaces chooses with the other nodes where the workers of the round listen for each other, if EnvRules.Profile has
// them told. The ports here stay taken until release is called; that is nil where the round was over first.
func (a *Agent) choosePlaces(ctx context.Context, again bool) (release func(), err error) {
	m, profile := a.meeting, a.Plan.Job.Env.Profile
	none := func() {}
	if profile == "" || ctx.Err() != nil || again && !m.alone() { // the others know those from before
		return none, nil //nolint:nilerr // a round that is over has no places
	}
	board := m.Board()
	if !m.alone() && board == nil {
		return none, errhint.With(errhint.Usagef(
			"cannot use --env-profile %s: torchrun takes part on another node, and its agent does not tell where workers can listen",
			profile), "start muster on all nodes")
	}
	ports, err := holdPorts(a.Plan.Procs + 1)
	if err != nil {
		return none, fmt.Errorf("cannot find ports for the workers on node %s: %w", a.Plan.Hostname, err)
	}
	own := offer{Host: a.Addr, Base: m.BaseRank, Ports: ports.numbers}
	var all []offer
	a.untilVerdict(ctx, func(ctx context.Context) {
		if all = []offer{own}; !m.alone() {
			all = shareOffers(ctx, board, m.Round, own)
		}
	})
	if all == nil {
		ports.release()
		return nil, nil //nolint:nilnil // there is nothing to release
	}
	places, err := placesOf(all, m.WorldSize)
	if err == nil {
		err = a.Plan.Check(places)
	}
	if err != nil {
		ports.release()
		return none, err
	}
	a.places = places
	return ports.release, nil
}

// shareOffers returns what all nodes of the round offer, nil where ctx has ended first. The first node gathers it, so that
// each node asks once.
func shareOffers(ctx context.Context, b rendezvous.Board, r rendezvous.Round, own offer) (all []offer) {
	tell := func(key string, value any) {
		text, err := json.Marshal(value)
		for err == nil && ctx.Err() == nil && b.Set(ctx, key, text) != nil {
			select { // the store may be out of reach for a moment
			case <-ctx.Done():
			case <-time.After(publishEvery):
			}
		}
	}
	read := func(key string, into any) {
		awaitNote(ctx, b, key, func(text []byte) bool { return json.Unmarshal(text, into) == nil })
	}
	if r.GroupRank != 0 {
		tell(offerKey+strconv.Itoa(r.GroupRank), own)
		read(placesKey, &all)
		return all
	}
	gathered := []offer{own}
	for rank := 1; rank < r.GroupWorldSize; rank++ {
		var other offer
		read(offerKey+strconv.Itoa(rank), &other)
		gathered = append(gathered, other)
	}
	tell(placesKey, gathered)
	if ctx.Err() != nil {
		return nil
	}
	return gathered
}

// placesOf makes places for so many workers of what the nodes offer.
func placesOf(all []offer, world int) (*plan.Places, error) {
	p := &plan.Places{Workers: make([]string, world)}
	for _, o := range all {
		for i, port := range o.Ports {
			last := i == len(o.Ports)-1
			if rank := o.Base + i; !last && (rank < 0 || rank >= world || p.Workers[rank] != "") || port < 1 || port > 65535 ||
				o.Host == "" || strings.ContainsAny(o.Host, " ,\n\"\\") {
				return nil, fmt.Errorf("cannot tell workers of each other: a node offers port %d of %q for rank %d of %d", port, o.Host,
					rank, world)
			}
			place := net.JoinHostPort(o.Host, strconv.Itoa(port))
			switch {
			case !last:
				p.Workers[o.Base+i] = place
			case o.Base == 0:
				p.Coordinator = place
			}
		}
	}
	for rank, place := range p.Workers {
		if place == "" || p.Coordinator == "" {
			return nil, fmt.Errorf("cannot tell workers of each other: no node offers a place for rank %d of %d", rank, world)
		}
	}
	return p, nil
}

// heldPorts are free TCP ports of this node that nobody else is given while they are held. Nothing listens there.
type heldPorts struct {
	numbers []int
	sockets []int
}

// holdPorts takes n ports.
func holdPorts(n int) (*heldPorts, error) {
	h := &heldPorts{}
	for range n {
		fd, err := holdPort(&unix.SockaddrInet6{}, unix.AF_INET6)
		if errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EADDRNOTAVAIL) { // no IPv6 here
			fd, err = holdPort(&unix.SockaddrInet4{}, unix.AF_INET)
		}
		if err != nil {
			h.release()
			return nil, err
		}
		h.sockets = append(h.sockets, fd)
		at, err := unix.Getsockname(fd)
		if err != nil {
			h.release()
			return nil, err
		}
		switch at := at.(type) {
		case *unix.SockaddrInet6:
			h.numbers = append(h.numbers, at.Port)
		case *unix.SockaddrInet4:
			h.numbers = append(h.numbers, at.Port)
		}
	}
	return h, nil
}

// holdPort takes a port on all addresses of this node.
func holdPort(at unix.Sockaddr, family int) (int, error) {
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if family == unix.AF_INET6 {
		err = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 0) // IPv4, too
	}
	if err == nil {
		err = unix.Bind(fd, at)
	}
	if err != nil {
		_ = unix.Close(fd) // nothing was written
		return -1, err
	}
	return fd, nil
}

// release lets the workers have the ports.
func (h *heldPorts) release() {
	for _, fd := range h.sockets {
		_ = unix.Close(fd) // nothing was written
	}
	h.sockets = nil
}
