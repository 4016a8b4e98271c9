// Package flight reads what PyTorch's Flight Recorder has written: the last collectives of a process. It knows no
// process; nothing that stands in a dump is run.
package flight

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"muster/internal/pickle"
	"muster/internal/printable"
	"muster/launch/evidence"
)

const (
	// Most bounds a dump, in bytes: 2,000 calls take 600,000.
	Most = 4 << 20
	// mostCalls is how many of the last calls of a group are kept, mostGroups of how many groups.
	mostCalls, mostGroups = 8, 8
	mostText              = 128 // bytes of a name
	mostTensors, mostDims = 16, 8
)

// Read reads the pickles of a process, each of which stands behind its length, in 8 bytes, the least first. The calls
// are in the order in which they were made.
func Read(text []byte) (calls []evidence.Collective, err error) {
	for len(text) > 0 {
		if len(text) < 8 {
			return nil, errors.New("a dump of the Flight Recorder has no length")
		}
		n := binary.LittleEndian.Uint64(text)
		if n > uint64(len(text)-8) {
			return nil, fmt.Errorf("a dump of the Flight Recorder has %d bytes, and is to have %d", len(text)-8, n)
		}
		more, err := one(text[8 : 8+n])
		if err != nil {
			return nil, fmt.Errorf("cannot read a dump of the Flight Recorder: %w", err)
		}
		calls, text = append(calls, more...), text[8+n:]
	}
	return calls, nil
}

// one reads one pickle.
func one(text []byte) ([]evidence.Collective, error) {
	v, err := pickle.Read(text)
	if err != nil {
		return nil, err
	}
	top, is := v.(*pickle.Dict)
	if !is {
		return nil, fmt.Errorf("it is %s, and not a dict", pickle.Describe(v))
	}
	entries, is := get(top, "entries").(*pickle.List)
	if !is { // of a process without collectives
		return nil, nil
	}
	// The newest are the last: of these the newest of each group are kept.
	had, calls := map[string]int{}, []evidence.Collective(nil)
	for _, item := range slices.Backward(entries.Items) {
		e, is := item.(*pickle.Dict)
		if !is {
			return nil, fmt.Errorf("a call is %s, and not a dict", pickle.Describe(item))
		}
		c := call(e)
		n, known := had[c.Group]
		if !known && len(had) == mostGroups || n == mostCalls {
			continue
		}
		had[c.Group]++
		calls = append(calls, c)
	}
	slices.Reverse(calls)
	return calls, nil
}

// call reads an entry of the recorder (version 2.x). What is missing in it, or is of another type, is left empty.
func call(e *pickle.Dict) evidence.Collective {
	c := evidence.Collective{
		Number: number(get(e, "collective_seq_id")), P2P: get(e, "is_p2p") == true, Pending: get(e, "retired") == false,
		Inputs: shapes(get(e, "input_sizes")), Outputs: shapes(get(e, "output_sizes")), Type: first(get(e, "input_dtypes")),
	}
	if c.P2P {
		c.Number = number(get(e, "p2p_seq_id"))
	}
	if state, _ := get(e, "state").(string); state == "completed" {
		c.Pending = false
	}
	op := word(get(e, "profiling_name"))
	if _, after, is := strings.Cut(op, ":"); is { // gloo:all_reduce
		op = after
	}
	c.Op = op
	if group, is := get(e, "process_group").(pickle.Tuple); is && len(group) == 2 {
		c.Group, c.GroupIs = word(group[0]), word(group[1])
	}
	return c
}

func get(d *pickle.Dict, key string) any {
	for _, p := range d.Pairs {
		if p.Key == any(key) {
			return p.Value
		}
	}
	return nil
}

func number(v any) int64 {
	n, _ := v.(int64)
	return n
}

func word(v any) string {
	s, _ := v.(string)
	return printable.Line(s, mostText)
}

func first(v any) string {
	if l, is := v.(*pickle.List); is && len(l.Items) > 0 {
		return word(l.Items[0])
	}
	return ""
}

func shapes(v any) (all [][]int64) {
	l, is := v.(*pickle.List)
	if !is {
		return nil
	}
	for _, item := range l.Items[:min(len(l.Items), mostTensors)] {
		dims, is := item.(*pickle.List)
		if !is {
			continue
		}
		shape := make([]int64, 0, min(len(dims.Items), mostDims))
		for _, d := range dims.Items[:min(len(dims.Items), mostDims)] {
			shape = append(shape, number(d))
		}
		all = append(all, shape)
	}
	return all
}
