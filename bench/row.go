package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// row is one line of the table.
type row struct {
	Figure string   `json:"figure"`
	Ours   float64  `json:"ours"`
	Peer   *float64 `json:"peer"` // nil: there is none
	Unit   string   `json:"unit"`
	Ratio  float64  `json:"ratio"` // ours / peer, 0 where that cannot be
	Budget string   `json:"budget"`
	Pass   bool     `json:"pass"`
	Note   string   `json:"note,omitempty"`
	Skip   string   `json:"skip,omitempty"` // why it was not measured; the figures mean nothing then

	// PeerText is what is known of the peer where that is no figure of this run.
	PeerText string `json:"peer_text,omitempty"`
}

// compare returns the row of a figure with a peer; pass judges the two figures and their ratio.
func compare(figure, unit string, ours, peer float64, budget string, pass func(ours, ratio float64) bool) row {
	r := row{Figure: figure, Unit: unit, Ours: ours, Peer: &peer, Budget: budget}
	if peer != 0 {
		r.Ratio = ours / peer
	}
	r.Pass = pass(r.Ours, r.Ratio)
	return r
}

// ratioAtMost is a budget for the ratio to the peer.
func ratioAtMost(limit float64) func(_, ratio float64) bool {
	return func(_, ratio float64) bool { return ratio <= limit }
}

// printTable writes the rows for people, notes below.
func printTable(w io.Writer, rows []row) error {
	var cells, notes strings.Builder
	cells.WriteString("figure\tours\tpeer\tratio\tbudget\tverdict\n")
	for _, r := range rows {
		ours, peer, ratio, verdict := number(r.Ours)+" "+r.Unit, "–", "–", "FAIL"
		if r.Skip != "" {
			fmt.Fprintf(&cells, "%s\t–\t–\t–\t%s\tSKIP\n", r.Figure, r.Budget)
			fmt.Fprintf(&notes, "%s: not measured: %s\n", r.Figure, r.Skip)
			continue
		}
		if r.PeerText != "" {
			peer = r.PeerText
		}
		if r.Peer != nil {
			peer = number(*r.Peer) + " " + r.Unit
		}
		if r.Ratio != 0 {
			ratio = ratioText(r.Ratio)
		}
		if r.Pass {
			verdict = "PASS"
		}
		fmt.Fprintf(&cells, "%s\t%s\t%s\t%s\t%s\t%s\n", r.Figure, ours, peer, ratio, r.Budget, verdict)
		if r.Note != "" {
			fmt.Fprintf(&notes, "%s: %s\n", r.Figure, r.Note)
		}
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if _, err := io.WriteString(t, cells.String()); err != nil {
		return err
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := io.WriteString(w, notes.String())
	return err
}

// missed says whether the row was measured and misses its budget.
func (r row) missed() bool { return r.Skip == "" && !r.Pass }

// number writes v with three digits, or all of those before the point.
func number(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	default:
		return fmt.Sprintf("%.3g", v)
	}
}

// ratioText writes small ratios as fractions, the way budgets are given.
func ratioText(ratio float64) string {
	if ratio > 0 && ratio < 0.1 {
		return fmt.Sprintf("1/%.0f", 1/ratio)
	}
	return fmt.Sprintf("%.2f ×", ratio)
}

// machine says where the figures were measured; they mean little elsewhere.
type machine struct {
	Date   string `json:"date"`
	Kernel string `json:"kernel"`
	CPUs   int    `json:"cpus"`
	Load   string `json:"load"` // averages of 1, 5 and 15 minutes before the first run
	Go     string `json:"go"`
}

func thisMachine() machine {
	read := func(path string) string {
		content, err := os.ReadFile(path)
		if err != nil {
			return "unknown"
		}
		return strings.TrimSpace(string(content))
	}
	load := strings.Fields(read("/proc/loadavg"))
	return machine{
		Date: time.Now().UTC().Format(time.RFC3339), Kernel: read("/proc/sys/kernel/osrelease"), CPUs: runtime.NumCPU(),
		Load: strings.Join(load[:min(3, len(load))], " "), Go: runtime.Version(),
	}
}

func (m machine) String() string {
	return fmt.Sprintf("%s, Linux %s, %d CPUs, load before: %s", m.Date, m.Kernel, m.CPUs, m.Load)
}

// writeJSON writes the rows to path, which then holds all of them or what it held before.
func writeJSON(path string, m machine, rows []row) error {
	content, err := json.MarshalIndent(map[string]any{"machine": m, "rows": rows}, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(path+".tmp", append(content, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(path+".tmp", path)
}

// median returns the middle of values, which it sorts; the upper one of two. It panics without values.
func median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}
