package plan

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"muster/internal/errhint"
	"muster/launch/job"
	"muster/rendezvous"
)

// testJob is a job of n workers that run a program which every machine has.
func testJob(procs string) job.Job {
	return job.Job{
		Dialect: "run", RunID: "job 7/a", Procs: procs, Role: "trainer",
		Command: job.Command{Kind: job.Program, Name: "true", Args: []string{"${local_rank}", "$$"}},
		Restart: job.RestartRules{MaxRestarts: 3},
		Stop:    job.StopRules{Handled: []syscall.Signal{syscall.SIGTERM, syscall.SIGINT}},
		Environ: []string{"PATH=" + os.Getenv("PATH"), "HOME=/home/me", "RANK=99", "OMPI_COMM_WORLD_RANK=5", "PMIX_RANK=5"},
		Sources: job.Sources{
			"nproc-per-node": {Kind: job.FromFlag, Name: "--nproc-per-node"},
			"max-restarts":   {Kind: job.FromVariable, Name: "PET_MAX_RESTARTS"},
		},
	}
}

func testMachine(dir string) Machine {
	return Machine{
		Dir: dir, Hostname: "node-7.example", RuntimeDir: dir, TempDir: dir,
		CountWorkers: func(word string) (int, string, error) {
			if word != "gpu" {
				return 0, "", errors.New("unsupported word " + word)
			}
			return 8, "8 GPUs", nil
		},
		CountDevices: func() int { return 8 },
	}
}

func testRound(procs int) rendezvous.Round {
	return rendezvous.Round{
		Number: 2, GroupRank: 1, GroupWorldSize: 2, BaseRank: 4, WorldSize: 4 + procs, BaseRoleRank: 4, RoleWorldSize: 4 + procs,
		MasterAddr: "10.0.0.1", MasterPort: 29500, AgentStore: true,
	}
}

// set returns the variables of an environment that muster set itself.
func (e Env) set() map[string]string {
	vars := map[string]string{}
	for _, v := range e {
		if v.Source.Kind != job.Inherited {
			vars[v.Name] = v.Value
		}
	}
	return vars
}

func TestWorkerEnvironment(t *testing.T) {
	m := testMachine(t.TempDir())
	p, err := New(testJob("3"), m)
	if err != nil {
		t.Fatal(err)
	}
	w, err := p.Worker(testRound(3), 2, 1, "/logs/2/error.json")
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"LOCAL_RANK": "2", "RANK": "6", "GROUP_RANK": "1", "ROLE_RANK": "6", "ROLE_NAME": "trainer",
		"LOCAL_WORLD_SIZE": "3", "WORLD_SIZE": "7", "GROUP_WORLD_SIZE": "2", "ROLE_WORLD_SIZE": "7",
		"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500",
		"TORCHELASTIC_RESTART_COUNT": "1", "TORCHELASTIC_MAX_RESTARTS": "3", "TORCHELASTIC_RUN_ID": "job 7/a",
		"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_ERROR_FILE": "/logs/2/error.json",
		"TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", "OMP_NUM_THREADS": "1",
		"MUSTER_RUN_DIR": filepath.Join(m.RuntimeDir, "muster/job-job 7_a"), "MUSTER_ROUND": "2",
		"PYTHONUNBUFFERED": "1",
	}
	set := w.Env.set()
	if len(set["MUSTER_AGENT"]) != 12 {
		t.Errorf("MUSTER_AGENT=%q", set["MUSTER_AGENT"])
	}
	delete(set, "MUSTER_AGENT")
	if diff := cmp.Diff(want, set); diff != "" {
		t.Errorf("variables (-want +got):\n%s", diff)
	}
	for _, name := range []string{"OMPI_COMM_WORLD_RANK", "PMIX_RANK"} {
		if slices.ContainsFunc(w.Env, func(v job.Var) bool { return v.Name == name }) {
			t.Errorf("%s of an outer launcher was passed on", name)
		}
	}
	if got := slices.Index(w.Env.Strings(), "HOME=/home/me"); got < 0 {
		t.Error("HOME was not inherited")
	}
	if diff := cmp.Diff([]string{"true", "${local_rank}", "$$"}, w.Argv); diff != "" {
		t.Errorf("argv of a native command is taken as it is (-want +got):\n%s", diff)
	}
}

