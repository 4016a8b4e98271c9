package jobfile_test

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"muster/cmd/dialect/jobfile"
	"muster/internal/errhint"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// read reads a text as a job file.
func read(text string, change func(*jobfile.Options)) (*jobfile.File, error) {
	o := jobfile.Options{File: "job.yaml", Content: []byte(text)}
	if change != nil {
		change(&o)
	}
	return jobfile.Read(o)
}

func file(t testing.TB, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// told is all that a file says, as text.
func told(t *testing.T, f *jobfile.File) string {
	t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s in %s, port %d\n", f.Kind, f.Name, f.Namespace, f.Port())
	at := jobfile.Places{Port: 1234}
	for i, p := range f.Pods {
		at.Hosts = append(at.Hosts, fmt.Sprintf("host%d", i))
		fmt.Fprintf(&b, "pod %s %s[%d] %d %s (%s)\n", p.Name, p.Role, p.Index, p.Accelerators, p.Vendor, p.Source.Name)
	}
	command, nodes, err := f.Place(at)
	if err != nil {
		t.Fatal(err)
	}
	for i, n := range nodes {
		fmt.Fprintf(&b, "node %d %q\n", i, n.Argv)
		for _, v := range n.Env {
			fmt.Fprintf(&b, "  %s=%s\n", v.Name, v.Value)
		}
	}
	fmt.Fprintf(&b, "command %s\n", command.Name)
	for _, word := range command.Args {
		fmt.Fprintf(&b, "  %s\n", strings.ReplaceAll(strings.TrimSpace(word), "\n", "\n  "))
	}
	for _, w := range f.Words {
		fmt.Fprintf(&b, "--%s %s (%s)\n", w.Flag, w.Text, w.Source.Name)
	}
	for _, l := range f.Lines {
		fmt.Fprintf(&b, "%s %s %s %q: %s\n", l.Source, l.State, l.Path, l.Value, l.As)
	}
	return b.String()
}

// A node is called what the cluster would call it, and shorter where that means no other one.
func TestCalled(t *testing.T) {
	t.Parallel()
	f, err := read(file(t, "pytorchjob"), nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"[mnist-master-0 master-0 master]", "[mnist-worker-0 worker-0]", "[mnist-worker-1 worker-1]"} {
		if got := fmt.Sprint(f.Called(i)); got != want {
			t.Errorf("node %d: %s, want %s", i, got, want)
		}
	}
}

// Every kind of job has a golden file: what runs where, which settings follow, and what becomes of each line.
func TestReadKinds(t *testing.T) {
	t.Parallel()
	for _, kind := range jobfile.Kinds() {
		name := strings.ToLower(kind)
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, err := read(file(t, name), native)
			if err != nil {
				t.Fatal(err)
			}
			got, golden := told(t, f), filepath.Join("testdata", name+".golden")
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("(-want +got; -update rewrites it):\n%s", diff)
			}
		})
	}
}

