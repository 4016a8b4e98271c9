package jobfile

import (
	"slices"
	"strings"
)

// Events and actions that Volcano takes in a policy (its admission webhook, read). Others are its own.
var (
	volcanoEvents = []string{
		anyEvent, "PodFailed", "PodEvicted", "PodPending", "Unknown", "TaskCompleted", "TaskFailed", "JobUpdated",
	}
	volcanoActions = []string{
		"AbortJob", "TerminateJob", "RestartJob", "RestartTask", "RestartPod", "RestartPartition", "CompleteJob", "ResumeJob",
	}
)

// volcanoRules are what the policies of a task, or of all, say. Of several that an event meets the first one counts.
type volcanoRules struct {
	failed, lost policyEnd
	complete     value // the job is complete when the task is
	every        bool  // an event '*' meets all others
	codes        []policyCode
	remarks      []policyRemark

	// Where no policy says what becomes of failed pods: their restartPolicy, which may leave them as they are; and how often
	// the kubelet starts containers of a task until TaskFailed ends the job, where that does.
	pods       value
	stay, last bool
	tries      int
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

// policyCode is what a policy says of an exit code, where no policy before it has an event that every failed pod meets.
type policyCode struct {
	at, action value
	code       int
	ends       bool
}

// policyRemark is what an action means at some of its events, whatever the other policies say.
type policyRemark struct {
	at     value
	events []string
	texts  []string
}

// volcanoPolicies reads what becomes of a job at an event.
func (v value) volcanoPolicies(rules *volcanoRules) {
	seen, codes := map[string]bool{}, map[int]bool{}
	var every value
	v.list(func(item value) {
		var action string
		var events []value
		var act, exit value
		var code int
		item.object(fields{
			"action":   func(a value) { action, _ = a.choice(volcanoActions...); act = a },
			"exitCode": func(c value) { code, _ = c.count(1); exit = c },
			"event":    func(e value) { events = append(events, e) },
			"events":   func(list value) { list.list(func(e value) { events = append(events, e) }) },
			"timeout":  cluster("muster waits for no event"),
		})
		var names []string
		for _, e := range events {
			name, ok := e.choice(volcanoEvents...)
			switch {
			case !ok || slices.Contains(names, name): // Volcano takes an event once that stands twice in a policy
				continue
			case seen[name]:
				e.fail("a policy before this one has the event %s", name)
			case name == anyEvent:
				every = e
			}
			names = append(names, name)
			seen[name] = true
		}
		switch {
		case item.r.wrong != nil:
		case act.node == nil:
			item.fail("the policy has no action")
		case exit.node != nil && len(events) > 0:
			item.fail("give an event or an exitCode, not both")
		case exit.node != nil && codes[code]:
			exit.fail("a policy before this one has the exitCode %d", code)
		case exit.node != nil:
			codes[code] = true
			rules.volcanoCode(policyCode{exit, act, code, endsJob(action)}, action)
		case len(names) == 0:
			item.fail("the policy has neither an event nor an exitCode")
		default:
			act.volcanoAction(action, names, rules)
		}
	})
	if every.node != nil && len(seen) > 1 {
		every.fail("%s stands for all events: no other event can stand beside it", anyEvent)
	}
}

func endsJob(action string) bool { return action == "AbortJob" || action == "TerminateJob" }

const (
	anyEvent   = "*"
	whyAny     = "'*' counts for pods that fail or are lost, and not for a task that is complete: a job whose workers succeed has succeeded"
	allAnew    = "muster starts all workers anew together"
	tasksFirst = "no effect: the policies of each task come first"
)

// volcanoAction says what an action means at its events.
func (v value) volcanoAction(action string, events []string, rules *volcanoRules) {
	var does []string
	for _, event := range events {
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
			rules.last = true
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
		if event == anyEvent {
			rules.every = true
			does = append(does, whyAny)
		}
	}
	rules.remarks = append(rules.remarks, policyRemark{v, events, does})
}

// volcanoCode takes in what an action means at an exit code.
func (r *volcanoRules) volcanoCode(c policyCode, action string) {
	switch {
	case r.failed.at.node != nil:
		c.at.note(Mapped, "no effect: the policy of an event before it counts for every exit code")
	case c.ends || strings.HasPrefix(action, "Restart"):
		r.codes = append(r.codes, c)
	default:
		c.action.refuse("leave the policy out", "muster cannot do %s at an exit code", action)
	}
}
