package dialect_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"muster/cmd/dialect"
	"muster/internal/errhint"
	"muster/internal/platform"
	"muster/launch/job"
)

// on is a command line in the surroundings of a fixture of internal/platform, with further variables.
func on(t *testing.T, fixture string, env []string, args ...string) dialect.Invocation {
	t.Helper()
	archive, err := txtar.ParseFile(filepath.Join("..", "..", "internal", "platform", "testdata", fixture+".txtar"))
	if err != nil {
		t.Fatal(err)
	}
	files := fstest.MapFS{"conf.yaml": {Data: []byte("nnodes: 3\n")}}
	inv := dialect.Invocation{Argv0: "muster", Args: args, Environ: env, ReadFile: files.ReadFile}
	for _, f := range archive.Files {
		switch text := strings.TrimSpace(string(f.Data)); f.Name {
		case "env":
			inv.Environ = append(inv.Environ, strings.Split(text, "\n")...)
		case "hostname":
			inv.Machine.Hostname = text
		case "address":
			inv.Machine.OwnAddr = func() string { return text }
		default:
			files[f.Name] = &fstest.MapFile{Data: f.Data}
		}
	}
	inv.Machine.Files = files
	return inv
}

// meets says in a line how the job of a command line meets, or why it is refused.
func meets(req dialect.Request, err error) string {
	if err != nil {
		text := err.Error()
		if hint := errhint.Of(err); hint != "" {
			text += "\n    hint: " + hint
		}
		return text
	}
	job, m := &req.Job, &req.Job.Meeting
	text := fmt.Sprintf("%d:%d nodes, %s", job.Nodes.Min, job.Nodes.Max, m.Backend)
	for _, e := range m.Endpoints {
		text += " " + e.String()
	}
	if m.Host != "" || m.Port != 0 {
		text += fmt.Sprintf(" on %q port %d", m.Host, m.Port)
	}
	text += fmt.Sprintf(", node rank %d, %s workers", m.NodeRank, job.Procs)
	for _, more := range [][2]string{{"run id", job.RunID}, {"at", m.LocalAddr}, {"platform", job.Platform}} {
		if more[1] != "" {
			text += fmt.Sprintf(", %s %s", more[0], more[1])
		}
	}
	for _, warning := range job.Warnings {
		text += "\n    warning: " + warning
	}
	return text
}

// TestPlatforms runs a command without a flag on every platform.
func TestPlatforms(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("..", "..", "internal", "platform", "testdata", "*.txtar"))
	if err != nil || len(files) == 0 {
		t.Fatal("no fixtures", err)
	}
	var b strings.Builder
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".txtar")
		fmt.Fprintf(&b, "%s\n    %s\n", name, meets(dialect.Native(on(t, name, nil, "--", "prog"))))
	}
	golden(t, "platforms.txt", b.String())
}

