package jobfile

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"muster/launch/job"
)

// volcanoEnds is what ends a job, or starts it anew, by its policies.
type volcanoEnds struct {
	never, lost bool   // no failed pod is started anew; a lost one ends the job
	retried     string // where given, no other codes are retried
	fatal       string // codes that end a job whose other failures start it anew
	// alone is true where the kubelet starts failed containers anew, and no policy is asked: so often.
	alone bool
	most  int
}

// or returns what counts in a task: what its own rules say, and where none of them says something, those of all tasks.
func (r volcanoRules) or(all volcanoRules) volcanoRules {
	codes := slices.Clone(r.codes)
	if r.failed.at.node == nil { // else each failed pod meets the task's event, and the job's policies are not asked
		r.failed = all.failed
		for _, c := range all.codes {
			if !slices.ContainsFunc(r.codes, func(own policyCode) bool { return own.code == c.code }) {
				codes = append(codes, c)
			}
		}
	}
	if r.lost.at.node == nil {
		r.lost = all.lost
	}
	slices.SortStableFunc(codes, func(a, b policyCode) int { return a.code - b.code })
	r.codes, r.last = codes, r.last || all.last
	return r
}

// ends returns what the rules come to.
func (r volcanoRules) ends() volcanoEnds {
	var retried, fatal []string
	for _, c := range r.codes {
		if text := strconv.Itoa(c.code); c.ends {
			fatal = append(fatal, text)
		} else {
			retried = append(retried, text)
		}
	}
	e := volcanoEnds{lost: r.lost.ends}
	switch anew := r.failed.at.node != nil && !r.failed.ends; {
	case len(retried) > 0 && !anew:
		e.retried = strings.Join(retried, ",")
	case r.failed.ends, r.failed.at.node == nil && r.stay:
		e.never = true
	default:
		e.fatal, e.alone = strings.Join(fatal, ","), !anew
		switch {
		case e.alone && r.last && r.tries != volcanoEver:
			e.most = r.tries - 1
		case e.alone:
			e.most = job.Unlimited
		}
	}
	return e
}

// volcanoNotes collects what is said of each line, so that it is one note.
type volcanoNotes []volcanoNote

type volcanoNote struct {
	at    value
	state State
	texts []string
}

func (n *volcanoNotes) say(at value, state State, texts ...string) {
	i := slices.IndexFunc(*n, func(o volcanoNote) bool { return o.at == at })
	if i < 0 {
		*n = append(*n, volcanoNote{at: at, state: state})
		i = len(*n) - 1
	}
	note := &(*n)[i]
	if state == Applied {
		note.state = Applied
	}
	for _, text := range texts {
		if !slices.Contains(note.texts, text) {
			note.texts = append(note.texts, text)
		}
	}
}

func (n *volcanoNotes) write() {
	for _, note := range *n {
		if len(note.texts) > 0 {
			note.at.note(note.state, strings.Join(note.texts, "; "))
		}
	}
}

// volcanoSettle gives the settings that follow from the policies of the job and of its tasks. tried is maxRetry, or the
// job where that is not given, and tries its value: Volcano counts the first start, too.
func (v value) volcanoSettle(all volcanoRules, tasks []volcanoTask, tried value, tries int) {
	rules := make([]volcanoRules, len(tasks)) // as they count in each task
	var asked []int                           // the tasks whose completion is the job's policies' matter
	for i, t := range tasks {
		rules[i] = t.rules.or(all)
		if rules[i].ends() != rules[0].ends() {
			v.volcanoPlace(rules[i], rules[0]).refuse("give the policies to the job, and all tasks the same restartPolicy and maxRetry",
				"the tasks have different policies of failed or lost pods, and muster has one for all nodes of a job")
			return
		}
		v.volcanoComplete(t.rules.complete, tasks, i)
		if t.rules.complete.node == nil && !t.rules.every {
			asked = append(asked, i)
		}
	}
	var notes volcanoNotes
	switch {
	case all.complete.node == nil:
	case len(asked) == 0:
		notes.say(all.complete, Mapped, tasksFirst)
	case len(asked) == 1:
		v.volcanoComplete(all.complete, tasks, asked[0])
	default:
		v.volcanoComplete(all.complete, tasks, -1)
	}
	for _, r := range all.remarks {
		if r.late(tasks) {
			notes.say(r.at, Mapped, tasksFirst)
		} else {
			notes.say(r.at, Mapped, r.texts...)
		}
	}
	for _, c := range all.codes {
		if !slices.ContainsFunc(rules, func(r volcanoRules) bool { return slices.Contains(r.codes, c) }) {
			at := c.action
			if c.ends {
				at = c.at
			}
			notes.say(at, Mapped, tasksFirst)
		}
	}
	lost := rules[0].lost
	for i, t := range tasks {
		for _, r := range t.rules.remarks {
			notes.say(r.at, Mapped, r.texts...)
		}
		if lost.at.node == nil {
			lost = rules[i].lost
		}
	}
	for i, t := range tasks {
		rules[i].lost = lost
		notes.failures(rules[i])
		if ends := rules[i].ends(); t.tried.node != nil && ends.alone && rules[i].last {
			notes.say(t.tried, Applied, ends.restarts())
		} else if t.tried.node != nil {
			t.tried.note(Cluster, "muster counts restarts of all nodes together")
		}
	}
	v.volcanoRestarts(&notes, rules[0], tried, tries-1)
	notes.write()
}

// volcanoPlace is where the policies of two tasks differ.
func (v value) volcanoPlace(rules ...volcanoRules) value {
	var places []value
	for _, r := range rules {
		for _, e := range []policyEnd{r.failed, r.lost} {
			if e.ends {
				return e.at
			}
		}
		for _, c := range r.codes {
			places = append(places, c.at)
		}
	}
	for _, r := range rules {
		if r.pods.node != nil {
			places = append(places, r.pods)
		}
	}
	return append(places, v)[0] // tasks may differ in their maxRetry alone
}

