package jobfile_test

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"muster/cmd/dialect/jobfile"
	"muster/internal/errhint"
)

// part is a place in a document of YAML: keys, and indices of lists.
type part = any

// refusedKind is where a kind's file has what its mistakes are about.
type refusedKind struct {
	name                         string
	replicas, env, limits, bound []part
	// wrong is a value of bound with which the least number is above the most; says is what is said then.
	wrong any
	says  string
}

// at returns the value at a place of a decoded file, with the function that changes it.
func at(t *testing.T, x any, place []part) (value any, set func(any)) {
	t.Helper()
	for _, p := range place {
		value = nil
		switch p := p.(type) {
		case string:
			m, is := x.(map[string]any)
			if !is {
				t.Fatalf("no map has %q of %v", p, place)
			}
			if m[p] == nil && p != place[len(place)-1] {
				m[p] = map[string]any{}
			}
			value, set = m[p], func(v any) { m[p] = v }
		case int:
			l, is := x.([]any)
			if !is || p >= len(l) {
				t.Fatalf("no list has item %d of %v", p, place)
			}
			value, set = l[p], func(v any) { l[p] = v }
		}
		x = value
	}
	return value, set
}

// changed is a kind's file with something else at a place.
func changed(t *testing.T, kind string, place []part, to func(old any) any) string {
	t.Helper()
	var all strings.Builder
	for i, text := range strings.Split(file(t, kind), "\n---\n") {
		var doc map[string]any
		if err := yaml.Unmarshal([]byte(text), &doc); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			old, set := at(t, doc, place)
			set(to(old))
		} else {
			all.WriteString("---\n")
		}
		out, err := yaml.Marshal(doc)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(out)
	}
	return all.String()
}

