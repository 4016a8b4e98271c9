// Package hostaddr tells which addresses are this machine's, and which of them the other nodes of a job can use:
// whether a meeting place is ours to serve, and what to call ourselves towards the others.
//
// Addresses are compared as numbers: IPv4-mapped IPv6 addresses are IPv4, and link-local IPv6 addresses carry the name
// of their interface as zone, without which they mean nothing. Nothing here sends a packet but the resolver.
package hostaddr

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// ErrUnresolved is in the errors about names that have no address. A name may get one later, such as that of a pod
// which has just been started: callers that can wait should ask again.
var ErrUnresolved = errors.New("the name has no address")

// Interface is a network interface of this machine.
type Interface struct {
	Name         string
	Index        int
	Up, Loopback bool
	Addrs        []netip.Addr
}

// Machine is where the answers come from. What is nil is asked of the real machine, so that the zero value is that.
type Machine struct {
	// Resolve returns the addresses of a name, at least one or an error.
	Resolve func(ctx context.Context, name string) ([]netip.Addr, error)
	// Interfaces lists the network interfaces.
	Interfaces func() ([]Interface, error)
	// Hostname is what this machine calls itself.
	Hostname func() (string, error)
}

// Ours is Machine.Ours of the real machine.
func Ours(ctx context.Context, host string) (addrs []netip.Addr, local bool, err error) {
	return Machine{}.Ours(ctx, host)
}

// All returns the addresses of this machine's interfaces that are up, nil where they cannot be listed.
func All() []netip.Addr {
	ifaces, err := Machine{}.interfaces()
	if err != nil {
		return nil
	}
	return everyAddr(ifaces)
}

// OfInterface is Machine.OfInterface of the real machine.
func OfInterface(name string) (netip.Addr, error) { return Machine{}.OfInterface(name) }

// Ours resolves host, a name or an address, and reports whether one of its addresses is this machine's. If so it
// returns those that are, to listen on; else all, to connect to. Loopback addresses come last.
//
// A machine often knows its own name by a loopback address only (Debian writes 127.0.1.1 into /etc/hosts), or has none
// for it at all, while the others find it by DNS. Then the answer is every address that this machine has.
//
// Errors about names without an address hold ErrUnresolved.
func (m Machine) Ours(ctx context.Context, host string) (addrs []netip.Addr, local bool, err error) {
	ifaces, err := m.interfaces()
	if err != nil {
		return nil, false, err
	}
	known, named, err := m.addresses(ctx, host)
	if err != nil {
		if !errors.Is(err, ErrUnresolved) || !m.isHostname(host) {
			return nil, false, err
		}
		return everyAddr(ifaces), true, nil
	}
	var ours []netip.Addr
	for i, addr := range known {
		own, ok := find(ifaces, addr)
		if ok {
			ours = append(ours, own)
			known[i] = own
		}
	}
	switch {
	case len(ours) == 0:
		return sorted(known), false, nil
	case named && !slices.ContainsFunc(ours, func(a netip.Addr) bool { return !a.IsLoopback() }):
		return sorted(append(everyAddr(ifaces), ours...)), true, nil
	}
	return sorted(ours), true, nil
}

// addresses returns what host stands for, and whether it is a name that other machines may know by other addresses.
func (m Machine) addresses(ctx context.Context, host string) (addrs []netip.Addr, named bool, err error) {
	if host == "" {
		return nil, false, errors.New("cannot resolve an empty host name")
	}
	if addr, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{addr.Unmap()}, false, nil
	}
	if isLocalhost(host) { // the same everywhere (RFC 6761), and not worth a question to a name server
		return []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}, false, nil
	}
	resolve := m.Resolve
	if resolve == nil {
		resolve = func(ctx context.Context, name string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", name)
		}
	}
	found, err := resolve(ctx, host)
	if ctx.Err() != nil {
		return nil, false, fmt.Errorf("cannot resolve %q: %w", host, context.Cause(ctx))
	}
	if err != nil {
		return nil, false, fmt.Errorf("cannot resolve %q: %w (%v)", host, ErrUnresolved, reason(err))
	}
	for _, addr := range found {
		addrs = append(addrs, addr.Unmap())
	}
	if len(addrs) == 0 {
		return nil, false, fmt.Errorf("cannot resolve %q: %w", host, ErrUnresolved)
	}
	return addrs, true, nil
}

// reason is a resolver's error without what the caller says itself.
func reason(err error) string {
	if dns, ok := errors.AsType[*net.DNSError](err); ok {
		if dns.Server != "" {
			return dns.Err + " at " + dns.Server
		}
		return dns.Err
	}
	return err.Error()
}

