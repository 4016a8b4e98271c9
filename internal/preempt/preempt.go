// Package preempt hears that this machine, or the job on it, will be taken away: by a signal, a file that appears, a
// command, or the metadata service of a cloud. A Source is asked again and again; what it says is told once.
package preempt

import (
	"context"
	"sync"
	"time"

	"github.com/rs/zerolog"
)

// Notice says that this machine, or the job on it, will be taken away.
type Notice struct {
	// Source names where it came from, What says what will happen, as the source has it.
	Source, What string
	// Deadline is when that will be, zero where it is not told.
	Deadline time.Time

	// id tells it from another notice of the same source.
	id string
	// advice is true where nothing is decided yet: it is logged, and nothing more.
	advice bool
}

// Source is where notices come from.
type Source struct {
	name  string
	every time.Duration // between two questions
	// ask returns the notice that there is now, nil for none. It ends soon after ctx.
	ask func(ctx context.Context) (*Notice, error)
	// instead is what to try where it does not answer.
	instead string
	// local says that a failure is no accident, as it may be where a service is asked: it is told at once.
	local bool
}

// String names the source, for people.
func (s *Source) String() string { return s.name }

// longestPause bounds the pause after failures: Google's machines go 30 seconds after the notice.
const longestPause = 10 * time.Second

// Watch asks the sources until ctx ends, and calls told with each notice, from several goroutines. A source that says
// the same again is not heard; one that took its notice back may give another.
func Watch(ctx context.Context, log zerolog.Logger, told func(Notice), sources ...*Source) {
	var wg sync.WaitGroup
	for _, s := range sources {
		wg.Go(func() { s.watch(ctx, log.With().Str("source", s.name).Logger(), told) })
	}
	wg.Wait()
}

func (s *Source) watch(ctx context.Context, log zerolog.Logger, told func(Notice)) {
	failures, warned, last := 0, false, ""
	for {
		n, err := s.ask(ctx)
		if ctx.Err() != nil {
			return
		}
		pause := s.every
		if err != nil {
			failures++
			pause = min(s.every<<min(failures, 8), max(s.every, longestPause))
			level := zerolog.DebugLevel
			if (failures > 1 || s.local) && !warned { // a single one of a service may be an accident
				level, warned = zerolog.WarnLevel, true
			}
			log.WithLevel(level).Err(err).Str("try", s.instead).Msg("no word whether this machine will be taken away; asking goes on")
		} else {
			failures, warned = 0, false
			switch {
			case n == nil:
				last = ""
			case n.id == last:
			case n.advice:
				last = n.id
				log.Info().Str("reason", n.What).Msg("this machine may be taken away")
			default:
				last, n.Source = n.id, s.name
				told(*n)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}
