package jobfile

import (
	"fmt"
	"strconv"

	"muster/launch/job"
)

// unlimited is what muster takes for no limit of restarts.
var unlimited = strconv.Itoa(job.Unlimited)

// deadline reads seconds that a job may take.
func deadline(v value) {
	if n, ok := v.count(1); ok {
		v.setting("active-deadline", strconv.Itoa(n)+"s")
		v.note(Applied, "--active-deadline: then the job is stopped with status 124")
	}
}

// rules are what a file says of restarts, together.
type rules struct {
	policy  value // the restart policy of all replicas
	backoff value // restarts of all together; no node where there is none
	limit   int
}

// same takes the restart policy of one more group of replicas, which must be that of the others.
func (s *rules) same(p value) {
	if p.node == nil {
		return
	}
	if s.policy.node != nil && s.policy.node.Value != p.node.Value {
		p.refuse("give all replicas the same, as in --set "+p.path+"="+s.policy.node.Value,
			"muster has one restart policy for all nodes of a job, and %s says %s", s.policy.path, s.policy.node.Value)
		return
	}
	if s.policy.node == nil {
		s.policy = p
		return
	}
	p.note(Applied, "as "+s.policy.path)
}

// backoffLimit reads how many restarts all replicas have together.
func (s *rules) backoffLimit(v value) {
	if n, ok := v.count(0); ok {
		s.backoff, s.limit = v, n
	}
}

// settle makes settings of the rules. def is the policy where the file has none; retried the codes of ExitCode.
func (s *rules) settle(def, retried string, extra ...string) {
	policy, at := def, s.policy
	if at.node != nil {
		var ok bool
		if policy, ok = at.choice(append([]string{"Never", "OnFailure", "Always"}, extra...)...); !ok {
			return
		}
	}
	words := map[string]string{"Never": "never", "OnFailure": "on-failure", "Always": "always", "ExitCode": "exit-code"}
	if at.node != nil {
		at.setting("restart-policy", words[policy])
		if policy == "ExitCode" {
			at.setting("retryable-exit-codes", retried)
		}
		note := "--restart-policy " + words[policy]
		switch {
		case policy == "Never":
		case at.r.file.shape.elastic:
			note += ", and the workers of a failed node start anew: --restart-scope node, as the job is elastic"
		default:
			note += ", and all workers start anew together: a world of fixed size trains no other way"
		}
		at.note(Applied, note)
	}
	switch {
	case s.backoff.node == nil && policy != "Never" && at.node != nil:
		at.setting("max-restarts", unlimited)
	case s.backoff.node == nil:
	case policy == "Never":
		s.backoff.note(Mapped, "nothing is restarted: the restart policy is Never")
	case s.limit == 0:
		s.backoff.setting("max-restarts", "0")
		s.backoff.note(Applied, "--max-restarts 0: the first failure ends the job")
	default:
		s.backoff.setting("max-restarts", strconv.Itoa(s.limit))
		s.backoff.setting("backoff-limit", strconv.Itoa(s.limit))
		s.backoff.note(Applied, fmt.Sprintf("--backoff-limit %d: restarts of all nodes together", s.limit))
	}
}

// clean reads what is ended with a job. words are those of the file for all, unfinished and none.
func clean(all, unfinished, none string) func(value) {
	return func(v value) {
		text, ok := v.choice(all, unfinished, none)
		if !ok {
			return
		}
		word := map[string]string{all: "all", unfinished: "unfinished", none: "none"}[text]
		v.setting("clean-policy", word)
		v.note(Applied, "--clean-policy "+word)
	}
}

// off refuses a switch that asks for a job that does not run.
func off(what string) func(value) {
	return func(v value) {
		on, ok := v.boolean()
		switch {
		case !ok:
		case on && v.r.Explain:
			v.note(Missing, what+": a start needs --set "+v.path+"=false")
		case on:
			v.refuse("give --set "+v.path+"=false; muster pause stops the workers of a job that runs", "%s", what)
		default:
			v.note(Applied, "the job runs")
		}
	}
}

// quorum makes settings of who decides how a job ends.
func (v value) quorum(success, fail string) {
	v.setting("success-policy", success)
	v.setting("fail-policy", fail)
}

// succeeds is for a value that says whose success is the job's, as muster cannot tell it.
func (v value) succeeds(hint, format string, args ...any) {
	if v.r.Success {
		v.note(Mapped, bySuccess)
		return
	}
	v.refuse(hint, format, args...)
}

const bySuccess = "no effect: --success-policy says whose success is the job's"
