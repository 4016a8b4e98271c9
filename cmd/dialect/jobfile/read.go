package jobfile

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"muster/internal/errhint"
	"muster/internal/typos"
)

// kind is a kind of job that is read.
type kind struct {
	versions []string
	spec     func(v value)
}

// kinds are those that are read, by their names.
func kinds() map[string]kind {
	return map[string]kind{
		"PyTorchJob":         {[]string{"kubeflow.org/v1"}, pytorchJob},
		"MPIJob":             {[]string{"kubeflow.org/v2beta1"}, mpiJob},
		"TrainJob":           {[]string{"trainer.kubeflow.org/v1alpha1"}, trainJob},
		"ElasticJob":         {[]string{"elastic.iml.github.io/v1alpha1"}, elasticJob},
		"PyTorchTrainingJob": {[]string{"batch.tensorstack.dev/v1beta1"}, pytorchTrainingJob},
		"ColossalAIJob":      {[]string{"batch.tensorstack.dev/v1beta1"}, colossalAIJob},
		"AITrainingJob":      {aitjVersions, readAITrainingJob},
		"Job":                {[]string{"batch/v1"}, indexedJob},
		volcanoKind:          {[]string{volcanoVersion}, volcanoJob},
		"JobSet":             {[]string{"jobset.x-k8s.io/v1alpha2"}, jobSet},
	}
}

// notRead are kinds of jobs that people have and muster does not read, with what they can do.
var notRead = map[string]string{
	"TFJob":      "muster tells workers no TF_CONFIG",
	"XGBoostJob": "muster starts programs of PyTorch, Horovod and MPI",
	"RayJob":     "muster starts programs of PyTorch, Horovod and MPI",
}

// beside are kinds that stand in a file beside a job, and need no reading.
var besideKinds = []string{
	"Namespace", "Service", "ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding", "ConfigMap", "Secret",
	"PersistentVolumeClaim", "PersistentVolume", "StorageClass", "NetworkPolicy", "PriorityClass", "Queue", "LocalQueue", "ClusterQueue",
	"ResourceFlavor", "Workload", "PodGroup", "PodDisruptionBudget", "ResourceClaimTemplate", "TrainingRuntime", "ClusterTrainingRuntime",
}

// Kinds are the names of the kinds that are read.
func Kinds() []string { return slices.Sorted(maps.Keys(kinds())) }

// Read reads a job of a file. Its errors are about lines of the file, several of them a *multierror.Error.
func Read(o Options) (*File, error) {
	list, err := documents(o.File, o.Content)
	if err != nil {
		return nil, err
	}
	r := &reader{Options: o, set: map[*yaml.Node]string{}}
	chosen, err := r.choose(list)
	if err != nil {
		return nil, err
	}
	for _, d := range list {
		if d != chosen {
			r.others = append(r.others, d)
		}
	}
	if len(o.Set) > 0 {
		chosen = apart(chosen)
	}
	for _, text := range o.Set {
		made, err := change(chosen, text)
		if err != nil {
			return nil, err
		}
		path, _, _ := strings.Cut(text, "=")
		for _, n := range made {
			r.set[n] = path
		}
	}
	r.file = &File{Kind: kindOf(chosen), Namespace: "default", given: o.Given}
	r.job = chosen
	r.read(chosen)
	if r.wrong == nil {
		r.onEachNode()
	}
	for _, d := range r.others {
		r.other(d)
	}
	if r.wrong != nil {
		return nil, r.wrong
	}
	r.file.sort()
	r.file.Accelerated = slices.ContainsFunc(r.file.Pods, func(p Pod) bool { return p.Accelerators > 0 })
	return r.file, nil
}

// sort puts the lines into their order.
func (f *File) sort() { slices.SortStableFunc(f.Lines, func(a, b Line) int { return a.line - b.line }) }

// kindOf is the kind of a document as it is called here: two projects have a Job.
func kindOf(d *yaml.Node) string {
	k := scalar(d, "kind")
	if k == "Job" && strings.HasPrefix(scalar(d, "apiVersion"), "batch.volcano.sh/") {
		return volcanoKind
	}
	return k
}

// nameOf is the name of a document, empty where it has none.
func nameOf(d *yaml.Node) string {
	if m := get(d, "metadata"); m != nil && m.Kind == yaml.MappingNode {
		return scalar(m, "name")
	}
	return ""
}

// choose finds the job that is wanted among the documents of a file.
func (r *reader) choose(list []*yaml.Node) (*yaml.Node, error) {
	known := kinds()
	var found []*yaml.Node
	var names []string
	for _, d := range list {
		k := get(d, "kind")
		if k == nil || k.Kind != yaml.ScalarNode || k.Value == "" {
			return nil, fmt.Errorf("%s:%d:%d: the document has no kind: it must be one of %s", r.File, d.Line, d.Column,
				strings.Join(Kinds(), ", "))
		}
		if _, job := known[k.Value]; !job {
			if err := r.unknownKind(k); err != nil {
				return nil, err
			}
			continue
		}
		name := nameOf(d)
		if (r.Kind == "" || strings.EqualFold(r.Kind, k.Value) || strings.EqualFold(r.Kind, kindOf(d))) &&
			(r.Name == "" || r.Name == name) {
			found = append(found, d)
		}
		names = append(names, fmt.Sprintf("%s %s (line %d)", k.Value, name, d.Line))
	}
	byName := cmp.Or(r.NameFlag, "--name")
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(names) == 0:
		return nil, fmt.Errorf("%s: no job is in the file: it must have one of %s", r.File, strings.Join(Kinds(), ", "))
	case len(found) == 0:
		return nil, errhint.With(fmt.Errorf("%s: no job in the file is the one that --kind and %s ask for", r.File, byName),
			"there are "+strings.Join(names, ", "))
	}
	return nil, errhint.With(fmt.Errorf("%s: %d jobs are in the file: choose one by --kind or %s", r.File, len(found), byName),
		"there are "+strings.Join(names, ", "))
}

