// Package planner decides for the nodes of a job together, or for the only one, which checkpoints are whole, which one
// all restore, what is written to disk by whom, and who keeps copies for whom. It is pure: nodes report what they have,
// and are shown a view of what follows; both are whole states, not changes, so that one that is lost or repeated does
// no harm.
//
// A Leader, on the node with group rank 0, has the reports of all nodes. What it cannot do itself, because that takes
// time or a disk, it asks for by an Action, and is told the outcome.
package planner

import (
	"cmp"
	"encoding/json"
)

// Moment orders copies of a state: by the era, which begins anew when workers start or load, and in it by the step.
// After a rollback the same step comes again in a later era, and the two must never be mixed.
type Moment struct {
	Era  uint64 `json:"era"`
	Step int64  `json:"step"`
	// Again is how often the step was saved before in its era: to memory and then to disk, or under another name.
	Again int64 `json:"again,omitempty"`
}

// Never is before every moment that is.
var Never = Moment{Step: -1}

// Compare returns -1, 0 or 1 where m is before, at or after o.
func (m Moment) Compare(o Moment) int {
	return cmp.Or(cmp.Compare(m.Era, o.Era), cmp.Compare(m.Step, o.Step), cmp.Compare(m.Again, o.Again))
}

// Copy is a whole copy of one shard in a node's memory.
type Copy struct {
	Shard int    `json:"shard"`
	At    Moment `json:"at"`
	// Persist says that a worker wants the step on disk.
	Persist bool `json:"persist,omitempty"`
}

// Report is what a node tells the leader.
type Report struct {
	// Seq counts the node's reports.
	Seq uint64 `json:"seq"`
	// Addr is where the other nodes get copies from this one.
	Addr string `json:"addr"`
	// Ended says that its workers of this round have ended.
	Ended bool        `json:"ended,omitempty"`
	Sets  []SetReport `json:"sets,omitempty"`
}

// Key names a set of checkpoints: those of so many shards in one directory.
type Key struct {
	Dir    string `json:"dir"`
	Shards int    `json:"shards"`
}

// SetReport is what a node has of one set.
type SetReport struct {
	Key
	// Reshards says that a step of another number of shards can be restored.
	Reshards bool `json:"reshards,omitempty"`
	// Replicas is on how many nodes a copy of each shard is wanted, where that is more than the leader was told.
	Replicas int `json:"replicas,omitempty"`
	// Keep and Every are how many steps stay on disk, and which besides; 0 for all, and none.
	Keep  int   `json:"keep,omitempty"`
	Every int64 `json:"every,omitempty"`

	Copies []Copy `json:"copies,omitempty"`
	// Reads are the shards that workers of the node restore from, Across says that they read others, too. Both are for
	// Leader.Local.
	Reads  []int `json:"reads,omitempty"`
	Across bool  `json:"across,omitempty"`
	// Saves are the shards that workers of the node save, Begun is the oldest of what they began last.
	Saves []int  `json:"saves,omitempty"`
	Begun Moment `json:"begun"`
	// Begins are what they began last, by Saves; empty where each has begun Begun.
	Begins []Moment `json:"begins,omitempty"`
	// Same are moments of copies here that say what the step on disk says: they were saved again since that was
	// written.
	Same []Moment `json:"same,omitempty"`
	// Refused are moments of which one of those workers found no memory for a copy.
	Refused []Moment `json:"refused,omitempty"`
	// Loads is how often one of them has asked where to restore from, in this round.
	Loads int `json:"loads,omitempty"`
	// Verified are moments of which all copies here have been compared with their checksums; those that differed are
	// gone.
	Verified []Moment `json:"verified,omitempty"`
	// Written are the shards that were written at the order Attempt.
	Attempt string    `json:"attempt,omitempty"`
	Written []Written `json:"written,omitempty"`
	// Committed is the newest moment that the node knows to be on disk, Next the newest attempt that it knows of, which
	// writes NextAt: its leader may have died when that was done, and have told nobody.
	Committed Moment `json:"committed"`
	Next      string `json:"next,omitempty"`
	NextAt    Moment `json:"next_at"`
	// Full says that there is no memory for copies of other nodes' shards.
	Full bool `json:"full,omitempty"`
	// Urgent counts how often the newest step was wanted on disk at once; Why is the reason of the last time.
	Urgent int    `json:"urgent,omitempty"`
	Why    string `json:"why,omitempty"`
	// Want are copies that the node is getting, whose digest it has not been told yet; Sums are the digests that it
	// knows of its own, and Bad what it was given that had another one.
	Want []Copy `json:"want,omitempty"`
	Sums []Sum  `json:"sums,omitempty"`
	Bad  []Bad  `json:"bad,omitempty"`
}

