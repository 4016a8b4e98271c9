package jobfile

import (
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"muster/launch/job"
)

// The AITrainingJob of Baidu's CCE, and its open ancestor (elasticdeeplearning/trainingjob-operator, 148db3b3; the fields
// that came later as PaddleFlow's pkg/apis/aitj-operator has them).
const (
	aitjPrefix = "aitj-" // of the containers and ports that count
	// aitjScript and aitjHostfile are where a launcher finds its trainers, as the plug-in discovery writes them.
	aitjScript, aitjHostfile = "/etc/edl/discover_hosts.sh", "/etc/edl/hostfile"
)

// aitjVersions are the kind's, spelled as in the product, as its name is spelled, and of the ancestor.
var aitjVersions = []string{"kongming.cce.baiudbce.com/v1", "kongming.cce.baidubce.com/v1", "elasticdeeplearning.ai/v1"}

// aitjPolicies are muster's words for restart policies. A pod that has succeeded is started anew by none of them.
var aitjPolicies = map[string]string{
	"Never": "never", "OnFailure": "on-failure", "Always": "on-failure", "OnNodeFail": "on-node-fail", "ExitCode": "exit-code",
	"OnNodeFailWithExitCode": "on-node-fail-or-exit-code",
}

// aitjRestarts are the restart policies.
var aitjRestarts = []string{"Always", "OnFailure", "OnNodeFail", "Never", "ExitCode", "OnNodeFailWithExitCode"}

// aitjGroup is a group of equal replicas of an AITrainingJob.
type aitjGroup struct {
	group
	at             value
	launches       bool // its command starts the others'
	master         bool
	complete, fail ending
	policy         value // of restarts
	codes          []string
	codesAt        value
	events         bool // the loss of a pod or of its node starts it anew
	eventsAt       value
	scope          ending
	limit          value // of restarts; no node: none
	limited        int
	window         value // the time within which they count
	windowed       int
	timeout        value // for the replacement of a pod
	timeoutIs      int
	least, most    int
	leastAt        value
	mostAt         value
}

// ending is a word of a policy, and where it stands; no node: it is the default.
type ending struct {
	word string
	at   value
}

// endings read a policy of completion or failure.
func (e *ending) read(v value) {
	if word, ok := v.choice("Any", "All", "None", "Rank0"); ok {
		*e = ending{word, v}
	}
}

// note says what becomes of a policy that stands in the file.
func (e ending) note(state State, as string) {
	if e.at.node != nil {
		e.at.note(state, as)
	}
}

// aitrainingJob reads an AITrainingJob: one with a launcher whose trainers are its hosts, or one whose pods all train.
type aitrainingJob struct {
	value
	groups         []*aitjGroup
	launcher       string // the name of its group, empty for none
	complete, fail ending
	codes          []string // of the whole job, as the open ancestor has it
	codesAt        value
	discovered     bool
	elastic        bool // faultTolerant
}

func readAITrainingJob(v value) {
	j := aitrainingJob{value: v, complete: ending{word: "All"}, fail: ending{word: "Any"}, launcher: launcherOf(v)}
	v.object(fields{
		"replicaSpecs": j.replicas,
		"cleanPodPolicy": func(c value) {
			if word, ok := c.choice("All", "None"); ok {
				c.setting("clean-policy", strings.ToLower(word))
				c.note(Applied, "--clean-policy "+strings.ToLower(word))
			}
		},
		"completePolicy": j.complete.read,
		"failPolicy":     j.fail.read,
		"restartingExitCode": func(c value) {
			j.codes, j.codesAt = c.exitCodes(), c
		},
		"timeLimit": deadline,
		"faultTolerant": func(b value) {
			if on, ok := b.boolean(); ok {
				j.elastic = on
				b.note(Mapped, "the groups' policies say what is started anew")
			}
		},
		"frameworkType": func(f value) {
			f.text()
			f.note(Mapped, "the commands say what is started")
		},
		"plugin": func(p value) {
			p.object(fields{
				"ssh":       func(s value) { s.texts(); s.note(Cluster, "ssh takes the keys of the user who starts muster") },
				"discovery": func(d value) { d.texts(); j.discovered = true; d.note(Applied, "the launcher has "+aitjScript) },
			})
		},
		"metrics": cluster("muster scales no replicas by measures; muster scale does so by hand"),
	}.leave(whySchedule, "priority", "schedulerName"))
	if v.r.wrong != nil {
		return
	}
	if len(j.groups) == 0 {
		v.fail("an AITrainingJob has replicaSpecs")
		return
	}
	slices.SortStableFunc(j.groups, func(a, b *aitjGroup) int { return b.first() - a.first() })
	if j.launcher != "" {
		j.launched()
	} else {
		j.plain()
	}
}

