package c10d

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"math"
	"time"
	"unicode/utf8"

	"muster/internal/pickle"
)

// NoState is what stands in the store before anybody wrote a state: the base64 of "canimadam". Every agent of upstream
// compare-and-sets it into the missing key when it starts (c10d_rendezvous_backend.py of 2.15.0).
const NoState = "Y2FuaW1hZGFt"

// Attributes of our own in the state. Append only: agents of an older muster carry them along.
const (
	attrRanks      = "muster_ranks"
	attrRanksRound = "muster_ranks_round"
)

// Encode returns what to put into the store for s: the base64 of a pickle of protocol 4, which Python 3.4 and newer
// read. Equal states give equal bytes. It fails for what Python cannot hold: times outside the years 1 to 9999, and
// addresses that are not UTF-8.
func Encode(s *State) ([]byte, error) {
	p, err := MarshalPickle(s)
	if err != nil {
		return nil, err
	}
	return base64.StdEncoding.AppendEncode(make([]byte, 0, base64.StdEncoding.EncodedLen(len(p))), p), nil
}

// MarshalPickle returns the pickle in Encode's answer.
func MarshalPickle(s *State) ([]byte, error) {
	// Upstream's size for a node, and what its state has besides.
	w := pickler{buf: make([]byte, 0, 1024+128*len(s.LastHeartbeats)), fqdn: s.FQDN}
	w.order = s.inOrder()
	w.nodes = make([]uint32, len(w.order))
	w.buf = append(w.buf, pickle.OpProto, 4)
	w.class(nameState)
	w.buf = append(w.buf, pickle.OpEmptyTuple, pickle.OpNewObj, pickle.OpEmptyDict, pickle.OpMark)
	w.str("round")
	w.integer(int64(s.Round))
	w.str("complete")
	w.boolean(s.Complete)
	w.str("deadline")
	if s.Deadline.IsZero() {
		w.buf = append(w.buf, pickle.OpNone)
	} else {
		w.datetime(s.Deadline, s.Naive)
	}
	w.str("closed")
	w.boolean(s.Closed)
	w.str("participants")
	w.ranks(s.Participants)
	w.str("wait_list")
	w.set(s.WaitList)
	w.str("redundancy_list") // 1.13 ignores it, 2.3 and newer fail without
	w.set(s.RedundancyList)
	w.str("last_heartbeats")
	w.buf = append(w.buf, pickle.OpEmptyDict, pickle.OpMark)
	for i, n := range w.order {
		if stamp, ok := s.LastHeartbeats[n]; ok {
			w.node(i)
			w.datetime(stamp, s.Naive)
		}
	}
	w.buf = append(w.buf, pickle.OpSetItems)
	if s.RanksRound >= 0 {
		w.str(attrRanksRound)
		w.integer(int64(s.RanksRound))
		w.str(attrRanks)
		w.ranks(s.Ranks)
	}
	for _, a := range s.unknown {
		w.str(a.name)
		w.value(a.value)
	}
	w.buf = append(w.buf, pickle.OpSetItems, pickle.OpBuild, pickle.OpStop)
	return w.buf, w.err
}

// pickler writes values. It uses the memo for what a state repeats: classes, attribute names and nodes; with it a node
// takes as many bytes as upstream's pickle spends on it.
type pickler struct {
	buf   []byte
	memo  uint32 // how many values the memo holds
	order []Node // all nodes of the state
	// The memo's number plus 1, 0 of what was not written yet: of names, of nodes by their place in order, and of
	// timezone.utc.
	names [len(names)]uint32
	nodes []uint32
	utc   uint32
	fqdn  bool
	err   error
}

// again writes a reference to what the memo holds.
func (w *pickler) again(at uint32) {
	if at <= math.MaxUint8 {
		w.buf = append(w.buf, pickle.OpBinGet, byte(at))
		return
	}
	w.buf = binary.LittleEndian.AppendUint32(append(w.buf, pickle.OpLongBinGet), at)
}

