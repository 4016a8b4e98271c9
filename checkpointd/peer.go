package checkpointd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"muster/checkpointd/planner"
	"muster/internal/peertls"
	"muster/internal/wire"
)

// Nodes of one job speak to each other over TCP, encrypted, once both have proved that they have the job's token. A
// connection begins with a greeting, which says what it is for. Frames are as those of workers, and may be longer.
const (
	peerPurpose   = "checkpoints"
	peerLimit     = 64 << 20 // bytes of a frame: a report or a view
	greetingLimit = 64 << 10 // of one of the other frames
	// peerTime is how long connecting and greeting may take.
	peerTime = 10 * time.Second
	// chunkSize is what is sent at once of a copy: it stays in the processor's cache.
	chunkSize = 1 << 20
	// stallTime is how long a copy may make no progress.
	stallTime = 30 * time.Second
	// A copy comes in parts, over a connection each, so that one processor is not all that encrypts it: one for so many
	// bytes, and no more than maxParts.
	partSize = 32 << 20
	maxParts = 4
)

// domain is what the nodes of the job have in common.
func (c *Config) domain() peertls.Domain {
	return peertls.Domain{Token: c.Token, Purpose: peerPurpose, RunID: c.RunID}
}

// greeting is the first frame of a connection.
type greeting struct {
	// Op is join (reports go one way, views the other), fetch (a part of a copy comes) or find (the shard with a file
	// is named).
	Op string `json:"op"`
	// join: which node it is, of which round, and which of its agents.
	Rank  int              `json:"rank,omitempty"`
	Round int              `json:"round,omitempty"`
	From  peertls.Identity `json:"from,omitempty"`
	// fetch, find: of what.
	planner.Key
	At    moment `json:"at"`
	Shard int    `json:"shard,omitempty"`
	Path  string `json:"path,omitempty"`
	// fetch: which of how many parts; 0 of 0 is the first, of as many as the head says.
	Part  int `json:"part,omitempty"`
	Parts int `json:"parts,omitempty"`
}

// check refuses what no node of ours says.
func (g *greeting) check() error {
	switch g.Op {
	case "join":
		if g.Rank < 0 || g.Rank >= planner.MaxNodes || g.Round < 0 {
			return fmt.Errorf("cannot join round %d as node %d", g.Round, g.Rank)
		}
		return g.From.Check()
	case "fetch", "find":
		if err := g.Check(); err != nil {
			return err
		}
		if err := g.At.Check(); err != nil {
			return err
		}
		if g.Shard < 0 || g.Shard >= g.Shards || g.Part < 0 || g.Parts < 0 || g.Parts > maxParts || g.Part >= max(1, g.Parts) ||
			len(g.Path) > pathLimit {
			return fmt.Errorf("cannot give part %d of %d of shard %d of %d", g.Part, g.Parts, g.Shard, g.Shards)
		}
		return nil
	}
	return fmt.Errorf("cannot do %.40q: does the other node run another version of muster?", g.Op)
}

// pathLimit is how long the path of a file may be, in bytes, as Linux has it.
const pathLimit = 4096

// copyHead comes before the bytes of a part of a copy.
type copyHead struct {
	Error   string `json:"error,omitempty"`
	Used    int64  `json:"used,omitempty"`
	MetaOff int64  `json:"meta_offset,omitempty"`
	MetaLen int64  `json:"meta_length,omitempty"`
	Persist bool   `json:"persist,omitempty"`
	Parts   int    `json:"parts,omitempty"`
	Shard   int    `json:"shard,omitempty"` // find
}

// copyLimit is how large a copy may be, in bytes.
const copyLimit = 1 << 50

// check refuses a head that no copy has.
func (h *copyHead) check() error {
	switch {
	case h.Error != "":
		return fmt.Errorf("the other node says: %s", planner.Clean(h.Error, 300))
	case h.Used < 0 || h.Used > copyLimit:
		return fmt.Errorf("a copy of %d bytes cannot be", h.Used)
	case h.Parts < 1 || h.Parts > maxParts:
		return fmt.Errorf("a copy in %d parts cannot be", h.Parts)
	case h.MetaLen < 0 || h.MetaOff < headerSize || h.MetaOff > headerSize+h.Used || h.MetaLen > headerSize+h.Used-h.MetaOff:
		return fmt.Errorf("the list of files lies at %d+%d, outside of the copy's %d bytes", h.MetaOff, h.MetaLen, h.Used)
	}
	return nil
}