// TestPlatformPrecedence: what is given in any other way is stronger than the platform, and how nodes meet is taken as
// a whole.
func TestPlatformPrecedence(t *testing.T) {
	for _, c := range []struct{ fixture, env, args, want string }{
		{"slurm-step", "", "", "4:4 nodes, static gpu008:14711, node rank 1, 1 workers, run id slurm-4711-0, platform slurm"},
		{"slurm-step", "", "--platform none", "1:1 nodes, standalone, node rank -1, 1 workers"},
		{"slurm-step", "MUSTER_PLATFORM=none", "", "1:1 nodes, standalone, node rank -1, 1 workers"},
		{
			"slurm-step", "MUSTER_PLATFORM=none", "--platform slurm",
			"4:4 nodes, static gpu008:14711, node rank 1, 1 workers, run id slurm-4711-0, platform slurm",
		},
		{"slurm-step", "", "--nnodes 1", "1:1 nodes, standalone, node rank -1, 1 workers, platform slurm"},
		{"slurm-step", "MUSTER_NNODES=1", "", "1:1 nodes, standalone, node rank -1, 1 workers, platform slurm"},
		{"slurm-step", "PET_NNODES=2", "", "2:2 nodes, static gpu008:14711, node rank 1, 1 workers, run id slurm-4711-0, platform slurm"},
		{
			"slurm-step", "", "--config conf.yaml",
			"3:3 nodes, static gpu008:14711, node rank 1, 1 workers, run id slurm-4711-0, platform slurm",
		},
		{
			"slurm-step", "PET_NNODES=2", "--config conf.yaml --nnodes 4",
			"4:4 nodes, static gpu008:14711, node rank 1, 1 workers, run id slurm-4711-0, platform slurm",
		},
		{"slurm-step", "", "--nnodes 2:4", "2:4 nodes, c10d gpu008:14711, node rank -1, 1 workers, run id slurm-4711-0, platform slurm"},
		{
			"slurm-step", "", "--node-rank 3 --run-id mine -n 8",
			"4:4 nodes, static gpu008:14711, node rank 3, 8 workers, run id mine, platform slurm",
		},
		{
			"slurm-step", "", "--master-addr other",
			"4:4 nodes, static other:29500, node rank 1, 1 workers, run id slurm-4711-0, platform slurm",
		},
		{"slurm-step", "", "--master-port 5", "4:4 nodes, static gpu008:5, node rank 1, 1 workers, run id slurm-4711-0, platform slurm"},
		{"slurm-step", "", "--rdzv c10d://h", "4:4 nodes, c10d h:29400, node rank -1, 1 workers, run id slurm-4711-0, platform slurm"},
		{"slurm-step", "", "--rdzv static://h", "4:4 nodes, static h:29500, node rank 1, 1 workers, run id slurm-4711-0, platform slurm"},
		{"slurm-step", "MUSTER_FAKE=f", "--simulate-nodes 2", "2:2 nodes, muster, node rank -1, 1 workers"},
		{"slurm-step", "MUSTER_SIMULATED=1", "", "1:1 nodes, standalone, node rank -1, 1 workers"},
		{"slurm-tasks", "", "--nnodes 1", "1:1 nodes, standalone, node rank -1, 1 workers, platform slurm"},
		{
			"slurm-tasks", "", "--nnodes 16 --rdzv c10d://h --run-id j",
			"16:16 nodes, c10d h:29400, node rank -1, 1 workers, run id j, platform slurm",
		},
		{
			"slurm-stale", "", "--platform slurm",
			"2:2 nodes, static job-master-0:23456, node rank 1, 1 workers, run id none, platform slurm",
		},
		{"slurm-batch", "", "--nnodes 1", "1:1 nodes, standalone, node rank -1, 1 workers, platform slurm"},
		{
			"kubeflow-elastic", "", "--rdzv muster://h --max-restarts 1",
			"2:4 nodes, muster h:29400, node rank -1, 2 workers, run id job, platform kubeflow",
		},
		{
			"kubeflow-elastic-master", "", "--node-rank 0 --nnodes 3",
			"3:3 nodes, static job-master-0:23456, node rank 0, 1 workers, run id job, platform kubeflow",
		},
		{
			"trainer-v2", "", "--nnodes 1:2",
			"1:2 nodes, c10d train-node-0-0.train:29500, node rank -1, auto workers, run id none, platform kubeflow",
		},
		{"kubeflow-v1", "", "-n 4", "3:3 nodes, static job-master-0:23456, node rank 1, 4 workers, run id none, platform kubeflow"},
		{
			"dlrover", "", "--iface eth0",
			"4:4 nodes, muster elasticjob-job-dlrover-master:50001, node rank -1, 1 workers, run id job, platform dlrover",
		},
		{
			"aihc", "MUSTER_NPROC_PER_NODE=2", "",
			"2:2 nodes, static job-7-master-0:23456, node rank 1, 2 workers, run id job-7, platform aihc",
		},
		{
			"jobset", "", "--nnodes 4",
			"4:4 nodes, static pytorch-workers-0-0.pytorch.default.svc.cluster.local:29500, node rank 3, 1 workers, run id none, " +
				"platform jobset",
		},
		{
			"aws-batch", "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS=fd00::1", "--nnodes 1:2",
			"1:2 nodes, c10d [fd00::1]:29400, node rank -1, 1 workers, run id 0e3f-aa, platform aws-batch",
		},
		{"mpi-node", "", "--master-addr h0", "2:2 nodes, static h0:29500, node rank 1, 1 workers, run id none, platform mpi"},
		{
			"slurm-bad-number", "", "--nnodes 1",
			"1:1 nodes, standalone, node rank -1, 1 workers\n" +
				"    warning: no platform is taken into account: cannot use SLURM_JOB_NUM_NODES=two: it must be a whole number from 1",
		},
	} {
		req, err := dialect.Native(on(t, c.fixture, strings.Fields(c.env), append(strings.Fields(c.args), "--", "prog")...))
		if diff := cmp.Diff(c.want, meets(req, err)); diff != "" {
			t.Errorf("%s %s %s (-want +got):\n%s", c.fixture, c.env, c.args, diff)
		}
	}
	for _, c := range []struct{ fixture, args, want string }{
		{"slurm-step", "--nnodes 1 --node-rank 1", "--node-rank 1: one node has only node rank 0"},
		{"none", "--platform slurm", "cannot use --platform slurm: it did not start this process: it is known by SLURM_JOB_ID"},
		{"none", "--platform kubernetes", "choose one of auto, none, mpi, slurm,"},
		{"slurm-step", "--platform=lsf", "it is known by LSB_JOBID"},
		{"slurm-batch", "--platform slurm", "the job has 2 nodes, and this is its batch script"},
		{"slurm-batch", "--nnodes 2", "the job has 2 nodes, and this is its batch script"},
		{"slurm-bad-number", "--nnodes 2", "SLURM_JOB_NUM_NODES=two"},
	} {
		_, err := dialect.Native(on(t, c.fixture, nil, append(strings.Fields(c.args), "--", "prog")...))
		if err == nil || !strings.Contains(err.Error(), c.want) || errhint.CodeOf(err) != errhint.Usage {
			t.Errorf("%s %s: %v", c.fixture, c.args, err)
		}
	}
	// A platform that runs fewer nodes than it has says so by its variable.
	req, err := dialect.Native(on(t, "slurm-step", []string{"SLURM_NODEID=2"}, "--nnodes", "2", "--", "prog"))
	if err == nil || err.Error() != "cannot use SLURM_NODEID=2 with --nnodes 2: node ranks go from 0 to 1" {
		t.Errorf("%v, %v", req.Job.Meeting, err)
	}
}

