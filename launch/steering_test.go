package launch

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"

	"muster/internal/testutil"
	"muster/launch/plan"
	"muster/launch/report"
	"muster/rendezvous"
	"muster/rendezvous/memstore"
)

// boardOf is a round with a board.
type boardOf struct {
	rendezvous.Exchange
	board rendezvous.Board
}

func (b boardOf) Board() rendezvous.Board { return b.board }

// testSteering is that of a node in a round, without a run directory.
func testSteering(t *testing.T, node string, groupRank, nodes int, board rendezvous.Board) (*Steering, func()) {
	t.Helper()
	s := &Steering{
		plan: &plan.Plan{Hostname: node}, log: zerolog.New(io.Discard), now: make(chan struct{}), restarts: make(chan chan error),
		changed: make(chan struct{}, 1), others: map[int]heardStatus{}, looking: make(chan struct{}, 1),
	}
	s.tell(report.Status{
		RunID: "it", Nodes: nodes, GroupRank: groupRank, Phase: report.PhaseRunning, Counts: report.Counts{Running: 1},
		Tasks: []report.Task{{Node: node, Phase: report.PhaseRunning}}, Ranks: []report.Rank{},
	})
	end := s.take(t.Context(), rendezvous.Round{GroupRank: groupRank, GroupWorldSize: nodes, Exchange: boardOf{board: board}})
	return s, end
}

// TestWorldOfTheBoard: what other nodes have said, one that is silent, one that says nonsense, and what is left when
// the round is over.
func TestWorldOfTheBoard(t *testing.T) {
	t.Parallel()
	space := memstore.NewSpace()
	a, endA := testSteering(t, "node-0", 0, 4, space.Client())
	_, endB := testSteering(t, "node-1", 1, 4, space.Client())
	defer endB()
	hostile := space.Client()
	if err := hostile.Set(t.Context(), statusKey+"2", []byte(`{"status":{"tasks":[]},"at":"no time"}`)); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	d := a.world(t.Context(), a.Status())
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("it took %v", took)
	}
	want := []string{"node-0", "node-1", "group rank 2", "group rank 3"}
	if len(d.Tasks) != 4 || d.Counts.Running != 2 || d.Message != "" {
		t.Fatalf("%+v", d)
	}
	for i, task := range d.Tasks {
		if task.Node != want[i] || task.LastKnown != nil || i >= 2 && task.Phase != report.PhasePending {
			t.Errorf("%d: %+v", i, task)
		}
	}
	endA()
	d = a.world(t.Context(), a.Status())
	if d.Tasks[0].LastKnown != nil || d.Tasks[1].Node != "node-1" || d.Tasks[1].LastKnown == nil ||
		!strings.Contains(d.Message, "cannot be asked now") {
		t.Errorf("%+v", d)
	}
}

