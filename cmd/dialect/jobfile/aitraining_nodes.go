package jobfile

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"muster/launch/job"
)

// launched makes the launcher the only node that runs a command, and the other groups its hosts.
func (j *aitrainingJob) launched() {
	r, f := j.r, j.r.file
	var launcher *aitjGroup
	var trainers []*aitjGroup
	for _, g := range j.groups {
		if g.launches {
			launcher = g
			continue
		}
		trainers = append(trainers, g)
		r.pods(g.group, g.at, func(i int) string { return fmt.Sprintf("%s-%s-%d", f.Name, g.role, i) })
	}
	switch {
	case launcher.n > 1:
		launcher.replicas.fail("there is one launcher")
		return
	case len(f.Pods) == 0 && len(trainers) == 0:
		launcher.at.fail("the launcher has no hosts: an AITrainingJob with one has trainers, too")
		return
	}
	j.settle(launcher, alone, "max-restarts")
	if launcher.timeout.node != nil {
		launcher.timeout.note(Mapped, "the launcher is started anew at once")
	}
	launcher.scope.note(Mapped, "the launcher starts all workers anew")
	launcher.between()
	for _, b := range []value{launcher.leastAt, launcher.mostAt} {
		if b.node != nil {
			b.note(Mapped, "there is one launcher")
		}
	}
	launcher.complete.note(Applied, "there is one launcher")
	launcher.fail.note(Applied, "there is one launcher")
	for _, e := range []ending{j.complete, j.fail} {
		e.note(Mapped, "the job ends with its launcher, as that has")
	}
	rules := j.trainerRules(trainers)
	first := r.pod(launcher.template, launcher.role, f.Name+"-"+launcher.role+"-0", 0, launcher.at.source())
	f.Launcher = &first
	for _, g := range trainers {
		f.unread(g.template)
	}
	f.beside = func(f *File, _ int, at Places) []job.Var {
		vars := f.aitjVariables(j.groups, launcher, 0, at)
		for _, v := range rules {
			if !slices.ContainsFunc(launcher.template.env, func(x variable) bool { return x.Name == v.Name }) {
				vars = append(vars, v)
			}
		}
		return vars
	}
	if j.discovered {
		f.files = f.edlFiles
		f.reached = j.reach(trainers)
	}
}

// reach is how many hosts the launcher may have, and which of those that are lost are replaced. Where there are several
// groups of them their number is fixed.
func (j *aitrainingJob) reach(trainers []*aitjGroup) *job.ReachedHosts {
	n := len(j.r.file.Pods)
	reached := &job.ReachedHosts{Min: n, Max: n, Limit: -1}
	g := trainers[0]
	reached.Prefix, reached.Slots = fmt.Sprintf("%s-%s-", j.r.file.Name, g.role), max(1, g.template.accelerators)
	policy, _ := j.restarts(g)
	reached.Replace = g.policy.node != nil && g.policy.node.Value == "Always" || strings.HasPrefix(policy, "on-node-fail")
	if g.limit.node != nil {
		reached.Limit = g.limited
	}
	if len(trainers) == 1 && j.elastic {
		if g.leastAt.node != nil {
			reached.Min = g.least
		}
		if g.mostAt.node != nil {
			reached.Max = g.most
		}
	}
	return reached
}

// edlFiles are what the plug-in discovery gives a launcher: the script reads the hostfile, which changes with the hosts.
func (f *File) edlFiles(at Places) map[string]string {
	const script = "#!/bin/sh\nwhile read -r host slots; do echo \"$host:${slots#slots=}\"; done <\"${0%/*}\"/hostfile\n"
	return map[string]string{aitjHostfile: job.ReachedText(f.reachedHosts(at)), aitjScript: script}
}

// alone are the policies of a node with no others that could be lost.
var alone = map[string]string{"on-node-fail": "never", "on-node-fail-or-exit-code": "exit-code"}

// settle makes settings of a group's rules about restarts. instead are policies that others stand for, limits the flags
// that the group's limit stands for.
func (j *aitrainingJob) settle(g *aitjGroup, instead map[string]string, limits ...string) {
	policy, codes := j.restarts(g)
	if other := instead[policy]; other != "" {
		policy = other
	}
	from := g.policy
	for _, other := range []value{g.codesAt, g.eventsAt, g.at} {
		if from.node == nil {
			from = other
		}
	}
	from.setting("restart-policy", policy)
	if codes != "" {
		from.setting("retryable-exit-codes", codes)
	}
	j.noteRestarts(g, policy, codes, func(flag, text string) string { return "--" + flag + " " + text })
	switch {
	case policy == "never" && g.limit.node != nil:
		g.limit.note(Mapped, "nothing is restarted: the restart policy is Never")
	case policy == "never":
	case g.limit.node == nil:
		from.setting("max-restarts", unlimited)
	default:
		for _, flag := range limits {
			if flag != "backoff-limit" || g.limited > 0 {
				g.limit.setting(flag, strconv.Itoa(g.limited))
			}
		}
		g.limit.note(Applied, fmt.Sprintf("--%s %d", limits[len(limits)-1], g.limited))
		if g.window.node != nil && g.limited > 0 {
			g.window.setting("restart-window", strconv.Itoa(g.windowed)+"s")
		}
	}
}

