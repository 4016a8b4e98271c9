package accounting

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

var zero = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func at(seconds float64) time.Time { return zero.Add(time.Duration(seconds * float64(time.Second))) }

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// A job with a failure: each second has its cause.
func TestAccount(t *testing.T) {
	var l Ledger
	l.Enter(Start, at(0))
	l.Enter(Rendezvous, at(1))
	l.Enter(Check, at(3))
	l.Train(at(6))
	l.Started(at(7))
	if a := l.Account(at(9)); a[Import] != seconds(1) || a[Good] != seconds(2) {
		t.Errorf("nobody has told a step: %v", a)
	}
	l.Mark(Marks{First: at(16), Passed: at(16)})
	l.Mark(Marks{First: at(16), Passed: at(16), Stalled: seconds(7), StalledFirst: seconds(2), StalledPassed: seconds(2)})
	l.Enter(Restart, at(106)) // 5 s of 90 were checkpoints
	l.Enter(Rendezvous, at(109))
	l.Train(at(110))
	if a := l.Account(at(115)); a[Import] != seconds(15) || a[Good] != seconds(85) {
		t.Errorf("they have told no step yet: %v", a)
	}
	l.Mark(Marks{First: at(120), Stalled: seconds(1)})
	if a := l.Account(at(125)); a[Repeated] != seconds(4) || a[Good] != seconds(85) || a[Checkpoint] != seconds(6) {
		t.Errorf("all was done before: %v", a)
	}
	l.Mark(Marks{First: at(120), Passed: at(130), Stalled: seconds(4), StalledPassed: seconds(1)})
	l.Enter(Pause, at(150))
	l.Enter(Restart, at(160))
	l.Enter(Stop, at(161))
	l.End(at(163))
	want := Account{
		Start: seconds(1), Rendezvous: seconds(3), Check: seconds(3), Import: seconds(20), Good: seconds(102), Repeated: seconds(9),
		Checkpoint: seconds(9), Restart: seconds(4), Pause: seconds(10), Stop: seconds(2),
	}
	l.Mark(Marks{First: at(1)})
	l.Enter(Good, at(500))
	got := l.Account(at(1000))
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if got.Wall() != seconds(163) || got.Goodput() != 102./163 {
		t.Errorf("%v, %v", got.Wall(), got.Goodput())
	}
}

// The first of several workers counts, and the longest stall.
func TestMarks(t *testing.T) {
	a := Marks{First: at(5), Passed: at(9), Stalled: seconds(1), StalledFirst: seconds(1)}
	b := Marks{First: at(4), Stalled: seconds(3), StalledPassed: seconds(2)}
	want := Marks{First: at(4), Passed: at(9), Stalled: seconds(3), StalledPassed: seconds(2)}
	if diff := cmp.Diff([]Marks{want, want, a}, []Marks{a.And(b), b.And(a), Marks{}.And(a)}); diff != "" {
		t.Error(diff)
	}
}

// Whatever happens, and whatever is told, the causes add up to the time, and none is negative.
func TestAddsUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var l Ledger
		moment := rapid.Float64Range(-10, 1e6)
		span := rapid.Float64Range(-1e6, 1e6)
		now, began := at(0), at(0)
		l.Enter(Start, now)
		for range rapid.IntRange(1, 30).Draw(t, "events") {
			if d := rapid.Float64Range(-5, 1e4).Draw(t, "later"); d > 0 {
				now = now.Add(seconds(d))
			}
			when := now.Add(-seconds(rapid.SampledFrom([]float64{0, 0, 0, 3}).Draw(t, "back")))
			switch rapid.IntRange(0, 4).Draw(t, "what") {
			case 0:
				l.Enter(rapid.SampledFrom(Causes()).Draw(t, "cause"), when)
			case 1:
				l.Train(when)
			case 2:
				l.Started(when)
			default:
				m := Marks{
					Stalled: seconds(span.Draw(t, "s")), StalledFirst: seconds(span.Draw(t, "f")),
					StalledPassed: seconds(span.Draw(t, "p")),
				}
				if rapid.Bool().Draw(t, "first") {
					m.First = at(moment.Draw(t, "at"))
				}
				if rapid.Bool().Draw(t, "passed") {
					m.Passed = at(moment.Draw(t, "at"))
				}
				l.Mark(m)
			}
			a := l.Account(now)
			if a.Wall() != now.Sub(began) {
				t.Fatalf("%v is not %v: %v", a.Wall(), now.Sub(began), a)
			}
			for c, d := range a {
				if d < 0 {
					t.Fatalf("%v is %v", Cause(c), d)
				}
			}
		}
	})
}