// dialPeer connects to another node and greets it. One that is busy with others is tried again.
func dialPeer(ctx context.Context, d peertls.Domain, to peertls.Identity, g greeting) (*peertls.Conn, error) {
	if err := to.Check(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, peerTime)
	defer cancel()
	for pause := 20 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		conn, err := dialOnce(ctx, d, to, g)
		if err == nil {
			return conn, nil
		}
		full := errors.Is(err, peertls.ErrBusy) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
		wait := time.NewTimer(pause/2 + rand.N(pause)) // others try again, too
		select {
		case <-wait.C:
		case <-ctx.Done():
			full = false
		}
		wait.Stop()
		if !full {
			return nil, fmt.Errorf("cannot talk to %s: %w", to.Addr(), err)
		}
	}
}

func dialOnce(ctx context.Context, d peertls.Domain, to peertls.Identity, g greeting) (*peertls.Conn, error) {
	var dialer net.Dialer
	raw, err := dialer.DialContext(ctx, "tcp", to.Addr())
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = raw.Close() })
	defer stop()
	conn, err := d.Client(ctx, raw, to)
	if err == nil {
		if err = wire.Write(conn, g); err == nil {
			return conn, nil
		}
	}
	return nil, errors.Join(err, raw.Close())
}

// part is which bytes of a copy of so many one of its parts has: whole blocks, but for the last.
func partOf(used int64, part, parts int) (from, to int64) {
	blocks := (used + digestBlock - 1) / digestBlock
	at := func(part int) int64 {
		return min(used, blocks/int64(parts)*int64(part)*digestBlock+min(blocks%int64(parts), int64(part))*digestBlock)
	}
	return at(part), at(part + 1)
}

// partsFor is how many parts a copy of so many bytes has.
func partsFor(used int64) int {
	return int(max(1, min(used/partSize, maxParts, int64(runtime.GOMAXPROCS(0)))))
}

// sendCopy sends a part of what a slot holds, from within guarded. The caller keeps it from being overwritten.
func sendCopy(conn net.Conn, m *memory, of *copied, part, parts int) error {
	if err := m.whole(); err != nil {
		return err
	}
	if parts == 0 {
		parts = partsFor(of.used)
	}
	if err := wire.Write(conn,
		copyHead{Used: of.used, MetaOff: of.metaOff, MetaLen: of.metaLen, Persist: of.persist, Parts: parts}); err != nil {
		return err
	}
	from, to := partOf(of.used, part, parts)
	for data := m.bytes[headerSize+from : headerSize+to]; len(data) > 0; {
		n := min(chunkSize, len(data))
		_ = conn.SetWriteDeadline(time.Now().Add(stallTime))
		if _, err := conn.Write(data[:n]); err != nil {
			return err
		}
		data = data[n:]
	}
	return nil
}

// receivePart reads the bytes behind a head into memory, from within guarded, and sums them block by block.
func receivePart(conn net.Conn, head *copyHead, m *memory, part int, sums *digester) error {
	from, to := partOf(head.Used, part, head.Parts)
	for at := from; at < to; {
		end := min(to, at+digestBlock)
		block := m.bytes[headerSize+at : headerSize+end]
		sum := sums.begin()
		for data := block; len(data) > 0; {
			n := min(chunkSize, len(data))
			_ = conn.SetReadDeadline(time.Now().Add(stallTime))
			if _, err := io.ReadFull(conn, data[:n]); err != nil {
				return noEOF(err)
			}
			sum.Write(data[:n]) // while it is in the processor's cache
			data = data[n:]
		}
		sums.end(at, sum)
		at = end
	}
	return nil
}

// receiveCopy reads a copy of which the first part comes over conn, the others over connections that dial makes. It
// returns what its bytes sum up to.
func receiveCopy(ctx context.Context, conn net.Conn, head *copyHead, m *memory,
	dial func(ctx context.Context, part int) (net.Conn, error),
) (planner.Digest, error) {
	sums := newDigester(head.Used, head.MetaOff, head.MetaLen)
	g, ctx := errgroup.WithContext(ctx)
	for part := range head.Parts {
		g.Go(func() error {
			conn := conn
			if part > 0 {
				var err error
				if conn, err = dial(ctx, part); err != nil {
					return err
				}
				defer func() { _ = conn.Close() }()
				_ = conn.SetReadDeadline(time.Now().Add(stallTime))
				var also copyHead
				if err := wire.Read(conn, greetingLimit, &also); err != nil {
					return noEOF(err)
				}
				if also != *head {
					return errors.Join(also.check(), errors.New("the parts of the copy are not of one"))
				}
			}
			stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
			defer stop()
			return guarded(func() error { return receivePart(conn, head, m, part, sums) })
		})
	}
	err := g.Wait()
	return sums.digest(), err
}

func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