// trainerRules are the variables by which the launcher's horovodrun keeps the rules of its hosts' groups.
func (j *aitrainingJob) trainerRules(groups []*aitjGroup) (vars []job.Var) {
	tell := func(name, text string, at value) string {
		vars = append(vars, job.Var{Name: name, Value: text, Source: at.source()})
		return name + "=" + text + ", for the launcher's horovodrun"
	}
	for i, g := range groups {
		g.complete.note(Mapped, "the launcher says when the training is done")
		for _, b := range []value{g.leastAt, g.mostAt} {
			if b.node != nil {
				b.note(Mapped, "horovodrun's --min-np and --max-np bound the workers, and muster scale keeps to these bounds")
			}
		}
		if i > 0 {
			g.leftRules("the rules of " + groups[0].role + " count for all hosts")
			continue
		}
		if g.timeout.node != nil {
			g.timeout.note(Applied, tell("HOROVOD_ELASTIC_TIMEOUT", strconv.Itoa(g.timeoutIs), g.timeout))
		}
		if g.fail.word == "None" {
			g.fail.note(Applied, "Horovod's rules: it goes on without hosts that fail, as long as there are --min-np workers")
			g.leftRules("for hosts that are lost: another one takes their place, as often as restartLimit says")
			continue
		}
		policy, codes := j.restarts(g)
		from := g.policy
		if from.node == nil {
			from = g.at
		}
		tell("MUSTER_RESTART_POLICY", policy, from)
		if codes != "" {
			tell("MUSTER_RETRYABLE_EXIT_CODES", codes, from)
		}
		if g.fail.word != "Any" {
			tell("MUSTER_FAIL_POLICY", strings.ToLower(g.fail.word), g.fail.at)
		}
		g.fail.note(Applied, "--fail-policy "+strings.ToLower(g.fail.word)+" of the launcher's horovodrun")
		said := func(flag, text string) string { return "--" + flag + " " + text + " of the launcher's horovodrun" }
		j.noteRestarts(g, policy, codes, said)
		limited := policy != "never" && g.limit.node != nil
		switch {
		case limited:
			tell("MUSTER_BACKOFF_LIMIT", strconv.Itoa(g.limited), g.limit)
			g.limit.note(Applied, said("backoff-limit", strconv.Itoa(g.limited)))
			if g.window.node != nil {
				tell("MUSTER_RESTART_WINDOW", strconv.Itoa(g.windowed)+"s", g.window)
			}
		case g.limit.node != nil:
			g.limit.note(Mapped, "nothing is restarted: the restart policy is Never")
		}
		if scope := g.scope; scope.word == "Pod" || !limited {
			scope.note(Mapped, "--restart-scope node, as Horovod has it: a host that fails is left out, and the others go on")
		} else {
			tell("MUSTER_RESTART_SCOPE", "world", g.limit)
			scope.note(Applied, said("restart-scope", "world"))
		}
	}
	return vars
}

// leftRules notes for one reason what a group says of restarts.
func (g *aitjGroup) leftRules(why string) {
	for _, at := range []value{g.policy, g.codesAt, g.eventsAt, g.scope.at, g.limit, g.window} {
		if at.node != nil {
			at.note(Mapped, why)
		}
	}
}

// plain makes a node of each pod.
func (j *aitrainingJob) plain() {
	r, f := j.r, j.r.file
	var first *aitjGroup
	for _, g := range j.groups {
		r.pods(g.group, g.at, func(i int) string { return fmt.Sprintf("%s-%s-%d", f.Name, g.role, i) })
		if first == nil {
			first = g
			continue
		}
		policy, codes := j.restarts(first)
		if p, c := j.restarts(g); p != policy || c != codes {
			at := g.policy
			if at.node == nil {
				at = g.at
			}
			at.refuse("give all groups the same restartPolicy and exit codes",
				"muster has one restart policy for all nodes of a job, and %s has another one", first.at.path)
			return
		}
		if g.limit.node != nil && (first.limit.node == nil || g.limited < first.limited) {
			first.limit, g.limit, first.limited = g.limit, first.limit, g.limited
		}
		g.leftRules("all nodes start anew together, by the smallest limit of the groups")
	}
	if first == nil || r.wrong != nil {
		return
	}
	among := map[string]string{}
	if len(f.Pods) == 1 {
		among = alone
	}
	j.settle(first, among, "max-restarts", "backoff-limit")
	switch first.scope.word {
	case "Pod":
		if policy, _ := j.restarts(first); policy != "never" {
			first.at.setting("restart-scope", "node")
		}
		first.scope.note(Applied, "--restart-scope node: the pod's worker alone starts anew")
	default:
		first.scope.note(Applied, "--restart-scope world: all workers start anew together")
	}
	for _, g := range j.groups {
		if g.timeout.node != nil {
			g.timeout.note(Mapped, "--join-timeout: how long nodes wait for each other")
			if g == first && len(f.Pods) > 1 {
				g.timeout.setting("join-timeout", strconv.Itoa(g.timeoutIs)+"s")
			}
		}
		for _, b := range []value{g.leastAt, g.mostAt} {
			if b.node != nil {
				b.note(Cluster, "pods know how many they are, and muster keeps that number")
			}
		}
	}
	j.quorums()
	f.beside = func(f *File, i int, at Places) []job.Var {
		of := 0
		for _, g := range j.groups {
			if i < of+g.n {
				return append(f.aitjVariables(j.groups, g, i-of, at), f.podLevel(i, at, len(f.Pods))...)
			}
			of += g.n
		}
		return nil
	}
}

