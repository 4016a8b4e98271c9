package hosts

import (
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/go-multierror"

	"muster/internal/errhint"
)

// Outcome is how the job ended.
type Outcome struct {
	// Status is the exit status, Report says why, as launch.Result has it; Errors are those of single nodes.
	Status int
	Report string
	Errors error
	// Decided is the machine whose word Status and Report are, -1 where it is nobody's.
	Decided int
	// Unclean are the machines whose agents have not said that nothing of the job is left.
	Unclean []string
}

// outcome makes one of what the nodes have said. All that were in the last round say the same, so that the first one
// counts; what is about single nodes counts only where nobody has more to say.
func (f *Fleet) outcome() Outcome {
	f.mu.Lock()
	defer f.mu.Unlock()
	ended := slices.DeleteFunc(slices.Clone(f.nodes), func(n *fleetNode) bool { return n.result == nil || n.result.Left })
	slices.SortStableFunc(ended, func(a, b *fleetNode) int { return a.at.Compare(b.at) })
	if f.hopeless { // what the others said when they were asked to end says nothing of why, unless the job had succeeded by then
		ended = slices.DeleteFunc(ended, func(n *fleetNode) bool {
			return n.at.After(f.first) && n.result.aboutJob() && n.result.Status != errhint.OK
		})
	}
	o := Outcome{Status: errhint.TryAgain, Decided: -1}
	var all *multierror.Error
	for _, n := range f.nodes {
		switch {
		case n.result == nil && n.reached:
			o.Unclean = append(o.Unclean, n.Name)
			if n.err != nil {
				all = multierror.Append(all, errhint.With(fmt.Errorf("node %s was lost: %w", n.Name, n.err), errhint.Of(n.err)))
			}
		case n.result != nil && n.result.Error != "":
			err := fmt.Errorf("node %s: %s", n.Name, strings.TrimSpace(n.result.Error))
			all = multierror.Append(all, errhint.With(err, n.result.Hint))
		}
	}
	pick := slices.IndexFunc(ended, func(n *fleetNode) bool { return n.result.aboutJob() && n.result.Status != errhint.Internal })
	if pick < 0 && len(ended) > 0 {
		pick = 0
	}
	if pick >= 0 {
		o.Status, o.Decided = ended[pick].result.Status, ended[pick].index
		if o.Status == errhint.OK {
			return Outcome{Status: errhint.OK, Decided: o.Decided, Unclean: o.Unclean}
		}
		for _, n := range ended[pick:] { // a node that only follows the others may have nothing to report
			if n.result.Status == o.Status && o.Report == "" {
				o.Report = n.result.Report
			}
		}
	}
	if o.Report == "" {
		o.Errors = all.ErrorOrNil()
	}
	return o
}

// EndedWith is the exit status that a machine has told; false where it has told none.
func (f *Fleet) EndedWith(machine int) (int, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if r := f.nodes[machine].result; r != nil {
		return r.Status, true
	}
	return 0, false
}

// aboutJob reports whether a result says something of the job, and not of the node alone.
func (r *Result) aboutJob() bool {
	return r.Over || r.Status != errhint.Faulty && r.Status != errhint.Straggler && r.Status != errhint.TryAgain
}