// What launchers of processes tell a process is kept from the workers where one of them started muster, and only there:
// elsewhere it is somebody's settings. What is said of the node stays.
func TestPlatformEnvironment(t *testing.T) {
	job := testJob("1")
	names := []string{
		"OMPI_MCA_btl", "OMPI_UNIVERSE_SIZE", "PMIX_NAMESPACE", "PMI_FD", "PMIX_RANK", "MV2_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID",
		"MPI_LOCALNRANKS",
		"JSM_NAMESPACE_RANK", "PALS_LOCAL_RANKID", "HYDI_CONTROL_FD", "SLURM_PROCID", "SLURM_LOCALID", "LOCAL_RANK",
		"SLURM_JOB_ID", "SLURM_NODEID", "LOCAL_SCRATCH", "LSB_JOBID", "MPI_HOME",
	}
	for _, name := range names {
		job.Environ = append(job.Environ, name+"=outer")
	}
	for platform, want := range map[string][]string{
		"": {
			"HYDI_CONTROL_FD", "JSM_NAMESPACE_RANK", "LOCAL_SCRATCH", "LSB_JOBID", "MPI_HOME", "MPI_LOCALNRANKS", "MPI_LOCALRANKID",
			"MV2_COMM_WORLD_LOCAL_RANK", "OMPI_MCA_btl", "OMPI_UNIVERSE_SIZE", "PALS_LOCAL_RANKID", "SLURM_JOB_ID", "SLURM_NODEID",
		},
		"slurm": {"LOCAL_SCRATCH", "LSB_JOBID", "MPI_HOME", "SLURM_JOB_ID", "SLURM_NODEID"},
	} {
		job.Platform = platform
		p, err := New(job, testMachine(t.TempDir()))
		if err != nil {
			t.Fatal(err)
		}
		w, err := p.Worker(testRound(1), 0, 0, "")
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, v := range w.Env {
			if v.Value == "outer" {
				got = append(got, v.Name)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("on platform %q workers inherit (-want +got):\n%s", platform, diff)
		}
	}
}

// TestEnvironmentRules are the variables with a rule of their own.
func TestEnvironmentRules(t *testing.T) {
	for _, c := range []struct {
		name    string
		procs   string
		change  func(*job.Job)
		local   int
		iface   string
		want    map[string]string
		missing []string
	}{
		{name: "one worker leaves OMP_NUM_THREADS alone", procs: "1", missing: []string{"OMP_NUM_THREADS"}},
		{
			name: "an inherited value wins", procs: "2",
			change: func(j *job.Job) {
				j.Environ = append(j.Environ, "OMP_NUM_THREADS=4", "TORCH_NCCL_ASYNC_ERROR_HANDLING=0")
			},
			want: map[string]string{"OMP_NUM_THREADS": "4", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"},
		},
		{
			name: "virtual local rank without a list", procs: "4", local: 3, change: func(j *job.Job) { j.VirtualLocalRank = true },
			want: map[string]string{"LOCAL_RANK": "0", "RANK": "7", "CUDA_VISIBLE_DEVICES": "3"},
		},
		{
			name: "virtual local rank with a list", procs: "2", local: 1,
			change: func(j *job.Job) { j.VirtualLocalRank = true; j.Environ = append(j.Environ, "CUDA_VISIBLE_DEVICES=5,7") },
			want:   map[string]string{"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": "7"},
		},
		{
			name: "virtual local rank with MetaX's list", procs: "2", local: 1,
			change: func(j *job.Job) {
				j.VirtualLocalRank = true
				j.Environ = append(j.Environ, "CUDA_VISIBLE_DEVICES=5,7", "MACA_VISIBLE_DEVICES=5,7")
			},
			want: map[string]string{"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": "7", "MACA_VISIBLE_DEVICES": "7"},
		},
		{
			name: "the file timer", procs: "1", change: func(j *job.Job) { j.Watchdog, j.WatchdogFile = true, "/timers/fifo" },
			want: map[string]string{"TORCHELASTIC_TIMER_FILE": "/timers/fifo"},
		},
		{
			name: "the interface by which nodes are reached", procs: "1", iface: "eth0",
			change: func(j *job.Job) { j.Environ = append(j.Environ, "GLOO_SOCKET_IFNAME=ib0") },
			want:   map[string]string{"NCCL_SOCKET_IFNAME": "=eth0", "GLOO_SOCKET_IFNAME": "ib0"},
		},
		{name: "no interface", procs: "1", missing: []string{"NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"}},
		{name: "somebody else's file timer", procs: "1", change: func(j *job.Job) {
			j.Environ = append(j.Environ,
				"TORCHELASTIC_TIMER_FILE=/old")
		}, want: map[string]string{"TORCHELASTIC_TIMER_FILE": "/old"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			job := testJob(c.procs)
			if c.change != nil {
				c.change(&job)
			}
			p, err := New(job, testMachine(t.TempDir()))
			if err != nil {
				t.Fatal(err)
			}
			p.Iface = c.iface
			w, err := p.Worker(testRound(p.Procs), c.local, 0, "")
			if err != nil {
				t.Fatal(err)
			}
			for name, want := range c.want {
				if got, ok := p.Lookup(name); strings.HasSuffix(name, "_IFNAME") && (got != want || !ok) {
					t.Errorf("Lookup(%s) = %q", name, got)
				}
			}
			vars := map[string]string{}
			for _, v := range w.Env {
				vars[v.Name] = v.Value
			}
			for name, value := range c.want {
				if vars[name] != value {
					t.Errorf("%s=%q, want %q", name, vars[name], value)
				}
			}
			for _, name := range c.missing {
				if value, ok := vars[name]; ok {
					t.Errorf("%s=%q is set", name, value)
				}
			}
		})
	}
}

// What a fake accelerator sets counts over what was inherited, and over the interface that workers are told.
func TestLookup(t *testing.T) {
	job, m := testJob("1"), testMachine(t.TempDir())
	job.Environ = append(job.Environ, "NCCL_SOCKET_IFNAME=ib0", "GLOO_SOCKET_IFNAME=ib0")
	m.DeviceEnv = map[string]string{"GLOO_SOCKET_IFNAME": "nosuch0"}
	p, err := New(job, m)
	if err != nil {
		t.Fatal(err)
	}
	p.Iface = "eth0"
	for name, want := range map[string]string{"NCCL_SOCKET_IFNAME": "ib0", "GLOO_SOCKET_IFNAME": "nosuch0", "RANK": "", "NO_SUCH": ""} {
		if got, ok := p.Lookup(name); got != want || ok != (want != "") {
			t.Errorf("Lookup(%s) = %q, %v, want %q", name, got, ok, want)
		}
	}
}

func TestPlanRefuses(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	write("plain", "text", 0o644)
	write("train.py", "", 0o644)
	write("job.yaml", "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata:\n  name: x\n", 0o644)
	write("my job.yaml", "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\n", 0o644)
	write("job.YAML", "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\n", 0o644)
	write("conf.yaml", "compute_environment: LOCAL_MACHINE\n", 0o644)
	if err := os.Mkdir(filepath.Join(dir, "package"), 0o755); err != nil {
		t.Fatal(err)
	}
	python := []string{"no-such-python", "python3"}
	for _, c := range []struct {
		name   string
		change func(*job.Job)
		code   int
		text   string // part of the message or the hint
	}{
		{"no workers", func(j *job.Job) { j.Procs = "0" }, errhint.Usage, "--nproc-per-node"},
		{"too many workers", func(j *job.Job) { j.Procs = "1000000" }, errhint.Usage, "4096"},
		{"unknown word", func(j *job.Job) { j.Procs = "lots" }, errhint.Usage, "lots"},
		{"program missing", func(j *job.Job) { j.Command.Name = "no-such-program" }, errhint.NotFound, "no-such-program"},
		{"a job file", func(j *job.Job) { j.Command.Name = "job.yaml" }, errhint.NotFound, "muster run -f job.yaml"},
		{"a job file in capitals", func(j *job.Job) { j.Command.Name = "job.YAML" }, errhint.NotFound, "muster run -f job.YAML"},
		{"a job file by a path", func(j *job.Job) { j.Command.Name = "./job.yaml" }, errhint.NotExecuted, "muster run -f ./job.yaml"},
		{"a job file of two words", func(j *job.Job) { j.Command.Name = "my job.yaml" }, errhint.NotFound, "muster run -f 'my job.yaml'"},
		{"no environment of two words", func(j *job.Job) { j.Python.Venv = "my env" }, errhint.Usage, "python3 -m venv 'my env'"},
		{"a file that is no job's", func(j *job.Job) { j.Command.Name = "conf.yaml" }, errhint.NotFound, "try ./conf.yaml"},
		{
			"a job file as script", func(j *job.Job) {
				j.Command = job.Command{Kind: job.Script, Name: "job.yaml", Interpreters: python}
			}, errhint.NotExecuted, "muster run -f job.yaml",
		},
		{"program not executable", func(j *job.Job) { j.Command.Name = "./plain" }, errhint.NotExecuted, "chmod"},
		{
			"script missing", func(j *job.Job) { j.Command = job.Command{Kind: job.Script, Name: "gone.py", Interpreters: python} },
			errhint.NotFound, "gone.py",
		},
		{
			"script is a directory", func(j *job.Job) { j.Command = job.Command{Kind: job.Script, Name: "package", Interpreters: python} },
			errhint.NotExecuted, "__main__.py",
		},
		{"no device for the last worker", func(j *job.Job) {
			j.VirtualLocalRank = true
			j.Environ = append(j.Environ,
				"CUDA_VISIBLE_DEVICES=0")
		}, errhint.Usage, "local rank 1"},
		{"no interpreter", func(j *job.Job) {
			j.Command = job.Command{Kind: job.Script, Name: "train.py", Interpreters: []string{"no-such-python", "nor-this"}}
		}, errhint.NotFound, "PYTHON_EXEC"},
	} {
		t.Run(c.name, func(t *testing.T) {
			job := testJob("2")
			c.change(&job)
			_, err := New(job, testMachine(dir))
			if err == nil {
				t.Fatal("no error")
			}
			if got := errhint.CodeOf(err); got != c.code {
				t.Errorf("status %d, want %d: %v", got, c.code, err)
			}
			if text := err.Error() + errhint.Of(err); !strings.Contains(text, c.text) {
				t.Errorf("%q does not name %q", text, c.text)
			}
		})
	}
}

func TestArgv(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "train.py"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name    string
		command job.Command
		want    []string // behind the interpreter
	}{
		{"script", job.Command{
			Kind: job.Script, Name: "train.py", Args: []string{"--rank=${local_rank}", "$$x", "${rank}"},
			Substitute: true,
		}, []string{"-u", "train.py", "--rank=3", "$x", "${rank}"}},
		{"module", job.Command{Kind: job.Module, Name: "pkg.train", Args: []string{"a"}}, []string{"-u", "-m", "pkg.train", "a"}},
		{
			"local rank flag",
			job.Command{Kind: job.Script, Name: "train.py", Args: []string{"a"}, LocalRankFlag: "--local-rank"},
			[]string{"-u", "train.py", "--local-rank=3", "a"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.command.Interpreters = []string{"no-such-python", "python3"}
			job := testJob("4")
			job.Command = c.command
			p, err := New(job, testMachine(dir))
			if err != nil {
				t.Fatal(err)
			}
			w, err := p.Worker(testRound(4), 3, 0, "")
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, w.Argv[1:]); diff != "" {
				t.Errorf("argv (-want +got):\n%s", diff)
			}
			if filepath.Base(w.Path) != "python3" {
				t.Errorf("interpreter %s", w.Path)
			}
		})
	}
}

