package checkpointd

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// A frame is four bytes, the length of what follows in network order, and a JSON value. Workers and agents speak in
// frames, and agents with each other.

// frameOf returns a value as a frame.
func frameOf(v any) ([]byte, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(text))), text...), nil
}

// writeFrame writes a value as a frame.
func writeFrame(w io.Writer, v any) error {
	frame, err := frameOf(v)
	if err != nil {
		return err
	}
	_, err = w.Write(frame)
	return err
}

// readFrame reads a value from a frame of at most limit bytes. Memory is taken as the bytes come. io.EOF means that the
// other end was closed between two frames.
func readFrame(r io.Reader, limit uint32, into any) error {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > limit {
		return fmt.Errorf("message of %d bytes exceeds the limit of %d", n, limit)
	}
	text, err := io.ReadAll(io.LimitReader(r, int64(n)))
	if err == nil && len(text) < int(n) {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return fmt.Errorf("truncated message: %w", err)
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("cannot read a message: %w", err)
	}
	return nil
}

func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
