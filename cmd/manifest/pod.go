package manifest

import (
	"fmt"
	"slices"
	"strings"
)

// inPod are what kinds add to a pod's template.
type inPod struct {
	container   string // its name
	restart     string // restartPolicy
	labels      object
	annotations object
	subdomain   string
	scheduler   string
	// bare leaves out the image, the command and the resources: another part of the file has them.
	bare bool
	// command stands in the place of muster run; env are further variables.
	command list
	env     []field
	ports   list
	// quiet leaves out the notice: no agent of muster's is in the pod from its start.
	quiet bool
}

// escaped is a word in which Kubernetes replaces no $(NAME).
func escaped(word string) string {
	if strings.Contains(word, "$$") || strings.Contains(word, "$(") {
		return strings.ReplaceAll(word, "$", "$$")
	}
	return word
}

// command is muster run with its flags, a line for each.
func (s *Spec) command() list {
	l := list{
		field{value: "muster", why: "muster is the container's first process: it forwards signals, and leaves nothing behind."},
		"run",
	}
	for _, f := range s.words() {
		l = append(l, field{value: escaped(f.text), why: f.why})
	}
	l = append(l, field{value: "--", why: "What each worker runs."})
	for _, w := range s.Command {
		l = append(l, escaped(w))
	}
	return l
}

// template is a pod's template.
func (s *Spec) template(p inPod) object {
	return object{
		{"metadata", object{{"labels", p.labels, ""}, {"annotations", p.annotations, ""}}, ""},
		{"spec", s.podSpec(p), ""},
	}
}

func (s *Spec) podSpec(p inPod) object {
	end := fmt.Sprintf("%d s from the notice to SIGTERM, %d s of --grace, %d s for the newest step to disk; then the kubelet kills.",
		seconds(s.Notice), seconds(s.Grace), seconds(saving))
	if p.quiet {
		end = fmt.Sprintf("SIGTERM; %d s of --grace and %d s for the newest step to disk; then the kubelet kills.", seconds(s.Grace),
			seconds(saving))
	}
	spec := object{
		{"restartPolicy", p.restart, ""},
		{"subdomain", p.subdomain, "The headless service's name: pods are reached as POD." + p.subdomain + "."},
		{"schedulerName", p.scheduler, ""},
		{"terminationGracePeriodSeconds", seconds(s.ending()), end},
		{"affinity", s.affinity(p), ""},
		{"containers", list{s.container(p)}, ""},
		{"volumes", s.volumes(), ""},
	}
	if p.restart == "Never" {
		spec[0].why = "A pod that ends is looked at by the job's rules, which tell a sick node from a failed program."
	}
	return spec
}

func (s *Spec) container(p inPod) object {
	var ports list
	if s.Port != 0 {
		ports = append(ports, object{{"name", "muster-http", ""}, {"containerPort", s.Port, ""}})
	}
	ports = append(p.ports, ports...)
	c := object{
		{"name", p.container, ""},
		{"image", s.Image, ""},
		{"command", p.command, ""},
		{"env", s.env(p.env), ""},
		{"ports", ports, ""},
		{"resources", s.resources(), ""},
		{"securityContext", s.security(), ""},
		{
			"terminationMessagePath", "/dev/termination-log",
			"muster writes here why the job ended, as JSON of at most 4,096 bytes: kubectl describe pod shows it.",
		},
		{
			"terminationMessagePolicy", "FallbackToLogsOnError",
			"Of a container that was killed before muster could write it, the last lines of the log.",
		},
	}
	if p.command == nil && !p.bare {
		c[2].value = s.command()
	}
	if p.bare {
		c[1].value, c[2].value, c[3].value, c[5].value = nil, nil, nil, nil
	}
	c = append(c, s.probes()...)
	if !p.quiet {
		c = append(c, s.lifecycle())
	}
	return append(c, field{"volumeMounts", s.mounts(), ""})
}

