package straggler

import (
	"fmt"
	"math"
	"slices"
)

const (
	// Limit is from how many times the median on a rank is slow. One that was is not any more below limitBack.
	Limit     = 1.3
	limitBack = 1.15
	// ownShare is which share of the step time the own time of a slow rank has at least.
	ownShare = 0.5
	// spreads is how many times as far from the median as the others a slow rank is, by the median deviation.
	spreads   = 3
	deviation = 1.4826 // of a normal distribution, by its median deviation
	// crowd is which share of its own time the median rank waits for a core from which on it is compared without that,
	// too: where all wait for cores, what they compute differs by more than what they take.
	crowd = 0.1
)

// Cause is why a rank is slow, in a word.
type Cause string

// The causes. Those from Work on are of the rank, the others of its node.
const (
	Throttled Cause = "throttled" // a limit of its control group keeps it from the cores
	Hot       Cause = "heat"      // its cores have a lower clock because of heat
	Stolen    Cause = "steal"     // the hypervisor gives the cores to others
	Swapped   Cause = "swap"      // memory is read back from swap
	Crowded   Cause = "crowded"   // it waits for cores that others use
	Disk      Cause = "disk"      // it waits for a disk
	Work      Cause = "work"      // its own work takes longer
	Data      Cause = "data"      // it waits for its data, by its own word
	Waits     Cause = "waits"     // its steps take longer, and it does not compute in them
)

// OfNode reports whether the cause lies in the node and not in the program.
func (c Cause) OfNode() bool {
	return slices.Contains([]Cause{Throttled, Hot, Stolen, Swapped, Crowded, Disk}, c)
}

// Finding is a rank that is slow.
type Finding struct {
	Rank      int    `json:"rank"`
	Node      string `json:"node"`
	GroupRank int    `json:"groupRank"`
	// Ratio is how many times as long as the median of all ranks it takes, in the seconds Own of its own time in a step,
	// or in those of a whole step where the ranks do not wait for each other. Median is what it is compared with.
	Ratio  float64 `json:"ratio"`
	Own    float64 `json:"own"`
	Median float64 `json:"median"`
	Step   float64 `json:"step"`
	Whole  bool    `json:"whole,omitempty"`
	// Crowded says that Own and Median are without the time in which the ranks wait for cores.
	Crowded bool  `json:"crowded,omitempty"`
	Cause   Cause `json:"cause"`
	// Detail is the cause in words.
	Detail string `json:"detail"`
}

// Sentence says what was found.
func (f *Finding) Sentence() string {
	if f.Whole {
		return fmt.Sprintf("rank %d on node %s is slow: its steps take %s, %.1f times the median of all ranks (%s): %s",
			f.Rank, f.Node, seconds(f.Own), f.Ratio, seconds(f.Median), f.Detail)
	}
	if f.Crowded {
		return fmt.Sprintf("rank %d on node %s holds up the others: it is busy for %s in a step of %s, %.1f times the median of all "+
			"ranks (%s), without what all wait for cores: %s",
			f.Rank, f.Node, seconds(f.Own), seconds(f.Step), f.Ratio, seconds(f.Median), f.Detail)
	}
	return fmt.Sprintf("rank %d on node %s holds up the others: its own part of a step of %s takes %s, "+
		"%.1f times the median of all ranks (%s): %s",
		f.Rank, f.Node, seconds(f.Step), seconds(f.Own), f.Ratio, seconds(f.Median), f.Detail)
}

func seconds(s float64) string {
	if s < 0.1 {
		return fmt.Sprintf("%.1f ms", 1000*s)
	}
	return fmt.Sprintf("%.2f s", s)
}

// finding is that the rank is slow, for a time that is compared with the median of all ranks.
func (f *Figures) finding(own, median float64, whole bool) Finding {
	return Finding{
		Rank: f.Rank, Node: f.Node, GroupRank: f.GroupRank, Ratio: own / median, Own: own, Median: median, Step: f.Step, Whole: whole,
	}
}

