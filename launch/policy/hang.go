package policy

import "muster/launch/job"

// hang decides for workers that show no sign of life. A restart of them is the whole world's, whatever
// RestartRules.Scope says: those that wait for another one cannot do without it.
func (p *Policy) hang(e Event) Decision {
	if p.state != running {
		return Decision{Rank: -1}
	}
	d := Decision{Verdict: Fail, Reason: job.ReasonHang, Rank: -1, Status: e.Status, Text: e.Text}
	if !e.StartAgain {
		p.state = decided
		return d
	}
	if loop, is := p.looping(e); is && !e.Exclude.Any() {
		return loop
	}
	why := p.overLimit(e.At)
	never := why == job.ReasonWorkerFailed || p.rules.Policy == job.RestartNever || p.rules.Policy == job.RestartOnNodeFail
	switch {
	case e.Borne && (never || why != ""):
		return Decision{Rank: -1}
	case never:
		p.state = decided // there was no limit to reach
		return d
	case why != "":
		p.state, d.Reason = decided, why
		return d
	}
	if e.Exclude.Any() {
		p.idle = 0
	}
	p.idle++
	d.Verdict, d.Status, d.Exclude = Restart, 0, e.Exclude
	return p.again(e.At, d)
}