// TestKindsRefuse: the same mistakes in the file of each kind are refused with line and column, and with what to do.
func TestKindsRefuse(t *testing.T) {
	t.Parallel()
	container := func(before ...part) []part { return append(before, "template", "spec", "containers", 0) }
	of := func(place []part, more ...part) []part { return append(append([]part{}, place...), more...) }
	worker := append(container("spec", "pytorchReplicaSpecs", "Worker")[:6], 1) // behind a sidecar
	elastic := container("spec", "replicaSpecs", "worker")
	node := container("spec", "replicaSpecs", 0)
	mpi := container("spec", "mpiReplicaSpecs", "Worker")
	trainer := container("spec", "replicaSpecs", "trainer")
	indexed := container("spec")
	set := container("spec", "replicatedJobs", 0, "template", "spec")
	colossal := container("spec", "worker")
	located := regexp.MustCompile(`job\.yaml:[0-9]+:[0-9]+: `)
	for _, k := range []refusedKind{
		{"pytorchjob", of(worker[:3], "replicas"), of(worker, "env"), of(worker, "resources", "limits"), nil, nil, ""},
		{
			"elasticjob", of(elastic[:3], "replicas"), of(elastic, "env"), of(elastic, "resources", "limits"),
			of(elastic[:3], "replicas"), 1, "2 nodes would be waited for, and the job has 1",
		},
		{
			"pytorchtrainingjob", of(node[:3], "replicas"), of(node, "env"), of(node, "resources", "limits"),
			[]part{"spec", "torchrunConfig", "minNodes"},
			9, "the least number of nodes, 9, is greater than that of all replicas, 2",
		},
		{"mpijob", of(mpi[:3], "replicas"), of(mpi, "env"), of(mpi, "resources", "limits"), nil, nil, ""},
		{
			"trainjob",
			[]part{"spec", "trainer", "numNodes"},
			[]part{"spec", "trainer", "env"},
			[]part{"spec", "trainer", "resourcesPerNode", "limits"},
			nil, nil, "",
		},
		{
			"job",
			[]part{"spec", "parallelism"},
			of(indexed, "env"), of(indexed, "resources", "limits"),
			[]part{"spec", "completions"},
			3,
			"2 pods would train at first, and 3 in all",
		},
		{
			"aitrainingjob", of(trainer[:3], "replicas"), of(trainer, "env"), of(trainer, "resources", "limits"),
			of(trainer[:3], "minReplicas"), 9, "the least number of replicas, 9, is greater than the most, 5",
		},
		{
			"jobset", of(set[:5], "parallelism"), of(set, "env"), of(set, "resources", "limits"), of(set[:5], "completions"), 3,
			"2 pods would train at first, and 3 in all",
		},
		{
			"colossalaijob",
			[]part{"spec", "worker", "replicas"},
			[]part{"spec", "launcher", "env"},
			of(colossal, "resources", "limits"),
			nil, nil, "",
		},
	} {
		refused := func(what, text, says, hint string, change func(*jobfile.Options)) {
			t.Helper()
			_, err := read(text, change)
			if err == nil || !strings.Contains(err.Error(), says) || !located.MatchString(err.Error()) ||
				!strings.Contains(errhint.Of(err), hint) {
				t.Errorf("%s, %s: %v (%s)\n%s", k.name, what, err, errhint.Of(err), text)
			}
		}
		to := func(v any) func(any) any { return func(any) any { return v } }
		text := file(t, k.name)
		refused("a tab", strings.Replace(text, "\nspec:\n", "\nspec:\n\tx: 1\n", 1), "a tab stands in the indentation", "", nil)
		refused("a key twice", strings.Replace(text, "\nspec:\n", "\nmetadata: {name: again}\nspec:\n", 1),
			"metadata stands there twice", "", nil)
		refused("a word", changed(t, k.name, k.replicas, to("two")), "give a whole number from 0", "", nil)
		refused("no replica", changed(t, k.name, k.replicas, to(0)), "give a number from 1", "", nil)
		if k.bound != nil {
			refused("min above max", changed(t, k.name, k.bound, to(k.wrong)), k.says, "", nil)
		}
		for name, amount := range map[string]any{"cpu": "5x", "memory": "16Gib", "nvidia.com/gpu": -1, "ephemeral-storage": []any{1}} {
			refused(name, changed(t, k.name, k.limits, func(old any) any {
				limits, _ := old.(map[string]any)
				if limits == nil {
					limits = map[string]any{}
				}
				limits[name] = amount
				return limits
			}), name+": give an amount such as 8, 500m or 16Gi", "", nil)
		}
		secret := changed(t, k.name, k.env, func(old any) any {
			list, _ := old.([]any)
			return append(list, map[string]any{
				"name": "TOKEN", "valueFrom": map[string]any{"secretKeyRef": map[string]any{"name": "keys", "key": "hub"}},
			})
		})
		const hint = "give --secrets DIR with a file keys/hub, or --env TOKEN=…"
		refused("no --secrets", secret, "comes from the Secret keys, which is not here", hint, nil)
		for dir, says := range map[string]string{
			"gone": "which is not here: cannot read --secrets gone: file does not exist", "empty": "which is not here",
			"other": "which has no such key: it has a, b",
		} {
			refused("--secrets "+dir, secret, says, hint, func(o *jobfile.Options) {
				o.Secrets = dir
				o.ReadFile = func(string) ([]byte, error) { return nil, fs.ErrNotExist }
				o.ReadDir = func(name string) ([]string, error) {
					switch name {
					case "empty", "other":
						return nil, nil
					case "other/keys":
						return []string{"a", "b"}, nil
					}
					return nil, fs.ErrNotExist
				}
			})
		}
	}
}

