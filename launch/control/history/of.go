package history

import (
	"os"
	"path/filepath"
	"strings"
	"time"

	"muster/launch/control"
)

// A muster that is killed loses its socket a moment before the lock of its history: that is waited for so often, and so
// long each time.
const (
	mostLooks = 20
	lookPause = 50 * time.Millisecond
)

// Of is what is kept of a muster of this machine that has answered, and answers no more; nil where nothing is kept of it.
func Of(part *control.Found) *Run {
	if part.Answer == nil {
		return nil
	}
	for range mostLooks {
		r, over := of(&part.Answer.Muster)
		if r == nil || over {
			return r
		}
		time.Sleep(lookPause)
	}
	return nil
}

// JobOf is Of, and behind it what is kept of the other musters of its job that have ended; none where nothing is kept.
func (k Kept) JobOf(part *control.Found) []Run {
	r := Of(part)
	if r == nil {
		return nil
	}
	return withParts(*r, Runs(k))
}

// of looks for the history of a muster. over says that the muster has ended.
func of(m *control.Muster) (_ *Run, over bool) {
	all := filepath.Join(filepath.Dir(m.RunDir), dirName)
	entries, err := os.ReadDir(all)
	if err != nil {
		return nil, false
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), filepath.Base(m.RunDir)+".") {
			continue
		}
		// Jobs of one id have had the same run directory one after another.
		if r, over := look(filepath.Join(all, e.Name())); r.Muster.RunDir == m.RunDir && r.Muster.PID == m.PID {
			return &r, over
		}
	}
	return nil, false
}

// EventsOf are the events that are kept of such a muster.
func EventsOf(part *control.Found) []control.Event {
	r := Of(part)
	if r == nil {
		return nil
	}
	events, _ := r.Events() // what cannot be read is missing, as it is where nothing is kept
	return events
}
