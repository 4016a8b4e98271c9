package straggler

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// training is one that is made up.
type training struct {
	ranks, steps int
	step         float64 // seconds of own time
	noise        float64
	// factor is how many times as long a rank takes in a step.
	factor func(rank, step int) float64
	// free says that nobody waits for others; spins that who waits uses a core; sections that programs tell when they
	// wait.
	free, spins, sections bool
	// evaluates is after how many steps rank 0 evaluates, as long as that takes; told says that it does so in a section.
	evaluates  int
	evaluation float64
	told       bool
	// saves is after how many steps all ranks wait for 20 s.
	saves int
	// queued is which part of what a slow rank takes longer it waits for a core, disk the same for a disk, loading for
	// its data; crowd is which part of what all take they wait for a core. node changes the counters of its node.
	queued, disk, loading, crowd float64
	node                         func(n *Node, passed time.Duration)
}

func seconds64(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// run has the training compared as it would be, every 5 s, and returns all that was found new, by rank and cause.
func (tr training) run(seed uint64) (found []string, last Verdict) {
	random := rand.New(rand.NewPCG(seed, 1))
	tracks, sums := make([]Track, tr.ranks), make([]Sample, tr.ranks)
	clocks := make([]float64, tr.ranks)
	var j Judge
	begin, look := time.Unix(1e9, 0), 5.0
	seen := map[string]bool{}
	for step := 1; step <= tr.steps; step++ {
		begun, latest := append([]float64(nil), clocks...), 0.0
		own, outside := make([]float64, tr.ranks), make([]float64, tr.ranks)
		for r := range tr.ranks {
			more := 0.0
			own[r] = tr.step * (1 + tr.noise*(2*random.Float64()-1))
			if tr.factor != nil {
				more = own[r] * (tr.factor(r, step) - 1)
			}
			own[r] += more
			s := &sums[r]
			s.Queued += seconds64(tr.queued*more + tr.crowd*(own[r]-more))
			s.Disk += seconds64(tr.disk * more)
			s.Loading += seconds64(tr.loading * more)
			s.Busy += seconds64(own[r] - tr.loading*more)
			s.Steps -= seconds64(tr.loading * more)
			if r == 0 && tr.evaluates > 0 && step%tr.evaluates == 0 {
				s.Busy += seconds64(tr.evaluation)
				own[r] += tr.evaluation
				if tr.told {
					outside[r] = tr.evaluation
				}
			}
			if clocks[r] += own[r]; clocks[r] > latest {
				latest = clocks[r]
			}
		}
		stall := 0.0
		if tr.saves > 0 && step%tr.saves == 0 {
			stall = 20
		}
		for r := range tr.ranks {
			s := &sums[r]
			if !tr.free {
				waited := latest - clocks[r]
				clocks[r] = latest
				if tr.spins {
					s.Busy += seconds64(waited)
				}
				if tr.sections {
					s.Collective += seconds64(waited)
					outside[r] += waited
				}
			}
			clocks[r] += stall
			s.Steps += seconds64(clocks[r] - begun[r] - outside[r])
			s.Step = int64(step)
		}
		for clocks[0] >= look {
			var all []Figures
			for r := range tr.ranks {
				s := sums[r]
				s.At = begin.Add(seconds64(look))
				if tr.node != nil && tr.factor(r, step) > 1 {
					tr.node(&s.Node, seconds64(look))
				}
				tracks[r].Add(s)
				if f, known := tracks[r].Figures(); known {
					f.Rank, f.Node, f.GroupRank, f.Workers = r, fmt.Sprintf("node-%d", r), r, 1
					all = append(all, f)
				}
			}
			last = j.Compare(all, tr.ranks)
			for _, f := range last.New {
				if what := fmt.Sprintf("%d %s", f.Rank, f.Cause); !seen[what] {
					seen[what] = true
					found = append(found, what)
				}
			}
			look += 5
		}
	}
	return found, last
}

// only has one rank take so many times as long.
func only(rank int, times float64) func(int, int) float64 {
	return func(r, _ int) float64 {
		if r == rank {
			return times
		}
		return 1
	}
}

// during has rank 2 take so many times as long in some steps.
func during(from, to int, times float64) func(int, int) float64 {
	return func(r, step int) float64 {
		if r == 2 && step >= from && step < to {
			return times
		}
		return 1
	}
}

// Nobody is blamed in trainings in which nobody is slow for long.
func TestHealthy(t *testing.T) {
	for name, tr := range map[string]training{
		"noise":                        {ranks: 8, noise: 0.2},
		"two ranks":                    {ranks: 2, noise: 0.2},
		"spins":                        {ranks: 8, noise: 0.2, spins: true, factor: only(3, 1.5)},
		"sections":                     {ranks: 8, noise: 0.2, sections: true},
		"no waiting":                   {ranks: 8, noise: 0.2, free: true},
		"evaluation":                   {ranks: 4, noise: 0.1, evaluates: 200, evaluation: 10},
		"evaluation in a section":      {ranks: 4, noise: 0.1, evaluates: 20, evaluation: 10, told: true},
		"evaluation, spins":            {ranks: 4, noise: 0.1, evaluates: 20, evaluation: 10, told: true, spins: true},
		"evaluation, two":              {ranks: 2, noise: 0.1, evaluates: 20, evaluation: 10, told: true},
		"evaluation, two, spins":       {ranks: 2, noise: 0.1, evaluates: 20, evaluation: 10, told: true, spins: true},
		"checkpoints":                  {ranks: 8, noise: 0.2, saves: 30},
		"slow for ten steps":           {ranks: 8, noise: 0.1, factor: during(200, 210, 5)},
		"the first steps":              {ranks: 8, noise: 0.1, factor: during(0, 10, 10)},
		"a little slower":              {ranks: 8, noise: 0.1, factor: only(5, 1.15)},
		"crowded by all":               {ranks: 8, noise: 0.2, crowd: 0.8},
		"crowded, and a little slower": {ranks: 8, noise: 0.1, crowd: 0.5, factor: only(5, 1.07)},
		"other work, as in a pipeline": {ranks: 8, noise: 0.1, factor: func(r, _ int) float64 { return 1 + 0.15*float64(r) }},
		"who has work differs": {ranks: 8, noise: 0.1, factor: func(r, step int) float64 {
			return 1 + float64(truth(step%8 == r))
		}},
	} {
		for _, step := range []float64{0.02, 0.3, 2} {
			tr.step, tr.steps = step, max(400, int(200/step))
			for seed := range uint64(4) {
				if found, _ := tr.run(seed); len(found) > 0 {
					t.Errorf("%s, steps of %v s, seed %d: %v", name, step, seed, found)
				}
			}
		}
	}
}

func truth(is bool) int {
	if is {
		return 1
	}
	return 0
}

// A rank that takes half as long again is named, and why.
func TestSlow(t *testing.T) {
	for name, c := range map[string]struct {
		training
		found string
	}{
		"work":           {training{ranks: 8, noise: 0.1, factor: only(3, 1.5)}, "3 work"},
		"two ranks":      {training{ranks: 2, noise: 0.1, factor: only(1, 1.5)}, "1 work"},
		"evaluation":     {training{ranks: 4, noise: 0.1, factor: only(2, 1.5), evaluates: 1000, evaluation: 10}, "2 work"},
		"sections":       {training{ranks: 8, noise: 0.1, factor: only(3, 1.5), sections: true, spins: true}, "3 work"},
		"no waiting":     {training{ranks: 8, noise: 0.1, factor: only(3, 1.5), free: true}, "3 work"},
		"queue":          {training{ranks: 8, noise: 0.1, factor: only(3, 1.5), queued: 0.9}, "3 crowded"},
		"crowded, work":  {training{ranks: 8, noise: 0.1, factor: only(3, 1.5), queued: 0.8, crowd: 0.8}, "3 work"},
		"crowded by all": {training{ranks: 8, noise: 0.1, factor: only(3, 1.25), crowd: 0.5}, "3 work"},
		"disk":           {training{ranks: 8, noise: 0.1, factor: only(3, 1.5), disk: 0.9}, "3 disk"},
		"data":           {training{ranks: 8, noise: 0.1, factor: only(3, 1.6), loading: 1}, "3 data"},
		"throttled": {training{
			ranks: 8, noise: 0.1, factor: only(3, 1.5), queued: 0.9,
			node: func(n *Node, passed time.Duration) { n.Throttled = passed / 3 },
		}, "3 throttled"},
		"heat": {training{
			ranks: 8, noise: 0.1, factor: only(3, 1.5), node: func(n *Node, passed time.Duration) { n.Hot = passed / 2 },
		}, "3 heat"},
		"steal": {training{
			ranks: 8, noise: 0.1, factor: only(3, 1.5), node: func(n *Node, passed time.Duration) { n.Stolen = passed / 5 },
		}, "3 steal"},
		"swap": {training{
			ranks: 8, noise: 0.1, factor: only(3, 1.5),
			node: func(n *Node, passed time.Duration) { n.Swapped = int64(passed.Seconds() * 500) },
		}, "3 swap"},
	} {
		for _, step := range []float64{0.02, 0.3, 2} {
			tr := c.training
			tr.step, tr.steps = step, max(400, int(100/step))
			found, last := tr.run(7)
			if strings.Join(found, ", ") != c.found {
				t.Errorf("%s, steps of %v s: %v, want %s", name, step, found, c.found)
			} else if len(last.Slow) != 1 || last.Ratios[last.Slow[0].Rank] < Limit ||
				!strings.Contains(last.Slow[0].Sentence(), "times the median") {
				t.Errorf("%s: %+v", name, last)
			} else if last.Leaves == nil || last.Leaves.GroupRank != last.Slow[0].Rank {
				t.Errorf("%s: %+v leaves", name, last.Leaves)
			}
		}
	}
}

// A rank that is slow no more is forgotten, and named anew when it is again.
func TestSlowAgain(t *testing.T) {
	var j Judge
	all := make([]Figures, 4)
	named := func(own float64) int {
		for i := range all {
			all[i] = Figures{Rank: i, Step: 1, Own: 0.5}
		}
		all[1].Own = own
		return len(j.Compare(all, 4).New)
	}
	if got := []int{named(0.7), named(0.7), named(0.6), named(0.7), named(0.5), named(0.7)}; fmt.Sprint(got) != "[1 0 0 0 0 1]" {
		t.Errorf("new were %v", got)
	}
	if v := j.Compare(all[:2], 4); len(v.Slow) > 0 || v.Ratios != nil {
		t.Errorf("half of the ranks decide: %+v", v)
	}
}

// A node has to leave for a cause that lies in it, or when all its workers are slow.
func TestLeaves(t *testing.T) {
	for name, c := range map[string]struct {
		change func(all []Figures)
		leaves string
	}{
		"one of two workers": {func(all []Figures) { all[2].Own = 0.9 }, "none"},
		"both":               {func(all []Figures) { all[2].Own, all[3].Own = 0.8, 0.9 }, "rank 3 of node-1"},
		"one, of the node":   {func(all []Figures) { all[2].Own, all[2].Queued = 0.9, 0.4 }, "rank 2 of node-1"},
		"the only node": {func(all []Figures) {
			for i := range all {
				all[i].GroupRank, all[i].Workers = 0, 8
			}
			all[2].Own, all[2].Queued = 0.9, 0.4
		}, "none"},
	} {
		all := make([]Figures, 8)
		for i := range all {
			all[i] = Figures{Rank: i, Node: fmt.Sprintf("node-%d", i/2), GroupRank: i / 2, Workers: 2, Step: 1, Own: 0.5}
		}
		c.change(all)
		leaves := "none"
		var j Judge
		if f := j.Compare(all, 8).Leaves; f != nil {
			leaves = fmt.Sprintf("rank %d of %s", f.Rank, f.Node)
		}
		if leaves != c.leaves {
			t.Errorf("%s: %s leaves, want %s", name, leaves, c.leaves)
		}
	}
}

// Four ranks on two cores, of which the last has half as much work again: with the waiting for cores, which all do, it
// takes 1.16 times the median (recorded, 2026-11-27), by what it computes 1.49 times. It is named, and no other, and a
// machine on which nobody waits for cores names nobody with the same sums.
func TestMoreRanksThanCores(t *testing.T) {
	figures := func(queued ...float64) []Figures {
		busy := []float64{0.199, 0.203, 0.201, 0.299}
		all := make([]Figures, len(busy))
		for r := range all {
			all[r] = Figures{
				Rank: r, Node: "node-0", Workers: 4, Step: 0.52, Busy: busy[r], Queued: queued[r], Own: busy[r] + queued[r],
			}
		}
		return all
	}
	var j Judge
	v := j.Compare(figures(0.206, 0.195, 0.199, 0.165), 4)
	if len(v.Slow) != 1 || v.Slow[0].Rank != 3 || !v.Slow[0].Crowded || v.Slow[0].Cause != Work || v.Leaves != nil {
		t.Fatalf("%+v", v)
	}
	if s := v.Slow[0]; s.Ratio < 1.48 || s.Ratio > 1.5 || s.Step != 0.52 ||
		!strings.Contains(s.Sentence(), "rank 3 on node node-0 holds up the others: it is busy for 0.30 s in a step of 0.52 s, "+
			"1.5 times the median of all ranks (0.20 s), without what all wait for cores") {
		t.Errorf("%+v\n%s", s, s.Sentence())
	}
	if again := j.Compare(figures(0.206, 0.195, 0.199, 0.165), 4); len(again.Slow) != 1 || len(again.New) != 0 {
		t.Errorf("it is told again: %+v", again)
	}

	// What the others wait is theirs, where the median rank waits for nobody's core.
	level := figures(0.206, 0, 0, 0)
	for r := range level {
		level[r].Own = 0.4
	}
	level[3].Own = 0.4 * 1.16
	if v := new(Judge).Compare(level, 4); len(v.Slow) != 0 {
		t.Errorf("%+v", v.Slow)
	}
}
