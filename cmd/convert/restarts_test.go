package convert

import (
	"strings"
	"testing"

	"muster/cmd/manifest"
)

// TestNoRestarts: what ends at the first failure does so in each kind, whatever restarts of workers its pods have.
func TestNoRestarts(t *testing.T) {
	t.Parallel()
	const (
		volcano = `kind: Job
apiVersion: batch.volcano.sh/v1alpha1
metadata: {name: bert}
spec: {policies: [{event: PodFailed, action: POLICY}], maxRetry: 3, tasks: [{name: w, replicas: 2,
  template: {spec: {containers: [{name: c, image: a, command: COMMAND}]}}}]}
`
		neverVolcano = `kind: Job
apiVersion: batch.volcano.sh/v1alpha1
metadata: {name: bert}
spec: {maxRetry: 3, tasks: [{name: w, replicas: 2, template: {spec: {restartPolicy: Never, containers: [{name: c, image: a,
  command: COMMAND}]}}}]}
`
		jobset = `kind: JobSet
apiVersion: jobset.x-k8s.io/v1alpha2
metadata: {name: bert}
spec: {POLICY, replicatedJobs: [{name: w, template: {spec: {parallelism: 2, completions: 2, template: {spec: {containers: [{name: c,
  image: a, command: COMMAND}]}}}}}]}
`
		batch = `kind: Job
apiVersion: batch/v1
metadata: {name: bert}
spec: {backoffLimit: LIMIT, parallelism: 2, completions: 2, completionMode: Indexed, template: {spec: {containers: [{name: c, image: a,
  command: COMMAND}]}}}
`
		pytorch = `kind: PyTorchJob
apiVersion: kubeflow.org/v1
metadata: {name: bert}
spec:
  runPolicy: RUN
  pytorchReplicaSpecs:
    Master: &pod {restartPolicy: POLICY, template: {spec: {containers: [{name: pytorch, image: a, command: COMMAND}]}}}
    Worker: *pod
`
		torchrun = `[torchrun, --max-restarts=2, train.py]`
		native   = `[muster, run, --max-restarts=2, --, train.py]`
	)
	for _, c := range []struct {
		file, command   string
		workers, backed int
	}{
		{strings.ReplaceAll(volcano, "POLICY", "AbortJob"), `[x]`, 0, 0},
		{strings.ReplaceAll(volcano, "POLICY", "AbortJob"), native, 2, 0},
		{strings.ReplaceAll(volcano, "POLICY", "RestartJob"), `[x]`, 2, 2},
		{strings.Replace(volcano, "policies: [{event: PodFailed, action: POLICY}], ", "", 1), `[x]`, 100_000, 1},
		{neverVolcano, `[x]`, 0, 0},
		{strings.ReplaceAll(batch, "LIMIT", "0"), `[x]`, 0, 0},
		{strings.ReplaceAll(batch, "LIMIT", "0"), native, 2, 0},
		{strings.ReplaceAll(jobset, "POLICY, ", ""), `[x]`, 0, 0},
		{strings.ReplaceAll(jobset, "POLICY, ", ""), native, 2, 0},
		{strings.ReplaceAll(jobset, "POLICY", "failurePolicy: {}"), `[x]`, 0, 0},
		{strings.ReplaceAll(jobset, "POLICY", "failurePolicy: {maxRestarts: 2}"), `[x]`, 2, 2},
		{strings.NewReplacer("RUN", "{backoffLimit: 0}", "POLICY", "Never").Replace(pytorch), `[x]`, 0, 0},
		{strings.NewReplacer("RUN", "{}", "POLICY", "Never").Replace(pytorch), `[x]`, 0, 0},
		{strings.NewReplacer("RUN", "{}", "POLICY", "Never").Replace(pytorch), torchrun, 2, 0},
		{strings.NewReplacer("RUN", "{}", "POLICY", "Never").Replace(pytorch), native, 2, 0},
		{strings.NewReplacer("RUN", "{backoffLimit: 0}", "POLICY", "OnFailure").Replace(pytorch), torchrun, 2, 0},
		{strings.NewReplacer("RUN", "{backoffLimit: 0}", "POLICY", "OnFailure").Replace(pytorch), `[x]`, 0, 0},
		{strings.NewReplacer("RUN", "{backoffLimit: 4}", "POLICY", "OnFailure").Replace(pytorch), torchrun, 2, 2},
	} {
		req := read(t, c.file, c.command)
		what, err := Launched(req)
		if err != nil {
			t.Fatal(err)
		}
		for _, kind := range manifest.Targets() {
			s, left := manifest.Convert(req.File, kind, what)
			if s.MaxRestarts != c.workers || s.BackoffLimit != c.backed {
				t.Errorf("%s of %s%s: %d restarts of workers and %d of pods, want %d and %d; %v", kind, c.file, c.command, s.MaxRestarts,
					s.BackoffLimit, c.workers, c.backed, left)
			}
			if flags := strings.Join(s.Flags, " "); strings.Contains(flags, "restart-limit=1000000000") {
				t.Errorf("%s of %s%s: %s, though nodes are replaced anyhow", kind, c.file, c.command, flags)
			}
			if kind == "mpijob" {
				continue // its workers are counted, which the command does not say
			}
			if err := Verify(&s, nil); err != nil {
				t.Errorf("%s of %s%s: %v", kind, c.file, c.command, err)
			}
		}
	}
}
