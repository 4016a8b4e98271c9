// Package checkpointd keeps the checkpoints of a node's workers in memory that the agent owns, and writes them to disk
// behind the workers' backs, as files that torch.load reads.
//
// A worker asks for memory over a Unix socket, gets a descriptor, copies its state into it, and says that it is done.
// From then on nothing depends on the worker: its death leaves the copy, and the flusher writes the file without any
// Python. What lies in the memory is a list of records, of which data.pkl was pickled by the worker; nothing here looks
// into them.
//
// Three promises hold whatever dies when: a copy that a worker was writing when it died is never used; a step counts
// only when all its shards are there, in memory as on disk; and all workers of a round restore the same step from the
// same place.
//
// Config is filled by cmd, and launch calls Service at the ends of rounds. Where a node is alone the memory outlives
// the agent: Salvage, which the agent's guardian runs, brings to disk what it had left, and the next agent of the run
// adopts what nobody has saved. Of several nodes each keeps its part, and they put it together when they meet again.
// The decisions are in docs/adr/0030-flash-checkpoint.md and those that name it.
package checkpointd
