// Package switchbox judges the links of the box that connects the accelerators of a node: each link is one
// accelerator's, and is tested by copies over a pair of them. A pair below the wanted bandwidth has a faulty link; a
// node with too few healthy pairs is at fault (dlrover.md section 3 of the design pages).
package switchbox

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"muster/netcheck/devicecheck"
)

// Tester measures links between devices of this node; *devicecheck.Program does.
type Tester interface {
	// Switchbox returns the results in the order of pairs. An error says that nothing could be measured.
	Switchbox(ctx context.Context, pairs []devicecheck.Pair) ([]devicecheck.LinkResult, error)
}

// Rules say what is tested and what is wanted.
type Rules struct {
	Pairs []devicecheck.Pair
	// MinBandwidth is what both directions have to reach, in MB/s of 10^6 bytes.
	MinBandwidth float64
	// MinChannels is how many healthy pairs the node needs.
	MinChannels int
}

// Link is what became of a pair.
type Link struct {
	devicecheck.LinkResult
	// Fault is what is wrong with it, "" for nothing.
	Fault string
	// Odd is what a healthy pair does worse than it could, "" for nothing: a bad cable may be above the wanted
	// bandwidth.
	Odd string
	// Ends are the devices whose own link is the bad one, as far as tests with healthy ones could tell.
	Ends []int
}

// Result is what a test says of the box.
type Result struct {
	Links   []Link
	Healthy int
	Rules   Rules
}

// Test measures every pair, and for each faulty one finds out which of its two links is bad.
func Test(ctx context.Context, t Tester, rules Rules) (*Result, error) {
	found, err := t.Switchbox(ctx, rules.Pairs)
	if err != nil {
		return nil, err
	}
	r := &Result{Rules: rules, Links: make([]Link, len(found))}
	for i, l := range found {
		r.Links[i] = Link{LinkResult: l, Fault: fault(l, rules.MinBandwidth)}
		if r.Links[i].Fault == "" {
			r.Healthy++
		}
	}
	r.findOdd()
	if err := r.findEnds(ctx, t); err != nil && ctx.Err() != nil {
		return nil, err
	}
	return r, nil // which end it is may stay open
}

// fault says what is wrong with a pair.
func fault(l devicecheck.LinkResult, minBandwidth float64) string {
	switch {
	case l.Err != nil:
		return l.Err.Error()
	case l.Corrupt():
		return "what arrived was not what was sent"
	case l.MBps() < minBandwidth:
		return fmt.Sprintf("%.0f MB/s, %.0f are wanted", l.MBps(), minBandwidth)
	}
	return ""
}

// What a healthy pair must have at least of its other direction, and of the median of the healthy ones, if there are
// enough of them to tell.
const (
	directionShare = 0.75
	medianShare    = 0.7
	medianPairs    = 3
)

func (r *Result) findOdd() {
	var rates []float64
	for _, l := range r.Links {
		if l.Fault == "" {
			rates = append(rates, l.MBps())
		}
	}
	slices.Sort(rates)
	for i := range r.Links {
		l := &r.Links[i]
		switch {
		case l.Fault != "":
		case l.MBps() < directionShare*max(l.There.MBps, l.Back.MBps):
			l.Odd = fmt.Sprintf("%.0f MB/s there and %.0f MB/s back", l.There.MBps, l.Back.MBps)
		case len(rates) >= medianPairs && l.MBps() < medianShare*rates[len(rates)/2]:
			l.Odd = fmt.Sprintf("%.0f MB/s, and %.0f MB/s is the median of the healthy pairs", l.MBps(), rates[len(rates)/2])
		}
	}
}

// findEnds tests both devices of each faulty pair with one of a healthy pair: the one that fails again has the bad
// link. A pair that could not be tested is left alone: it may hang again, and for long.
func (r *Result) findEnds(ctx context.Context, t Tester) error {
	healthy := slices.IndexFunc(r.Links, func(l Link) bool { return l.Fault == "" })
	if healthy < 0 || r.Healthy == len(r.Links) {
		return nil
	}
	with := r.Links[healthy].Pair[0]
	var pairs []devicecheck.Pair
	for _, l := range r.Links {
		if l.retested() {
			pairs = append(pairs, devicecheck.Pair{l.Pair[0], with}, devicecheck.Pair{l.Pair[1], with})
		}
	}
	if len(pairs) == 0 {
		return nil
	}
	again, err := t.Switchbox(ctx, pairs)
	if err != nil {
		return err
	}
	for i := range r.Links {
		if !r.Links[i].retested() {
			continue
		}
		for range r.Links[i].Pair {
			if fault(again[0], r.Rules.MinBandwidth) != "" {
				r.Links[i].Ends = append(r.Links[i].Ends, again[0].Pair[0])
			}
			again = again[1:]
		}
	}
	return nil
}

// retested says that the link is worth another test of each of its ends.
func (l *Link) retested() bool { return l.Fault != "" && l.Err == nil }

// Fault is what is wrong with the node, "" for nothing: links may be bad all the same.
func (r *Result) Fault() string {
	if r.Healthy >= r.Rules.MinChannels {
		return ""
	}
	return fmt.Sprintf("the switchbox has %d healthy channels of %d, and %d are needed: %s", r.Healthy, len(r.Links), r.Rules.MinChannels,
		strings.Join(r.Bad(), "; "))
}

// Odd are the healthy links that are worth a look, a sentence each.
func (r *Result) Odd() (lines []string) {
	for _, l := range r.Links {
		if l.Odd != "" {
			lines = append(lines, fmt.Sprintf("pair %s: %s", l.Pair, l.Odd))
		}
	}
	return lines
}

// Bad are the faulty links, a sentence each.
func (r *Result) Bad() (lines []string) {
	for _, l := range r.Links {
		if l.Fault != "" {
			lines = append(lines, l.sentence())
		}
	}
	return lines
}

func (l *Link) sentence() string {
	text := fmt.Sprintf("pair %s: %s", l.Pair, l.Fault)
	switch len(l.Ends) {
	case 0:
	case 1:
		text += fmt.Sprintf(" (the link of device %d is bad: the other one works with a healthy device)", l.Ends[0])
	default:
		text += " (both devices fail with a healthy one, too)"
	}
	return text
}

// Lines are the whole result for people: a line for each pair, and one for the box.
func (r *Result) Lines() (lines []string) {
	for _, l := range r.Links {
		switch {
		case l.Fault != "":
			lines = append(lines, l.sentence()+"  LINK-FAULT")
			continue
		case l.Odd != "":
			lines = append(lines, fmt.Sprintf("pair %s  %s  WARN", l.Pair, l.Odd))
		case l.ViaHost():
			lines = append(lines, fmt.Sprintf("pair %s  %.0f MB/s there, %.0f MB/s back, by way of the host's memory  PASS", l.Pair,
				l.There.MBps, l.Back.MBps))
		default:
			lines = append(lines, fmt.Sprintf("pair %s  %.0f MB/s there, %.0f MB/s back  PASS", l.Pair, l.There.MBps, l.Back.MBps))
		}
	}
	verdict := "PASS"
	switch {
	case r.Fault() != "":
		verdict = "FAIL"
	case r.Healthy < len(r.Links) || len(r.Odd()) > 0:
		verdict = "WARN"
	}
	return append(lines,
		fmt.Sprintf("switchbox: %d of %d channels healthy, %d needed  %s", r.Healthy, len(r.Links), r.Rules.MinChannels, verdict))
}
