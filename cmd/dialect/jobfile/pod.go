package jobfile

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"muster/internal/lazyregexp"
	"muster/launch/job"
)

// Reasons why lines are left to the cluster.
const (
	whyPrepared  = "what prepares a pod is the cluster's: prepare the machines yourself"
	whyPods      = "where pods run, and as whom, is the cluster's"
	whyImage     = "muster runs what is installed here"
	whyVolumes   = "muster's workers see the files of their machine"
	whyProbes    = "muster watches its workers itself"
	whyLabels    = "labels and annotations are for the cluster"
	whySchedule  = "queues, priorities and gangs are the scheduler's"
	whyAfter     = "what is removed after the job is the cluster's"
	whyNetwork   = "names and ports between pods are the cluster's; nodes meet at addresses of their machines"
	whyDirectory = "the directory is one of the image: workers start where muster does, or in --remote-dir on hosts"
)

// template is a pod's template as far as it counts here.
type template struct {
	argv, args    []string
	lists         []value // in which their words stand
	command       value   // where the command stands, its node is nil without one
	container     value
	env           []variable
	restartPolicy value
	accelerators  int
	vendor        string
	resource      string
	port          int // of the port that the operator looks for
}

// variable is one of a container's. of makes its value for a pod; it is nil for a plain one.
type variable struct {
	job.Var
	of func(p *Pod, at Places, i int, f *File) string
	// kind is that of the object that the value was taken from as it is, Secret or ConfigMap; empty: the file has it, and
	// names in it stand for others.
	kind string
	// at is the item of env in which it stands; its node is nil where it is one of envFrom.
	at value
}

// known says what is looked for in a template.
type known struct {
	container string // the training container's name; the first one is taken where none has it
	port      string // the name of the port at which pods meet
	noCommand bool   // the operator gives the command
	prefix    string // of the names of the training container and of the ports at which pods meet; empty: none
	idle      bool   // the command only waits for a launcher that reaches the pod
	barrier   bool   // an init container may wait for other pods
}

// template reads a pod's template.
func (v value) template(k known) (t template) {
	t.command.r, t.restartPolicy.r = v.r, v.r
	v.object(fields{
		"metadata": cluster(whyLabels),
		"spec":     func(spec value) { spec.podSpec(k, &t) },
	})
	return t
}

func (v value) podSpec(k known, t *template) {
	t.container = v
	v.object(fields{
		"containers":    func(list value) { list.containers(k, t) },
		"restartPolicy": func(p value) { t.restartPolicy = p },
		"terminationGracePeriodSeconds": func(s value) {
			if n, ok := s.count(0); ok {
				s.setting("grace", strconv.Itoa(n)+"s")
				s.note(Applied, "--grace: time between the first signal to workers and SIGKILL")
			}
		},
		"activeDeadlineSeconds": deadline,
		"initContainers":        func(list value) { list.initContainers(k) },
		"ephemeralContainers":   cluster("other containers are the cluster's"),
		"hostNetwork":           cluster(whyNetwork), "dnsPolicy": cluster(whyNetwork), "dnsConfig": cluster(whyNetwork),
		"hostname": cluster(whyNetwork), "subdomain": cluster(whyNetwork), "hostAliases": cluster(whyNetwork),
		"setHostnameAsFQDN": cluster(whyNetwork), "enableServiceLinks": cluster(whyNetwork),
		"volumes": cluster(whyVolumes), "imagePullSecrets": cluster(whyImage),
	}.leave(whyPods, "serviceAccountName", "serviceAccount", "automountServiceAccountToken", "nodeSelector", "nodeName", "affinity",
		"tolerations", "securityContext", "hostPID", "hostIPC", "hostUsers", "shareProcessNamespace", "runtimeClassName", "overhead",
		"topologySpreadConstraints", "os", "resources", "resourceClaims", "readinessGates").
		leave(whySchedule, "schedulerName", "priorityClassName", "priority", "preemptionPolicy", "schedulingGates"))
}

