package dialects

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"muster/internal/testutil"
	"muster/test/drive"
)

// dumped is what testdata/accelerate/dump.py wrote.
type dumped struct {
	Env  map[string]string
	Argv []string
}

// acceleratePeer is the folder of the real accelerate's programs.
func acceleratePeer(t *testing.T) string { return testutil.Peer(t, "accelerate") }

// realAccelerate runs the real accelerate with args.
func realAccelerate(t *testing.T, environ []string, args ...string) drive.Outcome {
	t.Helper()
	forks := testutil.ForksOf(filepath.Join(acceleratePeer(t), "python"), "accelerate.commands.accelerate_cli,torch.distributed.run", "")
	argv := append([]string{"-c", "from accelerate.commands.accelerate_cli import main; main()"}, args...)
	return drive.CommandOf(t, forks, environ, argv...)
}

// dumps reads what the workers of one run wrote, by rank.
func dumps(t *testing.T, dir string) map[string]dumped {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]dumped{}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var d dumped
		if err := json.Unmarshal(text, &d); err != nil {
			t.Fatal(err)
		}
		all[strings.TrimSuffix(filepath.Base(path), ".json")] = d
	}
	return all
}

// TestAccelerateLaunch starts jobs under the real accelerate and under muster, and compares what the workers find.
func TestAccelerateLaunch(t *testing.T) {
	t.Parallel()
	bin := acceleratePeer(t)
	home := t.TempDir()
	script := drive.Script(t, "accelerate", "dump.py")
	fsdp := filepath.Join(home, "fsdp.yaml")
	if err := os.WriteFile(fsdp, []byte("main_process_port: "+drive.FreePort(t)+`
distributed_type: FSDP
mixed_precision: bf16
num_processes: 2
fsdp_config:
  fsdp_version: 2
  fsdp_offload_params: true
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_transformer_layer_cls_to_wrap: Block
`), 0o600); err != nil {
		t.Fatal(err)
	}
	port := drive.FreePort(t)
	for _, c := range []struct {
		name    string
		args    []string
		env     []string
		workers []string
		port    string // that workers meet at; empty: any
	}{
		{
			name:    "several",
			args:    []string{"--multi_gpu", "--num_processes", "2", "--max_restarts", "1", "--debug", "--main_process_port", port},
			workers: []string{"0", "1"}, port: port,
		},
		{name: "fsdp", args: []string{"--config_file", fsdp}, workers: []string{"0", "1"}},
		{name: "single", args: []string{"--num_processes", "1"}, workers: []string{"single"}},
		{
			name: "stale variables", args: []string{
				"--multi_gpu", "--num_processes", "2", "--num_machines", "1", "--rdzv_backend", "c10d", "--main_process_ip", "127.0.0.1",
				"--main_process_port", drive.FreePort(t), "--machine_rank", "0",
			},
			env: []string{"WORLD_SIZE=4", "RANK=2", "MASTER_ADDR=job-master-0", "MASTER_PORT=23456"}, workers: []string{"0", "1"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			args := append(slices.Clone(c.args), script, "--lr", "0.1")
			run := func(launch func(environ []string) drive.Outcome) map[string]dumped {
				dir := t.TempDir()
				if got := launch(append([]string{"DUMP=" + dir, "HOME=" + home, "HF_HOME=" + home, "CUDA_VISIBLE_DEVICES="},
					c.env...)); got.Status != 0 {
					t.Fatalf("status %d\n%s%s", got.Status, got.Stdout, got.Stderr)
				}
				return dumps(t, dir)
			}
			theirs := run(func(environ []string) drive.Outcome {
				return realAccelerate(t, environ, append([]string{"launch"}, args...)...)
			})
			ours := run(func(environ []string) drive.Outcome {
				return drive.Run(t, append(environ, "PYTHON_EXEC="+filepath.Join(bin, "python")),
					append([]string{"accelerate", "launch"}, args...)...)
			})
			for _, all := range []map[string]dumped{theirs, ours} {
				if diff := cmp.Diff(c.workers, slices.Sorted(maps.Keys(all))); diff != "" {
					t.Fatalf("workers (-want +got):\n%s", diff)
				}
			}
			for _, rank := range c.workers {
				compareDumps(t, rank, c.port, theirs[rank], ours[rank])
			}
		})
	}
}

// compareDumps compares all that two workers found, and by its form what differs by nature.
func compareDumps(t *testing.T, rank, port string, theirs, ours dumped) {
	t.Helper()
	if diff := cmp.Diff(theirs.Argv, ours.Argv); diff != "" {
		t.Errorf("rank %s: arguments (-accelerate +muster):\n%s", rank, diff)
	}
	if port == "" {
		port = `\d+`
	}
	forms := map[string]string{}
	if rank != "single" {
		forms = map[string]string{
			"MASTER_PORT": port, "TORCHELASTIC_RUN_ID": `[0-9a-z-]+`, "TORCHELASTIC_ERROR_FILE": `/.*/attempt_0/` + rank + `/error\.json`,
			"MASTER_ADDR": `localhost|127\.0\.0\.1`,
		}
	}
	for name, form := range forms {
		for _, vars := range []map[string]string{theirs.Env, ours.Env} {
			if !regexp.MustCompile(`^(` + form + `)$`).MatchString(vars[name]) {
				t.Errorf("rank %s: %s=%q has not the form %s", rank, name, vars[name], form)
			}
			delete(vars, name)
		}
	}
	// Ours, and what the test sets.
	for _, name := range []string{"MUSTER_AGENT", "MUSTER_RUN_DIR", "MUSTER_ROUND", "XDG_RUNTIME_DIR", "DUMP", "PYTHON_EXEC"} {
		delete(ours.Env, name)
		delete(theirs.Env, name)
	}
	if diff := cmp.Diff(theirs.Env, ours.Env); diff != "" {
		t.Errorf("rank %s: environment (-accelerate +muster):\n%s", rank, diff)
	}
}