func isLocalhost(host string) bool {
	name := strings.ToLower(strings.TrimSuffix(host, "."))
	return name == "localhost" || strings.HasSuffix(name, ".localhost")
}

// isHostname reports whether host is this machine's own name, with or without its domain.
func (m Machine) isHostname(host string) bool {
	hostname := m.Hostname
	if hostname == nil {
		hostname = os.Hostname
	}
	own, err := hostname()
	if err != nil || own == "" {
		return false
	}
	host, own = strings.ToLower(strings.TrimSuffix(host, ".")), strings.ToLower(own)
	short, _, _ := strings.Cut(own, ".")
	return host == own || host == short
}

// find returns addr as an interface has it, with its zone where it needs one, and whether one has it. Loopback
// addresses are every machine's own, listed or not: all of 127.0.0.0/8 is served by lo. So is the unspecified address.
func find(ifaces []Interface, addr netip.Addr) (netip.Addr, bool) {
	if addr.IsLoopback() || addr.IsUnspecified() {
		return addr.WithZone(""), true
	}
	for _, i := range ifaces {
		if addr.Zone() != "" && addr.Zone() != i.Name && addr.Zone() != strconv.Itoa(i.Index) {
			continue
		}
		if own := slices.IndexFunc(i.Addrs, func(a netip.Addr) bool { return a.WithZone("") == addr.WithZone("") }); own >= 0 {
			return i.zoned(addr), true
		}
	}
	return addr, false
}

// zoned returns addr with this interface as zone, where addr needs one.
func (i Interface) zoned(addr netip.Addr) netip.Addr {
	if addr.Is6() && addr.IsLinkLocalUnicast() {
		return addr.WithZone(i.Name)
	}
	return addr.WithZone("")
}

// everyAddr returns the addresses of interfaces that are up, the most useful first. Link-local ones are among them only
// where there are no others.
func everyAddr(ifaces []Interface) []netip.Addr {
	var addrs []netip.Addr
	for _, i := range ifaces {
		if !i.Up {
			continue
		}
		for _, a := range i.Addrs {
			addrs = append(addrs, i.zoned(a))
		}
	}
	addrs = byUse(addrs)
	if plain := slices.DeleteFunc(slices.Clone(addrs), netip.Addr.IsLinkLocalUnicast); len(plain) > 0 {
		return plain
	}
	return addrs
}

// byUse sorts the addresses of a machine by how likely others reach it there: IPv4 before IPv6, then loopback, then
// link-local. Those of one kind keep their order.
func byUse(addrs []netip.Addr) []netip.Addr {
	kind := func(a netip.Addr) int {
		switch {
		case a.IsLinkLocalUnicast() && a.Is6():
			return 5
		case a.IsLinkLocalUnicast():
			return 4
		case a.IsLoopback() && a.Is6():
			return 3
		case a.IsLoopback():
			return 2
		case a.Is6():
			return 1
		}
		return 0
	}
	slices.SortStableFunc(addrs, func(a, b netip.Addr) int { return cmp.Compare(kind(a), kind(b)) })
	return addrs
}

// sorted puts loopback addresses last, leaves the order as it was otherwise, and drops what is there twice.
func sorted(addrs []netip.Addr) []netip.Addr {
	var out []netip.Addr
	for _, loopback := range []bool{false, true} {
		for _, a := range addrs {
			if a.IsLoopback() == loopback && !slices.Contains(out, a) {
				out = append(out, a)
			}
		}
	}
	return out
}

// OfInterface returns the address of a network interface by which others most likely reach this machine: IPv4 before
// IPv6, link-local addresses only where there are no others, IPv6 ones with their zone. Errors list the interfaces
// there are.
func (m Machine) OfInterface(name string) (netip.Addr, error) {
	ifaces, err := m.interfaces()
	if err != nil {
		return netip.Addr{}, err
	}
	index := slices.IndexFunc(ifaces, func(i Interface) bool { return i.Name == name })
	if index < 0 {
		return netip.Addr{}, fmt.Errorf("cannot find the network interface %q: there are %s", name, list(ifaces))
	}
	i := ifaces[index]
	switch {
	case !i.Up:
		return netip.Addr{}, fmt.Errorf("cannot use the network interface %q: it is down; there are %s", name, list(ifaces))
	case len(i.Addrs) == 0:
		return netip.Addr{}, fmt.Errorf("cannot use the network interface %q: it has no address; there are %s", name, list(ifaces))
	}
	return i.zoned(byUse(slices.Clone(i.Addrs))[0]), nil
}

