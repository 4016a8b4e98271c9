package c10d

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"math"
	"time"

	"muster/internal/pickle"
)

// maxPickle is the most that the store's limit of 8 MiB for a value leaves after base64: room for 70,000 nodes.
const maxPickle = 8 << 20 / 4 * 3

// maxAddr is the longest address of a node in bytes; DNS allows 253.
const maxAddr = 255

// Decode reads what stands in the store, and returns nil where that says that nobody has written a state yet.
//
// It reads what pickle.Read does. Globals other than the handful of a state, and whatever else PyTorch's agents do not
// write, are errors, of type *pickle.Error where an opcode is to blame.
func Decode(text []byte) (*State, error) {
	if string(text) == NoState {
		return nil, nil
	}
	if n := base64.StdEncoding.DecodedLen(len(text)); n > maxPickle {
		return nil, fmt.Errorf("cannot read rendezvous state: %d bytes, limit is %d", n, maxPickle)
	}
	if bytes.ContainsAny(text, "\r\n") { // Go skips them, upstream never writes them
		return nil, fmt.Errorf("cannot read rendezvous state: base64 with line breaks")
	}
	p, err := base64.StdEncoding.Strict().AppendDecode(nil, text)
	if err != nil {
		return nil, fmt.Errorf("cannot read rendezvous state: %w", err)
	}
	return UnmarshalPickle(p)
}

// UnmarshalPickle reads the pickle in Decode's text.
func UnmarshalPickle(p []byte) (*State, error) {
	v, err := pickle.Read(p, classes...)
	if err != nil {
		return nil, err
	}
	o, ok := v.(*pickle.Object)
	if !ok || o.Class != classState {
		return nil, fmt.Errorf("cannot read rendezvous state: it is %s", pickle.Describe(v))
	}
	d := decoder{state: NewState(), nodes: map[*pickle.Object]Node{}, keeper: keeper{left: len(p)}}
	for _, a := range o.Attrs {
		name, ok := a.Key.(string)
		if !ok {
			return nil, fmt.Errorf("cannot read rendezvous state: attribute is named by %s", pickle.Describe(a.Key))
		}
		if err := d.attribute(name, a.Value); err != nil {
			return nil, fmt.Errorf("cannot read rendezvous state: attribute %.100q: %w", name, err)
		}
	}
	s := d.state
	for _, name := range []string{"round", "complete", "closed", "participants", "wait_list", "last_heartbeats"} {
		if !d.seen[name] {
			return nil, fmt.Errorf("cannot read rendezvous state: attribute %q is missing", name)
		}
	}
	// Only a kind that every part of the state agrees on is a kind. An empty state has none: it is the newer one. Who
	// names addresses as 1.13 does writes times as 1.13 does.
	s.FQDN = d.fqdn > 0 && d.addr == 0
	s.Naive = (d.naive > 0 || s.FQDN) && d.aware == 0
	if err := s.Check(); err != nil {
		return nil, fmt.Errorf("cannot read rendezvous state: %w", err)
	}
	return s, nil
}

type decoder struct {
	state        *State
	seen         map[string]bool
	nodes        map[*pickle.Object]Node // those that were read: an object is named in several places
	keeper       keeper
	naive, aware int // how many times were of each kind
	fqdn, addr   int // how many nodes were of each kind
}

func (d *decoder) attribute(name string, v any) (err error) {
	s := d.state
	// No agent writes one twice, and each time could name the same million nodes for a few bytes.
	if d.seen[name] {
		return fmt.Errorf("stands twice")
	}
	if d.seen == nil {
		d.seen = map[string]bool{}
	}
	d.seen[name] = true
	switch name {
	case "round":
		s.Round, err = small(v)
	case "complete":
		s.Complete, err = boolean(v)
	case "deadline":
		s.Deadline = time.Time{}
		if v != nil {
			s.Deadline, err = d.time(v)
		}
	case "closed":
		s.Closed, err = boolean(v)
	case "participants":
		s.Participants, err = d.ranks(v)
	case "wait_list":
		s.WaitList, err = d.set(v)
	case "redundancy_list":
		s.RedundancyList, err = d.set(v)
	case "last_heartbeats":
		s.LastHeartbeats, err = d.times(v)
	case attrRanks:
		s.Ranks, err = d.ranks(v)
	case attrRanksRound:
		if s.RanksRound, err = small(v); err == nil && s.RanksRound < 0 {
			err = fmt.Errorf("is %d, want at least 0", s.RanksRound)
		}
	default:
		err = d.unknown(name, v)
	}
	return err
}

