package jobfile

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Events and actions that Volcano takes in a policy (its admission webhook, read). Others are its own.
var (
	volcanoEvents = []string{
		"*", "PodFailed", "PodEvicted", "PodPending", "Unknown", "TaskCompleted", "TaskFailed", "JobUpdated",
	}
	volcanoActions = []string{
		"AbortJob", "TerminateJob", "RestartJob", "RestartTask", "RestartPod", "RestartPartition", "CompleteJob", "ResumeJob",
	}
)

// volcanoRules are what the policies of a task, or of all, say. Of several that an event meets the first one counts.
type volcanoRules struct {
	failed, lost policyEnd
	complete     value // the job is complete when the task is
	retried      []string
}

// policyEnd is whether the job ends at an event, once a policy has said it.
type policyEnd struct {
	at   value
	ends bool
}

func (e *policyEnd) say(at value, ends bool) {
	if e.at.node == nil {
		*e = policyEnd{at, ends}
	}
}

// volcanoPolicies reads what becomes of a job at an event.
func (v value) volcanoPolicies(rules *volcanoRules) {
	seen := map[string]bool{}
	v.list(func(item value) {
		var action string
		var events []value
		var act, code value
		item.object(fields{
			"action":   func(a value) { action, _ = a.choice(volcanoActions...); act = a },
			"exitCode": func(c value) { c.count(1); code = c },
			"event":    func(e value) { events = append(events, e) },
			"events":   func(list value) { list.list(func(e value) { events = append(events, e) }) },
			"timeout":  cluster("muster waits for no event"),
		})
		for _, e := range events {
			if text, ok := e.choice(volcanoEvents...); ok && seen[text] {
				e.fail("a policy before this one has the event %s", text)
			}
			seen[e.node.Value] = true
		}
		switch {
		case item.r.wrong != nil:
		case act.node == nil:
			item.fail("the policy has no action")
		case code.node != nil && len(events) > 0:
			item.fail("give an event or an exitCode, not both")
		case code.node != nil:
			code.volcanoCode(act, action, rules)
		case len(events) == 0:
			item.fail("the policy has neither an event nor an exitCode")
		default:
			act.volcanoAction(action, events, rules)
		}
	})
}

func endsJob(action string) bool { return action == "AbortJob" || action == "TerminateJob" }

const allAnew = "muster starts all workers anew together"

// volcanoAction says what an action means at its events.
func (v value) volcanoAction(action string, events []value, rules *volcanoRules) {
	var does []string
	for _, e := range events {
		event := e.node.Value
		ends, anew := endsJob(action), strings.HasPrefix(action, "Restart")
		switch {
		case event == "PodPending" || event == "Unknown":
			does = append(does, "all nodes start together, and pods that find no machine are the cluster's")
			continue
		case event == "JobUpdated":
			does = append(does, "a job that runs heeds no change of its file")
			continue
		case event == "TaskCompleted" && action == "CompleteJob":
			rules.complete = v
			continue
		case event == "TaskFailed" && ends:
			does = append(does, "a job ends when one of its nodes has failed for good")
			continue
		case event == "TaskCompleted" || event == "TaskFailed" || !ends && !anew:
			v.refuse("leave the policy out", "muster cannot do %s at %s", action, event)
			return
		}
		if event != "PodEvicted" {
			rules.failed.say(v, ends)
		}
		if event != "PodFailed" {
			rules.lost.say(v, ends)
		}
		switch {
		case anew && event == "PodFailed":
			does = append(does, allAnew)
		case anew:
			does = append(does, allAnew+", and goes on when a lost node is replaced")
		}
	}
	if does = slices.Compact(does); len(does) > 0 {
		v.note(Mapped, strings.Join(does, "; "))
	}
}

