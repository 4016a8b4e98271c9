package control

import (
	"context"
	"slices"
	"time"
)

// feedEvery is how often several musters of one job are asked for events.
const feedEvery = 500 * time.Millisecond

// laterEvery is how often who follows a job looks for musters that have joined it.
const laterEvery = 2 * time.Second

// Feed is what the musters of one job tell of events, in the order of their times. It is not for several goroutines.
type Feed struct {
	sources []*feedSource
	// Kept are the events that are kept of a muster that answers no more: it may have ended between two questions; nil:
	// nothing is kept.
	Kept func(*Found) []Event
	// Later says which musters the job has by now, nil for those that there were: nodes may join. Where that cannot be
	// told it is asked again.
	Later  func(context.Context) ([]Found, error)
	looked time.Time // when that was asked last
}

// feedSource is a muster that is asked for its events.
type feedSource struct {
	part   Found
	client *Client
	seen   uint64
	gone   bool
}

// NewFeed asks the musters of the parts of one job.
func NewFeed(parts []Found) *Feed {
	f := Feed{looked: time.Now()}
	f.add(parts)
	return &f
}

// add takes in musters that are not known yet, and reports whether there were any.
func (f *Feed) add(parts []Found) (added bool) {
	for _, p := range parts {
		known := slices.ContainsFunc(f.sources, func(s *feedSource) bool { return s.part.Dir == p.Dir && s.part.PID == p.PID })
		if !known {
			f.sources, added = append(f.sources, &feedSource{part: p, client: p.Client()}), true
		}
	}
	return added
}

// joined asks for musters that have come since, at once or where that was long ago, and reports whether there were any.
func (f *Feed) joined(ctx context.Context, atOnce bool) bool {
	if f.Later == nil || !atOnce && time.Since(f.looked) < laterEvery {
		return false
	}
	parts, err := f.Later(ctx)
	f.looked = time.Now()
	return err == nil && f.add(parts)
}

// Each calls do with the events that there are, as they are found, and with follow with those that come until all musters
// have ended.
func (f *Feed) Each(ctx context.Context, follow bool, do func([]Event)) error {
	for first := true; ; first = false {
		found, err := f.ask(ctx, follow && !first && len(f.sources) == 1)
		if err != nil {
			return err
		}
		do(found)
		over := !slices.ContainsFunc(f.sources, func(s *feedSource) bool { return !s.gone })
		if follow {
			joined := f.joined(ctx, over)
			over = over && !joined
		}
		if over || !follow && len(found) == 0 {
			return nil
		}
		if len(found) > 0 || len(f.sources) == 1 {
			continue
		}
		select {
		case <-time.After(feedEvery):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// ask asks each muster for what is new there.
func (f *Feed) ask(ctx context.Context, wait bool) (found []Event, err error) {
	for _, s := range f.sources {
		if s.gone {
			continue
		}
		more, err := s.client.Events(ctx, s.seen, wait)
		switch {
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case Unreachable(err):
			s.gone = true // its part of the job has ended
			more = nil
			if f.Kept != nil {
				more = slices.DeleteFunc(f.Kept(&s.part), func(e Event) bool { return e.Seq <= s.seen })
			}
		case err != nil:
			return nil, err
		}
		for _, e := range more {
			s.seen = max(s.seen, e.Seq)
		}
		found = append(found, more...)
	}
	SortEvents(found)
	return found, nil
}

// SortEvents puts events of several musters in the order of their times.
func SortEvents(events []Event) {
	slices.SortStableFunc(events, func(x, y Event) int { return x.Time.Compare(y.Time) })
}
