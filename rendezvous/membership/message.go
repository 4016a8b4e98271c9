package membership

import (
	"net/netip"
	"time"

	"muster/rendezvous"
)

// joinRecord is what an agent says of itself when it wants to join.
type joinRecord struct {
	// Agent is the id of this agent, the same in every round.
	Agent string `json:"agent"`
	// Wish names one call of Next: who draws another ticket for it wants the same as before.
	Wish string `json:"wish,omitempty"`
	// Job is the nonce of the job as this agent was told it, empty where it was not.
	Job string `json:"job,omitempty"`
	// Node is its host name, Addr the address by which others reach it, Port that of its store.
	Node string `json:"node"`
	Addr string `json:"addr"`
	Port int    `json:"port"`
	// Role and Workers are those of the rendezvous.Member; NodeRank is the group rank it must have, or -1.
	Role     string `json:"role"`
	Workers  int    `json:"workers"`
	NodeRank int    `json:"node_rank"`
	// Prefers is one more than the group rank that it would like to have, 0 for none.
	Prefers int `json:"prefers,omitempty"`
	// Wants is its Config.Wants before it was in any round, 0 for none.
	Wants int `json:"wants,omitempty"`
	// Min and Max are what it was started with, to notice that others were started differently.
	Min int `json:"min"`
	Max int `json:"max"`
	// Checks is its Config.Checks.
	Checks string `json:"checks,omitempty"`
	// IDs are those of its accelerators, with commas between.
	IDs string `json:"ids,omitempty"`
	// Round is the round that it was in last, -1 for none, as rank Rank of Size nodes; Restarts and Replacements what
	// it knows of the job. A coordinator that knows nothing learns the job's past from these.
	Round int `json:"round"`
	Rank  int `json:"rank"`
	Size  int `json:"size"`
	// Agents is how many of those Size nodes were ours.
	Agents int `json:"agents,omitempty"`
	// RoundJob is the nonce of the job of Round, empty for none.
	RoundJob string `json:"round_job,omitempty"`
	// Voter says that it knows of no later round: it has lost the store in Round, and has asked nowhere else since.
	Voter        bool `json:"voter,omitempty"`
	Restarts     int  `json:"restarts"`
	Replacements int  `json:"replacements"`
	// LostOf is losses.String.
	LostOf string `json:"lost_of,omitempty"`
	// Host is the agent that served the store of Round, empty for none of ours and for one that has left, which Agents
	// and Size do not count any more; HostRank is its rank there, -1 for none. Hosts says that this agent serves the
	// store at which it joins.
	Host     string `json:"host,omitempty"`
	HostRank int    `json:"host_rank"`
	Hosts    bool   `json:"hosts,omitempty"`
	// Orders are the newest that it knows of.
	Orders rendezvous.Orders `json:"orders,omitzero"`
}

// anew is what an agent would say that knows nothing of the job's past.
func (r joinRecord) anew() joinRecord {
	r.Round, r.Rank, r.Size, r.Agents, r.RoundJob, r.Voter = -1, 0, 0, 0, "", false
	r.Restarts, r.Replacements, r.LostOf, r.Host, r.HostRank, r.Orders = 0, 0, "", "", noRank, rendezvous.Orders{}
	return r
}

// String names the node for people.
func (r joinRecord) String() string { return nodeName(r.Node, r.Addr) }

// nodeID is a joinRecord's Node and Addr, the zero value where it is not known whose.
type nodeID struct {
	Host string `json:"h"`
	Addr string `json:"d"`
}

func (n nodeID) String() string { return nodeName(n.Host, n.Addr) }

// nodeName names a node for people, by its host name and the address by which others reach it. A host name that is an
// address needs no second one: a rehearsal's nodes all have one.
func nodeName(host, addr string) string {
	if _, err := netip.ParseAddr(host); err == nil || addr == "" || addr == host {
		return host
	}
	return host + " (" + addr + ")"
}

