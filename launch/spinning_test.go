package launch

import (
	"testing"
	"time"

	"muster/internal/proc"
	"muster/launch/evidence/gather"
)

// A worker with a device gets nowhere when all that it counts stands still for much longer than ever before.
func TestSpin(t *testing.T) {
	t.Parallel()
	type step struct {
		after  time.Duration
		change func(*gather.Marks)
	}
	calls := func(m *gather.Marks) { m.Collectives++ }
	takes := func(m *gather.Marks) { m.Allocations++ }
	moves := func(m *gather.Marks) { m.Place++ }
	stays := func(*gather.Marks) {}
	times := func(n int, s step) (all []step) {
		for range n {
			all = append(all, s)
		}
		return all
	}
	warm := times(marksWarm, step{time.Second, calls})
	for name, c := range map[string]struct {
		device bool
		steps  [][]step
		idle   time.Duration // for how long; 0: it is not
	}{
		"it has stood still":      {true, [][]step{warm, times(6, step{time.Second, stays})}, 6 * time.Second},
		"it has no device":        {false, [][]step{warm, times(60, step{time.Second, stays})}, 0},
		"only for a short time":   {true, [][]step{warm, times(5, step{time.Second, stays})}, 0},
		"it has not begun":        {true, [][]step{times(4, step{time.Second, calls}), times(60, step{time.Second, stays})}, 0},
		"its main thread goes on": {true, [][]step{warm, times(60, step{time.Second, moves})}, 0},
		"then it does not": {true, [][]step{
			warm, times(60, step{time.Second, moves}), times(6, step{time.Second, stays}),
		}, 6 * time.Second},
		"it takes memory":    {true, [][]step{warm, times(60, step{time.Second, takes})}, 0},
		"it was slow before": {true, [][]step{warm, {{10 * time.Second, calls}}, times(50, step{time.Second, stays})}, 0},
		"slower than it was": {true, [][]step{
			warm, {{10 * time.Second, calls}}, times(51, step{time.Second, stays}),
		}, 51 * time.Second},
		"it answers no more":               {true, [][]step{warm, {{30 * time.Second, nil}}}, 0},
		"a place alone says nothing of it": {true, [][]step{times(30, step{time.Second, moves}), times(60, step{time.Second, stays})}, 0},
	} {
		var s spin
		now := time.Now()
		m := gather.Marks{Answers: 1, Device: c.device}
		s.take(m, now)
		for _, steps := range c.steps {
			for _, step := range steps {
				now = now.Add(step.after)
				if step.change == nil {
					continue
				}
				m.Answers++
				step.change(&m)
				s.take(m, now)
			}
		}
		since, idle := s.idle(now)
		if idle != (c.idle > 0) || idle && now.Sub(since) != c.idle {
			t.Errorf("%s: %v, since %v", name, idle, now.Sub(since))
		}
	}
}

// What other processes of a worker do is a sign of life; what the one does that gets nowhere is none.
func TestSpinOthers(t *testing.T) {
	t.Parallel()
	now := time.Now()
	o := life{spin: spin{
		marked: &gather.Marked{PID: 8}, marks: gather.Marks{Device: true}, moves: marksWarm, longest: time.Second,
		moved: now.Add(-time.Minute),
	}}
	for i, c := range []struct {
		cpu, own int // seconds
		spins    bool
	}{{10, 9, false}, {11, 10, true}, {13, 11, false}, {14, 12, true}, {14, 12, false}} {
		now = now.Add(time.Second)
		o.spin.asked, o.spin.answered = now, now
		read := map[int]proc.Usage{
			7: {CPU: time.Duration(c.cpu) * time.Second, Own: time.Second}, 8: {Own: time.Duration(c.own) * time.Second},
		}
		if o.run(7, read, float64(proc.Tick), now); (o.spins > 0) != c.spins {
			t.Errorf("look %d: it gets nowhere for %v", i, o.spins)
		}
	}
}

// Where the workers of a node change, or muster was stopped, it stays known of those that go on how they get somewhere, but for when.
func TestSpinStaysKnown(t *testing.T) {
	t.Parallel()
	began := time.Now()
	workers := []*worker{{}, {}, {}}
	before := newLives(workers[:2], nil, began)
	for i := range before.of {
		before.of[i].spin = spin{moves: i + 8, longest: time.Second, moved: began, counted: began}
	}
	now := began.Add(time.Hour)
	l := newLives(workers[1:], before, now)
	if s := l.of[0].spin; s.moves != 9 || s.longest != time.Second || s.moved != now || s.counted != now {
		t.Errorf("%+v", s)
	}
	if s := l.of[1].spin; s.moves != 0 {
		t.Errorf("another worker: %+v", s)
	}
}
