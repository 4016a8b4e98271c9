package manifest

import (
	"fmt"
	"strings"
)

// volcanoJob is a job of Volcano's own.
func volcanoJob(s Spec) string {
	p := inPod{container: "node", restart: "Never", labels: object{{jobLabel, s.Name, ""}}}
	at := func(event, action, why string) object { return object{{"event", event, why}, {"action", action, ""}} }
	code := func(code int, action, why string) object {
		return object{{"exitCode", code, why}, {"action", action, ""}}
	}
	policies := list{
		at("PodFailed", "AbortJob", "A job that has failed ends: it has no new start. A pod that is evicted comes anew by itself."),
	}
	if s.BackoffLimit > 0 {
		policies = list{
			code(80, "RestartPod",
				"muster's status of a node at fault: that pod alone is made anew. muster keeps the machine out for its --quarantine."),
			code(81, "RestartPod", "The same for a straggler."),
			code(2, "AbortJob", "Trying again helps nothing: usage errors, a job that must not be restarted (93), a command that cannot "+
				"be run (126) or found (127)."),
			code(93, "AbortJob", ""),
		}
		if s.Deadline > 0 {
			policies = append(policies, code(124, "AbortJob", "The time is over: --active-deadline."))
		}
		policies = append(policies,
			code(126, "AbortJob", ""), code(127, "AbortJob", ""),
			at("PodEvicted", "RestartJob", "Pods that have lost one of them start anew together, from the newest step."),
			at("PodFailed", "RestartJob", "So do those of a job that has failed."),
		)
	}
	spec := object{
		{"schedulerName", "volcano", ""},
		{"queue", s.Queue, ""},
		{"minAvailable", s.Nodes, "No pod starts before all can: they train together."},
		{"maxRetry", s.BackoffLimit + 1, "Starts of the whole, the first one among them."},
		{"networkTopology", s.tier(), ""},
		{"plugins", object{
			{
				"svc", raw("[]"),
				"A headless service, and VC_NODE_HOSTS in each pod: the names of all nodes, from which muster knows where they meet.",
			},
			{"env", raw("[]"), "VC_TASK_INDEX: the number of the pod."},
		}, ""},
		{"tasks", list{object{
			{"name", "node", ""},
			{"replicas", s.Nodes, ""},
			{"policies", policies, ""},
			{"template", s.template(p), ""},
		}}, ""},
	}
	return documents(s.head(startText), object{
		{"apiVersion", "batch.volcano.sh/v1alpha1", ""}, {"kind", "Job", ""}, {"metadata", s.metadata(nil), ""}, {"spec", spec, ""},
	})
}

func volcanoEnviron(s Spec) ([]string, string) {
	var hosts []string
	for i := range s.Nodes {
		hosts = append(hosts, fmt.Sprintf("%s-node-%d.%s", s.Name, i, s.Name))
	}
	return []string{"VC_NODE_HOSTS=" + strings.Join(hosts, ","), "VC_TASK_INDEX=0"}, s.Name + "-node-0"
}