// launcherOf finds the group whose command starts the others': the one that is called so, or the master of Horovod.
func launcherOf(v value) string {
	specs := get(v.node, "replicaSpecs")
	if specs == nil || specs.Kind != yaml.MappingNode {
		return ""
	}
	groups := pairs(specs, func(*yaml.Node, *yaml.Node) {})
	for _, g := range groups {
		spec := aim(g.value)
		if strings.EqualFold(g.key.Value, "launcher") || len(groups) > 1 && scalar(v.node, "frameworkType") == "horovod" &&
			spec.Kind == yaml.MappingNode && scalar(spec, "replicaType") == "master" {
			return g.key.Value
		}
	}
	return ""
}

// first is greater for a group whose ranks come first.
func (g *aitjGroup) first() int {
	if g.master {
		return 1
	}
	return 0
}

// replicas reads the groups of replicas.
func (j *aitrainingJob) replicas(specs value) {
	specs.each(func(key *yaml.Node, spec value) {
		hosts := j.launcher != "" && key.Value != j.launcher
		g := &aitjGroup{
			group: group{role: strings.ToLower(key.Value), n: 1}, launches: key.Value == j.launcher, at: spec,
			complete: ending{word: "All"}, fail: ending{word: "Any"},
			scope: ending{word: "All"},
		}
		j.groups = append(j.groups, g)
		number := func(to *int, at *value, least int) func(value) {
			return func(n value) {
				if count, ok := n.count(least); ok {
					*to, *at = count, n
				}
			}
		}
		spec.object(fields{
			"replicas": g.count,
			"replicaType": func(t value) {
				word, ok := t.choice("master", "worker")
				if g.master = ok && word == "master"; ok {
					t.note(Mapped, "masters have the first ranks")
				}
			},
			"minReplicas":    number(&g.least, &g.leastAt, 1),
			"maxReplicas":    number(&g.most, &g.mostAt, 1),
			"completePolicy": g.complete.read,
			"failPolicy":     g.fail.read,
			"restartPolicy": func(p value) { // also of groups whose policy is of no effect
				if _, ok := p.choice(aitjRestarts...); ok {
					g.policy = p
				}
			},
			"restartScope":     g.scope.scope,
			"restartLimit":     number(&g.limited, &g.limit, 0),
			"restartTimeLimit": number(&g.windowed, &g.window, 1),
			"restartTimeout":   number(&g.timeoutIs, &g.timeout, 1),
			"faultTolerantPolicy": func(list value) {
				list.list(func(item value) { g.tolerate(item) })
			},
			"template": func(t value) {
				g.template = t.template(known{prefix: aitjPrefix, noCommand: hosts, barrier: g.launches, idle: hosts})
			},
			"scaleInpods": cluster("muster scale takes the last nodes away"),
			"edlPolicy":   cluster("muster scale changes the number of nodes"),
		}.leave("muster scale waits for nobody", "scaleTimeout", "scaleCancle"))
		if g.template.container.node == nil && j.r.wrong == nil {
			spec.fail("the replicas have no template")
		}
		if p := g.template.restartPolicy; p.node != nil {
			p.note(Mapped, "overridden by the replicas' restartPolicy")
		}
		g.between()
	})
}

// scope reads who starts anew.
func (e *ending) scope(v value) {
	if word, ok := v.choice("Pod", "Replica", "All"); ok {
		*e = ending{word, v}
	}
}