// What is wrong is refused with its place, and with the name that was meant.
func TestReadRefuses(t *testing.T) {
	t.Parallel()
	bomb := "a: &a [x, x, x, x, x, x, x, x, x]\n"
	for c := 'b'; c < 'j'; c++ {
		bomb += fmt.Sprintf("%c: &%[1]c [%s]\n", c, strings.TrimSuffix(strings.Repeat("*"+string(c-1)+", ", 9), ", "))
	}
	pod := "template: {spec: {containers: [{name: c, command: [x]}]}}"
	pytorch := "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {name: j}\n" +
		"spec:\n  pytorchReplicaSpecs:\n    Worker:\n      replicas: 2\n"
	elastic := pytorch + "      " + pod + "\n  elasticPolicy: "
	for _, c := range []struct{ name, text, want string }{
		{"nothing", "", "job.yaml: no job is in the file"},
		{"no map", "- a\n", "job.yaml:1:1: a document must be a map"},
		{"no kind", "spec: {}\n", "job.yaml:1:1: the document has no kind"},
		{"a tab", "kind: Job\nspec:\n\tx: 1\n", "job.yaml:3:1: a tab stands in the indentation"},
		{"no YAML", "kind: [\n", "job.yaml:"},
		{"large", "kind: Job\n#" + strings.Repeat("x", 10<<20), "job.yaml: 10485771 bytes exceed the limit"},
		{"a bomb", bomb, "stands for more than 200000 values"},
		{"a ring", "kind: Job\nspec: &a [*a]\n", "a part of"},
		{"deep", "kind: Job\nspec: " + strings.Repeat("[", 200) + strings.Repeat("]", 200), "levels are nested"},
		{"another kind", "kind: PyTorchJobs\n", `job.yaml:1:7: unknown kind "PyTorchJobs": did you mean PyTorchJob?`},
		{"a kind that is not read", "kind: RayJob\n", "muster does not read jobs of the kind RayJob"},
		{
			"another version", strings.Replace(pytorch, "org/v1", "org/v2", 1),
			`unknown value "kubeflow.org/v2": did you mean kubeflow.org/v1?`,
		},
		{"no spec", "apiVersion: batch/v1\nkind: Job\nmetadata: {name: j}\n", "job.yaml:1:1: a Job has a spec"},
		{
			"another field", pytorch + "      restartPolice: Never\n",
			`job.yaml:8:7: spec.pytorchReplicaSpecs.Worker: unknown field "restartPolice": did you mean restartPolicy?`,
		},
		{
			"twice", pytorch + "      replicas: 3\n",
			"job.yaml:8:7: spec.pytorchReplicaSpecs.Worker: replicas stands there twice, first in line 7",
		},
		{
			"twice in the document", "apiVersion: batch/v1\nkind: Job\nkind: Job\nmetadata: {name: j}\n",
			"job.yaml:3:1: the document: kind stands there twice, first in line 2",
		},
		{
			"another value", pytorch + "      restartPolicy: OnFailur\n      " + pod,
			`job.yaml:8:22: spec.pytorchReplicaSpecs.Worker.restartPolicy: unknown value "OnFailur": did you mean OnFailure?`,
		},
		{
			"a number as text", strings.Replace(pytorch, "replicas: 2", `replicas: "2"`, 1),
			"job.yaml:7:17: spec.pytorchReplicaSpecs.Worker.replicas: give a whole number from 0",
		},
		{"text as a number", pytorch + "      template: {spec: {containers: [{command: [sleep, 5]}]}}", `give a string: write "5"`},
		{"no replica", strings.Replace(pytorch, "replicas: 2", "replicas: 0", 1), "nothing to run: give a number from 1"},
		{"too many", strings.Replace(pytorch, "replicas: 2", "replicas: 20000", 1), "give a number up to 10000"},
		{"no template", pytorch, "the replicas have no template"},
		{"no command", pytorch + "      template: {spec: {containers: [{name: c, image: i}]}}", "the container has no command"},
		{"no container", pytorch + "      template: {spec: {containers: []}}", "give a list with a container"},
		{"min over max", elastic + "{minReplicas: 4, maxReplicas: 3}", "the least number of replicas, 4, is greater than the most, 3"},
		{"outside", elastic + "{minReplicas: 3, maxReplicas: 4}", "2 replicas are not in the range from 3 to 4"},
		{"etcd where", elastic + "{minReplicas: 1, rdzvBackend: etcd}", "nodes that meet by etcd need its host"},
		{"suspended", pytorch + "      " + pod + "\n  runPolicy: {suspend: true}", "the job is suspended"},
		{
			"a Secret",
			pytorch +
				"      template: {spec: {containers: [{command: [x], env: [{name: T, valueFrom: {secretKeyRef: {name: s, key: k}}}]}]}}",
			"the variable T comes from the Secret s, which is not here",
		},
		{
			"a Secret that leads away",
			pytorch +
				"      template: {spec: {containers: [{command: [x], env: [{name: T, valueFrom: {secretKeyRef: {name: .., key: k}}}]}]}}",
			"are no names of a Secret",
		},
		{
			"limits",
			pytorch + "      template: {spec: {containers: [{command: [x], " +
				"env: [{name: T, valueFrom: {resourceFieldRef: {resource: limits.cpu}}}]}]}}",
			"muster sets no limits",
		},
		{
			"an amount", pytorch + "      template: {spec: {containers: [{command: [x], resources: {limits: {cpu: much}}}]}}",
			"give an amount such as",
		},
		{
			"a part of one",
			pytorch + "      template: {spec: {containers: [{command: [x], resources: {limits: {nvidia.com/gpu: 500m}}}]}}",
			"give a whole number of accelerators",
		},
		{"muster itself", pytorch + "      template: {spec: {containers: [{command: [muster, run, x]}]}}", "does not look for the others"},
		{"two policies", pytorch + "      restartPolicy: Never\n      " + pod + "\n    Master:\n      restartPolicy: OnFailure\n      " +
			pod, "muster has one restart policy for all nodes"},
		{
			"not indexed", "apiVersion: batch/v1\nkind: Job\nmetadata: {name: j}\nspec: {completions: 2, parallelism: 2, " + pod + "}",
			"do not know their ranks",
		},
		{
			"not together",
			"apiVersion: batch/v1\nkind: Job\nmetadata: {name: j}\nspec: {completions: 4, parallelism: 2, completionMode: Indexed, " + pod +
				"}", "2 pods would train at first, and 4 in all",
		},
		{
			"servers",
			"apiVersion: elastic.iml.github.io/v1alpha1\nkind: ElasticJob\nmetadata: {name: j}\n" +
				"spec: {distributionStrategy: ParameterServerStrategy, replicaSpecs: {worker: {" + pod + "}}}",
			"muster has no parameter servers",
		},
		{
			"paused",
			"apiVersion: batch.tensorstack.dev/v1beta1\nkind: PyTorchTrainingJob\nmetadata: {name: j}\n" +
				"spec: {runMode: {pause: {enabled: true}}, replicaSpecs: [{type: a, " + pod + "}]}",
			"the job is paused",
		},
		{
			"too few",
			"apiVersion: batch.tensorstack.dev/v1beta1\nkind: PyTorchTrainingJob\nmetadata: {name: j}\n" +
				"spec: {torchrunConfig: {minNodes: 3}, replicaSpecs: [{type: a, replicas: 2, " + pod + "}]}",
			"the least number of nodes, 3, is greater than that of all replicas, 2",
		},
		{
			"two jobs", pytorch + "      " + pod + "\n---\n" + pytorch + "      " + pod,
			"2 jobs are in the file: choose one by --kind or --name",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if _, err := read(c.text, nil); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %s", err, c.want)
			}
		})
	}
}