// memoize keeps what was written last, and returns its number plus 1.
func (w *pickler) memoize() uint32 {
	w.buf = append(w.buf, pickle.OpMemoize)
	w.memo++
	return w.memo
}

// What a pickle names again and again: a class by module and name, an attribute by name only.
const (
	nameState = iota
	nameNode
	nameTime
	nameZone
	nameDelta
	nameFQDN
	nameAddr
	namePID
	nameLocalID
)

var names = [...]struct{ module, name string }{
	nameState: {upstreamModule, "_RendezvousState"},
	nameNode:  {upstreamModule, "_NodeDesc"},
	nameTime:  {"datetime", "datetime"},
	nameZone:  {"datetime", "timezone"},
	nameDelta: {"datetime", "timedelta"},
	nameFQDN:  {name: "fqdn"}, nameAddr: {name: "addr"}, namePID: {name: "pid"}, nameLocalID: {name: "local_id"},
}

func (w *pickler) class(i int) {
	if w.names[i] > 0 {
		w.again(w.names[i] - 1)
		return
	}
	w.buf = append(w.buf, pickle.OpGlobal)
	w.buf = append(append(w.buf, names[i].module...), '\n')
	w.buf = append(append(w.buf, names[i].name...), '\n')
	w.names[i] = w.memoize()
}

func (w *pickler) key(i int) {
	if w.names[i] > 0 {
		w.again(w.names[i] - 1)
		return
	}
	w.str(names[i].name)
	w.names[i] = w.memoize()
}

func (w *pickler) str(s string) {
	if !utf8.ValidString(s) && w.err == nil {
		w.err = fmt.Errorf("cannot write text %q: it is not UTF-8", s)
	}
	if len(s) <= math.MaxUint8 {
		w.buf = append(w.buf, pickle.OpShortBinUnicode, byte(len(s)))
	} else {
		w.buf = binary.LittleEndian.AppendUint32(append(w.buf, pickle.OpBinUnicode), uint32(len(s)))
	}
	w.buf = append(w.buf, s...)
}

func (w *pickler) boolean(b bool) {
	if b {
		w.buf = append(w.buf, pickle.OpNewTrue)
	} else {
		w.buf = append(w.buf, pickle.OpNewFalse)
	}
}

func (w *pickler) integer(i int64) {
	switch {
	case i >= 0 && i <= math.MaxUint8:
		w.buf = append(w.buf, pickle.OpBinInt1, byte(i))
	case i >= 0 && i <= math.MaxUint16:
		w.buf = binary.LittleEndian.AppendUint16(append(w.buf, pickle.OpBinInt2), uint16(i))
	case i >= math.MinInt32 && i <= math.MaxInt32:
		w.buf = binary.LittleEndian.AppendUint32(append(w.buf, pickle.OpBinInt), uint32(i))
	default:
		w.buf = binary.LittleEndian.AppendUint64(append(w.buf, pickle.OpLong1, 8), uint64(i))
	}
}

// node writes the node at this place of the order, or a reference to it.
func (w *pickler) node(at int) {
	if w.nodes[at] > 0 {
		w.again(w.nodes[at] - 1)
		return
	}
	w.wholeNode(w.order[at])
	w.nodes[at] = w.memoize()
}

func (w *pickler) wholeNode(n Node) {
	w.class(nameNode)
	w.buf = append(w.buf, pickle.OpEmptyTuple, pickle.OpNewObj, pickle.OpEmptyDict, pickle.OpMark)
	if w.fqdn {
		w.key(nameFQDN)
	} else {
		w.key(nameAddr)
	}
	w.str(n.Addr)
	w.key(namePID)
	w.integer(n.PID)
	w.key(nameLocalID)
	w.integer(n.LocalID)
	w.buf = append(w.buf, pickle.OpSetItems, pickle.OpBuild)
}

