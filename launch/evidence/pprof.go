package evidence

import (
	"compress/gzip"
	"io"
	"slices"
	"time"
)

// pprofFile makes the message Profile of pprof's profile.proto, as far as it is used here.
type pprofFile struct {
	out       []byte
	strings   map[string]uint64
	table     []string
	locations map[Frame]uint64
}

// writePprof writes merged stacks for pprof: a sample is a stack, its value the number of ranks that are in it, its
// label "ranks" which those are.
func writePprof(w io.Writer, at time.Time, groups []Group) error {
	p := &pprofFile{strings: map[string]uint64{}, locations: map[Frame]uint64{}}
	p.text("")
	p.message(1, p.field(nil, 1, p.text("ranks")), p.number(2, p.text("count"))) // sample_type
	for _, g := range groups {
		var sample, ids []byte
		for _, f := range slices.Backward(g.Frames) { // the leaf first
			f.Text = ""
			ids = varint(ids, p.location(f))
		}
		sample = block(sample, 1, ids)
		sample = block(sample, 2, varint(nil, uint64(len(g.Ranks))))
		for _, label := range [][2]string{{"ranks", Fold(g.Ranks)}, {"thread", g.Thread}} {
			sample = block(sample, 3, append(p.number(1, p.text(label[0])), p.number(2, p.text(label[1]))...))
		}
		p.message(2, sample)
	}
	for _, s := range p.table {
		p.message(6, []byte(s))
	}
	p.out = p.field(p.out, 9, uint64(max(at.UnixNano(), 0)))
	z := gzip.NewWriter(w)
	if _, err := z.Write(p.out); err != nil {
		return err
	}
	return z.Close()
}

// location is the number of a frame, which gets a function and a location of its own.
func (p *pprofFile) location(f Frame) uint64 {
	if id, known := p.locations[f]; known {
		return id
	}
	id := uint64(len(p.locations) + 1)
	p.locations[f] = id
	function := p.number(1, id)
	function = p.field(function, 2, p.text(f.Func))
	function = p.field(function, 4, p.text(f.File))
	p.message(5, function)
	line := p.field(p.number(1, id), 2, uint64(max(f.Line, 0)))
	p.message(4, block(p.number(1, id), 4, line))
	return id
}

// text is the number of a string.
func (p *pprofFile) text(s string) uint64 {
	id, known := p.strings[s]
	if !known {
		id = uint64(len(p.table))
		p.strings[s] = id
		p.table = append(p.table, s)
	}
	return id
}

func (p *pprofFile) message(field uint64, parts ...[]byte) {
	var body []byte
	for _, part := range parts {
		body = append(body, part...)
	}
	p.out = block(p.out, field, body)
}

func (p *pprofFile) number(field, n uint64) []byte { return p.field(nil, field, n) }

// field appends a number to a message.
func (*pprofFile) field(to []byte, field, n uint64) []byte { return varint(varint(to, field<<3), n) }

// block appends what has a length to a message.
func block(to []byte, field uint64, body []byte) []byte {
	return append(varint(varint(to, field<<3|2), uint64(len(body))), body...)
}

func varint(to []byte, n uint64) []byte {
	for n >= 0x80 {
		to = append(to, byte(n)|0x80)
		n >>= 7
	}
	return append(to, byte(n))
}