// late reports whether no task asks the job's policy, since each has one of its own for the events.
func (r policyRemark) late(tasks []volcanoTask) bool {
	for _, event := range r.events {
		for _, t := range tasks {
			failed, lost := t.rules.failed.at.node != nil, t.rules.lost.at.node != nil
			switch {
			case event == "PodFailed" && failed, event == "PodEvicted" && lost, event == anyEvent && failed && lost:
			default:
				return false
			}
		}
	}
	return true
}

// restarts says what becomes of failed containers where no policy is asked.
func (e volcanoEnds) restarts() string {
	if e.most < job.Unlimited {
		return fmt.Sprintf("--backoff-limit %d: restarts of all nodes together, until TaskFailed ends the job", e.most)
	}
	return allAnew + ", without a limit: no policy says what becomes of failed pods"
}

// failures says what becomes of pods that fail or are lost.
func (n *volcanoNotes) failures(rules volcanoRules) {
	ends := rules.ends()
	only := "--restart-policy exit-code --retryable-exit-codes " + ends.retried + ": no other code is retried"
	switch failed := rules.failed; {
	case failed.at.node == nil:
	case ends.never:
		n.say(failed.at, Applied, "--max-restarts 0: a pod that fails ends the job")
	case failed.ends:
		n.say(failed.at, Applied, only)
	case rules.lost.at != failed.at:
		n.say(failed.at, Mapped, allAnew)
	}
	switch pods := rules.pods; {
	case pods.node == nil:
	case rules.failed.at.node != nil || ends.retried != "":
		n.say(pods, Mapped, "the policies say what becomes of failed pods; any restart starts all workers anew")
	case ends.never:
		n.say(pods, Applied, "--max-restarts 0: a pod that fails ends the job, as no policy starts it anew")
	default:
		n.say(pods, Applied, ends.restarts())
	}
	switch lost := rules.lost; {
	case lost.at.node == nil:
	case lost.ends:
		n.say(lost.at, Applied, "--restart-limit 0: a node that is lost ends the job")
	default:
		n.say(lost.at, Mapped, allAnew+", and goes on when a lost node is replaced")
	}
	for _, c := range rules.codes {
		switch {
		case c.ends && ends.fatal != "":
			n.say(c.at, Applied, "--fatal-exit-codes "+ends.fatal)
		case c.ends:
			n.say(c.at, Mapped, "a pod that fails with this code is not started anew")
		case ends.retried != "":
			n.say(c.action, Applied, only)
		default:
			n.say(c.action, Mapped, allAnew)
		}
	}
}

// volcanoRestarts gives the settings of what becomes of pods that fail or are lost. The policies start the job anew so
// often in all.
func (v value) volcanoRestarts(notes *volcanoNotes, rules volcanoRules, tried value, retries int) {
	ends, given, pods := rules.ends(), tried.node != v.node, v
	switch {
	case rules.failed.at.node != nil:
		pods = rules.failed.at
	case rules.pods.node != nil:
		pods = rules.pods
	}
	if ends.fatal != "" {
		rules.codes[slices.IndexFunc(rules.codes, func(c policyCode) bool { return c.ends })].at.setting("fatal-exit-codes", ends.fatal)
	}
	if ends.retried != "" {
		at := rules.codes[slices.IndexFunc(rules.codes, func(c policyCode) bool { return !c.ends })].at
		at.setting("restart-policy", "exit-code")
		at.setting("retryable-exit-codes", ends.retried)
	}
	limit := func(at value, n int) {
		at.setting("max-restarts", strconv.Itoa(n))
		if n > 0 && n < job.Unlimited {
			at.setting("backoff-limit", strconv.Itoa(n))
		}
	}
	said := "no effect: no policy starts the job anew"
	switch {
	case ends.never:
		limit(pods, 0)
	case ends.alone:
		limit(pods, ends.most)
	default:
		limit(tried, retries)
		if said = "--max-restarts 0: the first failure ends the job"; retries > 0 {
			said = fmt.Sprintf("--backoff-limit %d: restarts of all nodes together", retries)
		}
	}
	// A lost node would use up one of those restarts, of which there may be none, unless it has a limit of its own.
	replaced := fmt.Sprintf("--restart-limit %d: how often a lost node is replaced", retries)
	switch byFailures := !ends.never && !ends.alone; {
	case ends.lost:
		rules.lost.at.setting("restart-limit", "0")
	case rules.lost.at.node == nil && (ends.never || byFailures && retries == 0): // Volcano makes that pod anew and counts nothing
		pods.setting("restart-limit", unlimited)
	case rules.lost.at.node == nil, byFailures:
	case given:
		said = replaced + "; pods that fail do not count"
		tried.setting("restart-limit", strconv.Itoa(retries))
	default:
		notes.say(rules.lost.at, Applied, replaced)
		rules.lost.at.setting("restart-limit", strconv.Itoa(retries))
	}
	if given {
		tried.note(Applied, said)
	}
}

// volcanoComplete is for a job that is complete when the task with an index is, or any of them.
func (v value) volcanoComplete(complete value, tasks []volcanoTask, index int) {
	switch {
	case complete.node == nil:
	case len(tasks) == 1:
		complete.note(Mapped, "a job ends when all its nodes have")
	case index == 0 && tasks[0].n == 1:
		complete.setting("success-policy", "rank0")
		complete.note(Applied, "--success-policy rank0")
	default:
		complete.refuse("leave the policy out, or give --success-policy", "muster knows success of all nodes, of any, and of the first")
	}
}
