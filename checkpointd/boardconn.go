package checkpointd

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"time"

	"muster/internal/wire"
	"muster/rendezvous"
)

// Nodes without a job token have no connections to each other: reports and views go through the round's board, as
// everything that agents tell each other. Each of the two has one key for a node, under which the newest stands: they
// are whole states, and one that was not seen is none that was missed. Copies do not go that way.

func reportKey(rank int) string { return "ckpt/report/" + strconv.Itoa(rank) }
func viewKey(rank int) string   { return "ckpt/view/" + strconv.Itoa(rank) }

// said is what stands on the board.
type said struct {
	// From is the agent that says it, N counts what it says there, and how often it says it again: that it is there
	// still.
	From string `json:"from"`
	N    uint64 `json:"n"`
	// End says that nothing more will come.
	End  bool            `json:"end,omitempty"`
	Text json.RawMessage `json:"text,omitempty"`
}

const (
	boardLimit = 4 << 20 // bytes of a word
	// A board is looked at so often by each node after something has been said, and ever less often, up to boardIdle,
	// while nothing is. In jobs of more nodes than boardNodes all of that takes longer: the store is one.
	boardBusy  = 10 * time.Millisecond
	boardIdle  = 200 * time.Millisecond
	boardNodes = 8
	// boardBeat is how often a node says its newest word again, so that the others know that it is there. One that is
	// not heard of for so many of these has gone: a board has no end that could be broken.
	boardBeat   = 5 * time.Second
	beatsMissed = 6
	// byeLimit is how long it may take to say that a node leaves.
	byeLimit = 2 * time.Second
)

// errSilent says that the other end of a boardConn has said nothing for too long.
var errSilent = errors.New("nothing is heard of it any more")

// boardConn is a net.Conn to one other node over a board. What is written is one frame at a time, and the newest
// counts.
type boardConn struct {
	board            rendezvous.Board
	says             string // the key
	hears            string
	from             string
	busy, idle, beat time.Duration
	ctx              context.Context
	cancel           context.CancelFunc
	writing          sync.WaitGroup
	poke             chan struct{} // has an item when there is something to say

	// Of the one who reads.
	heard  uint64 // the number of the newest word
	other  string // whose words these are
	text   []byte // of the newest
	alive  time.Time
	ended  bool // the newest word is the last
	unread []byte

	mu        sync.Mutex
	next      json.RawMessage // unsaid, nil for none
	end       bool
	lastMoved time.Time
}

// dialBoard opens a connection by two keys of a board, in a round of so many nodes. beat is boardBeat where it is 0.
func dialBoard(ctx context.Context, board rendezvous.Board, says, hears, from string, nodes int, beat time.Duration) *boardConn {
	now := time.Now()
	c := &boardConn{board: board, says: says, hears: hears, from: from, poke: make(chan struct{}, 1), alive: now, lastMoved: now}
	c.busy = boardBusy * time.Duration(max(1, nodes/boardNodes))
	c.idle, c.beat = max(boardIdle, c.busy), max(cmp.Or(beat, boardBeat), 2*c.busy)
	c.ctx, c.cancel = context.WithCancel(ctx)
	c.writing.Go(c.write)
	return c
}

// Write takes a frame.
func (c *boardConn) Write(frame []byte) (int, error) {
	if c.ctx.Err() != nil {
		return 0, net.ErrClosed
	}
	if len(frame) < 4 || len(frame) > boardLimit {
		return 0, fmt.Errorf("cannot say %d bytes on the board: the limit is %d", len(frame), boardLimit)
	}
	c.mu.Lock()
	c.next, c.lastMoved = append(json.RawMessage(nil), frame[4:]...), time.Now()
	c.mu.Unlock()
	c.wake()
	return len(frame), nil
}

func (c *boardConn) wake() {
	select {
	case c.poke <- struct{}{}:
	default:
	}
}

// write brings the newest frame to the board, and no more than one for each look at it.
func (c *boardConn) write() {
	beat := time.NewTicker(c.beat)
	defer beat.Stop()
	var w said
	for {
		select {
		case <-c.poke:
		case <-beat.C:
		case <-c.ctx.Done():
			return
		}
		c.mu.Lock()
		if c.next != nil {
			w.Text, c.next = c.next, nil
		}
		w.End = c.end
		c.mu.Unlock()
		if w.Text == nil && !w.End { // nothing was ever said
			continue
		}
		w.From = c.from
		w.N++
		text, err := json.Marshal(w)
		if err == nil {
			err = c.board.Set(c.ctx, c.says, text)
		}
		if err != nil || w.End {
			c.cancel() // Read tells
			return
		}
		if !c.pause(c.busy) {
			return
		}
	}
}