// A Secret that the file and --secrets have both, with other texts, is refused without either text: nobody knows which
// one is meant.
func TestSecretTwice(t *testing.T) {
	t.Parallel()
	const text = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: j}\nspec: {template: {spec: {containers: [{command: [x], " +
		"%s}]}}}\n---\nkind: Secret\nmetadata: {name: keys}\nstringData: {hub: inside}\n"
	for _, use := range []string{
		"env: [{name: TOKEN, valueFrom: {secretKeyRef: {name: keys, key: hub}}}]", "envFrom: [{secretRef: {name: keys}}]",
	} {
		for outside, refused := range map[string]bool{"inside": false, "outside": true} {
			_, err := read(fmt.Sprintf(text, use), func(o *jobfile.Options) {
				o.Secrets = "dir"
				o.ReadFile = func(name string) ([]byte, error) {
					if name == filepath.Join("dir", "keys", "hub") {
						return []byte(outside), nil
					}
					return nil, fs.ErrNotExist
				}
				o.ReadDir = func(string) ([]string, error) { return []string{"hub"}, nil }
			})
			said := fmt.Sprint(err)
			if (err != nil) != refused || strings.Contains(said, "inside") || strings.Contains(said, "outside") ||
				refused && !strings.Contains(said, "the Secret keys in line 6 of the file has another value under hub than --secrets dir") {
				t.Errorf("%s, %s: %v", use, outside, err)
			}
		}
	}
}

// A ConfigMap of the file and a Secret of the directory may have one name, and the other way round: a cluster keeps them
// apart.
func TestSecretBesideConfigMap(t *testing.T) {
	t.Parallel()
	const text = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: j}\nspec: {template: {spec: {containers: [{command: [x], " +
		"%s}]}}}\n---\nkind: %s\nmetadata: {name: keys}\n%s: {hub: inside}\n"
	const inFile = "{name: IN, valueFrom: {%sKeyRef: {name: keys, key: hub}}}"
	const outside = "{name: OUT, valueFrom: {%sKeyRef: {name: %s, key: hub}}}"
	for _, c := range []struct {
		kind, field, in, out, name string
		refused                    bool
	}{
		{"ConfigMap", "data", "configMap", "secret", "keys", false},
		{"Secret", "stringData", "secret", "configMap", "keys", false},
		{"ConfigMap", "data", "configMap", "secret", "others", true},
		{"ConfigMap", "data", "configMap", "configMap", "keys", true},
	} {
		env := "env: [" + fmt.Sprintf(inFile, c.in) + ", " + fmt.Sprintf(outside, c.out, c.name) + "]"
		f, err := read(fmt.Sprintf(text, env, c.kind, c.field), func(o *jobfile.Options) {
			o.Secrets = "dir"
			o.ReadFile = func(string) ([]byte, error) { return []byte("outside"), nil }
			o.ReadDir = func(string) ([]string, error) { return []string{"hub"}, nil }
		})
		if c.refused {
			if !strings.Contains(fmt.Sprint(err), "has another value under hub than --secrets dir") {
				t.Errorf("%+v: %v", c, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%+v: %v", c, err)
			continue
		}
		_, nodes, err := f.Place(jobfile.Places{Hosts: []string{"here"}})
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]string{}
		for _, v := range nodes[0].Env {
			got[v.Name] = v.Value
		}
		if got["IN"] != "inside" || got["OUT"] != "outside" {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

// What is no YAML is refused with its line, also the first one, and with the column of a tab or of a byte that is no text.
func TestReadNoYAML(t *testing.T) {
	t.Parallel()
	const tab = ": a tab stands in the indentation"
	for text, want := range map[string]string{
		"a: b: c\n":                                    "job.yaml:1: mapping values are not allowed",
		"kind: @a\n":                                   "job.yaml:1: found character that cannot start any token",
		"x: 1\nkind: Job\n  b: 1\n":                    "job.yaml:3: mapping values are not allowed",
		"kind: Job\nspec:\n\tx: 1\n":                   "job.yaml:3:1" + tab,
		"kind: Job\nspec:\n  x: 1\n\ty: 1\n":           "job.yaml:4:1" + tab,
		"kind: Job\nspec:\n  x:\n  \ty: 1\n":           "job.yaml:4:3" + tab,
		"kind: Job\nspec: |\n\tx: 1\n":                 "job.yaml:3:1" + tab,
		"kind: Job\nspec:\n  -\tx: 1\n":                "job.yaml:3:4" + tab,
		"\tkind: Job\n":                                "job.yaml:1:1" + tab,
		"kind: Job\na: *x\n":                           "job.yaml:2:4: unknown anchor 'x'",
		"kind: Job\nx: 1\na: @x\nb: 2\nc: |\n\ttext\n": "job.yaml:3: found character that cannot start any token",
		"kind: Job\n# not *base\nx: '*base' # *base\ny: |\n  *base\nz: *base\nw: *base\n": "job.yaml:6:4: unknown anchor 'base'",
		"a: &base2 1\nb: [*base2, *base]\n":                                               "job.yaml:2:13: unknown anchor 'base'",
		"kind: Job\nb: \x01\n":                                                            "job.yaml:2:4: control characters",
		"kind: Job\nbä: \xff\n":                                                           "job.yaml:2:6: invalid leading UTF-8",
		"kind: Job\na: [1, 2\nb: 3\n":                                                     "job.yaml:2: did not find expected ',' or ']'",
		"kind: Job\na: {b: 1\n\nc: {\n":                                                   "job.yaml:2: did not find expected ',' or '}'",
		"a:\n  b: 1\n c: 2\n":                                                             "job.yaml:3: did not find expected key",
		"kind: Job\na: 1\n\nb: ]\n":                                                       "job.yaml:4: did not find expected node content",
	} {
		if _, err := read(text, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// A job of a JobSet that is meant is one of the set: a mistyped one is named.
func TestTargetReplicatedJobs(t *testing.T) {
	t.Parallel()
	text := strings.Replace(file(t, "jobset"), "\nspec:\n", "\nspec:\n  successPolicy: {targetReplicatedJobs: [worker]}\n", 1)
	const want = `targetReplicatedJobs[0]: unknown value "worker": did you mean workers?`
	if _, err := read(text, nil); err == nil || !strings.Contains(err.Error(), want) {
		t.Error(err)
	}
}

// Pods of a Job and of a JobSet have one of two restart policies, of which explain tells: others are refused.
func TestBatchRestartPolicy(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"job", "jobset"} {
		place := []part{"spec", "template", "spec", "restartPolicy"}
		if kind == "jobset" {
			place = append([]part{"spec", "replicatedJobs", 0, "template"}, place...)
		}
		for policy, wrong := range map[string]string{
			"Never": "", "OnFailure": "", "Always": `unknown value "Always": choose one of Never, OnFailure`,
			"Sometimes": `unknown value "Sometimes"`,
		} {
			f, err := read(changed(t, kind, place, func(any) any { return policy }), nil)
			if wrong != "" {
				if err == nil || !strings.Contains(err.Error(), wrong) || !strings.Contains(err.Error(), ".restartPolicy: ") {
					t.Errorf("%s, %s: %v, want %q", kind, policy, err, wrong)
				}
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			told := 0
			for _, l := range f.Lines {
				if strings.HasSuffix(l.Path, ".restartPolicy") && strings.Contains(l.As, "anew") {
					told++
				}
			}
			if told != 1 {
				t.Errorf("%s, %s: told %d times", kind, policy, told)
			}
		}
	}
}

// A key that the Secret in the file lacks is taken from --secrets, and what is missing in both is refused with the keys
// of both.
func TestSecretBeside(t *testing.T) {
	t.Parallel()
	const text = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: j}\nspec: {template: {spec: {containers: [{command: [x], " +
		"%s}]}}}\n---\nkind: Secret\nmetadata: {name: creds}\nstringData: {pass: inside}\n"
	for use, want := range map[string]string{
		"env: [{name: T, valueFrom: {secretKeyRef: {name: creds, key: other}}}]": "T=outside",
		"env: [{name: T, valueFrom: {secretKeyRef: {name: creds, key: pass}}}]":  "T=inside",
		"envFrom: [{secretRef: {name: creds}}]":                                  "other=outside pass=inside",
		"env: [{name: T, valueFrom: {secretKeyRef: {name: creds, key: gone}}}]":  "has no such key: it has other, pass",
	} {
		f, err := read(fmt.Sprintf(text, use), func(o *jobfile.Options) {
			o.Secrets = "dir"
			o.ReadFile = func(name string) ([]byte, error) {
				if name == filepath.Join("dir", "creds", "other") {
					return []byte("outside"), nil
				}
				return nil, fs.ErrNotExist
			}
			o.ReadDir = func(string) ([]string, error) { return []string{"other"}, nil }
		})
		if strings.HasPrefix(want, "has no") {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", use, err, want)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", use, err)
			continue
		}
		_, nodes, err := f.Place(jobfile.Places{Hosts: []string{"a"}, Port: 1})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, v := range nodes[0].Env {
			if v.Value == "inside" || v.Value == "outside" {
				got = append(got, v.Name+"="+v.Value)
			}
		}
		if text := strings.Join(got, " "); text != want {
			t.Errorf("%s: the node has %q, want %q", use, text, want)
		}
	}
}

// A job of a JobSet that is named twice is not all of them.
func TestTargetReplicatedJobsTwice(t *testing.T) {
	t.Parallel()
	job := "{name: %s, template: {spec: {template: {spec: {containers: [{name: c, command: [x]}]}}}}}"
	text := "apiVersion: jobset.x-k8s.io/v1alpha2\nkind: JobSet\nmetadata: {name: j}\nspec:\n" +
		"  successPolicy: {targetReplicatedJobs: [worker, worker]}\n  replicatedJobs: [" +
		strings.Replace(job, "%s", "driver", 1) + ", " + strings.Replace(job, "%s", "worker", 1) + "]\n"
	if _, err := read(text, nil); err == nil || !strings.Contains(err.Error(), "muster knows success of all nodes") {
		t.Error(err)
	}
}
