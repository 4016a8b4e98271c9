package launch

import (
	"math/rand/v2"
	"testing"
	"time"

	"muster/internal/testutil"
	"muster/launch/progress"
)

// madeJob is a training that is made up: what each of its steps costs, and what comes between them.
type madeJob struct {
	rand *rand.Rand
	step time.Duration // on average
	// quiet says that workers that compute show no sign of life but steps: their devices do all of it.
	quiet bool
	// save and evaluate are how long a checkpoint and an evaluation take, without a word and after how many steps.
	save, evaluate           time.Duration
	saveEvery, evaluateEvery int
	first                    time.Duration
}

// run has a learner follow so many steps, and returns the worst share of a time-out that a silence took. ticks is what
// the watch looks by.
func (m *madeJob) run(l *learner, steps int, tick time.Duration) (worst float64) {
	var now, lastStep, lastSign, next time.Duration
	r := progress.Reading{Steps: true}
	var times []time.Duration
	news := false // times has some that the reading does not tell yet: nobody reads between two ticks
	pass := func(d time.Duration, busy bool) {
		end := now + d
		for next <= end {
			if now = next; news {
				news = false
				r.Median, r.Spread = progress.MedianOf(times[max(0, len(times)-64):])
			}
			if busy {
				lastSign = now
			}
			l.see(now-lastSign, now-lastStep, []progress.Reading{r})
			quiet, step := l.limits()
			worst = max(worst, float64(now-lastSign)/float64(quiet), float64(now-lastStep)/float64(step))
			next += tick
		}
		now = end
	}
	for n := range steps {
		took := time.Duration(float64(m.step) * (0.7 + 0.6*m.rand.Float64()))
		if n == 0 {
			pass(m.first, false)
		}
		pass(took, !m.quiet)
		if m.saveEvery > 0 && n%m.saveEvery == m.saveEvery-1 {
			pass(time.Duration(float64(m.save)*(0.5+m.rand.Float64())), false)
		}
		if m.evaluateEvery > 0 && n%m.evaluateEvery == m.evaluateEvery-1 {
			pass(m.evaluate, true)
		}
		if n > 0 {
			r.Buckets[0]++
			times, news = append(times, now-lastStep), true
		}
		lastStep, lastSign = now, now
	}
	return worst
}

// No time-out that is learned passes for a healthy job: first steps that compile, evaluation, checkpoints that keep all
// waiting, fast and slow steps. When it hangs then, that is found in far less time than without learning.
func TestLearnedTimeouts(t *testing.T) {
	t.Parallel()
	seeds := uint64(200)
	if testutil.RaceDetector && !testutil.Soak() {
		seeds = 60
	}
	for seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 1))
		m := madeJob{
			rand: r, step: time.Duration(float64(50*time.Millisecond) * float64(uint64(1)<<r.IntN(11))), quiet: r.IntN(2) == 0,
			saveEvery: 20 + r.IntN(200), save: time.Duration(r.IntN(30)) * time.Second,
			evaluateEvery: 100 + r.IntN(400), evaluate: time.Duration(r.IntN(1200)) * time.Second,
			first: time.Duration(r.IntN(900)) * time.Second,
		}
		var l learner
		if worst := m.run(&l, 1000, 5*time.Second); worst >= 0.9 {
			t.Errorf("seed %d: a healthy job took %.2f of a time-out: %+v", seed, worst, m)
		}
		longest := max(m.save*3/2+2*m.step, m.step*13/10)
		most := max(autoLeast, autoSilences*(longest+5*time.Second), 2*autoSteps*longest)
		l.see(0, 0, []progress.Reading{warmReading(&l)})
		quiet, steps := l.limits()
		if quiet > most || steps < autoUnknown {
			t.Errorf("seed %d: %v and %v were learned, want at most %v: %+v", seed, quiet, steps, most, m)
		}
		// It hangs: the silence does not end, and what was learned stays.
		for silent := time.Duration(0); silent < 2*quiet; silent += quiet / 50 {
			l.see(silent, silent, []progress.Reading{warmReading(&l)})
		}
		if again, _ := l.limits(); again > quiet {
			t.Errorf("seed %d: a hang has made %v of %v", seed, again, quiet)
		}
		// Other workers begin anew, and nothing is asked of them before they are warm.
		l.anew()
		l.see(0, 0, []progress.Reading{{Steps: true}})
		if quiet, steps := l.limits(); quiet != autoUnknown || steps != autoUnknown {
			t.Errorf("seed %d: %v and %v for workers that have just begun", seed, quiet, steps)
		}
	}
}

// warmReading is what workers have told that a learner follows.
func warmReading(l *learner) progress.Reading {
	r := progress.Reading{Steps: true, Median: l.median, Spread: l.spread}
	r.Buckets[0] = autoWarm
	return r
}

// A section without a time-out may take any time.
func TestLearnedSections(t *testing.T) {
	t.Parallel()
	var l learner
	r := warmReading(&l)
	r.Median = time.Second
	l.see(0, 0, []progress.Reading{r})
	if quiet, _ := l.limits(); quiet != autoLeast {
		t.Errorf("%v", quiet)
	}
	r.Section = "eval"
	l.see(0, 0, []progress.Reading{r})
	if quiet, _ := l.limits(); quiet != autoUnknown {
		t.Errorf("%v", quiet)
	}
	r.SectionTimeout = time.Hour // the watch keeps to it by itself
	l.see(0, 0, []progress.Reading{r})
	if quiet, _ := l.limits(); quiet != autoLeast {
		t.Errorf("%v", quiet)
	}
}
