// Package wire sends JSON over a stream of bytes, and takes it in without believing what is said of its length: a
// message is four bytes, the length of what follows in network order, and a JSON value.
package wire

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Frame returns a message that holds v.
func Frame(v any) ([]byte, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("cannot encode %T: %w", v, err)
	}
	return FrameText(text), nil
}

// FrameText returns a message of JSON that is there as text.
func FrameText(text []byte) []byte {
	frame := binary.BigEndian.AppendUint32(make([]byte, 0, 4+len(text)), uint32(len(text)))
	return append(frame, text...)
}

// Write sends v, by one write.
func Write(w io.Writer, v any) error {
	frame, err := Frame(v)
	if err != nil {
		return err
	}
	_, err = w.Write(frame)
	return err
}

// Read takes in a message of at most limit bytes. Memory is taken as the bytes come. The error is io.EOF itself where
// the other side has ended between two messages.
func Read(r io.Reader, limit uint32, into any) error {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > limit {
		return fmt.Errorf("message of %d bytes exceeds the limit of %d", n, limit)
	}
	text, err := ReadN(r, int(n))
	if err != nil {
		return fmt.Errorf("truncated message of %d bytes: %w", n, err)
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("cannot read a message: %w", err)
	}
	return nil
}

// ReadN reads n bytes. Memory is taken as they come: a length is nobody's word for so many bytes. The error is
// io.ErrUnexpectedEOF where there are fewer.
func ReadN(r io.Reader, n int) ([]byte, error) {
	const piece = 1 << 20
	var buf []byte
	for len(buf) < n {
		next := make([]byte, min(piece, n-len(buf)))
		if _, err := io.ReadFull(r, next); err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
		if buf == nil {
			buf = next
			continue
		}
		buf = append(buf, next...)
	}
	return buf, nil
}
