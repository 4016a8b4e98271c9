package launch

import (
	"context"
	"math"
	"slices"
	"time"

	"muster/launch/progress"
	"muster/launch/report"
)

// doneSteps is how far workers of a node have come that have ended. What the next ones do up to there was done before.
type doneSteps struct {
	some bool
	most int64
	// unclear says that steps were told which do not only go up.
	unclear bool
}

// take takes in what a worker has told that has ended.
func (d *doneSteps) take(f *progress.File) {
	r, told := f.Read()
	if !told || !r.Steps {
		return
	}
	d.unclear = d.unclear || r.Back
	if !d.some || r.Most > d.most {
		d.some, d.most = true, r.Most
	}
}

// highest is the greatest step that was done before, nil where that cannot be told.
func (d *doneSteps) highest() *int64 {
	if !d.some || d.unclear {
		return nil
	}
	most := d.most
	return &most
}

// openProgress makes the file in which the program of a worker tells of itself. The job runs without it, too.
func (s *Steering) openProgress(rank int) *progress.File {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	highest := s.done.highest()
	s.mu.Unlock()
	f, err := progress.Create(s.dir.Path, rank, highest)
	if err != nil {
		s.log.Debug().Err(err).Int("rank", rank).Msg("what the worker tells of its progress is not heard")
	}
	return f
}

// progressOf is what a worker has told, nil for nothing.
func progressOf(f *progress.File) *report.Progress {
	r, told := f.Read()
	if !told || !r.Steps && r.Section == "" {
		return nil
	}
	p := &report.Progress{Step: r.Step, Total: r.Total, Section: r.Section, Time: moment(r.Told)}
	if r.Median > 0 {
		median := r.Median.Seconds()
		p.StepSeconds = &median
	}
	for _, v := range r.Values {
		if math.IsNaN(v.Number) || math.IsInf(v.Number, 0) { // which JSON cannot say
			p.NotFinite = append(p.NotFinite, v.Name)
			continue
		}
		if p.Values == nil {
			p.Values = map[string]float64{}
		}
		p.Values[v.Name] = v.Number
	}
	slices.Sort(p.NotFinite)
	return p
}

// progressBytes is how much the nodes of a round tell each other of their workers' progress in a second, all together.
const progressBytes = 512 << 10

// ProgressEvery is how often a node looks whether its workers have come further, to tell the others: where many have
// much to say, more rarely.
func ProgressEvery(nodes, bytes int) time.Duration {
	return max(publishEvery, time.Duration(nodes)*time.Duration(bytes)*time.Second/progressBytes)
}

// awaitNews waits until there is something that the other nodes have not been told: a change of the state at once, the
// progress of workers when it is looked at, where words is not what was said any more. It returns false where ctx has
// ended.
func (s *Steering) awaitNews(ctx context.Context, said uint64, every time.Duration) bool {
	look := time.NewTicker(every)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-s.changed:
			return true
		case <-look.C:
			if s.words() != said {
				return true
			}
		}
	}
}

// words is another number when a worker here has told something more, or was found to use more.
func (s *Steering) words() (sum uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sum = s.usageNews + s.devices.told()
	for i := range s.places {
		if w := s.places[i].worker; w != nil {
			if r, told := w.progress.Read(); told {
				sum += r.Words
			}
		}
	}
	return sum
}

// sectionsEvery is how often it is looked whether a section takes too long.
const sectionsEvery = 5 * time.Second

// watchSections warns of sections of workers' programs that take longer than they may, until it is closed.
func (s *Steering) watchSections() {
	tick := time.NewTicker(sectionsEvery)
	defer tick.Stop()
	for {
		select {
		case <-s.closed:
			return
		case <-tick.C:
			s.warnOfSections(time.Now())
		}
	}
}

// warnOfSections warns once of each section that takes too long.
func (s *Steering) warnOfSections(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.places {
		p := &s.places[i]
		if p.worker == nil || p.ended {
			continue
		}
		r, told := p.worker.progress.Read()
		if !told || r.SectionTimeout == 0 || now.Sub(r.SectionBegan) < r.SectionTimeout ||
			r.SectionBegan.Sub(s.warned[i]).Abs() < time.Second { // clocks are compared anew with each look
			continue
		}
		if s.warned == nil {
			s.warned = map[int]time.Time{}
		}
		s.warned[i] = r.SectionBegan
		s.log.Warn().Int("rank", p.worker.Rank).Str("section", r.Section).Dur("dur_ms", now.Sub(r.SectionBegan).Round(time.Millisecond)).
			Dur("timeout_ms", r.SectionTimeout).Msg("a section of the training takes longer than it says")
	}
}
