package manifest

const podsAlone = "Failed pods that are made anew by themselves; then the JobSet starts all anew."

// jobSet is a JobSet with one group of nodes.
func jobSet(s Spec) string {
	g := s.ganged()
	job := s.indexed(inPod{container: "node"}, g)
	for i := range job {
		switch job[i].key {
		case "activeDeadlineSeconds":
			job[i].why = "The time of one start."
		case "backoffLimit":
			job[i] = field{"backoffLimit", s.Nodes, podsAlone}
		}
	}
	docs := append(g.documents, object{
		{"apiVersion", "jobset.x-k8s.io/v1alpha2", ""},
		{"kind", "JobSet", ""},
		{"metadata", s.metadata(g.labels), ""},
		{"spec", object{
			{"network", object{
				{"enableDNSHostnames", true, "Pods are reached as " + s.podName(0) + "." + s.Name +
					": the JobSet makes the headless service."},
				{"publishNotReadyAddresses", true, "Nodes look for each other before their workers run."},
			}, ""},
			{"failurePolicy", object{{"maxRestarts", s.BackoffLimit, "New starts of all pods, when the job has failed."}}, ""},
			{"replicatedJobs", list{object{
				{"name", "node", ""},
				{"replicas", 1, ""},
				{"template", object{{"spec", job, ""}}, ""},
			}}, ""},
		}, ""},
	})
	return documents(s.head(startText), docs...)
}
