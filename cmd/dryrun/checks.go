package dryrun

import (
	"fmt"
	"strings"
	"time"

	"muster/launch/job"
)

// checks is what is tested before a job starts.
type checks struct {
	Network          bool       `json:"network"`
	Full             bool       `json:"full"`
	TimeoutSeconds   float64    `json:"timeout_s"`
	StragglerFactor  float64    `json:"straggler_factor"`
	StragglerRule    string     `json:"straggler_rule"`
	ExcludeStraggler bool       `json:"exclude_straggler"`
	CommPerf         bool       `json:"comm_perf_test"`
	Switchbox        *switchbox `json:"switchbox,omitempty"`
	MinNetBandwidth  float64    `json:"min_net_bandwidth_mb_per_s,omitempty"`
	OnNodeFault      string     `json:"on_node_fault,omitempty"`
	Report           string     `json:"report,omitempty"`

	alone bool
}

type switchbox struct {
	Pairs        []string `json:"pairs"`
	MinBandwidth float64  `json:"min_bandwidth_mb_per_s"`
	MinChannels  int      `json:"min_channels"`
}

// newChecks is nil for a job that tests nothing, and of which no node leaves. alone says that it has one node.
func newChecks(c job.CheckRules, alone bool) *checks {
	excludes := c.ExcludeStraggler && !alone
	if !c.On() && !excludes && c.OnNodeFault == "" {
		return nil
	}
	d := &checks{
		Network: c.Network, Full: c.Full, TimeoutSeconds: c.Budget.Seconds(), StragglerFactor: c.StragglerFactor, StragglerRule: "mean",
		ExcludeStraggler: excludes, CommPerf: c.CommPerf, OnNodeFault: c.OnNodeFault, Report: c.ReportDir, alone: alone,
	}
	if c.CommPerf {
		d.MinNetBandwidth = c.MinNetBandwidth
	}
	if c.StragglerMedian {
		d.StragglerRule = "median"
	}
	if b := c.Switchbox; len(b.Pairs) > 0 {
		d.Switchbox = &switchbox{MinBandwidth: b.MinBandwidth, MinChannels: b.MinChannels}
		for _, pair := range b.Pairs {
			d.Switchbox.Pairs = append(d.Switchbox.Pairs, fmt.Sprintf("%d:%d", pair[0], pair[1]))
		}
	}
	return d
}

// network says what the network check does.
func (d *checks) network() string {
	limit := time.Duration(d.TimeoutSeconds * float64(time.Second))
	if d.alone {
		return fmt.Sprintf("this node by itself, %v", limit)
	}
	pairs := "pairs"
	if d.Full {
		pairs = "every pair"
	}
	text := fmt.Sprintf("each node by itself, then %s, %v for each; slower than %v times the %s is a straggler", pairs, limit,
		d.StragglerFactor, d.StragglerRule)
	if d.ExcludeStraggler {
		text += " and leaves"
	}
	if d.CommPerf {
		text += "; then all nodes together"
	}
	return text
}

// lines says the same for people, as rows of two columns.
func (d *checks) lines() [][2]string {
	if d == nil {
		return nil
	}
	var lines [][2]string
	switch {
	case d.Network:
		lines = append(lines, [2]string{"network check", d.network()})
	case d.ExcludeStraggler:
		lines = append(lines, [2]string{"stragglers", "a node that holds up the steps of the training leaves at the next restart"})
	}
	if b := d.Switchbox; b != nil {
		lines = append(lines, [2]string{"switchbox check", fmt.Sprintf("pairs %s, %d of %d with at least %.15g MB/s",
			strings.Join(b.Pairs, " "), b.MinChannels, len(b.Pairs), b.MinBandwidth)})
	}
	if d.OnNodeFault != "" {
		lines = append(lines, [2]string{"on a node's fault", d.OnNodeFault})
	}
	if d.Report != "" {
		lines = append(lines, [2]string{"results go to", d.Report})
	}
	return lines
}
