package netprobe

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// Choice is which interface a library takes for its sockets.
type Choice struct {
	Iface string
	// Addr is the address of it that peers are told, with the length of its subnet.
	Addr netip.Prefix `json:",omitzero"`
	// Speed is what the library takes it for, in Mb/s; only NCCL asks.
	Speed int `json:",omitempty"`
	// Why is the rule that chose it, Set the variable with its value if one did.
	Why string `json:",omitempty"`
	Set string `json:",omitempty"`
	// Error is why there is none: the library ends the job with something like it.
	Error string `json:",omitempty"`
}

// Lengths in NCCL's arrays: names and list entries beyond are not looked at.
const (
	ncclNameSize = 16
	ncclMaxIfs   = 16
	// ncclSpeed is for what NCCL takes an interface that tells no speed, in Mb/s.
	ncclSpeed = 10000
)

// family restricts addresses, 0 for no restriction.
type family int

const (
	anyFamily family = 0
	inet      family = 4
	inet6     family = 6
)

func (f family) takes(a netip.Addr) bool {
	return f == anyFamily || f == inet && a.Is4() || f == inet6 && a.Is6()
}

// NCCL returns the interface that NCCL takes for its first connections, and for its data where there is no RDMA. The
// rules are those of ncclFindInterfaces (read in NCCL's src/misc/socket.cc, commit 081eafaf): of the interfaces that
// run, in the order of getifaddrs, which lists all IPv4 addresses before all IPv6 ones.
func NCCL(ifaces []Interface, lookup func(string) (string, bool)) Choice {
	var fam family
	switch v, _ := lookup("NCCL_SOCKET_FAMILY"); v {
	case "AF_INET":
		fam = inet
	case "AF_INET6":
		fam = inet6
	}
	if list, _ := lookup("NCCL_SOCKET_IFNAME"); len(list) > 1 { // a shorter one is ignored
		set := "NCCL_SOCKET_IFNAME=" + list
		if c, ok := ncclFind(ifaces, list, fam); ok {
			c.Why, c.Set = "chosen by "+set, set
			return c
		}
		return Choice{Error: fmt.Sprintf("no running interface with an address matches %s", set), Set: set}
	}
	if c, ok := ncclFind(ifaces, "ib", fam); ok {
		c.Why = "its name begins with ib"
		return c
	}
	if id, _ := lookup("NCCL_COMM_ID"); len(id) > 1 {
		if c, ok := ncclSubnet(ifaces, id); ok {
			c.Set = "NCCL_COMM_ID=" + id
			c.Why = "in the subnet of " + c.Set
			return c
		}
	}
	for _, rule := range []struct{ list, why string }{
		{"^docker,lo,virbr", "the first one that runs"},
		{"docker", "nothing better runs"},
		{"lo", "nothing else runs"},
		{"virbr", "nothing else runs"},
	} {
		if c, ok := ncclFind(ifaces, rule.list, fam); ok {
			c.Why = rule.why
			return c
		}
	}
	return Choice{Error: "no interface runs that has an address"}
}

// ncclFind returns the first interface that matches a list as in NCCL_SOCKET_IFNAME: prefixes of names, whole names
// after "=", those not to take after "^".
func ncclFind(ifaces []Interface, list string, fam family) (Choice, bool) {
	list, not := strings.CutPrefix(list, "^")
	list, exact := strings.CutPrefix(list, "=")
	entries := ncclList(list)
	for _, v := range []family{inet, inet6} {
		for _, i := range ifaces {
			if !i.Running || ncclMatches(i.Name, -1, entries, exact) == not {
				continue
			}
			for _, a := range i.Addrs {
				if v.takes(a.Addr()) && fam.takes(a.Addr()) && (a.Addr().Is4() || !a.Addr().IsLoopback()) {
					return Choice{Iface: i.Name, Addr: a, Speed: speedOr(i.Speed, ncclSpeed)}, true
				}
			}
		}
	}
	return Choice{}, false
}

func speedOr(speed, otherwise int) int {
	if speed > 0 {
		return speed
	}
	return otherwise
}

// entry is an item of NCCL's lists: a name, and a port for RDMA devices, -1 for any.
type entry struct {
	name string
	port int
}

// ncclList reads a list as NCCL's parseStringList does.
func ncclList(list string) []entry {
	var entries []entry
	for item := range strings.SplitSeq(list, ",") {
		name, port, has := strings.Cut(item, ":")
		if name == "" {
			continue
		}
		e := entry{name, -1}
		if has {
			e.port = leadingNumber(port)
		}
		if entries = append(entries, e); len(entries) == ncclMaxIfs {
			break
		}
	}
	return entries
}

