package manifest

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

// runPolicy are the rules of a run that kinds of training operators share.
func (s *Spec) runPolicy() object {
	clean := cmp.Or(s.CleanPods, "None")
	limit, counts := s.BackoffLimit*s.Nodes, fmt.Sprintf("Failed pods that are made anew: %s of the whole.",
		plural(s.BackoffLimit, "new start"))
	if s.Kind == "mpijob" {
		limit, counts = s.BackoffLimit, "New starts of the launcher: pods of workers do not count."
	}
	policy := object{
		{"backoffLimit", limit, counts},
		{"cleanPodPolicy", clean, map[string]string{
			"None": "Pods stay for their logs and termination messages.", "Running": "Pods that still run when the job ends are removed.",
			"All": "All pods are removed when the job ends, and their logs with them.",
		}[clean]},
	}
	if s.Deadline > 0 {
		policy = append(policy, field{
			"activeDeadlineSeconds", seconds(s.Deadline),
			"The job's time, with that in which it waits for its pods.",
		})
	}
	if s.Gang == "volcano" {
		policy = append(policy, field{"schedulingPolicy", object{
			{"minAvailable", s.Nodes, "No pod starts before all can: the operator makes the pod group."}, {"queue", s.Queue, ""},
		}, ""})
	}
	return policy
}

// operatorsGang is the gang of a kind whose operator makes the pod group itself.
func (s *Spec) operatorsGang() gang {
	g := s.ganged()
	if s.Gang == "volcano" {
		g.podAnnotations, g.documents = nil, nil
	}
	return g
}

const noPodFailurePolicy = "The operator has no rule for single exit statuses: a sick node (80, 81) counts as a failure, and its pod may " +
	"come back to the same machine, which muster keeps out for its --quarantine. Kinds k8s-job and jobset do not charge it."

// pytorchJob is a job of Kubeflow's training operator.
func pytorchJob(s Spec) string {
	g := s.operatorsGang()
	replica := func(n int) object {
		p := inPod{container: "pytorch", scheduler: g.scheduler, labels: g.podLabels, annotations: g.podAnnotations}
		if s.Nodes > 1 {
			p.ports = list{field{
				value: object{{"name", "pytorchjob-port", ""}, {"containerPort", 23456, ""}},
				why:   "Where the nodes meet: the operator tells all pods so, by PET_MASTER_ADDR, PET_NODE_RANK and others.",
			}}
		}
		return object{
			{"replicas", n, ""},
			{"restartPolicy", "OnFailure", noPodFailurePolicy},
			{"template", s.template(p), ""},
		}
	}
	specs := object{{"Master", replica(1), "The first node, where the others meet it."}}
	if s.Nodes > 1 {
		specs = append(specs, field{
			"Worker", replica(s.Nodes - 1),
			"The other nodes, with the same command: their ranks come from the operator.",
		})
	}
	docs := append(g.documents, object{
		{"apiVersion", "kubeflow.org/v1", ""},
		{"kind", "PyTorchJob", ""},
		{"metadata", s.metadata(g.labels), ""},
		{"spec", object{{"runPolicy", s.runPolicy(), ""}, {"pytorchReplicaSpecs", specs, ""}}, ""},
	})
	return documents(s.head(startText), docs...)
}

// trainJob is a job of Kubeflow's Trainer, with a runtime of its own: what a TrainJob cannot say stands there.
func trainJob(s Spec) string {
	g := s.ganged()
	job := s.indexed(inPod{container: "node", bare: true}, g)
	for i := range job {
		switch job[i].key {
		case "completions", "parallelism":
			job[i].value = nil // the TrainJob's numNodes
		case "backoffLimit":
			job[i] = field{"backoffLimit", s.Nodes, podsAlone}
		}
	}
	runtime := object{
		{"apiVersion", "trainer.kubeflow.org/v1alpha1", ""},
		{"kind", "TrainingRuntime", ""},
		{"metadata", s.metadata(nil), ""},
		{"spec", object{
			{"mlPolicy", object{
				{"numNodes", s.Nodes, ""},
				{
					"torch",
					object{{"numProcPerNode", raw(s.procsOrAuto()), ""}},
					"The Trainer tells pods by PET_ variables how many nodes there are and where they meet.",
				},
			}, ""},
			{"template", object{{"spec", object{
				{"failurePolicy", object{{"maxRestarts", s.BackoffLimit, "New starts of all pods, when the job has failed."}}, ""},
				{"replicatedJobs", list{object{
					{"name", "node", ""},
					{"template", object{
						{"metadata", object{{"labels", object{{
							"trainer.kubeflow.org/trainjob-ancestor-step", "trainer",
							"The TrainJob's image, command, variables and resources go into this job's container node.",
						}}, ""}}, ""},
						{"spec", job, ""},
					}, ""},
				}}, ""},
			}, ""}}, ""},
		}, ""},
	}
	command := s.command()
	trainer := object{
		{"numNodes", s.Nodes, ""},
		{"image", s.Image, ""},
		{"command", command, ""},
		{"env", s.env(nil), ""},
		{"resourcesPerNode", s.resources(), ""},
	}
	docs := append(g.documents, runtime, object{
		{"apiVersion", "trainer.kubeflow.org/v1alpha1", ""},
		{"kind", "TrainJob", ""},
		{"metadata", s.metadata(g.labels), ""},
		{"spec", object{
			{"runtimeRef", object{
				{"apiGroup", "trainer.kubeflow.org", ""},
				{"kind", "TrainingRuntime", ""},
				{"name", s.Name, "The runtime above: shared memory, probes and what exit statuses mean are a runtime's to say."},
			}, ""},
			{"trainer", trainer, ""},
		}, ""},
	})
	return documents(s.head(startText), docs...)
}

