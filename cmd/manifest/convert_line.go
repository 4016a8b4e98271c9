package manifest

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"muster/cmd/dialect/jobfile"
	"muster/internal/lazyregexp"
)

// anew are the ends of paths whose lines every kind writes by itself, or that have no meaning beside muster run.
var anew = lazyregexp.New(
	`(^Service|^PodGroup.*|\.(subdomain|network|podReplacementPolicy|terminationMessagePath|terminationMessagePolicy|onPodConditions|` +
		`coordinator|startupPolicy|sshAuthMountPath|launcherCreationPolicy))$`)

// probed are those of which muster writes its own beside muster run.
var probed = lazyregexp.New(`\.(lifecycle|livenessProbe|readinessProbe|startupProbe|securityContext|ports\[[0-9]+\])$`)

// line takes what a line says, or tells that it is left.
func (c *converter) line(l jobfile.Line) {
	if strings.HasSuffix(l.Path, ".valueFrom") || strings.Contains(l.Path, ".valueFrom.") || strings.Contains(l.Path, ".envFrom") {
		c.leave(l, "variables of Secrets, ConfigMaps and pods are not carried over: add them to the file")
		return
	}
	if l.State == jobfile.Missing || l.State == jobfile.Unknown {
		c.leave(l, l.As)
		return
	}
	if l.State != jobfile.Cluster || anew().MatchString(l.Path) || strings.Contains(l.Path, ".command[") ||
		c.file.Native && probed().MatchString(l.Path) {
		return
	}
	if l.Path == "TrainingRuntime" {
		c.runtime(l)
		return
	}
	end := l.Path[strings.LastIndexByte(l.Path, '.')+1:]
	if at := strings.Index(l.Path, ".limits."); at >= 0 {
		c.amount(l, l.Path[at+len(".limits."):])
		return
	}
	s, text := &c.spec, ""
	taken := false
	take := func(flag string, to *string) {
		if taken = l.Decode(&text) == nil && text != "" && (*to == "" || *to == text); taken {
			*to, c.from[flag] = text, l
		}
	}
	switch {
	case end == "image":
		if take("image", &s.Image); !taken && text != "" {
			c.leave(l, cmp.Or(Refused(s.Kind, "image"), "nodes of the file that is written are alike, and have the image "+s.Image))
			return
		}
	case l.Path == "metadata.namespace":
		take("namespace", &s.Namespace)
	case l.Path == "metadata.labels", strings.HasSuffix(l.Path, ".metadata"), l.Path == "metadata.annotations":
		c.labels(l)
		return
	case l.Path == "spec.queue":
		take("queue", &s.Queue)
	case end == "schedulerName":
		c.scheduler(l)
		return
	case end == "schedulingPolicy":
		c.scheduling(l)
		return
	case l.Path == "spec.networkTopology":
		var tier struct {
			HighestTierAllowed int `yaml:"highestTierAllowed"`
		}
		if taken = l.Decode(&tier) == nil && tier.HighestTierAllowed > 0; taken {
			s.Topology, c.from["topology"] = strconv.Itoa(tier.HighestTierAllowed), l
		}
	case end == "volumes":
		var list []volume
		if taken = l.Decode(&list) == nil; taken {
			for _, v := range list {
				v.line = l
				c.volumes = append(c.volumes, v)
			}
		}
	case end == "volumeMounts":
		var list []mount
		if taken = l.Decode(&list) == nil; taken {
			c.mounts = append(c.mounts, list...)
		}
	case strings.Contains(l.Path, ".requests."):
		return // limits say it; of CPU and memory alone nothing would be kept
	}
	switch {
	case taken:
	case needless().MatchString(l.Path):
		c.leave(l, l.As)
	default:
		c.leave(l, "muster convert does not carry it over: add it to the file")
	}
}

// needless are the ends of paths whose lines are about what muster does without.
var needless = lazyregexp.New(`\.(dlrover-master|optimizeMode|enableElasticScheduling|enableDynamicSharding|brainService|autoScale|` +
	`restartTimeout|ssh|skipInitContainer|tensorboardSpec|metrics)$`)

// remoteMemory are resources of RDMA, as device plugins name them.
var remoteMemory = lazyregexp.New(`rdma|hca|roce|infiniband|/ib`)

// amount takes an amount of a resource.
func (c *converter) amount(l jobfile.Line, resource string) {
	s := &c.spec
	text := ""
	if l.Decode(&text) != nil {
		text = l.Value
	}
	alike := func(to *string) {
		if *to == "" {
			*to, c.from[resource] = text, l
		} else if *to != text {
			c.leave(l, cmp.Or(Refused(s.Kind, resource), "nodes of the file that is written are alike, and have "+resource+" "+*to))
		}
	}
	switch {
	case resource == "cpu":
		alike(&s.CPU)
	case resource == "memory":
		alike(&s.Memory)
	case remoteMemory().MatchString(resource):
		s.RDMA, c.from["rdma"] = resource+"="+text, l
	default:
		c.leave(l, "muster convert does not carry it over: add it to the file")
	}
}