// TestPlatformSources: every value tells the variable it came from.
// In a pod of an ElasticJob, DLRover's master is where the nodes meet, or a store of muster.
func TestPlatformOfDLRover(t *testing.T) {
	for env, want := range map[string]string{"": job.MasterAsked, "DLROVER_MASTER_SERVICE_TYPE=http": job.MasterHTTP} {
		req, err := dialect.Native(on(t, "dlrover", strings.Fields(env), "--", "prog"))
		if m := req.Job.Meeting.DLRover; err != nil || m.Service != want || m.NodeType != "worker" || m.NodeRank < 0 {
			t.Errorf("%s: %+v, %v", env, m, err)
		}
		req, err = dialect.Native(on(t, "dlrover", strings.Fields(env), "--rdzv", "muster://h", "--nnodes", "2", "--", "prog"))
		if m := req.Job.Meeting.DLRover; err != nil || m.Service != "" {
			t.Errorf("%s, another place: %+v, %v", env, m, err)
		}
	}
}

func TestPlatformSources(t *testing.T) {
	req, err := dialect.Native(on(t, "slurm-step", nil, "--", "prog"))
	if err != nil {
		t.Fatal(err)
	}
	want := job.Sources{
		"nnodes":      {Kind: job.FromPlatform, Name: "SLURM_STEP_NUM_NODES"},
		"node-rank":   {Kind: job.FromPlatform, Name: "SLURM_NODEID"},
		"master-addr": {Kind: job.FromPlatform, Name: "SLURM_STEP_NODELIST, derived"},
		"master-port": {Kind: job.FromPlatform, Name: "SLURM_JOB_ID, derived"},
		"run-id":      {Kind: job.FromPlatform, Name: "SLURM_JOB_ID, derived"},
	}
	if diff := cmp.Diff(want, req.Job.Sources); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	// A value that is not in the variable is not shown as if it were.
	_, err = dialect.Native(on(t, "sagemaker", []string{`SM_HOSTS=["algo.","algo-2"]`}, "--master-addr", "::", "--", "prog"))
	if err == nil {
		t.Error("a wrong address is taken")
	}
	_, err = dialect.Native(on(t, "lepton", []string{"LEPTON_SUBDOMAIN=a b"}, "--", "prog"))
	if err == nil || !strings.Contains(err.Error(), "--master-addr job-x-worker-0.a b (platform LEPTON_JOB_SERVICE_PREFIX, derived)") {
		t.Error(err)
	}
}

// Other launchers than muster's own look at no platform: torchrun does not, and dlrover-run has variables of its own.
func TestPlatformInOtherDialects(t *testing.T) {
	for _, name := range []string{"torchrun", "torch.distributed.launch", "dlrover-run", "accelerate-launch"} {
		inv := on(t, "slurm-step", nil, "t.py")
		req, err := dialect.Read(name, inv)
		if err != nil || req.Job.Nodes.Max != 1 || req.Platform != nil || req.Job.Platform != "" {
			t.Errorf("%s: %s", name, meets(req, err))
		}
	}
}

// TestPlatformDocs: docs/platforms.md has a row for each platform, in the order in which they are looked for.
func TestPlatformDocs(t *testing.T) {
	page, err := os.ReadFile("../../docs/platforms.md")
	if err != nil {
		t.Fatal(err)
	}
	var rows []string
	for line := range strings.Lines(string(page)) {
		if name, ok := strings.CutPrefix(line, "| `"); ok && !strings.HasPrefix(name, "--") {
			name, _, _ = strings.Cut(name, "`")
			rows = append(rows, name)
		}
	}
	if diff := cmp.Diff(platform.Names(), rows); diff != "" {
		t.Errorf("rows (-want +got):\n%s", diff)
	}
}