// procsOrAuto is the number of workers, or the word of torchrun for it.
func (s *Spec) procsOrAuto() string {
	if _, err := strconv.Atoi(s.Procs); err == nil {
		return s.Procs
	}
	return "auto"
}

// mpiJob is a job of the MPI operator: a launcher that starts the workers over ssh.
func mpiJob(s Spec) string {
	g := s.operatorsGang()
	n, _ := strconv.Atoi(s.Procs) // Check has seen a number
	command := list{
		field{value: "muster", why: "muster in the place of Open MPI's mpirun: it reaches the hosts of the operator's hostfile by ssh."},
		"mpirun",
		field{value: "-np", why: "Workers in all."},
		strconv.Itoa(n * s.Nodes),
	}
	for _, e := range s.Env {
		name, _, _ := strings.Cut(e, "=")
		command = append(command, field{value: "-x", why: "Workers get a variable of the launcher."}, name)
	}
	for _, w := range s.Command {
		command = append(command, escaped(w))
	}
	set := func(name, value, why string) field { return field{"MUSTER_" + name, raw(quoted(value)), why} }
	env := []field{
		set("MAX_RESTARTS", strconv.Itoa(s.MaxRestarts), "Settings of muster, as variables: mpirun's command line has no such flags."),
		set("GRACE", fmt.Sprintf("%ds", seconds(s.Grace)), ""),
	}
	if s.CkptDir != "" {
		env = append(env, set("CKPT_DIR", s.CkptDir, "Checkpoints are kept in memory and written here behind the training."))
	}
	if s.NetworkCheck {
		env = append(env, set("NETWORK_CHECK", "1", "Nodes and links are tested before the workers start."))
	}
	launcher := s
	launcher.Accelerators, launcher.RDMA, launcher.CPU, launcher.Memory, launcher.SharedMemory, launcher.Claims = 0, "", "", "", "", nil
	labels := object{{jobLabel, s.Name, ""}}
	first := launcher.template(inPod{
		container: "launcher", labels: labels, command: command, env: env, quiet: true, scheduler: g.scheduler,
		annotations: g.podAnnotations,
	})
	worker := s
	worker.Env = nil
	others := worker.template(inPod{
		container: "worker", labels: labels, quiet: true, scheduler: g.scheduler, annotations: g.podAnnotations,
		command: list{field{value: "/usr/sbin/sshd", why: "The image has sshd; the launcher's muster brings itself along and starts the " +
			"workers."}, "-De"},
	})
	docs := append(g.documents, object{
		{"apiVersion", "kubeflow.org/v2beta1", ""},
		{"kind", "MPIJob", ""},
		{"metadata", s.metadata(g.labels), ""},
		{"spec", object{
			{"slotsPerWorker", n, "Workers on each node."},
			{"runPolicy", s.runPolicy(), ""},
			{"mpiReplicaSpecs", object{
				{"Launcher", object{{"replicas", 1, ""}, {"restartPolicy", "OnFailure", noPodFailurePolicy}, {"template", first, ""}}, ""},
				{"Worker", object{{"replicas", s.Nodes, ""}, {"restartPolicy", "OnFailure", ""}, {"template", others, ""}}, ""},
			}, ""},
		}, ""},
	})
	return documents(s.head(startText), docs...)
}

func petEnviron(s Spec) ([]string, string) {
	return []string{
		"PET_NNODES=" + strconv.Itoa(s.Nodes), "PET_NODE_RANK=0", "PET_MASTER_ADDR=" + s.Name + "-master-0", "PET_MASTER_PORT=23456",
		"PET_NPROC_PER_NODE=auto",
	}, s.Name + "-master-0"
}
