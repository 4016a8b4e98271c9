package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"muster/internal/testutil"
	"muster/test/drive"
)

// jobFile is the path of a file of the reader's tests.
func jobFile(t *testing.T, kind string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("../dialect/jobfile/testdata", kind+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// writeJob writes a job file.
func writeJob(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "job.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// workersSaid are the lines of workers, without what stands in front, sorted.
func workersSaid(out string) []string {
	var list []string
	for line := range strings.Lines(out) {
		if _, said, ok := strings.Cut(line, "worker "); ok {
			list = append(list, strings.TrimSpace(said))
		}
	}
	slices.Sort(list)
	return list
}

// TestJobFileKinds runs a job of each kind on this machine: its nodes, and the launchers inside of them.
func TestJobFileKinds(t *testing.T) {
	t.Parallel()
	of := func(n int, behind string) []string {
		var list []string
		for i := range n {
			list = append(list, fmt.Sprintf("%d of %d%s", i, n, behind))
		}
		return list
	}
	onNodes := of(6, "")
	for i := range onNodes {
		onNodes[i] += fmt.Sprintf(" on node %d epochs 3", i/2)
	}
	for _, c := range []struct {
		kind string
		args []string
		want []string
	}{
		{"pytorchjob", nil, onNodes},
		{"elasticjob", nil, of(4, " run llama")},
		{"pytorchtrainingjob", nil, of(4, " restarts 2")},
		{"mpijob", nil, of(4, " blue")},
		{"trainjob", nil, of(4, "")},
		{"job", []string{"--set", `spec.template.spec.containers[0].env[1].value="` + freePort(t) + `"`}, of(2, " at 127.0.0.1")},
		{"aitrainingjob", nil, of(3, " for resnet")},
		{"jobset", nil, []string{"0 of 2 index 0", "1 of 2 index 1"}},
	} {
		t.Run(c.kind, func(t *testing.T) {
			t.Parallel()
			got := muster(t, nil, append([]string{"run", "-f", jobFile(t, c.kind)}, c.args...)...)
			if said := workersSaid(got.stdout); got.status != 0 || !slices.Equal(said, c.want) {
				t.Errorf("status %d, workers said %q, want %q\n%s%s", got.status, said, c.want, got.stdout, got.stderr)
			}
			if strings.Contains(got.stderr, "only agents on this machine can join") {
				t.Errorf("a rehearsal is warned that it is on this machine:\n%s", got.stderr)
			}
		})
	}
}

// TestJobFileColossalAI runs colossalai run in the place of the operator's launcher.
func TestJobFileColossalAI(t *testing.T) {
	t.Parallel()
	script := writeScript(t, "train.py",
		"import os, sys\nprint('worker', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], os.environ['STAGE'], *sys.argv[1:])\n")
	got := muster(t, nil, "run", "-f", jobFile(t, "colossalaijob"), "--set", "spec.worker.command=["+script+", --steps, '1']", "--set",
		`spec.worker.torchArgs=[--master_port, "`+freePort(t)+`"]`)
	want := []string{"0 of 2 two --steps 1", "1 of 2 two --steps 1"}
	if said := workersSaid(got.stdout); got.status != 0 || !slices.Equal(said, want) {
		t.Errorf("status %d, workers said %q, want %q\n%s%s", got.status, said, want, got.stdout, got.stderr)
	}
}

// pods is a PyTorchJob whose nodes run a shell's script.
const pods = `apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: pods}
spec:
  runPolicy: {%s}
  pytorchReplicaSpecs:
    Master: &replica
      restartPolicy: %s
      template:
        spec:
          containers:
            - name: pytorch
              command: [/bin/bash, -c]
              args:
                - |
                  %s
    Worker:
      <<: *replica
      replicas: 2
`

// TestJobFileExits restarts nodes as the file says, and ends as it says.
func TestJobFileExits(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, policy, restart, script string
		status, starts                int
		said                          string
	}{
		{
			"retried", "backoffLimit: 2", "ExitCode",
			`echo "worker $RANK"; [ "$RANK$MUSTER_ROUND" != 10 ] || { sleep 4; exit 137; }; ` +
				`[ $MUSTER_ROUND = 1 ] || sleep 1000; [ $RANK != 0 ] || sleep 4`,
			0, 6, "",
		},
		{
			"fatal", "backoffLimit: 2", "ExitCode", `echo "worker $RANK"; [ "$RANK" != 1 ] || { sleep 4; exit 7; }; sleep 1000`, 7, 3,
			"starts nothing again after status 7",
		},
		{"never", "", "Never", `echo "worker $RANK"; [ "$RANK" != 2 ] || { sleep 4; exit 137; }; sleep 1000`, 137, 3, ""},
		{"limit", "backoffLimit: 1", "OnFailure", `echo "worker $RANK"; [ "$RANK" != 2 ] || { sleep 4; exit 9; }; sleep 1000`, 9, 6, ""},
		{"master is done", "cleanPodPolicy: Running", "Never", `echo "worker $RANK"; [ "$RANK" = 0 ] || sleep 1000; sleep 4`, 0, 3, ""},
		{"deadline", "activeDeadlineSeconds: 8", "Never", `echo "worker $RANK"; sleep 1000`, 124, 3, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			file := writeJob(t, fmt.Sprintf(pods, c.policy, c.restart, c.script))
			got := muster(t, nil, "run", "-f", file, "--grace", "5s")
			if got.status != c.status || len(workersSaid(got.stdout)) != c.starts || !strings.Contains(got.stderr, c.said) {
				t.Errorf("status %d with %d starts, want %d with %d\n%s%s", got.status, len(workersSaid(got.stdout)), c.status, c.starts,
					got.stdout, got.stderr)
			}
		})
	}
}

// TestJobFileDebug prepares all nodes of a PyTorchTrainingJob and runs the debug command in the place of torchrun.
func TestJobFileDebug(t *testing.T) {
	t.Parallel()
	got := muster(t, nil, "run", "-f", jobFile(t, "pytorchtrainingjob"), "--set", "spec.runMode.debug.enable=true", "--set",
		"spec.runMode.debug.replicaSpecs[0].command=[sh, -c, 'echo worker debugs $PET_NNODES; sleep 4']")
	if said := workersSaid(got.stdout); got.status != 0 || !slices.Equal(said, []string{"debugs 2", "debugs 2"}) {
		t.Errorf("status %d, workers said %q\n%s%s", got.status, said, got.stdout, got.stderr)
	}
}

// TestJobFileRefused starts nothing where something is wrong with the file or with what stands beside it.
func TestJobFileRefused(t *testing.T) {
	t.Parallel()
	mark := filepath.Join(t.TempDir(), "started")
	file := writeJob(t, fmt.Sprintf(pods, "", "Never", "touch "+mark))
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"-f", "nowhere.yaml"}, "nowhere.yaml"},
		{[]string{"-f", file, "--set", "spec.runPolicy.backofLimit=1"}, "did you mean backoffLimit?"},
		{[]string{"-f", file, "--set", "spec.runPolicy.suspend=true"}, "the job is suspended"},
		{[]string{"-f", file, "--hosts", "127.0.0.1,127.0.0.2"}, "there are only 2 hosts"},
		{[]string{"-f", file, "--set", "spec.pytorchReplicaSpecs.Worker.replicas=100"}, "cannot run 101 nodes on this machine"},
		{[]string{"-f", file, "--nnodes", "2"}, "the file says what runs on which nodes"},
		{[]string{"-f", file, "--name", "other"}, "no job in the file is the one"},
		{[]string{"-f", file, "--", "more"}, "arguments cannot be put behind a script"},
		{[]string{"--set", "a=b", "--", "true"}, "cannot use --set a=b: it has no effect without a job file"},
	} {
		got := muster(t, nil, append([]string{"run"}, c.args...)...)
		if got.status != 2 || !strings.Contains(got.stderr, c.want) {
			t.Errorf("%v: status %d, want 2 and %q\n%s", c.args, got.status, c.want, got.stderr)
		}
	}
	if _, err := os.Stat(mark); err == nil {
		t.Error("something was started")
	}
}

