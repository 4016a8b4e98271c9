package job

import "time"

// How DLRover's master is spoken to. MasterAsked says that the first endpoint may be such a master or a store, which is
// seen by what answers there.
const (
	MasterGRPC  = "grpc"
	MasterHTTP  = "http"
	MasterAsked = "ask"
)

// DLRoverMaster is what a node tells the master of an ElasticJob, which is at the first endpoint.
type DLRoverMaster struct {
	// Service is how that master is spoken to; empty: there is none.
	Service string
	// NodeRank is different for each node of the job, NodeID for each pod. NodeIP is the address of the machine,
	// JobUID the job's name in the cluster; both may be empty.
	NodeRank, NodeID         int
	NodeType, NodeIP, JobUID string
	// Timeout bounds one call, PendTimeout how long a node waits while others train; 0: 60 s, and for ever.
	Timeout, PendTimeout time.Duration
}

// Certain reports whether a master is there for certain.
func (m DLRoverMaster) Certain() bool { return m.Service == MasterGRPC || m.Service == MasterHTTP }