// initContainers reads nothing of what prepares a pod.
func (v value) initContainers(k known) {
	if !k.barrier || v.node.Kind != yaml.SequenceNode {
		v.note(Cluster, whyPrepared)
		return
	}
	v.list(func(c value) {
		if c.node.Kind == yaml.MappingNode && scalar(c.node, "name") == "job-barrier" {
			c.note(Mapped, "the launcher waits for its hosts")
			return
		}
		c.note(Cluster, whyPrepared)
	})
}

// containers takes the training container of a list.
func (v value) containers(k known, t *template) {
	if v.node.Kind != yaml.SequenceNode || len(v.node.Content) == 0 {
		v.fail("give a list with a container")
		return
	}
	train := 0
	for i, item := range v.node.Content {
		if c := aim(item); k.container != "" && c.Kind == yaml.MappingNode && scalar(c, "name") == k.container {
			train = i
		}
	}
	if k.prefix != "" {
		train = max(0, slices.IndexFunc(v.node.Content, func(item *yaml.Node) bool {
			c := aim(item)
			return c.Kind == yaml.MappingNode && strings.HasPrefix(scalar(c, "name"), k.prefix)
		}))
	}
	i := 0
	v.list(func(c value) {
		if i++; i-1 == train {
			c.trainer(k, t)
		} else {
			c.note(Cluster, "only the training container is run; this is another one of the pod")
		}
	})
}

func (v value) trainer(k known, t *template) {
	t.container = v
	state, runs := Applied, "this container's command is what the node runs"
	if k.idle {
		state, runs = Mapped, "muster starts workers on the node by itself, and waits there for nothing"
	}
	note := func(v value, as string) {
		if k.idle {
			as = runs
		}
		v.note(state, as)
	}
	v.object(fields{
		"name":       func(n value) { n.text(); note(n, runs) },
		"command":    func(c value) { t.argv = t.words(c); t.command = c; note(c, "the node's command") },
		"args":       func(a value) { t.args = t.words(a); note(a, "arguments of the node's command") },
		"env":        func(e value) { e.list(func(item value) { item.variable(t) }) },
		"envFrom":    func(e value) { e.list(func(item value) { item.variables(t) }) },
		"workingDir": cluster(whyDirectory),
		"resources":  func(res value) { res.resources(t) },
		"ports":      func(p value) { p.ports(k, t) },
		"image":      cluster(whyImage), "imagePullPolicy": cluster(whyImage),
		"volumeMounts": cluster(whyVolumes), "volumeDevices": cluster(whyVolumes),
		"terminationMessagePath":   cluster("muster writes the termination log where it runs in a pod"),
		"terminationMessagePolicy": cluster("muster writes the termination log where it runs in a pod"),
	}.leave(whyProbes, "lifecycle", "livenessProbe", "readinessProbe", "startupProbe").
		leave(whyPods, "securityContext", "stdin", "stdinOnce", "tty", "resizePolicy", "restartPolicy"))
	if len(t.argv) == 0 && !k.noCommand {
		v.refuse("name the command, as in --set '"+v.path+".command=[python, train.py]'",
			"the container has no command, and what its image runs is not known here")
	}
}

// ports looks for the port at which pods meet.
func (v value) ports(k known, t *template) {
	v.list(func(item value) {
		var name string
		number, at := 0, item
		item.object(fields{
			"name":          func(n value) { name, _ = n.text() },
			"containerPort": func(p value) { number, _ = p.count(1); at = p },
			"protocol":      func(p value) { p.choice("TCP", "UDP", "SCTP") },
			"hostPort":      func(p value) { p.count(0) },
			"hostIP":        func(p value) { p.text() },
		})
		if name == k.port && name != "" || k.prefix != "" && strings.HasPrefix(name, k.prefix) && t.port == 0 {
			t.port = number
			at.note(Mapped, "the port at which nodes on hosts meet; a rehearsal takes a free one")
			return
		}
		item.note(Cluster, whyNetwork)
	})
}