func (s *Spec) env(more []field) list {
	var l list
	for _, e := range more {
		l = append(l, field{value: object{{"name", e.key, ""}, {"value", e.value, ""}}, why: e.why})
	}
	for _, e := range s.Env {
		name, value, _ := strings.Cut(e, "=")
		o := object{{"name", name, ""}, {"value", raw(quoted(escaped(value))), ""}}
		l = append(l, o)
	}
	return l
}

// isolate is the flag of muster run by which each worker sees only its own devices.
const isolate = "--isolate-devices"

func (s *Spec) resources() object {
	var limits object
	if s.CPU != "" {
		limits = append(limits, field{"cpu", raw(quoted(s.CPU)), ""})
	}
	if s.Memory != "" {
		limits = append(limits, field{"memory", s.memory(), "What lies in /dev/shm counts as well."})
	}
	if s.Accelerators > 0 {
		why := "Devices of the node: each worker sees all, and takes that of its local rank."
		if slices.ContainsFunc(s.Flags, func(f string) bool { return f == isolate || f == isolate+"=true" }) {
			why = "Devices of the node; muster gives each worker its own."
		}
		limits = append(limits, field{s.Accelerator, s.Accelerators, why})
	}
	if name, n, ok := s.rdma(); ok {
		limits = append(limits, field{name, n, "RDMA devices, as the cluster's device plugin names them."})
	}
	return object{{"limits", limits, ""}}
}

func (s *Spec) memory() any { return raw(quoted(s.Memory)) }

func (s *Spec) security() object {
	if s.RDMA == "" {
		return nil
	}
	return object{{"capabilities", object{{"add", inline{"IPC_LOCK"}, "RDMA registers memory that must not be swapped."}}, ""}}
}

// probes ask muster whether it lives. Without --http nobody answers.
func (s *Spec) probes() []field {
	if s.Port == 0 {
		return nil
	}
	get := func(path string) object {
		return object{{"path", path, ""}, {"port", s.Port, ""}}
	}
	return []field{
		{"livenessProbe", object{
			{"httpGet", get("/healthz"), ""}, {"periodSeconds", 10, ""}, {"timeoutSeconds", 5, ""}, {"failureThreshold", 12, ""},
		}, "The pod is made anew when muster itself has not answered for 2 minutes. Hung workers do not end it: muster diagnose tells " +
			"of them."},
		{
			"readinessProbe",
			object{{"httpGet", get("/readyz"), ""}, {"periodSeconds", 10, ""}, {"timeoutSeconds", 5, ""}},
			"READY in kubectl get pods says that the workers run. Nobody waits for it: nodes meet before.",
		},
	}
}

// lifecycle gives notice before a pod ends.
func (s *Spec) lifecycle() field {
	script := fmt.Sprintf("touch %s && sleep %d", noticeFile, seconds(s.Notice))
	return field{
		"lifecycle",
		object{{"preStop", object{{"exec", object{{"command", inline{"sh", "-c", script}, ""}}, ""}}, ""}},
		"A pod that is evicted or deleted says so first: muster writes the newest step to disk, and muster.checkpoint's preempted " +
			"becomes true, so that a script can save its last step and end. SIGTERM follows.",
	}
}

func (s *Spec) volumes() list {
	var l list
	if s.SharedMemory != "" {
		l = append(l, object{
			{
				"name", "shm",
				"NCCL, data loaders and muster's checkpoints in memory share memory here; a container's own /dev/shm has 64 MiB.",
			},
			{"emptyDir", object{{"medium", "Memory", ""}, {"sizeLimit", raw(quoted(s.SharedMemory)), ""}}, ""},
		})
	}
	if s.TokenSecret != "" {
		l = append(l, object{
			{"name", "muster-token", "The job's token: kubectl create secret generic " + s.TokenSecret +
				" --from-literal=token=\"$(muster token)\""},
			{"secret", object{{"secretName", s.TokenSecret, ""}}, ""},
		})
	}
	for i, c := range s.Claims {
		name, _, _ := strings.Cut(c, ":")
		l = append(l, object{
			{"name", fmt.Sprintf("claim-%d", i), ""}, {"persistentVolumeClaim", object{{"claimName", name, ""}}, ""},
		})
	}
	return l
}

