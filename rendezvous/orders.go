package rendezvous

// Orders are what people want of a job that runs. They are a part of each round and of the verdicts that change them,
// the same on every node, and whoever has seen the larger Version knows better. The zero value wants nothing.
type Orders struct {
	// Version counts the changes.
	Version int `json:"version,omitempty"`
	// Paused says that the nodes of a round keep together, and start no workers.
	Paused bool `json:"paused,omitempty"`
	// Pauses counts the pauses that the job has had.
	Pauses int `json:"pauses,omitempty"`
	// Command is what takes the place of the program and its arguments, as a JSON array of words; empty: the workers
	// run what the job was started with.
	Command string `json:"command,omitempty"`
	// Nodes is how many nodes a round has at most, where that is less than the job allows; 0: as many as it allows.
	Nodes int `json:"nodes,omitempty"`
	// CheckAt is the number of the round whose nodes are checked before workers start, though the job does not check
	// them otherwise; 0: none, CheckResumed: that in which the job that is paused goes on.
	CheckAt int `json:"checkAt,omitempty"`
}

// CheckResumed is an Orders.CheckAt whose number is not known yet.
const CheckResumed = -1

// Learn takes what another one says where that is newer.
func (o *Orders) Learn(said Orders) {
	if said.Version > o.Version {
		*o = said
	}
}

// MaxCommand bounds Orders.Command, in bytes: it goes to each node of each round.
const MaxCommand = 32 << 10
