package jobfile

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// volcanoEnds is what ends a job, or starts it anew, by its policies.
type volcanoEnds struct {
	never, lost bool   // no failed pod is started anew; a lost one ends the job
	retried     string // where given, no other codes are retried
	fatal       string // codes that end a job whose other failures start it anew
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
	r.codes = codes
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
	case r.failed.ends:
		e.never = true
	default:
		e.fatal = strings.Join(fatal, ",")
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
// job where that is not given.
func (v value) volcanoSettle(all volcanoRules, tasks []volcanoTask, tried value, retries int) {
	rules := make([]volcanoRules, len(tasks)) // as they count in each task
	for i, t := range tasks {
		rules[i] = t.rules.or(all)
		if rules[i].ends() != rules[0].ends() {
			v.volcanoPlace(rules[i], rules[0]).refuse("give the policies to the job",
				"the tasks have different policies of failed or lost pods, and muster has one for all nodes of a job")
			return
		}
		v.volcanoComplete(t.rules.complete, tasks, i)
	}
	v.volcanoComplete(all.complete, tasks, -1)
	var notes volcanoNotes
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
	for _, t := range tasks {
		for _, r := range t.rules.remarks {
			notes.say(r.at, Mapped, r.texts...)
		}
	}
	for _, r := range rules {
		notes.failures(r, tried.node != v.node, retries)
	}
	notes.write()
	v.volcanoRestarts(rules[0], tried, retries)
}

// volcanoPlace is where the policies of two tasks differ.
func (v value) volcanoPlace(rules ...volcanoRules) value {
	var codes []value
	for _, r := range rules {
		for _, e := range []policyEnd{r.failed, r.lost} {
			if e.ends {
				return e.at
			}
		}
		for _, c := range r.codes {
			codes = append(codes, c.at)
		}
	}
	return codes[0] // tasks without an end and without a code do not differ
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

// failures says what becomes of pods that fail or are lost.
func (n *volcanoNotes) failures(rules volcanoRules, given bool, retries int) {
	ends := rules.ends()
	only := "--restart-policy exit-code --retryable-exit-codes " + ends.retried + ": no other code is retried"
	switch failed := rules.failed; {
	case failed.at.node == nil:
	case ends.never:
		n.say(failed.at, Applied, "--max-restarts 0: a pod that fails ends the job")
		if !ends.lost && !given {
			n.say(failed.at, Applied, fmt.Sprintf("--restart-limit %d: how often a lost node is replaced", retries))
		}
	case failed.ends:
		n.say(failed.at, Applied, only)
	case rules.lost.at != failed.at:
		n.say(failed.at, Mapped, allAnew)
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

// volcanoRestarts gives the settings of what becomes of pods that fail or are lost.
func (v value) volcanoRestarts(rules volcanoRules, tried value, retries int) {
	ends, given := rules.ends(), tried.node != v.node
	if ends.fatal != "" {
		rules.codes[slices.IndexFunc(rules.codes, func(c policyCode) bool { return c.ends })].at.setting("fatal-exit-codes", ends.fatal)
	}
	if ends.retried != "" {
		at := rules.codes[slices.IndexFunc(rules.codes, func(c policyCode) bool { return !c.ends })].at
		at.setting("restart-policy", "exit-code")
		at.setting("retryable-exit-codes", ends.retried)
	}
	if ends.lost {
		rules.lost.at.setting("restart-limit", "0")
	}
	said := fmt.Sprintf("--backoff-limit %d: restarts of all nodes together", retries)
	switch {
	case ends.never && ends.lost:
		said = "no effect: policies end the job when a pod fails or is lost"
		rules.failed.at.setting("max-restarts", "0")
	case ends.never: // a lost node would use up a restart, of which there is none, unless it has a limit of its own
		said = fmt.Sprintf("--restart-limit %d: how often a lost node is replaced; no pod that fails is started anew", retries)
		rules.failed.at.setting("max-restarts", "0")
		tried.setting("restart-limit", strconv.Itoa(retries))
	default:
		tried.setting("max-restarts", strconv.Itoa(retries))
		if retries > 0 {
			tried.setting("backoff-limit", strconv.Itoa(retries))
		}
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