// What is refused can be changed from outside, and what is unknown passed over.
func TestReadSet(t *testing.T) {
	t.Parallel()
	const replicas = "spec.pytorchReplicaSpecs.Worker.replicas"
	f, err := read(file(t, "pytorchjob"), func(o *jobfile.Options) {
		o.Set = []string{
			replicas + "=5", "spec.runPolicy.activeDeadlineSeconds=60",
			`spec.pytorchReplicaSpecs.Master.template.spec.containers[1].resources.limits."nvidia.com/gpu"=1`,
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(f.Pods) != 6 || f.Pods[5].Source.Name != "--set "+replicas || f.Pods[0].Accelerators != 1 || f.Pods[1].Accelerators != 2 {
		t.Errorf("%+v", f.Pods)
	}
	for _, c := range []struct{ set, want string }{
		{"spec", "give path=value"},
		{"spec.replicas[=1", "the path has names with dots between"},
		{"spec.pytorchReplicaSpecs.Master.template.spec.containers[7].name=x", "containers has no item 7"},
		{"metadata.name.x=1", "would be a field of something that is no map"},
		{"spec.nothing[0]=1", "there is no list nothing"},
		{"spec.nothing=1", `--set spec.nothing: spec: unknown field "nothing"`},
		{"spec.nprocPerNode=[", "the value is no YAML"},
	} {
		if _, err := read(file(t, "pytorchjob"), func(o *jobfile.Options) { o.Set = []string{c.set} }); err == nil ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("--set %s: got %v, want %s", c.set, err, c.want)
		}
	}
	f, err = read(file(t, "job"), func(o *jobfile.Options) { o.Set, o.Lenient = []string{"spec.nothing=1"}, true })
	if err != nil ||
		!slices.ContainsFunc(f.Lines, func(l jobfile.Line) bool { return l.Path == "spec.nothing" && l.State == jobfile.Unknown }) {
		t.Errorf("%v: %+v", err, f)
	}
}

// One job of several is chosen.
func TestReadChoose(t *testing.T) {
	t.Parallel()
	both := file(t, "pytorchjob") + "---\n" + file(t, "job")
	for _, c := range []struct{ kind, name, want string }{{"job", "", "bert"}, {"", "mnist", "mnist"}, {"PyTorchJob", "mnist", "mnist"}} {
		f, err := read(both, func(o *jobfile.Options) { o.Kind, o.Name = c.kind, c.name })
		if err != nil || f.Name != c.want {
			t.Errorf("%+v: got %v, %v", c, f, err)
		}
	}
	_, err := read(both, func(o *jobfile.Options) { o.Name = "other" })
	if err == nil || errhint.Of(err) != "there are PyTorchJob mnist (line 1), Job bert (line 43)" {
		t.Errorf("got %v (%s)", err, errhint.Of(err))
	}
}

// Variables come from Secrets and ConfigMaps of the file and of a directory, and from what the node is.
func TestReadReferences(t *testing.T) {
	t.Parallel()
	text := `apiVersion: batch/v1
kind: Job
metadata: {name: j, namespace: team}
spec:
  template:
    spec:
      containers:
        - command: [x, $(A), $$(A), $(NOBODY), "$(POD)-$(B)"]
          envFrom:
            - {prefix: ALL_, configMapRef: {name: conf}}
            - {secretRef: {name: none, optional: true}}
          env:
            - {name: A, valueFrom: {secretKeyRef: {name: inside, key: a}}}
            - {name: B, valueFrom: {secretKeyRef: {name: outside, key: b}}}
            - {name: POD, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
            - {name: SPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
            - {name: IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
            - {name: BOTH, value: $(A)$(B)}
            - {name: GIVEN, valueFrom: {secretKeyRef: {name: nowhere, key: b}}}
---
kind: Secret
metadata: {name: inside}
data: {a: c2VjcmV0}
---
kind: ConfigMap
metadata: {name: conf}
data: {ONE: "1", TWO: "2"}
`
	f, err := read(text, func(o *jobfile.Options) {
		o.Secrets, o.Given = "dir", map[string]bool{"GIVEN": true}
		o.ReadFile = func(name string) ([]byte, error) {
			if name == filepath.Join("dir", "outside", "b") {
				return []byte("pa$$$(A)j-0\n"), nil // as it is: nothing in it stands for something else
			}
			return nil, fs.ErrNotExist
		}
		o.ReadDir = func(string) ([]string, error) { return nil, fs.ErrNotExist }
	})
	if err != nil {
		t.Fatal(err)
	}
	_, nodes, err := f.Place(jobfile.Places{Hosts: []string{"here"}})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, v := range nodes[0].Env {
		got[v.Name] = v.Value
	}
	want := map[string]string{
		"ALL_ONE": "1", "ALL_TWO": "2", "A": "secret", "B": "pa$$$(A)j-0\n", "POD": "j-0", "SPACE": "team", "IP": "here",
		"BOTH":                 "secretpa$$$(A)j-0\n",
		"JOB_COMPLETION_INDEX": "0",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"x", "secret", "$(A)", "$(NOBODY)", "j-0-pa$$$(A)j-0\n"}, nodes[0].Argv); diff != "" {
		t.Error(diff)
	}
	for _, v := range nodes[0].Env {
		if from := slices.Contains([]string{"A", "B", "BOTH"}, v.Name); v.Secret != from {
			t.Errorf("%s comes from a Secret: %v, want %v", v.Name, v.Secret, from)
		}
	}
	_, hidden, err := f.Place(jobfile.Places{Hosts: []string{"here"}, Hide: true})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"x", "$(A)", "$(A)", "$(NOBODY)", "j-0-$(B)"}, hidden[0].Argv); diff != "" {
		t.Errorf("as it is shown: %s", diff)
	}
	for _, l := range f.Lines {
		if strings.Contains(l.Value+l.As, "secret") && !strings.Contains(l.As, "Secret") {
			t.Errorf("a line tells a secret: %+v", l)
		}
	}
}

