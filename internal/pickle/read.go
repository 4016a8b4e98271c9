package pickle

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"unicode/utf8"
)

// unpickler follows the opcodes of a pickle. It makes plain values only, calls nothing, and every opcode takes memory
// in proportion to its own bytes: what it makes is bounded by the size of the pickle.
type unpickler struct {
	data  []byte
	pos   int
	stack []any
	marks []int          // where in stack each open mark lies
	memo  []any          // what was kept under the numbers 0, 1, 2, …, as Python gives them
	far   map[uint32]any // and under others
	named []*Class       // what it may name
}

// Read returns the one value of a pickle of protocol 2 to 5 (Python 3.14 writes 5, 3.8 to 3.13 write 4, 3.7 writes 3).
// It is nil, a bool, int64, float64, string, []byte (a part of data), Tuple, *List, *Set, *Dict, *Object, *Class, or
// what the function of a class has returned. Globals other than set, bytes and _codecs.encode (builtins) and those of
// classes are refused. Errors are of type *Error where an opcode is to blame.
func Read(data []byte, classes ...*Class) (any, error) {
	u := unpickler{data: data, named: classes}
	for {
		if u.pos >= len(u.data) {
			return nil, fmt.Errorf("cannot read pickle: it ends at offset %d without STOP", len(u.data))
		}
		at, op := u.pos, u.data[u.pos]
		if (at == 0) != (op == OpProto) {
			return nil, &Error{op, at, "PROTO must be first, and only there"}
		}
		u.pos++
		if op == OpStop {
			if len(u.stack) != 1 || len(u.marks) != 0 {
				return nil, &Error{op, at, fmt.Sprintf("%d values and %d marks are left, want one value", len(u.stack), len(u.marks))}
			}
			if rest := len(u.data) - u.pos; rest > 0 {
				return nil, &Error{op, at, fmt.Sprintf("%d bytes follow", rest)}
			}
			return u.stack[0], nil
		}
		if err := u.step(op); err != nil {
			return nil, &Error{op, at, err.Error()}
		}
	}
}

// step follows one opcode; its argument begins at pos.
func (u *unpickler) step(op byte) error {
	switch op {
	case OpProto:
		b, err := u.take(1)
		if err == nil && (b[0] < 2 || b[0] > 5) {
			err = fmt.Errorf("protocol is %d, limits are 2 and 5", b[0])
		}
		return err
	case OpFrame:
		b, err := u.take(8)
		if err != nil {
			return err
		}
		if n, rest := binary.LittleEndian.Uint64(b), uint64(len(u.data)-u.pos); n > rest {
			return fmt.Errorf("frame of %d bytes, %d are left", n, rest)
		}
		return nil
	case OpMark:
		u.marks = append(u.marks, len(u.stack))
		return nil
	case OpPop:
		return u.discard()
	case OpPopMark:
		_, err := u.toMark()
		return err
	case OpNone:
		u.push(nil)
	case OpNewTrue:
		u.push(true)
	case OpNewFalse:
		u.push(false)
	case OpEmptyTuple:
		u.push(Tuple(nil))
	case OpEmptyList:
		u.push(&List{})
	case OpEmptyDict:
		u.push(&Dict{})
	case OpEmptySet:
		u.push(&Set{})
	case OpBinInt, OpBinInt1, OpBinInt2, OpLong1, OpBinFloat:
		return u.number(op)
	case OpShortBinUnicode, OpBinUnicode, OpBinUnicode8, OpShortBinBytes, OpBinBytes, OpBinBytes8:
		return u.text(op)
	case OpMemoize, OpBinPut, OpLongBinPut, OpBinGet, OpLongBinGet:
		return u.remember(op)
	case OpTuple, OpTuple1, OpTuple2, OpTuple3:
		return u.tuple(op)
	case OpGlobal, OpStackGlobal:
		return u.global(op)
	case OpAppend, OpAppends, OpAddItems, OpSetItem, OpSetItems:
		return u.fill(op)
	case OpNewObj, OpReduce, OpBuild:
		return u.object(op)
	default:
		return fmt.Errorf("is not allowed")
	}
	return nil
}

func (u *unpickler) push(v any) { u.stack = append(u.stack, v) }

// base is the lowest place of the stack that may be popped: what lies under the last mark belongs to the time before
// it.
func (u *unpickler) base() int {
	if len(u.marks) == 0 {
		return 0
	}
	return u.marks[len(u.marks)-1]
}