// labels takes what labels and annotations say of queues, gangs and topology.
func (c *converter) labels(l jobfile.Line) {
	var m map[string]any
	if l.Decode(&m) != nil {
		c.leave(l, "muster convert does not carry it over: add it to the file")
		return
	}
	all := map[string]string{}
	for key, value := range m {
		inside, nested := value.(map[string]any)
		if !nested {
			all[key] = fmt.Sprint(value)
			continue
		}
		for k, v := range inside {
			all[k] = fmt.Sprint(v)
		}
	}
	c.marks(l, all)
}

// marks takes labels and annotations.
func (c *converter) marks(l jobfile.Line, all map[string]string) {
	s := &c.spec
	for _, key := range slices.Sorted(maps.Keys(all)) {
		value := all[key]
		switch key {
		case "kueue.x-k8s.io/queue-name":
			s.Queue, s.Gang, c.from["queue"], c.from["gang"] = value, "kueue", l, l
		case "kueue.x-k8s.io/podset-required-topology":
			s.Topology, c.from["topology"] = value, l
		case "gang.scheduling.koordinator.sh/name":
			s.Gang, c.from["gang"] = "koordinator", l
		case "quota.scheduling.koordinator.sh/name":
			s.Queue, c.from["queue"] = value, l
		case "scheduling.k8s.io/group-name":
			s.Gang, c.from["gang"] = "volcano", l
		case "gang.scheduling.koordinator.sh/min-available", jobLabel, "trainer.kubeflow.org/trainjob-ancestor-step":
		default:
			c.left = append(c.left, Left{l.Source, l.Path + " " + key, "labels and annotations of others are not carried over"})
		}
	}
}

// runtime takes of a TrainingRuntime what muster writes there.
func (c *converter) runtime(l jobfile.Line) {
	var r struct {
		Spec struct {
			Template struct {
				Spec struct {
					FailurePolicy struct {
						MaxRestarts int `yaml:"maxRestarts"`
					} `yaml:"failurePolicy"`
					ReplicatedJobs []struct {
						Template struct {
							Spec struct {
								Deadline int `yaml:"activeDeadlineSeconds"`
								Template struct {
									Metadata struct{ Annotations, Labels map[string]string }
									Spec     struct {
										Scheduler  string `yaml:"schedulerName"`
										Volumes    []volume
										Containers []struct {
											Mounts []mount `yaml:"volumeMounts"`
										}
									}
								}
							}
						}
					} `yaml:"replicatedJobs"`
				}
			}
		}
	}
	err := l.Decode(&r)
	jobs := r.Spec.Template.Spec.ReplicatedJobs
	if err != nil || len(jobs) != 1 || len(jobs[0].Template.Spec.Template.Spec.Containers) != 1 {
		c.leave(l, "muster convert reads runtimes of one job with one container")
		return
	}
	if !c.file.Native {
		c.leave(l, "of a runtime muster convert takes volumes, annotations, deadline and restarts alone")
	}
	c.spec.BackoffLimit = r.Spec.Template.Spec.FailurePolicy.MaxRestarts
	c.spec.Deadline = time.Duration(jobs[0].Template.Spec.Deadline) * time.Second
	pod := jobs[0].Template.Spec.Template
	c.marks(l, pod.Metadata.Annotations)
	c.marks(l, pod.Metadata.Labels)
	switch pod.Spec.Scheduler {
	case "volcano":
		c.spec.Gang = "volcano"
	case "koord-scheduler":
		c.spec.Gang = "koordinator"
	}
	for _, v := range pod.Spec.Volumes {
		v.line = l
		c.volumes = append(c.volumes, v)
	}
	c.mounts = append(c.mounts, pod.Spec.Containers[0].Mounts...)
}

func (c *converter) scheduler(l jobfile.Line) {
	text := ""
	_ = l.Decode(&text)
	switch text {
	case "volcano":
		c.spec.Gang, c.from["gang"] = "volcano", l
	case "koord-scheduler":
		c.spec.Gang, c.from["gang"] = "koordinator", l
	default:
		c.leave(l, "muster convert knows the schedulers volcano and koord-scheduler")
	}
}

func (c *converter) scheduling(l jobfile.Line) {
	var policy struct{ Queue string }
	if l.Decode(&policy) != nil {
		c.leave(l, "muster convert takes a queue from it")
		return
	}
	c.spec.Queue, c.spec.Gang, c.from["queue"], c.from["gang"] = policy.Queue, "volcano", l, l
}
