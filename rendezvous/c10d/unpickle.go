package c10d

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
}

// unpickle returns the one value of a pickle of protocol 2 to 5.
func unpickle(data []byte) (any, error) {
	u := unpickler{data: data}
	for {
		if u.pos >= len(u.data) {
			return nil, fmt.Errorf("cannot read pickle: it ends at offset %d without STOP", len(u.data))
		}
		at, op := u.pos, u.data[u.pos]
		if (at == 0) != (op == opProto) {
			return nil, &PickleError{op, at, "PROTO must be first, and only there"}
		}
		u.pos++
		if op == opStop {
			if len(u.stack) != 1 || len(u.marks) != 0 {
				return nil, &PickleError{op, at, fmt.Sprintf("%d values and %d marks are left, want one value", len(u.stack), len(u.marks))}
			}
			if rest := len(u.data) - u.pos; rest > 0 {
				return nil, &PickleError{op, at, fmt.Sprintf("%d bytes follow", rest)}
			}
			return u.stack[0], nil
		}
		if err := u.step(op); err != nil {
			return nil, &PickleError{op, at, err.Error()}
		}
	}
}

// step follows one opcode; its argument begins at pos.
func (u *unpickler) step(op byte) error {
	switch op {
	case opProto:
		b, err := u.take(1)
		if err == nil && (b[0] < 2 || b[0] > 5) {
			err = fmt.Errorf("protocol is %d, limits are 2 and 5", b[0])
		}
		return err
	case opFrame:
		b, err := u.take(8)
		if err != nil {
			return err
		}
		if n, rest := binary.LittleEndian.Uint64(b), uint64(len(u.data)-u.pos); n > rest {
			return fmt.Errorf("frame of %d bytes, %d are left", n, rest)
		}
		return nil
	case opMark:
		u.marks = append(u.marks, len(u.stack))
		return nil
	case opPop:
		return u.discard()
	case opPopMark:
		_, err := u.toMark()
		return err
	case opNone:
		u.push(nil)
	case opNewTrue:
		u.push(true)
	case opNewFalse:
		u.push(false)
	case opEmptyTuple:
		u.push(pyTuple(nil))
	case opEmptyList:
		u.push(&pyList{})
	case opEmptyDict:
		u.push(&pyDict{})
	case opEmptySet:
		u.push(&pySet{})
	case opBinInt, opBinInt1, opBinInt2, opLong1, opBinFloat:
		return u.number(op)
	case opShortBinUnicode, opBinUnicode, opBinUnicode8, opShortBinBytes, opBinBytes, opBinBytes8:
		return u.text(op)
	case opMemoize, opBinPut, opLongBinPut, opBinGet, opLongBinGet:
		return u.remember(op)
	case opTuple, opTuple1, opTuple2, opTuple3:
		return u.tuple(op)
	case opGlobal, opStackGlobal:
		return u.global(op)
	case opAppend, opAppends, opAddItems, opSetItem, opSetItems:
		return u.fill(op)
	case opNewObj, opReduce, opBuild:
		return u.object(op)
	default:
		return fmt.Errorf("is not allowed in a state")
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
	case opBinFloat:
		b, err := u.take(8)
		if err != nil {
			return err
		}
		u.push(math.Float64frombits(binary.BigEndian.Uint64(b)))
		return nil
	case opLong1:
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
	case opBinInt2:
		size = 2
	case opBinInt:
		size = 4
	}
	n, err := u.uint(size)
	if err != nil {
		return err
	}
	if op == opBinInt {
		u.push(int64(int32(n)))
	} else {
		u.push(int64(n))
	}
	return nil
}

func (u *unpickler) text(op byte) error {
	size := 1
	switch op {
	case opBinUnicode, opBinBytes:
		size = 4
	case opBinUnicode8, opBinBytes8:
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
	if op == opShortBinBytes || op == opBinBytes || op == opBinBytes8 {
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
	if op != opMemoize {
		size := 1
		if op == opLongBinPut || op == opLongBinGet {
			size = 4
		}
		var err error
		if at, err = u.uint(size); err != nil {
			return err
		}
	}
	near := at < uint64(len(u.memo))
	if op == opBinGet || op == opLongBinGet {
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
	if op == opTuple {
		items, err := u.toMark()
		if err != nil {
			return err
		}
		u.push(append(pyTuple(nil), items...))
		return nil
	}
	n := int(op-opTuple1) + 1
	if len(u.stack)-n < u.base() {
		return fmt.Errorf("the stack holds %d values, want %d", len(u.stack)-u.base(), n)
	}
	t := append(pyTuple(nil), u.stack[len(u.stack)-n:]...)
	u.stack = u.stack[:len(u.stack)-n]
	u.push(t)
	return nil
}

func (u *unpickler) global(op byte) error {
	var module, name string
	if op == opGlobal {
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
			return fmt.Errorf("name is %s and %s, want two str", describe(m), describe(n))
		}
	}
	class, ok := classes[module+" "+name]
	if !ok {
		const most = 100 // of a name that may be megabytes long
		full := module + "." + name
		return fmt.Errorf("global %.*q is not allowed", most, full)
	}
	u.push(class)
	return nil
}

// fill puts items into the container below them.
func (u *unpickler) fill(op byte) error {
	var items []any
	var err error
	switch op {
	case opAppend, opSetItem:
		n := 1
		if op == opSetItem {
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
	case *pyList:
		if op == opAppend || op == opAppends {
			c.items = append(c.items, items...)
			return nil
		}
	case *pySet:
		if op == opAddItems {
			c.items = append(c.items, items...)
			return nil
		}
	case *pyDict:
		if op == opSetItem || op == opSetItems {
			if len(items)%2 != 0 {
				return fmt.Errorf("%d items, want pairs", len(items))
			}
			for i := 0; i < len(items); i += 2 {
				c.pairs = append(c.pairs, pyPair{items[i], items[i+1]})
			}
			return nil
		}
	}
	return fmt.Errorf("cannot fill %s", describe(u.stack[len(u.stack)-1]))
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
	if op == opBuild {
		o, isObject := on.(*pyObject)
		attrs, isDict := arg.(*pyDict)
		if !isObject || !isDict {
			return fmt.Errorf("cannot build %s from %s", describe(on), describe(arg))
		}
		if o.built {
			return fmt.Errorf("%s is built twice", describe(o))
		}
		// Shared, not copied: one large dict may build any number of objects, a byte each.
		o.attrs, o.built = attrs.pairs, true
		u.push(o)
		return nil
	}
	class, isClass := on.(pyClass)
	args, isTuple := arg.(pyTuple)
	if !isClass || !isTuple {
		return fmt.Errorf("cannot call %s with %s", describe(on), describe(arg))
	}
	if op == opNewObj {
		if (class != classState && class != classNode) || len(args) != 0 {
			return fmt.Errorf("cannot make this object with %s", describe(arg))
		}
		u.push(&pyObject{class: class})
		return nil
	}
	v, err := call(class, args)
	if err != nil {
		return err
	}
	u.push(v)
	return nil
}
