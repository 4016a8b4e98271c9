package jobfile

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"muster/launch/job"
)

const (
	// volcanoKind is what a Job of Volcano's is called here, whose kind in a file is that of Kubernetes' own.
	volcanoKind    = "VolcanoJob"
	volcanoVersion = "batch.volcano.sh/v1alpha1"
	// volcanoTries is how often Volcano starts a job in all, where the file does not say it or says 0 (read at ed72c7c8:
	// pkg/webhooks/admission/jobs/mutate, pkg/controllers/job/state/restarting.go).
	volcanoTries = 3
	// volcanoEver is the maxRetry of a task that TaskFailed never meets (pkg/controllers/cache/cache.go).
	volcanoEver = -1
)

// volcanoPlugins are those that Volcano's admission webhook knows (pkg/controllers/job/plugins/factory.go).
var volcanoPlugins = []string{"svc", "env", "ssh", "pytorch", "tensorflow", "mpi", "ray", "hcclrank"}

// volcanoTask is a group of a Volcano job's pods.
type volcanoTask struct {
	name string
	group
	rules volcanoRules
	tried value // where the task's own maxRetry stands
}

func volcanoJob(v value) {
	r, f := v.r, v.r.file
	var tasks []volcanoTask
	tries, tried := volcanoTries, v
	least, rules := value{}, volcanoRules{}
	v.object(fields{
		"tasks": func(list value) {
			list.list(func(item value) { tasks = append(tasks, item.volcanoTask(tasks)) })
		},
		"maxRetry": func(n value) {
			n.volcanoTries(&tries, 0)
			tried = n
		},
		"minAvailable": func(n value) { least = n },
		"policies":     func(p value) { p.volcanoPolicies(&rules) },
		"plugins": func(p value) {
			p.each(func(key *yaml.Node, plugin value) { value{p.r, key, plugin.path}.choice(volcanoPlugins...) })
			p.note(Mapped, "svc and env: nodes are told the names and the number of each other; ssh and MPI plug-ins are the cluster's")
		},
		"minSuccess": func(n value) {
			n.succeeds("leave it out, or give --success-policy", "muster knows success of all nodes, of any, and of the first")
		},
		"volumes": cluster(whyVolumes),
	}.leave(whyAfter, "ttlSecondsAfterFinished").
		leave(whySchedule, "schedulerName", "queue", "priorityClassName", "networkTopology", "runningEstimate"))
	if r.wrong != nil {
		return
	}
	for _, t := range tasks {
		r.pods(t.group, v, func(i int) string { return fmt.Sprintf("%s-%s-%d", f.Name, t.name, i) })
	}
	if least.node != nil {
		switch n, ok := least.count(0); {
		case !ok:
		case n > len(f.Pods):
			least.fail("%d nodes would be waited for, and the job has %d", n, len(f.Pods))
		default:
			least.note(Mapped, "no worker starts before all nodes of the job are there")
		}
	}
	if r.Success {
		rules.overruled()
		for i := range tasks {
			tasks[i].rules.overruled()
		}
	}
	if len(tasks) > 0 { // else there is no pod, which is refused
		v.volcanoSettle(rules, tasks, tried, tries)
	}
	f.beside = func(f *File, i int, at Places) []job.Var {
		vars := []job.Var{own("VC_TASK_INDEX", strconv.Itoa(f.Pods[i].Index)), own("VK_TASK_INDEX", strconv.Itoa(f.Pods[i].Index))}
		first := 0
		for _, t := range tasks {
			var hosts []string
			for k := range t.n {
				hosts = append(hosts, at.host(first+k))
			}
			first += t.n
			name := strings.ToUpper(strings.ReplaceAll(t.name, "-", "_"))
			vars = append(vars, own("VC_"+name+"_HOSTS", strings.Join(hosts, ",")), own("VC_"+name+"_NUM", strconv.Itoa(t.n)))
		}
		return vars
	}
}

// overruled drops what policies say of whose success is the job's.
func (r *volcanoRules) overruled() {
	if r.complete.node != nil {
		r.complete.note(Mapped, bySuccess)
		r.complete = value{}
	}
}

// volcanoTask reads a task, which stands behind others.
func (v value) volcanoTask(before []volcanoTask) volcanoTask {
	t := volcanoTask{name: "default" + strconv.Itoa(len(before)), group: group{n: 1}, rules: volcanoRules{tries: volcanoTries}}
	v.object(fields{
		"name": func(n value) {
			t.name, _ = n.text()
			n.note(Mapped, "the name of the group of nodes")
			if slices.ContainsFunc(before, func(o volcanoTask) bool { return o.name == t.name }) {
				n.fail("a task before this one has the name %s", t.name)
			}
		},
		"replicas": t.count,
		"template": func(spec value) { t.template = spec.template(known{}) },
		"policies": func(p value) { p.volcanoPolicies(&t.rules) },
		"maxRetry": func(n value) { n.volcanoTries(&t.rules.tries, volcanoEver); t.tried = n },
		"minAvailable": func(n value) {
			n.count(0)
			n.note(Mapped, "no worker starts before all nodes of the job are there")
		},
		"dependsOn": func(d value) {
			d.refuse("leave it out: all nodes start together", "muster starts no node after another one has ended")
		},
	}.leave(whySchedule, "topologyPolicy", "partitionPolicy"))
	t.role = t.name
	if t.template.container.node == nil && v.r.wrong == nil {
		v.fail("the task has no template")
	}
	if p := t.template.restartPolicy; p.node != nil {
		text, _ := p.choice("Never", "OnFailure", "Always")
		t.rules.pods, t.rules.stay = p, text == "Never"
	}
	return t
}

// volcanoTries reads a maxRetry from a least one; of 0 Volcano's admission webhook makes its default.
func (v value) volcanoTries(tries *int, least int) {
	if n, ok := v.count(least); ok {
		*tries = cmp.Or(n, volcanoTries)
	}
}