// between checks the bounds of the number of replicas.
func (g *aitjGroup) between() {
	switch {
	case g.leastAt.node != nil && g.mostAt.node != nil && g.least > g.most:
		g.leastAt.fail("the least number of replicas, %d, is greater than the most, %d", g.least, g.most)
	case g.leastAt.node != nil && g.n < g.least:
		g.leastAt.fail("the number of replicas, %d, is below the least, %d", g.n, g.least)
	case g.mostAt.node != nil && g.n > g.most:
		g.mostAt.fail("the number of replicas, %d, is above the most, %d", g.n, g.most)
	}
}

// tolerate reads what is borne: exit codes, or events of the cluster.
func (g *aitjGroup) tolerate(item value) {
	var scope ending
	item.object(fields{
		"exitCodes": func(c value) {
			g.codes = append(g.codes, c.exitCodes()...)
			g.codesAt = c
		},
		"exceptionalEvent": func(e value) {
			text, ok := e.text()
			for event := range strings.SplitSeq(text, ",") {
				if event = strings.TrimSpace(event); ok && !slices.Contains([]string{"nodeNotReady", "PodForceDeleted", "PodEvicted"},
					event) {
					e.fail("unknown event %q: choose nodeNotReady, PodForceDeleted, PodEvicted", event)
					return
				}
			}
			g.events, g.eventsAt = true, e
		},
		"restartPolicy": func(p value) {
			if _, ok := p.choice(aitjRestarts...); ok {
				p.note(Mapped, "the replicas' policy, and what is listed beside it")
			}
		},
		"restartScope": func(s value) { scope.scope(s); scope.note(Mapped, "the replicas' scope") },
	})
	if g.scope.at.node == nil && scope.word != "" {
		g.scope.word = scope.word
	}
}

// exitCodes reads a list of exit codes, such as "129,101" or "1-100". Those that no process ends with are passed over.
func (v value) exitCodes() (list []string) {
	text, ok := v.word()
	if !ok {
		return nil
	}
	for item := range strings.SplitSeq(text, ",") {
		item = strings.TrimSpace(item)
		if n, err := strconv.Atoi(item); err == nil && n > 255 || item == "" || slices.Contains(list, item) {
			continue
		}
		if _, err := job.ParseExitCodes(item); err != nil {
			v.fail("%v", err)
			return nil
		}
		list = append(list, item)
	}
	return list
}

// restarts says by which policy a group starts anew, in muster's words, and for which codes.
func (j *aitrainingJob) restarts(g *aitjGroup) (policy, codes string) {
	word := "Never"
	switch {
	case g.policy.node != nil:
		word = g.policy.node.Value
	case len(g.codes) > 0 && g.events:
		word = "OnNodeFailWithExitCode"
	case len(g.codes) > 0:
		word = "ExitCode"
	case g.events:
		word = "OnNodeFail"
	}
	if policy = aitjPolicies[word]; strings.HasSuffix(policy, "exit-code") {
		codes = strings.Join(slices.Concat(g.codes, j.codes), ",")
		if codes == "" {
			codes = ">=128" // as the type's comment has it
		}
	}
	return policy, codes
}

// noteRestarts says what becomes of a group's lines about restarts. as puts a setting into its form there.
func (j *aitrainingJob) noteRestarts(g *aitjGroup, policy, codes string, as func(flag, text string) string) {
	notes := []struct {
		at         value
		flag, text string
		never      string // what is said where nothing starts anew
	}{
		{g.policy, "restart-policy", policy, ""},
		{g.codesAt, "retryable-exit-codes", codes, "no exit code starts anything anew: the restart policy is " + policy},
		{j.codesAt, "retryable-exit-codes", codes, "no exit code starts anything anew: the restart policy is " + policy},
		{g.window, "restart-window", strconv.Itoa(g.windowed) + "s", "nothing is started anew"},
	}
	for _, n := range notes {
		switch {
		case n.at.node == nil:
		case n.text == "" || n.never != "" && policy == "never" || n.flag == "restart-window" && g.limit.node == nil:
			n.at.note(Mapped, n.never)
		default:
			n.at.note(Applied, as(n.flag, n.text))
		}
	}
	if g.eventsAt.node != nil {
		g.eventsAt.note(Mapped, "the loss of a node, which restartPolicy rules")
	}
}
