package clusters

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"muster/internal/testutil"
	"muster/test/drive"
)

// slurmJob is a job of three nodes on a real Slurm, by the script that muster manifest writes.
type slurmJob struct {
	*testutil.Slurm
	t  *testing.T
	id string
}

// slurmRun submits a job with two workers on each node and further flags of muster manifest.
func slurmRun(t *testing.T, flags []string, command ...string) *slurmJob {
	t.Helper()
	testutil.Long(t)
	j := &slurmJob{Slurm: testutil.NewSlurm(t, 3), t: t}
	j.submit(j.script(flags, command...))
	return j
}

func (j *slurmJob) script(flags []string, command ...string) string {
	j.t.Helper()
	args := append([]string{"manifest", "slurm", "--nodes", "3", "-n", "2", "--accelerators", "0"}, flags...)
	got := drive.Run(j.t, nil, append(append(args, "--"), command...)...)
	if got.Status != 0 {
		j.t.Fatalf("status %d\n%s", got.Status, got.Stderr)
	}
	return got.Stdout
}

// submit submits a script.
func (j *slurmJob) submit(script string) {
	j.t.Helper()
	if err := os.WriteFile(filepath.Join(j.Jobs, "job.sbatch"), []byte(script), 0o600); err != nil {
		j.t.Fatal(err)
	}
	out, err := j.Command("sbatch", "--parsable", "job.sbatch").Output()
	if err != nil {
		j.t.Fatal(err)
	}
	j.id = strings.TrimSpace(string(out))
	j.t.Cleanup(func() {
		if j.t.Failed() {
			j.t.Logf("what job %s has said:\n%s", j.id, j.said())
		}
	})
}

// said is what the job has written.
func (j *slurmJob) said() string {
	text, _ := os.ReadFile(filepath.Join(j.Jobs, "train-"+j.id+".out"))
	return string(text)
}

// until waits until something is so, as long as the job has not ended: on a machine with much else to do a start alone,
// with its imports of torch, may take minutes.
func (j *slurmJob) until(what string, is func() bool) {
	j.t.Helper()
	so := false
	testutil.Eventually(j.t, 10*time.Minute, what, func() bool {
		over := slices.Contains(slurmEnds, j.State(j.id)) // before is looks, which may come true with the end
		so = is()
		return so || over
	})
	if !so {
		j.t.Fatal("the job has ended before: ", what)
	}
}

// slurmEnds are states of jobs that have ended.
var slurmEnds = []string{"FAILED", "TIMEOUT", "NODE_FAIL", "CANCELLED", "COMPLETED"}

// says waits until each of the lines is among what workers have said, in order or not.
func (j *slurmJob) says(lines ...string) {
	j.t.Helper()
	j.until(fmt.Sprintf("workers say %q", lines), func() bool {
		said := drive.WorkersSaid(j.said())
		return !slices.ContainsFunc(lines, func(l string) bool { return !slices.Contains(said, l) })
	})
}

// ends waits for the end of the job and of all that it has started.
func (j *slurmJob) ends(state string) {
	j.t.Helper()
	got := ""
	j.until("the job has ended", func() bool {
		got = j.State(j.id)
		return slices.Contains(slurmEnds, got)
	})
	if got != state {
		j.t.Fatalf("the job has ended as %s, want %s", got, state)
	}
	for _, h := range j.Nodes {
		for _, p := range h.Processes() {
			if len(p.Args) > 0 && !strings.Contains(p.Args[0], "slurm") {
				j.t.Errorf("%s has left: %s", h.Name, p)
			}
		}
	}
	if left, _ := filepath.Glob(filepath.Join(j.Jobs, ".*")); len(left) > 0 {
		j.t.Errorf("the script has left %q", left)
	}
}

// signal does what Slurm does before the time limit: it signals the script.
func (j *slurmJob) signal(name string) {
	j.t.Helper()
	if out, err := j.Command("scancel", "--batch", "--signal="+name, j.id).CombinedOutput(); err != nil {
		j.t.Fatalf("%v\n%s", err, out)
	}
}

// limit changes the time that the job has for each of its starts, which cannot be done while one is being ended.
func (j *slurmJob) limit(minutes int) {
	j.t.Helper()
	j.until(fmt.Sprintf("the job has %d minutes", minutes), func() bool {
		return j.Command("scontrol", "update", "JobId="+j.id, fmt.Sprint("TimeLimit=", minutes)).Run() == nil
	})
}