// Judge compares the ranks of a round again and again. The zero value has found nothing.
type Judge struct{ slow map[int]bool }

// Verdict is what a comparison has found.
type Verdict struct {
	// Slow are the ranks that are slow now, New those of them that were not before.
	Slow []Finding `json:"slow,omitempty"`
	New  []Finding `json:"-"`
	// Ratios are how many times as long as the median each rank takes, by rank.
	Ratios map[int]float64 `json:"ratios,omitempty"`
	// Leaves is the slowest rank of those whose node would have to leave, nil where there is none: the cause lies in the
	// node, or all its workers are slow.
	Leaves *Finding `json:"leaves,omitempty"`
}

// Compare compares ranks, of which there are world. Where less than half of them tell how they stand nobody is slow.
func (j *Judge) Compare(all []Figures, world int) (v Verdict) {
	if len(all) < 2 || 2*len(all) <= world {
		return v
	}
	v.Ratios = map[int]float64{}
	was := j.slow
	j.slow = map[int]bool{}
	step, spread := middle(all, func(f *Figures) float64 { return f.Step })
	normal := 0
	for i := range all {
		if all[i].Step <= Limit*step {
			normal++
		}
	}
	var together []Figures // whose steps take equally long: they may wait for each other
	for i := range all {
		f := &all[i]
		ratio := f.Step / step
		switch {
		case ratio > Limit:
			v.Ratios[f.Rank] = ratio
			if f.Step > step+spreads*spread && 2*normal > len(all) { // else the others may be in sections while these wait for them
				v.Slow = append(v.Slow, f.finding(f.Step, step, true))
			}
		case f.Own > 0 && ratio*Limit > 1:
			together = append(together, *f)
		}
	}
	if len(together) > 1 && 2*len(together) > world {
		own, spread := middle(together, func(f *Figures) float64 { return f.Own })
		for i := range together {
			f := &together[i]
			ratio := f.Own / own
			v.Ratios[f.Rank] = ratio
			if limit := limitOf(was[f.Rank]); ratio > limit && f.Own > own+spreads*spread && f.Own >= ownShare*f.Step {
				v.Slow = append(v.Slow, f.finding(f.Own, own, false))
			}
		}
		v.crowded(together, was)
	}
	slices.SortFunc(v.Slow, func(a, b Finding) int { return a.Rank - b.Rank })
	for i := range v.Slow {
		s := &v.Slow[i]
		s.Cause, s.Detail = cause(s, all)
		j.slow[s.Rank] = true
		if !was[s.Rank] {
			v.New = append(v.New, *s)
		}
	}
	v.Leaves = leaving(v.Slow, all)
	return v
}

// crowded compares what ranks do without the time in which they wait for cores, where the median rank waits for them, and
// adds those that are slow by that alone.
func (v *Verdict) crowded(together []Figures, was map[int]bool) {
	waits, _ := middle(together, func(f *Figures) float64 { return f.Queued / f.Own })
	if waits < crowd || slices.ContainsFunc(together, func(f Figures) bool { return f.Busy == 0 }) {
		return
	}
	busy, spread := middle(together, func(f *Figures) float64 { return f.Busy })
	for i := range together {
		f := &together[i]
		ratio := f.Busy / busy
		v.Ratios[f.Rank] = max(v.Ratios[f.Rank], ratio)
		if ratio > limitOf(was[f.Rank]) && f.Busy > busy+spreads*spread && f.Own >= ownShare*f.Step &&
			!slices.ContainsFunc(v.Slow, func(o Finding) bool { return o.Rank == f.Rank }) {
			slow := f.finding(f.Busy, busy, false)
			slow.Crowded = true
			v.Slow = append(v.Slow, slow)
		}
	}
}

