package convert

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"muster/cmd/dialect"
	"muster/cmd/manifest"
	"muster/internal/errhint"
)

const torchJob = `kind: PyTorchJob
apiVersion: kubeflow.org/v1
metadata: {name: bert}
spec:
  pytorchReplicaSpecs:
    Master: &pod
      replicas: 1
      template:
        spec:
          containers:
            - {name: pytorch, image: a, command: COMMAND, resources: {limits: {nvidia.com/gpu: 4}}}
    Worker: *pod
`

const mpiJob = `kind: MPIJob
apiVersion: kubeflow.org/v2beta1
metadata: {name: pi}
spec:
  mpiReplicaSpecs:
    Launcher:
      replicas: 1
      template: {spec: {containers: [{name: l, image: a, command: COMMAND}]}}
    Worker:
      replicas: 2
      template: {spec: {containers: [{name: w, image: a}]}}
`

// read reads a job file in which a command stands, as muster convert does.
func read(t *testing.T, file, command string, more ...string) dialect.Request {
	t.Helper()
	req, err := dialect.Read("run", dialect.Invocation{
		Argv0: "muster", Args: append([]string{"--job-file", "job.yaml"}, more...), Explain: true,
		ReadFile: func(string) ([]byte, error) { return []byte(strings.ReplaceAll(file, "COMMAND", command)), nil },
	})
	if err != nil {
		t.Fatalf("%s: %v", command, err)
	}
	return req
}

// TestLaunched: what a node starts is found in the command line of the launcher that its pods call.
func TestLaunched(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ file, command, procs, want string }{
		{torchJob, `[python, train.py]`, "1", "python train.py"},
		{torchJob, `[torchrun, --nproc-per-node=2, train.py, --lr, "1"]`, "2", "python -u train.py --lr 1"},
		{torchJob, `[torchrun, --nproc-per-node=auto, -m, pkg.train]`, "4", "python -u -m pkg.train"},
		{torchJob, `[torchrun, --no-python, ./train]`, "4", "./train"},
		{torchJob, `[muster, run, --, python, train.py]`, "4", "python train.py"},
		{torchJob, `[/usr/local/bin/muster, run, -n, "2", --, python, train.py]`, "2", "python train.py"},
		{strings.Replace(torchJob, "spec:\n", "spec:\n  nprocPerNode: \"3\"\n", 1), `[muster, run, --, ./train]`, "3", "./train"},
		{mpiJob, `[mpirun, --allow-run-as-root, -np, "4", -x, A=1, ./pi]`, "2", "./pi"},
		{mpiJob, `[mpirun, ./pi, "8"]`, "1", "./pi 8"},
	} {
		got, err := Launched(read(t, c.file, c.command))
		if err != nil || got.Procs != c.procs || strings.Join(got.Command, " ") != c.want {
			t.Errorf("%s: %+v %v, want %s of %s", c.command, got, err, c.procs, c.want)
		}
	}
}

// TestConvertedBy: a file names the command that has written it.
func TestConvertedBy(t *testing.T) {
	t.Parallel()
	req := read(t, torchJob, `[torchrun, train.py]`)
	what, err := Launched(req)
	if err != nil {
		t.Fatal(err)
	}
	s, _ := manifest.Convert(req.File, "slurm", what)
	const want = "# Written by muster convert --to slurm: 2 nodes with 4 workers each."
	if text := string(manifest.Write(s)); !strings.Contains(text, want) {
		t.Errorf("the file lacks %q:\n%.200s", want, text)
	}
}

// TestLaunchedRefuses: a command that is not taken apart is refused with its line, and with what to do.
func TestLaunchedRefuses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ file, command, want string }{
		{torchJob, `[bash, -c, "exec torchrun train.py"]`, "reads no scripts"},
		{torchJob, `[accelerate, launch, train.py]`, "command line of accelerate"},
		{torchJob, `[torchrun, --nnodez=2, train.py]`, "torchrun would be refused"},
		{mpiJob, `[mpirun, -np, "3", ./pi]`, "3 processes on 2 nodes"},
		{mpiJob, `[mpirun, --bind-to, core, ./pi]`, "not --bind-to"},
		{mpiJob, `[mpirun, -np, "2"]`, "starts nothing"},
	} {
		got, err := Launched(read(t, c.file, c.command))
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "job.yaml:") {
			t.Errorf("%s: %+v %v, want job.yaml: and %q", c.command, got, err, c.want)
		}
	}
	req := read(t, torchJob, "[python, a.py]", "--set",
		"spec.pytorchReplicaSpecs.Worker.template.spec.containers[0].command=[python, b.py]")
	if _, err := Launched(req); err == nil || !strings.Contains(err.Error(), "different commands: bert-master-0 and bert-worker-0") {
		t.Error(err)
	}
}