// TestJobFileHosts runs replicas on hosts that are named, and gives their command further arguments.
func TestJobFileHosts(t *testing.T) {
	t.Parallel()
	file := writeJob(t, `apiVersion: batch/v1
kind: Job
metadata: {name: hosts}
spec:
  parallelism: 2
  completionMode: Indexed
  template: {spec: {containers: [{command: [printf, 'worker %s %s\n', fixed]}]}}
`)
	got := muster(t, nil, "run", "-f", file, "--hosts", "localhost,127.0.0.3", "--", "more")
	if said := workersSaid(got.stdout); got.status != 0 || !slices.Equal(said, []string{"fixed more", "fixed more"}) ||
		!strings.Contains(got.stdout, "[127.0.0.3 1]") {
		t.Errorf("status %d\n%s%s", got.status, got.stdout, got.stderr)
	}
}

// TestJobFileSecrets takes variables from a directory, and explains what is missing without it.
func TestJobFileSecrets(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	drive.WriteTree(t, filepath.Join(dir, "hub", "token"), "hidden", 0o600)
	file := writeJob(t, `apiVersion: batch/v1
kind: Job
metadata: {name: secret}
spec:
  template:
    spec:
      containers:
        - command: [sh, -c, 'echo worker $TOKEN']
          env:
            - {name: TOKEN, valueFrom: {secretKeyRef: {name: hub, key: token}}}
`)
	got := muster(t, nil, "run", "-f", file, "--secrets", dir)
	if said := workersSaid(got.stdout); got.status != 0 || !slices.Equal(said, []string{"hidden"}) {
		t.Errorf("status %d\n%s%s", got.status, got.stdout, got.stderr)
	}
	got = muster(t, nil, "run", "-f", file)
	if got.status != 2 || !strings.Contains(got.stderr, "job.yaml:10:55: spec.template.spec.containers[0].env[0].valueFrom.secretKeyRef") {
		t.Errorf("status %d\n%s", got.status, got.stderr)
	}
	got = muster(t, nil, "explain", file)
	if got.status != 0 || !strings.Contains(got.stdout, "missing") || !strings.Contains(got.stdout, "--secrets DIR with hub/token") {
		t.Errorf("status %d\n%s%s", got.status, got.stdout, got.stderr)
	}
	got = muster(t, nil, "explain", "--secrets", dir, file)
	if got.status != 0 || strings.Contains(got.stdout, "hidden") {
		t.Errorf("status %d: the secret is shown, or nothing is\n%s%s", got.status, got.stdout, got.stderr)
	}
	// Neither words nor variables tell it, whatever they are called.
	file = writeJob(t, `apiVersion: batch/v1
kind: Job
metadata: {name: secret}
spec:
  template:
    spec:
      containers:
        - command: [echo, --api-key, $(TOKEN), $(TOKEN), x-$(TOKEN)]
          env:
            - {name: TOKEN, valueFrom: {secretKeyRef: {name: hub, key: token}}}
            - {name: OMP_NUM_THREADS, valueFrom: {secretKeyRef: {name: hub, key: token}}}
            - {name: PYTHONPATH, value: /x/$(TOKEN)}
`)
	for _, args := range [][]string{
		{"explain", file}, {"explain", file, "-o", "json"}, {"run", "-f", file, "--dry-run"}, {"run", "-f", file, "--dry-run", "--json"},
	} {
		got := muster(t, nil, append(args, "--secrets", dir)...)
		if got.status != 0 || strings.Contains(got.stdout+got.stderr, "hidden") || !strings.Contains(got.stdout, "x-$(TOKEN)") {
			t.Errorf("%q: status %d\n%s%s", args, got.status, got.stdout, got.stderr)
		}
	}
	got = muster(t, nil, "run", "-f", file, "--secrets", dir)
	if got.status != 0 || !strings.Contains(got.stdout, "--api-key hidden hidden x-hidden") {
		t.Errorf("status %d\n%s%s", got.status, got.stdout, got.stderr)
	}
}

