package c10d

import (
	"bytes"
	"fmt"
	"time"
)

// The values that a pickle of ours can hold, beyond nil, bool, int64, float64, string and []byte. Containers are
// pointers because a pickle names a container before it fills it, and may name it twice.
type (
	pyTuple []any
	pyList  struct{ items []any }
	pySet   struct{ items []any }
	pyDict  struct{ pairs []pyPair }
	pyPair  struct{ key, value any }
	// pyTime is a datetime; naive says that it has no time zone.
	pyTime struct {
		t     time.Time
		naive bool
	}
	pyDelta time.Duration
	// pyZone is a fixed offset from UTC.
	pyZone time.Duration
	// pyObject is an instance of _RendezvousState or _NodeDesc before its attributes are looked at.
	pyObject struct {
		class pyClass
		attrs []pyPair
		built bool
		read  bool // whether node holds what the attributes say: an object is named in several places
		node  Node
	}
)

// pyClass is one of the few globals that a state needs.
type pyClass int

const (
	classState pyClass = iota + 1
	classNode
	classTime
	classZone
	classDelta
	classSet
	funcEncode
)

const upstreamModule = "torch.distributed.elastic.rendezvous.dynamic_rendezvous"

// classes are the globals that may be named, and nothing else may. Protocol 2 calls builtins __builtin__, and writes
// bytes as an encoded string.
var classes = map[string]pyClass{
	upstreamModule + " _RendezvousState": classState,
	upstreamModule + " _NodeDesc":        classNode,
	"datetime datetime":                  classTime,
	"datetime timezone":                  classZone,
	"datetime timedelta":                 classDelta,
	"builtins set":                       classSet,
	"__builtin__ set":                    classSet,
	"_codecs encode":                     funcEncode,
}

// attribute is an attribute of the state that is not ours to understand. Its value is free of cycles and of sharing:
// nil, bool, int64, float64, string, []byte, Node, pyTime, pyTuple, *pyList, *pySet or *pyDict.
type attribute struct {
	name  string
	value any
}

// maxDepth bounds containers inside containers in what is kept of unknown attributes.
const maxDepth = 16

// keeper copies values of unknown attributes. A few bytes of pickle can name a container over and over, and unfold to
// any size when written without memo: so it copies no more items and bytes than the pickle has bytes.
type keeper struct{ left int }

func (k *keeper) keep(v any, depth int) (any, error) {
	k.left--
	switch v := v.(type) {
	case string:
		k.left -= len(v)
	case []byte:
		k.left -= len(v)
	}
	if k.left < 0 {
		return nil, fmt.Errorf("unfolds to more than the pickle's own size")
	}
	if depth > maxDepth {
		return nil, fmt.Errorf("is nested deeper than %d", maxDepth)
	}
	switch v := v.(type) {
	case nil, bool, int64, float64, string, pyTime:
		return v, nil
	case []byte: // is part of the pickle
		return bytes.Clone(v), nil
	case pyTuple:
		items, err := k.keepAll(v, depth)
		return pyTuple(items), err
	case *pyList:
		items, err := k.keepAll(v.items, depth)
		return &pyList{items}, err
	case *pySet:
		items, err := k.keepAll(v.items, depth)
		return &pySet{items}, err
	case *pyDict:
		pairs := make([]pyPair, len(v.pairs))
		for i, p := range v.pairs {
			key, err := k.keep(p.key, depth+1)
			if err != nil {
				return nil, err
			}
			value, err := k.keep(p.value, depth+1)
			if err != nil {
				return nil, err
			}
			pairs[i] = pyPair{key, value}
		}
		return &pyDict{pairs}, nil
	case *pyObject:
		if v.class == classNode {
			n, _, err := nodeOf(v)
			return n, err
		}
	}
	return nil, fmt.Errorf("holds %s", describe(v))
}

func (k *keeper) keepAll(in []any, depth int) ([]any, error) {
	out := make([]any, len(in))
	for i, v := range in {
		kept, err := k.keep(v, depth+1)
		if err != nil {
			return nil, err
		}
		out[i] = kept
	}
	return out, nil
}

// describe names the kind of a value in errors.
func describe(v any) string {
	switch v := v.(type) {
	case nil:
		return "None"
	case bool:
		return "a bool"
	case int64:
		return "an int"
	case float64:
		return "a float"
	case string:
		return "a str"
	case []byte:
		return "bytes"
	case pyTuple:
		return fmt.Sprintf("a tuple of %d", len(v))
	case *pyList:
		return "a list"
	case *pySet:
		return "a set"
	case *pyDict:
		return "a dict"
	case pyTime:
		return "a datetime"
	case pyDelta:
		return "a timedelta"
	case pyZone:
		return "a timezone"
	case pyClass:
		return "a class"
	case *pyObject:
		if v.class == classState {
			return "a _RendezvousState"
		}
		return "a _NodeDesc"
	}
	return fmt.Sprintf("a %T", v)
}
