package ranks

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"muster/internal/errhint"
	"muster/launch/control"
	"muster/launch/report"
)

// Local is a worker on this machine, and the muster that runs it.
type Local struct {
	report.Rank
	By control.Found
}

// here are the workers that the found musters run here, by rank.
func here(found []control.Found) []Local {
	var list []Local
	for _, f := range found {
		if f.Answer == nil || f.Answer.Muster.Role != control.Agent {
			continue // a launcher tells of workers everywhere
		}
		for _, r := range f.Answer.Ranks {
			list = append(list, Local{r, f})
		}
	}
	slices.SortStableFunc(list, func(x, y Local) int { return x.Rank.Rank - y.Rank.Rank })
	return list
}

// rankNumbers are ranks as they are told, each once.
func rankNumbers(ranks []Local) string {
	var list []string
	for _, r := range ranks {
		list = append(list, strconv.Itoa(r.Rank.Rank))
	}
	return strings.Join(slices.Compact(list), ", ")
}

// parse reads a list of ranks such as 0,4-7.
func parse(list string) ([]int, error) {
	var ranks []int
	for word := range strings.SplitSeq(list, ",") {
		from, to, isRange := strings.Cut(strings.TrimSpace(word), "-")
		first, err := strconv.ParseUint(from, 10, 24)
		last := first
		if err == nil && isRange {
			last, err = strconv.ParseUint(to, 10, 24)
		}
		if err != nil || last < first || last-first > 1<<16 {
			return nil, errhint.With(errhint.Usagef("--rank %q: %q is no rank", list, word), "such as 3, or 0,4-7")
		}
		for r := first; r <= last; r++ {
			ranks = append(ranks, int(r))
		}
	}
	slices.Sort(ranks)
	return slices.Compact(ranks), nil
}

// Away is a rank on another node, and whom to ask for it.
type Away struct {
	Client *control.Client
	Node   string // as people call it
}

// Find finds the one worker with a rank that can be entered, among the jobs that were found at where: of the job that
// name means, or of any where that is empty. Of one on another node it returns whom to ask.
func Find(ctx context.Context, found []control.Found, where, name string, w control.ExecWanted) (control.Rank, *Away, error) {
	among := found
	if name != "" {
		job, err := control.Pick(ctx, found, name, where)
		if err != nil {
			return control.Rank{}, nil, err
		}
		among = control.Parts(found, job)
	}
	all := here(among)
	match := slices.DeleteFunc(slices.Clone(all), func(r Local) bool { return r.Rank.Rank != w.Rank })
	switch {
	case len(match) == 1:
		r, err := match[0].By.Client().Entered(ctx, w)
		if err == nil && !r.Running {
			err = errhint.Usagef("rank %d of job %s has ended: there is nothing to enter", w.Rank, r.RunID)
		}
		return r, nil, err
	case len(match) > 1:
		var jobs []string
		for _, r := range match {
			jobs = append(jobs, fmt.Sprintf("%s (%s)", r.By.RunID(), r.By.Dir))
		}
		return control.Rank{}, nil, errhint.With(errhint.Usagef("there are %d jobs with a rank %d here: %s", len(match), w.Rank,
			strings.Join(jobs, ", ")), "choose one with --run-id or --dir")
	}
	job, err := control.Pick(ctx, found, name, where) // why there is none
	if err != nil {
		if len(all) > 0 && name == "" {
			err = errhint.With(errhint.Usagef("there is no rank %d on this machine, only %s; no other node is asked: %v", w.Rank,
				rankNumbers(all), err),
				"name the job with --run-id, where it is on another node of one of several jobs")
		}
		return control.Rank{}, nil, err
	}
	d, err := job.Client().Status(ctx, control.World)
	if err != nil {
		return control.Rank{}, nil, err
	}
	nodes, err := elsewhere(job, &d, []int{w.Rank}, all)
	if err != nil {
		return control.Rank{}, nil, err
	}
	return control.Rank{}, &Away{job.Client(), nodes[0].node}, nil
}
