package meet

import (
	"fmt"
	"strconv"
	"testing"

	"muster/test/drive"
)

// TestPlatformMeets lets the nodes of a job find each other by nothing but what a platform tells them, on Slurm by a
// port that follows from the job's number.
func TestPlatformMeets(t *testing.T) {
	t.Parallel()
	port := drive.FreePort(t)
	number, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	job := number - 10_000 + 20_000*7
	for _, c := range []struct {
		name    string
		environ func(node int) []string
		want    []string
	}{
		{
			"slurm",
			func(node int) []string {
				return []string{
					fmt.Sprintf("SLURM_JOB_ID=%d", job), "SLURM_STEP_ID=0", "SLURM_STEP_NODELIST=127.0.0.[1,1]", "SLURM_STEP_NUM_NODES=2",
					"SLURM_STEP_NUM_TASKS=2",
					fmt.Sprintf("SLURM_NODEID=%d", node), fmt.Sprintf("SLURM_PROCID=%d", node), "SLURM_LOCALID=0",
					"PMI_RANK=" + strconv.Itoa(node), "PMI_SIZE=2",
				}
			},
			[]string{"TORCHELASTIC_RUN_ID=slurm-" + strconv.Itoa(job) + "-0", "WORLD_SIZE=2", "SLURM_NODEID=1"},
		},
		{
			"pytorch",
			func(node int) []string {
				return []string{
					"MASTER_ADDR=127.0.0.1", "MASTER_PORT=" + port, fmt.Sprintf("RANK=%d", node), "WORLD_SIZE=2",
					"NPROC_PER_NODE=2",
				}
			},
			[]string{"WORLD_SIZE=4", "LOCAL_WORLD_SIZE=2"},
		},
		{
			"kubeflow",
			func(int) []string {
				return []string{
					"PET_NNODES=2:4", "PET_NPROC_PER_NODE=1", "PET_RDZV_ENDPOINT=127.0.0.1:" + port, "PET_RDZV_BACKEND=c10d",
					"PET_RDZV_ID=elastic",
				}
			},
			[]string{"TORCHELASTIC_RUN_ID=elastic", "WORLD_SIZE=2"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := drive.NewMeet(t, "")
			m.Native = true
			for node := range 2 {
				m.Env = c.environ(node)
				m.Start(node)
			}
			for _, j := range m.Agents {
				m.Ends(j, 0, `"platform":"`+c.name+`"`)
			}
			seen := map[string]bool{}
			for node := range 2 {
				vars := m.Seen(node, 0, 0)
				seen[vars["GROUP_RANK"]] = true
				if c.name != "kubeflow" && vars["GROUP_RANK"] != strconv.Itoa(node) {
					t.Errorf("node %d has group rank %s", node, vars["GROUP_RANK"])
				}
				if c.name != "kubeflow" && vars["MASTER_PORT"] != port {
					t.Errorf("node %d: MASTER_PORT=%s, want %s", node, vars["MASTER_PORT"], port)
				}
				for _, name := range []string{"SLURM_PROCID", "SLURM_LOCALID", "PMI_RANK", "PMI_SIZE"} {
					if value, there := vars[name]; there {
						t.Errorf("the worker of node %d inherits %s=%s", node, name, value)
					}
				}
			}
			if !seen["0"] || !seen["1"] {
				t.Errorf("group ranks %v", seen)
			}
			m.Expect(1, 0, 0, c.want...)
		})
	}
}
