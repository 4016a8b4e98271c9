package jobfile

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"muster/launch/job"
)

// batchBackoff is how often Kubernetes starts a failed job's pods anew unless the file says it.
const batchBackoff = 6

// batch is what a Job's spec says.
type batch struct {
	group
	completions, parallelism int
	rules                    rules
	at                       value
}

// batchSpec reads the spec of a Job, which a JobSet has, too. indexed is what it is where it does not say so itself.
func (v value) batchSpec(role string, indexed bool) batch {
	b := batch{group: group{role: role}, completions: 1, parallelism: 1, at: v}
	b.rules.limit = batchBackoff
	inSet := indexed
	var many, together value
	count := func(to *int) func(value) {
		return func(n value) {
			*to, _ = n.count(0)
			if b.replicas.node == nil || n.path > b.replicas.path {
				b.replicas = n
			}
		}
	}
	v.object(fields{
		"completions": func(n value) { count(&b.completions)(n); many = n },
		"parallelism": func(n value) { count(&b.parallelism)(n); together = n },
		"completionMode": func(m value) {
			text, _ := m.choice("Indexed", "NonIndexed")
			indexed = text == "Indexed"
			m.note(Applied, "JOB_COMPLETION_INDEX is "+map[bool]string{
				true: "the number of the pod in its job", false: "the rank of the node", // a JobSet has several jobs
			}[inSet])
		},
		"template":              func(t value) { b.template = t.template(known{}) },
		"backoffLimit":          b.rules.backoffLimit,
		"activeDeadlineSeconds": deadline,
		"suspend":               off("the job is suspended: nothing would start"),
		"podFailurePolicy":      func(p value) { p.podFailurePolicy() },
		"successPolicy": func(p value) {
			p.succeeds("leave it out, or give --success-policy rank0", "of success policies muster has all, any and rank0, for all nodes")
		},
		"backoffLimitPerIndex": func(n value) {
			n.refuse("give backoffLimit for all nodes together", "the nodes of a training start anew together")
		},
		"maxFailedIndexes": func(n value) {
			n.refuse("leave it out", "the nodes of a training fail together")
		},
		"podReplacementPolicy": cluster("muster starts a node's command anew when the old one has ended"),
	}.leave(whyAfter, "ttlSecondsAfterFinished").leave(whySchedule, "managedBy").leave(whyLabels, "selector", "manualSelector"))
	if v.r.wrong != nil {
		return b
	}
	b.n = b.completions
	if many.node == nil {
		b.n = b.parallelism
	}
	for _, n := range []value{many, together} {
		switch {
		case n.node == nil:
		case n == together && b.parallelism > b.n:
			n.note(Mapped, "no more pods than completions have work")
		default:
			n.note(Mapped, wordNodes(b.n)+": on this machine, or on --hosts")
		}
	}
	switch {
	case b.template.container.node == nil:
		v.fail("the job has no template")
	case b.n == 0 || b.parallelism == 0:
		b.replicas.fail("a job with no replica has nothing to run: give a number from 1")
	case b.n > maxReplicas:
		b.replicas.fail("give a number up to %d", maxReplicas)
	case b.n > 1 && !indexed:
		v.refuse("give completionMode: Indexed, as in --set "+v.path+".completionMode=Indexed",
			"pods of a job that is not indexed do not know their ranks")
	case many.node != nil && b.parallelism < b.completions:
		many.refuse("give both the same number", "%d pods would train at first, and %d in all: the nodes of a training run together",
			b.parallelism, b.completions)
	}
	return b
}

// podFailurePolicy takes of its rules those that end the job for some exit codes.
func (v value) podFailurePolicy() {
	v.object(fields{"rules": func(list value) {
		list.list(func(rule value) {
			action := ""
			var codes, act value
			operator := ""
			var values []string
			rule.object(fields{
				"action": func(a value) { action, _ = a.choice("FailJob", "FailIndex", "Ignore", "Count"); act = a },
				"onExitCodes": func(c value) {
					codes = c
					c.object(fields{
						"operator":      func(o value) { operator, _ = o.choice("In", "NotIn") },
						"containerName": func(n value) { n.text() },
						"values": func(list value) {
							list.list(func(n value) {
								if code, ok := n.count(0); ok {
									values = append(values, strconv.Itoa(code))
								}
							})
						},
					})
				},
				"onPodConditions": cluster("muster's nodes have no conditions; a lost one leads to a new round"),
			})
			switch {
			case codes.node == nil || v.r.wrong != nil:
			case action == "FailJob" && operator == "In":
				codes.setting("fatal-exit-codes", strings.Join(values, ","))
				codes.note(Applied, "--fatal-exit-codes "+strings.Join(values, ","))
			case action == "FailJob" && operator == "NotIn":
				codes.setting("restart-policy", "exit-code")
				codes.setting("retryable-exit-codes", strings.Join(values, ","))
				codes.note(Applied, "--restart-policy exit-code --retryable-exit-codes "+strings.Join(values, ","))
			case action == "Ignore" && operator == "In" && !slices.ContainsFunc(values, func(c string) bool {
				return c != "80" && c != "81"
			}):
				codes.note(Mapped,
					"muster's statuses of a node at fault and of a straggler: the others go on without it, or wait for another node")
			case action == "Count":
				codes.note(Applied, "such exits count as any other")
			default:
				act.refuse("leave the rule out", "muster counts all restarts of a job alike, and cannot do %s", action)
			}
		})
	}})
}

