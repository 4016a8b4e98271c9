package dialect

import (
	"errors"
	"fmt"
	"time"

	"muster/launch/job"
)

// dlroverAgent is who this node is to the master at DLROVER_MASTER_ADDR, the zero value where that names none. Whether
// a master is there, or a store of muster, says DLROVER_MASTER_SERVICE_TYPE, which DLRover's master gives its pods;
// without it, what answers.
func (t *torchrunJob) dlroverAgent() job.DLRoverMaster {
	m := job.DLRoverMaster{Service: job.MasterAsked, NodeType: "worker", NodeIP: t.env["NODE_IP"], JobUID: t.env["JOB_UID"]}
	if t.env["DLROVER_MASTER_ADDR"] == "" {
		return job.DLRoverMaster{}
	}
	switch service := t.env["DLROVER_MASTER_SERVICE_TYPE"]; service {
	case "":
	case job.MasterGRPC, job.MasterHTTP:
		m.Service = service
	default:
		t.wrong.add(fmt.Errorf("cannot use DLROVER_MASTER_SERVICE_TYPE=%s: muster speaks to a master of DLRover by grpc or http", service))
	}
	if kind := t.env["NODE_TYPE"]; kind != "" {
		m.NodeType = kind
	}
	m.NodeRank, _ = t.countFrom(nodeRanks...)
	m.NodeID, _ = t.countFrom("NODE_ID")
	if n, given := t.countFrom("MASTER_CLIENT_TIMEOUT"); given {
		m.Timeout = time.Duration(n) * time.Second
	}
	if conf, err := parseConf(t.in.values["rdzv_conf"].text); err == nil && conf["pend_timeout"] != "" { // else it is refused elsewhere
		if s, err := time.ParseDuration(conf["pend_timeout"] + "s"); err == nil && s > 0 {
			m.PendTimeout = s
		}
	}
	return m
}

// countFrom returns the number in the first of variables that is set.
func (t *torchrunJob) countFrom(variables ...string) (n int, given bool) {
	for _, name := range variables {
		if t.env[name] == "" {
			continue
		}
		n, err := pyInt(t.env[name])
		if err == nil && (n < 0 || n > 1<<30) {
			err = errors.New("give a number from 0 on")
		}
		if err != nil {
			t.wrong.add(fmt.Errorf("cannot use %s=%s: %w", name, t.env[name], err))
		}
		return n, err == nil
	}
	return 0, false
}