func (r *reader) unknownKind(k *yaml.Node) error {
	at := r.at(k, true)
	if hint := notRead[k.Value]; hint != "" {
		return errhint.With(fmt.Errorf("%s: muster does not read jobs of the kind %s", at, k.Value), hint)
	}
	if r.Lenient || slices.Contains(besideKinds, k.Value) {
		return nil
	}
	all := append(Kinds(), besideKinds...)
	if near := typos.Nearest(k.Value, all); near != "" {
		return fmt.Errorf("%s: unknown kind %q: did you mean %s?", at, k.Value, near)
	}
	return errhint.With(fmt.Errorf("%s: unknown kind %q", at, k.Value), "muster reads "+strings.Join(Kinds(), ", "))
}

// read reads the chosen document.
func (r *reader) read(d *yaml.Node) {
	k := kinds()[r.file.Kind]
	top := value{r, d, ""}
	f := r.file
	top.object(fields{
		"apiVersion": func(v value) {
			if _, ok := v.choice(k.versions...); ok {
				v.note(Applied, "says what the fields mean")
			}
		},
		"kind": func(v value) { v.note(Applied, "says what the fields mean") },
		"metadata": func(m value) {
			m.object(fields{
				"name":         func(n value) { f.Name, _ = n.text(); n.note(Mapped, "--run-id: the name of the job") },
				"generateName": func(n value) { f.Name, _ = n.text(); n.note(Mapped, "the job is called so") },
				"namespace":    func(n value) { f.Namespace, _ = n.text(); n.note(Cluster, whyNetwork) },
			}.leave(whyLabels, "labels", "annotations", "finalizers", "ownerReferences", "creationTimestamp", "uid", "resourceVersion",
				"generation", "managedFields", "selfLink"))
		},
		"spec":   func(value) {},
		"status": cluster("how a job stands is the cluster's; muster status tells it of this one"),
	})
	f.Name = strings.TrimSuffix(f.Name, "-")
	if f.Name == "" {
		f.Name = strings.ToLower(f.Kind)
	}
	spec := get(d, "spec")
	if spec == nil {
		r.add(fmt.Errorf("%s: a %s has a spec", r.at(d, true), f.Kind))
		return
	}
	k.spec(value{r, spec, "spec"})
	if r.wrong == nil && len(f.Pods) == 0 {
		value{r, spec, "spec"}.fail("the job has no replica")
	}
}

// other says what becomes of a document beside the job.
func (r *reader) other(d *yaml.Node) {
	k := scalar(d, "kind")
	v := value{r, d, k}
	switch _, job := kinds()[k]; {
	case job:
		v.note(Cluster, "another job of the file")
	case k == "PodGroup" && r.ofAnother(d):
		v.note(Cluster, "the PodGroup of another job of the file")
	case k == "PodGroup":
		r.podGroup(d)
	case k == "ConfigMap" || k == "Secret":
		v.note(Mapped, "the source of variables that name it; as a volume it is the cluster's")
	default:
		v.note(Cluster, "muster starts jobs, and makes no other objects")
	}
}

// ofAnother reports whether a PodGroup belongs to another job of the file: another job has its name, or another PodGroup
// has the name of this job. Where neither is so, the PodGroup is this job's, whatever its name: how pods name their
// PodGroup differs between schedulers.
func (r *reader) ofAnother(gang *yaml.Node) bool {
	name := nameOf(gang)
	return name != r.file.Name && slices.ContainsFunc(r.others, func(d *yaml.Node) bool {
		k := scalar(d, "kind")
		_, job := kinds()[k]
		return job && nameOf(d) == name || k == "PodGroup" && nameOf(d) == r.file.Name
	})
}

// podGroup reads what a gang is: who is waited for, and how long.
func (r *reader) podGroup(d *yaml.Node) {
	spec := get(d, "spec")
	if spec == nil {
		return
	}
	value{r, spec, "PodGroup.spec"}.object(fields{
		"minMember": func(m value) {
			n, ok := m.count(1)
			switch {
			case !ok:
			case n > len(r.file.Pods) && len(r.file.Pods) > 0: // else something is said about them
				m.fail("%d nodes would be waited for, and the job has %d", n, len(r.file.Pods))
			default:
				m.note(Mapped, "no worker starts before all nodes of the job are there")
			}
		},
		"scheduleTimeoutSeconds": func(s value) {
			n, ok := s.count(1)
			if !ok {
				return
			}
			wait := fmt.Sprintf("%ds", n)
			if r.file.Launcher != nil { // it reaches the hosts, and the job itself is one node
				r.file.schedule = wait
				s.note(Applied, startVariable+" of the launcher: then the job ends with status 75")
				return
			}
			s.note(Applied, "--start-timeout and --join-timeout: then the job ends with status 75")
			s.setting("start-timeout", wait)
			if len(r.file.Pods) > 1 {
				s.setting("join-timeout", wait)
			}
		},
	}.leave(whySchedule, "minResources", "minTaskMember", "queue", "priorityClassName", "topologyPolicy", "networkTopology"))
}