// slurmRanks are what workers say of themselves in a start of the job.
func slurmRanks(start int) []string {
	var lines []string
	for i := range 6 {
		lines = append(lines, fmt.Sprintf("%d of 6, %d on node %d, start %d", i, i%2, i/2, start))
	}
	return lines
}

// saySlurm says what slurmRanks has.
const saySlurm = `echo "worker $RANK of $WORLD_SIZE, $LOCAL_RANK on node $GROUP_RANK, start ${SLURM_RESTART_COUNT:-0}"`

// A job of three nodes on a real Slurm: the ranks follow Slurm's. At the notice the workers, which have no handler for
// any signal, live on and hear of it; the job is queued again, and ends well.
func TestSlurm(t *testing.T) {
	t.Parallel()
	j := slurmRun(t, []string{"--notice", "10m"}, "sh", "-c", saySlurm+`
[ -z "$SLURM_RESTART_COUNT" ] || exit 0
until [ -e "$MUSTER_RUN_DIR/preempted" ]; do sleep 0.2; done
echo "worker $RANK has heard"`)
	j.says(slurmRanks(0)...)
	j.signal("USR1")
	j.says("0 has heard", "1 has heard", "2 has heard", "3 has heard", "4 has heard", "5 has heard")
	j.says(slurmRanks(1)...)
	j.ends("COMPLETED")
	if said := j.said(); strings.Contains(said, "worker exited") || strings.Count(said, "is queued again") != 1 {
		t.Errorf("a worker has failed, or the job was not queued again once:\n%s", said)
	}
}

// soakSlurm skips a test that runs under make soak alone.
func soakSlurm(t *testing.T) {
	t.Helper()
	if !testutil.Soak() {
		t.Skip("TestSlurm is the representative; the others run with MUSTER_SOAK=1")
	}
}

// A node dies with all that runs on it: Slurm takes it for lost and has the job queued again, and it ends well when the
// node is back.
func TestSlurmNodeKilled(t *testing.T) {
	soakSlurm(t)
	t.Parallel()
	for _, dies := range []int{0, 2} { // the one with the script, and another
		j := slurmRun(t, nil, "sh", "-c", saySlurm+`
[ -n "$SLURM_RESTART_COUNT" ] || sleep 600`)
		j.says(slurmRanks(0)...)
		j.Nodes[dies].Kill()
		testutil.Eventually(t, time.Minute, "the job is queued again", func() bool { return j.State(j.id) == "PENDING" })
		j.Nodes[dies].Boot()
		j.StartNode(dies)
		j.says(slurmRanks(1)...)
		j.ends("COMPLETED")
	}
}

// The notice before the time limit has the newest step written, SIGTERM ends the workers, and the job that is queued
// again goes on behind that step.
func TestSlurmTimeLimit(t *testing.T) {
	soakSlurm(t)
	t.Parallel()
	python := testutil.Torch(t)
	program := filepath.Join(t.TempDir(), "train.py")
	if err := os.WriteFile(program, []byte(slurmTrain), 0o600); err != nil {
		t.Fatal(err)
	}
	j := slurmRun(t, []string{"--deadline", "1h", "--notice", "10s", "--grace", "10s", "--ckpt-dir", filepath.Join(t.TempDir(), "ckpt")},
		python, program)
	began := time.Now()
	j.until("all nodes have saved", func() bool {
		said := j.said()
		return !slices.ContainsFunc([]int{0, 2, 4}, func(rank int) bool { // one rank of each node saves, as all have the same
			return !strings.Contains(said, fmt.Sprintf("worker %d saves", rank))
		})
	})
	// The notice comes when 80 s are left, or up to a minute earlier, as Slurm has it: 10 s to SIGTERM, 10 s of grace.
	j.limit(int(time.Since(began).Minutes()) + 3)
	j.until("the job is queued again", func() bool { return strings.Contains(j.said(), "is queued again") })
	j.limit(60) // the second start may take as long as the first
	j.ends("COMPLETED")
	said := j.said()
	first, second, _ := strings.Cut(said, "is queued again")
	if !strings.Contains(first, "this machine will be taken away") {
		t.Errorf("no node has heard of the notice:\n%s", said)
	}
	saved := 0
	for _, told := range regexp.MustCompile(`worker 0 saves (\d+)`).FindAllStringSubmatch(said, -1) {
		step, err := strconv.Atoi(told[1])
		if err != nil {
			t.Fatal(err)
		}
		saved = max(saved, step)
	}
	for i := range 6 {
		_, rest, _ := strings.Cut(second, fmt.Sprintf("worker %d begins at step ", i))
		var step int
		// A worker may have been ended between a save and the line that tells it.
		if _, err := fmt.Sscan(rest, &step); err != nil || step == 0 || step > saved+1 {
			t.Errorf("rank %d began at step %d the second time, of %d: %v", i, step, saved, err)
		}
	}
}

