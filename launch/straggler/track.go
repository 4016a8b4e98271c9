// Package straggler finds the ranks of a training for which the others wait again and again.
//
// In a synchronous training all ranks have the same step time: the slow one is that which waits least in it. What each
// rank does by itself in a step is its own time: what the busiest of its threads ran or wanted to run, and what it
// waited for a disk or its data; or exactly what its program tells, where that says when it waits for others.
//
// The package knows no process and no clock.
package straggler

import (
	"slices"
	"time"
)

const (
	// leastSteps is how many steps a part of what is compared has, parts how many of these there are: 50 steps. A rank
	// is as slow as its second best part: one that is slow for a while is not slow.
	leastSteps = 10
	parts      = 5
	// outsideShare is which share of the time a rank may be outside of its steps, in sections, for its use of the
	// processors to be that of steps.
	outsideShare = 0.25
)

// Sample is what was seen of a rank at a moment. All but At and Step are sums since its process began.
type Sample struct {
	At   time.Time
	Step int64
	// Steps is the time in steps, Collective and Loading that in sections of these names, which are not in it.
	Steps, Collective, Loading time.Duration
	// Busy is what the busiest of the rank's threads ran and waited for a core or a disk in each interval between two
	// samples; Queued and Disk are the parts of it that it waited.
	Busy, Queued, Disk time.Duration
	// Node are counters of the rank's node.
	Node Node
}

// Node are counters of a node that show what slows its ranks down.
type Node struct {
	// Throttled is for how long a limit of a control group kept processes from every core, Hot for how long cores had a
	// lower clock because of heat. Stolen is the share of the processors that the hypervisor gave to others, times
	// time. Swapped counts pages that were read back from swap.
	Throttled, Hot, Stolen time.Duration
	Swapped                int64
}

// Figures are what one rank does in a step, in seconds, as it is told to who compares.
type Figures struct {
	Rank int `json:"rank"`
	// Node and GroupRank are its node's, which has so many Workers.
	Node      string `json:"node"`
	GroupRank int    `json:"groupRank"`
	Workers   int    `json:"workers"`
	// Step is the time of a step. Own is what the rank does by itself in it, 0 where that is not known; Queued, Disk and
	// Loading are the parts of it in which it waits for a core, a disk or its data.
	Step    float64 `json:"step"`
	Own     float64 `json:"own,omitempty"`
	Queued  float64 `json:"queued,omitempty"`
	Disk    float64 `json:"disk,omitempty"`
	Loading float64 `json:"loading,omitempty"`
	// Busy is Own without what the rank waits for a core, 0 where that is not known.
	Busy float64 `json:"busy,omitempty"`
	// Throttled, Hot and Stolen are shares of the time, Swapped are pages in a second, of the node.
	Throttled float64 `json:"throttled,omitempty"`
	Hot       float64 `json:"hot,omitempty"`
	Stolen    float64 `json:"stolen,omitempty"`
	Swapped   float64 `json:"swapped,omitempty"`
}

// part is what a rank did in some steps.
type part struct {
	step, own, busy, queued, disk, loading float64 // of a step
	known                                  bool    // own and busy are
}

// Track is what one rank has done lately. The zero value has seen nothing.
type Track struct {
	last  *Sample // where the part that is not complete begins
	parts []part
	nodes []Sample // where the parts began
}

// Add takes in a sample. One of a process before which there was another begins anew, as do steps that go back.
func (t *Track) Add(s Sample) {
	if t.last == nil || s.Step < t.last.Step || s.Steps < t.last.Steps {
		*t = Track{last: &s}
		return
	}
	steps := s.Step - t.last.Step
	if steps < leastSteps {
		return
	}
	t.parts = append(t.parts, between(t.last, &s, float64(steps)))
	t.nodes = append(t.nodes, *t.last)
	t.parts, t.nodes = t.parts[max(0, len(t.parts)-parts):], t.nodes[max(0, len(t.nodes)-parts):]
	t.last = &s
}

// between is what a rank did between two samples.
func between(a, b *Sample, steps float64) part {
	collective, loading := (b.Collective - a.Collective).Seconds(), (b.Loading - a.Loading).Seconds()
	in, busy := (b.Steps - a.Steps).Seconds(), (b.Busy - a.Busy).Seconds()
	whole := in + collective + loading
	p := part{
		step: whole / steps, loading: loading / steps,
		queued: (b.Queued - a.Queued).Seconds() / steps, disk: (b.Disk - a.Disk).Seconds() / steps,
	}
	passed := b.At.Sub(a.At).Seconds()
	switch {
	case collective > 0: // it says itself when it waits for the others
		p.own, p.known = (in+loading)/steps, true
	case whole >= (1-outsideShare)*passed:
		p.own, p.known = min(busy+loading, whole)/steps, true
	}
	p.busy = max(p.own-p.queued, 0)
	return p
}

// Figures are what the rank does in a step, false where it has not been seen for long enough.
func (t *Track) Figures() (f Figures, known bool) {
	if len(t.parts) < parts {
		return f, false
	}
	f.Step = second(t.parts, func(p *part) float64 { return p.step })
	f.Queued = second(t.parts, func(p *part) float64 { return p.queued })
	f.Disk = second(t.parts, func(p *part) float64 { return p.disk })
	f.Loading = second(t.parts, func(p *part) float64 { return p.loading })
	if !slices.ContainsFunc(t.parts, func(p part) bool { return !p.known }) {
		f.Own = second(t.parts, func(p *part) float64 { return p.own })
		f.Busy = second(t.parts, func(p *part) float64 { return p.busy })
	}
	begin := t.nodes[0]
	if passed := t.last.At.Sub(begin.At).Seconds(); passed > 0 {
		a, b := &begin.Node, &t.last.Node
		f.Throttled, f.Hot = (b.Throttled-a.Throttled).Seconds()/passed, (b.Hot-a.Hot).Seconds()/passed
		f.Stolen, f.Swapped = (b.Stolen-a.Stolen).Seconds()/passed, float64(b.Swapped-a.Swapped)/passed
	}
	return f, true
}

// second is the second lowest of a value.
func second(list []part, of func(*part) float64) float64 {
	values := make([]float64, len(list))
	for i := range list {
		values[i] = of(&list[i])
	}
	slices.Sort(values)
	return values[1]
}
