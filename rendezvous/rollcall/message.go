package rollcall

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"muster/internal/errhint"
	"muster/rendezvous"
)

// maxRecord bounds what is decoded from the store, in bytes.
const maxRecord = 8 << 20

// joinRecord is what an agent says of itself when it wants to join.
type joinRecord struct {
	// Agent is the id of this agent, the same in every round.
	Agent string `json:"agent"`
	// Node is its host name, Addr the address by which others reach it, Port that of its store.
	Node string `json:"node"`
	Addr string `json:"addr"`
	Port int    `json:"port"`
	// Role and Workers are those of the rendezvous.Member; NodeRank is the group rank it must have, or -1.
	Role     string `json:"role"`
	Workers  int    `json:"workers"`
	NodeRank int    `json:"node_rank"`
	// Min and Max are what it was started with, to notice that others were started differently.
	Min int `json:"min"`
	Max int `json:"max"`
	// Checks is its Config.Checks.
	Checks string `json:"checks,omitempty"`
	// Round is the round that it was in last, -1 for none, as rank Rank of Size nodes; Restarts and Replacements what
	// it knows of the job. A coordinator that knows nothing learns the job's past from these.
	Round int `json:"round"`
	Rank  int `json:"rank"`
	Size  int `json:"size"`
	// Voter says that it knows of no later round: it has lost the store in Round, and has asked nowhere else since.
	Voter        bool `json:"voter,omitempty"`
	Restarts     int  `json:"restarts"`
	Replacements int  `json:"replacements"`
}

// String names the node for people.
func (r joinRecord) String() string {
	if r.Addr == "" || r.Addr == r.Node {
		return r.Node
	}
	return r.Node + " (" + r.Addr + ")"
}

// answer is what becomes of a ticket. One of its fields is set.
type answer struct {
	Begin   *assignment         `json:"begin,omitempty"`
	Over    *rendezvous.Verdict `json:"over,omitempty"`
	Refused string              `json:"refused,omitempty"`
	// Again says that the ticket is void: its agent was taken for dead.
	Again bool `json:"again,omitempty"`
	// Elsewhere is the address of the store where the job goes on.
	Elsewhere string `json:"elsewhere,omitempty"`
	// Prepare tells the agent that will have rank 0 to get ready; the second answer follows under the key with "/2" behind
	// it.
	Prepare *preparation `json:"prepare,omitempty"`
}

// preparation is what rank 0 does before a round with agents of torchrun: it empties its store for the workers, or finds
// a free port where worker 0 will serve them.
type preparation struct {
	Round int  `json:"round"`
	Free  bool `json:"free,omitempty"`
}

// assignment is one agent's place in a round.
type assignment struct {
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
	// Company is how many of the round's agents are ours, Workers how many workers they have.
	Company int `json:"company"`
	Workers int `json:"workers"`
	// Mixed says that agents of torchrun are among the others.
	Mixed bool `json:"mixed,omitempty"`
	// Exit are the keys of Joined, none where all agents are ours.
	Exit []string `json:"exit,omitempty"`
	// Min and Max are the coordinator's.
	Min int `json:"min"`
	Max int `json:"max"`
	// AgentStore says that an agent serves the workers' store.
	AgentStore bool `json:"agent_store"`
	// Host is the agent that serves the agents' store, empty for none of ours; Heirs are the agents that may when it
	// dies, best first.
	Host  string `json:"host,omitempty"`
	Heirs []heir `json:"heirs,omitempty"`
}

// heir is an agent to whom the store may move.
type heir struct {
	Agent string `json:"agent"`
	Node  string `json:"node"`
	Addr  string `json:"addr"` // host:port
}

// coordinatorRecord says who the coordinator of a term is.
type coordinatorRecord struct {
	Agent string `json:"agent"`
	Node  string `json:"node"`
}

// lobby tells people how far a meeting has come.
type lobby struct {
	// Joined are the nodes that are there, Missing those of the last round that are still to come, some of them by name;
	// the counts are of all.
	Joined  []string `json:"joined"`
	Missing []string `json:"missing"`
	Count   int      `json:"count"`
	Lacking int      `json:"lacking"`
	// Running says that a round runs: who joins now is a spare or waits for the last call.
	Running bool   `json:"running"`
	Note    string `json:"note,omitempty"`
	// Awaits says what else is waited for where nobody is missing.
	Awaits string `json:"awaits,omitempty"`
	// Heirs are where to look for the store when it is lost while a round runs.
	Heirs []heir `json:"heirs,omitempty"`
}