func (u *unpickler) pop() (any, error) {
	if len(u.stack) <= u.base() {
		return nil, fmt.Errorf("the stack is empty")
	}
	v := u.stack[len(u.stack)-1]
	u.stack = u.stack[:len(u.stack)-1]
	return v, nil
}

// discard pops a value, or the mark where it lies on top.
func (u *unpickler) discard() error {
	if n := len(u.marks); n > 0 && u.marks[n-1] == len(u.stack) {
		u.marks = u.marks[:n-1]
		return nil
	}
	_, err := u.pop()
	return err
}

// toMark pops the last mark and returns what lay above it, valid until the next push.
func (u *unpickler) toMark() ([]any, error) {
	if len(u.marks) == 0 {
		return nil, fmt.Errorf("there is no mark")
	}
	at := u.base()
	items := u.stack[at:]
	u.stack, u.marks = u.stack[:at], u.marks[:len(u.marks)-1]
	return items, nil
}

// take returns the next n bytes.
func (u *unpickler) take(n uint64) ([]byte, error) {
	if rest := uint64(len(u.data) - u.pos); n > rest {
		return nil, fmt.Errorf("argument of %d bytes, %d are left", n, rest)
	}
	b := u.data[u.pos : u.pos+int(n)]
	u.pos += int(n)
	return b, nil
}

// uint takes an unsigned number of size bytes, little-endian.
func (u *unpickler) uint(size int) (uint64, error) {
	b, err := u.take(uint64(size))
	if err != nil {
		return 0, err
	}
	var full [8]byte
	copy(full[:], b)
	return binary.LittleEndian.Uint64(full[:]), nil
}

func (u *unpickler) number(op byte) error {
	switch op {
	case OpBinFloat:
		b, err := u.take(8)
		if err != nil {
			return err
		}
		u.push(math.Float64frombits(binary.BigEndian.Uint64(b)))
		return nil
	case OpLong1:
		size, err := u.uint(1)
		if err != nil {
			return err
		}
		if size > 8 {
			return fmt.Errorf("int of %d bytes, limit is 8", size)
		}
		n, err := u.uint(int(size))
		if err != nil {
			return err
		}
		// Two's complement of size bytes: the highest bit is the sign.
		shift := 64 - 8*size
		u.push(int64(n<<shift) >> shift)
		return nil
	}
	size := 1
	switch op {
	case OpBinInt2:
		size = 2
	case OpBinInt:
		size = 4
	}
	n, err := u.uint(size)
	if err != nil {
		return err
	}
	if op == OpBinInt {
		u.push(int64(int32(n)))
	} else {
		u.push(int64(n))
	}
	return nil
}

func (u *unpickler) text(op byte) error {
	size := 1
	switch op {
	case OpBinUnicode, OpBinBytes:
		size = 4
	case OpBinUnicode8, OpBinBytes8:
		size = 8
	}
	n, err := u.uint(size)
	if err != nil {
		return err
	}
	b, err := u.take(n)
	if err != nil {
		return err
	}
	if op == OpShortBinBytes || op == OpBinBytes || op == OpBinBytes8 {
		u.push(b)
		return nil
	}
	if !utf8.Valid(b) {
		return fmt.Errorf("text is not UTF-8")
	}
	u.push(string(b))
	return nil
}

// remember stores the value on top in the memo, or pushes one from there.
func (u *unpickler) remember(op byte) error {
	at := uint64(len(u.memo) + len(u.far))
	if op != OpMemoize {
		size := 1
		if op == OpLongBinPut || op == OpLongBinGet {
			size = 4
		}
		var err error
		if at, err = u.uint(size); err != nil {
			return err
		}
	}
	near := at < uint64(len(u.memo))
	if op == OpBinGet || op == OpLongBinGet {
		v, ok := u.far[uint32(at)]
		switch {
		case near:
			v = u.memo[at]
		case !ok:
			return fmt.Errorf("the memo holds nothing under %d", at)
		}
		u.push(v)
		return nil
	}
	if len(u.stack) <= u.base() {
		return fmt.Errorf("the stack is empty")
	}
	top := u.stack[len(u.stack)-1]
	switch {
	case near:
		u.memo[at] = top
	case at == uint64(len(u.memo)) && len(u.far) == 0:
		u.memo = append(u.memo, top)
	default:
		if u.far == nil {
			u.far = map[uint32]any{}
		}
		u.far[uint32(at)] = top
	}
	return nil
}

