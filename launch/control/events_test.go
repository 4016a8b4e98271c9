package control

import (
	"context"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"muster/internal/testutil"
	"muster/launch/report"
)

// TestEvents: events are numbered and stay in order, the oldest of too many go, and a PhaseChanged stands for a change.
func TestEvents(t *testing.T) {
	t.Parallel()
	var e Events
	e.Moved("a", report.Status{Phase: report.PhasePending})
	e.Moved("a", report.Status{Phase: report.PhasePending, WorldSize: 8})
	e.Moved("a", report.Status{Phase: report.PhaseRunning})
	got := e.After(t.Context(), 0)
	if len(got) != 2 || got[0].Phase != report.PhasePending || got[1].Phase != report.PhaseRunning || got[1].Seq != 2 ||
		got[1].Version != 1 {
		t.Fatalf("%+v", got)
	}
	for range 3 * mostEvents {
		e.Add(Event{Type: WorkerStarted})
	}
	if n := len(e.list); n > mostEvents || n < mostEvents/2 {
		t.Errorf("%d events are kept", n)
	}
	seen, count := uint64(0), 0
	for seen < e.last {
		more := e.After(t.Context(), seen)
		if len(more) == 0 || len(more) > mostAnswered || more[0].Seq <= seen {
			t.Fatalf("%d behind %d", len(more), seen)
		}
		count, seen = count+len(more), more[len(more)-1].Seq
	}
	if count != len(e.list) {
		t.Errorf("%d of %d events", count, len(e.list))
	}
}

// TestFrequentEventsGoFirst: what has happened to the job outlasts any number of saved steps and of single workers.
func TestFrequentEventsGoFirst(t *testing.T) {
	t.Parallel()
	var e Events
	e.Moved("a", report.Status{Phase: report.PhaseRunning})
	e.Add(Event{Type: NodeLost})
	rank := 3
	for range 2 * mostEvents {
		e.Add(Event{Type: CheckpointSaved})
		e.Add(Event{Type: WorkerStarted, Rank: &rank})
	}
	got := e.After(t.Context(), 0)
	if len(got) < 2 || got[0].Type != PhaseChanged || got[1].Type != NodeLost || got[2].Seq < mostEvents {
		t.Errorf("%+v", got[:min(len(got), 3)])
	}
}

// TestEventsAreWaitedFor: a client that waits hears of the next event, and one that hears nothing gets an answer all
// the same.
func TestEventsAreWaitedFor(t *testing.T) {
	t.Parallel()
	j := &fakeJob{id: "it"}
	c := Dial(serve(t, Config{Served: j}))
	if got, err := c.Events(t.Context(), 0, false); err != nil || len(got) != 0 {
		t.Fatal(got, err)
	}
	answered := make(chan []Event, 1)
	go func() {
		got, _ := c.Events(context.Background(), 0, true)
		answered <- got
	}()
	testutil.Eventually(t, 10*time.Second, "it waits", func() bool {
		j.events.mu.Lock()
		defer j.events.mu.Unlock()
		return j.events.news != nil
	})
	j.events.Add(Event{Type: StopRequested, By: &Peer{UID: 1, PID: 2}})
	if got := <-answered; len(got) != 1 || got[0].By.PID != 2 || got[0].Time.IsZero() {
		t.Errorf("%+v", got)
	}
	if got, err := c.Events(t.Context(), 1, true); err != nil || len(got) != 0 {
		t.Error(got, err)
	}
}

// TestFeedTakesInWhoJoins: who follows a job is told what musters say that have come later, also where those that there
// were have ended.
func TestFeedTakesInWhoJoins(t *testing.T) {
	t.Parallel()
	parent, places := parentDir(t)
	node := func(name string) (*fakeJob, *Server) {
		j := &fakeJob{id: "it"}
		s, err := Serve(Config{
			Dir: runDir(t, parent, name, true), Served: j, Muster: Muster{Role: Agent, Meets: "there"}, Log: zerolog.Nop(),
		})
		if err != nil {
			t.Fatal(err)
		}
		return j, s
	}
	first, firstServer := node("it")
	found, err := Find(t.Context(), places)
	if err != nil || len(found) != 1 {
		t.Fatal(found, err)
	}
	f := NewFeed(found)
	f.Later = func(ctx context.Context) ([]Found, error) {
		later, err := Find(ctx, places)
		return Parts(later, found[0]), err
	}
	heard, ended := make(chan string, 10), make(chan error, 1)
	go func() {
		ended <- f.Each(t.Context(), true, func(events []Event) {
			for _, e := range events {
				heard <- e.Message
			}
		})
	}()
	first.events.Add(Event{Type: NodeJoined, Message: "one"})
	if got := <-heard; got != "one" {
		t.Error(got)
	}
	second, secondServer := node("it.2")
	second.events.Add(Event{Type: NodeJoined, Message: "two"})
	if err := firstServer.Close(); err != nil {
		t.Error(err)
	}
	if got := <-heard; got != "two" {
		t.Error(got)
	}
	if err := secondServer.Close(); err != nil {
		t.Error(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
