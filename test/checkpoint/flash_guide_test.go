package checkpoint

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"muster/checkpointd"
	"muster/internal/python"
	"muster/internal/testutil"
	"muster/test/drive"
)

// TestFlashGuide runs the guide's scripts for DistributedDataParallel and FSDP as dlrover-run has them, on one node and
// on two without a job token, with DLRover's wheel installed and without. Rank 1, or 2, is killed after step 17, which
// nobody has written to disk: all go on from it, from memory. With MUSTER_SOAK=1 each of the eight jobs runs, and ends
// as one without a crash does; else one, of FSDP with the wheel on two nodes with a worker on each. TestFlashWays has one
// of DistributedDataParallel, whose ranks must end alike. A job on one node, by the guide's own lines, is TestGuideFSDP's.
// The table in docs/compat/dlrover.md says what was found here.
func TestFlashGuide(t *testing.T) {
	pythons := map[string]string{"torch": testutil.Torch(t), "wheel": filepath.Join(testutil.Peer(t, "dlrover"), "python")}
	soak := testutil.Soak()
	short := map[string]int{"fsdp 2 wheel": 1} // workers on each node
	for _, script := range []string{"ddp", "fsdp"} {
		for nodes := 1; nodes <= 2; nodes++ {
			var calm map[int]string
			if soak {
				calm, _ = flashGuide(t, pythons["torch"], script, nodes, 2, "")
			}
			for name, python := range pythons {
				job := fmt.Sprint(script, " ", nodes, " ", name)
				procs := 2
				if !soak {
					if procs = short[job]; procs == 0 {
						continue
					}
				}
				t.Run(job, func(t *testing.T) {
					t.Parallel()
					ends, said := flashGuide(t, python, script, nodes, procs, fmt.Sprintf("%d@17", nodes*procs/2))
					for rank := range procs * nodes {
						if line := fmt.Sprintf("rank %d begins behind step 17 from memory\n", rank); strings.Count(said, line) != 1 {
							t.Errorf("no %s%s", line, said)
						}
						if soak && ends[rank] != calm[rank] {
							t.Errorf("rank %d ends with %q, and with %q without a crash\n%s", rank, ends[rank], calm[rank], said)
						}
						if script == "ddp" && ends[rank] != ends[0] {
							t.Errorf("rank %d ends with %q, and rank 0 with %q\n%s", rank, ends[rank], ends[0], said)
						}
					}
					if told := strings.Count(said,
						"muster: dlrover's flash checkpoint is muster's here"); told != map[string]int{"torch": 0, "wheel": 1}[name] {
						t.Errorf("whose package it is was told %d times\n%s", told, said)
					}
				})
			}
		}
	}
}

// flashGuide runs one of the scripts, and returns how each rank has ended, and all that was said.
func flashGuide(t *testing.T, python, script string, nodes, procs int, victim string) (ends map[int]string, said string) {
	t.Helper()
	forked := drive.ForkedPythonOf(t, python, sharedModules)
	return flashJob(t, script, nodes, procs, victim, warmInSoak(), "--python="+forked, "dlrover-run", fmt.Sprint("--nnodes=", nodes),
		fmt.Sprint("--nproc-per-node=", procs), "--max-restarts=2")
}

// warmInSoak is the flag of a job whose workers are forks of ours, or in a soak test muster's.
func warmInSoak() string {
	if testutil.Soak() {
		return "--warm=auto"
	}
	return "--warm=off"
}

