package nodes

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"muster/internal/testutil"
	"muster/test/drive"
)

// podLevel are the variables of a pod of the training operators. Those without PET_ count pods.
func podLevel(rank, pods int) []string {
	return []string{
		"MASTER_ADDR=node0", "MASTER_PORT=23456", "WORLD_SIZE=" + strconv.Itoa(pods), "RANK=" + strconv.Itoa(rank), "PYTHONUNBUFFERED=0",
	}
}

// petLevel are those of newer operators: torchrun's flags, and, as they count processes, another WORLD_SIZE.
func petLevel(rank, pods, procs int) []string {
	return append(podLevel(rank, pods), "WORLD_SIZE="+strconv.Itoa(pods*procs), "PET_NPROC_PER_NODE="+strconv.Itoa(procs),
		"PET_NNODES="+strconv.Itoa(pods),
		"PET_NODE_RANK="+strconv.Itoa(rank), "PET_MASTER_ADDR=node0", "PET_MASTER_PORT=23456")
}

// TestScenarioPyTorchJob runs pods of an operator that know no more than where the master is and which of them they
// are.
func TestScenarioPyTorchJob(t *testing.T) {
	python := drive.ForkedSomeTorch(t)
	t.Parallel()
	testutil.Long(t)
	j := newNodes(t, 3)
	j.pods(func(host int) []string { return podLevel(host, 3) }, "muster", "run", "--", python, drive.Script(t, "nodes", "allreduce.py"))
	j.allEnd(0)
	drive.Sums(t, j.said(), 3, 1, 0)
	for _, a := range j.agents {
		if !strings.Contains(a.err.String(), "platform found") || !strings.Contains(a.err.String(), "pytorch") {
			t.Errorf("%s does not say what it has found:\n%s", a.Host().Name, a.err.String())
		}
	}
}

// worldShows lets workers show themselves, and wait for all others of their round to do so.
const worldShows = drive.ShowRank +
	`until [ "$(ls "$OUT" | grep -c "^[0-9]*[.]$MUSTER_ROUND\$")" = "$WORLD_SIZE" ]; do sleep 0.02; done` + "\n"

// TestScenarioPyTorchJobTorchrun runs the pods' torchrun, whose flags are variables, and is restarted for exit codes
// that operators take for the fault of the machine.
func TestScenarioPyTorchJobTorchrun(t *testing.T) {
	t.Parallel()
	testutil.Long(t)
	j := newNodes(t, 3)
	j.env = []string{"MUSTER_RESTART_POLICY=exit-code", "PET_MAX_RESTARTS=4"}
	codes := "130 137 138 143"
	j.pods(func(host int) []string { return petLevel(host, 3, 2) }, "torchrun", "--no-python", "sh", "-c", worldShows+`
		set -- `+codes+`
		[ $MUSTER_ROUND -lt 4 ] || exit 0
		shift $MUSTER_ROUND
		[ $RANK != 3 ] || exit $1
		sleep 1000`)
	j.allEnd(0)
	for rank := range 6 {
		for round := range 5 {
			vars := j.shown(rank, round)
			for _, kv := range []string{
				"WORLD_SIZE=6", "LOCAL_WORLD_SIZE=2", fmt.Sprintf("GROUP_RANK=%d", rank/2), "MASTER_ADDR=node0",
				"MASTER_PORT=23456", fmt.Sprintf("TORCHELASTIC_RESTART_COUNT=%d", round),
			} {
				if name, value, _ := strings.Cut(kv, "="); vars[name] != value {
					t.Errorf("rank %d has %s=%q in round %d, want %s", rank, name, vars[name], round, value)
				}
			}
		}
	}
	for code := range strings.FieldsSeq(codes) {
		if !strings.Contains(j.agents[1].err.String(), code) {
			t.Errorf("nobody has said %s:\n%s", code, j.agents[1].err.String())
		}
	}
}

// TestScenarioPyTorchJobFatal is ended by an exit code that means a fault of the program, by that of no matter which
// pod, and all pods have it.
func TestScenarioPyTorchJobFatal(t *testing.T) {
	t.Parallel()
	testutil.Long(t)
	j := newNodes(t, 3)
	j.pods(func(host int) []string { return podLevel(host, 3) }, "muster", "run", "--max-restarts", "4", "--restart-policy", "exit-code",
		"--", "sh", "-c",
		worldShows+`[ $MUSTER_ROUND$RANK != 02 ] || kill -TERM $$; [ $MUSTER_ROUND$RANK != 11 ] || exit 1; sleep 1000`)
	j.allEnd(1)
	for round, want := range []bool{true, true, false} {
		if there := j.shown(0, round) != nil; there != want {
			t.Errorf("round %d: begun %v, want %v", round, there, want)
		}
	}
}