// answer is one of the answers to a ticket. One of its fields is set beside Agent and Wish. Those that end the ticket
// are the last.
type answer struct {
	// Agent is who has asked: an answer that was given to an agent of an earlier job is for nobody now.
	Agent string `json:"agent"`
	// Wish is joinRecord.Wish: an answer to an earlier wish is none, though the same ticket may be drawn again where
	// somebody sets the counter back.
	Wish string `json:"wish,omitempty"`
	// Wait says that the ticket was heard, and another answer follows.
	Wait    *waiting            `json:"wait,omitempty"`
	Begin   *assignment         `json:"begin,omitempty"`
	Over    *rendezvous.Verdict `json:"over,omitempty"`
	Refused string              `json:"refused,omitempty"`
	// Again says that the ticket is void: its agent was taken for dead.
	Again bool `json:"again,omitempty"`
	// Elsewhere is the address of the store where the job goes on. Unbegun says that this coordinator has begun no
	// round: who asks there has been in none of its.
	Elsewhere string `json:"elsewhere,omitempty"`
	Unbegun   bool   `json:"unbegun,omitempty"`
	// Prepare tells the agent that will have rank 0 to get ready; another answer follows.
	Prepare *preparation `json:"prepare,omitempty"`
}

// waiting is what an agent is told that waits.
type waiting struct {
	// Job is the nonce of the job, empty where the coordinator does not know it yet.
	Job string `json:"job,omitempty"`
	// Door tells it to examine itself; nil: it is not to, or no longer.
	Door *doorOrder `json:"door,omitempty"`
	// Held is how long it is in quarantine, and Why it is.
	Held time.Duration `json:"held,omitempty"`
	Why  string        `json:"why,omitempty"`
}

// preparation is what rank 0 does before a round with agents of torchrun: it empties its store for the workers, or
// finds a free port where worker 0 will serve them.
type preparation struct {
	Round int    `json:"round"`
	Nonce string `json:"nonce"` // of the round
	Free  bool   `json:"free,omitempty"`
}

func (p *preparation) id() roundID { return roundID{p.Round, p.Nonce} }

// openRecord says that the store for the workers of a round is empty, and its port where that was asked for.
type openRecord struct {
	Port int `json:"port"`
}

// assignment is one agent's place in a round.
type assignment struct {
	// Job and Nonce are the nonces of the job and of the round, which are in the keys of both.
	Job          string `json:"job"`
	Nonce        string `json:"nonce"`
	Round        int    `json:"round"`
	Rank         int    `json:"rank"`
	Size         int    `json:"size"`
	BaseRank     int    `json:"base_rank"`
	World        int    `json:"world"`
	BaseRoleRank int    `json:"base_role_rank"`
	RoleWorld    int    `json:"role_world"`
	MasterAddr   string `json:"master_addr"`
	MasterPort   int    `json:"master_port"`
	Restarts     int    `json:"restarts"`
	Replacements int    `json:"replacements"`
	LostOf       string `json:"lost_of,omitempty"`
	// Orders are those of the round.
	Orders rendezvous.Orders `json:"orders,omitzero"`
	// LeadRank and HostRank are the ranks of the coordinator and of the host of the agents' store, -1 for not in the
	// round.
	LeadRank int `json:"lead_rank"`
	HostRank int `json:"host_rank"`
	// LeadNode and HostNode are who has these ranks, HostLost says that the agent which served the store of the round
	// before takes no part any more.
	LeadNode nodeID `json:"lead_node,omitzero"`
	HostNode nodeID `json:"host_node,omitzero"`
	HostLost bool   `json:"host_lost,omitempty"`
	// Agents is how many of the round's agents are ours, Workers how many workers they have, and AgentRank the index of
	// this agent among them, which is not its rank where agents of torchrun take part.
	Agents    int `json:"company"`
	Workers   int `json:"workers"`
	AgentRank int `json:"agentRank"`
	// Heard is which of the coordinator's heartbeats the agent has answered last, as far as the coordinator knows.
	Heard int64 `json:"heard,omitempty"`
	// Mixed says that agents of torchrun are among the others.
	Mixed bool `json:"mixed,omitempty"`
	// Exit are the keys of Joined, none where all agents are ours.
	Exit []string `json:"exit,omitempty"`
	// Min and Max are the coordinator's.
	Min int `json:"min"`
	Max int `json:"max"`
	// AgentStore says that an agent serves the workers' store.
	AgentStore bool `json:"agent_store"`
	// Host is the agent that serves the agents' store, empty for none of ours; Standbys are the agents that may when it
	// dies, best first.
	Host     string    `json:"host,omitempty"`
	Standbys []standby `json:"standbys,omitempty"`
}