// TestDevices: what accelerators take beats what is inherited and what a fake says; what is a worker's own stays with
// its local rank over restarts and rounds, and a template or the check of links has none of it.
func TestDevices(t *testing.T) {
	m := testMachine(t.TempDir())
	m.DeviceEnv = map[string]string{"CUDA_VISIBLE_DEVICES": "0,1", "RANK": "77"}
	m.AssignDevices = func(procs string, workers int) (DeviceVars, error) {
		if procs != "gpu" || workers != 8 {
			return DeviceVars{}, fmt.Errorf("devices for %d workers by %q", workers, procs)
		}
		vars := DeviceVars{Shared: []job.Var{{
			Name: "CUDA_DEVICE_ORDER", Value: "PCI_BUS_ID",
			Source: job.Source{Kind: job.FromMuster, Name: "why"},
		}}}
		for local := range workers {
			vars.Own = append(vars.Own, []job.Var{{
				Name: "CUDA_VISIBLE_DEVICES", Value: fmt.Sprintf("MIG-%d", local),
				Source: job.Source{Kind: job.FromMuster, Name: "how"},
			}})
		}
		return vars, nil
	}
	job := testJob("gpu")
	job.Environ = append(job.Environ, "CUDA_DEVICE_ORDER=FASTEST_FIRST")
	for _, virtual := range []bool{false, true} {
		job.VirtualLocalRank = virtual
		p, err := New(job, m)
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]string{"CUDA_VISIBLE_DEVICES": "MIG-3", "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "LOCAL_RANK": "3"}
		if virtual {
			want["LOCAL_RANK"] = "0"
		}
		later := testRound(8)
		later.Number, later.GroupRank, later.BaseRank = 9, 0, 0
		for restarts, round := range []rendezvous.Round{testRound(8), testRound(8), later} {
			w, err := p.Worker(round, 3, restarts, "")
			if err != nil {
				t.Fatal(err)
			}
			set := w.Env.set()
			for name, value := range want {
				if set[name] != value {
					t.Errorf("round %d, restart %d: %s=%q, want %q", round.Number, restarts, name, set[name], value)
				}
			}
			if rank := fmt.Sprint(round.BaseRank + 3); set["RANK"] != rank {
				t.Errorf("a fake's RANK: %s, want %s", set["RANK"], rank)
			}
			entries, own := w.Env.Common()
			if !slices.Contains(own, "CUDA_VISIBLE_DEVICES") || !slices.Contains(entries, "CUDA_DEVICE_ORDER=PCI_BUS_ID") {
				t.Errorf("a template has %q, and workers of their own %q", entries, own)
			}
		}
		for local, want := range map[int]string{3: "CUDA_VISIBLE_DEVICES=MIG-3", -1: "CUDA_VISIBLE_DEVICES=0,1"} {
			if env, err := p.CheckEnv(testRound(8), local); err != nil || !slices.Contains(env, want) {
				t.Errorf("the check of %d has not %s: %q, %v", local, want, env, err)
			}
		}
		if !p.OwnDevices() {
			t.Error("workers share their devices")
		}
	}
	m.AssignDevices = func(string, int) (DeviceVars, error) { return DeviceVars{}, errors.New("no device") }
	if _, err := New(job, m); errhint.CodeOf(err) != errhint.Usage || err.Error() != "no device" {
		t.Errorf("status %d of %v", errhint.CodeOf(err), err)
	}
}

