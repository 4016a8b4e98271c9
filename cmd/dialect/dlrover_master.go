package dialect

import (
	"errors"
	"fmt"
	"time"

	"muster/launch/job"
)

// dlroverMasterAddr is the variable in which DLRover's operator names the master of a job.
const dlroverMasterAddr = "DLROVER_MASTER_ADDR"

// masterAgent is who this node is to the master at DLROVER_MASTER_ADDR, the zero value where that names none. Whether a
// master is there, or a store of muster, says DLROVER_MASTER_SERVICE_TYPE, which DLRover's master gives its pods;
// without it, what answers.
func masterAgent(env environ, wrong *problems) job.DLRoverMaster {
	m := job.DLRoverMaster{Service: job.MasterAsked, NodeType: "worker", NodeIP: env["NODE_IP"], JobUID: env["JOB_UID"]}
	if env[dlroverMasterAddr] == "" {
		return job.DLRoverMaster{}
	}
	switch service := env["DLROVER_MASTER_SERVICE_TYPE"]; service {
	case "":
	case job.MasterGRPC, job.MasterHTTP:
		m.Service = service
	default:
		wrong.add(fmt.Errorf("cannot use DLROVER_MASTER_SERVICE_TYPE=%s: muster speaks to a master of DLRover by grpc or http", service))
	}
	if kind := env["NODE_TYPE"]; kind != "" {
		m.NodeType = kind
	}
	m.NodeRank, _ = countFrom(env, wrong, nodeRanks...)
	m.NodeID, _ = countFrom(env, wrong, "NODE_ID")
	if n, given := countFrom(env, wrong, "MASTER_CLIENT_TIMEOUT"); given {
		m.Timeout = time.Duration(n) * time.Second
	}
	return m
}

// countFrom returns the number in the first of variables that is set.
func countFrom(env environ, wrong *problems, variables ...string) (n int, given bool) {
	for _, name := range variables {
		if env[name] == "" {
			continue
		}
		n, err := pyInt(env[name])
		if err == nil && (n < 0 || n > 1<<30) {
			err = errors.New("give a number from 0 on")
		}
		if err != nil {
			wrong.add(fmt.Errorf("cannot use %s=%s: %w", name, env[name], err))
		}
		return n, err == nil
	}
	return 0, false
}