// TestSettle: what follows from flags is filled in, and what the nodes would refuse is refused here.
func TestSettle(t *testing.T) {
	t.Parallel()
	spec := func(kind string) manifest.Spec {
		return manifest.Spec{
			Kind: kind, Nodes: 2, Procs: "8", Image: "a", Name: "train", Accelerator: "nvidia.com/gpu", SharedMemory: "1Gi",
			Command: []string{"true"},
		}
	}
	s := spec("k8s-job")
	s.Queue = "research"
	if err := Settle(&s, []string{"queue"}); err != nil || s.Accelerators != 8 || s.Gang != "kueue" {
		t.Errorf("%+v %v", s, err)
	}
	for want, change := range map[string]func(s *manifest.Spec) []string{
		"did you mean k8s-job?":              func(s *manifest.Spec) []string { s.Kind = "k8sjob"; return nil },
		"-n gpu needs --accelerators":        func(s *manifest.Spec) []string { s.Procs = "gpu"; return nil },
		"cannot use --partition for k8s-job": func(*manifest.Spec) []string { return []string{"image", "partition"} },
		"unknown flag --hang-timout":         func(s *manifest.Spec) []string { s.Flags = []string{"--hang-timout=1m"}; return nil },
	} {
		s := spec("k8s-job")
		err := Settle(&s, change(&s))
		if errhint.CodeOf(err) != errhint.Usage || !strings.Contains(err.Error()+errhint.Of(err), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	s = spec("slurm")
	if err := Settle(&s, []string{"claim", "gang"}); err == nil || strings.Count(err.Error(), "cannot use") != 2 {
		t.Errorf("not both are told: %v", err)
	}
}

// TestLaunchedByPlace: a command that has the value of an operator's variable for its nodes here is refused: in the
// cluster it would have another one.
func TestLaunchedByPlace(t *testing.T) {
	t.Parallel()
	const own = `[python, train.py, --lr, $(LR), $$(MASTER_ADDR), $(GONE)]`
	withEnv := strings.Replace(torchJob, "image: a,", `image: a, env: [{name: LR, value: "1"}],`, 1)
	for command, want := range map[string]string{
		`[python, train.py, $(MASTER_ADDR)]`:             "job.yaml:11:81: spec.pytorchReplicaSpecs.Master",
		`[torchrun, train.py, "--world=$(WORLD_SIZE)"]`:  "it has $(WORLD_SIZE), which is another value in the cluster",
		`[torchrun, "--nnodes=$(PET_NNODES)", train.py]`: "",
		`[sh, -c, "python train.py $MASTER_ADDR"]`:       "",
		own: "",
	} {
		_, err := Launched(read(t, withEnv, command))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", command, err, want)
		}
	}
}

// TestToldNot: what sets a variable, or names another one, does not name it.
func TestToldNot(t *testing.T) {
	t.Parallel()
	for command, want := range map[string]string{
		`[sh, -c, "PYTHONUNBUFFERED=1 python train.py"]`:               "",
		`[sh, -c, "python train.py $MY_PET_NNODES $PET_NNODES_LEAST"]`: "",
		`[sh, -c, "python train.py $MY_PET_NNODES ${PET_NNODES}"]`:     "PET_NNODES",
		`[sh, -c, "python train.py $PET_NNODES"]`:                      "PET_NNODES",
	} {
		what, err := Launched(read(t, torchJob, command))
		if got := strings.Join(what.Told, " "); err != nil || got != want {
			t.Errorf("%s: %q, %v, want %q", command, got, err, want)
		}
	}
}

// TestTold: a variable of the operator that a command names is told where the new kind's nodes lack it.
func TestTold(t *testing.T) {
	t.Parallel()
	const indexed = `kind: Job
apiVersion: batch/v1
metadata: {name: bert}
spec: {parallelism: 2, completionMode: Indexed, template: {spec: {containers: [{image: a, command: COMMAND}]}}}
`
	for kind, want := range map[string]bool{"jobset": false, "pytorchjob": true, "volcano": true, "slurm": true, "command": true} {
		req := read(t, indexed, `[sh, -c, "echo $JOB_COMPLETION_INDEX $RANK"]`)
		what, err := Launched(req)
		if err != nil {
			t.Fatal(err)
		}
		_, left := manifest.Convert(req.File, kind, what)
		got := slices.ContainsFunc(left, func(l manifest.Left) bool { return strings.Contains(l.Why, "it names JOB_COMPLETION_INDEX") })
		if got != want {
			t.Errorf("%s: %+v", kind, left)
		}
	}
}

// TestGang: who starts the pods together is settled by the kind, and nobody does so without a queue of Kueue.
func TestGang(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ kind, queue, gang, want string }{
		{"jobset", "q", "", "kueue"}, {"jobset", "", "kueue", ""}, {"slurm", "q", "", ""},
	} {
		s := manifest.Spec{Kind: c.kind, Queue: c.queue, Gang: c.gang}
		if Gang(&s); s.Gang != c.want || !slices.Contains(manifest.Targets(), c.kind) {
			t.Errorf("%+v: %q, want %q", c, s.Gang, c.want)
		}
	}
}

