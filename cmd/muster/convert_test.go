package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"muster/cmd/dryrun"
	"muster/cmd/manifest"
)

// What a kind's file says is all read back: converted to its own kind, it is the same file below its head, which names the
// command that has written it.
func TestConvertToItself(t *testing.T) {
	t.Parallel()
	for _, kind := range manifest.Kinds() {
		if kind == "slurm" || kind == "mpijob" { // muster reads no scripts, and mpirun's variables are not its flags
			continue
		}
		args := []string{
			"manifest", kind, "--nodes", "4", "-n", "8", "--image", "registry/train:1", "--name", "llama", "--namespace", "team", "--queue",
			"research", "--token-secret", "job-token", "--http", "7777", "--claim", "data:/data", "--claim", "sets:/sets", "--ckpt-dir",
			"/data/ckpt", "--rdma", "rdma/hca=2", "--memory", "512Gi", "--cpu", "64", "--shm", "64Gi", "--network-check", "--env", "A=1 2",
			"--topology", "1", "--max-restarts", "5", "--backoff-limit", "2", "--grace", "45s", "--flag=--join-timeout=20m",
			"--accelerators", "4", "--accelerator", "amd.com/gpu", "--", "sh", "-c", "echo $RANK", "x", "",
		}
		// What muster does with processes that still run is no policy of an operator for pods.
		for backoff, flag := range []string{"--flag=--join-timeout=20m", "--flag=--clean-policy=unfinished", "--flag=--clean-policy=all"} {
			args[slices.IndexFunc(args, func(a string) bool { return strings.HasPrefix(a, "--flag=") })] = flag
			args[slices.Index(args, "--backoff-limit")+1] = strconv.Itoa(backoff)
			file := written(t, args)
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := muster(t, nil, "convert", file, "--to", kind)
			body := func(file string) string { return file[max(0, strings.Index(file, "\napiVersion")):] }
			if diff := cmp.Diff(body(string(want)), body(got.Stdout)); got.Status != 0 || diff != "" || got.Stderr != "" {
				t.Errorf("%s with %s: status %d %s(-want +got):\n%s", kind, flag, got.Status, got.Stderr, diff)
			}
		}
	}
}

const foreignJob = `apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata:
  name: bert
  labels: {kueue.x-k8s.io/queue-name: research, team: nlp}
spec:
  nprocPerNode: "4"
  runPolicy: {activeDeadlineSeconds: 3600, backoffLimit: 4}
  pytorchReplicaSpecs:
    Master: &pod
      replicas: 1
      restartPolicy: OnFailure
      template:
        spec:
          tolerations: [{key: gpu, operator: Exists}]
          containers:
            - name: pytorch
              image: example/bert:1
              command: [torchrun, --max-restarts=2, train.py, --lr, "0.1"]
              env:
                - {name: LR, value: "0.1"}
                - {name: TOKEN, valueFrom: {secretKeyRef: {name: hub, key: token}}}
              resources: {limits: {nvidia.com/gpu: 4, cpu: 16}}
              volumeMounts: [{name: data, mountPath: /data}, {name: scratch, mountPath: /scratch}]
          volumes:
            - {name: data, persistentVolumeClaim: {claimName: sets}}
            - {name: scratch, hostPath: {path: /scratch}}
    Worker: *pod
`

// A job of torchrun becomes one of muster's in each kind, and what is left behind is told by its line.
func TestConvertForeign(t *testing.T) {
	t.Parallel()
	file := writeJob(t, foreignJob)
	for _, kind := range manifest.Targets() {
		got := muster(t, nil, "convert", file, "--to", kind)
		if got.Status != 0 {
			t.Errorf("%s: status %d\n%s", kind, got.Status, got.Stderr)
			continue
		}
		for _, want := range []string{
			file + ":5: metadata.labels team: ", file + ":15: spec.pytorchReplicaSpecs.Master.template.spec.tolerations: ",
			file + ":22: spec.pytorchReplicaSpecs.Master.template.spec.containers[0].env[1].valueFrom.secretKeyRef: ",
		} {
			if !strings.Contains(got.Stderr, want) {
				t.Errorf("%s: no %q in\n%s", kind, want, got.Stderr)
			}
		}
		for _, want := range []string{"train.py", "0.1"} {
			if !strings.Contains(got.Stdout, want) {
				t.Errorf("%s: no %q in\n%s", kind, want, got.Stdout)
			}
		}
		if kind == "slurm" || kind == manifest.ToCommand || kind == "mpijob" {
			continue
		}
		path := filepath.Join(t.TempDir(), "job.yaml")
		if err := os.WriteFile(path, []byte(got.Stdout), 0o600); err != nil {
			t.Fatal(err)
		}
		var e dryrun.Explained
		if out := muster(t, nil, "explain", "-o", "json", path); json.Unmarshal([]byte(out.Stdout), &e) != nil || len(e.Nodes) != 2 ||
			e.Nodes[0].Accelerators != 4 || strings.Join(e.Nodes[0].Command, " ") != "python -u train.py --lr 0.1" || e.Name != "bert" {
			t.Errorf("%s: %s%s", kind, out.Stdout, out.Stderr)
		}
		for _, s := range e.Settings {
			if want := map[string]string{"--nproc-per-node": "4", "--max-restarts": "2"}[s.Flag]; want != "" && s.Value != want {
				t.Errorf("%s: %s is %s, want %s", kind, s.Flag, s.Value, want)
			}
		}
	}
}

// What cannot be converted is refused with the line of the command, and nothing is written.
func TestConvertRefuses(t *testing.T) {
	t.Parallel()
	file := writeJob(t, foreignJob)
	both := func(command string) (args []string) {
		for _, role := range []string{"Master", "Worker"} {
			args = append(args, "--set", "spec.pytorchReplicaSpecs."+role+".template.spec.containers[0].command="+command)
		}
		return append(args, "--to", "jobset")
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--to", "swarm"}, `--to "swarm"`},
		{nil, `--to ""`},
		{[]string{"--to", "slurm", "--namespace", "x"}, "cannot use --namespace for slurm"},
		{both("[bash, -c, 'exec torchrun train.py']"), "reads no scripts"},
		{both("[accelerate, launch, train.py]"), "command line of accelerate"},
		{both("[torchrun, --nnodez=2, train.py]"), "torchrun would be refused"},
		{[]string{"--to", "jobset", "--nodes", "0"}, "--nodes"},
	} {
		got := muster(t, nil, append([]string{"convert", file}, c.args...)...)
		if got.Status != 2 || !strings.Contains(got.Stderr, c.want) || got.Stdout != "" {
			t.Errorf("%q: status %d, %s%s, want 2 and %q", c.args, got.Status, got.Stdout, got.Stderr, c.want)
		}
	}
}
