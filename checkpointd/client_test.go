package checkpointd

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"

	"golang.org/x/sys/unix"
)

// client is a worker in Go: what internal/python's does, without its speed.
type client struct {
	t    testing.TB
	conn *net.UnixConn
	maps map[int][]byte
}

func dial(t testing.TB, s *Service) *client {
	t.Helper()
	return dialAt(t, s.cfg.Socket)
}

func dialAt(t testing.TB, socket string) *client {
	t.Helper()
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	c := &client{t: t, conn: conn, maps: map[int][]byte{}}
	t.Cleanup(c.close)
	return c
}

func (c *client) close() {
	_ = c.conn.Close()
	for _, m := range c.maps {
		_ = unix.Munmap(m)
	}
	c.maps = nil
}

// ask returns the reply, and maps memory that comes with it.
func (c *client) ask(req request) (rep reply, err error) {
	c.t.Helper()
	text, err := json.Marshal(req)
	if err != nil {
		return rep, err
	}
	if _, err := c.conn.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(text))), text...)); err != nil {
		return rep, err
	}
	var head [4]byte
	oob := make([]byte, 64)
	n, oobn, _, _, err := c.conn.ReadMsgUnix(head[:], oob)
	if err != nil {
		return rep, err
	}
	if _, err := io.ReadFull(c.conn, head[n:]); err != nil {
		return rep, err
	}
	body := make([]byte, binary.BigEndian.Uint32(head[:]))
	if _, err := io.ReadFull(c.conn, body); err != nil {
		return rep, err
	}
	if err := json.Unmarshal(body, &rep); err != nil {
		return rep, err
	}
	if rep.Error != "" {
		return rep, errors.New(rep.Error)
	}
	if rep.New {
		messages, err := unix.ParseSocketControlMessage(oob[:oobn])
		if err != nil || len(messages) != 1 {
			return rep, fmt.Errorf("no descriptor came: %w", err)
		}
		fds, err := unix.ParseUnixRights(&messages[0])
		if err != nil {
			return rep, err
		}
		defer unix.Close(fds[0])
		m, err := unix.Mmap(fds[0], 0, int(rep.Capacity), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			return rep, err
		}
		if old := c.maps[rep.Slot]; old != nil {
			_ = unix.Munmap(old)
		}
		c.maps[rep.Slot] = m
	}
	return rep, nil
}

func (c *client) hello(dir string, shard, shards int) *client {
	c.t.Helper()
	if _, err := c.ask(request{
		Op: "hello", Version: protocolVersion, Rank: shard, Shard: shard, Shards: shards, Saves: true,
		Dir: dir,
	}); err != nil {
		c.t.Fatal(err)
	}
	return c
}

// state is what a shard has at a step.
func state(step int64, shard, size int) []byte {
	data := make([]byte, size)
	for i := range data {
		data[i] = byte(int(step)*7 + shard*31 + i%251)
	}
	return data
}

// begin starts a save and copies; ready ends it.
func (c *client) begin(step int64, data []byte, persist bool) (slot int, err error) {
	c.t.Helper()
	rep, err := c.ask(request{Op: "begin", Step: step, Size: int64(len(data)) + 4096, Persist: persist})
	if err != nil {
		return 0, err
	}
	if rep.Busy || rep.Full {
		return 0, fmt.Errorf("busy %t, full %t", rep.Busy, rep.Full)
	}
	copy(c.maps[rep.Slot][headerSize:], data)
	return rep.Slot, nil
}

func (c *client) ready(slot int, step int64, size int, persist bool) error {
	c.t.Helper()
	m := c.maps[slot]
	pickle := fmt.Sprintf("pickle of %d", step)
	meta := fmt.Sprintf(`{"files":[{"path":"","parts":[{"archive":[["data.pkl",%d,%d],["data/0",%d,%d]]}]}]}`, headerSize+size, len(pickle),
		headerSize, size)
	copy(m[headerSize+size:], pickle+meta)
	_, err := c.ask(request{
		Op: "ready", Slot: slot, MetaOffset: int64(headerSize + size + len(pickle)), MetaLength: int64(len(meta)),
		Persist: persist,
	})
	return err
}

func (c *client) save(step int64, shard, size int, persist bool) {
	c.t.Helper()
	slot, err := c.begin(step, state(step, shard, size), persist)
	if err == nil {
		err = c.ready(slot, step, size, persist)
	}
	if err != nil {
		c.t.Fatalf("step %d of shard %d: %v", step, shard, err)
	}
}

// load returns where the newest step is, and makes sure that the shard's part of it in memory is what was saved.
func (c *client) load(shard, size int) reply {
	c.t.Helper()
	rep, err := c.ask(request{Op: "load"})
	if err != nil {
		c.t.Fatal(err)
	}
	if rep.Source == fromMemory {
		if got := c.maps[rep.Slot][headerSize : headerSize+size]; string(got) != string(state(rep.Step, shard, size)) {
			c.t.Fatalf("step %d of shard %d has other contents", rep.Step, shard)
		}
	}
	return rep
}

func (c *client) want(rep reply, source string, step int64) {
	c.t.Helper()
	if rep.Source != source || rep.Step != step {
		c.t.Fatalf("restored step %d from %s, want %d from %s", rep.Step, rep.Source, step, source)
	}
}
