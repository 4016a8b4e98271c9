package topology

import "net/netip"

// Len returns how many nodes the file names.
func (t *Topology) Len() int {
	if t == nil {
		return 0
	}
	return len(t.nodes)
}

// Switches returns the names of the switches above the node that has these addresses, the access switch first; see
// access.
func (t *Topology) Switches(addrs ...netip.Addr) []string {
	var names []string
	for s := t.access(addrs); s != nil; s = s.up {
		names = append(names, s.name)
	}
	return names
}
