package launch

import (
	"time"

	"muster/launch/progress"
)

// What --hang-timeout auto makes of the silences of this job.
const (
	// autoWarm is how many step times a worker has told before anything is learned of it: its first steps compile,
	// download and fill caches.
	autoWarm = 20
	// autoUnknown is the time-out where nothing was learned, and the least one for steps that do not come from workers
	// that are busy all the same: they may evaluate, compile or save without telling it. PyTorch's collectives take 30
	// minutes for it, too.
	autoUnknown = 30 * time.Minute
	// autoLeast is the least time-out that is learned. It is autoSilences times the longest silence so far, or autoSteps
	// steps that each take longer than the median by autoSpreads median deviations, whichever is longer.
	autoLeast    = time.Minute
	autoSilences = 5
	autoSteps    = 10
	autoSpreads  = 4
)

// silences are those of a kind, as they come and end.
type silences struct{ now, longest time.Duration }

// see takes in how long it has been silent, and remembers the silence that has ended where that counts.
func (s *silences) see(silent time.Duration, counts bool) {
	if silent < s.now && counts {
		s.longest = max(s.longest, s.now)
	}
	s.now = silent
}

// learner learns from the workers of a node that tell their steps for how long they may be silent. A silence counts
// once it has ended: a hang does not.
type learner struct {
	// quiet are the times without any sign of life, steps those without a step.
	quiet, steps   silences
	warm           bool // all of them have told enough
	open           bool // one is in a section that may take any time
	median, spread time.Duration
}

// anew has other workers followed, which have yet to warm up. What was learned stays.
func (l *learner) anew() {
	l.quiet.now, l.steps.now, l.warm = 0, 0, false
}

// see takes in what workers have told, and how long they have been silent.
func (l *learner) see(quiet, steps time.Duration, told []progress.Reading) {
	l.quiet.see(quiet, l.warm)
	l.steps.see(steps, l.warm)
	l.warm, l.open, l.median, l.spread = len(told) > 0, false, 0, 0
	for i := range told {
		r := &told[i]
		var times uint64
		for _, n := range r.Buckets {
			times += n
		}
		l.warm = l.warm && times >= autoWarm
		l.open = l.open || inOpenSection(r)
		l.median, l.spread = max(l.median, r.Median), max(l.spread, r.Spread)
	}
}

// inOpenSection reports whether a program is in a section that may take any time.
func inOpenSection(r *progress.Reading) bool { return r.Section != "" && r.SectionTimeout == 0 }

// limits are the time-outs: without any sign of life, and without a step.
func (l *learner) limits() (quiet, steps time.Duration) {
	if !l.warm {
		return autoUnknown, autoUnknown
	}
	ofSteps := autoSteps * (l.median + autoSpreads*l.spread)
	quiet = max(autoLeast, autoSilences*l.quiet.longest, ofSteps)
	if l.open {
		quiet = max(quiet, autoUnknown)
	}
	return quiet, max(autoUnknown, autoSilences*l.steps.longest, ofSteps)
}
