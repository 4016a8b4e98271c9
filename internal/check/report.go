package check

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

// Report is what all checks say of one node.
type Report struct {
	Node   string `json:"node"`
	Status Status `json:"status"` // the worst, Pass where all were skipped
	Fake   string `json:"fake,omitempty"`
	// Notes are what a reader should know of how the results came about, a sentence each.
	Notes []string `json:"notes,omitempty"`
	// Skipped is what each result that was skipped counts as.
	Skipped Status   `json:"skipped"`
	Results []Result `json:"results"`
}

// Judge makes the report of a node.
func (p *Policy) Judge(node string, results []Result) Report {
	r := Report{Node: node, Status: Pass, Results: slices.Clone(results), Skipped: p.weight(Result{Status: Skip})}
	for i := range r.Results {
		res := &r.Results[i]
		res.Subject.Node = node
		p.apply(res)
		r.Status = max(r.Status, p.weight(*res))
	}
	return r
}

// Count returns how many results have a status.
func (r *Report) Count(s Status) int {
	n := 0
	for _, res := range r.Results {
		if res.Status == s {
			n++
		}
	}
	return n
}

// Summary is the report in a line.
func (r *Report) Summary() string {
	text := fmt.Sprintf("%s: %v: %d passed, %d warned, %d failed, %d skipped", r.Node, r.Status, r.Count(Pass), r.Count(Warn),
		r.Count(Fail), r.Count(Skip))
	if r.Skipped > Pass && r.Count(Skip) > 0 {
		text += fmt.Sprintf(" (each counts as %v)", r.Skipped)
	}
	if r.Fake != "" {
		text += " (accelerator=fake)"
	}
	return text
}

// Write writes a table of what did not pass, worst first, and the summary; all has those that passed, too.
func (r *Report) Write(w io.Writer, all bool) error {
	shown := slices.DeleteFunc(slices.Clone(r.Results), func(res Result) bool { return res.Status == Pass && !res.Waived && !all })
	order := map[Status]int{Fail: 0, Warn: 1, Skip: 2, Pass: 3}
	slices.SortStableFunc(shown, func(a, b Result) int { return order[a.Status] - order[b.Status] })
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, res := range merged(shown) {
		reason := res.Reason
		if res.Waived {
			reason += " (waived)"
		}
		if res.Try != "" && res.Status > Pass {
			reason += "; try: " + res.Try
		}
		fmt.Fprintf(t, "%v\t%s\t%s\t%s\n", res.Status, res.ID, res.Subject, strings.TrimSpace(reason)) //nolint:errcheck // Flush says it
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, note := range r.Notes {
		if _, err := fmt.Fprintln(w, note); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintln(w, r.Summary())
	return err
}

// merged puts checks of the whole node that were skipped for the same reason into one line: where there is no GPU, most
// of them are.
func merged(results []Result) []Result {
	ids := map[string][]string{} // by reason
	alone := func(r Result) bool { return r.Status != Skip || r.Subject.String() != "" }
	for _, r := range results {
		if !alone(r) {
			ids[r.Reason] = append(ids[r.Reason], r.ID)
		}
	}
	var out []Result
	for _, r := range results {
		if same := ids[r.Reason]; !alone(r) && len(same) > 1 {
			if r.ID != same[0] {
				continue
			}
			r.ID = fmt.Sprintf("%d checks", len(same))
			r.Reason += ": " + strings.Join(same, ", ")
		}
		out = append(out, r)
	}
	return out
}
