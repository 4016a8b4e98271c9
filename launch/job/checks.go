package job

import (
	"strings"
	"time"
)

// CheckRules say what muster tests before it starts workers: before the first start, and before every later round. The
// zero value tests nothing.
type CheckRules struct {
	// Network tests each node by itself and then pairs of nodes; with Full every pair. Nodes at fault leave the job.
	Network, Full bool
	// Budget bounds each stage of a check: what one node, or one round of pairs, may take. Default 120 s.
	Budget time.Duration
	// StragglerFactor is how many times slower than the others a node is that counts as a straggler, ≥ 1 (2);
	// StragglerMedian compares with the median of all, as DLRover does, instead of with the mean of the others.
	StragglerFactor float64
	StragglerMedian bool
	// ExcludeStraggler has stragglers leave the job: those that a check finds, and those that a training shows, at its
	// next restart.
	ExcludeStraggler bool
	// CommPerf measures and prints the bandwidth of all nodes together, once a check was passed.
	CommPerf bool
	// MinNetBandwidth is what a stream between two nodes has to reach where it is measured, in MB/s of 10^6 bytes
	// (100).
	MinNetBandwidth float64
	// Switchbox tests the links between accelerators of one node.
	Switchbox SwitchboxRules
	// OnNodeFault is a command that the agent with group rank 0 runs for each node that has to leave; empty for none.
	// It is given the verdict.
	OnNodeFault string
	// Quarantine is how long a node that had to leave may not come back, twice as long with each time; 0: it may at
	// once.
	Quarantine time.Duration
	// ReportDir is where the results are written, empty for nowhere.
	ReportDir string
}

// On reports whether anything is tested.
func (r *CheckRules) On() bool { return r.Flags() != "" }

// Flags are those that switch tests on, as they are typed; empty where nothing is tested.
func (r *CheckRules) Flags() string {
	var flags []string
	if r.Network {
		flags = append(flags, "--network-check")
	}
	if len(r.Switchbox.Pairs) > 0 {
		flags = append(flags, "--switchbox-check")
	}
	return strings.Join(flags, " ")
}

// DefaultBoxPairs are the pairs of accelerators that are tested where none are named, as --box-pairs takes them.
const DefaultBoxPairs = "0:1 2:4 3:5 6:7"

// SwitchboxRules say which pairs of accelerators of a node are tested, and what is wanted of them. The zero value tests
// none.
type SwitchboxRules struct {
	// Pairs are local device indices. None: nothing is tested.
	Pairs [][2]int
	// MinBandwidth is what each pair has to reach in both directions, in MB/s of 10^6 bytes (10000).
	MinBandwidth float64
	// MinChannels is how many healthy pairs a node needs; with fewer it is at fault (2).
	MinChannels int
}