// slurmTrain saves steps to memory alone, three in each second, and goes on behind the newest one on disk.
const slurmTrain = `
import os, time
import torch
from muster.checkpoint import Checkpointer, StorageType

rank = int(os.environ["RANK"])
state = {"step": 0, "weights": torch.zeros(1000)}
ckpt = Checkpointer()
state = ckpt.load_checkpoint() or state
print("worker", rank, "begins at step", state["step"], flush=True)
again = "SLURM_RESTART_COUNT" in os.environ
while not again:
    state["step"] += 1
    state["weights"] += 1
    if ckpt.save_checkpoint(state["step"], state, storage_type=StorageType.MEMORY):
        print("worker", rank, "saves", state["step"], flush=True)
    time.sleep(0.3)
`

// The script of the how-to, with fewer nodes and no GPUs: a rank is killed, and all go on from memory.
func TestSlurmHowTo(t *testing.T) {
	soakSlurm(t)
	t.Parallel()
	python := testutil.Torch(t)
	page, err := os.ReadFile(filepath.Join(drive.Root(), "docs/how-to/slurm.md"))
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile("(?s)\n```\\w+ title=\"job\\.sbatch\"\n(.*?)```").FindSubmatch(page)
	if block == nil {
		t.Fatal("the page has no job.sbatch")
	}
	script := string(block[1])
	for _, c := range []struct{ page, here string }{
		{"--nodes=4\n", "--nodes=3\n#SBATCH --output=train-%j.out\n"},
		{"#SBATCH --gpus-per-node=8\n", ""},
		{"-n gpu ", "-n 2 "},
		{"-- python ", "-- " + python + " "},
		{"#SBATCH --signal=USR1@120\n", ""}, // the page says why: this cluster has proctrack/linuxproc
		{" --ckpt-signal USR1 ", " "},
	} {
		if strings.Count(script, c.page) != 1 {
			t.Fatalf("%q is not once in\n%s", c.page, script)
		}
		script = strings.Replace(script, c.page, c.here, 1)
	}
	j := &slurmJob{Slurm: testutil.NewSlurm(t, 3), t: t}
	if err := os.WriteFile(filepath.Join(j.Jobs, "train.py"), []byte(slurmKilled), 0o600); err != nil {
		t.Fatal(err)
	}
	j.submit(script)
	j.ends("COMPLETED")
	for i := range 6 {
		j.says(fmt.Sprintf("%d begins at step 0", i), fmt.Sprintf("%d begins at step 5", i), fmt.Sprintf("%d ends at step 5", i))
	}
}

// slurmKilled saves five steps to memory alone. Rank 3 is killed when all ranks have saved them.
const slurmKilled = `
import glob, os, signal, time
import torch
from muster.checkpoint import Checkpointer, StorageType

rank = int(os.environ["RANK"])
state = {"step": 0, "weights": torch.zeros(1000)}
ckpt = Checkpointer()
state = ckpt.load_checkpoint() or state
print("worker", rank, "begins at step", state["step"], flush=True)
while state["step"] < 5:
    state["step"] += 1
    while not ckpt.save_checkpoint(state["step"], state, storage_type=StorageType.MEMORY):
        if os.environ["LOCAL_RANK"] != "0":
            break  # one rank of each node saves, as all have the same
        time.sleep(0.1)
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    open(f"saved-{rank}", "w").close()
    while rank != 3 or len(glob.glob("saved-*")) < 6:
        time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGKILL)
print("worker", rank, "ends at step", state["step"], flush=True)
`