// Written is what became of one shard on disk.
type Written struct {
	Shard int `json:"shard"`
	// Result is the writer's, which only whoever commits reads.
	Result json.RawMessage `json:"result,omitempty"`
	Err    string          `json:"err,omitempty"`
}

// View is what the leader shows a node.
type View struct {
	// Seen is the Seq of the node's newest report that this view follows from.
	Seen uint64 `json:"seen"`
	// Drained says that all workers have ended, and nothing is to be written any more.
	Drained bool `json:"drained,omitempty"`
	// Addrs are where nodes give their copies, by group rank.
	Addrs []string  `json:"addrs,omitempty"`
	Sets  []SetView `json:"sets,omitempty"`
}

// SetView is what a node is to know about one set.
type SetView struct {
	Key
	// Open says that the directory was opened; Err why it could not be.
	Open bool   `json:"open,omitempty"`
	Err  string `json:"err,omitempty"`
	// Complete are the newest moments of which every shard has a copy somewhere, the newest first. Dead are moments
	// that cannot become complete any more.
	Complete []Moment `json:"complete,omitempty"`
	Dead     []Moment `json:"dead,omitempty"`
	// Head is the attempt that the directory's trackers name since they were last written, or were read when the
	// directory was opened; Next is the one by which NextAt is, or was last, written. A node that is killed leaves them
	// to whoever has to know whether what is in memory is newer than the directory.
	Head   string `json:"head,omitempty"`
	Next   string `json:"next,omitempty"`
	NextAt Moment `json:"next_at"`
	// Pin are moments whose copies must not be overwritten, Verify those whose checksums are to be compared.
	Pin    []Moment `json:"pin,omitempty"`
	Verify []Moment `json:"verify,omitempty"`
	// Decisions are where the workers restore from, by how often they have asked.
	Decisions []Decision `json:"decisions,omitempty"`
	// Write is what the node has to write, nil for nothing.
	Write *Order `json:"write,omitempty"`
	// Fetch are copies that it has to get.
	Fetch []Fetch `json:"fetch,omitempty"`
	// Sum are copies whose digest is wanted of the node whose worker made them; Sums are digests that were stated.
	Sum  []Copy `json:"sum,omitempty"`
	Sums []Sum  `json:"sums,omitempty"`
	// Committed is the newest moment on disk, Failed why the last writing failed, and FailedAt that of what; Lost says
	// that copies of it were damaged or are gone. Busy says that more is to be written.
	Committed Moment `json:"committed"`
	Failed    string `json:"failed,omitempty"`
	FailedAt  Moment `json:"failed_at"`
	Lost      bool   `json:"lost,omitempty"`
	Busy      bool   `json:"busy,omitempty"`
}

// Order is what one node writes of a step.
type Order struct {
	At      Moment `json:"at"`
	Attempt string `json:"attempt"`
	Shards  []int  `json:"shards"`
	// Compare asks for checksums to be compared first: the step was saved some time ago.
	Compare bool `json:"compare,omitempty"`
}

// Fetch is a copy that a node has to get from another one, by group rank.
type Fetch struct {
	Shard int    `json:"shard"`
	At    Moment `json:"at"`
	From  int    `json:"from"`
}

// The sources of a decision.
const (
	FromMemory = "memory"
	FromDisk   = "disk"
	FromNone   = "none"
)

// Decision is where all workers restore from.
type Decision struct {
	Source string `json:"source"`
	At     Moment `json:"at"`
	// Attempt is which writing of the step on disk is meant, empty where another program wrote it.
	Attempt string `json:"attempt,omitempty"`
	Note    string `json:"note,omitempty"`
	Err     string `json:"err,omitempty"`
	// From is a node with a copy, by shard: its group rank.
	From []int `json:"from,omitempty"`
}

// ActionKind is what a leader asks for.
type ActionKind int

// The kinds of action, and the method by which their outcome is told.
const (
	Open   ActionKind = iota // a directory: Opened
	Choose                   // the newest usable step on disk: Chosen
	Commit                   // what all nodes have written: Committed
	Abort                    // remove what was written in an attempt; nothing is told
)

// Action is one thing to be done by the leader's node.
type Action struct {
	Kind ActionKind
	Key
	Reshards bool
	Keep     int
	Every    int64
	At       Moment
	Attempt  string
	// Results are what the writers said, by shard.
	Results []json.RawMessage
	// Why is why a step is written that no worker wanted on disk, or, of Abort, why it is not.
	Why string
	// Again says of Abort that the step is written once more at once.
	Again bool
}