// flashJob does so with any launcher's name and flags.
func flashJob(t *testing.T, script string, nodes, procs int, victim string, args ...string) (ends map[int]string, said string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "ckpt")
	args = append(args, drive.Script(t, "flash", script+".py"), dir, "25")
	environ := []string{
		"VICTIM=" + victim, "PYTHONWARNINGS=ignore", "OMP_NUM_THREADS=1", "DLROVER_MASTER_ADDR=127.0.0.1:" + drive.FreePort(t),
	}
	jobs := make([]*drive.Job, nodes)
	for i := range jobs {
		jobs[i] = drive.Start(t, environ, args...)
	}
	for _, j := range jobs {
		got := j.End()
		said += got.Stdout + got.Stderr
		if got.Status != 0 {
			t.Fatalf("status %d\n%s", got.Status, said)
		}
	}
	if strings.Contains(said, "checkpoint not written") {
		t.Errorf("a checkpoint was not written:\n%s", said)
	}
	ends = map[int]string{}
	for line := range strings.Lines(said) {
		var rank int
		var loss string
		if n, _ := fmt.Sscanf(line, "rank %d ends with loss %s", &rank, &loss); n == 2 {
			ends[rank] = loss
		}
	}
	steps, err := checkpointd.List(dir)
	if err != nil || len(ends) != procs*nodes || len(steps) == 0 || steps[0].Step != 25 || steps[0].Verify() != nil {
		t.Fatalf("%v, on disk %+v, %v\n%s", ends, steps, err, said)
	}
	return ends, said
}

// TestFlashWays runs the guide's scripts under other launchers' names, and with a number of nodes that may change. With
// MUSTER_SOAK=1 both scripts go each way, else that of DistributedDataParallel.
func TestFlashWays(t *testing.T) {
	interpreter := drive.ForkedPythonOf(t, testutil.Torch(t), sharedModules)
	for way, c := range map[string]struct {
		nodes, procs int
		args         []string
	}{
		"deepspeed": {
			1, 2,
			[]string{"--ckpt", "on", "--max-restarts", "2", "deepspeed", "--num_gpus", "2", "--no_local_rank", "--master_port", "PORT"},
		},
		"accelerate": {1, 2, []string{
			"--ckpt", "on", "accelerate", "launch", "--cpu", "--num_processes", "2", "--max_restarts", "2",
			"--main_process_port", "PORT",
		}},
		"elastic": {2, 1, []string{"dlrover-run", "--nnodes=1:2", "--nproc-per-node=1", "--max-restarts=2"}},
	} {
		for _, script := range []string{"ddp", "fsdp"} {
			if script != "ddp" && !testutil.Soak() {
				continue
			}
			t.Run(way+" "+script, func(t *testing.T) {
				t.Parallel()
				args := append([]string{warmInSoak(), "--python=" + interpreter}, c.args...)
				if port := slices.Index(args, "PORT"); port >= 0 {
					args[port] = drive.FreePort(t)
				}
				ends, said := flashJob(t, script, c.nodes, c.procs, "1@17", args...)
				if n := strings.Count(said, "begins behind step 17 from memory\n"); n != c.procs*c.nodes {
					t.Errorf("%d ranks begin behind step 17 from memory, want %d\n%s", n, c.procs*c.nodes, said)
				}
				if script == "ddp" && ends[1] != ends[0] {
					t.Errorf("rank 1 ends with %q, and rank 0 with %q\n%s", ends[1], ends[0], said)
				}
				if strings.Contains(said, "muster: dlrover's flash checkpoint is muster's here") {
					t.Errorf("no package of DLRover is installed, and it was told whose it is\n%s", said)
				}
			})
		}
	}
}

// TestFlashRefused: what would wait a minute for the saver of DLRover's agent is refused before it waits, and never
// started again.
func TestFlashRefused(t *testing.T) {
	t.Parallel()
	interpreter, script := filepath.Join(testutil.Peer(t, "dlrover"), "python"), filepath.Join(t.TempDir(), "train.py")
	if err := os.WriteFile(script, []byte("from dlrover.trainer.torch.flash_checkpoint.ddp import DdpCheckpointer\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, off := range []string{"--ckpt-shim=off", "--ckpt=off"} {
		got := drive.Run(t, []string{"PYTHONWARNINGS=ignore"}, "--python="+interpreter, off, "dlrover-run", "--standalone",
			"--max-restarts=3", script)
		if got.Status != 1 || !strings.Contains(got.Stderr, python.Barred) ||
			!strings.Contains(got.Stderr, "0 of 3 used: it would fail of the same again") {
			t.Errorf("%s: status %d\n%s%s", off, got.Status, got.Stdout, got.Stderr)
		}
	}
}
