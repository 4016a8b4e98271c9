package control

import (
	"context"
	"strconv"
	"time"

	"muster/launch/job"
	"muster/launch/report"
)

// The paths of the requests. Later ones are added beside them; these stay.
const (
	pathStatus   = "/api/v1/status"
	pathRank     = "/api/v1/rank/"
	pathStop     = "/api/v1/stop"
	pathRestart  = "/api/v1/restart"
	pathPause    = "/api/v1/pause"
	pathResume   = "/api/v1/resume"
	pathScale    = "/api/v1/scale"
	pathKill     = "/api/v1/kill-node"
	pathEvents   = "/api/v1/events"
	pathMetrics  = "/api/v1/metrics"
	pathEvidence = "/api/v1/evidence"
)

// Scope is how much of a job is asked for.
type Scope string

// The scopes.
const (
	World Scope = "world" // all nodes, as far as they can be asked
	Node  Scope = "node"  // what the asked one runs itself
)

// Served is a job, or a node's part of one. Its methods are called from several goroutines. They return soon: what they
// ask of others they wait for no longer than a second, and no longer than ctx. Their errors are told to who asks, with
// hint and status: one with errhint.Usage says that there is no such thing.
type Served interface {
	// Status says how the job stands.
	Status(ctx context.Context, scope Scope) (report.Status, error)
	// Rank describes a worker that runs here, or ran here last.
	Rank(ctx context.Context, rank int) (Rank, error)
	// Asked records that somebody wants a change, Do makes it: the whole job ends, all its workers start again, end or go
	// on, it has another number of nodes, or loses one. What Do returns says what follows, in a sentence. Where it returns
	// an error Refused records that.
	Asked(r Request)
	Refused(r Request, err error)
	Do(ctx context.Context, r Request) (string, error)
	// Events are what has happened here.
	Events() *Events
}

// Rememberer is a Served that knows the last lines of workers, also where they have no log files.
type Rememberer interface {
	// Recent are those of a worker that runs here, or ran here last.
	Recent(rank int) (Recent, error)
}

// Recent are the last lines that the process with PID has written.
type Recent struct {
	PID            int
	Stdout, Stderr []string
	Running        bool
}

// Role is what a muster does for its job.
type Role string

// The roles.
const (
	Agent      Role = "agent"      // it runs the workers of this node
	Launcher   Role = "launcher"   // it has started agents on the job's machines
	Simulation Role = "simulation" // it has started all nodes here
	Driver     Role = "driver"     // it drives an elastic job of Horovod
)

// Muster is the process that answers.
type Muster struct {
	Role Role `json:"role"`
	PID  int  `json:"pid"`
	// Part says that a launcher has started it: the job is that one's.
	Part bool `json:"part,omitempty"`
	// RunDir is its run directory.
	RunDir string `json:"runDir"`
	// Meets is where the node meets the others of its job, as it was told; empty for one that is alone.
	Meets string `json:"meets,omitempty"`
	// Within is the run directory of the job whose worker has started it; empty for none.
	Within string `json:"within,omitempty"`
}

// Beside reports whether both are nodes of one job, if they have one run id.
func (m *Muster) Beside(other *Muster) bool {
	return m.Meets != "" && m.Meets == other.Meets && m.Role == Agent && other.Role == Agent && m.Part == other.Part
}

// Answer is what is told of a job: the status, as a status file has it, and who tells it.
type Answer struct {
	report.Status
	Muster Muster `json:"muster"`
	// Died says of a job that has ended that its muster has done so without a word: the status is the last that is known.
	Died bool `json:"died,omitempty"`
}

// Rank is how a worker can be entered, and where its output is.
type Rank struct {
	RunID     string `json:"runId"`
	Node      string `json:"node"`
	Rank      int    `json:"rank"`
	LocalRank int    `json:"localRank"`
	PID       int    `json:"pid"`
	Running   bool   `json:"running"`
	// Dir is its working directory, Env its environment, "NAME=VALUE", whatever the bytes are.
	Dir string      `json:"dir"`
	Env job.Strings `json:"env"`
	// Logs are the files of its output, of the newest attempt first; none where no files are written.
	Logs []LogFiles `json:"logs"`
}

// LogFiles are what one process wrote to; a stream that goes elsewhere has no path. Both may have the same.
type LogFiles struct {
	Began  time.Time `json:"began"`
	Stdout string    `json:"stdout,omitempty"`
	Stderr string    `json:"stderr,omitempty"`
}

// Peer is who asks: a process at the other end of the socket, or a client of the page.
type Peer struct {
	UID int `json:"uid"` // -1 where it is not known
	PID int `json:"pid,omitempty"`
	// Address is that of a client of the page, empty for others.
	Address string `json:"address,omitempty"`
	// Node is whose muster has passed on what is asked, empty where it was asked on the node itself.
	Node string `json:"node,omitempty"`
}

// String names it for people.
func (p Peer) String() string {
	name := "user " + strconv.Itoa(p.UID)
	switch {
	case p.Node != "":
		return name + " on node " + p.Node
	case p.UID < 0:
		return "somebody with the job's token at " + p.Address
	case p.Address != "":
		return name + " on the page, from " + p.Address
	}
	return name
}

// said is the answer to a request that changes something; failure one that could not be answered.
type (
	said struct {
		Message string `json:"message"`
	}
	failure struct {
		Error string `json:"error"`
		Hint  string `json:"hint,omitempty"`
		// Status is the exit status of who has asked for it.
		Status int `json:"status"`
	}
)
