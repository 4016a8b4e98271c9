package nodes

import (
	"fmt"
	"strings"
	"testing"

	"muster/internal/testutil"
	"muster/test/drive"
)

// operatorLine is the command of a pod of a PyTorchJob that runs accelerate, with variables that count pods.
const operatorLine = `exec muster accelerate launch --num_processes $NUM_PROCESSES --num_machines $WORLD_SIZE --rdzv_backend c10d ` +
	`--main_process_ip $MASTER_ADDR --main_process_port $MASTER_PORT --machine_rank $RANK "$@"`

// TestScenarioAccelerate trains, with PyTorch itself, on four hosts with two workers each.
func TestScenarioAccelerate(t *testing.T) {
	python := drive.ForkedSomeTorch(t)
	t.Parallel()
	j := newNodes(t, 4)
	j.env = []string{"PYTHON_EXEC=" + python, "NUM_PROCESSES=8", "HF_HOME=" + t.TempDir()}
	if testutil.Soak() { // which has no forks of ours
		j.env = append(j.env, "MUSTER_WARM=auto")
	}
	j.pods(func(host int) []string { return podLevel(host, 4) }, "sh", "-c", operatorLine, "sh", drive.Script(t, "nodes", "allreduce.py"))
	j.allEnd(0)
	said := j.said()
	for rank := range 8 { // which host has which ranks is decided where they meet
		if want := fmt.Sprintf("rank %d of 8 on node", rank); strings.Count(said, want) != 1 {
			t.Errorf("not once %q in:\n%s", want, said)
		}
	}
	for host := range 4 {
		if n := strings.Count(said, fmt.Sprintf(" on node%d: sum 36", host)); n != 2 {
			t.Errorf("%d workers have added up the ranks of all on node%d", n, host)
		}
	}
}

// TestScenarioAccelerateCPU is the plain form for CPUs, on hosts that have their ranks from the command line.
func TestScenarioAccelerateCPU(t *testing.T) {
	t.Parallel()
	testutil.Long(t)
	j := newNodes(t, 2)
	j.env = []string{"HF_HOME=" + t.TempDir()}
	j.pods(func(host int) []string { return podLevel(host, 2) }, "sh", "-c", `exec muster accelerate launch --cpu --num_processes 4 `+
		`--num_machines $WORLD_SIZE --machine_rank $RANK --main_process_ip $MASTER_ADDR --main_process_port $MASTER_PORT `+
		`--no_python sh -c "$1"`, "sh", worldShows)
	j.allEnd(0)
	for rank := range 4 {
		vars := j.shown(rank, 0)
		for _, kv := range []string{
			"WORLD_SIZE=4", "LOCAL_WORLD_SIZE=2", fmt.Sprintf("GROUP_RANK=%d", rank/2), "MASTER_ADDR=node0", "MASTER_PORT=23456",
			"ACCELERATE_USE_CPU=True",
		} {
			if name, value, _ := strings.Cut(kv, "="); vars[name] != value {
				t.Errorf("rank %d has %s=%q, want %s", rank, name, vars[name], value)
			}
		}
	}
}
