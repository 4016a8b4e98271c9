package platform_test

import (
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"muster/internal/hosts"
	"muster/internal/platform"
)

var update = flag.Bool("update", false, "rewrite what the fixtures want")

// fixture reads a file of testdata: the variables, the host name and the files of one process, and what is to be found.
func fixture(t testing.TB, file string) (in platform.Input, archive *txtar.Archive) {
	t.Helper()
	archive, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	in.Environ = map[string]string{}
	files := fstest.MapFS{}
	for _, f := range archive.Files {
		switch text := strings.TrimSpace(string(f.Data)); f.Name {
		case "env":
			for line := range strings.Lines(text) {
				name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
				in.Environ[name] = value
			}
		case "hostname":
			in.Hostname = text
		case "address":
			in.OwnAddr = func() string { return text }
		case "want":
		default:
			files[f.Name] = &fstest.MapFile{Data: f.Data}
		}
	}
	in.Files = files
	return in, archive
}

// facts writes what was found, a line for each fact.
func facts(f platform.Facts) string {
	var b strings.Builder
	line := func(name, text string) {
		if text != "" {
			fmt.Fprintf(&b, "%s: %s\n", name, text)
		}
	}
	if f.Name == "" {
		b.WriteString("none\n")
	}
	line("platform", f.Name)
	line("why", strings.Join(f.Why, ", "))
	for _, v := range []struct {
		name string
		platform.Value
	}{
		{"nodes", f.Nodes},
		{"node rank", f.NodeRank},
		{"master address", f.MasterAddr},
		{"master port", f.MasterPort},
		{"rendezvous", f.Rendezvous},
		{"workers", f.Procs},
		{"run id", f.RunID},
		{"local address", f.LocalAddr},
	} {
		if v.Text != "" {
			line(v.name, fmt.Sprintf("%s (%s%s)", v.Text, map[bool]string{true: "from "}[v.Derived], v.From))
		}
	}
	for _, h := range f.Hosts {
		line("host", fmt.Sprintf("%s, %d slots", h.Name, h.Slots))
	}
	if f.Process != nil {
		line("process", fmt.Sprintf("%+v", *f.Process))
	}
	if f.Problem != nil {
		line("problem", f.Problem.Why)
		line("hint", f.Problem.Hint)
	}
	for _, note := range f.Notes {
		line("note", note)
	}
	line("also", strings.Join(f.Also, "; "))
	return b.String()
}

// TestFixtures detects every platform by its variables.
func TestFixtures(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal("no fixtures", err)
	}
	found := map[string]bool{}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			in, archive := fixture(t, file)
			f, err := platform.Detect(in, platform.Auto)
			got := facts(f)
			if err != nil {
				got = "error: " + err.Error() + "\n"
			}
			found[f.Name] = true
			i := slices.IndexFunc(archive.Files, func(f txtar.File) bool { return f.Name == "want" })
			if *update {
				if i >= 0 {
					archive.Files = archive.Files[:i]
				}
				archive.Files = append(archive.Files, txtar.File{Name: "want", Data: []byte(got)})
				if err := os.WriteFile(file, txtar.Format(archive), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if i < 0 {
				t.Fatal("nothing is wanted: -update writes it")
			}
			if diff := cmp.Diff(string(archive.Files[i].Data), got); diff != "" {
				t.Errorf("(-want +got; -update rewrites it):\n%s", diff)
			}
			for _, name := range []string{f.Name, platform.None} {
				if name == "" {
					continue
				}
				again, err := platform.Detect(in, name)
				if want := map[bool]string{true: facts(f), false: "none\n"}[name != platform.None]; err != nil || facts(again) != want {
					t.Errorf("--platform %s: %s, %v", name, facts(again), err)
				}
			}
		})
	}
	for _, name := range platform.Names() {
		if !found[name] {
			t.Errorf("no fixture is of %s", name)
		}
	}
}

func TestNamed(t *testing.T) {
	in, _ := fixture(t, "testdata/slurm-stale.txtar")
	f, err := platform.Detect(in, "slurm")
	if err != nil || f.Name != "slurm" || f.Problem == nil || !slices.Equal(f.Also, []string{"kubeflow (PET_NNODES, PET_NODE_RANK)"}) {
		t.Errorf("%s, %v", facts(f), err)
	}
	in, _ = fixture(t, "testdata/worker.txtar")
	if f, err := platform.Detect(in, "slurm"); err != nil || f.NodeRank.Text != "1" {
		t.Errorf("a platform that is asked for inside of a worker: %s, %v", facts(f), err)
	}
	for name, want := range map[string]string{
		"lsf":        "known by LSB_JOBID",
		"kubernetes": "choose auto, none, or one of mpi, slurm, mpijob",
	} {
		if _, err := platform.Detect(platform.Input{}, name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("--platform %s: %v", name, err)
		}
	}
	if !slices.Equal(slices.Compact(slices.Sorted(slices.Values(platform.Names()))), slices.Sorted(slices.Values(platform.Names()))) {
		t.Errorf("a name is there twice: %q", platform.Names())
	}
}