// bye says that this end leaves, and waits until that is said.
func (c *boardConn) bye() {
	c.mu.Lock()
	c.end = true
	c.mu.Unlock()
	c.wake()
	late := time.AfterFunc(byeLimit, c.cancel)
	defer late.Stop()
	c.writing.Wait()
}

// pause waits so long, and reports whether the connection is open still.
func (c *boardConn) pause(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-c.ctx.Done():
		return false
	}
}

// Read returns what the other node has said, as frames.
func (c *boardConn) Read(into []byte) (int, error) {
	for pause := c.busy; len(c.unread) == 0; {
		if c.ctx.Err() != nil {
			return 0, net.ErrClosed
		}
		if c.ended {
			return 0, io.EOF
		}
		text, err := c.look()
		switch {
		case c.ctx.Err() != nil:
			return 0, net.ErrClosed
		case err != nil:
			return 0, err
		case c.ended && text == nil:
			continue
		case text != nil:
			c.unread = wire.FrameText(text)
			c.mu.Lock()
			c.lastMoved = time.Now()
			c.mu.Unlock()
			continue
		}
		c.mu.Lock()
		busy := time.Since(c.lastMoved) < time.Second
		c.mu.Unlock()
		if pause = min(pause*3/2, c.idle); busy {
			pause = c.busy
		}
		if !c.pause(pause) {
			return 0, net.ErrClosed
		}
	}
	n := copy(into, c.unread)
	c.unread = c.unread[n:]
	return n, nil
}

// look returns what the other node says if that is new, else nil. It waits for the first word.
func (c *boardConn) look() ([]byte, error) {
	silent := c.alive.Add(beatsMissed * c.beat)
	ctx, cancel := context.WithTimeout(c.ctx, max(c.beat, time.Until(silent))) // this process may have stood still itself
	defer cancel()
	text, err := c.board.Get(ctx, c.hears)
	switch {
	case errors.Is(err, rendezvous.ErrUntrusted): // what the node says may come yet
		text = nil
	case err != nil && ctx.Err() == nil:
		return nil, err
	case err != nil:
		return nil, errSilent
	case len(text) > boardLimit+1<<10:
		return nil, fmt.Errorf("a word of %d bytes on the board exceeds the limit of %d", len(text), boardLimit)
	}
	var w said
	if text != nil {
		if err := json.Unmarshal(text, &w); err != nil {
			return nil, fmt.Errorf("cannot read a word on the board: %w", err)
		}
	}
	if w.N <= c.heard {
		if time.Now().After(silent) {
			return nil, errSilent
		}
		return nil, nil
	}
	if len(w.From) == 0 || len(w.From) > 128 || c.other != "" && w.From != c.other {
		return nil, errors.New("another agent has taken the node's place on the board")
	}
	c.heard, c.other, c.alive, c.ended = w.N, w.From, time.Now(), w.End
	if bytes.Equal(w.Text, c.text) {
		return nil, nil // it is there still
	}
	c.text = w.Text
	return w.Text, nil
}

// greet waits for the first word, and returns whose it is.
func (c *boardConn) greet() (string, error) {
	_, err := c.Read(nil)
	return c.other, err
}

// Close ends the connection at this end.
func (c *boardConn) Close() error {
	c.cancel()
	c.writing.Wait()
	return nil
}

// boardAddr is where the other end is: a key.
type boardAddr string

func (boardAddr) Network() string  { return "board" }
func (a boardAddr) String() string { return string(a) }

// LocalAddr and RemoteAddr are keys; there are no deadlines.
func (c *boardConn) LocalAddr() net.Addr              { return boardAddr(c.says) }
func (c *boardConn) RemoteAddr() net.Addr             { return boardAddr(c.hears) }
func (c *boardConn) SetDeadline(time.Time) error      { return nil }
func (c *boardConn) SetReadDeadline(time.Time) error  { return nil }
func (c *boardConn) SetWriteDeadline(time.Time) error { return nil }
