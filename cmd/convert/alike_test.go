package convert

import (
	"strings"
	"testing"

	"muster/cmd/dialect"
	"muster/cmd/manifest"
	"muster/internal/errhint"
)

// TestAlike: what nodes of a job have that differs from node to node, and what no node of the kind has, is told.
func TestAlike(t *testing.T) {
	t.Parallel()
	const text = `kind: PyTorchJob
apiVersion: kubeflow.org/v1
metadata: {name: bert}
spec:
  runPolicy: {cleanPodPolicy: Running}
  pytorchReplicaSpecs:
    Master:
      template:
        spec: {containers: [{name: pytorch, image: one, command: [x], resources: {limits: {cpu: 4, memory: 8Gi, nvidia.com/gpu: 2}}}]}
    Worker:
      template:
        spec: {containers: [{name: pytorch, image: two, command: [x], resources: {limits: {cpu: 4, memory: 9Gi, nvidia.com/gpu: 4}}}]}
`
	const alike, byHand = ": nodes of the file that is written are alike, and have ", ": muster run by hand"
	req := read(t, text, "")
	for kind, want := range map[string][]string{
		"pytorchjob": {
			"master: 2 accelerators are asked for there", "Worker.template.spec.containers[0].image" + alike + "the image one",
			"Worker.template.spec.containers[0].resources.limits.memory" + alike + "memory 8Gi",
		},
		manifest.ToCommand: {
			"Master.template.spec.containers[0].image" + byHand, "Worker.template.spec.containers[0].image" + byHand,
			"limits.cpu" + byHand, "limits.memory" + byHand, "limits.nvidia.com/gpu" + byHand,
		},
	} {
		what, err := Launched(req)
		if err != nil {
			t.Fatal(err)
		}
		s, left := manifest.Convert(req.File, kind, what)
		var told strings.Builder
		for _, l := range left {
			told.WriteString(l.Path + ": " + l.Why + "\n")
		}
		for _, words := range want {
			if !strings.Contains(told.String(), words) {
				t.Errorf("%s: %q is not told:\n%s", kind, words, told.String())
			}
		}
		if err := Verify(&s, nil); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
		if written := string(manifest.Write(s)); kind == "pytorchjob" && !strings.Contains(written, "cleanPodPolicy: Running\n") {
			t.Errorf("the pods that run are not removed:\n%s", written)
		}
	}
}

// TestProcsWord: what is no number of workers is refused as that.
func TestProcsWord(t *testing.T) {
	t.Parallel()
	for procs, want := range map[string]string{
		"two": "-n two: give a number, auto, cpu or gpu", "0": "-n 0: a node needs at least 1 worker",
		"gpu": "-n gpu needs --accelerators",
	} {
		err := Settle(&manifest.Spec{Kind: "jobset", Procs: procs}, nil)
		if errhint.CodeOf(err) != errhint.Usage || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", procs, err)
		}
	}
}

// TestJobNameFlag: the flag by which a job of the file is chosen is named as it is called.
func TestJobNameFlag(t *testing.T) {
	t.Parallel()
	const one = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: a}\nspec: {template: {spec: {containers: [{name: c, command: [x]}]}}}\n"
	for name, want := range map[string]string{"": "choose one by --kind or --job", "b": "that --kind and --job ask for"} {
		_, err := dialect.Read("run", dialect.Invocation{
			Argv0: "muster", Args: []string{"--job-file", "job.yaml", "--name=" + name}, Explain: true, JobNameFlag: "--job",
			ReadFile: func(string) ([]byte, error) { return []byte(one + "---\n" + one), nil },
		})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// TestMPIPolicy: an MPIJob that is written counts new starts of its launcher alone, as one that is read does, and has the
// file's policy of pods. A flag that its mpirun lacks is told where it stands.
func TestMPIPolicy(t *testing.T) {
	t.Parallel()
	const policy, mpi = "spec:\n  runPolicy: {backoffLimit: 1, cleanPodPolicy: Running}\n", `[mpirun, -np, "2", ./pi]`
	for name, c := range map[string]struct{ file, command, told, limit string }{
		"of an MPIJob":   {strings.Replace(mpiJob, "spec:\n", policy, 1), mpi, "", "1"},
		"of a batch Job": {indexed, "[x]", "", "1"},
		"of a PyTorchJob": {
			strings.Replace(strings.Replace(torchJob, "spec:\n", policy, 1), "      replicas: 1\n",
				"      replicas: 1\n      restartPolicy: Never\n", 1),
			"[x]", "job.yaml:5 --success-policy=rank0\njob.yaml:9 --restart-policy=never", "0",
		},
	} {
		req := read(t, c.file, c.command)
		what, err := Launched(req)
		if err != nil {
			t.Fatal(err)
		}
		s, left := manifest.Convert(req.File, "mpijob", what)
		var told []string
		for _, l := range left {
			if strings.HasPrefix(l.Path, "--") {
				told = append(told, l.Source+" "+l.Path)
			}
		}
		if got := strings.Join(told, "\n"); got != c.told {
			t.Errorf("%s: %q is told, want %q", name, got, c.told)
		}
		if err := Verify(&s, nil); err != nil {
			t.Fatal(err)
		}
		written := string(manifest.Write(s))
		if !strings.Contains(written, "backoffLimit: "+c.limit+"\n") ||
			strings.Contains(written, "Policy: Running\n") != (name != "of a batch Job") {
			t.Errorf("%s:\n%s", name, written)
		}
	}
}

// indexed is a Job of two pods.
const indexed = `kind: Job
apiVersion: batch/v1
metadata: {name: bert}
spec:
  parallelism: 2
  completionMode: Indexed
  backoffLimit: 2
  template: {spec: {containers: [{name: c, image: a, command: COMMAND}]}}
`
