package control

import (
	"context"
	"testing"
	"time"

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