// codec writes and reads what agents say to each other. With a token every record carries a code that nobody can make
// without it, over key and content.
type codec struct{ token []byte }

// errUnsigned and errSigned are two agents of which only one has a token, or another one.
var (
	errUnsigned = errors.New("it is not signed with this job's token")
	errSigned   = errors.New("it is signed with a token, and this agent has none")
)

const macHint = "give every agent of the job the same MUSTER_TOKEN_FILE (--token-file), or none of them"

func (c codec) mac(key string, body []byte) []byte {
	h := hmac.New(sha256.New, c.token)
	h.Write([]byte(strconv.Itoa(len(key)) + ":" + key))
	h.Write(body)
	return []byte(hex.EncodeToString(h.Sum(nil)))
}

// seal encodes v for being stored under key.
func (c codec) seal(key string, v any) []byte {
	body, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("internal error: cannot encode %T: %v", v, err)) // strings, numbers and bools only
	}
	if len(c.token) == 0 {
		return body
	}
	return append(append(body, '\n'), c.mac(key, body)...)
}

// open decodes what was found under key.
func (c codec) open(key string, value []byte, v any) error {
	if len(value) > maxRecord {
		return fmt.Errorf("cannot read %q in the store: %d bytes, at most %d are taken", key, len(value), maxRecord)
	}
	body, mac, signed := bytes.Cut(value, []byte{'\n'})
	switch {
	case signed && len(c.token) == 0:
		return errhint.With(fmt.Errorf("cannot trust %q in the store: %w", key, errSigned), macHint)
	case len(c.token) > 0 && !hmac.Equal(mac, c.mac(key, body)):
		return errhint.With(fmt.Errorf("cannot trust %q in the store: %w", key, errUnsigned), macHint)
	}
	if err := json.Unmarshal(body, v); err != nil {
		return errhint.With(fmt.Errorf("cannot read %q in the store: %w", key, err),
			"does another program or another version of muster use this store under the same run id?")
	}
	return nil
}

// verdict reads a verdict, and refuses what no agent of ours would say.
func (c codec) verdict(key string, value []byte) (rendezvous.Verdict, error) {
	var v rendezvous.Verdict
	if err := c.open(key, value, &v); err != nil {
		return v, err
	}
	switch v.Kind {
	case rendezvous.Restart, rendezvous.Reassemble, rendezvous.Succeed, rendezvous.Fail:
	default:
		return v, fmt.Errorf("cannot read %q in the store: verdict of kind %q", key, v.Kind)
	}
	if v.Status < 0 || v.Status > 255 || v.Delay < 0 || v.Delay > maxDelay || v.Restarts < 0 || v.Linger < 0 || v.Grace < 0 {
		return v, fmt.Errorf("cannot read %q in the store: status %d, delay %v, restarts %d", key, v.Status, v.Delay, v.Restarts)
	}
	return v, nil
}

// check refuses a record that no agent of ours would write.
func (r *joinRecord) check() error {
	switch {
	case r.Agent == "" || len(r.Agent) > 128:
		return errors.New("it names no agent")
	case len(r.Node) > 512 || len(r.Addr) > 512 || len(r.Role) > 1024:
		return errors.New("a name in it is too long")
	case r.Workers < 1 || r.Workers > maxWorkers:
		return fmt.Errorf("it has %d workers", r.Workers)
	case r.Port < 0 || r.Port > 65535:
		return fmt.Errorf("it has port %d", r.Port)
	case r.NodeRank < -1 || r.NodeRank >= maxNodes || r.Round < -1 || r.Round > maxRounds || r.Rank < 0 || r.Rank >= maxNodes || r.Size < 0 || r.Size > maxNodes:
		return fmt.Errorf("it has node rank %d, rank %d of %d in round %d", r.NodeRank, r.Rank, r.Size, r.Round)
	case r.Restarts < 0 || r.Replacements < 0 || r.Restarts > maxRounds || r.Replacements > maxRounds:
		return fmt.Errorf("it has %d restarts and %d replacements", r.Restarts, r.Replacements)
	}
	return nil
}

// Bounds on what a record may claim.
const (
	maxWorkers = 1 << 16
	maxNodes   = 1 << 20
	maxRounds  = 1 << 30
	maxDelay   = 10 * 365 * 24 * time.Hour
)
