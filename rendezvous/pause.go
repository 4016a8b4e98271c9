package rendezvous

// Pause says whether a job pauses, and what its workers run. It is a part of each round and of the verdicts that change
// it, the same on every node, and whoever has seen the larger Count knows better.
type Pause struct {
	// Count is how often the job was paused and resumed: it pauses while that is odd.
	Count int `json:"count,omitempty"`
	// Command is what takes the place of the program and its arguments, as a JSON array of words; empty: the workers
	// run what the job was started with.
	Command string `json:"command,omitempty"`
}

// On reports whether the job pauses: the nodes of a round keep together, and start no workers.
func (p Pause) On() bool { return p.Count%2 == 1 }

// Learn takes what another one says where that is newer.
func (p *Pause) Learn(said Pause) {
	if said.Count > p.Count {
		*p = said
	}
}

// MaxCommand bounds Pause.Command, in bytes: it goes to each node of each round.
const MaxCommand = 32 << 10