// accelerators by the beginnings of their resources' names, with the vendor as specs of fake accelerators name it.
var accelerators = []struct{ resource, vendor string }{
	{"nvidia.com/gpu", "nvidia"},
	{"nvidia.com/mig-", "nvidia"},
	{"metax-tech.com/", "metax"},
	{"amd.com/gpu", "amd"},
	{"baidu.com/", "nvidia"},
	{"aliyun.com/gpu", "nvidia"},
	{"huawei.com/Ascend", "ascend"},
	{"huawei.com/npu", "ascend"},
	{"hygon.com/", "hygon"},
	{"cambricon.com/", "cambricon"},
	{"mthreads.com/", "mthreads"},
	{"iluvatar.", "iluvatar"},
	{"alibabacloud.com/ppu", "thead"},
	{"habana.ai/gaudi", "gaudi"},
	{"gpu.intel.com/", "intel"},
}

// maxAccelerators is the largest number that a spec of a fake accelerator has.
const maxAccelerators = 256

func (v value) resources(t *template) {
	amounts := func(amounts value) {
		amounts.each(func(key *yaml.Node, amount value) {
			_, whole, ok := amount.quantity()
			i := slices.IndexFunc(accelerators,
				func(a struct{ resource, vendor string }) bool { return strings.HasPrefix(key.Value, a.resource) })
			memory := strings.Contains(key.Value, "memory") || strings.HasSuffix(key.Value, "core")
			switch {
			case !ok:
			case i < 0 || memory:
				amount.note(Cluster, "amounts of CPU, memory and the like are the cluster's to keep")
			case whole < 0 || whole > maxAccelerators:
				amount.fail("give a whole number of accelerators up to %d", maxAccelerators)
			case t.vendor != "":
				amount.note(Mapped, "the first of such lines counts")
			default:
				t.accelerators, t.vendor, t.resource = whole, accelerators[i].vendor, key.Value
				amount.note(Mapped, "accelerators of the node: made up in a rehearsal, found on hosts")
			}
		})
	}
	v.object(fields{"limits": amounts, "requests": amounts, "claims": cluster(whyPods)})
}

var variableName = lazyregexp.New(`^[^=\x00-\x20]+$`)

// variable reads an item of env.
func (v value) variable(t *template) {
	x := variable{at: v}
	var name, plain, from value
	v.object(fields{
		"name":      func(n value) { x.Name, _ = n.text(); name = n },
		"value":     func(text value) { x.Value, _ = text.text(); plain = text },
		"valueFrom": func(f value) { from = f },
	})
	switch {
	case x.Name == "" && name.node != nil, name.node != nil && !variableName().MatchString(x.Name):
		name.fail("%q is no name of a variable", x.Name)
		return
	case name.node == nil:
		v.fail("a variable has a name")
		return
	case from.node != nil && plain.node != nil:
		from.fail("give value or valueFrom, and not both")
		return
	case from.node != nil:
		x.Source = from.source()
		if v.r.Given[x.Name] {
			from.noteValue(Mapped, "", x.Name+": --env says it")
			return
		}
		from.reference(x, t)
		return
	}
	x.Source = v.source()
	if plain.node != nil {
		x.Source = plain.source()
	}
	if v.r.Given[x.Name] {
		v.noteValue(Mapped, x.Name, "--env says it")
		return
	}
	t.env = append(t.env, x)
	v.noteValue(Applied, x.Name+"="+x.Shown(), "variable of the node's command")
}