// FuzzRead looks for files that end the reader otherwise than by an error, or that it takes and cannot place.
func FuzzRead(f *testing.F) {
	for _, kind := range jobfile.Kinds() {
		f.Add(file(f, strings.ToLower(kind)), "spec.x[0]=1")
	}
	f.Add("kind: Job\nspec: &a {<<: *a}\n", "a=b")
	f.Fuzz(func(t *testing.T, text, set string) {
		for _, changes := range [][]string{nil, {set}} {
			got, err := read(text, func(o *jobfile.Options) { o.Set, o.Explain = changes, true })
			if err != nil {
				if errors.Is(err, fs.ErrNotExist) {
					t.Errorf("a file was looked for: %v", err)
				}
				continue
			}
			if _, nodes, err := got.Place(jobfile.Places{}); err == nil && len(nodes) == 0 {
				t.Error("a job with no node was taken")
			}
		}
	})
}

// TestElasticJobVariables: those of the container win over those of all replicas, wherever these stand.
func TestElasticJobVariables(t *testing.T) {
	const head, envs = "apiVersion: elastic.iml.github.io/v1alpha1\nkind: ElasticJob\nmetadata: {name: j}\nspec:\n",
		"  envs: [{name: X, value: all}, {name: Y, value: all}]\n"
	const replicas = "  replicaSpecs: {worker: {replicas: 1, template: {spec: {containers: " +
		"[{name: main, command: [x], env: [{name: X, value: own}]}]}}}}\n"
	for name, text := range map[string]string{"in front": head + envs + replicas, "behind": head + replicas + envs} {
		f, err := read(text, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, nodes, err := f.Place(jobfile.Places{Hosts: []string{"here"}})
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range nodes[0].Env {
			if want := map[string]string{"X": "own", "Y": "all"}[v.Name]; want != "" && v.Value != want {
				t.Errorf("%s: %s=%s, want %s", name, v.Name, v.Value, want)
			}
		}
	}
}

// native reads muster run in pods.
func native(o *jobfile.Options) { o.Run = runWords }

// runWords reads a few of muster run's flags.
func runWords(args, _ []string) (list []jobfile.RunFlag, command []string, err error) {
	for i := 0; i < len(args); i++ {
		name, text, joined := strings.Cut(strings.TrimLeft(args[i], "-"), "=")
		if args[i] == "--" {
			return list, args[i+1:], nil
		}
		if name == "help" {
			return nil, nil, errors.New("it asks for help")
		}
		if !joined {
			i++
			text = args[i]
		}
		f := jobfile.RunFlag{Name: name, Text: text}
		if name == "n" {
			f.Name = "nproc-per-node"
		}
		if name == "http" || name == "token-file" {
			f.Left = "of the pod"
		}
		list = append(list, f)
	}
	return list, nil, nil
}

// muster run in a pod is the job itself: what it cannot be is refused with the place of the command.
func TestReadNativeRefuses(t *testing.T) {
	t.Parallel()
	const pods = "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {name: j}\nspec:\n  pytorchReplicaSpecs:\n" +
		"    Master: {template: {spec: {containers: [{name: c, command: %s}]}}}\n" +
		"    Worker: {template: {spec: {containers: [{name: c, command: %s}]}}}\n"
	for _, c := range []struct{ master, worker, want string }{
		{
			"[muster, run, --help]", "[x]",
			"job.yaml:6:64: spec.pytorchReplicaSpecs.Master.template.spec.containers[0].command: muster run: it asks for help",
		},
		{"[muster, run, --n=2]", "[muster, run, --n=2]", "muster run has no command"},
		{"[muster, run, --n=2, --, x]", "[x]", "some pods run muster run, and others do not"},
	} {
		_, err := read(fmt.Sprintf(pods, c.master, c.worker), native)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s, %s: %v, want %q", c.master, c.worker, err, c.want)
		}
	}
}
