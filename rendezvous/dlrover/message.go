package dlrover

import (
	"encoding/binary"
	"fmt"
	"math"

	"muster/internal/pickle"
)

// module is the one that the master's unpickler takes classes from, and ours.
const module = "dlrover.python.common.comm"

// attr is an attribute of a message.
type attr struct {
	name  string
	value any // nil, bool, int, int64, float64, string, []byte, []any, dict, message
}

// message is an instance of a dataclass of the module.
type message struct {
	class string
	attrs []attr
}

// dict is a dict.
type dict []pickle.Pair

// pickled writes a message as Python's protocol 3, which every Python reads: a dataclass is made without arguments, and
// its attributes are set.
func pickled(m message) []byte {
	return append(appendValue([]byte{pickle.OpProto, 3}, m), pickle.OpStop)
}

func appendValue(b []byte, v any) []byte {
	switch v := v.(type) {
	case nil:
		return append(b, pickle.OpNone)
	case bool:
		if v {
			return append(b, pickle.OpNewTrue)
		}
		return append(b, pickle.OpNewFalse)
	case int:
		return appendInt(b, int64(v))
	case int64:
		return appendInt(b, v)
	case float64:
		return binary.BigEndian.AppendUint64(append(b, pickle.OpBinFloat), math.Float64bits(v))
	case string:
		b = binary.LittleEndian.AppendUint32(append(b, pickle.OpBinUnicode), uint32(len(v)))
		return append(b, v...)
	case []byte:
		b = binary.LittleEndian.AppendUint32(append(b, pickle.OpBinBytes), uint32(len(v)))
		return append(b, v...)
	case []any:
		b = append(b, pickle.OpEmptyList, pickle.OpMark)
		for _, item := range v {
			b = appendValue(b, item)
		}
		return append(b, pickle.OpAppends)
	case []attr: // of a message
		b = append(b, pickle.OpEmptyDict, pickle.OpMark)
		for _, a := range v {
			b = appendValue(appendValue(b, a.name), a.value)
		}
		return append(b, pickle.OpSetItems)
	case dict:
		b = append(b, pickle.OpEmptyDict, pickle.OpMark)
		for _, p := range v {
			b = appendValue(appendValue(b, p.Key), p.Value)
		}
		return append(b, pickle.OpSetItems)
	case message:
		b = append(b, pickle.OpGlobal)
		b = append(b, module+"\n"+v.class+"\n"...)
		b = append(b, pickle.OpEmptyTuple, pickle.OpNewObj)
		return append(appendValue(b, v.attrs), pickle.OpBuild)
	}
	panic(fmt.Sprintf("internal error: a %T in a message", v)) // messages are written in this package alone
}

func appendInt(b []byte, n int64) []byte {
	if n == int64(int32(n)) {
		return binary.LittleEndian.AppendUint32(append(b, pickle.OpBinInt), uint32(int32(n)))
	}
	return binary.LittleEndian.AppendUint64(append(b, pickle.OpLong1, 8), uint64(n))
}

// answers are the classes that a pickle of the master may name.
var answers = func() (all []*pickle.Class) {
	for _, name := range []string{
		"RendezvousState", "KeyValuePair", "KeyValuePairs", "HeartbeatResponse", "DiagnosisAction", "PreCheckResponse", "ElasticRunConfig",
		"NetworkCheckResult", "RunningNodes", "NodeMeta", "ParallelConfig", "DataLoaderConfig", "OptimizerConfig", "BaseResponse",
	} {
		all = append(all, &pickle.Class{Module: module, Name: name})
	}
	return all
}()

// object is a message of the master that was read.
type object struct {
	class string
	attrs map[string]any
}

// unpickled reads a message of the master, which must be of a class.
func unpickled(data []byte, class string) (object, error) {
	v, err := pickle.Read(data, answers...)
	if err != nil {
		return object{}, err
	}
	return asObject(v, class)
}

func asObject(v any, class string) (object, error) {
	o, is := v.(*pickle.Object)
	if !is || o.Class.Name != class {
		return object{}, fmt.Errorf("it is %s, want a %s", pickle.Describe(v), class)
	}
	attrs := make(map[string]any, len(o.Attrs))
	for _, p := range o.Attrs {
		if name, is := p.Key.(string); is {
			attrs[name] = p.Value
		}
	}
	return object{class, attrs}, nil
}

func (o object) wrong(name, want string) error {
	return fmt.Errorf("%s of its %s is %s, want %s", name, o.class, pickle.Describe(o.attrs[name]), want)
}

// text, number and bytes return an attribute of that type.
func (o object) text(name string) (string, error) {
	if s, is := o.attrs[name].(string); is {
		return s, nil
	}
	return "", o.wrong(name, "a str")
}

func (o object) number(name string) (int, error) {
	if n, is := o.attrs[name].(int64); is && n == int64(int32(n)) {
		return int(n), nil
	}
	return 0, o.wrong(name, "an int of 32 bits")
}

func (o object) bytes(name string) ([]byte, error) {
	switch v := o.attrs[name].(type) {
	case []byte:
		return v, nil
	case string: // agents of DLRover may put a str there
		return []byte(v), nil
	}
	return nil, o.wrong(name, "bytes")
}

// list returns the items of an attribute.
func (o object) list(name string) ([]any, error) {
	l, is := o.attrs[name].(*pickle.List)
	if !is {
		return nil, o.wrong(name, "a list")
	}
	if len(l.Items) > maxPlaces {
		return nil, fmt.Errorf("%s of its %s has %d items, limit is %d", name, o.class, len(l.Items), maxPlaces)
	}
	return l.Items, nil
}

// dict returns the items of an attribute in order; a key that comes twice has its last value, as in Python.
func (o object) dict(name string) ([]pickle.Pair, error) {
	d, is := o.attrs[name].(*pickle.Dict)
	if !is {
		return nil, o.wrong(name, "a dict")
	}
	at := map[any]int{}
	var items []pickle.Pair
	for _, p := range d.Pairs {
		switch p.Key.(type) {
		case string, int64:
		default:
			return nil, fmt.Errorf("a key in %s of its %s is %s, want a str or an int", name, o.class, pickle.Describe(p.Key))
		}
		if i, twice := at[p.Key]; twice {
			items[i] = p
			continue
		}
		at[p.Key] = len(items)
		items = append(items, p)
	}
	return items, nil
}