// Every value that cannot be what it claims is named with its variable.
func TestMalformed(t *testing.T) {
	for _, c := range []struct{ fixture, set, want string }{
		{"slurm-step", "SLURM_NODEID=x", "SLURM_NODEID=x: it must be a whole number from 0"},
		{"slurm-step", "SLURM_NODEID=4", "SLURM_NODEID=4: the step has 4 nodes"},
		{"slurm-step", "SLURM_NODEID=", "SLURM_STEP_ID without SLURM_NODEID"},
		{"slurm-step", "SLURM_JOB_ID=a b\n", `SLURM_JOB_ID="a b\n": it must be a number`},
		{"slurm-step", "SLURM_STEP_NODELIST=n[1-", "SLURM_STEP_NODELIST=n[1-: a bracket is not closed"},
		{"slurm-step", "SLURM_STEP_TASKS_PER_NODE=1(x", "SLURM_STEP_TASKS_PER_NODE=1(x: "},
		{"slurm-step", "SLURM_STEP_NUM_TASKS=-1", "SLURM_STEP_NUM_TASKS=-1"},
		{"slurm-step", "NPROC_PER_NODE=many", "NPROC_PER_NODE=many"},
		{"slurm-tasks", "SLURM_PROCID=", "without SLURM_PROCID"},
		{"slurm-tasks", "SLURM_LOCALID=1e3", "SLURM_LOCALID=1e3"},
		{"mpi-node", "OMPI_COMM_WORLD_SIZE=", "without OMPI_COMM_WORLD_SIZE, which is not set"},
		{"mpi-node", "OMPI_COMM_WORLD_RANK=2", "with OMPI_COMM_WORLD_SIZE=2 it must be from 0 to 1"},
		{"mpi-node", "OMPI_COMM_WORLD_LOCAL_SIZE=0", "OMPI_COMM_WORLD_LOCAL_SIZE=0"},
		{"mpi-slurm", "SLURM_JOB_NODELIST=n[", "SLURM_JOB_NODELIST=n["},
		{"azureml-mpi", "AZ_BATCH_MASTER_NODE=h:port", "AZ_BATCH_MASTER_NODE=h:port: it must be HOST:PORT"},
		{"azureml-pytorch", "LOCAL_RANK=-1", "LOCAL_RANK=-1"},
		{"aihc", "WORLD_SIZE=0", "WORLD_SIZE=0"},
		{"aihc", "RANK=" + strings.Repeat("9", 100), strings.Repeat("9", 80) + `"…: it must be`},
		{"kubeflow-old-nproc", "WORLD_SIZE=13", "WORLD_SIZE=13: it is no multiple of PET_NPROC_PER_NODE=4"},
		{"aitj", "TRAININGJOB_REPLICA_INDEX=3", "TRAININGJOB_REPLICA_INDEX=3: TRAINER_INSTANCES has 3 hosts"},
		{"aitj", "TRAININGJOB_REPLICA_INDEX=", "without TRAININGJOB_REPLICA_INDEX"},
		{"aitj", "TRAINER_INSTANCES=a b", `TRAINER_INSTANCES="a b": "a b" is no name`},
		{"aitj", "TRAINER_PORTS=70000", "TRAINER_PORTS=70000"},
		{"dlrover", "NODE_NUM=0", "NODE_NUM=0"},
		{"dlrover", "NODE_RANK=x", "NODE_RANK=x"},
		{"volcano", "VC_WORKER_HOSTS=a\x1b", `VC_WORKER_HOSTS="a\x1b"`},
		{"volcano-pytorch", "RANK=3", "RANK=3"},
		{"sagemaker", "SM_CURRENT_HOST=", "without SM_CURRENT_HOST"},
		{"sagemaker", "SM_CURRENT_HOST=algo-3", "algo-3 is none of its hosts"},
		{"sagemaker", "SM_NUM_GPUS=-8", "SM_NUM_GPUS=-8"},
		{"vertex", `CLUSTER_SPEC="workerpool0"`, "it is not the JSON"},
		{"vertex", `CLUSTER_SPEC={"cluster":{"workerpool0":["a:1","b:1"]}}`, "workerpool0 must be one machine, and is 2"},
		{
			"vertex", `CLUSTER_SPEC={"cluster":{"workerpool0":["a:1"]},"task":{"type":"workerpool1","index":0}}`,
			"there is no task 0 in workerpool1",
		},
		{"vertex", `CLUSTER_SPEC={"cluster":{"workerpool0":["a b"]},"task":{"type":"workerpool0","index":0}}`, `"a b" is no name`},
		{"aws-batch", "AWS_BATCH_JOB_MAIN_NODE_INDEX=2", "AWS_BATCH_JOB_MAIN_NODE_INDEX=2: the job has 2 nodes"},
		{"aws-batch", "AWS_BATCH_JOB_NODE_INDEX=", "without AWS_BATCH_JOB_NODE_INDEX"},
		{"lepton", "LEPTON_RESOURCE_ACCELERATOR_NUM=H100", "LEPTON_RESOURCE_ACCELERATOR_NUM=H100"},
		{"lepton", "LEPTON_JOB_WORKER_INDEX=2", "LEPTON_JOB_WORKER_INDEX=2"},
		{"lsf", "LSB_MCPU_HOSTS=a many", "LSB_MCPU_HOSTS=\"a many\": many is no number of slots"},
		{"lsf", "LSB_JOBID=x", "LSB_JOBID=x: it does not begin with a number"},
		{"lsf", "LSB_JOBINDEX=x", "LSB_JOBINDEX=x"},
		{"lsf-file", "LSB_DJOB_HOSTFILE=hostfile", "it is no absolute path"},
		{"lsf-file", "LSB_DJOB_HOSTFILE=/home/u", "it is no plain file"},
		{"pbs", "PBS_NODEFILE=/../x/..", "it is no absolute path"},
		{"pbs", "PBS_JOBID=server", "PBS_JOBID=server"},
	} {
		in, _ := fixture(t, "testdata/"+c.fixture+".txtar")
		name, value, _ := strings.Cut(c.set, "=")
		in.Environ[name] = value
		f, err := platform.Detect(in, platform.Auto)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s with %.60s: %v, want %q; found\n%s", c.fixture, c.set, err, c.want, facts(f))
		}
	}
}