func (d *decoder) unknown(name string, v any) error {
	kept, err := d.keeper.keep(v, 0)
	if err != nil {
		return err
	}
	d.state.unknown = append(d.state.unknown, attribute{name, kept})
	return nil
}

func (d *decoder) node(v any) (Node, error) {
	o, ok := v.(*pickle.Object)
	if !ok || o.Class != classNode {
		return Node{}, fmt.Errorf("holds %s, want a _NodeDesc", pickle.Describe(v))
	}
	if n, read := d.nodes[o]; read {
		return n, nil
	}
	n, fqdn, err := nodeOf(o)
	if err != nil {
		return Node{}, err
	}
	if fqdn {
		d.fqdn++
	} else {
		d.addr++
	}
	d.nodes[o] = n
	return n, nil
}

// nodeOf reads a _NodeDesc, and reports whether its address is named as in 1.13 only. The class has three fields, so a
// few more is all that it may carry: any number of nodes may share one dict.
func nodeOf(o *pickle.Object) (n Node, fqdn bool, err error) {
	const most = 8
	if len(o.Attrs) > most {
		return Node{}, false, fmt.Errorf("_NodeDesc has %d attributes, limit is %d", len(o.Attrs), most)
	}
	var old, addr, pid, local any
	for _, a := range o.Attrs {
		switch a.Key {
		case "fqdn":
			old = a.Value
		case "addr":
			addr = a.Value
		case "pid":
			pid = a.Value
		case "local_id":
			local = a.Value
		}
	}
	if addr == nil {
		addr, fqdn = old, true
	}
	var ok1, ok2, ok3 bool
	n.Addr, ok1 = addr.(string)
	n.PID, ok2 = pid.(int64)
	n.LocalID, ok3 = local.(int64)
	if !ok1 || !ok2 || !ok3 {
		return Node{}, false, fmt.Errorf("_NodeDesc has address %s, pid %s, local_id %s; want a str and two int",
			pickle.Describe(addr), pickle.Describe(pid), pickle.Describe(local))
	}
	if len(n.Addr) > maxAddr {
		return Node{}, false, fmt.Errorf("_NodeDesc has an address of %d bytes, limit is %d", len(n.Addr), maxAddr)
	}
	return n, fqdn, nil
}

func (d *decoder) time(v any) (time.Time, error) {
	t, ok := v.(pyTime)
	if !ok {
		return time.Time{}, fmt.Errorf("holds %s, want a datetime", pickle.Describe(v))
	}
	if t.naive {
		d.naive++
	} else {
		d.aware++
	}
	return t.t, nil
}

func (d *decoder) ranks(v any) (map[Node]int, error) {
	dict, ok := v.(*pickle.Dict)
	if !ok {
		return nil, fmt.Errorf("is %s, want a dict", pickle.Describe(v))
	}
	m := make(map[Node]int, len(dict.Pairs))
	for _, p := range dict.Pairs {
		n, err := d.node(p.Key)
		if err != nil {
			return nil, err
		}
		if m[n], err = small(p.Value); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (d *decoder) times(v any) (map[Node]time.Time, error) {
	dict, ok := v.(*pickle.Dict)
	if !ok {
		return nil, fmt.Errorf("is %s, want a dict", pickle.Describe(v))
	}
	m := make(map[Node]time.Time, len(dict.Pairs))
	for _, p := range dict.Pairs {
		n, err := d.node(p.Key)
		if err != nil {
			return nil, err
		}
		if m[n], err = d.time(p.Value); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (d *decoder) set(v any) (Nodes, error) {
	set, ok := v.(*pickle.Set)
	if !ok {
		return nil, fmt.Errorf("is %s, want a set", pickle.Describe(v))
	}
	s := make(Nodes, len(set.Items))
	for _, item := range set.Items {
		n, err := d.node(item)
		if err != nil {
			return nil, err
		}
		s[n] = struct{}{}
	}
	return s, nil
}

func boolean(v any) (bool, error) {
	b, ok := v.(bool)
	if !ok {
		return false, fmt.Errorf("is %s, want a bool", pickle.Describe(v))
	}
	return b, nil
}

// small reads a round or a rank: it must fit where Python and the workers' environment expect it.
func small(v any) (int, error) {
	i, ok := v.(int64)
	if !ok {
		return 0, fmt.Errorf("holds %s, want an int", pickle.Describe(v))
	}
	if i < math.MinInt32 || i > math.MaxInt32 {
		return 0, fmt.Errorf("holds %d, want 32 bits", i)
	}
	return int(i), nil
}