// InterfaceWith is Machine.InterfaceWith of the real machine.
func InterfaceWith(ctx context.Context, host string) (string, error) {
	return Machine{}.InterfaceWith(ctx, host)
}

// InterfaceWith returns the name of this machine's network interface that has an address of host, a name or an address.
// Errors list the interfaces there are.
func (m Machine) InterfaceWith(ctx context.Context, host string) (string, error) {
	addrs, local, err := m.Ours(ctx, host)
	if err != nil {
		return "", err
	}
	ifaces, err := m.interfaces()
	if err != nil {
		return "", err
	}
	for _, addr := range addrs {
		for _, i := range ifaces {
			if local && slices.ContainsFunc(i.Addrs, func(a netip.Addr) bool { return i.zoned(a) == addr }) {
				return i.Name, nil
			}
		}
	}
	return "", fmt.Errorf("cannot find the network interface with the address %s: there are %s", host, list(ifaces))
}

// longestList is how many interfaces an error lists: a host of containers has hundreds, none of them meant.
const longestList = 16

func list(ifaces []Interface) string {
	var items []string
	for _, i := range ifaces {
		var about []string
		if !i.Up {
			about = append(about, "down")
		}
		for _, a := range i.Addrs {
			about = append(about, a.WithZone("").String())
		}
		if len(about) == 0 {
			about = append(about, "no address")
		}
		items = append(items, fmt.Sprintf("%s (%s)", i.Name, strings.Join(about, ", ")))
	}
	switch {
	case len(items) == 0:
		return "none"
	case len(items) > longestList:
		items = append(items[:longestList], fmt.Sprintf("%d more", len(items)-longestList))
	}
	return strings.Join(items, ", ")
}

func (m Machine) interfaces() ([]Interface, error) {
	if m.Interfaces != nil {
		return m.Interfaces()
	}
	found, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("cannot list the network interfaces: %w", err)
	}
	ifaces := make([]Interface, 0, len(found))
	for _, f := range found {
		i := Interface{Name: f.Name, Index: f.Index, Up: f.Flags&net.FlagUp != 0, Loopback: f.Flags&net.FlagLoopback != 0}
		addrs, err := f.Addrs()
		if err != nil {
			continue // it has gone since it was listed
		}
		for _, a := range addrs {
			if ipnet, ok := a.(*net.IPNet); ok {
				if addr, ok := netip.AddrFromSlice(ipnet.IP); ok {
					i.Addrs = append(i.Addrs, i.zoned(addr.Unmap()))
				}
			}
		}
		ifaces = append(ifaces, i)
	}
	return ifaces, nil
}

// discard is the port that stands in where none is known. No packet is sent to it.
const discard = 9

// ToReach returns the address from which this machine would reach endpoint, by its routes: what the other side sees, as
// long as nothing in between translates addresses. Nothing is sent, and nobody need listen. The source of a loopback
// address is a loopback address.
func ToReach(endpoint netip.AddrPort) (netip.Addr, error) {
	addr := endpoint.Addr().Unmap()
	switch {
	case !addr.IsValid() || addr.IsUnspecified():
		return netip.Addr{}, fmt.Errorf("cannot find a route to %s: it is no machine's address", addr)
	case addr.Is6() && addr.IsLinkLocalUnicast() && addr.Zone() == "":
		return netip.Addr{}, fmt.Errorf("cannot find a route to %s: a link-local address needs its interface, as in %s%%eth0", addr, addr)
	}
	port := endpoint.Port()
	if port == 0 {
		port = discard
	}
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, port)))
	if err != nil {
		if errno, ok := errors.AsType[syscall.Errno](err); ok {
			err = errno // the rest repeats the address
		}
		return netip.Addr{}, fmt.Errorf("cannot find a route to %s: %w", addr, err)
	}
	defer func() { _ = conn.Close() }()
	local, ok := conn.LocalAddr().(*net.UDPAddr)
	if !ok {
		return netip.Addr{}, fmt.Errorf("cannot find a route to %s: the socket has no address", addr)
	}
	source := local.AddrPort().Addr().Unmap()
	if !source.IsLinkLocalUnicast() {
		source = source.WithZone("")
	}
	return source, nil
}

// elsewhere is an address that is nobody's (RFC 5737): the way there is the one to other machines.
var elsewhere = netip.MustParseAddrPort("192.0.2.1:9")

// Outward returns the address by which this machine goes to others, "" where there is no way to them. Nothing is sent.
func Outward() string {
	addr, err := ToReach(elsewhere)
	if err != nil {
		return ""
	}
	return addr.String()
}
