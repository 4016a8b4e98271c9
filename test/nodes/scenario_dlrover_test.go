package nodes

import (
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"muster/internal/testutil"
	"muster/test/drive"
)

// TestScenarioDLRover runs the command lines of DLRover's guides on hosts whose pods are told of the master, where
// muster's store listens: with a check of the nodes by PyTorch, and a worker that fails. --standalone is in
// testdata/script/dlrover.txtar.
func TestScenarioDLRover(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, nnodes    string
		nodes, restarts int
		python          string
		more            []string
	}{
		{"fixed", "$NODE_NUM", 2, 1, drive.ForkedSomeTorch(t), nil},
		{"elastic", "2:3", 3, 0, drive.ForkedSomeTorch(t), []string{"MUSTER_LAST_CALL=20s"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			testutil.Long(t)
			j := newNodes(t, c.nodes)
			j.env = []string{
				"DLROVER_MASTER_ADDR=node0:22222", "ELASTIC_JOB_NAME=job-" + c.name, "NODE_NUM=" + strconv.Itoa(c.nodes),
				"PYTHON_EXEC=" + c.python,
			}
			store := j.pod(0, nil, "muster", "store", "--bind", "node0:22222")
			testutil.Eventually(t, time.Minute, "the store tells where it listens",
				func() bool { return strings.Contains(store.out.String(), "\n") })
			// A shell puts the number of nodes in, as in the pod's command.
			line := `exec dlrover-run --network-check --max_restarts=3 --nnodes="` + c.nnodes + `" --nproc_per_node=1 "$@"`
			script := drive.WriteScript(t, "train.py", "import os, sys\nos.execvp('sh', ['sh', '-c', sys.argv[1]])\n")
			train := worldShows
			if c.restarts > 0 {
				train += "[ $RANK$TORCHELASTIC_RESTART_COUNT != 10 ] || exit 5\n[ $TORCHELASTIC_RESTART_COUNT = 1 ] || sleep 1000"
			}
			agents := make([]*nodeAgent, c.nodes)
			for host := range c.nodes {
				pod := []string{
					"NODE_RANK=" + strconv.Itoa(host), "NODE_ID=" + strconv.Itoa(host),
					"POD_IP=" + j.hosts[host].Addrs[0][0].String(),
				}
				agents[host] = j.pod(host, append(pod, c.more...), "sh", "-c", line, "sh", script, train)
			}
			for _, a := range agents {
				j.ends(a, podsEnd, 0)
				if strings.Contains(a.err.String(), "restarting the workers") != (c.restarts > 0) {
					t.Errorf("%s has said of a restart:\n%s", a.Host().Name, a.err.String())
				}
			}
			if want := fmt.Sprintf("network check: all %d nodes may take part", c.nodes); strings.Count(agents[0].err.String(),
				want) != c.restarts+1 {
				t.Errorf("not said for each round: %q", want)
			}
			for rank := range c.nodes {
				for round := range c.restarts + 1 {
					vars := j.shown(rank, round)
					for _, kv := range []string{
						"WORLD_SIZE=" + strconv.Itoa(c.nodes), fmt.Sprintf("TORCHELASTIC_RESTART_COUNT=%d", round),
						"TORCHELASTIC_RUN_ID=job-" + c.name,
						"TORCHELASTIC_MAX_RESTARTS=3", "ROLE_NAME=dlrover-trainer",
					} {
						if name, value, _ := strings.Cut(kv, "="); vars[name] != value {
							t.Errorf("rank %d has %s=%q in round %d, want %s", rank, name, vars[name], round, value)
						}
					}
				}
			}
			if err := store.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			j.ends(store, podsEnd, 0)
		})
	}
}
