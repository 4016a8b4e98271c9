package main

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"muster/netcheck"
)

// progress tells what a long work does just now: on a terminal in a line that changes every second, elsewhere in a line of
// the log for each step, and again while the step goes on. Safe for concurrent use.
type progress struct {
	out  *logWriter
	log  zerolog.Logger
	stop func()

	mu     sync.Mutex
	step   string
	detail string // of the step, as whoever does it calls it
	limit  time.Duration
	began  time.Time // of the step
	told   time.Time // in the log; zero: not yet
}

// newProgress begins with a step, of which the log says nothing until it takes long. Whoever gets it has to end it.
func (a *app) newProgress(log zerolog.Logger, step string) *progress {
	p := &progress{out: &a.log, log: log}
	p.next(step, 0, time.Now())
	p.stop = every(time.Second, func(time.Duration) { p.tell() })
	return p
}

// next begins another step, which may take no longer than limit; 0: nobody knows how long. told is when the log has said so;
// zero: it is to.
func (p *progress) next(step string, limit time.Duration, told time.Time) {
	p.mu.Lock()
	p.step, p.detail, p.limit, p.began, p.told = step, "", limit, time.Now(), told
	p.mu.Unlock()
	p.tell()
}

// check is next for a step of the check of nodes.
func (p *progress) check(s netcheck.Step) {
	what := string(s.Doing)
	var told time.Time
	switch s.Doing {
	case netcheck.TestsPair:
		what = fmt.Sprintf("testing the link to the node with group rank %d, round %d of pairs", s.Peer, s.Pairs)
	case netcheck.Waits: // between any two steps, mostly for no time
		told = time.Now()
	default:
	}
	p.next("check of the nodes: "+what, s.Limit, told)
}

// process tells what a process of the check program does in this step; see crew.Config.Progress.
func (p *progress) process(local int, step string) {
	if local >= 0 {
		step = fmt.Sprintf("device %d: %s", local, step)
	}
	p.mu.Lock()
	p.detail = step
	p.mu.Unlock()
}

func (p *progress) tell() {
	p.mu.Lock()
	defer p.mu.Unlock()
	took := time.Since(p.began)
	var line strings.Builder
	line.WriteString(p.step)
	if p.detail != "" {
		line.WriteString(" (" + p.detail + ")")
	}
	if took >= time.Second || p.limit > 0 {
		fmt.Fprintf(&line, ", %d", int(took.Seconds()))
		if p.limit > 0 {
			fmt.Fprintf(&line, " of at most %d", int(p.limit.Seconds()))
		}
		line.WriteString(" s")
	}
	if p.out.show(line.String()) || time.Since(p.told) < progressEvery {
		return
	}
	again := !p.told.IsZero()
	p.told = time.Now()
	event := p.log.Info()
	if again {
		event.Dur("dur_ms", took)
	}
	if p.detail != "" {
		event.Str("step", p.detail)
	}
	if p.limit > 0 {
		event.Dur("timeout_ms", p.limit)
	}
	event.Msg(p.step)
}

// end takes the line away.
func (p *progress) end() {
	p.stop()
	p.out.show("")
}
