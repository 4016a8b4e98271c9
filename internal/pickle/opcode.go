package pickle

import "fmt"

// The opcodes that are read, and FROZENSET, which is refused by its name; names as in Python's pickletools (3.11,
// read). Append only.
const (
	OpMark            = '('
	OpStop            = '.'
	OpPop             = '0'
	OpPopMark         = '1'
	OpBinFloat        = 'G'
	OpBinInt          = 'J'
	OpBinInt1         = 'K'
	OpBinInt2         = 'M'
	OpNone            = 'N'
	OpReduce          = 'R'
	OpBinUnicode      = 'X'
	OpEmptyList       = ']'
	OpAppend          = 'a'
	OpBuild           = 'b'
	OpGlobal          = 'c'
	OpAppends         = 'e'
	OpBinGet          = 'h'
	OpLongBinGet      = 'j'
	OpBinPut          = 'q'
	OpLongBinPut      = 'r'
	OpSetItem         = 's'
	OpTuple           = 't'
	OpSetItems        = 'u'
	OpEmptyDict       = '}'
	OpEmptyTuple      = ')'
	OpBinBytes        = 'B'
	OpShortBinBytes   = 'C'
	OpProto           = 0x80
	OpNewObj          = 0x81
	OpTuple1          = 0x85
	OpTuple2          = 0x86
	OpTuple3          = 0x87
	OpNewTrue         = 0x88
	OpNewFalse        = 0x89
	OpLong1           = 0x8a
	OpShortBinUnicode = 0x8c
	OpBinUnicode8     = 0x8d
	OpBinBytes8       = 0x8e
	OpEmptySet        = 0x8f
	OpAddItems        = 0x90
	OpFrozenSet       = 0x91
	OpStackGlobal     = 0x93
	OpMemoize         = 0x94
	OpFrame           = 0x95
)

// opNames are for error texts: also of opcodes that are refused, where a person may want to know which it was.
var opNames = map[byte]string{
	OpMark: "MARK", OpStop: "STOP", OpPop: "POP", OpPopMark: "POP_MARK", OpBinFloat: "BINFLOAT", OpBinInt: "BININT",
	OpBinInt1: "BININT1", OpBinInt2: "BININT2", OpNone: "NONE", OpReduce: "REDUCE", OpBinUnicode: "BINUNICODE",
	OpEmptyList: "EMPTY_LIST", OpAppend: "APPEND", OpBuild: "BUILD", OpGlobal: "GLOBAL", OpAppends: "APPENDS",
	OpBinGet: "BINGET", OpLongBinGet: "LONG_BINGET", OpBinPut: "BINPUT", OpLongBinPut: "LONG_BINPUT",
	OpSetItem: "SETITEM", OpTuple: "TUPLE", OpSetItems: "SETITEMS", OpEmptyDict: "EMPTY_DICT",
	OpEmptyTuple: "EMPTY_TUPLE", OpBinBytes: "BINBYTES", OpShortBinBytes: "SHORT_BINBYTES", OpProto: "PROTO",
	OpNewObj: "NEWOBJ", OpTuple1: "TUPLE1", OpTuple2: "TUPLE2", OpTuple3: "TUPLE3", OpNewTrue: "NEWTRUE",
	OpNewFalse: "NEWFALSE", OpLong1: "LONG1", OpShortBinUnicode: "SHORT_BINUNICODE", OpBinUnicode8: "BINUNICODE8",
	OpBinBytes8: "BINBYTES8", OpEmptySet: "EMPTY_SET", OpAddItems: "ADDITEMS", OpFrozenSet: "FROZENSET",
	OpStackGlobal: "STACK_GLOBAL", OpMemoize: "MEMOIZE", OpFrame: "FRAME",
	'F': "FLOAT", 'I': "INT", 'L': "LONG", 'P': "PERSID", 'Q': "BINPERSID", 'S': "STRING", 'T': "BINSTRING",
	'U': "SHORT_BINSTRING", 'V': "UNICODE", 'd': "DICT", 'g': "GET", 'i': "INST", 'l': "LIST", 'o': "OBJ", 'p': "PUT",
	'2': "DUP", 0x82: "EXT1", 0x83: "EXT2", 0x84: "EXT4", 0x8b: "LONG4", 0x92: "NEWOBJ_EX", 0x96: "BYTEARRAY8",
	0x97: "NEXT_BUFFER", 0x98: "READONLY_BUFFER",
}

// Error says where a pickle stops being one that is read.
type Error struct {
	// Op is the opcode that could not be followed, Offset its place in the pickle in bytes.
	Op     byte
	Offset int
	// Reason is what was wrong.
	Reason string
}

// Error names the opcode as Python's pickletools does.
func (e *Error) Error() string {
	name, ok := opNames[e.Op]
	if !ok {
		name = "opcode"
	}
	return fmt.Sprintf("cannot read pickle: %s (0x%02x) at offset %d: %s", name, e.Op, e.Offset, e.Reason)
}
