package job

import (
	"syscall"
	"time"

	"muster/internal/python"
)

// CheckpointRules say how workers keep checkpoints through muster.
type CheckpointRules struct {
	// On puts the packages muster and dlrover on the workers' path. Their checkpoints are kept in the agents' memory.
	On bool
	// Shim says when our package dlrover is the one that workers import. python.ShimBarred counts without On, too.
	Shim python.Shim
	// Dir is where a script saves that names no directory; empty: it has to.
	Dir string
	// Keep is how many steps stay on disk, 0 for all.
	Keep int
	// Rate is how many bytes a second a node writes to disk at most, 0 for as many as it takes.
	Rate int64
	// Slots is how many copies of its state a worker has in memory, 1 or 2; 0: two where memory allows.
	Slots int
	// Replicas is on how many nodes a copy of each state is kept, the worker's own included; 0 and 1: on that.
	Replicas int
	// The newest step in memory is written to disk, while training goes on, when muster gets Signal (0: none), when the
	// file OnFile appears, or when the command OnCommand ends with status 0; empty: none. Where it is a machine of a
	// cloud, whose metadata service is asked for notices, unless Unasked.
	Signal            syscall.Signal
	OnFile, OnCommand string
	Unasked           bool
	// Salvage is how long what a killed agent has left in memory may take to be brought to disk; 0: it is lost.
	Salvage time.Duration
}
