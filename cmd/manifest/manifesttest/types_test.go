package manifesttest_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	mpi "github.com/kubeflow/mpi-operator/pkg/apis/kubeflow/v2beta1"
	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	training "github.com/kubeflow/training-operator/pkg/apis/kubeflow.org/v1"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	"sigs.k8s.io/yaml"
	volcano "volcano.sh/apis/pkg/apis/batch/v1alpha1"
	scheduling "volcano.sh/apis/pkg/apis/scheduling/v1beta1"

	"muster/cmd/manifest"
)

// types makes the published type of a document, by apiVersion and kind.
var types = map[string]func() any{
	"v1 Service":                                    func() any { return new(core.Service) },
	"batch/v1 Job":                                  func() any { return new(batch.Job) },
	"jobset.x-k8s.io/v1alpha2 JobSet":               func() any { return new(jobset.JobSet) },
	"kubeflow.org/v1 PyTorchJob":                    func() any { return new(training.PyTorchJob) },
	"kubeflow.org/v2beta1 MPIJob":                   func() any { return new(mpi.MPIJob) },
	"trainer.kubeflow.org/v1alpha1 TrainJob":        func() any { return new(trainer.TrainJob) },
	"trainer.kubeflow.org/v1alpha1 TrainingRuntime": func() any { return new(trainer.TrainingRuntime) },
	"batch.volcano.sh/v1alpha1 Job":                 func() any { return new(volcano.Job) },
	"scheduling.volcano.sh/v1beta1 PodGroup":        func() any { return new(scheduling.PodGroup) },
}

// The golden files of muster's own tests fit the types: no field is unknown, misplaced, doubled or of another type.
func TestGoldenFilesFitTypes(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../testdata/*.yaml")
	if err != nil || len(files) < 2*(len(manifest.Kinds())-1) {
		t.Fatalf("%d files, %v", len(files), err)
	}
	seen := map[string]bool{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for doc := range bytes.SplitSeq(text, []byte("\n---\n")) {
			var of metav1.TypeMeta
			if err := yaml.Unmarshal(doc, &of); err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			name := of.APIVersion + " " + of.Kind
			newOne := types[name]
			if newOne == nil {
				t.Errorf("%s: %q is no type that is looked for", file, name)
				continue
			}
			seen[name] = true
			into := newOne()
			if err := yaml.UnmarshalStrict(doc, into); err != nil {
				t.Errorf("%s: %s: %v", file, name, err)
			}
		}
	}
	for name := range types {
		if !seen[name] {
			t.Errorf("no file has a %s", name)
		}
	}
}

// A field that no type has is found: the decoder is strict all the way down.
func TestDecodingIsStrict(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../testdata/jobset.yaml")
	if err != nil {
		t.Fatal(err)
	}
	wrong := strings.Replace(string(text), "terminationMessagePolicy:", "terminationMessagePolitics:", 1)
	if err := yaml.UnmarshalStrict([]byte(wrong), new(jobset.JobSet)); err == nil || !strings.Contains(err.Error(), "Politics") {
		t.Errorf("%v", err)
	}
}

// Pods have what the types' words mean: memory for /dev/shm, a termination log, time to save, rules for statuses.
func TestPodsOfTypes(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../testdata/k8s-job-full.yaml")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ = bytes.Cut(text, []byte("\n---\n"))
	var job batch.Job
	if err := yaml.UnmarshalStrict(text, &job); err != nil {
		t.Fatal(err)
	}
	pod := job.Spec.Template.Spec
	c := pod.Containers[0]
	if v := pod.Volumes[0].EmptyDir; v == nil || v.Medium != core.StorageMediumMemory || v.SizeLimit.String() != "16Gi" {
		t.Errorf("shared memory: %+v", v)
	}
	if c.TerminationMessagePolicy != core.TerminationMessageFallbackToLogsOnError || c.LivenessProbe.HTTPGet.Path != "/healthz" {
		t.Errorf("%+v", c)
	}
	if s := *pod.TerminationGracePeriodSeconds; s != 120 || c.Lifecycle.PreStop.Exec == nil {
		t.Errorf("%d s, %+v", s, c.Lifecycle)
	}
	rules := job.Spec.PodFailurePolicy.Rules
	if len(rules) != 3 || rules[0].Action != batch.PodFailurePolicyActionIgnore || len(rules[0].OnExitCodes.Values) != 2 ||
		rules[0].OnExitCodes.Values[0] != 80 || rules[2].Action != batch.PodFailurePolicyActionFailJob {
		t.Errorf("%+v", rules)
	}
	if pod.RestartPolicy != core.RestartPolicyNever || *job.Spec.CompletionMode != batch.IndexedCompletion {
		t.Errorf("%s, %s", pod.RestartPolicy, *job.Spec.CompletionMode)
	}
	if q := c.Resources.Limits["nvidia.com/gpu"]; q.Value() != 8 {
		t.Errorf("%s", q.String())
	}
}