func (u *unpickler) tuple(op byte) error {
	if op == OpTuple {
		items, err := u.toMark()
		if err != nil {
			return err
		}
		u.push(append(Tuple(nil), items...))
		return nil
	}
	n := int(op-OpTuple1) + 1
	if len(u.stack)-n < u.base() {
		return fmt.Errorf("the stack holds %d values, want %d", len(u.stack)-u.base(), n)
	}
	t := append(Tuple(nil), u.stack[len(u.stack)-n:]...)
	u.stack = u.stack[:len(u.stack)-n]
	u.push(t)
	return nil
}

func (u *unpickler) global(op byte) error {
	var module, name string
	if op == OpGlobal {
		for _, s := range []*string{&module, &name} {
			end := bytes.IndexByte(u.data[u.pos:], '\n')
			if end < 0 {
				return fmt.Errorf("name has no end")
			}
			*s = string(u.data[u.pos : u.pos+end])
			u.pos += end + 1
		}
	} else {
		n, err := u.pop()
		if err != nil {
			return err
		}
		m, err := u.pop()
		if err != nil {
			return err
		}
		var ok1, ok2 bool
		module, ok1 = m.(string)
		name, ok2 = n.(string)
		if !ok1 || !ok2 {
			return fmt.Errorf("name is %s and %s, want two str", Describe(m), Describe(n))
		}
	}
	class := u.find(module, name)
	if class == nil {
		const most = 100 // of a name that may be megabytes long
		full := module + "." + name
		return fmt.Errorf("global %.*q is not allowed", most, full)
	}
	u.push(class)
	return nil
}

// find returns what a pickle may name so, nil for anything else.
func (u *unpickler) find(module, name string) *Class {
	for _, classes := range [...][]*Class{u.named, builtins[:]} {
		for _, c := range classes {
			if c.Module == module && c.Name == name {
				return c
			}
		}
	}
	return nil
}

// fill puts items into the container below them.
func (u *unpickler) fill(op byte) error {
	var items []any
	var err error
	switch op {
	case OpAppend, OpSetItem:
		n := 1
		if op == OpSetItem {
			n = 2
		}
		if len(u.stack)-n < u.base() {
			return fmt.Errorf("the stack holds %d values, want %d", len(u.stack)-u.base(), n)
		}
		items = u.stack[len(u.stack)-n:]
		u.stack = u.stack[:len(u.stack)-n]
	default:
		if items, err = u.toMark(); err != nil {
			return err
		}
	}
	if len(u.stack) <= u.base() {
		return fmt.Errorf("the stack is empty")
	}
	switch c := u.stack[len(u.stack)-1].(type) {
	case *List:
		if op == OpAppend || op == OpAppends {
			c.Items = append(c.Items, items...)
			return nil
		}
	case *Set:
		if op == OpAddItems {
			c.Items = append(c.Items, items...)
			return nil
		}
	case *Dict:
		if op == OpSetItem || op == OpSetItems {
			if len(items)%2 != 0 {
				return fmt.Errorf("%d items, want pairs", len(items))
			}
			for i := 0; i < len(items); i += 2 {
				c.Pairs = append(c.Pairs, Pair{items[i], items[i+1]})
			}
			return nil
		}
	}
	return fmt.Errorf("cannot fill %s", Describe(u.stack[len(u.stack)-1]))
}

// object makes or fills an instance.
func (u *unpickler) object(op byte) error {
	arg, err := u.pop()
	if err != nil {
		return err
	}
	on, err := u.pop()
	if err != nil {
		return err
	}
	if op == OpBuild {
		o, isObject := on.(*Object)
		attrs, isDict := arg.(*Dict)
		if !isObject || !isDict {
			return fmt.Errorf("cannot build %s from %s", Describe(on), Describe(arg))
		}
		if o.built {
			return fmt.Errorf("%s is built twice", Describe(o))
		}
		// Shared, not copied: one large dict may build any number of objects, a byte each.
		o.Attrs, o.built = attrs.Pairs, true
		u.push(o)
		return nil
	}
	class, isClass := on.(*Class)
	args, isTuple := arg.(Tuple)
	if !isClass || !isTuple {
		return fmt.Errorf("cannot call %s with %s", Describe(on), Describe(arg))
	}
	if op == OpNewObj {
		if class.Call != nil || len(args) != 0 {
			return fmt.Errorf("cannot make this object with %s", Describe(arg))
		}
		u.push(&Object{Class: class})
		return nil
	}
	if class.Call == nil {
		return fmt.Errorf("cannot call this with %s", Describe(arg))
	}
	v, err := class.Call(args)
	if err != nil {
		return err
	}
	u.push(v)
	return nil
}