// volcanoCode says what an action means at an exit code.
func (v value) volcanoCode(act value, action string, rules *volcanoRules) {
	code := v.node.Value
	switch {
	case rules.failed.at.node != nil:
		v.note(Mapped, "no effect: the policy of an event before it counts for every exit code")
	case endsJob(action):
		v.setting("fatal-exit-codes", code)
		v.note(Applied, "--fatal-exit-codes "+code)
	case strings.HasPrefix(action, "Restart"):
		rules.retried = append(rules.retried, code)
		act.note(Mapped, allAnew)
	default:
		act.refuse("leave the policy out", "muster cannot do %s at an exit code", action)
	}
}

// or returns what a task's rules say, and else those of all tasks.
func (r volcanoRules) or(all volcanoRules) volcanoRules {
	if r.failed.at.node == nil {
		r.failed = all.failed
	}
	if r.lost.at.node == nil {
		r.lost = all.lost
	}
	r.retried = slices.Concat(r.retried, all.retried)
	return r
}

// same reports whether two tasks' jobs end at the same events.
func (r volcanoRules) same(o volcanoRules) bool {
	return r.failed.ends == o.failed.ends && r.lost.ends == o.lost.ends && (!r.failed.ends || slices.Equal(r.retried, o.retried))
}

// volcanoSettle gives the settings that follow from the policies of the job and of its tasks. tried is maxRetry, or the
// job where that is not given.
func (v value) volcanoSettle(all volcanoRules, tasks []volcanoTask, tried value, retries int) {
	first := tasks[0].rules.or(all)
	for i, t := range tasks {
		if other := t.rules.or(all); !first.same(other) {
			at := v
			for _, e := range []policyEnd{first.failed, first.lost, other.failed, other.lost} {
				if e.ends {
					at = e.at
				}
			}
			at.refuse("give the policies to the job", "the tasks have different policies of failed or lost pods, and muster has one for "+
				"all nodes of a job")
			return
		}
		v.volcanoComplete(t.rules.complete, tasks, i)
	}
	v.volcanoComplete(all.complete, tasks, -1)
	v.volcanoRestarts(first, tried, retries)
}

// volcanoRestarts gives the settings of what becomes of pods that fail or are lost, where all tasks have the same rules.
func (v value) volcanoRestarts(rules volcanoRules, tried value, retries int) {
	failed, lost, codes := rules.failed, rules.lost, strings.Join(rules.retried, ",")
	never, given := failed.ends && codes == "", tried.node != v.node
	var also string // what the policy of failed pods means beside
	if lost.ends {
		lost.at.setting("restart-limit", "0")
		if lost.at == failed.at {
			also = "; --restart-limit 0: a node that is lost ends it too"
		} else {
			lost.at.note(Applied, "--restart-limit 0: a node that is lost ends the job")
		}
	}
	said := fmt.Sprintf("--backoff-limit %d: restarts of all nodes together", retries)
	switch {
	case never && lost.ends:
		said = "no effect: policies end the job when a pod fails or is lost"
	case never:
		said = fmt.Sprintf("--restart-limit %d: how often a lost node is replaced", retries)
		if !given {
			also = "; " + said
		}
		said += "; no pod that fails is started anew"
	}
	switch {
	case never:
		failed.at.note(Applied, "--max-restarts 0: a pod that fails ends the job"+also)
	case failed.ends:
		failed.at.setting("restart-policy", "exit-code")
		failed.at.setting("retryable-exit-codes", codes)
		failed.at.note(Applied, "--restart-policy exit-code --retryable-exit-codes "+codes+also)
	}
	if given {
		tried.note(Applied, said)
	}
	if never {
		failed.at.setting("max-restarts", "0")
		if !lost.ends { // else a lost node would use up a restart, of which there is none
			tried.setting("restart-limit", strconv.Itoa(retries))
		}
		return
	}
	tried.setting("max-restarts", strconv.Itoa(retries))
	if retries > 0 {
		tried.setting("backoff-limit", strconv.Itoa(retries))
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