// leaving is the slowest rank of those whose node is slow, and not the rank alone.
func leaving(slow []Finding, all []Figures) (worst *Finding) {
	workers, ranks := map[int]int{}, map[int]int{} // by group rank
	for i := range all {
		workers[all[i].GroupRank] = all[i].Workers
	}
	for i := range slow {
		ranks[slow[i].GroupRank]++
	}
	for i := range slow {
		s := &slow[i]
		if (s.Cause.OfNode() || ranks[s.GroupRank] >= workers[s.GroupRank]) && (worst == nil || s.Ratio > worst.Ratio) {
			worst = s
		}
	}
	if worst == nil || len(ranks) == 1 && len(workers) == 1 {
		return nil // there is no other node
	}
	found := *worst
	return &found
}

func limitOf(was bool) float64 {
	if was {
		return limitBack
	}
	return Limit
}

// middle is the median of a value that is not 0, the lower one of two, and the spread of the others around it.
func middle(all []Figures, of func(*Figures) float64) (median, spread float64) {
	values := make([]float64, len(all))
	for i := range all {
		values[i] = of(&all[i])
	}
	median = lower(values)
	for i, v := range values {
		values[i] = math.Abs(v - median)
	}
	return max(median, 1e-9), deviation * lower(values)
}

func lower(values []float64) float64 {
	slices.Sort(values)
	return values[(len(values)-1)/2]
}

// cause is why a rank is slow, by what is more with it than with others.
func cause(s *Finding, all []Figures) (Cause, string) {
	f := &all[slices.IndexFunc(all, func(f Figures) bool { return f.Rank == s.Rank })]
	// more is a value where it is at least so much, and twice that of the median rank.
	more := func(of func(*Figures) float64, least float64) (float64, bool) {
		median, _ := middle(all, of)
		value := of(f)
		return value, value >= least && value >= 2*median
	}
	excess := s.Own - s.Median
	// part says that a part of its time is at least half of what it takes longer than others, and a greater share of its
	// time than of theirs: who has more work on a crowded machine also waits longer.
	part := func(of func(*Figures) float64) (float64, bool) {
		median, _ := middle(all, of)
		shares, _ := middle(all, func(f *Figures) float64 { return of(f) / max(f.Own, 1e-9) })
		value := of(f)
		return value, value-median >= excess/2 && value/s.Own >= 1.25*shares
	}
	const share = 0.05
	if v, is := more(func(f *Figures) float64 { return f.Throttled }, share); is {
		return Throttled, fmt.Sprintf("the limit of its control group kept it from the cores for %.0f %% of the time (cpu.max)", 100*v)
	}
	if v, is := more(func(f *Figures) float64 { return f.Hot }, share); is {
		return Hot, fmt.Sprintf("its cores had a lower clock because of heat for %.0f %% of the time", 100*min(v, 1))
	}
	if v, is := more(func(f *Figures) float64 { return f.Stolen }, share); is {
		return Stolen, fmt.Sprintf("the hypervisor gave %.0f %% of the node's processors to others (steal)", 100*v)
	}
	if v, is := more(func(f *Figures) float64 { return f.Swapped }, 50); is {
		return Swapped, fmt.Sprintf("the node reads %.0f pages a second back from swap", v)
	}
	if v, is := part(func(f *Figures) float64 { return f.Disk }); is {
		return Disk, "it waits for a disk for " + seconds(v) + " of it"
	}
	if v, is := part(func(f *Figures) float64 { return f.Queued }); is && !s.Crowded {
		return Crowded, "it waits for a core, which other processes use, for " + seconds(v) + " of it"
	}
	if v, is := part(func(f *Figures) float64 { return f.Loading }); is {
		return Data, "it waits for its data for " + seconds(v) + " of it, by its program's word"
	}
	if s.Whole && f.Own < ownShare*f.Step {
		return Waits, "it does not compute meanwhile: muster diagnose shows what it waits for"
	}
	return Work, "its own work takes longer, by processor time"
}