// BenchmarkWorld asks a node for a world of 512 nodes with 8 ranks each.
func BenchmarkWorld(b *testing.B) {
	space := memstore.NewSpace()
	const nodes = 512
	own := report.Status{Nodes: nodes, Phase: report.PhaseRunning, Tasks: []report.Task{{Node: "node-0"}}}
	for node := range nodes {
		d := own
		d.GroupRank, d.Ranks = node, make([]report.Rank, 8)
		text, err := json.Marshal(heardStatus{Status: d, At: time.Now()})
		if err == nil {
			err = space.Client().Set(b.Context(), statusKey+strconv.Itoa(node), text)
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	s := &Steering{others: map[int]heardStatus{}, board: roundBoard{space.Client(), 0, nodes}}
	for b.Loop() {
		if d := s.world(b.Context(), own); len(d.Ranks) != (nodes-1)*8 {
			b.Fatalf("%d ranks", len(d.Ranks))
		}
	}
}

// TestStopOfTheBoard: a node that is stopped has the others of its round stopped, also while they do something else,
// and without grace when that is asked for later.
func TestStopOfTheBoard(t *testing.T) {
	t.Parallel()
	space := memstore.NewSpace()
	a, endA := testSteering(t, "node-0", 0, 2, space.Client())
	b, endB := testSteering(t, "node-1", 1, 2, space.Client())
	defer endA()
	defer endB()
	ctx := b.Until(t.Context())
	if err := a.tellOthers(t.Context(), a.board, "somebody\x1b[2J asked", false); err != nil {
		t.Fatal(err)
	}
	<-ctx.Done()
	if e := (&Agent{}).stopEvent(ctx, 0); !e.Everywhere || e.Text != `somebody\x1b[2J asked` || e.Status != 143 {
		t.Errorf("%+v", e)
	}
	if late := b.Until(t.Context()); late.Err() == nil {
		t.Error("who runs the job from now on has not heard of it")
	}
	select {
	case <-b.now:
		t.Error("nobody has asked for no grace")
	default:
	}
	if err := a.tellOthers(t.Context(), a.board, "", true); err != nil {
		t.Fatal(err)
	}
	<-b.now
}

// TestSubjectOfNodeEvents: the subject is the node that was lost or has come, and not the one that says so.
func TestSubjectOfNodeEvents(t *testing.T) {
	for reason, want := range map[string]string{"NodeLost": "node-1", "ScaleUp": "node-1", "NodeStopped": "node-2", "LeaseOver": "node-2"} {
		v := rendezvous.Verdict{Kind: rendezvous.Reassemble, Reason: reason, Rank: -1, Node: "node-2"}
		if want != v.Node {
			v.Subject = want
		}
		s := &Steering{plan: &plan.Plan{}}
		s.changedNodes(v)
		if told := s.events.Behind(0); len(told) != 1 || told[0].Subject != want {
			t.Errorf("%s: %+v, want subject %s", reason, told, want)
		}
	}
}

// countingBoard counts the keys that are waited for.
type countingBoard struct {
	rendezvous.Board
	mu    sync.Mutex
	waits []string
	more  chan struct{}
}

func (b *countingBoard) Get(ctx context.Context, key string) ([]byte, error) {
	b.mu.Lock()
	b.waits = append(b.waits, key)
	b.mu.Unlock()
	b.more <- struct{}{}
	return b.Board.Get(ctx, key)
}

// TestOneWaitUntilAsked: a node in whose round nobody asks for anything waits for one key, which is one connection of
// the store; once somebody asks, it waits for each thing that can be asked, and does what is asked.
func TestOneWaitUntilAsked(t *testing.T) {
	t.Parallel()
	space := memstore.NewSpace()
	board := &countingBoard{Board: space.Client(), more: make(chan struct{}, 64)}
	s, end := testSteering(t, "node-0", 0, 2, board)
	defer end()
	<-board.more
	if err := ask(t.Context(), space.Client(), lookKey(0), []byte("{}")); err != nil {
		t.Fatal(err)
	}
	for range 5 { // stop, pause, kill, look 0, look 1: this node has no accelerators
		<-board.more
	}
	board.mu.Lock()
	waits := slices.Clone(board.waits)
	board.mu.Unlock()
	slices.Sort(waits[1:])
	want := []string{askedKey, killKey(0), lookKey(0), lookKey(1), pauseKey, stopKey}
	if diff := cmp.Diff(want, waits); diff != "" {
		t.Errorf("it waits for other keys (-want +got):\n%s", diff)
	}
	if err := ask(t.Context(), space.Client(), stopKey, []byte(`{"text":"node 1 was asked"}`)); err != nil {
		t.Fatal(err)
	}
	testutil.Eventually(t, time.Minute, "the job is to end", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.askedEnd != nil
	})
}

// deafBoard takes no word that somebody asks for something.
type deafBoard struct{ rendezvous.Board }

func (b deafBoard) Set(ctx context.Context, key string, value []byte) error {
	if key == askedKey {
		return errors.New("it is out of reach")
	}
	return b.Board.Set(ctx, key, value)
}

// TestAskedInVain: what a node could not ask of the others, and whoever wanted it was told so, does not stand on the
// board: it would be done as soon as somebody asks for something else.
func TestAskedInVain(t *testing.T) {
	t.Parallel()
	space := memstore.NewSpace()
	if err := ask(t.Context(), deafBoard{space.Client()}, killKey(0), []byte("node 1 was asked")); err == nil {
		t.Fatal("it was asked")
	}
	if text, stands := space.Keys()[killKey(0)]; stands {
		t.Errorf("%q stands on the board", text)
	}
}
