package c10d

import (
	"bytes"
	"fmt"
	"time"

	"muster/internal/pickle"
)

// The values that the calls of a state make.
type (
	// pyTime is a datetime; naive says that it has no time zone.
	pyTime struct {
		t     time.Time
		naive bool
	}
	pyDelta time.Duration
	// pyZone is a fixed offset from UTC.
	pyZone time.Duration
)

// Described implements pickle.Described.
func (pyTime) Described() string  { return "a datetime" }
func (pyDelta) Described() string { return "a timedelta" }
func (pyZone) Described() string  { return "a timezone" }

const upstreamModule = "torch.distributed.elastic.rendezvous.dynamic_rendezvous"

// The classes of a state; classes are the globals that one may name.
var (
	classState = &pickle.Class{Module: upstreamModule, Name: "_RendezvousState"}
	classNode  = &pickle.Class{Module: upstreamModule, Name: "_NodeDesc"}
	classes    = []*pickle.Class{
		classState, classNode,
		{Module: "datetime", Name: "datetime", Call: callTime},
		{Module: "datetime", Name: "timezone", Call: callZone},
		{Module: "datetime", Name: "timedelta", Call: callDelta},
	}
)

// attribute is an attribute of the state that is not ours to understand. Its value is free of cycles and of sharing:
// nil, bool, int64, float64, string, []byte, Node, pyTime, pickle.Tuple, *pickle.List, *pickle.Set or *pickle.Dict.
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
	case pickle.Tuple:
		items, err := k.keepAll(v, depth)
		return pickle.Tuple(items), err
	case *pickle.List:
		items, err := k.keepAll(v.Items, depth)
		return &pickle.List{Items: items}, err
	case *pickle.Set:
		items, err := k.keepAll(v.Items, depth)
		return &pickle.Set{Items: items}, err
	case *pickle.Dict:
		pairs := make([]pickle.Pair, len(v.Pairs))
		for i, p := range v.Pairs {
			key, err := k.keep(p.Key, depth+1)
			if err != nil {
				return nil, err
			}
			value, err := k.keep(p.Value, depth+1)
			if err != nil {
				return nil, err
			}
			pairs[i] = pickle.Pair{Key: key, Value: value}
		}
		return &pickle.Dict{Pairs: pairs}, nil
	case *pickle.Object:
		if v.Class == classNode {
			n, _, err := nodeOf(v)
			return n, err
		}
	}
	return nil, fmt.Errorf("holds %s", pickle.Describe(v))
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