// datetime writes t in UTC, in whole microseconds: the ten bytes of datetime.__reduce__.
func (w *pickler) datetime(t time.Time, naive bool) {
	t = t.UTC()
	if y := t.Year(); (y < 1 || y > 9999) && w.err == nil {
		w.err = fmt.Errorf("cannot write time: year is %d, limits are 1 and 9999", y)
	}
	w.class(nameTime)
	micro := t.Nanosecond() / 1000
	w.buf = append(w.buf, pickle.OpShortBinBytes, 10, byte(t.Year()>>8), byte(t.Year()), byte(t.Month()), byte(t.Day()),
		byte(t.Hour()), byte(t.Minute()), byte(t.Second()), byte(micro>>16), byte(micro>>8), byte(micro))
	if naive {
		w.buf = append(w.buf, pickle.OpTuple1, pickle.OpReduce)
		return
	}
	if w.utc == 0 {
		w.class(nameZone)
		w.class(nameDelta)
		w.buf = append(w.buf, pickle.OpBinInt1, 0, pickle.OpBinInt1, 0, pickle.OpBinInt1, 0, pickle.OpTuple3, pickle.OpReduce,
			pickle.OpTuple1, pickle.OpReduce)
		w.utc = w.memoize()
	} else {
		w.again(w.utc - 1)
	}
	w.buf = append(w.buf, pickle.OpTuple2, pickle.OpReduce)
}

func (w *pickler) ranks(m map[Node]int) {
	w.buf = append(w.buf, pickle.OpEmptyDict, pickle.OpMark)
	if len(m) > 0 {
		for i, n := range w.order {
			if rank, ok := m[n]; ok {
				w.node(i)
				w.integer(int64(rank))
			}
		}
	}
	w.buf = append(w.buf, pickle.OpSetItems)
}

func (w *pickler) set(s Nodes) {
	w.buf = append(w.buf, pickle.OpEmptySet, pickle.OpMark)
	if len(s) > 0 {
		for i, n := range w.order {
			if s.Has(n) {
				w.node(i)
			}
		}
	}
	w.buf = append(w.buf, pickle.OpAddItems)
}

// value writes a value of an unknown attribute. Depth and size were bounded when it was read.
func (w *pickler) value(v any) {
	switch v := v.(type) {
	case nil:
		w.buf = append(w.buf, pickle.OpNone)
	case bool:
		w.boolean(v)
	case int64:
		w.integer(v)
	case float64:
		w.buf = binary.BigEndian.AppendUint64(append(w.buf, pickle.OpBinFloat), math.Float64bits(v))
	case string:
		w.str(v)
	case []byte:
		w.buf = binary.LittleEndian.AppendUint32(append(w.buf, pickle.OpBinBytes), uint32(len(v)))
		w.buf = append(w.buf, v...)
	case Node:
		w.wholeNode(v)
	case pyTime:
		w.datetime(v.t, v.naive)
	case pickle.Tuple:
		w.buf = append(w.buf, pickle.OpMark)
		w.values(v)
		w.buf = append(w.buf, pickle.OpTuple)
	case *pickle.List:
		w.buf = append(w.buf, pickle.OpEmptyList, pickle.OpMark)
		w.values(v.Items)
		w.buf = append(w.buf, pickle.OpAppends)
	case *pickle.Set:
		w.buf = append(w.buf, pickle.OpEmptySet, pickle.OpMark)
		w.values(v.Items)
		w.buf = append(w.buf, pickle.OpAddItems)
	case *pickle.Dict:
		w.buf = append(w.buf, pickle.OpEmptyDict, pickle.OpMark)
		for _, p := range v.Pairs {
			w.value(p.Key)
			w.value(p.Value)
		}
		w.buf = append(w.buf, pickle.OpSetItems)
	default:
		panic(fmt.Sprintf("internal error: a %T in an unknown attribute", v))
	}
}

func (w *pickler) values(vs []any) {
	for _, v := range vs {
		w.value(v)
	}
}