// TestAccelerateMixed lets a machine under the real accelerate and one under muster meet in one job, by the command of
// a PyTorchJob whose variables count machines.
func TestAccelerateMixed(t *testing.T) {
	t.Parallel()
	bin, dir, port := acceleratePeer(t), t.TempDir(), drive.FreePort(t)
	args := func(rank string) []string {
		return []string{
			"launch", "--multi_gpu", "--num_processes", "4", "--num_machines", "2", "--rdzv_backend", "c10d", "--main_process_ip",
			"localhost",
			"--main_process_port", port, "--machine_rank", rank, drive.Script(t, "accelerate", "dump.py"),
		}
	}
	environ := []string{
		"DUMP=" + dir, "HF_HOME=" + dir, "CUDA_VISIBLE_DEVICES=", "WORLD_SIZE=2", "MASTER_ADDR=stale", "MASTER_PORT=1",
		"PYTHON_EXEC=" + filepath.Join(bin, "python"),
	}
	ours := drive.Start(t, append(environ, "RANK=0"), append([]string{"accelerate"}, args("0")...)...)
	theirs := realAccelerate(t, append(environ, "RANK=1"), args("1")...)
	got := ours.End()
	if theirs.Status != 0 || got.Status != 0 {
		t.Fatalf("status %d under accelerate, %d under muster\n%s\n%s", theirs.Status, got.Status, theirs.Stderr, got.Stderr)
	}
	all := dumps(t, dir)
	if len(all) != 4 {
		t.Fatalf("workers %q, want 4", slices.Sorted(maps.Keys(all)))
	}
	places := map[string]bool{}
	for rank, d := range all {
		env := d.Env
		if env["WORLD_SIZE"] != "4" || env["LOCAL_WORLD_SIZE"] != "2" || env["MASTER_ADDR"] == "stale" {
			t.Errorf("rank %s: WORLD_SIZE=%s LOCAL_WORLD_SIZE=%s MASTER_ADDR=%s", rank, env["WORLD_SIZE"], env["LOCAL_WORLD_SIZE"],
				env["MASTER_ADDR"])
		}
		places[env["GROUP_RANK"]+":"+env["LOCAL_RANK"]] = true
	}
	if len(places) != 4 {
		t.Errorf("places %v, want 4 of them", places)
	}
}

// TestAccelerateCPU starts what was asked for where accelerate starts one process: workers that meet by its own
// library.
func TestAccelerateCPU(t *testing.T) {
	t.Parallel()
	bin := acceleratePeer(t)
	got := drive.Run(t, []string{"PYTHON_EXEC=" + filepath.Join(bin, "python"), "HF_HOME=" + t.TempDir(), "CUDA_VISIBLE_DEVICES="},
		append(drive.Warm("auto"), "accelerate", "launch", "--cpu", "--num_processes", "2", "--num_cpu_threads_per_process", "1",
			drive.Script(t, "accelerate", "state.py"))...)
	if got.Status != 0 {
		t.Fatalf("status %d\n%s", got.Status, got.Stderr)
	}
	for rank := range 2 {
		if want := fmt.Sprintf("rank %d of 2: MULTI_CPU gloo [0, 1] threads 1", rank); !strings.Contains(got.Stdout, want) {
			t.Errorf("no %q in:\n%s", want, got.Stdout)
		}
	}
}

// TestAccelerateUnderMPI starts muster once for each process, as mpirun does, with Open MPI's variables: the processes
// meet by these, and not by muster.
func TestAccelerateUnderMPI(t *testing.T) {
	t.Parallel()
	bin, port := acceleratePeer(t), drive.FreePort(t)
	var jobs []*drive.Job
	for rank := range 2 {
		place := fmt.Sprintf("OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=%d OMPI_COMM_WORLD_LOCAL_RANK=%d OMPI_COMM_WORLD_LOCAL_SIZE=2",
			rank, rank)
		environ := append(strings.Fields(place), "PYTHON_EXEC="+filepath.Join(bin, "python"), "HF_HOME="+t.TempDir(),
			"CUDA_VISIBLE_DEVICES=")
		jobs = append(jobs, drive.Start(t, environ, "accelerate", "launch", "--cpu", "--num_processes", "2", "--main_process_port", port,
			"--num_cpu_threads_per_process", "1", drive.Script(t, "accelerate", "state.py")))
	}
	for rank, j := range jobs {
		got := j.End()
		if want := fmt.Sprintf("rank %d of 2: MULTI_CPU gloo [0, 1] threads 1\n", rank); got.Status != 0 || got.Stdout != want {
			t.Errorf("status %d, %q, want %q\n%s", got.Status, got.Stdout, want, got.Stderr)
		}
	}
}