// The port is one that all nodes find, and that neither the job's neighbours nor its own steps have.
func TestJobPorts(t *testing.T) {
	in, _ := fixture(t, "testdata/slurm-step.txtar")
	taken := map[string]string{}
	for job := range 100 {
		for step := range 3 {
			in.Environ["SLURM_JOB_ID"], in.Environ["SLURM_STEP_ID"] = fmt.Sprint(19950+job), fmt.Sprint(step)
			f, err := platform.Detect(in, platform.Auto)
			if err != nil {
				t.Fatal(err)
			}
			at := fmt.Sprintf("job %d step %d", job, step)
			if before, twice := taken[f.MasterPort.Text]; twice {
				t.Errorf("%s and %s have port %s", before, at, f.MasterPort.Text)
			}
			taken[f.MasterPort.Text] = at
		}
	}
}

// A file that is large, or that never ends, is not read.
func TestFilesThatAreNone(t *testing.T) {
	in, _ := fixture(t, "testdata/pbs.txtar")
	in.Files = fstest.MapFS{"var/spool/pbs/aux/812.server": {Data: []byte(strings.Repeat("p1\n", 2<<20))}}
	if _, err := platform.Detect(in, platform.Auto); err == nil || !strings.Contains(err.Error(), "more than 4194304 bytes") {
		t.Error(err)
	}
	in.Files = fstest.MapFS{"var/spool/pbs/aux/812.server": {Mode: fs.ModeNamedPipe}}
	if _, err := platform.Detect(in, platform.Auto); err == nil || !strings.Contains(err.Error(), "no plain file") {
		t.Error(err)
	}
	in.Files = nil
	if f, err := platform.Detect(in, platform.Auto); err != nil || f.Nodes.Text != "" {
		t.Errorf("without files: %s, %v", facts(f), err)
	}
}

// FuzzDetect: variables of any content are refused or make facts that are bounded and fit to be shown.
func FuzzDetect(f *testing.F) {
	files, _ := filepath.Glob("testdata/*.txtar")
	for _, file := range files {
		archive, err := txtar.ParseFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(archive.Files[0].Data), "train-1")
	}
	f.Fuzz(func(t *testing.T, env, hostname string) {
		in := platform.Input{
			Environ: map[string]string{}, Hostname: hostname,
			Files: fstest.MapFS{"etc/hosts": {Data: []byte(env)}, "etc/mpi/hostfile": {Data: []byte(env)}},
		}
		for line := range strings.Lines(env) {
			name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
			in.Environ[name] = value
		}
		for _, name := range append(platform.Names(), platform.Auto) {
			found, err := platform.Detect(in, name)
			if err != nil {
				continue
			}
			if len(found.Hosts) > hosts.MaxHosts {
				t.Fatalf("%d hosts", len(found.Hosts))
			}
			for _, h := range found.Hosts {
				if h.Name == "" || strings.ContainsFunc(h.Name, func(r rune) bool { return r <= ' ' || r > '~' }) {
					t.Fatalf("%q is no name of a host", h.Name)
				}
			}
		}
	})
}