// TestExplain tells of every line of a job file what becomes of it, and starts nothing.
func TestExplain(t *testing.T) {
	t.Parallel()
	got := muster(t, nil, "explain", jobFile(t, "pytorchjob"), "-o", "json", "--hosts", "a,b,c")
	var told struct {
		Rehearsal bool
		Nodes     []struct{ Replica, Host string }
		Lines     []struct{ Path, Source, State, As string }
	}
	if err := json.Unmarshal([]byte(got.stdout), &told); err != nil || got.status != 0 {
		t.Fatalf("status %d, %v\n%s", got.status, err, got.stderr)
	}
	if told.Rehearsal || len(told.Nodes) != 3 || told.Nodes[2].Replica != "mnist-worker-1" || told.Nodes[2].Host != "c" {
		t.Errorf("%+v", told.Nodes)
	}
	states := map[string]string{}
	for _, l := range told.Lines {
		states[l.Path] = l.State
		if l.Source == "" || l.As == "" {
			t.Errorf("nothing is said of %+v", l)
		}
	}
	for path, want := range map[string]string{
		"spec.runPolicy.backoffLimit": "applied", "spec.nprocPerNode": "mapped", "spec.runPolicy.ttlSecondsAfterFinished": "cluster",
	} {
		if states[path] != want {
			t.Errorf("%s is %q, want %s", path, states[path], want)
		}
	}
	text := muster(t, nil, "explain", jobFile(t, "mpijob"))
	if text.status != 0 || !strings.Contains(text.stdout, "MPIJob pi: 3 nodes on this machine, as a rehearsal") ||
		!strings.Contains(text.stdout, "(started by the launcher)") {
		t.Errorf("status %d\n%s%s", text.status, text.stdout, text.stderr)
	}
	if wrong := muster(t, nil, "explain", "nowhere.yaml"); wrong.status != 2 {
		t.Errorf("status %d\n%s", wrong.status, wrong.stderr)
	}
}

// TestJobFileTorch trains with PyTorch in a PyTorchJob whose command is Python, as pods of an operator do.
func TestJobFileTorch(t *testing.T) {
	python := testutil.Torch(t)
	t.Parallel()
	file := writeJob(t, fmt.Sprintf(`apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: sum}
spec:
  pytorchReplicaSpecs:
    Master: &replica
      restartPolicy: Never
      template: {spec: {containers: [{name: pytorch, command: [%q, %q]}]}}
    Worker: {<<: *replica, replicas: 2}
`, python, writeScript(t, "sum.py", `import torch, torch.distributed as dist
dist.init_process_group("gloo")
t = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(t)
print("worker", dist.get_rank(), "has", t.item(), flush=True)
dist.barrier()
dist.destroy_process_group()
`)))
	got := muster(t, nil, "run", "-f", file)
	if said := workersSaid(got.stdout); got.status != 0 || !slices.Equal(said, []string{"0 has 6.0", "1 has 6.0", "2 has 6.0"}) {
		t.Errorf("status %d, workers said %q\n%s%s", got.status, said, got.stdout, got.stderr)
	}
}
