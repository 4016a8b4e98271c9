package tcpstore

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// op is a request of the protocol under the number that PyTorch 2.2 and later put on the wire. Append only.
type op byte

const (
	opValidate   op = 0
	opSet        op = 1
	opCompareSet op = 2
	opGet        op = 3
	opAdd        op = 4
	opCheck      op = 5
	opWait       op = 6
	opNumKeys    op = 7
	opDelete     op = 8
	opAppend     op = 9
	opMultiGet   op = 10
	opMultiSet   op = 11
	opCancelWait op = 12
	opPing       op = 13 // since PyTorch 2.5
	opQueuePush  op = 14 // since 2.8, as the two below
	opQueuePop   op = 15
	opQueueLen   op = 16
	opListKeys   op = 17 // since 2.10
	opBarrier    op = 18 // since 2.12
	opWatchKey   op = 19 // our number; only PyTorch up to 2.0 has it, under number 7
	opCount      op = 20
)

func (o op) String() string {
	names := [...]string{
		"VALIDATE", "SET", "COMPARE_SET", "GET", "ADD", "CHECK", "WAIT", "GETNUMKEYS", "DELETE_KEY", "APPEND", "MULTI_GET",
		"MULTI_SET", "CANCEL_WAIT", "PING", "QUEUE_PUSH", "QUEUE_POP", "QUEUE_LEN", "LIST_KEYS", "BARRIER", "WATCH_KEY",
	}
	if int(o) < len(names) {
		return names[o]
	}
	return fmt.Sprintf("opcode %d", byte(o))
}

const (
	magic = 0x3C85F7CE // argument of VALIDATE; read in PyTorch 2.6.0 and captured

	replyStop      = 0 // WAIT and BARRIER: stop waiting; CHECK: every key is there
	replyMissing   = 1 // CHECK: a key is missing
	replyCancelled = 1 // CANCEL_WAIT
	replyWatching  = 3 // WATCH_KEY: registered
)

// Generation says which table of opcodes a peer without handshake uses. Peers with handshake (PyTorch 2.2 and later)
// need none of this: their opcodes only ever grew.
type Generation int

const (
	// G0 is PyTorch 1.9 to 2.0.
	G0 Generation = iota
	// G1 is PyTorch 2.1.
	G1
	// G2 is PyTorch 2.2 and later: the handshake, and numbers that are final.
	G2
)

// String returns the PyTorch releases that the generation stands for.
func (g Generation) String() string {
	switch g {
	case G0:
		return "PyTorch 1.9-2.0"
	case G1:
		return "PyTorch 2.1"
	default:
		return "PyTorch 2.2+"
	}
}

var (
	tableG0 = [...]op{opSet, opCompareSet, opGet, opAdd, opCheck, opWait, opNumKeys, opWatchKey, opDelete}
	tableG1 = [...]op{
		opSet, opCompareSet, opGet, opAdd, opCheck, opWait, opNumKeys, opDelete, opAppend, opMultiGet, opMultiSet, opCancelWait,
	}
)

// lookup returns what number b means in generation g.
func (g Generation) lookup(b byte) (op, bool) {
	switch {
	case g == G0 && int(b) < len(tableG0):
		return tableG0[b], true
	case g == G1 && int(b) < len(tableG1):
		return tableG1[b], true
	case g == G2 && op(b) < opWatchKey:
		return op(b), true
	}
	return 0, false
}

// code is the reverse of lookup: the number of o in generation g.
func (g Generation) code(o op) (byte, bool) {
	for b := range byte(opCount) {
		if got, ok := g.lookup(b); ok && got == o {
			return b, true
		}
	}
	return 0, false
}

// field is one piece of a request.
type field byte

const (
	fieldKey   field = iota // u64 length, bytes; limited as a key
	fieldValue              // u64 length, bytes; limited as a value
	field32                 // 4 bytes
	field64                 // 8 bytes
)

// shape is the layout of a request after its opcode: the fields, once, or as often as a leading u64 count says.
type shape struct {
	counted bool
	fields  []field
}

var (
	key    = []field{fieldKey}
	keyVal = []field{fieldKey, fieldValue}
	keyNum = []field{fieldKey, field64}
	shapes = [opCount]shape{
		opValidate:   {fields: []field{field32}},
		opSet:        {fields: keyVal},
		opCompareSet: {fields: []field{fieldKey, fieldValue, fieldValue}},
		opGet:        {fields: key},
		opAdd:        {fields: keyNum},
		opCheck:      {fields: key, counted: true},
		opWait:       {fields: key, counted: true},
		opNumKeys:    {},
		opDelete:     {fields: key},
		opAppend:     {fields: keyVal},
		opMultiGet:   {fields: key, counted: true},
		opMultiSet:   {fields: keyVal, counted: true},
		opCancelWait: {},
		opPing:       {fields: []field{field32}},
		opQueuePush:  {fields: keyVal},
		opQueuePop:   {fields: key},
		opQueueLen:   {fields: key},
		opListKeys:   {},
		opBarrier:    {fields: keyNum},
		opWatchKey:   {fields: key},
	}
)

var errProtocol = errors.New("protocol violation")