// batchRules makes settings of what a Job says of failures: its pods are made anew whatever their own policy is.
func (b *batch) batchRules() {
	b.podPolicy("a failed pod is made anew under both, up to backoffLimit")
	from := b.rules.backoff
	if from.node == nil {
		from = b.at
	} else {
		from.note(Applied, fmt.Sprintf("--backoff-limit %d: restarts of all nodes together", b.rules.limit))
	}
	from.setting("max-restarts", strconv.Itoa(b.rules.limit))
	if b.rules.limit > 0 {
		from.setting("backoff-limit", strconv.Itoa(b.rules.limit))
	}
}

// podPolicy reads when containers of the pods are restarted, of which a Job takes two. as is what follows from both.
func (b *batch) podPolicy(as string) {
	if p := b.template.restartPolicy; p.node != nil {
		if _, ok := p.choice("Never", "OnFailure"); ok {
			p.note(Mapped, as)
		}
	}
}

func indexedJob(v value) {
	r, f := v.r, v.r.file
	b := v.batchSpec("pod", false)
	if r.wrong != nil {
		return
	}
	b.batchRules()
	r.pods(b.group, v, func(i int) string { return fmt.Sprintf("%s-%d", f.Name, i) })
	f.beside = func(_ *File, i int, _ Places) []job.Var {
		return []job.Var{own("JOB_COMPLETION_INDEX", strconv.Itoa(i))}
	}
}

func jobSet(v value) {
	r, f := v.r, v.r.file
	var targets []string
	var target value
	restarts := value{}
	limit := 0
	type replicated struct {
		name string
		n    int
		batch
	}
	var jobs []replicated
	v.object(fields{
		"replicatedJobs": func(list value) {
			list.list(func(item value) {
				j := replicated{n: 1}
				if name := get(item.node, "name"); name != nil {
					j.name = name.Value
				}
				item.object(fields{
					"name": func(n value) { n.text(); n.note(Mapped, "the name of the group of nodes") },
					"replicas": func(n value) {
						if j.n, _ = n.count(0); j.n == 0 {
							n.fail("a job with no replica has nothing to run: give a number from 1")
						}
						n.note(Mapped, wordNodes(j.n)+" for each pod of the job")
					},
					"groupName": cluster(whyLabels),
					"dependsOn": func(d value) {
						d.refuse("leave it out: all nodes start together", "muster starts no node after another one has ended")
					},
					"template": func(t value) {
						t.object(fields{"metadata": cluster(whyLabels), "spec": func(spec value) {
							j.batch = spec.batchSpec(j.name, true) // JobSet's webhook makes such jobs indexed
						}})
					},
				})
				jobs = append(jobs, j)
			})
		},
		"successPolicy": func(p value) {
			p.object(fields{
				"operator": func(o value) {
					text, _ := o.choice("All", "Any")
					if text == "Any" {
						o.setting("success-policy", "any")
					}
					o.note(Applied, "--success-policy")
				},
				"targetReplicatedJobs": func(t value) { targets, target = slices.Compact(slices.Sorted(slices.Values(t.texts()))), t },
			})
		},
		"failurePolicy": func(p value) {
			p.object(fields{
				"maxRestarts": func(n value) {
					limit, _ = n.count(0)
					restarts = n
					n.note(Applied, "--max-restarts, --backoff-limit: restarts of all nodes together")
				},
				"rules": func(rules value) {
					rules.refuse("leave them out", "muster restarts all nodes of a training together, and has no rules by parts of it")
				},
				"restartStrategy": cluster("muster starts the commands anew, and makes no pods"),
			})
		},
		"suspend":     off("the job is suspended: nothing would start"),
		"network":     cluster(whyNetwork),
		"coordinator": cluster("the first node is where the nodes meet"),
		"startupPolicy": func(p value) {
			p.note(Cluster, "all nodes start together, and wait for each other")
		},
	}.leave(whyAfter, "ttlSecondsAfterFinished").leave(whySchedule, "managedBy").leave(whyVolumes, "volumeClaimPolicies"))
	if r.wrong != nil {
		return
	}
	for _, j := range jobs {
		for k := range j.n {
			index := len(f.Pods) // ranks go through all jobs
			r.pods(j.group, v, func(i int) string { return fmt.Sprintf("%s-%s-%d-%d", f.Name, j.name, k, i) })
			for i := index; i < len(f.Pods); i++ {
				f.Pods[i].Index = i - index
			}
		}
		j.podPolicy("under both all nodes start anew together, as failurePolicy.maxRestarts says")
		if b := j.rules.backoff; b.node != nil {
			b.note(Mapped, "restarts are counted for all nodes together, by failurePolicy.maxRestarts")
		}
	}
	if len(jobs) == 0 {
		v.fail("a JobSet has replicatedJobs")
		return
	}
	if target.node != nil {
		var names []string
		for _, j := range jobs {
			names = append(names, j.name)
		}
		target.list(func(item value) { item.choice(names...) })
		switch {
		case r.wrong != nil:
		case slices.Equal(targets, []string{jobs[0].name}) && len(jobs) > 1 && jobs[0].n*jobs[0].group.n == 1:
			target.setting("success-policy", "rank0")
			target.note(Applied, "--success-policy rank0")
		case len(targets) == len(jobs):
			target.note(Applied, "all nodes decide")
		default:
			target.succeeds("leave it out, or give --success-policy", "muster knows success of all nodes, of any, and of the first")
		}
	}
	if restarts.node == nil { // the first job that fails is the JobSet's failure, as under maxRestarts: 0
		restarts = v
	}
	restarts.setting("max-restarts", strconv.Itoa(limit))
	if limit > 0 {
		restarts.setting("backoff-limit", strconv.Itoa(limit))
	}
	f.beside = func(f *File, i int, _ Places) []job.Var {
		return []job.Var{
			own("JOB_COMPLETION_INDEX", strconv.Itoa(f.Pods[i].Index)),
		}
	}
}