// leadingNumber is C's atoi, for what people write there.
func leadingNumber(text string) int {
	end := 0
	for end < len(text) && text[end] >= '0' && text[end] <= '9' {
		end++
	}
	n, err := strconv.Atoi(text[:end])
	if err != nil {
		return 0
	}
	return n
}

// ncclMatches says whether a name is in a list. An empty list has all names in it.
func ncclMatches(name string, port int, entries []entry, exact bool) bool {
	if len(entries) == 0 {
		return true
	}
	for _, e := range entries {
		matches := strings.HasPrefix(name, e.name)
		if exact {
			matches = name[:min(len(name), ncclNameSize)] == e.name[:min(len(e.name), ncclNameSize)]
		}
		if matches && (port < 0 || e.port < 0 || port == e.port) {
			return true
		}
	}
	return false
}

// ncclSubnet returns the interface in whose subnet the address of NCCL_COMM_ID is. A name there is not looked up: the
// answer may be another one where the job runs.
func ncclSubnet(ifaces []Interface, id string) (Choice, bool) {
	host, _, err := net.SplitHostPort(id)
	if err != nil {
		return Choice{}, false
	}
	root, err := netip.ParseAddr(host)
	if err != nil {
		return Choice{}, false
	}
	root = root.WithZone("").Unmap()
	for _, i := range ifaces {
		for _, a := range i.Addrs {
			if a.Masked().Contains(root) {
				return Choice{Iface: i.Name, Addr: a, Speed: speedOr(i.Speed, ncclSpeed)}, true
			}
		}
	}
	return Choice{}, false
}

// loopback is where Gloo goes when all else fails.
var loopback = netip.MustParsePrefix("127.0.0.1/8")

// Gloo returns the interface that Gloo takes: the first one of GLOO_SOCKET_IFNAME, a list of whole names, all of which
// must be there; else the one that has the first address of the machine's own name that a socket can be bound to; else
// the loopback interface. That is ProcessGroupGloo::createDefaultDevice of PyTorch on Gloo's TCP transport (read in
// gloo/transport/tcp/device.cc, commit 01309c72).
// own are the addresses of the machine's name, in the resolver's order.
func Gloo(ifaces []Interface, own []netip.Addr, lookup func(string) (string, bool)) Choice {
	if list, _ := lookup("GLOO_SOCKET_IFNAME"); len(list) > 1 {
		set := "GLOO_SOCKET_IFNAME=" + list
		var first *Choice
		for name := range strings.SplitSeq(list, ",") {
			c, why := glooNamed(ifaces, name)
			if why != "" {
				return Choice{Error: fmt.Sprintf("%s: %s", set, why), Set: set}
			}
			if first == nil {
				first = &c
			}
		}
		first.Why, first.Set = "chosen by "+set, set
		return *first
	}
	for _, addr := range own {
		addr = addr.Unmap()
		for _, i := range ifaces {
			for _, a := range i.Addrs {
				if a.Addr() == addr.WithZone("") {
					return Choice{Iface: i.Name, Addr: a, Why: "it has the address of this machine's name"}
				}
			}
		}
		if addr.Is4() && addr.IsLoopback() { // all of 127.0.0.0/8 can be bound to
			return Choice{
				Iface: ifaceOf(ifaces, loopback.Addr()), Addr: netip.PrefixFrom(addr, loopback.Bits()),
				Why: "this machine's name has a loopback address",
			}
		}
	}
	return Choice{Iface: ifaceOf(ifaces, loopback.Addr()), Addr: loopback, Why: "this machine's name has no address of its own"}
}

// glooNamed returns the interface of a name, or why it cannot be used.
func glooNamed(ifaces []Interface, name string) (c Choice, why string) {
	if name == "" {
		return c, "an empty name in the list"
	}
	if strings.ContainsAny(name[:1], "^=") {
		return c, fmt.Sprintf("there is no interface %q; ^ and = mean something to NCCL only", name)
	}
	for _, i := range ifaces {
		if i.Name != name {
			continue
		}
		for _, v := range []family{inet, inet6} { // as getifaddrs lists them
			for _, a := range i.Addrs {
				if v.takes(a.Addr()) {
					return Choice{Iface: i.Name, Addr: a}, ""
				}
			}
		}
		return c, fmt.Sprintf("the interface %q has no address", name)
	}
	return c, fmt.Sprintf("there is no interface %q", name)
}
