package nodes

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"muster/internal/errhint"
	"muster/internal/testutil"
	"muster/launch/control"
	"muster/netcheck"
	"muster/test/drive"
)

// checkedJobs are jobs of nodes of which something is wrong with one. The check finds it, and training runs on the rest.
var checkedJobs = []struct {
	name  string
	nodes int
	flags []string
	harm  func(j *nodes)
	// gone is who leaves, one of them; status is what it leaves with, and says what its last words have.
	gone   []int
	status int
	says   []string
}{
	{"nothing", 4, nil, func(*nodes) {}, nil, 0, nil},
	{"a bad node", 4, nil, func(j *nodes) {
		j.hostEnv = map[int][]string{2: {"MOCK_ERR_RANK=0"}}
	}, []int{2}, errhint.Faulty, []string{"node2", "MOCK_ERR_RANK"}},
	{"the host of the store", 3, nil, func(j *nodes) {
		j.hostEnv = map[int][]string{0: {"MOCK_ERR_RANK=0"}}
	}, []int{0}, errhint.Faulty, []string{"node0", "MOCK_ERR_RANK"}},
	{"a bad link", 4, []string{"--network-check-full", "--network-check-timeout=40s"}, func(j *nodes) {
		j.hosts[1].Cut(j.hosts[3])
	}, []int{1, 3}, errhint.Undecided, []string{"link", "node1", "node3"}},
	{"a slow node", 4, []string{"--exclude-straggler", "--straggler-factor=20"}, func(j *nodes) {
		j.hosts[3].Rate(20_000) // the others are slow, too, on a busy machine
	}, []int{3}, errhint.Straggler, []string{"node3", "straggler"}},
}

// TestNodesCheck checks nodes with the real check program, and trains on those that are fit. Other tests do not
// run beside it, only its own parts do.
func TestNodesCheck(t *testing.T) {
	for _, c := range checkedJobs {
		if (c.name == "a bad node" || c.name == "nothing") && !testutil.Soak() {
			continue // the host of the store is a bad one, too; nothing is wrong with the nodes of TestScenarioDLRover
		}
		t.Run(strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
			if c.status != errhint.Straggler { // who is slow is seen where the others are not
				t.Parallel()
			}
			j := newNodes(t, c.nodes, drive.Script(t, "nodes", "steps.py"))
			j.worker = append(j.worker, j.dir, "20")
			j.python = drive.ForkedSomeTorch(t)
			j.flags = []string{
				fmt.Sprintf("--nnodes=2:%d", c.nodes), "--nproc-per-node=1", "--rdzv-backend=c10d",
				"--rdzv-endpoint=node0:29400", "--rdzv-id=check",
			}
			j.own = append([]string{"--network-check", "--report=" + j.dir, "--events=" + filepath.Join(j.dir, "events.jsonl")}, c.flags...)
			c.harm(j)
			for host := range j.hosts {
				j.start(host, "muster")
			}
			gone := -1
			for host := range j.hosts {
				j.ends(j.agentOn(host), 3*time.Minute, 0, c.status)
				if j.agentOn(host).Status() != 0 {
					if gone >= 0 {
						t.Errorf("both %s and %s have left", j.hosts[gone].Name, j.hosts[host].Name)
					}
					gone = host
				}
			}
			wanted := len(c.gone) == 0 && gone < 0
			for _, host := range c.gone {
				wanted = wanted || gone == host
			}
			if !wanted {
				t.Fatalf("host %d has left, want one of %v", gone, c.gone)
			}
			left := c.nodes
			if gone >= 0 {
				left--
				for _, want := range c.says {
					if said := drive.ForPeople(j.agentOn(gone).err.String()); !strings.Contains(said, want) {
						t.Errorf("%s does not say %q", j.hosts[gone].Name, want)
					}
				}
			}
			types := drive.EventTypes(t, filepath.Join(j.dir, "events.jsonl")) // of all nodes
			if types[control.RendezvousCompleted] < c.nodes || types[control.CheckPassed] < left ||
				gone >= 0 != (types[control.NodeExcluded] > 0) ||
				gone >= 0 != (types[control.CheckFailed] > 0) {
				t.Errorf("events: %v", types)
			}
			lives := j.lives()
			if len(lives) != left {
				t.Errorf("%d workers have lived, want %d", len(lives), left)
			}
			for _, l := range lives {
				if l.worldSize != left || l.restarts != 0 {
					t.Errorf("a worker was told %+v", l)
				}
			}
			if j.step() != 20 {
				t.Errorf("training ended at step %d", j.step())
			}
			j.checked(c.name)
		})
	}
}

// checked reads the report of the first check.
func (j *nodes) checked(name string) {
	j.t.Helper()
	text, err := os.ReadFile(filepath.Join(j.dir, "network-check-0.json"))
	if err != nil {
		j.t.Fatal(err)
	}
	var r netcheck.Record
	if err := json.Unmarshal(text, &r); err != nil {
		j.t.Fatal(err)
	}
	if len(r.Nodes) != len(j.hosts) || r.Fit() != (name == "nothing") {
		j.t.Errorf("%s", text)
	}
	if _, err := os.Stat(filepath.Join(j.dir, "network-check-0.svg")); err != nil {
		j.t.Error(err)
	}
}