func TestBinding(t *testing.T) {
	sets := [][]int{{0, 1}, {2, 3}}
	m := testMachine(t.TempDir())
	m.BindWorkers = func(mode string, workers int) ([][]int, error) {
		if mode != "node" || workers != 2 {
			return nil, errors.New("no CPU")
		}
		return sets, nil
	}
	job := testJob("2")
	job.Bind.Mode = "node"
	p, err := New(job, m)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range sets {
		w, err := p.Worker(testRound(2), i, 0, "")
		if diff := cmp.Diff(want, w.CPUs); diff != "" || err != nil {
			t.Errorf("local rank %d: %v (-want +got):\n%s", i, err, diff)
		}
	}
	if p.Binding() != "node" {
		t.Errorf("binding %q", p.Binding())
	}

	job.Bind.Mode = "socket"
	_, err = New(job, m)
	if err == nil || err.Error() != "cannot use --numa-binding socket: no CPU" || errhint.CodeOf(err) != errhint.Usage {
		t.Errorf("error %v", err)
	}
	job.Bind.Fallback = true
	if p, err = New(job, m); err != nil {
		t.Fatal(err)
	}
	w, err := p.Worker(testRound(2), 1, 0, "")
	if err != nil || w.CPUs != nil {
		t.Errorf("local rank 1 on %v, %v", w.CPUs, err)
	}
	if cpus, err := p.Bound(); cpus != nil || err == nil || p.Binding() != "no: "+err.Error() {
		t.Errorf("bound to %v, %v; %q", cpus, err, p.Binding())
	}
}