func (s *Spec) mounts() list {
	var l list
	if s.SharedMemory != "" {
		l = append(l, object{{"name", "shm", ""}, {"mountPath", "/dev/shm", ""}})
	}
	if s.TokenSecret != "" {
		l = append(l, object{{"name", "muster-token", ""}, {"mountPath", tokenDir, ""}, {"readOnly", true, ""}})
	}
	for i, c := range s.Claims {
		_, dir, _ := strings.Cut(c, ":")
		l = append(l, object{{"name", fmt.Sprintf("claim-%d", i), ""}, {"mountPath", dir, ""}})
	}
	return l
}

// affinity keeps pods together where no gang does.
func (s *Spec) affinity(p inPod) object {
	if s.Topology == "" || s.Gang != "" || s.Kind == "volcano" || len(p.labels) == 0 {
		return nil
	}
	return object{{
		"podAffinity",
		object{{"requiredDuringSchedulingIgnoredDuringExecution", list{object{
			{"topologyKey", s.Topology, ""},
			{"labelSelector", object{{"matchLabels", p.labels, ""}}, ""},
		}}, ""}},
		"All pods in one " + s.Topology + ": traffic between nodes stays below one switch.",
	}}
}

// jobLabel tells the pods of a job from all others.
const jobLabel = "muster/job"

// gang is what has all pods start together: labels of the job, labels and annotations of pods, their scheduler, and
// documents of its own.
type gang struct {
	labels, podLabels, podAnnotations object
	scheduler                         string
	documents                         []object
}

// ganged says how the job's gang is told to the cluster.
func (s *Spec) ganged() gang {
	g := gang{podLabels: object{{jobLabel, s.Name, ""}}}
	switch s.Gang {
	case "kueue":
		if s.Queue != "" {
			g.labels = object{{"kueue.x-k8s.io/queue-name", s.Queue, "Kueue admits the job as a whole, when there is room for all pods."}}
		}
		if s.Topology != "" {
			g.podAnnotations = object{{
				"kueue.x-k8s.io/podset-required-topology", s.Topology,
				"All pods within one such part of the network.",
			}}
		}
	case "volcano":
		g.scheduler = "volcano"
		g.podAnnotations = object{{
			"scheduling.k8s.io/group-name", s.Name,
			"The pod group below: its pods are placed together or not at all.",
		}}
		g.documents = []object{{
			{"apiVersion", "scheduling.volcano.sh/v1beta1", ""},
			{"kind", "PodGroup", ""},
			{"metadata", s.metadata(nil), ""},
			{"spec", object{
				{"minMember", s.Nodes, "No pod starts before all can."}, {"queue", s.Queue, ""}, {"networkTopology", s.tier(), ""},
			}, ""},
		}}
	case "koordinator":
		g.scheduler = "koord-scheduler"
		if s.Queue != "" {
			g.podLabels = append(g.podLabels, field{"quota.scheduling.koordinator.sh/name", s.Queue, "The quota that the pods count in."})
		}
		g.podAnnotations = object{
			{"gang.scheduling.koordinator.sh/name", s.Name, "Pods with this name are placed together or not at all."},
			{"gang.scheduling.koordinator.sh/min-available", raw(quoted(fmt.Sprint(s.Nodes))), ""},
		}
		if s.Topology != "" {
			g.podAnnotations = append(g.podAnnotations, field{
				"gang.scheduling.koordinator.sh/network-topology-spec",
				fmt.Sprintf(`{"gatherStrategy":[{"layer":%s,"strategy":"MustGather"}]}`, quoted(s.Topology)),
				"All pods below one such layer of the network.",
			})
		}
	}
	return g
}

// tier is the part of the network in which Volcano places a job, which has numbers.
func (s *Spec) tier() object {
	if s.Topology == "" {
		return nil
	}
	return object{{"mode", "hard", "All pods below a switch of this tier."}, {"highestTierAllowed", raw(s.Topology), ""}}
}

// metadata is that of a document of the job.
func (s *Spec) metadata(labels object) object {
	return object{{"name", s.Name, ""}, {"namespace", s.Namespace, ""}, {"labels", labels, ""}}
}
