package main

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"muster/internal/logtext"
	"muster/internal/periodic"
	"muster/netcheck"
)

// progress tells what a long work does just now: on a terminal in a line that changes every second, elsewhere in lines
// of the log about a step that takes long, ever more rarely. Safe for concurrent use.
type progress struct {
	out  *logWriter
	log  zerolog.Logger
	stop func()

	mu     sync.Mutex
	step   string
	detail string // of the step, as whoever does it calls it
	limit  time.Duration
	began  time.Time     // of the step
	told   time.Time     // in the log, or that the step began
	pause  time.Duration // until it is told the next time
}

// newProgress begins with a step. Whoever gets it has to end it.
func (a *app) newProgress(log zerolog.Logger, step string) *progress {
	p := &progress{out: &a.log, log: log}
	p.next(step, 0)
	p.stop = periodic.Every(time.Second, func(time.Duration) { p.tell() })
	return p
}

// next begins another step, which may take no longer than limit; 0: nobody knows how long.
func (p *progress) next(step string, limit time.Duration) {
	now := time.Now()
	p.mu.Lock()
	p.step, p.detail, p.limit, p.began, p.told, p.pause = step, "", limit, now, now, logtext.RepeatFirst
	p.mu.Unlock()
	p.tell()
}

// check is next for a step of the check of nodes.
func (p *progress) check(s netcheck.Step) {
	what := string(s.Doing)
	if s.Doing == netcheck.TestsPair {
		what = fmt.Sprintf("testing the link to the node with group rank %d, round %d of pairs", s.Peer, s.Pairs)
	}
	p.next("check of the nodes: "+what, s.Limit)
}

// process tells what a process of the check program does in this step; see devicecheck.Config.Progress.
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
	if p.out.show(line.String()) || time.Since(p.told) < p.pause {
		return
	}
	p.told, p.pause = time.Now(), min(2*p.pause, logtext.RepeatMost)
	event := p.log.Info().Dur("dur_ms", took)
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
