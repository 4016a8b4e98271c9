package checkpointd

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"time"

	"muster/checkpointd/council"
	"muster/internal/handshake"
)

// Nodes of one job speak to each other over TCP, once both have proved that they have the job's token. A connection begins
// with a greeting, which says what it is for. Frames are as those of workers, and may be longer.
const (
	peerBanner = "muster-ckpt 1\r\n"
	peerLimit  = 64 << 20 // bytes of a frame
	// peerTime is how long connecting and greeting may take.
	peerTime = 10 * time.Second
	// chunkSize is what is summed and sent at once of a copy: it stays in the processor's cache.
	chunkSize = 1 << 20
	// stallTime is how long a copy may make no progress.
	stallTime = 30 * time.Second
)

// greeting is the first frame of a connection.
type greeting struct {
	// Op is join (reports go one way, views the other), fetch (a copy comes) or find (the shard with a file is named).
	Op string `json:"op"`
	// join: which node it is, of which round.
	Rank  int `json:"rank,omitempty"`
	Round int `json:"round,omitempty"`
	// fetch, find: of what.
	council.Key
	At    moment `json:"at"`
	Shard int    `json:"shard,omitempty"`
	Path  string `json:"path,omitempty"`
}

// copyHead comes before the bytes of a copy; behind them are four bytes of their CRC-32C.
type copyHead struct {
	Error   string `json:"error,omitempty"`
	Used    int64  `json:"used,omitempty"`
	MetaOff int64  `json:"meta_offset,omitempty"`
	MetaLen int64  `json:"meta_length,omitempty"`
	Persist bool   `json:"persist,omitempty"`
	Shard   int    `json:"shard,omitempty"` // find
}

// dialPeer connects to another node and greets it.
func dialPeer(ctx context.Context, addr string, token []byte, g greeting) (*net.TCPConn, error) {
	ctx, cancel := context.WithTimeout(ctx, peerTime)
	defer cancel()
	var d net.Dialer
	raw, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	conn, ok := raw.(*net.TCPConn)
	if !ok {
		return nil, errors.Join(errors.New("no TCP connection"), raw.Close())
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	if _, err = handshake.Greet(conn, peerBanner, token); err == nil {
		err = writeFrame(conn, g)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cannot talk to %s: %w", addr, err), conn.Close())
	}
	return conn, nil
}

// sendCopy sends what a slot holds, from within guarded. The caller keeps it from being overwritten.
func sendCopy(conn net.Conn, m *memory, of *copied) error {
	if err := m.whole(); err != nil {
		return err
	}
	if err := writeFrame(conn, copyHead{Used: of.used, MetaOff: of.metaOff, MetaLen: of.metaLen, Persist: of.persist}); err != nil {
		return err
	}
	data, sum := m.bytes[headerSize:headerSize+of.used], uint32(0)
	for len(data) > 0 {
		n := min(chunkSize, len(data))
		sum = crc32.Update(sum, castagnoli, data[:n])
		_ = conn.SetWriteDeadline(time.Now().Add(stallTime))
		if _, err := conn.Write(data[:n]); err != nil {
			return err
		}
		data = data[n:]
	}
	_, err := conn.Write(binary.BigEndian.AppendUint32(nil, sum))
	return err
}

// receiveCopy reads the bytes behind a head into memory, from within guarded.
func receiveCopy(conn net.Conn, head copyHead, m *memory) error {
	data, sum := m.bytes[headerSize:headerSize+head.Used], uint32(0)
	for len(data) > 0 {
		n := min(chunkSize, len(data))
		_ = conn.SetReadDeadline(time.Now().Add(stallTime))
		if _, err := io.ReadFull(conn, data[:n]); err != nil {
			return noEOF(err)
		}
		sum = crc32.Update(sum, castagnoli, data[:n])
		data = data[n:]
	}
	var end [4]byte
	if _, err := io.ReadFull(conn, end[:]); err != nil {
		return noEOF(err)
	}
	if theirs := binary.BigEndian.Uint32(end[:]); theirs != sum {
		return fmt.Errorf("%w: %08x came, %08x was sent", errChecksum, sum, theirs)
	}
	return nil
}
