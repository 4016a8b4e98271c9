package checkpointd

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"muster/checkpointd/planner"
	"muster/internal/testutil"
	"muster/internal/wire"
	"muster/rendezvous/memstore"
)

// boardPair are the two ends of a connection over a board, and the board.
func boardPair(t *testing.T) (a, b *boardConn, board *memstore.Client) {
	t.Helper()
	space := memstore.NewSpace()
	t.Cleanup(func() { _ = space.Close() })
	board = space.Client()
	a = dialBoard(t.Context(), board, "a", "b", "agent-a", 2, 0)
	b = dialBoard(t.Context(), space.Client(), "b", "a", "agent-b", 2, 0)
	t.Cleanup(func() { _, _ = a.Close(), b.Close() })
	return a, b, board
}

// TestBoardConn: frames go both ways over a board, the newest counts, and who leaves is heard to.
func TestBoardConn(t *testing.T) {
	a, b, _ := boardPair(t)
	for n := range 300 {
		if err := wire.Write(a, planner.Report{Seq: uint64(n + 1), Addr: "agent-a"}); err != nil {
			t.Fatal(err)
		}
	}
	if from, err := b.greet(); from != "agent-a" || err != nil {
		t.Fatalf("%q, %v", from, err)
	}
	for last := uint64(0); last < 300; {
		var r planner.Report
		if err := wire.Read(b, peerLimit, &r); err != nil || r.Seq <= last {
			t.Fatalf("report %d behind %d: %v", r.Seq, last, err)
		}
		last = r.Seq
	}
	if err := wire.Write(b, planner.View{Seen: 300}); err != nil {
		t.Fatal(err)
	}
	var v planner.View
	if err := wire.Read(a, peerLimit, &v); err != nil || v.Seen != 300 {
		t.Fatalf("%+v, %v", v, err)
	}
	if err := wire.Write(a, planner.Report{Seq: 301, Addr: "agent-a"}); err != nil {
		t.Fatal(err)
	}
	a.bye() // what it said last is heard
	var r planner.Report
	if err := wire.Read(b, peerLimit, &r); err != nil || r.Seq != 301 {
		t.Errorf("%+v, %v", r, err)
	}
	if err := wire.Read(b, peerLimit, &v); !errors.Is(err, io.EOF) {
		t.Errorf("the other end has left: %v", err)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	if err := wire.Read(b, peerLimit, &v); !errors.Is(err, net.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}

// TestBoardConnHostile: what somebody else writes on the board costs the connection, and no more than so many bytes.
func TestBoardConnHostile(t *testing.T) {
	word := func(w said) []byte {
		text, err := json.Marshal(w)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	for name, try := range map[string]struct {
		text []byte
		want string
	}{
		"garbage":    {[]byte("\x80\x04cposix\nsystem\n"), "cannot read"},
		"large":      {bytes.Repeat([]byte(" "), boardLimit+2<<10), "exceeds the limit"},
		"another's":  {word(word0("agent-c", 9)), "another agent"},
		"nobody's":   {word(word0("", 9)), "another agent"},
		"long name":  {word(word0(strings.Repeat("a", 200), 9)), "another agent"},
		"no message": {word(word0("agent-a", 9)), "cannot read a message"},
	} {
		t.Run(name, func(t *testing.T) {
			a, b, board := boardPair(t)
			if err := wire.Write(a, planner.View{Seen: 1}); err != nil {
				t.Fatal(err)
			}
			var v planner.View
			if err := wire.Read(b, peerLimit, &v); err != nil {
				t.Fatal(err)
			}
			if err := board.Set(t.Context(), "a", try.text); err != nil {
				t.Fatal(err)
			}
			err := wire.Read(b, peerLimit, &v)
			if err == nil || !strings.Contains(err.Error(), try.want) {
				t.Errorf("%v, want %s", err, try.want)
			}
		})
	}
	a, _, _ := boardPair(t)
	if _, err := a.Write(make([]byte, boardLimit+1)); err == nil {
		t.Error("a word was said that nobody reads")
	}
}

func word0(from string, n uint64) said { return said{From: from, N: n, Text: json.RawMessage(`7`)} }

// TestBoardConnSilence: a board has no end that breaks. Who has said something says again that it is there, and one
// that is not heard of any more counts as gone, also where it had never come.
func TestBoardConnSilence(t *testing.T) {
	testutil.Long(t)
	t.Parallel()
	space := memstore.NewSpace()
	defer space.Close()
	board := space.Client()
	const beat = 300 * time.Millisecond // the other end is the test, which may stand still
	a := dialBoard(t.Context(), board, "a", "b", "agent-a", 2, beat)
	b := dialBoard(t.Context(), space.Client(), "b", "a", "agent-b", 2, beat)
	defer b.Close()
	if err := wire.Write(a, planner.View{Seen: 1}); err != nil {
		t.Fatal(err)
	}
	testutil.Eventually(t, 20*time.Second, "it says again that it is there", func() bool {
		var w said
		text, err := board.Get(t.Context(), "a")
		return err == nil && json.Unmarshal(text, &w) == nil && w.N > 3 && bytes.Contains(w.Text, []byte(`"seen":1`))
	})
	var v planner.View
	if err := wire.Read(b, peerLimit, &v); err != nil || v.Seen != 1 {
		t.Fatalf("%+v, %v", v, err)
	}
	var n int
	again := make(chan error, 1)
	go func() {
		err := wire.Read(b, peerLimit, &v)
		n++
		again <- err
	}()
	if err := a.Close(); err != nil { // as one that is killed: no word is the last
		t.Fatal(err)
	}
	if err := <-again; !errors.Is(err, errSilent) || n != 1 {
		t.Errorf("it is gone: %v", err)
	}
	c := dialBoard(t.Context(), space.Client(), "c", "d", "agent-c", 2, beat)
	defer c.Close()
	if _, err := c.greet(); !errors.Is(err, errSilent) {
		t.Errorf("it never came: %v", err)
	}
}

// TestLocalTrackers: without a token the node that leads writes files beside a step that its own workers want, and none
// that only another node names.
func TestLocalTrackers(t *testing.T) {
	c := newLocalNodes(t, 2)
	c.begin(0, 1)
	for rank, w := range c.workers {
		slot, err := w.begin(1, state(1, rank, size), true)
		if err != nil {
			t.Fatal(err)
		}
		pickle := "a pickle"
		meta := fmt.Sprintf(
			`{"files":[{"path":"","parts":[{"archive":[["data.pkl",%d,%d],["data/0",%d,%d]]}]}],"trackers":[["latest-%d","1"]]}`,
			headerSize+size, len(pickle), headerSize, size, rank)
		copy(w.maps[slot][headerSize+size:], pickle+meta)
		if _, err := w.ask(request{
			Op: "ready", Slot: slot, MetaOffset: int64(headerSize + size + len(pickle)),
			MetaLength: int64(len(meta)), Persist: true,
		}); err != nil {
			t.Fatal(err)
		}
	}
	there := func(name string) bool {
		_, err := os.Stat(filepath.Join(c.dir, name))
		return err == nil
	}
	testutil.Eventually(t, 20*time.Second, "the trackers", func() bool { return there(dlroverTracker) }) // the last one
	if !there("latest-0") || there("latest-1") {
		t.Errorf("the file that rank 0 names: %t, rank 1: %t", there("latest-0"), there("latest-1"))
	}
}
