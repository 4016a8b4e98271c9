package dialect_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"muster/launch/job"
)

func TestSimulateNodes(t *testing.T) {
	for _, c := range []struct {
		env, line string
		simulated int
		nodes     job.Range
		want      job.Meeting
	}{
		{
			"MUSTER_FAKE=f.yaml", "--simulate-nodes 4 prog", 4,
			job.Range{Min: 4, Max: 4},
			meeting(func(m *job.Meeting) { m.Backend = "muster" }),
		},
		{
			"MUSTER_SIMULATE_NODES=64 MASTER_PORT=1", "--accelerator fake:f.yaml prog", 64,
			job.Range{Min: 64, Max: 64},
			meeting(func(m *job.Meeting) { m.Backend = "muster" }),
		},
		{
			"MUSTER_FAKE=f.yaml PET_MASTER_PORT=7 PET_NODE_RANK=3", "--simulate-nodes 2 prog", 2,
			job.Range{Min: 2, Max: 2},
			meeting(func(m *job.Meeting) { m.Backend = "muster" }),
		},
		{
			"MUSTER_FAKE=f.yaml", "--simulate-nodes 5 --nnodes 2:4 --spares 1 prog", 5,
			job.Range{Min: 2, Max: 4},
			meeting(func(m *job.Meeting) { m.Backend, m.Spares = "muster", 1 }),
		},
		{
			"MUSTER_FAKE=f.yaml", "--simulate-nodes 2 --rdzv etcd://e prog", 2,
			job.Range{Min: 2, Max: 2},
			meeting(func(m *job.Meeting) { m.Backend, m.Endpoints = "etcd", at(job.Endpoint{Host: "e", Port: 2379}) }),
		},
	} {
		req := accepted(t, strings.Fields(c.env), "", strings.Fields(c.line)...)
		if req.SimulateNodes != c.simulated || req.Job.Nodes != c.nodes {
			t.Errorf("%s %s: %d simulated, nodes %v", c.env, c.line, req.SimulateNodes, req.Job.Nodes)
		}
		if diff := cmp.Diff(c.want, req.Job.Meeting, sameNetworks); diff != "" {
			t.Errorf("%s %s (-want +got):\n%s", c.env, c.line, diff)
		}
	}
	for line, want := range map[string]string{
		"--simulate-nodes 1 --accelerator fake:f prog":                          "from 2 to 64",
		"--simulate-nodes 65 --accelerator fake:f prog":                         "from 2 to 64",
		"--simulate-nodes x --accelerator fake:f prog":                          "from 2 to 64",
		"--simulate-nodes 2 prog":                                               "without a fake accelerator",
		"--simulate-nodes 2 --accelerator auto prog":                            "without a fake accelerator",
		"--simulate-nodes 5 --nnodes 2:4 --accelerator fake:f prog":             "--simulate-nodes 5 with --nnodes 2:4",
		"--simulate-nodes 2 --nnodes 1 --accelerator fake:f prog":               "--simulate-nodes 2 with --nnodes 1",
		"--simulate-nodes 2 --node-rank 0 --accelerator fake:f prog":            "--node-rank 0 with --simulate-nodes",
		"--simulate-nodes 2 --master-addr h --accelerator fake:f prog":          "--master-addr h with --simulate-nodes",
		"--simulate-nodes 2 --rdzv static://h --accelerator fake:f prog":        "static rendezvous with --simulate-nodes",
		"--simulate-nodes 3 --node-unit 2 --nnodes 3 --accelerator fake:f -- x": "--node-unit 2 with --nnodes 3",
	} {
		_, err := native(nil, "", strings.Fields(line)...)
		wantRefused(t, err, want)
	}
	if _, err := own(nil, "", "--simulate-nodes 2 torchrun x.py"); err == nil {
		t.Error("it stands in front of torchrun")
	}
}
