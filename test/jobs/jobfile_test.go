package jobs

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"muster/test/drive"
)

// jobFile is the path of a file of the reader's tests.
func jobFile(kind string) string {
	return filepath.Join(drive.Root(), "cmd", "dialect", "jobfile", "testdata", kind+".yaml")
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
		{"job", []string{"--set", `spec.template.spec.containers[0].env[1].value="` + drive.FreePort(t) + `"`}, of(2, " at 127.0.0.1")},
		{"aitrainingjob", nil, of(3, " for resnet")},
		{"jobset", nil, []string{"0 of 2 index 0", "1 of 2 index 1"}},
	} {
		t.Run(c.kind, func(t *testing.T) {
			t.Parallel()
			got := drive.Run(t, nil, append([]string{"run", "-f", jobFile(c.kind)}, c.args...)...)
			if said := drive.WorkersSaid(got.Stdout); got.Status != 0 || !slices.Equal(said, c.want) {
				t.Errorf("status %d, workers said %q, want %q\n%s%s", got.Status, said, c.want, got.Stdout, got.Stderr)
			}
			if strings.Contains(got.Stderr, "only agents on this machine can join") {
				t.Errorf("a rehearsal is warned that it is on this machine:\n%s", got.Stderr)
			}
		})
	}
}

// TestJobFileColossalAI runs colossalai run in the place of the operator's launcher.
func TestJobFileColossalAI(t *testing.T) {
	t.Parallel()
	script := drive.WriteScript(t, "train.py",
		"import os, sys\nprint('worker', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], os.environ['STAGE'], *sys.argv[1:])\n")
	got := drive.Run(t, nil, "run", "-f", jobFile("colossalaijob"), "--set", "spec.worker.command=["+script+", --steps, '1']", "--set",
		`spec.worker.torchArgs=[--master_port, "`+drive.FreePort(t)+`"]`)
	want := []string{"0 of 2 two --steps 1", "1 of 2 two --steps 1"}
	if said := drive.WorkersSaid(got.Stdout); got.Status != 0 || !slices.Equal(said, want) {
		t.Errorf("status %d, workers said %q, want %q\n%s%s", got.Status, said, want, got.Stdout, got.Stderr)
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
			got := drive.Run(t, nil, "run", "-f", file, "--grace", "5s")
			starts := len(drive.WorkersSaid(got.Stdout))
			if got.Status != c.status || starts != c.starts || !strings.Contains(got.Stderr, c.said) {
				t.Errorf("status %d with %d starts, want %d with %d\n%s%s", got.Status, starts, c.status, c.starts, got.Stdout, got.Stderr)
			}
		})
	}
}

