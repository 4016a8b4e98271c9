package logtext

import (
	"io"
	"strings"
	"sync"
	"time"
)

// RepeatFirst is after what time a line that says again what is waited for is shown, and RepeatMost the longest such
// time: it doubles with each.
const (
	RepeatFirst = 5 * time.Second
	RepeatMost  = time.Minute
)

// Repeats leaves out lines that say again what a node waits for, sooner than after 5 s, then 10, 20, 40 and at last 60.
// A line that says something new is shown at once. Safe for concurrent use as far as Out is.
type Repeats struct {
	Out io.Writer
	// Live says that Out shows in a line that changes what is waited for: all of that passes.
	Live bool
	now  func() time.Time // nil: time.Now

	mu   sync.Mutex
	said map[string]*repetition // by node and message
}

// repetition is what a node has said last of something that it waits for.
type repetition struct {
	key   string
	pause time.Duration
	at    time.Time
}

// Write shows one line, or leaves it out.
func (r *Repeats) Write(p []byte) (int, error) {
	if r.leavesOut(p) {
		return len(p), nil
	}
	return r.Out.Write(p)
}

// repeatSlack is how much earlier than its time a line may come: those who say it every 5 s are not that exact.
const repeatSlack = RepeatFirst / 10

func (r *Repeats) leavesOut(p []byte) bool {
	e, ok := parse(p)
	if !ok || !strings.HasPrefix(e.message, "waiting") || e.level == "error" {
		return false
	}
	if r.Live && e.waits() {
		return false
	}
	if e.nodes == nil {
		e.nodes = []string{""}
	}
	now := time.Now()
	if r.now != nil {
		now = r.now()
	}
	of, key := e.nodes[0]+"\x00"+e.message, e.sameKey()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.said == nil {
		r.said = map[string]*repetition{}
	}
	last := r.said[of]
	switch {
	case last == nil || last.key != key || now.Sub(last.at) > 2*RepeatMost: // news, or another wait
		r.said[of] = &repetition{key: key, pause: RepeatFirst, at: now}
	case now.Sub(last.at) < last.pause-repeatSlack:
		return true
	default:
		last.pause, last.at = min(2*last.pause, RepeatMost), now
	}
	return false
}