// Limits bound what one client can make the server hold. Zero fields mean the default; lengths are in bytes.
type Limits struct {
	Key          int // longest key; default 8 KiB, as PyTorch's libuv server
	Value        int // longest value; default 8 MiB, as PyTorch's libuv server
	KeysPerReq   int // most keys in one request; default 131,072, as PyTorch's libuv server
	ReplyBuffer  int // unread replies of a connection, from which on its requests are left alone; default 1 MiB
	ReplyAtOnce  int // one reply, leaving out values of 16 KiB and more, which are not copied; default 512 MiB
	ListAtOnce   int // the answer to LIST_KEYS, for which all others wait, and 100 bytes more for each key; default 128 MiB
	ReplyTotal   int // unread replies of all connections, big values left out; beyond, who has most is closed; default 512 MiB
	RequestBytes int // one request as a whole; default 1 GiB, the 131,072 keys of 8 KiB that the others allow
	// Total bounds keys, values, waits, and what is arriving or being sent of big values; who would add to it is
	// closed. Default 1 GiB, or a quarter of the machine's memory where that is less. The process has about twice as
	// much at worst.
	Total int64
}

func (l Limits) withDefaults() Limits {
	def := func(p *int, v int) {
		if *p <= 0 {
			*p = v
		}
	}
	def(&l.Key, 8<<10)
	def(&l.Value, 8<<20)
	def(&l.KeysPerReq, 128<<10)
	def(&l.ReplyBuffer, 1<<20)
	def(&l.ReplyAtOnce, 512<<20)
	def(&l.ListAtOnce, 128<<20)
	def(&l.ReplyTotal, 512<<20)
	def(&l.RequestBytes, 1<<30)
	return l
}

// scan finds the end of a request in a stream of bytes. It keeps its place, so that bytes that come one by one are
// looked at once, and it refuses a length as soon as the length is there, before anybody allocates for it.
type scan struct {
	op      op
	active  bool
	counted bool   // the leading count has been read
	next    uint8  // index in shape.fields of the field at pos
	left    uint32 // repetitions of shape.fields that are still to come
	pos     int    // bytes of the request that have been passed
	need    int    // bytes of the request that must be there before the next look
}

// begin starts a request whose opcode is the first byte.
func begin(o op) scan {
	return scan{op: o, active: true, left: 1, pos: 1, need: 1}
}

// advance looks at b, the request as far as it has come, from its opcode on. It returns true when the request ends
// at s.pos.
func (s *scan) advance(b []byte, lim *Limits) (bool, error) {
	if len(b) < s.need {
		return false, nil
	}
	sh := &shapes[s.op]
	if sh.counted && !s.counted {
		if s.short(b, 8) {
			return false, nil
		}
		n := binary.LittleEndian.Uint64(b[s.pos:])
		if n > uint64(lim.KeysPerReq) {
			return false, fmt.Errorf("%w: %v of %d keys, limit %d", errProtocol, s.op, n, lim.KeysPerReq)
		}
		s.left, s.counted, s.pos = uint32(n), true, s.pos+8
	}
	for ; s.left > 0; s.left-- {
		for ; int(s.next) < len(sh.fields); s.next++ {
			width, limit := 8, 0
			switch sh.fields[s.next] {
			case field32:
				width = 4
			case field64:
			case fieldKey:
				limit = lim.Key
			case fieldValue:
				limit = lim.Value
			}
			if s.short(b, width) {
				return false, nil
			}
			if limit > 0 {
				n := binary.LittleEndian.Uint64(b[s.pos:])
				if n > uint64(limit) {
					return false, fmt.Errorf("%w: %v with a length of %d, limit %d", errProtocol, s.op, n, limit)
				}
				width += int(n)
				if s.pos+width > lim.RequestBytes {
					return false, fmt.Errorf("%w: %v of more than %d bytes", errProtocol, s.op, lim.RequestBytes)
				}
				if s.short(b, width) {
					return false, nil
				}
			}
			s.pos += width
		}
		s.next = 0
	}
	return true, nil
}

func (s *scan) short(b []byte, width int) bool {
	s.need = s.pos + width
	return len(b) < s.need
}

// tail reports that all but the value at the end of the request is there, where the value begins and how long it is.
// Such a value can be read into the buffer that stores it.
func (s *scan) tail(b []byte) (start, length int, ok bool) {
	switch s.op {
	case opSet, opAppend, opQueuePush:
	default:
		return 0, 0, false
	}
	if s.next != 1 || len(b) < s.pos+8 {
		return 0, 0, false
	}
	return s.pos + 8, int(binary.LittleEndian.Uint64(b[s.pos:])), true
}

// request reads the fields of a whole request that scan has passed; lengths need no checks any more.
type request []byte

func (r *request) bytes() []byte {
	n := binary.LittleEndian.Uint64(*r)
	v := (*r)[8 : 8+n : 8+n]
	*r = (*r)[8+n:]
	return v
}

func (r *request) u64() uint64 {
	n := binary.LittleEndian.Uint64(*r)
	*r = (*r)[8:]
	return n
}

func (r *request) i64() int64 { return int64(r.u64()) }

func appendU64(b []byte, n uint64) []byte { return binary.LittleEndian.AppendUint64(b, n) }

func appendBytes[T ~string | ~[]byte](b []byte, v T) []byte {
	return append(binary.LittleEndian.AppendUint64(b, uint64(len(v))), v...)
}
