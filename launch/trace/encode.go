package trace

import (
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
)

// What OTLP has of its enumerations.
const (
	kindInternal = 1
	statusError  = 2
)

// encode makes an ExportTraceServiceRequest. It is written field by field: the generated code would cost each start of
// muster its registration.
func (c *Config) encode(spans []Span) []byte {
	var resource []byte
	for _, a := range append([]Attribute{{Key: "service.name", Text: c.Service}}, c.Resource...) {
		resource = message(resource, 1, a.encode())
	}
	scope := text(nil, 1, "muster")
	scoped := message(nil, 1, scope)
	for i := range spans {
		scoped = message(scoped, 2, spans[i].encode(c))
	}
	of := message(nil, 1, resource)
	of = message(of, 2, scoped)
	return message(nil, 1, of)
}

func (s *Span) encode(c *Config) []byte {
	parent := s.Parent
	if parent == (ID{}) {
		parent = c.Parent
	}
	b := message(nil, 1, c.Trace[:])
	b = message(b, 2, s.ID[:])
	if parent != (ID{}) {
		b = message(b, 4, parent[:])
	}
	b = text(b, 5, s.Name)
	b = number(b, 6, kindInternal)
	b = fixed(b, 7, uint64(s.Begin.UnixNano()))
	b = fixed(b, 8, uint64(s.End.UnixNano()))
	for _, a := range s.Attributes {
		b = message(b, 9, a.encode())
	}
	if s.Failed {
		b = message(b, 15, number(text(nil, 2, s.Message), 3, statusError))
	}
	return b
}

func (a *Attribute) encode() []byte {
	value := text(nil, 1, a.Text)
	if a.Text == "" {
		value = number(nil, 3, uint64(a.Number))
	}
	return message(text(nil, 1, a.Key), 2, value)
}

func message(b []byte, field protowire.Number, m []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), m)
}

func text(b []byte, field protowire.Number, s string) []byte {
	return protowire.AppendString(protowire.AppendTag(b, field, protowire.BytesType), strings.ToValidUTF8(s, "\uFFFD"))
}

func number(b []byte, field protowire.Number, n uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), n)
}

func fixed(b []byte, field protowire.Number, n uint64) []byte {
	return protowire.AppendFixed64(protowire.AppendTag(b, field, protowire.Fixed64Type), n)
}