// By hand: srun starts one muster on each node, and no script is needed. Several on a node are refused with what to do.
func TestSlurmByHand(t *testing.T) {
	soakSlurm(t)
	t.Parallel()
	j := &slurmJob{Slurm: testutil.NewSlurm(t, 3), t: t}
	run := []string{"muster", "run", "-n", "2", "--", "sh", "-c", saySlurm}
	out, err := j.Command("srun", append([]string{"-N3", "--ntasks-per-node=1"}, run...)...).CombinedOutput()
	if said := drive.WorkersSaid(string(out)); err != nil || !slices.Equal(said, slurmRanks(0)) {
		t.Errorf("%v, workers said %q\n%s", err, said, out)
	}
	refused := j.Command("srun", append([]string{"-N3", "--ntasks-per-node=2"}, run...)...)
	out, err = refused.CombinedOutput()
	if err == nil || refused.Status() != 2 || !strings.Contains(string(out), "srun --ntasks-per-node=1 muster run") ||
		len(drive.WorkersSaid(string(out))) > 0 {
		t.Errorf("%v\n%s", err, out)
	}
	// The status of the worker that failed first is srun's.
	failed := j.Command("srun", "-N3", "--ntasks-per-node=1", "muster", "run", "-n", "2", "--", "sh", "-c",
		`[ "$RANK" != 3 ] || exit 7; sleep 600`)
	if out, err := failed.CombinedOutput(); err == nil || failed.Status() != 7 {
		t.Errorf("status %d, want 7: %v\n%s", failed.Status(), err, out)
	}
}

// From the first line of the script to the first instruction of the last worker: a job of muster's takes a fifth of
// torchrun's time under the same script at most. Its figures are in docs/how-to/slurm.md.
func TestSlurmStart(t *testing.T) {
	soakSlurm(t)
	torchrun, python := testutil.Torchrun(t), testutil.Torch(t)
	out := t.TempDir()
	program := filepath.Join(out, "first.py")
	if err := os.WriteFile(program, []byte(`import os, time
open(os.environ["OUT"] + "/worker" + os.environ["RANK"], "w").write(str(time.time()))`), 0o600); err != nil {
		t.Fatal(err)
	}
	j := &slurmJob{Slurm: testutil.NewSlurm(t, 3), t: t}
	script := j.script([]string{"--env", "OUT=" + out}, python, program)
	before, rest, _ := strings.Cut(script, "  muster run \\\n")
	_, after, found := strings.Cut(rest, " &\n")
	if !found {
		t.Fatalf("the script has another form:\n%s", script)
	}
	peer := before + "  " + torchrun + " --nnodes 3 --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint node0:29400 --rdzv-id 1 " +
		program + " &\n" + after
	took := map[string][]float64{}
	for range 5 {
		for name, text := range map[string]string{"muster": script, "torchrun": peer} {
			j.submit(strings.Replace(text, "\nexport ", "\ndate +%s.%N >"+out+"/script\nexport ", 1))
			j.ends("COMPLETED")
			last := 0.0
			for i := range 6 {
				last = max(last, secondsIn(t, fmt.Sprintf("%s/worker%d", out, i)))
			}
			took[name] = append(took[name], last-secondsIn(t, out+"/script"))
		}
	}
	for _, all := range took {
		slices.Sort(all)
	}
	ours, theirs := took["muster"][2], took["torchrun"][2]
	t.Logf("muster %.2f s (%.2f), torchrun %.2f s (%.2f), ratio 1/%.1f", ours, took["muster"], theirs, took["torchrun"], theirs/ours)
	if ours > theirs/5 {
		t.Error("muster's workers start too late")
	}
}

// secondsIn reads a time from a file and removes it.
func secondsIn(t *testing.T, path string) (seconds float64) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err == nil {
		_, err = fmt.Sscan(string(text), &seconds)
	}
	if err == nil {
		err = os.Remove(path)
	}
	if err != nil {
		t.Fatal(err)
	}
	return seconds
}

// With --no-kill, and a range of nodes, the job goes on without the node that dies, before Slurm has noticed.
func TestSlurmNoKill(t *testing.T) {
	soakSlurm(t)
	t.Parallel()
	j := &slurmJob{Slurm: testutil.NewSlurm(t, 3), t: t}
	j.submit(`#!/bin/bash
#SBATCH --job-name=train
#SBATCH --nodes=3
#SBATCH --ntasks-per-node=1
#SBATCH --no-kill
#SBATCH --output=%x-%j.out
srun --no-kill --kill-on-bad-exit=0 --wait=0 muster run --nnodes 2:3 -n 2 -- sh -c '` + saySlurm + `
until [ "$WORLD_SIZE" = 4 -a -e go ]; do sleep 0.2; done'
`)
	j.says(slurmRanks(0)...)
	j.Nodes[2].Kill()
	j.says("0 of 4, 0 on node 0, start 0", "3 of 4, 1 on node 1, start 0")
	testutil.Eventually(t, time.Minute, "Slurm takes the node for lost", func() bool {
		out, err := j.Command("sinfo", "-h", "-n", "node2", "-o", "%T").Output()
		return err == nil && strings.HasPrefix(string(out), "down")
	})
	if err := os.WriteFile(filepath.Join(j.Jobs, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	j.ends("COMPLETED")
}