// reference reads what stands in valueFrom.
func (v value) reference(x variable, t *template) {
	keyOf := func(kind string) func(value) {
		return func(ref value) {
			var name, key string
			optional := false
			ref.object(fields{
				"name":     func(n value) { name, _ = n.text() },
				"key":      func(k value) { key, _ = k.text() },
				"optional": func(o value) { optional, _ = o.boolean() },
			})
			text, found, err := v.r.entry(kind, name, key)
			switch {
			case err != nil:
				ref.fail("%v", err)
			case found:
				x.Value, x.kind = text, kind
				t.env = append(t.env, x)
				ref.noteValue(Mapped, x.Name, "variable of the node's command, from "+kind+" "+name)
			case optional:
				ref.noteValue(Mapped, x.Name, "left out: it is optional, and "+kind+" "+name+" is not here")
			case v.r.Explain:
				ref.noteValue(Missing, x.Name,
					fmt.Sprintf("a start needs --secrets DIR with %s, or --env %s", path.Join(name, key), x.Name))
			default:
				ref.refuse(fmt.Sprintf("give --secrets DIR with a file %s, or --env %s=…", path.Join(name, key), x.Name),
					"the variable %s comes from the %s %s, which %s", x.Name, kind, name, v.r.lacks(kind, name))
			}
		}
	}
	v.object(fields{
		"secretKeyRef": keyOf("Secret"), "configMapKeyRef": keyOf("ConfigMap"),
		"fieldRef": func(ref value) {
			field := ""
			ref.object(fields{
				"fieldPath":  func(p value) { field, _ = p.text() },
				"apiVersion": func(p value) { p.text() },
			})
			if x.of = podField(field); x.of == nil {
				ref.refuse("give --env "+x.Name+"=…", "muster's nodes have no %q, which the variable %s comes from", field, x.Name)
				return
			}
			t.env = append(t.env, x)
			ref.noteValue(Mapped, x.Name, "variable of the node's command: "+field+" of the node that stands for the pod")
		},
		"resourceFieldRef": func(ref value) {
			ref.refuse("give --env "+x.Name+"=…", "muster sets no limits, which the variable %s comes from", x.Name)
		},
		"fileKeyRef": func(ref value) {
			ref.refuse("give --env "+x.Name+"=…", "muster mounts no volumes, which the variable %s comes from", x.Name)
		},
	})
}

// podField is a field of a pod as the downward API has it, nil for one that nodes lack.
func podField(field string) func(p *Pod, at Places, i int, f *File) string {
	index := func(p *Pod, _ Places, _ int, _ *File) string { return strconv.Itoa(p.Index) }
	switch field {
	case "metadata.name":
		return func(p *Pod, _ Places, _ int, _ *File) string { return p.Name }
	case "metadata.namespace":
		return func(_ *Pod, _ Places, _ int, f *File) string { return f.Namespace }
	case "status.podIP", "status.hostIP", "status.podIPs", "status.hostIPs", "spec.nodeName":
		return func(_ *Pod, at Places, i int, _ *File) string { return at.host(i) }
	case "metadata.annotations['batch.kubernetes.io/job-completion-index']", "metadata.labels['batch.kubernetes.io/job-completion-index']",
		"metadata.labels['training.kubeflow.org/replica-index']":
		return index
	}
	return nil
}

// variables reads an item of envFrom.
func (v value) variables(t *template) {
	prefix := ""
	all := func(kind string) func(value) {
		return func(ref value) {
			name, optional := "", false
			ref.object(fields{
				"name":     func(n value) { name, _ = n.text() },
				"optional": func(o value) { optional, _ = o.boolean() },
			})
			keys, found, err := v.r.keys(kind, name)
			switch {
			case err != nil:
				ref.fail("%v", err)
			case !found && optional:
				ref.noteValue(Mapped, name, "left out: it is optional, and not here")
			case !found && v.r.Explain:
				ref.noteValue(Missing, name, "a start needs --secrets DIR with a directory "+name)
			case !found:
				ref.refuse("give --secrets DIR with a directory "+name+" in it", "the %s %s is not here", kind, name)
			}
			for _, key := range keys {
				text, _, err := v.r.entry(kind, name, key)
				if err != nil {
					ref.fail("%v", err)
					return
				}
				x := variable{Var: job.Var{Name: prefix + key, Value: text, Source: ref.source()}, kind: kind}
				if !v.r.Given[x.Name] && variableName().MatchString(x.Name) {
					t.env = append(t.env, x)
				}
			}
			if found {
				ref.noteValue(Mapped, name, "variables of the node's command, from "+kind+" "+name)
			}
		}
	}
	if p := get(v.node, "prefix"); v.node.Kind == yaml.MappingNode && p != nil {
		prefix = p.Value
	}
	v.object(fields{"prefix": func(p value) { p.text() }, "secretRef": all("Secret"), "configMapRef": all("ConfigMap")})
}