// quorums make settings of who decides how a job without a launcher ends.
func (j *aitrainingJob) quorums() {
	success, ok := j.quorum(j.complete, func(g *aitjGroup) ending { return g.complete }, "")
	if !ok {
		return
	}
	restarts := ""
	if policy, _ := j.restarts(j.groups[0]); policy != "never" && policy != "on-node-fail" {
		// The operator starts a pod anew before it asks how the job stands, and muster the other way round.
		restarts = "any failure starts the nodes anew, and ends the job where restartPolicy or restartLimit allow no restart"
	}
	fail, ok := j.quorum(j.fail, func(g *aitjGroup) ending { return g.fail }, restarts)
	if !ok {
		return
	}
	j.value.quorum(success, fail)
}

// quorum is muster's word for a policy of the job over its groups: the groups with None do not count. Where anyWhy is not
// empty it is any, for that reason.
func (j *aitrainingJob) quorum(of ending, policy func(*aitjGroup) ending, anyWhy string) (string, bool) {
	var counted []*aitjGroup
	for _, g := range j.groups {
		if policy(g).word != "None" {
			counted = append(counted, g)
		}
	}
	first := j.groups[0]
	led := of.word == "Rank0" || len(counted) == 1 && counted[0] == first // the first group decides
	other := func(g *aitjGroup) bool { return policy(g).word != of.word }
	var word string
	switch own := policy(first).word; {
	case of.word == "None" || len(counted) == 0:
		word = "none"
	case led && own != "None" && (own == "Rank0" || first.n == 1 && len(j.r.file.Pods) > 1):
		word = "rank0"
	case len(j.groups) == 1 || !slices.ContainsFunc(j.groups, other):
		word = strings.ToLower(own)
	default:
		at := of.at
		if at.node == nil {
			at = j.value
		}
		at.refuse("give the groups that do not count None, or all the same; or start the job's commands by muster run with "+
			"--success-policy and --fail-policy",
			"muster knows policies of all nodes, of any, and of the first, and not %s of groups with %s", of.word, j.words(policy))
		return "", false
	}
	state, as := Applied, "of all nodes: "+word
	if anyWhy != "" && word != "any" {
		state, word, as = Mapped, "any", anyWhy
	}
	of.note(state, as)
	for _, g := range j.groups {
		policy(g).note(state, as)
	}
	return word, true
}

// words are the policies of all groups.
func (j *aitrainingJob) words(policy func(*aitjGroup) ending) string {
	var list []string
	for _, g := range j.groups {
		list = append(list, g.role+" "+policy(g).word)
	}
	return strings.Join(list, ", ")
}

// aitjVariables are what the operator tells the i-th pod of a group.
func (f *File) aitjVariables(groups []*aitjGroup, of *aitjGroup, i int, at Places) []job.Var {
	var vars []job.Var
	first, self, port := 0, at.host(0), ""
	for _, g := range groups {
		var hosts, ends []string
		number := ""
		if g.template.port != 0 {
			number = strconv.Itoa(at.Port)
		}
		for k := range g.n {
			host := at.host(first + k)
			if g.launches {
				host = at.host(0) // it has none of its own
			}
			hosts = append(hosts, host)
			if number != "" {
				ends = append(ends, host+":"+number)
			}
			if g == of && k == i {
				self, port = host, number
			}
		}
		if !g.launches {
			first += g.n
		}
		name := strings.ToUpper(strings.ReplaceAll(g.role, "-", "_"))
		ports := 0
		if number != "" {
			ports = 1
		}
		vars = append(vars, own(name+"_INSTANCES", strings.Join(hosts, ",")), own(name+"_INSTANCES_NUM", strconv.Itoa(g.n)),
			own(name+"_PORTS", number), own(name+"_PORTS_NUM", strconv.Itoa(ports)), own(name+"_HOSTS", strings.Join(ends, ",")),
			own(name+"_HOSTS_NUM", strconv.Itoa(len(ends))))
	}
	return append(vars, own("TRAININGJOB_NAME", f.Name), own("TRAININGJOB_NAMESPACE", f.Namespace),
		own("TRAININGJOB_REPLICA_NAME", of.role),
		own("TRAININGJOB_REPLICA_INDEX", strconv.Itoa(i)), own("TRAININGJOB_SERVICE", self), own("TRAININGJOB_PORTS", port))
}