func (a *assignment) id() roundID { return roundID{a.Round, a.Nonce} }

// standby is an agent to whom the store may move.
type standby struct {
	Agent string `json:"agent"`
	Node  string `json:"node"`
	Addr  string `json:"addr"` // host:port
}

// coordinatorRecord says who the coordinator of a term is. Its nonce is in every key of the term: what was written for
// another coordinator, in this job or in an earlier one, is not found there.
type coordinatorRecord struct {
	Agent string `json:"agent"`
	Node  string `json:"node"`
	Nonce string `json:"nonce"`
}

// hostRecord says which agent serves the store.
type hostRecord struct {
	Agent string `json:"agent"`
}

// leftRecord says that its writer leaves.
type leftRecord struct {
	Agent string `json:"agent"`
}

// elsewhereRecord says at which store the job goes on.
type elsewhereRecord struct {
	At string `json:"at"` // host:port
	// Waits says that no round has begun there since the store has moved.
	Waits bool `json:"waits,omitempty"`
}

// termRecord is the number of the term.
type termRecord struct {
	Term int `json:"term"`
}

// tallyRecord is how many workers of an agent have ended.
type tallyRecord struct {
	Ended  int `json:"ended"`
	Failed int `json:"failed"`
}

// stoppedRecord says that the workers of an agent have been ended, and in which slot its report is, 0 for none.
type stoppedRecord struct {
	Slot int `json:"slot,omitempty"`
}

// reportedRecord lists the slots in which the reports of a round are.
type reportedRecord struct {
	Slots []int `json:"slots"`
}

// noteRecord says that something has happened: its key says what.
type noteRecord struct{}

// rollRecord is who is in the round that runs.
type rollRecord struct {
	Job     string       `json:"job"`
	Nonce   string       `json:"nonce"`
	Round   int          `json:"round"`
	Size    int          `json:"size"`
	Members []rollMember `json:"members"`
	// Restarts and Replacements are those of the job before the round.
	Restarts     int `json:"restarts"`
	Replacements int `json:"replacements"`
}

func (r *rollRecord) id() roundID { return roundID{r.Round, r.Nonce} }

// rollMember is one agent of that round, with its joinRecord's Node and Addr.
type rollMember struct {
	Agent string `json:"a"`
	Rank  int    `json:"r"`
	Host  string `json:"h"`
	Addr  string `json:"d"`
}

func (m rollMember) String() string { return nodeName(m.Host, m.Addr) }

// waitlist tells people how far a meeting has come.
type waitlist struct {
	// Joined are the nodes that are there, Missing those of the last round that are still to come, some of them by
	// name; the counts are of all.
	Joined  []string `json:"joined"`
	Missing []string `json:"missing"`
	Count   int      `json:"count"`
	Lacking int      `json:"lacking"`
	// Running says that a round runs: who joins now is a spare or waits for the last call.
	Running bool   `json:"running"`
	Note    string `json:"note,omitempty"`
	// Awaits says what else is waited for where nobody is missing.
	Awaits string `json:"awaits,omitempty"`
	// Standbys are where to look for the store when it is lost in a round, or behind it.
	Standbys []standby `json:"standbys,omitempty"`
}