// TestChanged: what workers or nodes will not have any more is told with its line, and what is of hosts is not written.
func TestChanged(t *testing.T) {
	t.Parallel()
	const elastic = `kind: PyTorchJob
apiVersion: kubeflow.org/v1
metadata: {name: bert}
spec:
  elasticPolicy: {minReplicas: 1, maxReplicas: 4}
  pytorchReplicaSpecs:
    Worker: {replicas: 2, template: {spec: {containers: [{name: pytorch, image: a, command: COMMAND}]}}}
---
kind: PodGroup
metadata: {name: bert}
spec: {minMember: 2, scheduleTimeoutSeconds: 90}
`
	for _, c := range []struct{ file, command, told, flags string }{
		{
			elastic, `[torchrun, train.py]`,
			"spec.elasticPolicy.minReplicas: the job that is written always has 2 nodes", "--join-timeout=90s",
		},
		{
			mpiJob, `[mpirun, -np, "2", ./pi]`,
			"spec.mpiReplicaSpecs.Launcher.template.spec.containers[0].command: muster run tells workers", "",
		},
	} {
		for _, kind := range manifest.Targets() {
			req := read(t, c.file, c.command)
			what, err := Launched(req)
			if err != nil {
				t.Fatal(err)
			}
			s, left := manifest.Convert(req.File, kind, what)
			var told []string
			for _, l := range left {
				told = append(told, l.Path+": "+l.Why)
			}
			if kind == "mpijob" {
				continue // mpirun starts its workers
			}
			if text := strings.Join(told, "\n"); strings.Count(text, c.told) != 1 || strings.Join(s.Flags, " ") != c.flags {
				t.Errorf("%s: %q, want once %q; flags %q, want %q", kind, told, c.told, s.Flags, c.flags)
			}
			if err := Verify(&s, nil); err != nil {
				t.Errorf("%s: %v", kind, err)
			}
		}
	}
}

// TestExported: the variables that mpirun gives its workers by -x are those of the workers in the file that is written;
// those of which the job file has no value are told.
func TestExported(t *testing.T) {
	t.Parallel()
	withEnv := strings.Replace(mpiJob, "{name: l,", `{name: l, env: [{name: A, value: old}, {name: B, value: b},
        {name: T, valueFrom: {secretKeyRef: {name: s, key: k}}}],`, 1) +
		"---\nkind: Secret\nmetadata: {name: s}\nstringData: {k: swordfish}\n"
	const command = `[mpirun, -np, "2", -x, FOO=bar, -x, HOME, -x, A=new, -x, B, -x, RANK=1, -x, T, -x, "U=$(T)", ./pi]`
	const at = "spec.mpiReplicaSpecs.Launcher.template.spec.containers[0].command -x "
	for _, kind := range []string{"pytorchjob", "mpijob", "slurm"} {
		req := read(t, withEnv, command)
		what, err := Launched(req)
		if err != nil {
			t.Fatal(err)
		}
		s, left := manifest.Convert(req.File, kind, what)
		if got := strings.Join(s.Env, " "); got != "B=b FOO=bar A=new" {
			t.Errorf("%s: the workers have %q", kind, got)
		}
		var told []string
		for _, l := range left {
			if name, found := strings.CutPrefix(l.Path, at); found {
				told = append(told, name+": "+l.Why)
			}
		}
		want := "HOME: the file has no value of it: give --env HOME=…\nRANK: muster tells its workers RANK\n" +
			"U: its value names others: give it by --env"
		if diff := cmp.Diff(want, strings.Join(told, "\n")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", kind, diff)
		}
		if err := Verify(&s, nil); err != nil {
			t.Fatal(err)
		}
		if written := string(manifest.Write(s)); strings.Contains(written, "swordfish") || !strings.Contains(written, "FOO") {
			t.Errorf("%s:\n%s", kind, written)
		}
	}
}
