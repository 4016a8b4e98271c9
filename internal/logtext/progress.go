package logtext

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"muster/internal/periodic"
)

// Progress tells what a long work does just now: on a terminal in a line that changes every second, elsewhere in lines
// of the log about a step that takes long, ever more rarely. Safe for concurrent use.
type Progress struct {
	show func(status string) bool // see Writer.Status
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

// NewProgress begins with a step. show replaces the line on the terminal, "" takes it away, and reports whether there is
// a terminal. Whoever gets the Progress has to end it.
func NewProgress(show func(status string) bool, log zerolog.Logger, step string) *Progress {
	p := &Progress{show: show, log: log}
	p.Next(step, 0)
	p.stop = periodic.Every(time.Second, func(time.Duration) { p.tell() })
	return p
}

// Next begins another step, which may take no longer than limit; 0: nobody knows how long.
func (p *Progress) Next(step string, limit time.Duration) {
	now := time.Now()
	p.mu.Lock()
	p.step, p.detail, p.limit, p.began, p.told, p.pause = step, "", limit, now, now, RepeatFirst
	p.mu.Unlock()
	p.tell()
}

// Detail says what is done in this step just now.
func (p *Progress) Detail(text string) {
	p.mu.Lock()
	p.detail = text
	p.mu.Unlock()
}

func (p *Progress) tell() {
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
	if p.show(line.String()) || time.Since(p.told) < p.pause {
		return
	}
	p.told, p.pause = time.Now(), min(2*p.pause, RepeatMost)
	event := p.log.Info().Dur("dur_ms", took)
	if p.detail != "" {
		event.Str("step", p.detail)
	}
	if p.limit > 0 {
		event.Dur("timeout_ms", p.limit)
	}
	event.Msg(p.step)
}

// End takes the line away.
func (p *Progress) End() {
	p.stop()
	p.show("")
}
