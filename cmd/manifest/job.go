package manifest

import (
	"fmt"
	"strconv"
)

// head begins each file.
func (s *Spec) head(start string) string {
	workers := s.Procs + " workers" // a number, or a word
	if n, err := strconv.Atoi(s.Procs); err == nil {
		workers = plural(n, "worker")
	}
	by := "manifest " + s.Kind
	if s.Converted {
		by = "convert --to " + s.Kind
	}
	return fmt.Sprintf("Written by muster %s: %s with %s each. %s", by, plural(s.Nodes, "node"), workers, start)
}

const startText = "Start it by kubectl apply -f; muster explain tells what becomes of its lines here, muster run -f rehearses it."

// podFailurePolicy tells what muster's exit statuses mean for a pod that ends.
func podFailurePolicy() object {
	return object{{"rules", list{
		object{
			{
				"action", "Ignore",
				"muster's status 80 (a node at fault) and 81 (a straggler) are about the machine: another pod is made, and " +
					"the failure is not charged to the job.",
			},
			{"onExitCodes", object{{"operator", "In", ""}, {"values", raw("[80, 81]"), ""}}, ""},
		},
		object{
			{"action", "Ignore", "Nor is a pod that was evicted, drained or pre-empted."},
			{"onPodConditions", list{object{{"type", "DisruptionTarget", ""}, {"status", raw(`"True"`), ""}}}, ""},
		},
		object{
			{
				"action", "FailJob",
				"Trying again helps nothing: usage errors (2), a job that must not be restarted (93), the deadline (124), " +
					"a command that cannot be run (126) or found (127).",
			},
			{"onExitCodes", object{{"operator", "In", ""}, {"values", raw("[2, 93, 124, 126, 127]"), ""}}, ""},
		},
	}, ""}}
}

// indexed is the spec of an indexed job.
func (s *Spec) indexed(p inPod, g gang) object {
	p.restart, p.scheduler, p.labels, p.annotations = "Never", g.scheduler, g.podLabels, g.podAnnotations
	spec := object{
		{"completions", s.Nodes, ""},
		{"parallelism", s.Nodes, "All nodes run at once: they train together."},
		{"completionMode", "Indexed", "Each pod has an index and a host name that ends in it. By that name others find it."},
		{"backoffLimit", s.BackoffLimit * s.Nodes, fmt.Sprintf(
			"Failed pods that are made anew. When a job fails, its %s do: %s of the whole.",
			plural(s.Nodes, "pod"), plural(s.BackoffLimit, "new start"))},
		{"podReplacementPolicy", "Failed", "A new pod is made when the old one has ended, and not beside it."},
		{"activeDeadlineSeconds", nil, "The job's time, with that in which it waits for its pods."},
		{"podFailurePolicy", podFailurePolicy(), ""},
		{"template", s.template(p), ""},
	}
	if s.Deadline > 0 {
		spec[5].value = seconds(s.Deadline)
	}
	return spec
}

// service is the headless service by whose names pods reach each other.
func (s *Spec) service(selector object) object {
	return object{
		{"apiVersion", "v1", ""},
		{"kind", "Service", ""},
		{"metadata", s.metadata(nil), ""},
		{"spec", object{
			{"clusterIP", raw("None"), "Headless: it only gives pods names, such as " + s.podName(0) + "." + s.Name + "."},
			{"publishNotReadyAddresses", true, "Nodes look for each other before their workers run."},
			{"selector", selector, ""},
		}, ""},
	}
}

func k8sJob(s Spec) string {
	g := s.ganged()
	p := inPod{container: "node"}
	var docs []object
	if s.Nodes > 1 {
		p.subdomain = s.Name
		docs = append(docs, s.service(g.podLabels[:1]))
	}
	docs = append(docs, g.documents...)
	docs = append(docs, object{
		{"apiVersion", "batch/v1", ""}, {"kind", "Job", ""}, {"metadata", s.metadata(g.labels), ""}, {"spec", s.indexed(p, g), ""},
	})
	return documents(s.head(startText), docs...)
}

func indexedEnviron(s Spec) ([]string, string) {
	return []string{"JOB_COMPLETION_INDEX=0", "KUBERNETES_SERVICE_HOST=10.0.0.1", "HOSTNAME=" + s.podName(0)}, s.podName(0)
}

func noEnviron(Spec) ([]string, string) { return nil, "" }

func slurmEnviron(s Spec) ([]string, string) {
	n := strconv.Itoa(s.Nodes)
	return []string{
		"SLURM_JOB_ID=4711", "SLURM_STEP_ID=0", "SLURM_STEP_NUM_NODES=" + n, "SLURM_STEP_NUM_TASKS=" + n, "SLURM_NODEID=0",
		"SLURM_STEP_NODELIST=node[0-" + strconv.Itoa(s.Nodes-1) + "]", "SLURM_STEP_TASKS_PER_NODE=1(x" + n + ")",
	}, "node0"
}
