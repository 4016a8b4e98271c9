package pickle

import (
	"fmt"
	"math"
)

// builtins are what any pickle of plain data may name. Protocol 2 calls builtins __builtin__, and writes bytes as an
// encoded string.
var builtins = [...]*Class{
	{"builtins", "set", callSet},
	{"__builtin__", "set", callSet},
	{"_codecs", "encode", callEncode},
	{"__builtin__", "bytes", callBytes},
}

// callBytes is bytes(), as protocol 2 writes no bytes.
func callBytes(args Tuple) (any, error) {
	if len(args) != 0 {
		return nil, fmt.Errorf("cannot make bytes of %s", Describe(args))
	}
	return []byte{}, nil
}

// callSet is set(list).
func callSet(args Tuple) (any, error) {
	if len(args) == 1 {
		if l, ok := args[0].(*List); ok {
			// The list is the set's from now on. Copied, a long list would cost its length again for each byte here.
			s := &Set{l.Items}
			l.Items = nil
			return s, nil
		}
	}
	return nil, fmt.Errorf("cannot call this with %s", Describe(args))
}

// callEncode is _codecs.encode(text, 'latin1'). A text from the memo costs no bytes here, so it must be short; a
// datetime has ten.
func callEncode(args Tuple) (any, error) {
	if len(args) == 2 && args[1] == any("latin1") {
		if s, ok := args[0].(string); ok {
			const most = 64
			if len(s) > most {
				return nil, fmt.Errorf("text of %d bytes to encode, limit is %d", len(s), most)
			}
			b := make([]byte, 0, len(s))
			for _, r := range s {
				if r > math.MaxUint8 {
					return nil, fmt.Errorf("character %q is not in latin1", r)
				}
				b = append(b, byte(r))
			}
			return b, nil
		}
	}
	return nil, fmt.Errorf("cannot encode %s", Describe(args))
}
