package c10d

import "fmt"

// The opcodes that states consist of; names as in Python's pickletools (3.11, read). Append only.
const (
	opMark            = '('
	opStop            = '.'
	opPop             = '0'
	opPopMark         = '1'
	opBinFloat        = 'G'
	opBinInt          = 'J'
	opBinInt1         = 'K'
	opBinInt2         = 'M'
	opNone            = 'N'
	opReduce          = 'R'
	opBinUnicode      = 'X'
	opEmptyList       = ']'
	opAppend          = 'a'
	opBuild           = 'b'
	opGlobal          = 'c'
	opAppends         = 'e'
	opBinGet          = 'h'
	opLongBinGet      = 'j'
	opBinPut          = 'q'
	opLongBinPut      = 'r'
	opSetItem         = 's'
	opTuple           = 't'
	opSetItems        = 'u'
	opEmptyDict       = '}'
	opEmptyTuple      = ')'
	opBinBytes        = 'B'
	opShortBinBytes   = 'C'
	opProto           = 0x80
	opNewObj          = 0x81
	opTuple1          = 0x85
	opTuple2          = 0x86
	opTuple3          = 0x87
	opNewTrue         = 0x88
	opNewFalse        = 0x89
	opLong1           = 0x8a
	opShortBinUnicode = 0x8c
	opBinUnicode8     = 0x8d
	opBinBytes8       = 0x8e
	opEmptySet        = 0x8f
	opAddItems        = 0x90
	opFrozenSet       = 0x91
	opStackGlobal     = 0x93
	opMemoize         = 0x94
	opFrame           = 0x95
)

// opNames are for error texts: also of opcodes that are refused, where a person may want to know which it was.
var opNames = map[byte]string{
	opMark: "MARK", opStop: "STOP", opPop: "POP", opPopMark: "POP_MARK", opBinFloat: "BINFLOAT", opBinInt: "BININT",
	opBinInt1: "BININT1", opBinInt2: "BININT2", opNone: "NONE", opReduce: "REDUCE", opBinUnicode: "BINUNICODE",
	opEmptyList: "EMPTY_LIST", opAppend: "APPEND", opBuild: "BUILD", opGlobal: "GLOBAL", opAppends: "APPENDS",
	opBinGet: "BINGET", opLongBinGet: "LONG_BINGET", opBinPut: "BINPUT", opLongBinPut: "LONG_BINPUT",
	opSetItem: "SETITEM", opTuple: "TUPLE", opSetItems: "SETITEMS", opEmptyDict: "EMPTY_DICT",
	opEmptyTuple: "EMPTY_TUPLE", opBinBytes: "BINBYTES", opShortBinBytes: "SHORT_BINBYTES", opProto: "PROTO",
	opNewObj: "NEWOBJ", opTuple1: "TUPLE1", opTuple2: "TUPLE2", opTuple3: "TUPLE3", opNewTrue: "NEWTRUE",
	opNewFalse: "NEWFALSE", opLong1: "LONG1", opShortBinUnicode: "SHORT_BINUNICODE", opBinUnicode8: "BINUNICODE8",
	opBinBytes8: "BINBYTES8", opEmptySet: "EMPTY_SET", opAddItems: "ADDITEMS", opFrozenSet: "FROZENSET",
	opStackGlobal: "STACK_GLOBAL", opMemoize: "MEMOIZE", opFrame: "FRAME",
	'F': "FLOAT", 'I': "INT", 'L': "LONG", 'P': "PERSID", 'Q': "BINPERSID", 'S': "STRING", 'T': "BINSTRING",
	'U': "SHORT_BINSTRING", 'V': "UNICODE", 'd': "DICT", 'g': "GET", 'i': "INST", 'l': "LIST", 'o': "OBJ", 'p': "PUT",
	'2': "DUP", 0x82: "EXT1", 0x83: "EXT2", 0x84: "EXT4", 0x8b: "LONG4", 0x92: "NEWOBJ_EX", 0x96: "BYTEARRAY8",
	0x97: "NEXT_BUFFER", 0x98: "READONLY_BUFFER",
}

// PickleError says where a pickle stops being one that a state can be read from.
type PickleError struct {
	// Op is the opcode that could not be followed, Offset its place in the pickle in bytes.
	Op     byte
	Offset int
	// Reason is what was wrong.
	Reason string
}

// Error names the opcode as Python's pickletools does.
func (e *PickleError) Error() string {
	name, ok := opNames[e.Op]
	if !ok {
		name = "opcode"
	}
	return fmt.Sprintf("cannot read pickle: %s (0x%02x) at offset %d: %s", name, e.Op, e.Offset, e.Reason)
}