// TestJobFileDebug prepares all nodes of a PyTorchTrainingJob and runs the debug command in the place of torchrun.
func TestJobFileDebug(t *testing.T) {
	t.Parallel()
	got := drive.Run(t, nil, "run", "-f", jobFile("pytorchtrainingjob"), "--set", "spec.runMode.debug.enable=true", "--set",
		"spec.runMode.debug.replicaSpecs[0].command=[sh, -c, 'echo worker debugs $PET_NNODES; sleep 4']")
	if said := drive.WorkersSaid(got.Stdout); got.Status != 0 || !slices.Equal(said, []string{"debugs 2", "debugs 2"}) {
		t.Errorf("status %d, workers said %q\n%s%s", got.Status, said, got.Stdout, got.Stderr)
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
	got := drive.Run(t, nil, "run", "-f", file, "--hosts", "localhost,127.0.0.3", "--", "more")
	if said := drive.WorkersSaid(got.Stdout); got.Status != 0 || !slices.Equal(said, []string{"fixed more", "fixed more"}) ||
		!strings.Contains(got.Stdout, "[127.0.0.3 1]") {
		t.Errorf("status %d\n%s%s", got.Status, got.Stdout, got.Stderr)
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
	got := drive.Run(t, nil, "run", "-f", file, "--secrets", dir)
	if said := drive.WorkersSaid(got.Stdout); got.Status != 0 || !slices.Equal(said, []string{"hidden"}) {
		t.Errorf("status %d\n%s%s", got.Status, got.Stdout, got.Stderr)
	}
	got = drive.Run(t, nil, "run", "-f", file)
	if got.Status != 2 || !strings.Contains(got.Stderr, "job.yaml:10:55: spec.template.spec.containers[0].env[0].valueFrom.secretKeyRef") {
		t.Errorf("status %d\n%s", got.Status, got.Stderr)
	}
	got = drive.Run(t, nil, "explain", file)
	if got.Status != 0 || !strings.Contains(got.Stdout, "missing") || !strings.Contains(got.Stdout, "--secrets DIR with hub/token") {
		t.Errorf("status %d\n%s%s", got.Status, got.Stdout, got.Stderr)
	}
	got = drive.Run(t, nil, "explain", "--secrets", dir, file)
	if got.Status != 0 || strings.Contains(got.Stdout, "hidden") {
		t.Errorf("status %d: the secret is shown, or nothing is\n%s%s", got.Status, got.Stdout, got.Stderr)
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
		got := drive.Run(t, nil, append(args, "--secrets", dir)...)
		if got.Status != 0 || strings.Contains(got.Stdout+got.Stderr, "hidden") || !strings.Contains(got.Stdout, "x-$(TOKEN)") {
			t.Errorf("%q: status %d\n%s%s", args, got.Status, got.Stdout, got.Stderr)
		}
	}
	got = drive.Run(t, nil, "run", "-f", file, "--secrets", dir)
	if got.Status != 0 || !strings.Contains(got.Stdout, "--api-key hidden hidden x-hidden") {
		t.Errorf("status %d\n%s%s", got.Status, got.Stdout, got.Stderr)
	}
}

// The job that a file of muster manifest asks for runs here: a rehearsal.
func TestManifestRuns(t *testing.T) {
	t.Parallel()
	made := drive.Run(t, nil, "manifest", "k8s-job", "--image", "train:1", "--nodes", "2", "-n", "2", "--accelerators", "0", "--env",
		"STAGE=one $(date) $$", "--", "sh", "-c", `echo "worker $RANK of $WORLD_SIZE, $LOCAL_RANK on node $GROUP_RANK, $STAGE"`)
	got := drive.Run(t, nil, "run", "-f", writeJob(t, made.Stdout))
	var want []string
	for i := range 4 {
		want = append(want, fmt.Sprintf("%d of 4, %d on node %d, one $(date) $$", i, i%2, i/2))
	}
	if said := drive.WorkersSaid(got.Stdout); got.Status != 0 || strings.Join(said, "\n") != strings.Join(want, "\n") {
		t.Errorf("status %d, workers said %q\n%s%s", got.Status, said, got.Stdout, made.Stderr+got.Stderr)
	}
}

// TestJobFileOfMustersVariables: variables of a container count for the muster run in it as in the pod: how many workers
// there are, and how often they are started anew.
func TestJobFileOfMustersVariables(t *testing.T) {
	t.Parallel()
	script := drive.WriteScript(t, "worker.sh", `echo "worker $RANK of $WORLD_SIZE, start $TORCHELASTIC_RESTART_COUNT$MUSTER_GRACE"
[ $RANK != 3 ] || [ $TORCHELASTIC_RESTART_COUNT = 2 ]
`)
	file := writeJob(t, `apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: vars}
spec:
  runPolicy: {backoffLimit: 1}
  pytorchReplicaSpecs:
    Worker:
      replicas: 2
      restartPolicy: Never
      template:
        spec:
          containers:
            - name: pytorch
              command: [muster, run, --, sh, `+script+`]
              env:
                - {name: MUSTER_NPROC_PER_NODE, value: "2"}
                - {name: PET_MAX_RESTARTS, value: "2"}
                - {name: MUSTER_RESTART_DELAY, value: 0s}
                - {name: MUSTER_GRACE, value: 5s}
`)
	got := drive.Run(t, nil, "run", "-f", file)
	said := drive.WorkersSaid(got.Stdout)
	if got.Status != 0 || !slices.Contains(said, "3 of 4, start 2") || slices.Contains(said, "3 of 4, start 3") {
		t.Errorf("status %d, workers said %q\n%s", got.Status, said, got.Stderr)
	}
	got = drive.Run(t, nil, "run", "-f", file, "--max-restarts", "1")
	if said := drive.WorkersSaid(got.Stdout); got.Status != 1 || slices.Contains(said, "3 of 4, start 2") {
		t.Errorf("status %d, workers said %q\n%s", got.Status, said, got.Stderr)
	}
}

// TestJobFileTorch trains with PyTorch in a PyTorchJob whose command is Python, as pods of an operator do.
func TestJobFileTorch(t *testing.T) {
	python := drive.SomeTorch(t)
	t.Parallel()
	file := writeJob(t, fmt.Sprintf(`apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: sum}
spec:
  pytorchReplicaSpecs:
    Master: &replica
      restartPolicy: Never
      template: {spec: {containers: [{name: pytorch, command: [%q, %q]}]}}
    Worker: *replica
`, python, drive.WriteScript(t, "sum.py", `import torch, torch.distributed as dist
dist.init_process_group("gloo")
t = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(t)
print("worker", dist.get_rank(), "has", t.item(), flush=True)
dist.barrier()
dist.destroy_process_group()
`)))
	got := drive.Run(t, nil, "run", "-f", file)
	if said := drive.WorkersSaid(got.Stdout); got.Status != 0 || !slices.Equal(said, []string{"0 has 3.0", "1 has 3.0"}) {
		t.Errorf("status %d, workers said %q\n%s%s", got.Status, said, got.Stdout, got.Stderr)
	}
}
